"""`regbench run --suite`: an architecture on each track of a suite, and one table of all."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from regbench.cli.arguments import apart_from_stdout
from regbench.cli.findings import print_line
from regbench.cli.tables import folded, print_fitting
from regbench.training.terminal import TerminalReporter
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.config import Config
    from regbench.metrics.metric import Metrics
    from regbench.results import Result


def run_suite(suite: str | None, config: Config | None, place: str | None, jobs: int | None, console: Console) -> int:
    """Trains on every track and prints the table.

    Args:
        suite: The suite's name or file. None: go on with the suite's folder `place`.
        config: What to run on each track.
        place: The suite's folder; None for a new one.
        jobs: Seeds trained at once.
        console: For the table.

    Returns:
        The exit code.
    """
    from regbench import runner
    from regbench.cli.live import Live
    from regbench.sweeps.seeds import run_seeds
    from regbench.sweeps.suite import begin_suite, go_on
    from regbench.tracks.suite import load_suite

    folder = Path(place) if place is not None else None
    with TerminalReporter(Console(stderr=True)) as reporter, apart_from_stdout():

        def train(run: Path) -> Result:
            if jobs is None:
                return runner.resume(run, reporter)
            with Live(Console(stderr=True)) as live:
                return run_seeds(run, jobs, live)

        done: list[tuple[Path, Result]] = []
        try:
            if suite is not None:
                assert config is not None
                folder = begin_suite(load_suite(suite), config, folder, reporter)
            assert folder is not None
            for run, result in go_on(folder, train):
                done.append((run, result))
        except KeyboardInterrupt:
            hint = f"; go on with: regbench run --resume {folder}" if reporter.folder else ""
            print(f"regbench: interrupted{hint}", file=sys.stderr)
            return 130
    print_fitting(suite_table(done), console)
    shares = [share for _, result in done if (share := _normalized(result)) is not None]
    if shares:
        console.print(
            f"mean of the normalized scores: {100 * statistics.fmean(shares):.0f}, over {len(shares)} of {len(done)} tracks",
            highlight=False,
        )
    print_line(f"a run folder for each track: {folder}", console)
    return 0


def suite_table(done: Sequence[tuple[Path, Result]]) -> Table:
    """A row for each track: the main score of the architecture, of the best entry on the board and of the best baseline.

    Args:
        done: Run folders with their results.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for head in ("track", "score", escape(done[0][1].architecture.name), "normalized", "best entry", "best baseline"):
        number = head not in ("track", "score", "best entry", "best baseline")
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for folder, result in done:
        main, share = result.track.main_score, _normalized(result)
        metrics = _metrics(folder, result)
        mine = result.score(main)
        table.add_row(
            fill(result.track.name, 17),  # at hyphens: whole names do not fit 80 columns
            f"{metrics[main].label} {metrics[main].arrow}",
            f"{mine.value:.3f} ±{mine.stderr:.3f}",
            "—" if share is None else f"{100 * share:.0f}",
            escape(folded(best_entry(result, metrics))),
            escape(folded(best_baseline(result, metrics))),
        )
    return table


def best_entry(result: Result, metrics: Metrics) -> str:
    """The name and main score of the best entry on the board of a result's track; a dash where there is none.

    An entry that is broken or of another definition of the track does not count.
    """
    from regbench.leaderboard.store import find_board, stored_in

    means: dict[str, float] = {}
    with contextlib.suppress(UserError):  # there is no board
        for stored in stored_in(find_board(None) / "entries" / result.track.name):
            with contextlib.suppress(UserError):  # this entry cannot be read
                entry, faults = stored.read()
                if not faults and entry.result.track.digest == result.track.digest:
                    means[entry.name] = entry.result.score(result.track.main_score).value
    return _best(means, metrics, result.track.main_score)


def best_baseline(result: Result, metrics: Metrics) -> str:
    """The name and main score of the best baseline that does not know the truth; a dash where there is none."""
    main = result.track.main_score
    found = {name: record.scores[main].value for name, record in result.baselines.items() if record.anchor != "end"}
    return _best(found, metrics, main)


def _best(values: Mapping[str, float], metrics: Metrics, main: str) -> str:
    if not values:
        return "—"
    choose = max if metrics[main].higher_is_better else min
    name = choose(sorted(values), key=lambda one: values[one])
    return f"{name} {values[name]:.3f}"


def _normalized(result: Result) -> float | None:
    """The mean over seeds of the normalized main score; None where the track has none."""
    main = result.track.main_score
    shares = [seed.share_of_the_way[main] for seed in result.seeds if main in seed.share_of_the_way]
    return statistics.fmean(shares) if shares else None


def _metrics(folder: Path, result: Result) -> Metrics:
    """What the scores of a result are. Scores that a task of the user's own defines are read from its track."""
    from regbench.config import read_config
    from regbench.metrics.metric import METRICS
    from regbench.tracks import load_track

    known = set(result.metrics) <= METRICS.keys()
    return METRICS if known else load_track(read_config(folder / "config.yaml").track).metrics
