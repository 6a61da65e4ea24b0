"""Train many runs from one file, choose on validation, and tabulate."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from rich.console import Console

from regbench.cli.arguments import apart_from_stdout, one_of, refuse_unused
from regbench.cli.lines import print_line, stderr
from regbench.report.table import narrow_table, print_fitting
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.sweeps.estimate import Cost
    from regbench.sweeps.local import Share
    from regbench.sweeps.sweep import Sweep, Swept

DESCRIPTION = (
    "Trains a grid of configurations from one file, on all cores of this machine or on a Ray cluster. The best one is chosen on "
    "the validation split, trains all seeds, and is scored on the test split. The folder is the state: the same command goes on "
    "where it was stopped. Exit code 1 where something failed."
)
EXAMPLES = """\
examples:
  regbench sweep sweeps/laptop.yaml --dry-run     the cells, and what they would cost here
  regbench sweep sweeps/laptop.yaml               as many runs at once as there are cores
  regbench sweep grid.yaml --on ray --ray-address head:6379
"""


def configure(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("file", metavar="FILE.yaml", help="what to sweep; docs/sweeps.md says how it is written")
    sweep.add_argument(
        "--jobs", type=int, metavar="N", help="runs at once (default: the cores over the threads of a run)"
    )
    sweep.add_argument("--on", type=one_of("local", "ray"), default="local", help="this machine (default), or Ray")
    sweep.add_argument(
        "--ray-address", metavar="A", help="HOST:PORT of a Ray cluster (default: RAY_ADDRESS, else one that runs here)"
    )
    sweep.add_argument(
        "--dry-run", action="store_true", help="only say what would be trained, and what it would cost here"
    )
    sweep.add_argument("--out", metavar="DIR", help="the sweep's folder (default: runs/sweeps/ and the file's name)")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.cli.live import Live
    from regbench.sweeps.estimate import estimate
    from regbench.sweeps.sweep import Sweep

    if arguments.ray_address and arguments.on != "ray":
        raise UserError("--ray-address says where Ray runs: give --on ray too")
    if arguments.dry_run:
        refuse_unused(arguments, ("out", "ray_address"), "has no effect with --dry-run, which writes nothing")
    progress = stderr()
    with apart_from_stdout():
        sweep = Sweep.read(arguments.file)
        divided = sweep.share(arguments.jobs, arguments.on) if arguments.dry_run else None
        if divided is not None:
            timed = sweep.groups if arguments.on == "local" else []  # a cluster's nodes may be other machines
            costs = estimate(timed, divided.threads, lambda text: progress.print(text))
        else:
            with Live(progress) as live:
                swept = sweep.run(
                    live,
                    out=arguments.out,
                    jobs=arguments.jobs,
                    on=arguments.on,
                    address=arguments.ray_address,
                    announce=live.say,
                )
    if divided is not None:
        _print_costs(sweep, divided, costs, console)
        return 0
    _print(sweep, swept, console)
    return 1 if swept.failures else 0


def _print(sweep: Sweep, swept: Swept, console: Console) -> None:
    from regbench.cli.tables import sweep_table
    from regbench.leaderboard.figures import seeds_needed
    from regbench.leaderboard.standing import FULL, budget_share
    from regbench.sweeps.state import SweepFolder

    for track in dict.fromkeys(row.point.track.name for row in swept.best):
        print_fitting(sweep_table(track, [row for row in swept.best if row.point.track.name == track]), console)
    if swept.rows:
        more = len(swept.rows) - len(swept.best)
        rest = f" {more} more in table.csv." if more else ""
        console.print(f"Chosen on validation. After a score: the lowest and the highest seed.{rest}")
    if swept.failures:
        failures = [(one.label, one.message) for one in swept.failures]
        console.print(narrow_table("failed", ("what", "why"), 2, failures, fold=2))
    names = sorted(
        path.name for path in swept.folder.iterdir() if path.suffix in (".csv", ".png") or "best" in path.name
    )
    print_line(f"in {swept.folder}: {', '.join(names)}", console)
    candidates = [row for row in swept.best if row.point.track.takes_entries]
    given = tuple(sweep.file.seeds)
    if candidates and given != (seeds := seeds_needed(given)):
        short = any(budget_share(row.result, row.point.track) < FULL for row in candidates)
        less = ", leave out what shortens the training," if short else ""
        print_line(
            f"next, as an entry needs: write seeds: {list(seeds)} in {sweep.path}{less} and sweep again", console
        )
        return
    for row in candidates:
        submit = f"next: regbench submit {shlex.quote(str(row.folder))}"
        tried, trials = SweepFolder(swept.folder).tried(row.point), row.result.selection.trials
        if tried > trials:
            own = f"{trials} trial{'s' * (trials > 1)}"
            submit += (
                f"; it states {own}, and all groups of {row.point.name} had {tried}: submit the best of every group, or train "
                f"this configuration again with --trials {tried}"
            )
        print_line(submit, console)


def _print_costs(sweep: Sweep, divided: Share, costs: list[Cost], console: Console) -> None:
    """Every cell, what each architecture costs, and how long all take. Of a cluster only the cells."""
    from regbench.cli.tables import cost_table
    from regbench.report.content import human_seconds

    count = sum(len(group.trials) + group.further for group in sweep.groups)
    cells = f"{count:,} cell{'s' * (count > 1)}"
    each = f"{divided.threads} thread{'s' * (divided.threads > 1)} each"
    for group in sweep.groups:
        track, seeds = group.first.track.name, " ".join(map(str, group.seeds))
        for cell in group.trials:
            print_line(f"{cell.digest[:8]}  {track}  {cell.label}", console)
        what = f"the best of these {len(group.trials)}" if group.trials else group.first.label
        print_line(f"          {track}  {what}: seeds {seeds}", console)
    if not costs:
        why = "the nodes of a cluster may be other machines than this one"
        print_line(f"{cells}, {each}; not timed, because {why}", console)
        return
    print_fitting(cost_table(costs), console, names=2)
    # A cell is not divided: all take at least as long as the longest one.
    longest = max(cost.seconds / cost.cells for cost in costs)
    seconds = max(longest, sum(cost.seconds for cost in costs) / divided.jobs)
    print_line(
        f"{cells}, about {human_seconds(seconds)} with {divided.jobs} at once, {each}; training alone: "
        "processes that start, scoring and the baselines of a track that is new here come on top",
        console,
    )
