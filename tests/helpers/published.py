"""What the leaderboard has published, to compare pages with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import mean, stdev

from regbench.leaderboard.store import stored_in
from regbench.results import Result

ENTRIES = Path(__file__).resolve().parents[2] / "leaderboard" / "entries"


@cache
def published(track: str) -> dict[str, Result]:
    """The result of every entry of a track, by the entry's name."""
    found = [stored.entry for stored in stored_in(ENTRIES / track)]
    return {entry.name: entry.result for entry in found}


def score_cells(result: Result, name: str, metrics: tuple[str, ...]) -> list[str]:
    """`0.837 ± 0.003` for each metric: of a baseline by its name, or the mean of the entry over its seeds."""
    if name in result.baselines:
        of = result.baselines[name].scores
        return [f"{of[m].value:.3f} ± {of[m].stderr:.3f}" for m in metrics]
    values = [[seed.scores[m].value for seed in result.seeds] for m in metrics]
    return [f"{mean(found):.3f} ± {stdev(found) / len(found) ** 0.5:.3f}" for found in values]


def normalized_score(result: Result, value: float) -> str:
    """`55 %`: 0 at the unigram model, 100 at the oracle, by the track's main score."""
    anchors = {b.anchor: b.scores[result.track.main_score].value for b in result.baselines.values()}
    return f"{100 * (value - anchors['start']) / (anchors['end'] - anchors['start']):.0f}"
