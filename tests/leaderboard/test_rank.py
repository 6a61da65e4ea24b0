"""Ranking: the median decides, the bootstrap says what is within noise, and baselines stand among the entries unranked."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from regbench.leaderboard import rank as ranking
from regbench.leaderboard.entry import Entry
from regbench.leaderboard.rank import compare, rank, retirement
from regbench.tracks import Track
from regbench.utils.errors import UserError
from tests.leaderboard.conftest import Made


def test_the_bootstrap_agrees_with_the_normal_distribution() -> None:
    """A difference of means of many instances: p is that of a z-test."""
    rng = np.random.default_rng(0)
    base = rng.normal(10.0, 3.0, 400)
    for shift in (0.0, 0.05, 0.1, 0.2):
        noise = rng.normal(0.0, 1.0, 400)
        noise = (noise - noise.mean()) / noise.std()
        p = compare(np.stack([base, base + shift + noise]))[0, 1]
        z = shift / (1.0 / np.sqrt(400))
        wanted = 2.0 * float(norm.sf(z))
        assert p == pytest.approx(wanted, abs=0.02)


def test_what_is_hard_for_all_cancels() -> None:
    rng = np.random.default_rng(1)
    difficulty = rng.normal(0.0, 100.0, 300)
    p = compare(np.stack([difficulty, difficulty + rng.normal(0.5, 1.0, 300)]))
    assert p[0, 1] < 0.001


def test_the_same_scores_are_level_and_p_is_symmetric() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(5.0, 1.0, (2, 50))
    p = compare(np.stack([a, a, b]))
    assert p[0, 1] == 1.0
    assert (np.diag(p) == 1.0).all()
    assert (p == p.T).all()
    assert (compare(np.stack([a, a, b])) == p).all()  # the same every time


def test_the_chance_of_a_false_alarm_is_the_level() -> None:
    rng = np.random.default_rng(3)
    alarms = [compare(rng.normal(0.0, 1.0, (2, 100)), resamples=1000)[0, 1] < 0.05 for _ in range(300)]
    assert 0.02 < np.mean(alarms) < 0.09


def test_the_median_over_seeds_ranks(entries: list[Entry], tiny: Track) -> None:
    (board,) = rank(entries, tiny)
    assert board.retired is None
    ranked = [row for row in board.rows if row.entry is not None]
    assert [row.rank for row in ranked] == list(range(1, len(entries) + 1))
    medians = [
        np.median([s.scores["legal_accuracy"].value for s in row.entry.result.seeds]) for row in ranked if row.entry
    ]
    assert medians == sorted(medians, reverse=True)
    assert [row.scores["legal_accuracy"].value for row in ranked] == medians
    everything = [row.scores["legal_accuracy"].value for row in board.rows]
    assert everything == sorted(everything, reverse=True)
    assert [e.name for e in board.entries] == [row.name for row in ranked]
    assert rank(list(reversed(entries)), tiny) == [board]


def test_baselines_stand_among_them(entries: list[Entry], tiny: Track) -> None:
    (board,) = rank(entries, tiny)
    baselines = {row.name: row for row in board.rows if row.kind == "baseline"}
    assert set(baselines) == set(entries[0].result.baselines)
    assert all(row.rank is None and row.p_next is None and row.level_with == () for row in baselines.values())
    assert (baselines["unigram"].way, baselines["oracle"].way) == (0.0, 1.0)
    assert (baselines["unigram"].anchor, baselines["oracle"].anchor) == ("start", "end")


def test_level_is_mutual_and_fits_the_p_values(entries: list[Entry], tiny: Track) -> None:
    (board,) = rank(entries, tiny)
    ranked = {row.rank: row for row in board.rows if row.rank is not None}
    for number, row in ranked.items():
        assert number not in row.level_with
        assert all(number in ranked[other].level_with for other in row.level_with)
        if row.p_next is not None:
            assert (row.p_next >= ranking.SIGNIFICANCE) is (number + 1 in row.level_with)
    assert ranked[len(ranked)].p_next is None
    assert any(row.level_with for row in ranked.values())
    assert any(len(row.level_with) < len(ranked) - 1 for row in ranked.values())


def test_lower_is_better_where_it_is(entries: list[Entry], tiny: Track) -> None:
    def by_tvd(entry: Entry) -> Entry:
        track = entry.result.track.model_copy(update={"main_score": "tvd"})
        return entry.model_copy(update={"result": entry.result.model_copy(update={"track": track})})

    (board,) = rank([by_tvd(entry) for entry in entries], tiny)
    values = [row.scores["tvd"].value for row in board.rows]
    assert values == sorted(values)
    assert board.metrics[0] == "tvd"


def test_what_cannot_be_compared_is_refused(entries: list[Entry], lstm: Made) -> None:
    first, second = entries[:2]
    with pytest.raises(UserError, match="an entry twice"):
        rank([first, first])
    counts = second.instances.model_copy(update={"counts": [1] * 24})
    with pytest.raises(UserError, match="different positions"):
        rank([first, second.model_copy(update={"instances": counts})])
    easy = second.result.baselines["2-gram"].model_copy(update={"scores": first.result.baselines["oracle"].scores})
    result = second.result.model_copy(update={"baselines": {**second.result.baselines, "2-gram": easy}})
    with pytest.raises(UserError, match="disagree on the baseline 2-gram"):
        rank([first, second.model_copy(update={"result": result})])


def test_a_track_retires_when_a_higher_version_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = ranking.frozen_tracks()["pfa-small-v1"]["digest"]
    assert retirement("pfa-small-v1", digest) is None
    assert "another definition" in str(retirement("pfa-small-v1", "0" * 64))
    assert "no longer here" in str(retirement("pfa-tiny-v1", digest))
    names = {**ranking.track_names(), "pfa-small-v2": "", "pfa-small-v10": "", "pfa-other-v3": ""}
    monkeypatch.setattr(ranking, "track_names", lambda: names)
    assert retirement("pfa-small-v1", digest) == "pfa-small-v10 has taken its place"
    assert retirement("pfa-v1", ranking.frozen_tracks()["pfa-v1"]["digest"]) is None


def test_entries_of_another_definition_have_a_board_of_their_own(entries: list[Entry], tiny: Track) -> None:
    def elsewhere(entry: Entry) -> Entry:
        track = entry.result.track.model_copy(update={"digest": "1" * 64})
        return entry.model_copy(update={"result": entry.result.model_copy(update={"track": track})})

    current, old = rank([*entries, *map(elsewhere, entries)], tiny)
    assert (current.retired, current.file_stem) == (None, "tiny-v1")
    assert old.retired is not None
    assert len(old.entries) == len(entries)
