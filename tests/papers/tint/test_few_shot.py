"""Steps on exemplars: as plain SGD by hand, calibration as by hand, rates from validation, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional as F

from papers.tint.adaptation import Plan
from papers.tint.few_shot import (
    FewShotPlan,
    Problem,
    _values,
    adapt_few_shot,
    exemplars_that_fit,
    in_words,
    metrics,
    on_exemplars,
    problems_of,
)
from regbench import cli, runner
from regbench.analysis.trained import Trained, load
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.data.text.conftest import write_corpus
from tests.helpers.typed import refused

TINY = {"d_model": 12, "n_layers": 1, "training.train_tokens": 3000, "training.batch_size": 8}
EXEMPLARS, WIDTH = 4, 10


def write_track(folder: Path, name: str, task: str, score: str, queries: int = 4, **parameters: Any) -> Path:
    content = {
        "name": name,
        "task": task,
        "parameters": {"source": str(folder / "texts"), "vocab_size": 300, **parameters},
        "splits": {"train": 40, "validation": 5 * queries, "test": 6 * queries, "seed": 0},
        "budget": {"train_tokens": 3000},
        "main_score": score,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder / f"{name}.yaml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TinT of windows of text, an LSTM of exemplars, and the tracks."""
    folder = tmp_path_factory.mktemp("few-shot")
    write_corpus(folder / "texts", documents=30)
    few = {"n_exemplars": EXEMPLARS, "excerpt": WIDTH - 2, "n_label_tokens": 10}
    exemplars = write_track(folder, "few-v1", "classification", "label_accuracy", n_queries=4, **few)
    write_track(folder, "one-v1", "classification", "label_accuracy", n_queries=1, **few)
    write_track(folder, "wide-v1", "classification", "label_accuracy", n_exemplars=2, excerpt=30, n_label_tokens=10)
    text = write_track(folder, "windows-v1", "text", "nll", length=32)
    write_track(folder, "other-v1", "classification", "label_accuracy", **(few | {"vocab_size": 280}))
    runner.run(str(text), "tint", settings=TINY | {"n_heads": 3}, out=folder / "tint")
    runner.run(str(exemplars), "lstm", settings=TINY, out=folder / "lstm")
    return folder


def model_of(runs: Path, name: str) -> Trained:
    return on_exemplars(load(runs / name), load_track(str(runs / "few-v1.yaml")))


def by_hand(trained: Trained, problem: Problem, rate: float, steps: int, *, multi: bool, label: bool) -> Any:
    """The logits of the queries and of a label alone, after plain SGD on the exemplars."""
    again = load(trained.folder)
    model = getattr(again.model, "auxiliary", again.model)
    separator = trained.track.task.io.separator
    exemplars = torch.from_numpy(problem.exemplars)
    if multi:
        exemplars = exemplars[-exemplars_that_fit(trained, "multi") :].reshape(1, -1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(exemplars)
        loss = torch.zeros(())
        for row in range(len(exemplars)):
            for position in range(exemplars.shape[1]):
                if not label or position % WIDTH == WIDTH - 1:
                    loss = loss - logits[row, position].log_softmax(-1)[exemplars[row, position]]
        loss.backward()
        optimizer.step()
    found = []
    with torch.no_grad():
        for end in [*torch.from_numpy(problem.queries), torch.tensor([separator, 0])]:
            tokens = torch.cat([exemplars[0], end])[None] if multi else end[None]
            found.append(model(tokens)[0, -1])
    return torch.stack(found[:-1]), found[-1]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "layout", "targets"),
    [("tint", "single", "label"), ("tint", "multi", "all"), ("lstm", "single", "all"), ("lstm", "multi", "label")],
)
def test_full_steps_are_plain_sgd_on_the_exemplars(runs: Path, name: str, layout: str, targets: str) -> None:
    """A TinT by its twin, an LSTM by autograd; the last number of exemplars that fits."""
    trained = model_of(runs, name)
    problems = problems_of(trained.track, "test", 2)
    assert exemplars_that_fit(trained, "multi") == (2 if name == "tint" else 4)
    asked = FewShotPlan(Plan(("full",), (0.05,)), (2, 3), calibrate=True)
    found = _values([trained], problems, layout, targets, "full", 0.05, (2, 3), asked)
    for steps in (2, 3):
        for row, problem in enumerate(problems):
            logits, alone = by_hand(trained, problem, 0.05, steps, multi=layout == "multi", label=targets == "label")
            right = torch.from_numpy(problem.labels[problem.classes])
            nll = F.cross_entropy(logits, right, reduction="none")
            np.testing.assert_allclose(found[steps]["nll"][row], nll, atol=1e-4)
            p, q = logits.softmax(-1).numpy(), alone.softmax(-1).numpy()
            one, two = problem.labels
            for name_of, chosen in (
                ("choice_accuracy", p[:, two] > p[:, one]),
                ("calibrated_accuracy", p[:, two] / q[two] > p[:, one] / q[one]),
                ("label_accuracy", None),
            ):
                expected = p.argmax(-1) == right.numpy() if chosen is None else chosen == (problem.classes == 1)
                np.testing.assert_array_equal(found[steps][name_of][row], expected)
    still = _values([trained], problems, layout, targets, "full", 0.0, (0,), asked)[0]
    assert np.abs(still["nll"] - found[2]["nll"]).max() > 1e-3


@pytest.mark.ci
@pytest.mark.parametrize("name", ["tint", "lstm"])
def test_without_exemplars_the_steps_are_on_the_query_itself(runs: Path, name: str) -> None:
    """Plain SGD on one excerpt at a time. The labels are the tokens that distinguish the documents."""
    trained = model_of(runs, name)
    problem = problems_of(trained.track, "test", 1)[0]
    words = in_words(problem)
    counts: list[dict[int, int]] = [{}, {}]
    for row in problem.exemplars.tolist():
        for token in row[:-2]:
            own = counts[problem.labels.tolist().index(row[-1])]
            own[token] = own.get(token, 0) + 1
    shares = [{token: n / sum(own.values()) for token, n in own.items()} for own in counts]
    for label, (own, other) in zip(words.labels.tolist(), (shares, shares[::-1]), strict=True):
        assert own[label] - other.get(label, 0) == max(share - other.get(token, 0) for token, share in own.items())
    asked = FewShotPlan(Plan(("full",), (0.05,)), (2,), calibrate=True)
    found = _values([trained], [problem], "zero", "all", "full", 0.05, (0, 2), asked)
    for row, query in enumerate(torch.from_numpy(problem.queries[:, :-2])):
        model = load(trained.folder).model
        model = getattr(model, "auxiliary", model)
        optimizer, ratio_of_prior = torch.optim.SGD(model.parameters(), lr=0.05), 0.0
        for steps in (0, 2):
            for _ in range(steps):
                optimizer.zero_grad()
                F.cross_entropy(model(query[None])[0], query, reduction="sum").backward()
                optimizer.step()
            with torch.no_grad():
                logits = model(F.pad(query, (0, 1))[None])[0].log_softmax(-1).numpy()
            one, two = words.labels
            ratio = logits[-1, two] - logits[-1, one]
            alone = ratio_of_prior if steps else logits[0, two] - logits[0, one]  # by the weights before the steps
            ratio_of_prior = alone
            right = problem.classes[row] == 1
            assert found[steps]["nll"][0, row] == pytest.approx(-logits[-1, (one, two)[int(right)]], abs=1e-4)
            assert found[steps]["choice_accuracy"][0, row] == ((ratio > 0) == right)
            assert found[steps]["calibrated_accuracy"][0, row] == ((ratio > alone) == right)


def test_calibration_of_four_queries() -> None:
    """All queries prefer label 1; without an excerpt the preference is larger still; the median divides them."""
    problem = Problem(np.zeros((1, 3)), np.zeros((4, 3)), np.array([2, 5]), np.array([0, 1, 0, 1]))
    logits = torch.zeros(4, 8)
    logits[:, 5] = torch.tensor([1.0, 4.0, 2.0, 5.0])
    prior = torch.zeros(8)
    prior[5] = 1.5
    found = metrics(logits, problem, prior)
    assert found["choice_accuracy"].tolist() == [0, 1, 0, 1]
    assert found["calibrated_accuracy"].tolist() == [1, 1, 0, 1]
    assert found["median_accuracy"].tolist() == [1, 1, 1, 1]
    assert found["label_accuracy"].tolist() == [0, 1, 0, 1]
    assert found["nll"][0] == pytest.approx(np.log(7 + np.e))
    assert set(metrics(logits, problem, None)) == {"nll", "label_accuracy", "choice_accuracy"}


@pytest.mark.ci
def test_the_rate_is_chosen_on_validation_problems(runs: Path) -> None:
    trained = model_of(runs, "tint")
    asked = FewShotPlan(Plan(("tint",), (0.01, 0.3, 1e300)), (1, 4), calibrate=True)
    rows = adapt_few_shot([trained, trained], "tint", asked, "test")
    assert [(row.way, row.steps) for row in rows] == [("none", 0), ("tint", 1), ("tint", 4)]
    validation = problems_of(trained.track, "validation", 200)
    assert len(validation) == 5
    for row in rows[1:]:
        assert np.isnan(row.gains[1e300])
        for rate in (0.01, 0.3):
            of = _values([trained], validation, "single", "label", "tint", rate, (row.steps,), asked)[row.steps]
            assert row.gains[rate] == pytest.approx(of["median_accuracy"].mean())
        assert row.gains[row.rate] == max(row.gains[0.01], row.gains[0.3])
        change = row.score("nll").value - rows[0].score("nll").value
        assert row.difference("nll").value == pytest.approx(change)
    with pytest.raises(UserError, match="tint: every rate diverges for tint after 1 step: give smaller --rates"):
        adapt_few_shot([trained], "tint", FewShotPlan(Plan(("tint",), (1e300, 1e301))), "test")
    for chosen in rows[1:]:
        alone = FewShotPlan(Plan(("tint",), (chosen.rate,)), (chosen.steps,), calibrate=True)
        row = adapt_few_shot([trained, trained], "tint", alone, "test")[1]
        assert (row.rate, row.gains) == (chosen.rate, {})
        np.testing.assert_array_equal(row.values["nll"], chosen.values["nll"])
    with pytest.raises(UserError, match="tint: the rate 1e\\+300 diverges on test for tint: give smaller --rates"):
        adapt_few_shot([trained], "tint", FewShotPlan(Plan(("tint",), (1e300,))), "test")


@pytest.mark.ci
def test_the_command(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    track = ["--track", str(runs / "few-v1.yaml")]
    options = [*track, *["--format", "single,multi,zero", "--steps", "4,1", "--rates", "0.05,0.02", "--limit", "4"]]
    table = tmp_path / "t.md"
    arguments = [str(runs / "tint"), str(runs / "lstm"), *options, "--calibrate", "--table", str(table)]
    assert cli.main(["adapt", *arguments]) == 0
    printed, progress = capsys.readouterr()
    assert progress.splitlines() == [
        f"done: {run}: format {layout}, loss of {'all' if layout == 'zero' else 'label'}, {way}"
        for run, ways in (("tint", ("full", "values", "tint")), ("lstm", ("full",)))
        for layout in ("single", "multi", "zero")
        for way in ways
    ]
    assert "few-v1, test split, at most 4 problems: the label of a query" in printed
    assert "…" not in printed
    cells = [line.strip("| ").split(" | ") for line in table.read_text().splitlines() if line.startswith("| ")][2:]
    kinds = [(run, layout, way, steps) for run, layout, _, way, steps, *_ in cells]
    each = [(layout, way) for layout in ("single", "multi", "zero") for way in ("none", "full", "values", "tint")]
    assert kinds == [
        (run, layout, way, steps)
        for run, ways in (("tint", ("none", "full", "values", "tint")), ("lstm", ("none", "full")))
        for layout, way in each
        if way in ways
        for steps in (("0",) if way == "none" else ("1", "4"))
    ]
    with table.with_suffix(".csv").open() as file:
        rows = list(csv.reader(file))
    assert {"validation", "test"} == {row[rows[0].index("split")] for row in rows[1:]}
    assert table.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tint", "--track", "few-v1", "--at", "0.5"], "--at is not for few-v1: the exemplars are the segment"),
        (["lstm", "--tokens", "9"], "--tokens is not for few-v1: the exemplars are the segment"),
        (
            ["tint", "--targets", "label"],
            "--targets is for tracks of the task classification, not for windows-v1: give --track",
        ),
        (
            ["tint", "--calibrate"],
            "--calibrate is for tracks of the task classification, not for windows-v1: give --track",
        ),
        (["tint", "--steps", "1,4"], "--steps takes one number on windows-v1, not 1,4"),
        (["tint", "--steps", "0"], "--steps takes whole numbers above 0, not '0'"),
        (["tint", "--track", "windows-v1"], "--track takes a track of the task classification, not windows-v1 (text)"),
        (["tint", "--track", "other-v1"], "was trained on windows-v1, whose tokens are not those of other-v1"),
        (["lstm", "--format", "mutli"], "--format knows no 'mutli'; did you mean 'multi'?"),
        (["lstm", "--targets", "labels"], "--targets knows no 'labels'; did you mean 'label'?"),
        (["lstm", "--how", "tint"], "lstm: TinT does not simulate LSTM. Give --how full"),
        (["lstm", "--track", "one-v1", "--calibrate"], "--calibrate needs two queries or more of each problem"),
        (
            ["tint", "--track", "wide-v1", "--format", "multi"],
            "reads 32 tokens, but the format multi needs 64: an exemplar",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(
    runs: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(runs / f"{word}.yaml") if word.endswith("-v1") else word for word in arguments[1:]]
    refused(capsys, ["adapt", str(runs / arguments[0]), *given, "--limit", "4"], words)
