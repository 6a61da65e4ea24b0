"""The overview: architectures by tracks, and findings that follow from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from regbench.leaderboard.overview import Overview, overview


def row(
    name: str, normalized: float | None, rank: int | None, better: str = "", *, held: bool = False, **options: Any
) -> Any:
    """A row of a board; `better`: the entries that are significantly better; `held`: its rank is not shown."""
    shown = None if rank is None or held else (rank, rank)
    short = name.partition("+")[0]
    source = "mine/lstm.py" if name == "mine" else f"architectures.{short}"
    architecture = SimpleNamespace(name="lstm" if name == "mine" else short, options=options, source=source)
    entry = SimpleNamespace(result=SimpleNamespace(architecture=architecture))
    return SimpleNamespace(
        name=name, normalized=normalized, rank=rank, shown_ties=shown, better=frozenset(better.split()), entry=entry
    )


def baseline(name: str) -> Any:
    return SimpleNamespace(name=name, entry=None, rank=None, shown_ties=None)


MINE = "lstm (mine/lstm.py)"
"""The entry "mine": a stranger's class has the name of one that is built in."""

AUTOMATA = SimpleNamespace(
    track="pfa-small-v1",
    rows=[
        baseline("oracle"),
        row("gla+ngh-1", 0.7, 1, ngram_heads=[1]),
        row("mamba", 0.6, 2, "gla+ngh-1"),
        row("mamba+n_layers-4", 0.59, 3, "gla+ngh-1"),
        row("transformer", 0.58, 4, "gla+ngh-1"),
        row("gla", 0.3, 5, "gla+ngh-1 mamba mamba+n_layers-4 transformer", ngram_heads=[]),
        row("lstm", 0.2, None),
    ],
)
RECALL = SimpleNamespace(
    track="assoc-recall-small-v1",
    rows=[
        row("mine", 0.99, 1),
        row("transformer", 0.9, 2, "mine"),
        row("mamba", 0.5, 3, "mine transformer"),
    ],
)
MORE = SimpleNamespace(track="mqar-small-v1", rows=[row("transformer", 0.3, 1), row("mamba", 0.3, 1)])
FEW = SimpleNamespace(track="pfa-medium-v1", rows=[row("mamba", 0.9, 1)])
OTHER: Any = SimpleNamespace(track="other-v1", rows=[row("gla", None, 1)])


def of(*boards: Any) -> Overview:
    for board in boards:
        board.file_stem = f"id-{board.track}"
    return overview(boards)


def test_an_architecture_stands_for_its_best_entry_and_has_what_it_is() -> None:
    found = {line.name: line for line in of(AUTOMATA, RECALL).lines}
    assert list(found) == ["transformer", "mamba", "gla", "gla + n-gram heads", "lstm", MINE]
    assert [cell and (cell.row.name, cell.rank) for cell in found["mamba"].cells] == [("mamba", 2), ("mamba", 3)]
    assert found["transformer"].cells[0].rank == 2, "chance alone puts mamba before it"  # type: ignore[union-attr]
    assert found["gla"].cells[0].rank == 4, "mamba has one line, of two entries"  # type: ignore[union-attr]
    assert found["gla"].cells[1] is None
    lstm = found["lstm"]
    assert (lstm.ranked, lstm.mean_rank, lstm.normalized) == ({}, None, None), "its entry has no rank"
    assert lstm.cells[0] is not None
    assert lstm.cells[0].row.name == "lstm"
    assert (found["transformer"].mean_rank, found["transformer"].normalized) == (2.0, 0.74)
    assert found[MINE].normalized is None, "it lacks one of the tracks that the others have"
    about = {name: (line.family, line.paper) for name, line in found.items()}
    assert about["mamba"] == ("state space", "Gu and Dao 2023")
    assert about["gla + n-gram heads"] == ("counts", "Yang et al. 2023")
    assert about[MINE] == ("other", ""), "nothing of a stranger's is loaded"
    assert found["mamba"].cells[0].section == "id-pfa-small-v1"  # type: ignore[union-attr]


def test_an_entry_whose_seeds_are_far_apart_is_before_nobody() -> None:
    """It has the second rank, and chance explains that. What is better than the last has no line of its own."""
    board = SimpleNamespace(
        track="pfa-small-v1",
        rows=[
            row("mamba", 0.9, 1),
            row("gla", 0.88, 2),
            row("mamba+n_layers-4", 0.87, 3, "mamba"),
            row("lstm", 0.85, 4, "mamba mamba+n_layers-4"),
        ],
    )
    ranks = {line.name: line.cells[0].rank for line in of(board).lines if line.cells[0] is not None}
    assert ranks == {"mamba": 1, "gla": 1, "lstm": 2}


def test_what_would_be_first_and_is_not_reproduced_has_no_rank() -> None:
    """Nor has another rank 1 then. An architecture with a second entry stands for that one."""
    board = SimpleNamespace(
        track="pfa-small-v1",
        rows=[
            row("mamba", 0.9, 1, held=True),
            row("gla", 0.8, 2, "mamba"),
            row("mamba+n_layers-4", 0.7, 3, "mamba gla"),
        ],
    )
    ranks = {line.cells[0].row.name: line.cells[0].rank for line in of(board).lines if line.cells[0] is not None}
    assert ranks == {"gla": 1, "mamba+n_layers-4": 2}
    board.rows = board.rows[:2]
    found = {line.name: line for line in of(board).lines}
    assert found["mamba"].mean_rank is None
    assert found["gla"].cells[0].rank == 2  # type: ignore[union-attr]


def test_means_are_over_the_tracks_that_all_of_those_with_a_mean_have() -> None:
    """Else a track that is hard for all would count against those that were run on it."""
    found = of(AUTOMATA, RECALL, MORE)
    assert found.common == "pfa-small-v1, assoc-recall-small-v1 and mqar-small-v1"
    assert [line.name for line in found.lines if line.normalized is not None] == ["transformer", "mamba"]
    hard = SimpleNamespace(track="pfa-medium-v1", rows=[row("mamba", 0.1, 1)])
    again = of(AUTOMATA, RECALL, MORE, hard)
    assert again.common == found.common, "one of them has not run the fourth"
    assert [line.normalized for line in again.lines] == [line.normalized for line in found.lines]


def test_few_tracks_come_last_and_a_score_may_be_missing() -> None:
    lines = of(AUTOMATA, RECALL, OTHER).lines
    assert [line.name for line in lines] == ["gla + n-gram heads", "mamba", "transformer", "gla", "lstm", MINE]
    assert [line.normalized for line in lines] == [0.7, 0.6, 0.58, 0.3, None, None], "all of the first track"
    (only,) = of(OTHER).lines
    assert only.normalized is None


def test_findings_follow_from_the_entries() -> None:
    automata, recall, both = of(AUTOMATA, RECALL).findings
    assert automata == (
        "Automata (pfa-small-v1): mamba and transformer are level, of 3 architectures, with a normalized score of 60. "
        "Given counts of n-grams, gla + n-gram heads is before them."
    )
    assert (
        recall == f"Recall (assoc-recall-small-v1): {MINE} is ahead, of 3 architectures, with a normalized score of 99."
    )
    assert both == (
        "Automata and recall together, each one half: of the 2 architectures with a rank on all of these tracks, "
        "transformer (74) and mamba (55) have the highest mean normalized scores."
    )
    automata, recall, both = of(AUTOMATA, RECALL, MORE).findings
    assert recall == (
        "Recall (2 tracks): of the 2 architectures with a rank on all of them, transformer (60) and mamba (40) have the "
        "highest mean normalized scores."
    )
    assert "transformer (59) and mamba (50) have" in both, (
        "0.5 (0.58 + 0.6), though two of the three tracks are of recall"
    )
    assert of(OTHER).findings == ()


def test_what_is_given_counts_does_not_set_two_others_apart() -> None:
    """It is better than the second, and chance explains how far it is from the first. So these two are level."""
    rows = [
        row("gla+ngh-1", 0.7, 1, ngram_heads=[1]),
        row("mamba", 0.68, 2),
        row("transformer", 0.66, 3, "gla+ngh-1"),
        row("lstm", 0.5, 4, "gla+ngh-1 mamba transformer"),
    ]
    assert of(SimpleNamespace(track="pfa-small-v1", rows=rows)).findings == (
        "Automata (pfa-small-v1): mamba and transformer are level, of 3 architectures, with a normalized score of 68.",
    )


def test_a_track_of_few_architectures_leaves_the_findings_as_they_are() -> None:
    two = SimpleNamespace(track="pfa-medium-v1", rows=[row("mamba", 0.9, 1), row("transformer", 0.8, 2, "mamba")])
    before_it = "gla+ngh-1 mamba mamba+n_layers-4 transformer gla"
    wide = SimpleNamespace(track="pfa-small-v1", rows=[*AUTOMATA.rows, row("rwkv", 0.2, 6, before_it)])
    (before,) = of(wide).findings
    assert "of 4 architectures" in before
    assert of(wide, FEW).findings == of(wide, two).findings == (before,)
    (both,) = of(AUTOMATA, two).findings
    assert "Automata (2 tracks): of the 2 architectures" in both, "two of three are more than half"
