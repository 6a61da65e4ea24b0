"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table

from regbench.report import LABELS
from regbench.results import Result, ScoreRecord
from regbench.scoring import HIGHER_IS_BETTER, share_of_the_way


def result_table(result: Result) -> Table:
    """The model among the baselines, best first by the track's main score; under several seeds a row for each below."""
    main_score, metrics = result.track.main_score, result.metrics
    # Narrow enough for 80 columns.
    table = Table(
        title=f"{result.track.name}, test split", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("predictor")
    for metric in metrics:
        table.add_column(
            f"{_stacked(LABELS[metric])} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}", justify="right", no_wrap=True
        )
    table.add_column("way to oracle", justify="right")
    rows: list[tuple[str, Mapping[str, ScoreRecord], bool]] = [
        (name, record.scores, False) for name, record in result.baselines.items()
    ]
    several = len(result.seeds) > 1
    for seed in result.seeds:
        label = f"{result.architecture.name}, seed {seed.seed}" if several else result.architecture.name
        rows.append((label, seed.scores, not several))
    if several:
        median = {metric: result.score(metric) for metric in metrics}
        rows.append((f"{result.architecture.name}, median", median, True))
    rows.sort(key=lambda row: row[1][main_score].value, reverse=HIGHER_IS_BETTER[main_score])
    start = next((b.scores for b in result.baselines.values() if b.anchor == "start"), None)
    end = next((b.scores for b in result.baselines.values() if b.anchor == "end"), None)
    for name, scores, emphasis in rows:
        way = "—"
        if start is not None and end is not None:
            share = share_of_the_way(scores[main_score].value, start[main_score].value, end[main_score].value)
            way = f"{100 * share:.0f} %"
        cells = [f"{scores[m].value:.3f} ±{scores[m].stderr:.3f}" for m in metrics]
        table.add_row(name, *cells, way, style="bold" if emphasis else None)
    return table


def human_bytes(count: int | None) -> str:
    """A size for people: 1,536 -> "1.5 KiB"; None, a state that grows with the context, -> "grows with L"."""
    if count is None:
        return "grows with L"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _stacked(label: str) -> str:
    """A label with a word a line, for the head of a narrow column."""
    return label.replace(" ", "\n")
