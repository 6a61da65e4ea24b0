"""`regbench analyze` on a task like text: no truth, and two topics an instance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from papers.cgt import modes
from papers.cgt.modes import MODES, read_in_modes
from papers.cgt.representation import documents
from papers.cgt.segments import segments
from regbench import cli
from regbench.metrics.scores import score
from regbench.tracks import Track
from tests.papers.cgt.conftest import Counting


def test_dynamic_scores_are_those_after_the_cut(text_track: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a truth, in batches of any size, and as the scores of a run have it."""
    test = text_track.instances("test")
    model, parts = Counting(text_track.task.io), segments(text_track.task, test)
    whole = read_in_modes(model, text_track.task, test, parts, 0.1)
    assert set(whole.values) == set(MODES)
    assert set(whole.values["dynamic"]) == {"nll", "token_accuracy"}
    monkeypatch.setattr(modes, "rows_at_once", lambda *_: 3)
    small = read_in_modes(model, text_track.task, test, parts, 0.1)
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

    monkeypatch.setattr("regbench.models.predictor.BATCH_BYTES", 5 * 48 * 300 * 8)
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


@pytest.mark.ci
def test_everything_is_measured_and_drawn(text_run: Path, text_file: Path, tmp_path: Path) -> None:
    own = ["--track", str(text_file)]
    assert (
        cli.main(["analyze", str(text_run), *own, "--limit", "12", "--rate", "0.1", "--out", str(tmp_path / "a")]) == 0
    )
    found = json.loads((tmp_path / "a" / "analysis.json").read_text())
    assert found["segments"] == 24
    assert set(found["after_the_prompt"]["specialised"]) == {"nll", "token_accuracy"}
    assert found["tokens_until_moved"]["changes"] == 12
    assert found["tokens_until_moved"]["controls"] == 24
    assert found["topics"]["texts"] == found["topics"]["documents"] == 24
    assert found["activation_patching"]["pairs"] == 22  # each text has a donor in the next instance, but for the last's
    table = tmp_path / "table.md"
    assert cli.main(["analyze", str(text_run), *own, "--limit", "12", "--table", str(table)]) == 0
    row = json.loads(table.with_suffix(".json").read_text())["rows"][0]
    assert found["variation"] == pytest.approx(row["y"]["variation"]["value"])
    assert found["linear_probe"] is None
    pictures = {path.stem for path in (tmp_path / "a").glob("*.png")}
    assert pictures == {"loss_by_distance", "dot_products", "context", "topics"}
