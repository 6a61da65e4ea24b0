"""Measure what gradient steps on its own prompt give a trained model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from regbench.cli.arguments import refuse_unused
from regbench.cli.lines import print_line, stderr, under_way
from regbench.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from regbench.analysis.adaptation import Place, Plan
    from regbench.analysis.trained import Trained
    from regbench.tracks import Track

DESCRIPTION = (
    "Takes the first part of each instance, the segment, for gradient descent on a trained model, for each instance by itself. "
    "Scores the rest with the weights before and after. full: the true gradient of all parameters, of any model. values: no "
    "gradient through attention scores, and only the parameters that TinT changes. tint: as values, with finite differences, "
    "which is what TinT computes. These two are for transformer and tint. The learning rate is chosen on validation. On a "
    "track of the task classification the exemplars of a problem are the segment, and the label of each query is predicted. "
    "distill, a proposal of ours: a copy of the model, which reads the rest alone, learns by Adam to predict as the model with "
    "the segment."
)
EXAMPLES = """\
examples:
  regbench adapt runs/tint
  regbench adapt runs/tint runs/mamba --how full --at 0.5 --table adapt.md
  regbench adapt runs/tint --at 0.5 --steps 4 --layers 1 --how tint
  regbench adapt runs/tint --at 0.5 --angles --limit 50
  regbench adapt runs/transformer --how distill --tokens 36 --steps 1,4,16,64 --limit 50
  regbench adapt runs/tint --track classification-small-v1 --how full,tint --format single,multi --steps 1,4,16 --calibrate
"""
WAYS = ("full", "values", "tint")
DISTIL = "distill"
DEFAULTS: dict[str, Any] = {
    "at": "0.3,0.5,0.7,0.9",
    "rates": "1e-4,3e-4,1e-3,2e-3,3e-3",
    "steps": "1",
    "queries": 16,
    "targets": "label",
    "format": "single",
}
"""What is taken where an option is not given. The parser has none of it, so that one given where it is not used is refused."""

REFERENCE = "Bayes"
"""The baseline that stands beside the runs, on tracks where it is one."""


def configure(adapt: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    adapt.add_argument(
        "folder", nargs="+", metavar="DIR", help="run folders, all on one track; a mean over all their seeds"
    )
    place = adapt.add_mutually_exclusive_group()
    place.add_argument(
        "--at",
        metavar="S,S,...",
        help=f"where the segment ends, as a share of an instance (default: {DEFAULTS['at']})",
    )
    place.add_argument("--tokens", metavar="N,N,...", help="where the segment ends, in tokens")
    adapt.add_argument(
        "--how",
        metavar="WAY,...",
        help="of full, values and tint (default: all, and full where there is no simulator); or distill",
    )
    adapt.add_argument(
        "--rates",
        metavar="R,R,...",
        help="learning rates to choose from on validation, for the summed loss; one alone is taken as it is "
        f"(default: {DEFAULTS['rates']})",
    )
    adapt.add_argument(
        "--steps",
        metavar="N",
        help=f"steps of gradient descent (default: {DEFAULTS['steps']}); with exemplars, and of distill, N,N,...",
    )
    adapt.add_argument(
        "--queries",
        type=int,
        metavar="M",
        help=f"distill: texts sampled for each prompt (default: {DEFAULTS['queries']})",
    )
    adapt.add_argument(
        "--layers", type=int, metavar="K", help="only the top K blocks and the last norm change (default: all)"
    )
    adapt.add_argument(
        "--split", choices=("validation", "test"), default="test", help="which instances are scored (default: test)"
    )
    adapt.add_argument(
        "--limit",
        type=int,
        default=200,
        metavar="N",
        help="how many instances, or problems, of each split (default: 200)",
    )
    adapt.add_argument(
        "--angles", action="store_true", help="only the angle between TinT's gradient and the true one, by block"
    )
    adapt.add_argument("--seed", type=int, metavar="N", help="only this seed of the runs (default: all)")
    adapt.add_argument("--arch", metavar="FILE", help="FILE.py[:CLASS], if the runs are of an architecture of your own")
    adapt.add_argument("--table", metavar="FILE.md", help="write the table there, with FILE.csv and FILE.png")
    few = adapt.add_argument_group("few-shot classification")
    few.add_argument(
        "--track", metavar="T", help="a track of the task classification to ask about (default: that of the runs)"
    )
    few.add_argument("--targets", metavar="T,...", help="what is in the loss: label (default), all")
    few.add_argument(
        "--format",
        metavar="F,...",
        help="exemplars one by one: single (default); or as one sequence, and the query behind: multi",
    )
    few.add_argument(
        "--calibrate", action="store_true", help="also calibrated accuracies; the rate is chosen by the last"
    )


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for, checked.

    Attributes:
        runs: The name of each run, and its models, one a seed.
        track: Their track, or the one that they are asked about.
        ways: Of `WAYS`, or distill alone. None: all that the run has.
        rates: To choose from.
        steps: One number, or several of distill and of exemplars.
        places: Where segments end.
        file: For the table, or None.
    """

    runs: list[tuple[str, list[Trained]]]
    track: Track
    ways: tuple[str, ...] | None
    rates: tuple[float, ...]
    steps: tuple[int, ...]
    places: list[Place]
    file: Path | None

    def plan(self, models: list[Trained], arguments: argparse.Namespace) -> Plan:
        """The plan of one run, whose ways are those that it has where none are named."""
        from regbench.analysis import adaptation
        from regbench.analysis.gradient_steps import simulator_of

        has = simulator_of(models[0].model) is not None
        ways = self.ways if self.ways is not None else WAYS if has else ("full",)
        plan = adaptation.Plan(ways, self.rates, self.steps[0], arguments.layers, arguments.limit)
        adaptation.check_ways(models[0], plan)
        return plan


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Adapts each run, prints the table, and writes the files."""
    from regbench.analysis.adaptation_few_shot import few_shot_track
    from regbench.utils.files import require_writable_files

    asked = _read(arguments)
    few_shot = few_shot_track(asked.track)
    _refuse_strangers(arguments, asked, few_shot)
    require_writable_files(asked.file)
    if arguments.angles:
        return _angles(asked, arguments, console)
    if asked.ways == (DISTIL,):
        return _distill(asked, arguments, console)
    return (_exemplars if few_shot else _segments)(asked, arguments, console)


def _read(arguments: argparse.Namespace) -> _Asked:
    """Reads the arguments and loads the runs.

    Raises:
        UserError: One of them is wrong.
    """
    from regbench.analysis.adaptation_few_shot import on_exemplars
    from regbench.analysis.trained import own_track, run_names
    from regbench.tracks import load_track

    file = Path(arguments.table) if arguments.table is not None else None
    if file is not None and file.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{file}'")
    steps = tuple(_whole("--steps", _value(arguments, "steps")))
    if arguments.limit < 4:
        raise UserError(f"--limit {arguments.limit} is too few: 4 or more")
    rates = tuple(dict.fromkeys(_numbers("--rates", _value(arguments, "rates"))))
    if not all(0 < rate < float("inf") for rate in rates):
        raise UserError("--rates takes numbers above 0")
    ways = None if arguments.how is None else _chosen("how", arguments.how, (*WAYS, DISTIL))
    if ways is not None and DISTIL in ways and len(ways) > 1:
        raise UserError(f"--how {DISTIL} is asked for alone: its students do not read the segment")
    places = _places(arguments)
    names, runs = run_names(arguments.folder), _load(arguments)
    if arguments.track is not None and own_track(arguments.folder[0], arguments.track) is None:
        other = load_track(arguments.track)
        runs = [[on_exemplars(trained, other) for trained in models] for models in runs]
    tracks = {models[0].track.definition.digest: models[0].track for models in runs}
    if len(tracks) > 1:
        named = sorted(f"{track.name} ({digest[:12]})" for digest, track in tracks.items())
        raise UserError(f"the runs are on different tracks, or definitions of one: {', '.join(named)}")
    (track,) = tracks.values()
    return _Asked(list(zip(names, runs, strict=True)), track, ways, rates, steps, places, file)


def _segments(asked: _Asked, arguments: argparse.Namespace, console: Console) -> int:
    """Adapts each run to the first part of each instance."""
    from regbench.analysis import adaptation, adaptation_report
    from regbench.evaluation.baselines import default_baselines

    rows: list[adaptation.Row] = []
    with under_way(stderr()) as step:
        for name, models in asked.runs:
            plan = asked.plan(models, arguments)
            for place in asked.places:
                step(f"{name}: segment {place}")
                rows += adaptation.adapt_run(models, name, place, plan, arguments.split)
        known = default_baselines(asked.track, asked.track.instances(arguments.split))
        for baseline in (one for one in known if one.name == REFERENCE):
            step(f"{REFERENCE}: the same positions")
            rows = adaptation.beside(rows, baseline, asked.track, arguments.split)
    heading = adaptation_report.title(asked.track.name, arguments.split, arguments.limit, asked.steps[0])
    _show(adaptation_report, rows, heading, asked.file, arguments.split, console)
    if asked.file is not None and rows[0].outcome.reference:
        picture = asked.file.with_name(f"{asked.file.stem}-bayes.png")
        adaptation_report.draw_reference(rows, heading, picture)
        print_line(f"wrote {picture}", console)
    return 0


def _exemplars(asked: _Asked, arguments: argparse.Namespace, console: Console) -> int:
    """Adapts each run to the exemplars of each problem."""
    from regbench.analysis import adaptation_few_shot, adaptation_few_shot_report

    formats = _chosen("format", _value(arguments, "format"), adaptation_few_shot.FORMATS)
    targets = _chosen("targets", _value(arguments, "targets"), adaptation_few_shot.TARGETS)
    rows: list[adaptation_few_shot.FewShotRow] = []
    with under_way(stderr()) as step:
        for name, models in asked.runs:
            plan = asked.plan(models, arguments)
            wanted = adaptation_few_shot.FewShotPlan(plan, asked.steps, formats, targets, arguments.calibrate)
            rows += adaptation_few_shot.adapt_few_shot(models, name, wanted, arguments.split, step)
    heading = adaptation_few_shot_report.title(asked.track.name, arguments.split, arguments.limit)
    _show(adaptation_few_shot_report, rows, heading, asked.file, arguments.split, console)
    return 0


def _show(report: Any, rows: Sequence[Any], heading: str, file: Path | None, split: str, console: Console) -> None:
    """Prints the tables and the notes of a report. If there is a file, writes its table, numbers and picture too."""
    from regbench.utils.files import atomic_write, explain_full_disk

    console.print(heading, style="bold")
    for table in report.terminal(rows):
        console.print(table)
    for note in report.notes(rows):
        console.print(note, style="dim")
    if file is None:
        return
    with explain_full_disk(file.parent):
        with atomic_write(file) as out:
            out.write(report.markdown(rows, heading))
        report.write_csv(rows, split, file.with_suffix(".csv"))
        report.draw(rows, heading, file.with_suffix(".png"))
    print_line(f"wrote {file}, {file.with_suffix('.csv').name}, {file.with_suffix('.png').name}", console)


def _angles(asked: _Asked, arguments: argparse.Namespace, console: Console) -> int:
    """Prints how far the gradient of TinT is from the true one."""
    from regbench.analysis import adaptation
    from regbench.analysis.adaptation_angles import measure_angles, table

    rows = []
    with under_way(stderr()) as step:
        for name, models in asked.runs:
            adaptation.check_ways(models[0], adaptation.Plan(("full",), asked.rates))
            for place in asked.places:
                step(f"{name}: segment {place}")
                rows += measure_angles(models, name, place, arguments.split, arguments.limit)
    console.print(table(rows))
    console.print(
        "cosine over the parameters that TinT changes: 1 is the same direction. hard heads: share of heads and positions at "
        "which one key has 0.9 of the attention",
        style="dim",
    )
    return 0


def _distill(asked: _Asked, arguments: argparse.Namespace, console: Console) -> int:
    """Distils each run at each place, prints the table, and writes the files."""
    from regbench.analysis import distillation, distillation_report

    refuse_unused(arguments, ("layers",), f"is not for --how {DISTIL}: all parameters of the student learn")
    queries = _value(arguments, "queries")
    if queries < 1:
        raise UserError(f"--queries {queries} is too few: 1 or more")
    found = []
    with under_way(stderr()) as step:
        for name, models in asked.runs:
            for place in asked.places:
                step(f"{name}: prompt of {place}")
                one = distillation.distil_run(
                    models,
                    name,
                    place,
                    rates=asked.rates,
                    steps=asked.steps,
                    split=arguments.split,
                    queries=queries,
                    limit=arguments.limit,
                )
                found.append(one)
    heading = distillation_report.title(asked.track.name, arguments.split, arguments.limit, queries)
    _show(distillation_report, found, heading, asked.file, arguments.split, console)
    return 0


def _load(arguments: argparse.Namespace) -> list[list[Trained]]:
    """The models of each run, one a seed. Nothing may have changed of the splits that are read."""
    from regbench.analysis.trained import load_named, own_track
    from regbench.config import read_run

    runs = []
    for folder in arguments.folder:
        named = {"architecture": arguments.arch, "track": own_track(folder, arguments.track)}
        seeds = read_run(Path(folder)).seeds if arguments.seed is None else [arguments.seed]
        for split in {"validation", arguments.split}:
            models = [load_named(folder, seed, split, **named, read_track=True) for seed in seeds]
        runs.append(models)
    return runs


def _refuse_strangers(arguments: argparse.Namespace, asked: _Asked, few_shot: bool) -> None:
    """Refuses options that are not for this track.

    Raises:
        UserError: There is one.
    """
    track, distils = asked.track.name, asked.ways == (DISTIL,)
    if arguments.angles:
        refuse_unused(
            arguments, ("how", "table", "layers", "rates", "steps"), "is not for --angles, which takes no step"
        )
    if not distils:
        refuse_unused(arguments, ("queries",), f"is for --how {DISTIL}: nothing else samples texts")
    if few_shot:
        refuse_unused(arguments, ("angles",), f"is not for {track}: it is measured on segments")
        refuse_unused(arguments, ("at", "tokens"), f"is not for {track}: the exemplars are the segment")
        if distils:
            raise UserError(f"--how {DISTIL} is not for {track}: it has no text after the segment")
        return
    others = f"is for tracks of the task classification, not for {track}: give --track"
    refuse_unused(arguments, ("targets", "format", "calibrate"), others)
    if len(asked.steps) > 1 and not distils:
        raise UserError(f"--steps takes one number on {track}, not {arguments.steps}")


def _value(arguments: argparse.Namespace, option: str) -> Any:
    """What an option of `DEFAULTS` was given, or its default."""
    given = getattr(arguments, option)
    return DEFAULTS[option] if given is None else given


def _chosen(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a list such as "full,tint", each once."""
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            raise UserError(f"--{option} knows no '{name}'{nearest(name, known)}")
    return found


def _places(arguments: argparse.Namespace) -> list[Place]:
    """Where the segments end."""
    from regbench.analysis.adaptation import Place  # it loads PyTorch

    if arguments.tokens is not None:
        return [Place(tokens=count) for count in _whole("--tokens", arguments.tokens)]
    shares = _numbers("--at", _value(arguments, "at"))
    if not all(0 < share < 1 for share in shares):
        raise UserError(f"--at takes shares above 0 and below 1, not '{arguments.at}'")
    return [Place(share=share) for share in shares]


def _whole(option: str, text: str) -> list[int]:
    """The whole numbers of a list such as "1,4,16", in order."""
    counts = _numbers(option, text)
    if any(count < 1 or not count.is_integer() for count in counts):
        raise UserError(f"{option} takes whole numbers above 0, not '{text}'")
    return sorted({int(count) for count in counts})


def _numbers(option: str, text: str) -> list[float]:
    """The numbers of a list such as "1e-3,2e-3"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between them, not '{text}'") from None
