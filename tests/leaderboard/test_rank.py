"""Ranking: the mean over seeds ranks, a test of seeds and instances makes ties, baselines have no rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from csv import DictReader
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from regbench.leaderboard import publish
from regbench.leaderboard.entry import Entry, sample_of
from regbench.leaderboard.page import build_page
from regbench.leaderboard.rank import Board, rank
from regbench.leaderboard.spread import SPREAD, kept_spread, spread_file
from regbench.leaderboard.tiers import Challenge, Evidence, Reproduced
from regbench.metrics.significance import Prior, ahead
from regbench.tracks import Track
from regbench.utils.errors import UserError

MAIN = "legal_accuracy"


def scaled(entry: Entry, name: str, factors: tuple[float, ...]) -> Entry:
    """The same entry under another name, with the main score of each seed times a factor, alike in every instance."""
    seeds, sums = [], []
    for record, one, factor in zip(entry.result.seeds, entry.instances.sums, factors, strict=True):
        score = record.scores[MAIN].model_copy(update={"value": record.scores[MAIN].value * factor})
        seeds.append(record.model_copy(update={"scores": {**record.scores, MAIN: score}}))
        sums.append({**one, MAIN: [x * factor for x in one[MAIN]]})
    architecture = entry.result.architecture.model_copy(update={"options": {"name": name}})
    result = entry.result.model_copy(update={"seeds": seeds, "architecture": architecture})
    instances = entry.instances.model_copy(update={"sums": sums})
    return entry.model_copy(update={"name": name, "result": result, "instances": instances})


def places(entries: list[Entry], track: Track) -> dict[str, str]:
    (board,) = rank(entries, track)
    shown = {row.name: row.place for row in board.rows if row.entry is not None}
    assert all(place[0] + place[-1] == "()" for place in shown.values()), "none is reproduced"
    return {name: place[1:-1] for name, place in shown.items()}


def test_the_mean_over_seeds_ranks(entries: list[Entry], tiny: Track) -> None:
    (board,) = rank(entries, tiny)
    ranked = [row for row in board.rows if row.entry is not None]
    whole = [row for row in ranked if row.budget_share == 1]
    assert [row.rank for row in whole] == list(range(1, len(entries)))
    (part,) = (row for row in ranked if row.budget_share < 1)
    assert (part.rank, part.place, part.budget_share) == (None, "", pytest.approx(0.25, abs=0.01)), (
        "of 6,000 tokens 1,500"
    )
    means = [np.mean([s.scores[MAIN].value for s in row.entry.result.seeds]) for row in ranked if row.entry]
    assert means == sorted(means, reverse=True)
    assert [row.scores[MAIN].value for row in ranked] == pytest.approx(means, rel=1e-12)
    everything = [row.scores[MAIN].value for row in board.rows]
    assert everything == sorted(everything, reverse=True)
    assert [e.name for e in board.entries] == [row.name for row in ranked]
    assert rank(list(reversed(entries)), tiny) == [board]


def test_a_mean_has_the_error_of_its_seeds(entries: list[Entry]) -> None:
    three = next(entry for entry in entries if len(entry.result.seeds) == 3)
    record, values = three.result.score("nll"), [s.scores["nll"].value for s in three.result.seeds]
    assert (record.value, record.stderr) == pytest.approx((np.mean(values), np.std(values, ddof=1) / np.sqrt(3)))
    one = next(entry for entry in entries if len(entry.result.seeds) == 1)
    assert one.result.score("nll") == one.result.seeds[0].scores["nll"]


SHARP = {MAIN: Prior(logit=True, spread=0.02, freedom=20.0, gap=0.3)}


def test_ranges_of_ranks_are_what_the_test_leaves_open(entries: list[Entry], tiny: Track) -> None:
    entries = [entry for entry in entries if entry.result.training["train_tokens"] is None]
    (board,) = rank(entries, tiny, spread={tiny.definition.digest: SHARP})
    ranked = board.entries
    samples = [sample_of(entry.result.seeds, entry.instances, MAIN) for entry in ranked]
    found = ahead(samples, ranked[0].instances.counts_of(MAIN), SHARP[MAIN], higher_is_better=True)
    for i, row in enumerate(row for row in board.rows if row.entry is not None):
        assert row.ties == (1 + found[:, i].sum(), len(ranked) - found[i].sum())
        assert row.better == {ranked[j].name for j in np.flatnonzero(found[:, i])}
        assert row.ties[0] <= i + 1 <= row.ties[1]
    assert any(row.ties[0] < row.ties[1] for row in board.rows if row.ties)
    assert not any(row.ties == (1, len(ranked)) for row in board.rows), "not everything is a tie"


def test_the_noise_of_seeds_makes_a_tie(entries: list[Entry], tiny: Track) -> None:
    """The same share is lost in every instance, so that the instances alone would leave no doubt."""
    best = next(entry for entry in entries if entry.name == "transformer")
    near, far = scaled(best, "near", (0.998, 0.998, 0.998)), scaled(best, "far", (0.9, 0.9, 0.9))
    assert places([best, near, far], tiny) == {"transformer": "1–2", "near": "1–2", "far": "3"}
    noisy = scaled(best, "noisy", (0.7, 0.9, 1.1))
    assert places([best, noisy], tiny) == {"transformer": "1–2", "noisy": "1–2"}


def test_what_is_expected_of_seeds_is_fitted_once(entries: list[Entry], tiny: Track, tmp_path: Path) -> None:
    """An entry that comes later changes nothing of it, nor a verdict between two others."""
    one = next(entry for entry in entries if entry.name == "transformer")
    spreads = np.random.default_rng(0).normal(1.0, 0.02, (12, 3))
    many = [scaled(one, f"entry-{i}", tuple(seeds)) for i, seeds in enumerate(spreads)]
    (board,) = rank(many, tiny)
    prior = board.priors[MAIN]
    assert set(board.priors) == set(board.metrics)
    assert 0.01 < prior.at(one.result.score(MAIN).value, 24) / one.result.score(MAIN).value < 0.04
    baselines = {b.anchor: b.scores[MAIN].value for b in one.result.baselines.values()}
    assert prior.gap == pytest.approx((baselines["end"] - baselines["start"]) / 3, rel=1e-3)
    (tmp_path / SPREAD).write_text(spread_file(tmp_path, {board.digest: board.priors, "f" * 64: {}}))
    kept = kept_spread(tmp_path)
    assert kept == {board.digest: board.priors}
    wide = [*many, scaled(one, "wide", (0.5, 1.0, 1.4))]
    (later,) = rank(wide, tiny, spread=kept)
    assert later.priors == board.priors
    assert rank(wide, tiny)[0].priors != board.priors
    assert spread_file(tmp_path, {later.digest: {}}) == (tmp_path / SPREAD).read_text()
    assert f"This counts as {prior.freedom:g} degrees of freedom. It was fitted to the seeds of this board." in (
        publish.markdown(board)
    )
    (few,) = rank(many[:3], tiny)
    assert few.priors == {}
    assert "It was fitted to the seeds of all boards" in few.about_spread
    (tmp_path / SPREAD).write_text('{"a": {"nll": {"spread": 1}}}')
    with pytest.raises(UserError, match="not of the schema; remove it"):
        kept_spread(tmp_path)


def test_an_entry_says_in_how_many_seeds_it_learned(entries: list[Entry], tiny: Track) -> None:
    one = next(entry for entry in entries if entry.name == "transformer")
    two_modes = scaled(one, "two-modes", (1.0, 0.3, 1.1))
    (board,) = rank([one, two_modes], tiny)
    rows = {row.name: row for row in board.rows}
    assert (rows["two-modes"].learned, rows["transformer"].learned) == ((2, 3), None)
    assert "two-modes (learns in 2 of 3 seeds)" in publish.markdown(board)
    assert '<span class="badge">learns in 2 of 3 seeds</span>' in build_page([board])
    assert "In 1 of the entries some seeds learn and some do not" in board.about_spread
    csv = {row["name"]: row for row in DictReader(StringIO(publish.csv(board)))}
    assert [csv[name]["learns"] for name in ("two-modes", "transformer")] == ["learns in 2 of 3 seeds", ""]

    def nll(entry: Entry) -> Entry:
        """By a score of which less is better: two seeds of three have less."""
        track = entry.result.track.model_copy(update={"main_score": "nll"})
        seeds = [
            seed.model_copy(
                update={"scores": seed.scores | {"nll": seed.scores["nll"].model_copy(update={"value": value})}}
            )
            for seed, value in zip(entry.result.seeds, (0.5, 3.0, 0.6), strict=True)
        ]
        return entry.model_copy(update={"result": entry.result.model_copy(update={"track": track, "seeds": seeds})})

    spread = {tiny.definition.digest: {"nll": Prior(logit=False, spread=0.1, freedom=2.0, gap=1.0)}}
    (by_nll,) = rank([nll(one)], tiny, spread=spread)
    assert next(row.learned for row in by_nll.rows if row.entry) == (2, 3)


def test_baselines_stand_among_them(entries: list[Entry], tiny: Track) -> None:
    (board,) = rank(entries, tiny)
    baselines = {row.name: row for row in board.rows if row.kind == "baseline"}
    assert set(baselines) == set(entries[0].result.baselines)
    assert all(row.rank is None and row.ties is None and row.place == "" for row in baselines.values())
    assert (baselines["unigram"].normalized, baselines["oracle"].normalized) == (0.0, 1.0)
    assert (baselines["unigram"].anchor, baselines["oracle"].anchor) == ("start", "end")


def test_lower_is_better_where_it_is(entries: list[Entry], tiny: Track) -> None:
    def by_tvd(entry: Entry) -> Entry:
        track = entry.result.track.model_copy(update={"main_score": "tvd"})
        return entry.model_copy(update={"result": entry.result.model_copy(update={"track": track})})

    spread = {tiny.definition.digest: {"tvd": SHARP[MAIN]}}
    (board,) = rank([by_tvd(entry) for entry in entries], tiny, spread=spread)
    values = [row.scores["tvd"].value for row in board.rows]
    assert values == sorted(values)
    assert board.metrics[0] == "tvd"
    first, *_, last = (row.ties for row in board.rows if row.ties)
    assert (first[0], first[1] < last[0]) == (1, True), "the last is worse than the first, and no tie"


def test_one_name_or_one_configuration_twice_is_refused(entries: list[Entry]) -> None:
    for again in (entries[0], entries[0].model_copy(update={"name": "the-same-again"})):
        with pytest.raises(UserError, match="an entry twice"):
            rank([entries[0], again])


CHALLENGE = Challenge(
    date="2026-11-27", by="a reader", machine="a machine", number=1, instances=100, fingerprint="0" * 64, scores={}
)
AGAIN = Reproduced(date="2026-11-27", by="a reader", machine="a machine", seeds=[], scores=[], identical=[])


def board_with(entries: list[Entry], track: Track, *, verified: Sequence[str], reproduced: Sequence[str] = ()) -> Board:
    evidence = {
        entry.digest: Evidence(
            entry=entry.digest, challenge=CHALLENGE, reproduced=AGAIN if entry.name in reproduced else None
        )
        for entry in entries
        if entry.name in (*verified, *reproduced)
    }
    (board,) = rank(entries, track, evidence, {track.definition.digest: SHARP})
    return board


def test_claimed_entries_are_below_those_of_a_higher_tier(entries: list[Entry], tiny: Track) -> None:
    board = board_with(entries, tiny, verified=("lstm", "mamba"))
    rows = [row for row in board.rows if row.kind == "entry"]
    assert [(row.name, row.rank, row.tier) for row in rows[:2]] == [("mamba", 1, "verified"), ("lstm", 2, "verified")]
    assert {(row.rank, row.place, row.tier) for row in rows[2:]} == {(None, "", "claimed")}
    assert board.rows[-len(rows[2:]) :] == tuple(rows[2:]), "below the baselines too"
    assert rank(entries, tiny)[0].rows[0].tier is None
    ranks = [row.rank for row in rank(entries, tiny)[0].rows if row.entry and row.budget_share == 1]
    assert ranks == list(range(1, len(entries)))
    page = build_page([board])
    assert page.count('<td class="tier" data-value="1">verified</td>') == 2
    assert "verified 2026-11-27 by a reader" in page


NAMES = ("transformer+ngh-1-2-3", "lstm+ngh-1-2-3", "mamba", "hyena")


def test_an_entry_that_is_not_reproduced_is_not_shown_as_first(entries: list[Entry], tiny: Track) -> None:
    board = board_with(entries, tiny, verified=NAMES[:2], reproduced=NAMES[2:])
    rows = [row for row in board.rows if row.kind == "entry"]
    assert [row.name for row in rows[:4]] == [NAMES[1], NAMES[0], NAMES[2], NAMES[3]], "below the next one"
    assert [row.place for row in rows[:4]] == ["2", "", "3", "4"], "and first place is open"
    assert rows[1].mark == "would be first: not reproduced yet"
    assert [row.rank for row in rows[:2]] == [2, 1]
    table = publish.markdown(board)
    assert "transformer+ngh-1-2-3 (would be first: not reproduced yet)" in table
    assert "open until reproduced: transformer+ngh-1-2-3" in publish.readme([board], [])
    assert '<span class="badge">would be first: not reproduced yet</span>' in build_page([board])
    csv = {row["name"]: row for row in DictReader(StringIO(publish.csv(board)))}
    assert (csv[NAMES[0]]["rank"], csv[NAMES[0]]["best_rank"]) == ("", "")
    assert csv[NAMES[0]]["standing"] == "would be first: not reproduced yet"
    assert csv[NAMES[1]]["standing"] == "ranked"


def test_one_that_is_tied_with_the_first_and_reproduced_is_shown_as_first(entries: list[Entry], tiny: Track) -> None:
    board = board_with(entries, tiny, verified=NAMES[:1], reproduced=NAMES[1:])
    held, second = (next(row for row in board.rows if row.name == name) for name in NAMES[:2])
    tied = dataclasses.replace(second, ties=(1, 2))
    board = dataclasses.replace(board, rows=tuple(tied if row is second else row for row in board.rows))
    assert (held.held, tied.place) == (True, "1–2")
    readme = publish.readme([board], [])
    assert f"| {NAMES[1]}, " in readme
    assert "open until" not in readme


@pytest.mark.parametrize(
    ("share", "mark"),
    [(0.9, ""), (0.8999981, "89 % of the budget"), (0.29, "29 % of the budget"), (0.0498, "5 % of the budget")],
)
def test_a_share_that_is_too_small_for_a_rank_is_not_rounded_up(
    entries: list[Entry], tiny: Track, share: float, mark: str
) -> None:
    assert dataclasses.replace(rank(entries, tiny)[0].rows[0], budget_share=share).mark == mark


def test_the_first_that_is_reproduced_is_shown_as_such(entries: list[Entry], tiny: Track) -> None:
    board = board_with(entries, tiny, verified=NAMES[1:], reproduced=NAMES[:1])
    rows = [row for row in board.rows if row.kind == "entry"]
    assert [row.name for row in rows[:4]] == list(NAMES)
    assert [row.place for row in rows[:2]] == ["1–2", "2"], "a tie with the first is not shown as first"
    assert f"| {NAMES[0]}, " in publish.readme([board], [])


def test_where_none_is_reproduced_ranks_are_provisional(entries: list[Entry], tiny: Track) -> None:
    for board in (rank(entries, tiny)[0], board_with(entries, tiny, verified=NAMES)):
        ranked = [row for row in board.rows if row.rank is not None]
        assert [row.rank for row in ranked] == list(range(1, len(ranked) + 1)), "in their order"
        assert all(row.place.startswith("(") and row.place.endswith(")") for row in ranked)
        assert not any(row.held for row in board.rows)
        assert f"open until reproduced: {ranked[0].name}, " in publish.readme([board], [])
        assert ",provisional," in publish.csv(board)
