"""`regbench run --suite`: an architecture on each track of a suite, and one table of all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import apart_from_stdout
from regbench.cli.lines import print_line, stderr
from regbench.cli.tables import metrics_of_run
from regbench.report.table import folded, narrow_table, print_fitting
from regbench.training.terminal import TerminalReporter

if TYPE_CHECKING:
    from regbench.metrics.metric import Metrics
    from regbench.results import Result
    from regbench.training.progress import Reporter


def run_suite(begin: Callable[[Reporter], Path], jobs: int | None, console: Console) -> int:
    from regbench.cli.live import go_on, interrupted
    from regbench.metrics.reach import reach_words
    from regbench.sweeps import suite

    folder: Path | None = None
    with TerminalReporter(stderr()) as reporter, apart_from_stdout():
        try:
            folder = begin(reporter)
            done = list(suite.go_on(folder, lambda run: go_on(run, jobs, reporter)))
        except KeyboardInterrupt:
            return interrupted(folder, jobs)
    print_fitting(suite_table(done), console)
    for _, result in done:
        if words := reach_words(result):
            print_line(f"{result.track.name}: reach {words}", console)
    shares = [statistics.fmean(result.normalized) for _, result in done if result.normalized]
    if shares:
        console.print(
            f"mean of the normalized scores: {100 * statistics.fmean(shares):.0f}, over {len(shares)} of {len(done)} tracks",
        )
    print_line(f"a run folder for each track: {folder}", console)
    return 0


def suite_table(done: Sequence[tuple[Path, Result]]) -> Table:
    """A row for each track: the main score of the architecture, of the best entry on the board and of the best baseline."""
    heads = ("track", "score", done[0][1].architecture.name, "normalized", "best entry", "best baseline")
    table = narrow_table(None, heads, 2)
    for column in table.columns[-2:]:
        column.justify = "left"
    for folder, result in done:
        main, shares = result.track.main_score, result.normalized
        metrics = metrics_of_run(result, folder)
        mine = result.score(main)
        table.add_row(
            fill(result.track.name, 17),  # at hyphens: whole names do not fit 80 columns
            metrics[main].heading,
            f"{mine.value:.3f} ±{mine.stderr:.3f}",
            f"{100 * statistics.fmean(shares):.0f}" if shares else "—",
            folded(best_entry(result, metrics)),
            folded(best_baseline(result, metrics)),
        )
    return table


def best_entry(result: Result, metrics: Metrics) -> str:
    """The name and main score of the best entry on the board of a result's track; a dash where there is none.

    An entry that is broken or of another definition of the track does not count.
    """
    from regbench.leaderboard.standing import whole_entries

    main = result.track.main_score
    means = {entry.name: entry.result.score(main).value for entry in whole_entries(result.track)}
    return _best(means, metrics, main)


def best_baseline(result: Result, metrics: Metrics) -> str:
    """The name and main score of the best baseline that does not know the truth; a dash where there is none."""
    main = result.track.main_score
    found = {name: record.scores[main].value for name, record in result.baselines.items() if record.anchor != "end"}
    return _best(found, metrics, main)


def _best(values: Mapping[str, float], metrics: Metrics, main: str) -> str:
    if not values:
        return "—"
    name = max(sorted(values), key=lambda one: metrics[main].sign * values[one])
    return f"{name} {values[name]:.3f}"
