"""The entries as one tidy table. `regbench leaderboard` writes it into the package, so that every installation has it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regbench.results import normalized_scores

if TYPE_CHECKING:
    import pandas as pd

    from regbench.leaderboard.rank import Board

TABLE = "../regbench/leaderboard/entries.csv"
"""The table's file, from the leaderboard's folder in a checkout."""


def entries() -> pd.DataFrame:
    """The entries of the leaderboard as they were when this regbench was made: a row for each entry, seed and score.

    Returns:
        The columns are

        - `track`, `entry` (its name there), `architecture`, and `options`: the settings it was asked for, `key=value`;
        - `seed`, `score` (the metric), `value`, `stderr` (over test instances), `normalized` (0 chance, 1 oracle; NaN where
          there is no such scale);
        - `state`: bytes of recurrent state of one sequence in float32, missing where it grows with the context;
        - `parameters`: trainable numbers; `tokens`: training tokens; `tier`: claimed, verified or reproduced.
    """
    import pandas as pd  # it loads slowly

    missing: Any = {"normalized": [""], "state": [""]}
    return pd.read_csv(_file(), keep_default_na=False, na_values=missing, dtype={"state": "Int64"})


def rows_of(track: str) -> list[dict[str, str]]:
    """The rows of one track, as they are written."""
    with _file().open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["track"] == track]


def _file() -> Path:
    return Path(__file__).with_name("entries.csv")


def table(boards: Sequence[Board]) -> str:
    """`entries.csv` of some boards."""
    import pandas as pd

    rows: list[dict[str, object]] = []
    for board in boards:
        for row in sorted(board.rows, key=lambda row: row.name):
            if row.entry is None:
                continue
            architecture = row.entry.result.architecture
            for seed in row.entry.result.seeds:
                normalized = normalized_scores(seed.scores, board.baselines)
                for metric in board.metrics:
                    share = normalized.get(metric)
                    rows.append(
                        {
                            "track": board.track,
                            "entry": row.name,
                            "architecture": architecture.name,
                            "options": as_words(row.entry.configuration.settings),
                            "seed": seed.seed,
                            "score": metric,
                            "value": round(seed.scores[metric].value, 6),
                            "stderr": round(seed.scores[metric].stderr, 6),
                            "normalized": None if share is None else round(share, 6),
                            "state": architecture.state_bytes,
                            "parameters": architecture.parameters,
                            "tokens": seed.tokens,
                            "tier": row.tier,
                        }
                    )
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def as_words(settings: Mapping[str, Any]) -> str:
    """Settings as key=value. There are no spaces in the values, so that the words of a filter fit."""
    plain = {k: v if isinstance(v, str) else json.dumps(v, separators=(",", ":")) for k, v in settings.items()}
    return " ".join(f"{key}={value}" for key, value in plain.items())
