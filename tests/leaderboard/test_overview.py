"""The overview: how far each architecture goes by ability, its order, and which goes farthest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from regbench.config import Config
from regbench.leaderboard.overview import ABILITIES, Overview, overview
from regbench.results import ArchitectureRecord, Curve, Reach
from regbench.tracks import load_track
from regbench.tracks.suite import load_suite
from regbench.utils import registry

RECALL, COPY, STATE = "recall-reach-v2", "copy-reach-v1", "state-reach-v1"
UNITS = {RECALL: "pairs", COPY: "symbols", STATE: "steps"}


def curve(track: str, reach: float) -> Curve:
    """The accuracy by size of what holds up to a size: 0 is less than all of them, and infinity more."""
    sizes = list(load_track(track).task.sizes)
    value = [1.0 if size < reach else 0.9 if size == reach else 0.0 for size in sizes]
    return Curve(position=sizes, value=value, count=[9] * len(sizes), stderr=[0.0] * len(sizes), axis=UNITS[track])


def row(
    track: str,
    name: str,
    area: float,
    state: int | None,
    *reaches: float,
    rank: int | None = 1,
    source: str | None = None,
    better: frozenset[str] = frozenset(registry.entries(registry.ARCHITECTURE)),
    **settings: Any,
) -> Any:
    """A row of a board, of one seed. Several reaches are those of parity, S3 and so on. All others are significantly better."""
    scores = ["area"] if len(reaches) == 1 else [f"{group}_area" for group in ("parity", "s3")[: len(reaches)]]
    curves = {"area": curve(track, reaches[0]), **{s: curve(track, r) for s, r in zip(scores, reaches, strict=True)}}
    seed = SimpleNamespace(curves=curves, reach=dict.fromkeys(curves, Reach(size=1)))
    record = ArchitectureRecord(
        name=name,
        source=source or f"architectures.{name}",
        source_sha256="0" * 64,
        options={},
        parameters=100_000,
        state_bytes=state,
        state_at={"128": 1 << 17, "1024": 1 << 20} if state is None else None,
    )
    own = {key.replace("__", "."): value for key, value in settings.items()}
    entry = SimpleNamespace(
        name=name,
        result=SimpleNamespace(architecture=record, seeds=[seed]),
        configuration=Config(track=track, architecture=name, settings=own),
    )
    score = {"area": SimpleNamespace(value=area)}
    return SimpleNamespace(name=name, entry=entry, rank=rank, scores=score, better=better)


def board(track: str, *rows: Any) -> Any:
    """With two baselines, of which one knows the truth."""
    baselines = [
        SimpleNamespace(name=name, entry=None, rank=None, anchor=anchor, scores={"area": SimpleNamespace(value=area)})
        for name, anchor, area in (("oracle", "end", 1.0), ("2-gram", None, 0.1), ("3-gram", None, 0.2))
    ]
    return SimpleNamespace(track=track, rows=[*baselines, *rows])


def first(*rows: Any) -> dict[str, str]:
    """Who goes farthest on recall."""
    return overview([board(RECALL, *rows)]).farthest[0]


def names(found: Overview) -> list[str]:
    return [line.name for line in found.lines]


def test_the_columns_are_the_suite_of_reach() -> None:
    assert tuple(ABILITIES) == load_suite("reach").tracks


def test_a_row_is_an_architecture_with_its_options() -> None:
    """Heads and rates are tuned for each track. What is a default is not said; a stranger's file is."""
    found = overview(
        [
            board(
                RECALL,
                row(RECALL, "deltanet", 0.9, 37376, 64, n_heads=1, n_layers=2, negative_eigenvalues=True),
                row(RECALL, "deltanet", 0.8, 37376, 32, rank=2, training__learning_rate=1e-3),
                row(RECALL, "lstm", 0.7, 1024, 16, rank=3, source="mine/lstm.py"),
                row(RECALL, "lstm", 0.1, 1024, 0, rank=4),
                row(RECALL, "gla", 0.95, 1024, 64, rank=None),
            ),
            board(STATE, row(STATE, "deltanet", 0.5, 12800, 8, 4, n_heads=4, negative_eigenvalues=True)),
        ]
    )
    first, *rest = found.lines
    assert [first.name, *(line.name for line in rest)] == [
        "deltanet negative_eigenvalues=true",
        "deltanet",
        "lstm (mine/lstm.py)",
        "lstm",
    ], "gla has no rank"
    assert {track: cell.words for track, cell in first.cells.items()} == {RECALL: "64", STATE: "parity 8, s3 4"}
    assert (first.state, first.grows, first.parameters) == ("12.5 KiB to 36.5 KiB", False, "100")
    links = {"file": "architectures/deltanet.py", "paper": "https://arxiv.org/abs/2406.06484"}
    assert (first.family, first.paper, first.links) == ("delta rule", "Yang et al. 2024", links)
    assert (rest[1].family, rest[1].paper, rest[1].links) == ("other", "", {}), "nothing of a stranger's is loaded"


def test_the_best_entry_of_a_row_is_its_cell() -> None:
    found = overview(
        [board(RECALL, row(RECALL, "lstm", 0.2, 2048, 4, rank=2, n_heads=1), row(RECALL, "lstm", 0.3, 1024, 8))]
    )
    (line,) = found.lines
    assert (line.cells[RECALL].area, line.cells[RECALL].words, line.state) == (0.3, "8", "1.0 KiB")


def test_the_order_is_by_the_tracks_of_more_than_half_and_what_lacks_one_comes_last() -> None:
    """mamba is best where it is, and lacks copying. State tracking has one of four, and counts for nobody."""
    found = overview(
        [
            board(
                RECALL,
                row(RECALL, "mamba", 0.99, 9, 64),
                row(RECALL, "lstm", 0.5, 9, 8, rank=2),
                row(RECALL, "gla", 0.3, 9, 4, rank=3),
                row(RECALL, "rwkv", 0.2, 9, 4, rank=4),
            ),
            board(
                COPY,
                row(COPY, "rwkv", 0.9, 9, 64),
                row(COPY, "gla", 0.8, 9, 64, rank=2),
                row(COPY, "lstm", 0.5, 9, 8, rank=3),
            ),
            board(STATE, row(STATE, "lstm", 0.9, 9, 64)),
        ]
    )
    assert names(found) == ["gla", "rwkv", "lstm", "mamba"]
    means = [line.mean for line in found.lines]
    assert means[:3] == [pytest.approx(mean) for mean in (0.55, 0.55, 0.5)]
    assert means[3] is None
    assert found.counted == ("recall", "copying")
    assert "more than half of the rows have (recall and copying)." in found.about
    mamba = found.lines[3]
    assert set(mamba.cells) == {RECALL}, "the other cells are blank"


def test_who_goes_farthest_with_each_kind_of_state() -> None:
    rows = [row(RECALL, "deltanet", 0.8, 37376, 96), row(RECALL, "lstm", 0.1, 16 << 10, 8, rank=2)]
    grows = row(RECALL, "transformer", 0.9, None, float("inf"), rank=3)
    assert first(*rows, grows) == {
        "ability": "recall",
        "trained up to": "64 pairs",
        "fixed state": "deltanet: 96, in 36.5 KiB",
        "at most 16 KiB": "lstm: 8, in 16.0 KiB (1 of 3 rows)",
        "state that grows": "transformer: >= 192",
        "without training": "3-gram, area 0.20",
    }
    assert list(first(grows).values())[2:5] == ["", "", "transformer: >= 192"]


def test_those_that_reach_the_same_are_level() -> None:
    rows = [row(RECALL, name, 0.8, size, 32) for name, size in (("gla", 20 << 10), ("mamba", 30 << 10))]
    assert first(*rows)["fixed state"] == "gla and mamba: 32, in 20.0 KiB to 30.0 KiB"
    more = [row(RECALL, name, 0.8, 20 << 10, 32) for name in ("h3", "lstm")]
    assert first(*rows, *more)["fixed state"].startswith("gla, h3 and 2 more: 32, in")
    noisy = row(RECALL, "mamba2", 0.7, 1024, 16, rank=3, better=frozenset({"mamba"}))
    assert first(rows[0], noisy)["fixed state"] == "gla: 32, in 20.0 KiB; 1 more not told apart"


def test_of_those_that_hold_nothing_the_area_says_which_is_first() -> None:
    below = [row(RECALL, "gla", 0.3, 1024, 0), row(RECALL, "lstm", 0.4, 1024, 0)]
    assert first(*below)["fixed state"] == "lstm: < 2, area 0.40, in 1.0 KiB"


def test_a_track_of_groups_has_the_reach_of_each() -> None:
    (found,) = overview([board(STATE, row(STATE, "lstm", 0.9, 1024, float("inf"), 16))]).farthest
    assert found["fixed state"] == "lstm: parity >= 256, s3 16, in 1.0 KiB"


def test_without_entries_there_is_nothing_to_see() -> None:
    for boards in ([], [board(RECALL)], [board("pfa-small-v1", row(RECALL, "lstm", 0.1, 9, 8))]):
        found = overview(boards)
        assert (found.lines, found.abilities, found.farthest) == ((), (), [])
