"""`regbench analyze` on a task like text: stretches cut where the second excerpt begins, no truth, two topics an instance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from regbench import cli
from regbench.analysis import modes
from regbench.analysis.modes import MODES, read_in_modes
from regbench.analysis.representation import documents
from regbench.analysis.segments import segments, stretches_to_read
from regbench.analysis.transplant import transplant
from regbench.metrics.scores import score
from regbench.tracks import Track
from tests.analysis.conftest import Counting


def test_a_stretch_is_an_instance_cut_at_its_own_cut(text_track: Track) -> None:
    test = text_track.instances("test")
    parts = segments(text_track.task, test)
    np.testing.assert_array_equal(parts.cut, test.truth["cut"])
    np.testing.assert_array_equal(parts.row, np.arange(len(test)))
    assert (parts.start == 0).all()
    assert (parts.end == 48).all()
    none = replace(test, truth={**test.truth, "cut": np.zeros(len(test), np.int32)})
    assert len(segments(text_track.task, none)) == 0  # nothing on one side of it


def test_each_text_is_read_on_from_its_own_middle(text_track: Track) -> None:
    """What the first text's summary says is of no use to the second; a text of one token has no middle."""
    test = text_track.instances("test")
    parts, cut = stretches_to_read(text_track.task, test), test.truth["cut"]
    assert len(parts) == 2 * len(test)
    np.testing.assert_array_equal(parts.start[0::2], 0)
    np.testing.assert_array_equal(parts.end[0::2], cut)
    np.testing.assert_array_equal(parts.start[1::2], cut)
    np.testing.assert_array_equal(parts.end[1::2], test.lengths)
    np.testing.assert_array_equal(parts.cut, (parts.start + parts.end) // 2)
    short = replace(test, truth={**test.truth, "cut": np.ones(len(test), np.int32)})
    assert set(stretches_to_read(text_track.task, short).start) == {1}


def test_dynamic_scores_are_those_behind_the_cut(text_track: Track) -> None:
    """Without a truth, in batches of any size, and as the scores of a run have it."""
    test = text_track.instances("test")
    model, parts = Counting(text_track.task.io), segments(text_track.task, test)
    whole = read_in_modes(model, text_track.task, test, parts, 0.1)
    assert set(whole.values) == set(MODES)
    assert set(whole.values["dynamic"]) == {"nll", "token_accuracy"}
    small = read_in_modes(model, text_track.task, test, parts, 0.1, batch_size=3)
    for mode in MODES:
        alike = (part.values[mode]["nll"][part.scored] for part in (small, whole))  # the rest is padding
        np.testing.assert_allclose(*alike, rtol=1e-6)
    predicted = model(torch.from_numpy(test.tokens.astype(np.int64))).double().softmax(-1).numpy()
    expected = score(text_track.task, test, [predicted])["nll_behind_cut"]
    found = whole.score("dynamic", "nll")
    assert abs(found.value - expected.value) < 1e-6
    assert abs(found.stderr - expected.stderr) < 1e-6


def test_a_large_vocabulary_is_read_in_small_batches(text_track: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    test, sizes = text_track.instances("test"), []

    class Watched(Counting):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            sizes.append(len(tokens))
            return super().forward(tokens)

    monkeypatch.setattr("regbench.metrics.batching.BATCH_BYTES", 5 * 48 * 300 * 8)
    parts = segments(text_track.task, test)
    modes.read_in_modes(Watched(text_track.task.io), text_track.task, test, parts, 0.1, modes=("dynamic",))
    assert sizes == [5, 5, 5, 5]


def test_each_excerpt_is_a_document_of_its_topic(text_track: Track) -> None:
    test = text_track.instances("test")
    parts, model = segments(text_track.task, test), Counting(text_track.task.io)
    found = documents(model, test, parts, topics=5)
    topics = test.truth["topic"]
    assert found.topics.tolist() == [*topics[:, 0].tolist(), *topics[:, 1].tolist()]
    alone = torch.from_numpy(test.tokens[3:4, parts.cut[3] :].astype(np.int64))
    np.testing.assert_allclose(found.means[20 + 3], model.context(alone)[0].mean(0).numpy(), atol=1e-6)
    kinds, counts = np.unique(topics, return_counts=True)
    few = documents(model, test, parts, topics=2)
    assert set(few.topics) == set(kinds[np.argsort(-counts, kind="stable")[:2]])
    assert len(few.topics) == np.sort(counts)[-2:].sum()


def test_everything_is_measured_and_drawn(text_run: Path, tmp_path: Path) -> None:
    assert cli.main(["analyze", str(text_run), "--limit", "12", "--rate", "0.1", "--out", str(tmp_path / "a")]) == 0
    found = json.loads((tmp_path / "a" / "analysis.json").read_text())
    assert found["stretches"] == 24
    assert set(found["behind_the_cut"]["specialised"]) == {"nll", "token_accuracy"}
    assert found["tokens_until_moved"]["changes"] == 12
    assert found["tokens_until_moved"]["controls"] == 24
    assert found["topics"]["texts"] == found["topics"]["documents"] == 24
    assert found["transplant"]["pairs"] == 22  # each text has a donor in the next instance, but for the last's
    table = tmp_path / "table.md"
    assert cli.main(["analyze", str(text_run), "--limit", "12", "--table", str(table)]) == 0
    row = json.loads(table.with_suffix(".json").read_text())["rows"][0]
    assert found["variation"] == pytest.approx(row["y"]["variation"]["value"])
    assert found["linear_fit"] is None
    pictures = {path.stem for path in (tmp_path / "a").glob("*.png")}
    assert pictures == {"loss_by_distance", "dot_products", "context", "topics", "transplant"}


def test_a_text_is_transplanted_against_a_summary_of_its_own(text_track: Track) -> None:
    """A model whose y has seen a text's first half says its second half better than with that of a foreign text."""
    test = text_track.instances("test")
    parts = stretches_to_read(text_track.task, test)

    class Recent(Counting):
        """y: the shares of each token among the last eight; so of the text being read, not of the one before."""

        def summary(self, prefix: torch.Tensor) -> torch.Tensor:
            return super().summary(prefix[:, -8:])

    found = transplant(Recent(text_track.task.io), test, parts)
    assert found.pairs == len(parts) - 2
    assert found.by_kind["the donor's alone"] > 0.1
    assert found.by_kind["its own alone"] < -0.1
