"""Task vectors: the prompt's own states give the prompted output, the text's own states change nothing, and what a vector is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from papers.cgt.segments import single_context_segments
from papers.cgt.task_vectors import _Reading, patched, states_before, task_vectors
from regbench import cli
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.results import ScoreRecord
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.helpers.subjects import trained_of


@pytest.mark.ci
def test_states_of_another_sequence_everywhere_give_its_output(examples: Trained) -> None:
    tokens = torch.randint(16, (2, 20), generator=torch.Generator().manual_seed(0))
    prompted, other = tokens[:1], tokens[1:]
    everywhere = torch.ones(1, 20, dtype=torch.bool)
    with torch.no_grad():
        wanted, plain = examples.model(prompted), examples.model(other)
    for layer, states in enumerate(states_before(examples.model, prompted)):
        assert torch.equal(patched(examples.model, other, layer, everywhere, states), wanted)
    for layer, states in enumerate(states_before(examples.model, other)):
        assert torch.equal(patched(examples.model, other, layer, everywhere, states), plain)
        nowhere = patched(examples.model, other, layer, ~everywhere, torch.full_like(states, 9.0))
        assert torch.equal(nowhere, plain)


def test_the_scores_are_those_of_single_texts_read_one_by_one(examples: Trained) -> None:
    found = task_vectors(examples, "test", 7)
    assert found.metric == "token_accuracy"
    task, instances, model = examples.track.task, examples.track.instances("test"), examples.model
    parts = single_context_segments(task, instances)
    hits: dict[str, list[Any]] = {"prompted": [], "unprompted": [], "separator": [], "query": []}
    length = len(parts)
    for k in range(length):
        row, cut, end = int(parts.row[k]), int(parts.cut[k]), int(parts.end[k])
        whole = torch.from_numpy(instances.tokens[row : row + 1].astype(np.int64))
        text, scored = whole[:, cut:end], instances.scored[row, cut:end]
        target = text[0, torch.from_numpy(scored)]
        other = instances.tokens[int(parts.row[(k + 1) % length]), cut:end].astype(np.int64)
        question = torch.from_numpy(other[:4])[None]  # as 3*4=
        asked = torch.cat([whole[:, :cut], question, question[:, :1]], 1)
        with torch.no_grad():
            outs = {"prompted": model(whole)[:, cut:end], "unprompted": model(text)}
            at = torch.zeros(text.shape, dtype=torch.bool)
            at[:, 0] = True
            block = found.block["separator"]
            outs["separator"] = patched(model, text, block, at, states_before(model, whole)[block][:, cut : cut + 1])
            answers = torch.zeros(text.shape, dtype=torch.bool)
            answers[:, [4, 13]] = True  # an example has 9 tokens
            block = found.block["query"]
            states = states_before(model, asked)[block][:, cut + 4 : cut + 5]
            outs["query"] = patched(model, text, block, answers, states)
        for name, out in outs.items():
            hits[name] += (out[0].argmax(-1)[torch.from_numpy(scored)] == target).tolist()
    scores = {"prompted": found.prompted, "unprompted": found.unprompted, **found.task_vector}
    assert {name: score.value for name, score in scores.items()} == pytest.approx(
        {name: np.mean(each) for name, each in hits.items()}
    )


def test_errors_are_over_the_problems_that_instances_share(examples: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def prompted(instances: Instances) -> ScoreRecord:
        monkeypatch.setattr(type(examples.track), "instances", lambda self, split: instances)
        reading = _Reading(examples, "test", len(instances))
        reading.metric = "nll"  # it differs between any two instances
        return reading.prompted()

    alone = examples.track.instances("test")[:4]
    twice = alone[np.arange(8) // 2]
    shared = prompted(replace(twice, truth=twice.truth | {"problem": np.arange(8) // 2}))
    assert shared.value == pytest.approx(prompted(alone).value)
    assert shared.stderr == pytest.approx(prompted(alone).stderr), "a copy of an instance says nothing new"
    assert shared.stderr > 1.2 * prompted(twice).stderr > 0


def test_the_block_is_chosen_on_validation(examples: Trained) -> None:
    found = task_vectors(examples, "test", 7)
    for place, block in found.block.items():
        assert sorted(found.validation[place]) == [1, 2]
        assert found.validation[place][block].value == max(s.value for s in found.validation[place].values())


def test_the_command(examples_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["analyze", str(examples_run), "--task-vectors", "--limit", "4", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for words in (
        "the prompt and the text",
        "with a vector at the separator (block",
        "with a vector at the query (block",
    ):
        assert words in out
    content = json.loads((tmp_path / "task_vectors.json").read_text())
    assert set(content["task_vector"]) == {"separator", "query"}
    assert cli.main(["analyze", str(examples_run), "--task-vectors", "--table", "x.md"]) == 2
    assert "--task-vectors is for one run" in capsys.readouterr().err


def test_what_has_no_task_vectors(examples: Trained, tiny_file: Path) -> None:
    small = {"d_model": 8, "n_heads": 2}
    with pytest.raises(UserError, match="task vectors are of examples of tokens, and .* has none"):
        task_vectors(trained_of(load_track(tiny_file), "transformer", **small), "test", 4)
    with pytest.raises(UserError, match="run has one block"):
        task_vectors(trained_of(examples.track, "transformer", **small, n_layers=1), "test", 4)
    with pytest.raises(UserError, match="ContextuallyGuided has no list of blocks"):
        task_vectors(trained_of(examples.track, "cgt", **small, d_y=4, y_heads=2), "test", 4)
