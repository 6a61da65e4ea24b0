"""Measure what gradient steps on its own prompt give a trained model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from regbench.cli.arguments import refuse_unused
from regbench.cli.lines import stderr, under_way
from regbench.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from papers.tint.adaptation import Place, Plan
    from papers.tint.report import Report
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
    adapt.add_argument("folder", nargs="+", metavar="DIR", help="run folders on one track; a mean over all their seeds")
    place = adapt.add_mutually_exclusive_group()
    few = adapt.add_argument_group("few-shot classification")
    for group, option, metavar, meaning in (
        (place, "at", "S,S,...", "where the segment ends, as a share of an instance"),
        (place, "tokens", "N,N,...", "where the segment ends, in tokens"),
        (adapt, "how", "WAY,...", "of full, values and tint (default: all that the model can have); or distill"),
        (
            adapt,
            "rates",
            "R,R,...",
            "learning rates for the summed loss, to choose from on validation; one is taken as it is",
        ),
        (adapt, "steps", "N", "steps of gradient descent; with exemplars, and of distill, N,N,..."),
        (adapt, "arch", "FILE", "FILE.py[:CLASS], if the runs are of an architecture of your own"),
        (adapt, "table", "FILE.md", "write the table there, with FILE.csv and FILE.png"),
        (few, "track", "T", "a track of the task classification to ask about (default: that of the runs)"),
        (few, "targets", "T,...", "what is in the loss: label, all"),
        (
            few,
            "format",
            "F,...",
            "single: exemplars one by one; multi: as one sequence, and the query behind; zero: steps on the query alone",
        ),
    ):
        default = f" (default: {DEFAULTS[option]})" if option in DEFAULTS else ""
        group.add_argument(f"--{option}", metavar=metavar, help=meaning + default)
    few.add_argument("--calibrate", action="store_true", help="also calibrated accuracies; the last chooses the rate")
    for option, metavar, meaning in (
        ("queries", "M", f"distill: texts sampled for each prompt (default: {DEFAULTS['queries']})"),
        ("layers", "K", "only the top K blocks and the last norm change (default: all)"),
        ("seed", "N", "only this seed of the runs (default: all)"),
    ):
        adapt.add_argument(f"--{option}", type=int, metavar=metavar, help=meaning)
    splits = ("validation", "test")
    adapt.add_argument("--split", choices=splits, default="test", help="which instances are scored (default: test)")
    most = "how many instances, or problems, of each split (default: 200)"
    adapt.add_argument("--limit", type=int, default=200, metavar="N", help=most)
    adapt.add_argument("--angles", action="store_true", help="only the angle between TinT's gradient and the true one")


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for, checked. Without ways, each run has all that it can have."""

    runs: list[tuple[str, list[Trained]]]
    track: Track
    ways: tuple[str, ...] | None
    rates: tuple[float, ...]
    steps: tuple[int, ...]
    places: list[Place]
    file: Path | None

    def plan(self, models: list[Trained], arguments: argparse.Namespace) -> Plan:
        from papers.tint.adaptation import Plan, check_ways
        from papers.tint.gradient_steps import refusal_of

        ways = self.ways or (WAYS if refusal_of(models[0].model) is None else ("full",))
        plan = Plan(ways, self.rates, self.steps[0], arguments.layers, arguments.limit)
        check_ways(models[0], plan)
        return plan


def main(arguments: argparse.Namespace, console: Console) -> int:
    from papers.tint.few_shot import few_shot_track
    from regbench.utils.files import require_writable_files

    given = argparse.Namespace(**vars(arguments))
    for option, default in DEFAULTS.items():
        if getattr(arguments, option) is None:
            setattr(arguments, option, default)
    asked = _read(arguments)
    few_shot = few_shot_track(asked.track)
    _refuse_strangers(given, asked, few_shot)
    require_writable_files(asked.file)
    if arguments.angles:
        return _angles(asked, arguments, console)
    measure = _distill if asked.ways == (DISTIL,) else _exemplars if few_shot else _segments
    with under_way(stderr()) as step:
        found = measure(asked, arguments, step)
    found.show(asked.file, console)
    return 0


def _read(arguments: argparse.Namespace) -> _Asked:
    from papers.tint.few_shot import on_exemplars
    from regbench.analysis.trained import own_track, run_names
    from regbench.tracks import load_track

    file = Path(arguments.table) if arguments.table is not None else None
    if file is not None and file.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{file}'")
    steps = tuple(_whole("--steps", arguments.steps))
    if arguments.limit < 4:
        raise UserError(f"--limit {arguments.limit} is too few: 4 or more")
    rates = tuple(dict.fromkeys(_numbers("--rates", arguments.rates)))
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
    if track.task.io.kind != "tokens":
        raise UserError(f"{track.name} is of vectors: adapt is for tokens")
    return _Asked(list(zip(names, runs, strict=True)), track, ways, rates, steps, places, file)


def _segments(asked: _Asked, arguments: argparse.Namespace, step: Callable[[str], None]) -> Report:
    """Adapts each run to the first part of each instance."""
    from papers.tint import adaptation
    from papers.tint.adaptation_report import report
    from regbench.evaluation.baselines import default_baselines

    rows: list[adaptation.Row] = []
    for name, models in asked.runs:
        plan = asked.plan(models, arguments)
        for place in asked.places:
            step(f"{name}: segment {place}")
            rows += adaptation.adapt_run(models, name, place, plan, arguments.split)
    known = default_baselines(asked.track, asked.track.instances(arguments.split))
    for baseline in (one for one in known if one.name == REFERENCE):
        step(f"{REFERENCE}: the same positions")
        rows = adaptation.beside(rows, baseline, asked.track, arguments.split)
    return report(rows, asked.track.name, arguments.split, arguments.limit, asked.steps[0])


def _exemplars(asked: _Asked, arguments: argparse.Namespace, step: Callable[[str], None]) -> Report:
    """Adapts each run to the exemplars of each problem."""
    from papers.tint import few_shot
    from papers.tint.few_shot_report import report

    formats = _chosen("format", arguments.format, few_shot.FORMATS)
    targets = _chosen("targets", arguments.targets, few_shot.TARGETS)
    rows: list[few_shot.FewShotRow] = []
    for name, models in asked.runs:
        plan = asked.plan(models, arguments)
        wanted = few_shot.FewShotPlan(plan, asked.steps, formats, targets, arguments.calibrate)
        rows += few_shot.adapt_few_shot(models, name, wanted, arguments.split, step)
    return report(rows, asked.track.name, arguments.split, arguments.limit)


def _distill(asked: _Asked, arguments: argparse.Namespace, step: Callable[[str], None]) -> Report:
    from papers.tint.distillation import distil_run
    from papers.tint.distillation_report import report

    refuse_unused(arguments, ("layers",), f"is not for --how {DISTIL}: all parameters of the student learn")
    queries, split, limit = arguments.queries, arguments.split, arguments.limit
    if queries < 1:
        raise UserError(f"--queries {queries} is too few: 1 or more")
    found = []
    for name, models in asked.runs:
        for place in asked.places:
            step(f"{name}: prompt of {place}")
            sizes = {"rates": asked.rates, "steps": asked.steps, "queries": queries, "limit": limit}
            found.append(distil_run(models, name, place, split=split, **sizes))
    return report(found, asked.track.name, split, limit, queries)


def _angles(asked: _Asked, arguments: argparse.Namespace, console: Console) -> int:
    """Prints how far the gradient of TinT is from the true one."""
    from papers.tint.angles import measure_angles, table

    rows = []
    with under_way(stderr()) as step:
        for name, models in asked.runs:
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


def _chosen(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a list such as "full,tint", each once."""
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            raise UserError(f"--{option} knows no '{name}'{nearest(name, known)}")
    return found


def _places(arguments: argparse.Namespace) -> list[Place]:
    from papers.tint.adaptation import Place  # it loads PyTorch

    if arguments.tokens is not None:
        return [Place(tokens=count) for count in _whole("--tokens", arguments.tokens)]
    shares = _numbers("--at", arguments.at)
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
