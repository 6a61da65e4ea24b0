"""Prompt distillation: what the student learns from, that it learns, and what it is beside the model itself."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from papers.tint.adaptation import Place
from papers.tint.distillation import distil, distil_run, divergence, sample_texts
from regbench import cli
from regbench.analysis.trained import Trained
from regbench.utils.errors import UserError

HALF = Place(tokens=18)  # two examples of nine tokens


def some(examples: Trained) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A prompt (18,), and texts of the training split with what is scored in them."""
    test, train = examples.track.instances("test"), examples.track.instances("train")
    tokens = torch.from_numpy(train.tokens[:6, 18:].astype(np.int64))
    return torch.from_numpy(test.tokens[0, :18].astype(np.int64)), tokens, torch.from_numpy(train.scored[:6, 18:])


@pytest.mark.ci
def test_texts_keep_their_questions_and_have_the_teachers_answers(examples: Trained) -> None:
    prompt, tokens, scored = some(examples)
    found = sample_texts(examples.model, prompt, tokens, scored, torch.Generator().manual_seed(0))
    assert torch.equal(found.tokens[~scored], tokens[~scored])
    assert not torch.equal(found.tokens[scored], tokens[scored])
    whole = torch.cat([prompt.expand(6, -1), found.tokens], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(found.targets, examples.model(whole)[:, 18:].log_softmax(-1))
    # Many draws of one answer's first token have the teacher's distribution.
    many = sample_texts(
        examples.model,
        prompt,
        tokens[:1].expand(4000, -1),
        scored[:1].expand(4000, -1),
        torch.Generator().manual_seed(1),
    )
    first = int(scored[0].int().argmax())
    shares = torch.bincount(many.tokens[:, first], minlength=16) / 4000
    torch.testing.assert_close(shares, found.targets[0, first].exp(), atol=0.04, rtol=0)


@pytest.mark.ci
def test_a_student_with_the_prompt_has_nothing_to_learn(examples: Trained) -> None:
    prompt, tokens, scored = some(examples)
    texts = sample_texts(examples.model, prompt, tokens, scored, torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = torch.cat([prompt.expand(6, -1), texts.tokens], dim=1)
        assert float(divergence(texts, examples.model(whole)[:, 18:])) == pytest.approx(0.0, abs=1e-6)
        alone = examples.model(texts.tokens)
    assert float(divergence(texts, alone)) > 0.01
    p, q = texts.targets.double(), alone.log_softmax(-1).double()
    expected = (p.exp() * (p - q)).sum(-1)[scored].mean()
    assert float(divergence(texts, alone)) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.ci
def test_the_divergence_on_its_texts_falls_and_the_model_stays_as_it_is(examples: Trained) -> None:
    prompt, tokens, scored = some(examples)
    texts = sample_texts(examples.model, prompt, tokens, scored, torch.Generator().manual_seed(0))
    before = copy.deepcopy(examples.model.state_dict())
    left = []
    with torch.no_grad():
        left.append(float(divergence(texts, examples.model(texts.tokens))))
    for steps, student in distil(examples.model, texts, (0, 4, 30), 1e-2):
        if not steps:
            assert all(torch.equal(before[k], v) for k, v in student.state_dict().items())
        with torch.no_grad():
            left.append(float(divergence(texts, student(texts.tokens))))
    assert left[0] == left[1]
    assert left[1] > left[2] > left[3]
    assert left[3] < 0.7 * left[0]
    assert all(torch.equal(before[k], v) for k, v in examples.model.state_dict().items())


@pytest.mark.ci
def test_a_run_is_measured_beside_the_model_with_and_without_the_prompt(examples: Trained) -> None:
    found = distil_run([examples], "run", HALF, rates=(1e-9, 1e-2), steps=(1, 4), queries=4, limit=4, split="test")
    assert [row.steps for row in found.rows] == [1, 4]
    tokens = torch.from_numpy(examples.track.instances("test").tokens[:4].astype(np.int64))
    behind = torch.from_numpy(examples.track.instances("test").scored[:4].copy())
    behind[:, :18] = False
    with torch.no_grad():
        whole, alone = examples.model(tokens).log_softmax(-1), examples.model(tokens[:, 18:]).log_softmax(-1)
    nll = -whole.gather(-1, tokens[..., None])[..., 0][behind].mean()
    without = -alone.gather(-1, tokens[:, 18:, None])[..., 0][behind[:, 18:]].mean()
    assert found.prompted.score("after", "nll").value == pytest.approx(float(nll), rel=1e-5)
    assert found.prompted.score("before", "nll").value == pytest.approx(float(without), rel=1e-5)
    still = distil_run([examples], "run", HALF, rates=(1e-12,), steps=(1,), queries=4, limit=4, split="validation")
    outcome = still.rows[0].outcome
    assert outcome.score("difference", "nll").value == pytest.approx(0.0, abs=1e-6)
    assert found.rows[1].operations > found.rows[0].operations > found.pass_operations > 0


@pytest.mark.ci
def test_a_rate_that_diverges_is_not_chosen(examples: Trained) -> None:
    asked: dict[str, Any] = {"steps": (4,), "queries": 4, "limit": 4, "split": "test"}
    found = distil_run([examples], "run", HALF, rates=(1e-3, 1e30), **asked)
    assert found.rows[0].rate == 1e-3
    with pytest.raises(UserError, match="run: every rate diverges for distill at 18 tokens: give smaller --rates"):
        distil_run([examples], "run", HALF, rates=(1e30,), **asked)


@pytest.mark.ci
def test_the_command(
    examples_run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = tmp_path / "distil.md"
    asked = ["adapt", str(examples_run), "--how", "distill", "--limit", "4", "--queries", "2"]
    code = cli.main([*asked, "--tokens", "18", "--steps", "1,2", "--rates", "1e-3", "--table", str(table)])
    assert code == 0
    text = table.read_text()
    assert "Prompt distillation is a proposal of ours" in text
    for words in ("| prompted |", "| unprompted |", "| 1 step |", "| 2 steps |"):
        assert words in text
    head, *lines = table.with_suffix(".csv").read_text().splitlines()
    assert head.startswith("split,run,prompt,model,")
    assert [line.split(",")[0] for line in lines] == ["test"] * 4
    assert table.with_suffix(".png").stat().st_size > 10_000
    out, progress = capsys.readouterr()
    assert progress == "done: run: prompt of 18 tokens\n"
    assert "…" not in out
    for more, message in (
        (["--how", "distill,full"], "--how distill is asked for alone"),
        (["--layers", "1"], "--layers is not for --how distill"),
        (["--queries", "0"], "--queries 0 is too few: 1 or more"),
        (["--tokens", "99"], "a segment of 99 tokens leaves nothing behind it"),
        (["--tokens", "36"], "no position behind a segment of 36 tokens is scored"),
    ):
        assert cli.main([*asked, *more]) == 2
        assert message in capsys.readouterr().err
