"""Measure what gradient steps on its own prompt give a trained model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from regbench.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from regbench.analysis.adaptation import Place
    from regbench.analysis.trained import Trained

DESCRIPTION = (
    "Takes the first part of each instance, the segment, for gradient descent on a trained model, for each instance by itself. "
    "Scores the rest with the weights before and after. full: the true gradient of all parameters, of any model. values: no "
    "gradient through attention scores, and only the parameters that TinT changes. tint: as values, with finite differences, "
    "which is what TinT computes. The last two are for transformer and tint. The learning rate is chosen on validation. On a "
    "track of the task classification the exemplars of a problem are the segment, and the label of each query is predicted."
)
EXAMPLES = """\
examples:
  regbench adapt runs/tint
  regbench adapt runs/tint runs/mamba --how full --at 0.5 --table adapt.md
  regbench adapt runs/tint --at 0.5 --steps 4 --layers 1 --how tint
  regbench adapt runs/tint --track classification-small-v1 --how full,tint --format single,multi --steps 1,4,16 --calibrate
"""
WAYS = ("full", "values", "tint")
REFERENCE = "Bayes"
"""The baseline that stands beside the runs, on tracks where it is one."""


def configure(adapt: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    adapt.add_argument(
        "folder", nargs="+", metavar="DIR", help="run folders, all on one track; a mean over all their seeds"
    )
    place = adapt.add_mutually_exclusive_group()
    place.add_argument(
        "--at", metavar="S,S,...", help="where the segment ends, as a share of an instance (default: 0.3,0.5,0.7,0.9)"
    )
    place.add_argument("--tokens", metavar="N,N,...", help="where the segment ends, in tokens")
    adapt.add_argument(
        "--how", metavar="WAY,...", help="of full, values and tint (default: all, and full where there is no simulator)"
    )
    adapt.add_argument(
        "--rates",
        metavar="R,R,...",
        default="1e-4,3e-4,1e-3,2e-3,3e-3",
        help="learning rates to choose from, for the summed loss (default: 1e-4,3e-4,1e-3,2e-3,3e-3)",
    )
    adapt.add_argument(
        "--steps", default="1", metavar="N", help="steps of gradient descent (default: 1); with exemplars N,N,..."
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
    adapt.add_argument("--seed", type=int, metavar="N", help="only this seed of the runs (default: all)")
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


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Adapts each run, prints the table, and writes the files."""
    from regbench.analysis import adaptation, adaptation_few_shot, adaptation_few_shot_report, adaptation_report
    from regbench.evaluation.baselines import default_baselines
    from regbench.tracks import load_track
    from regbench.utils.files import atomic_write

    file = Path(arguments.table) if arguments.table is not None else None
    if file is not None and file.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{file}'")
    steps = tuple(_whole("--steps", arguments.steps))
    if arguments.limit < 4:
        raise UserError(f"--limit {arguments.limit} is too few: 4 or more")
    rates = tuple(_numbers("--rates", arguments.rates))
    if not all(0 < rate < float("inf") for rate in rates):
        raise UserError("--rates takes numbers above 0")
    asked = WAYS if arguments.how is None else _chosen("how", arguments.how, WAYS)
    formats = _chosen("format", arguments.format or "single", adaptation_few_shot.FORMATS)
    targets = _chosen("targets", arguments.targets or "label", adaptation_few_shot.TARGETS)
    places = _places(arguments)
    names, runs = _names([Path(folder) for folder in arguments.folder]), _load(arguments)
    if arguments.track is not None:
        other = load_track(arguments.track)
        runs = [[adaptation_few_shot.on_track(trained, other) for trained in models] for models in runs]
    tracks = {models[0].track.name: models[0].track for models in runs}
    if len(tracks) > 1:
        raise UserError(f"the runs are on different tracks: {', '.join(sorted(tracks))}")
    ((track_name, track),) = tracks.items()
    few_shot = adaptation_few_shot.few_shot_track(track)
    _refuse_strangers(arguments, track_name, steps, few_shot)
    report: Any = adaptation_few_shot_report if few_shot else adaptation_report
    rows: list[Any] = []
    for name, models in zip(names, runs, strict=True):
        has = adaptation.simulator_of(models[0].model) is not None
        ways = asked if has or arguments.how is not None else ("full",)
        plan = adaptation.Plan(ways, rates, steps[0], arguments.layers, arguments.limit)
        adaptation.check_ways(models[0], plan)
        if few_shot:
            wanted = adaptation_few_shot.FewShotPlan(plan, steps, formats, targets, arguments.calibrate)
            with console.status(name):
                rows += adaptation_few_shot.adapt_few_shot(models, name, wanted, arguments.split)
            continue
        for place in places:
            with console.status(f"{name}, segment {place}"):
                rows += adaptation.adapt_run(models, name, place, plan, arguments.split)
    if not few_shot:
        known = default_baselines(track, track.instances(arguments.split))
        for baseline in (one for one in known if one.name == REFERENCE):
            with console.status(REFERENCE):
                rows = adaptation.beside(rows, baseline, track, arguments.split)
    beside = not few_shot and bool(rows[0].outcome.reference)
    if few_shot:
        heading = adaptation_few_shot_report.title(track_name, arguments.split, arguments.limit)
    else:
        heading = adaptation_report.title(track_name, arguments.split, arguments.limit, steps[0])
    console.print(heading, style="bold")
    for table in report.terminal(rows):
        console.print(table)
    for table in adaptation_report.reference_tables(rows) if beside else ():
        console.print(table)
    for note in report.notes(rows):
        console.print(note, style="dim")
    if file is not None:
        with atomic_write(file) as out:
            out.write(report.markdown(rows, heading))
        report.write_csv(rows, arguments.split, file.with_suffix(".csv"))
        report.draw(rows, heading, file.with_suffix(".png"))
        pictures = [file.with_suffix(".png")]
        if beside:
            pictures.append(file.with_name(f"{file.stem}-bayes.png"))
            adaptation_report.draw_reference(rows, heading, pictures[-1])
        console.print(f"wrote {', '.join([str(file), file.with_suffix('.csv').name, *(one.name for one in pictures)])}")
    return 0


def _load(arguments: argparse.Namespace) -> list[list[Trained]]:
    """The models of each run, one a seed. Nothing may have changed of the splits that are read."""
    from regbench.analysis.trained import load_trained
    from regbench.config import read_run

    runs = []
    for folder in arguments.folder:
        seeds = read_run(Path(folder)).seeds if arguments.seed is None else [arguments.seed]
        for split in {"validation", arguments.split}:
            models = [load_trained(folder, seed, split) for seed in seeds]
        runs.append(models)
    return runs


def _refuse_strangers(arguments: argparse.Namespace, track: str, steps: tuple[int, ...], few_shot: bool) -> None:
    """Refuses options that are not for this track.

    Raises:
        UserError: There is one.
    """
    if few_shot:
        for option in ("at", "tokens"):
            if getattr(arguments, option) is not None:
                raise UserError(f"--{option} is not for {track}: the exemplars are the segment")
        return
    for option in ("targets", "format", "calibrate"):
        if getattr(arguments, option):
            raise UserError(f"--{option} is for tracks of the task classification, not for {track}: give --track")
    if len(steps) > 1:
        raise UserError(f"--steps takes one number on {track}, not {arguments.steps}")


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
    shares = _numbers("--at", "0.3,0.5,0.7,0.9" if arguments.at is None else arguments.at)
    if not all(0 < share < 1 for share in shares):
        raise UserError(f"--at takes shares above 0 and below 1, not '{arguments.at}'")
    return [Place(share=share) for share in shares]


def _whole(option: str, text: str) -> list[int]:
    """The whole numbers of a list such as "1,4,16", in order."""
    counts = _numbers(option, text)
    if any(count < 1 or count != int(count) for count in counts):
        raise UserError(f"{option} takes whole numbers above 0, not '{text}'")
    return sorted({int(count) for count in counts})


def _numbers(option: str, text: str) -> list[float]:
    """The numbers of a list such as "1e-3,2e-3"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between them, not '{text}'") from None


def _names(folders: list[Path]) -> list[str]:
    """The name of each folder, or its path where names are the same."""
    short = [folder.name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]
