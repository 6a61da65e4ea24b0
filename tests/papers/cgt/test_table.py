"""`regbench analyze` of several runs: figures against what is computed by hand, the forms, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from baselines.linear_regression import InContextRegression
from papers.cgt import table_forms
from papers.cgt.linear_probe import linear_probe
from papers.cgt.modes import read_in_modes
from papers.cgt.representation import contexts, variation
from papers.cgt.segments import segments
from papers.cgt.table import Mean, cut_after, tabulate
from regbench import cli, runner
from regbench.analysis.trained import load
from regbench.models.model import ModelPredictor
from regbench.results import ScoreRecord
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import Splits
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.conftest import TINY_CGT

VECTORS = {
    "name": "vectors-v1",
    "task": "linear_regression",
    "parameters": {"d_x": 2, "d_y": 1, "n_examples": 6, "noise": 0.5},
    "splits": {"train": 60, "validation": 64, "test": 20, "seed": 3},
    "budget": {"train_tokens": 2000},
    "main_score": "mse",
}


@pytest.fixture(scope="module")
def plain_run(tiny_file: Path, run_folder: Path) -> Path:
    """A finished run of a transformer beside that of `run_folder`."""
    folder = run_folder.parent / "transformer"
    runner.run(str(tiny_file), "transformer", seeds=(2,), settings={"d_model": 8}, out=folder)
    return folder


@pytest.fixture(scope="module")
def vector_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "vectors-v1.yaml").write_text(yaml.safe_dump(VECTORS))
    settings = {**TINY_CGT, "training.train_tokens": 2000}
    runner.run(str(folder / "vectors-v1.yaml"), "cgt", seeds=(0, 1), settings=settings, out=folder / "vectors")
    return folder / "vectors"


def test_of_several_seeds_the_error_is_over_them_and_of_one_over_instances() -> None:
    several = Mean.of(
        [ScoreRecord(value=1.0, stderr=9.0), ScoreRecord(value=2.0, stderr=9.0), ScoreRecord(value=6.0, stderr=9.0)]
    )
    assert several.value == pytest.approx(3.0)
    assert several.stderr == pytest.approx(np.sqrt((4 + 1 + 9) / 2) / np.sqrt(3))
    assert several.by_seed == (1.0, 2.0, 6.0)
    assert Mean.of([ScoreRecord(value=1.0, stderr=0.25)]) == Mean(1.0, 0.25, (1.0,))


@pytest.mark.ci
def test_a_run_with_y_beside_one_without(run_folder: Path, plain_run: Path) -> None:
    found = tabulate([plain_run, run_folder], split="validation", limit=16)
    assert (found.metric, found.instances) == ("legal_accuracy", 16)
    plain, cgt = found.rows
    assert (plain.name, cgt.name) == ("transformer", "cgt")
    assert set(plain.scores) == {"dynamic"}
    assert plain.y == {}
    assert cgt.seeds == (0, 4)
    trained = load(plain_run)
    instances = trained.track.instances("validation")[:16]
    parts = segments(trained.track.task, instances)
    predicted = ModelPredictor(trained.model, "cpu").predict(instances.tokens)  # type: ignore[arg-type]
    truth = trained.track.task.truth(instances)
    legal = [
        truth[row, t, predicted[row, t].argmax()] > 0
        for row, cut, end in zip(parts.row, parts.cut, parts.end, strict=True)
        for t in range(cut, end)
        if instances.scored[row, t]
    ]
    assert plain.scores["dynamic"]["legal_accuracy"].value == pytest.approx(np.mean(legal))
    for number, seed in enumerate((0, 4)):
        one = load(run_folder, seed)
        outcomes = read_in_modes(one.model, one.track.task, instances, parts, 0.0)  # type: ignore[arg-type]
        for mode in ("dynamic", "specialised", "specialised, prompt read", "unprompted"):
            for metric in ("legal_accuracy", "nll"):
                assert cgt.scores[mode][metric].by_seed[number] == pytest.approx(outcomes.score(mode, metric).value)
        y = contexts(one.model, instances.tokens)  # type: ignore[arg-type]
        assert cgt.y["variation"].by_seed[number] == pytest.approx(variation(y, parts))
    assert "linear_probe" not in cgt.y


@pytest.mark.ci
def test_of_vectors_ridge_stands_beside_it_over_the_same_positions(vector_run: Path) -> None:
    found = tabulate([vector_run], split="validation", limit=64, cuts=(4, 1))
    assert [(row.name, row.cut) for row in found.rows] == [
        (name, cut) for cut in (1, 4) for name in ("vectors", "zero", "least squares", "ridge", "oracle")
    ]
    track = load_track(str(vector_run.parent / "vectors-v1.yaml"))
    instances = track.instances("validation")
    y = instances.tokens[:, 1::2, 2]
    error = (InContextRegression("ridge", 2, 1, 0.5).predict(instances.tokens)[:, 1::2, 0] - y) ** 2
    ridge = {row.cut: row for row in found.rows if row.name == "ridge"}
    for cut in (1, 4):
        assert ridge[cut].scores["dynamic"]["mse"].value == pytest.approx(error[:, cut:].mean(), rel=1e-5)
        curve = ridge[cut].by_example["dynamic"]
        assert list(curve) == list(range(cut, 6))
        assert curve[cut].value == pytest.approx(error[:, cut].mean(), rel=1e-5)
    special = load(vector_run, 1)
    rows = {row.cut: row for row in found.rows if row.name == "vectors"}
    model = special.model.specialize  # type: ignore[operator]
    errors = []
    for row in instances.tokens[:8]:
        text = np.ascontiguousarray(row)
        predicted = ModelPredictor(model(_tensor(text[:8])), "cpu").predict(text[None, 8:])  # type: ignore[arg-type]
        errors.append((predicted[0, 1::2, 0] - text[9::2, 2]) ** 2)
    first = tabulate([vector_run], split="validation", limit=8, cuts=(4,)).rows[0]
    assert first.scores["specialised"]["mse"].by_seed[1] == pytest.approx(np.mean(errors), rel=1e-4)
    assert "linear_probe" not in first.y  # eight segments say nothing of eight weights
    assert "Linear probes: 64 segments, 10-fold cross-validation over instances" in table_forms.notes(found)
    parts = cut_after(segments(track.task, instances), track.task.progress(instances), 4)  # type: ignore[arg-type]
    names, targets = ["w0", "w1"], instances.truth["weights"].reshape(-1, 2)
    probe = linear_probe(contexts(special.model, instances.tokens), parts, names, targets)  # type: ignore[arg-type]
    assert rows[4].y["linear_probe"].by_seed[1] == pytest.approx(probe.error.mean())


def _tensor(rows: np.ndarray) -> object:
    import torch

    return torch.from_numpy(rows)


@pytest.mark.ci
def test_of_text_it_is_the_nll_after_the_middle_of_each_excerpt(text_run: Path, text_file: Path) -> None:
    found = tabulate([text_run], split="validation", limit=16, track=str(text_file))
    (row,) = found.rows
    assert found.metric == "nll"
    trained = load(text_run)
    instances = trained.track.instances("validation")
    predicted = ModelPredictor(trained.model, "cpu").predict(instances.tokens)  # type: ignore[arg-type]
    nats = -np.log(np.take_along_axis(predicted, instances.tokens[..., None].astype(np.int64), -1)[..., 0])
    place, cut = np.arange(nats.shape[1]), instances.truth["cut"][:, None]
    first, second = cut // 2, (cut + instances.lengths[:, None]) // 2
    after = instances.scored & ((place >= first) & (place < cut) | (place >= second))
    assert row.scores["dynamic"]["nll"].value == pytest.approx(nats[after].mean(), rel=1e-5)
    assert set(row.y) == {"variation"}
    assert "No linear probe for run: the task has no hidden real numbers" in table_forms.notes(found)
    with pytest.raises(UserError, match="--cuts counts examples, and markov-text-v1 has none"):
        tabulate([text_run], split="validation", limit=16, cuts=(2,), track=str(text_file))


def test_a_cut_is_after_so_many_examples_of_each_task() -> None:
    task = Arithmetic(Arithmetic.Parameters(n_tasks=2, n_examples=4, n_digits=1))
    instances = task.generate(Splits(train=1, validation=1, test=3, seed=0), "test")
    own = segments(task, instances)
    np.testing.assert_array_equal(cut_after(own, task.progress(instances), 2).cut, own.cut)
    text = np.array(task.io.names)[instances.tokens]
    for examples in (1, 3):
        parts = cut_after(own, task.progress(instances), examples)
        assert len(parts) == 6
        for row, start, cut in zip(parts.row, parts.start, parts.cut, strict=True):
            assert "".join(text[row, start:cut]).count("|") == examples
            assert text[row, cut - 1] == "|"
    for examples in (0, 4):
        with pytest.raises(UserError, match=f"a cut after {examples} examples of 4 leaves nothing on one side: 1 to 3"):
            cut_after(own, task.progress(instances), examples)


@pytest.mark.ci
def test_the_command_prints_and_writes_all_forms(
    vector_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    path = tmp_path / "new" / "table.md"
    assert cli.main(["analyze", str(vector_run), "--limit", "32", "--cuts", "2,4", "--table", str(path)]) == 0
    out = capsys.readouterr().out
    assert "vectors-v1, validation split, 32 instances: MSE after the prompt" in out
    assert "after 4" in out
    assert all(len(line) <= 100 for line in out.splitlines() if "±." in line)
    text, content = path.read_text(), json.loads(path.with_suffix(".json").read_text())
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == [
        *("run", "seeds", "cut after", "dynamic ↓", "specialised ↓", "specialised, prompt read ↓", "unprompted ↓"),
        *("variation of y", "linear-probe error ↓"),
    ]
    assert len(rows) == 2 + 10
    written = content["rows"][0]
    assert rows[2][:3] == ["vectors", "2", "2"]
    special = written["scores"]["specialised"]["mse"]
    assert rows[2][4] == f"{special['value']:.3f} ±{special['stderr']:.3f}"
    assert rows[3][:2] == ["zero", "—"]
    assert rows[3][4:] == ["—"] * 5
    assert len(special["by_seed"]) == 2
    assert written["by_example"]["specialised"]["examples_before"] == [2, 3, 4, 5]
    assert "Means over seeds; ± is one standard error over seeds. zero, least squares, ridge, oracle: baselines" in text


@pytest.mark.ci
def test_the_notes_say_what_the_error_is(run_folder: Path, plain_run: Path) -> None:
    both = tabulate([run_folder, plain_run], split="test", limit=8)
    assert "over seeds, but over instances for transformer with one seed" in table_forms.notes(both)
    alone = tabulate([plain_run], split="test", limit=8)
    assert table_forms.notes(alone) == "± is one standard error over instances: each run has one seed."
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table_forms.terminal(both))
    printed = console.export_text()
    assert "variation" in printed
    assert "…" not in printed, "every figure is whole"
    assert all(row.name in printed for row in both.rows)
    figures = re.findall(r"±\.\d{3}", printed)
    assert len(figures) == sum(cell.count("±0.") for row in both.rows for cell in table_forms.cells(both, row))


def test_runs_of_one_name_are_told_apart_by_their_folders(run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "cgt")
    found = tabulate([run_folder, tmp_path / "cgt"], split="validation", limit=8)
    assert [row.name for row in found.rows] == [f"{run_folder.parent.name}/cgt", f"{tmp_path.name}/cgt"]


@pytest.mark.ci
def test_what_has_no_table(
    run_folder: Path, plain_run: Path, vector_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run_folder, unfinished)
    (unfinished / "result.json").unlink()
    for arguments, message in (
        ([run_folder, run_folder.parent / "." / "cgt"], "cgt is given twice"),
        (
            [run_folder, vector_run],
            "runs of different tracks cannot be in one table: cgt is on tiny-v1, vectors on vec",
        ),
        ([run_folder, unfinished], f"{unfinished} is not finished: go on with regbench run --resume {unfinished}"),
        ([plain_run], "'transformer' has no summary of its context to analyze: cgt and fast_slow have one"),
        ([run_folder, tmp_path / "none"], "none holds no run: there is no config.yaml"),
        ([run_folder, "--cuts", "2"], "--cuts counts examples, and tiny-v1 has none"),
        ([vector_run, "--cuts", "2,6"], "a cut after 6 examples of 6 leaves nothing on one side: 1 to 5"),
        (
            [vector_run, "--cuts", "2;4"],
            "--cuts takes whole numbers with commas between them, such as 2,4,8, not '2;4'",
        ),
        ([run_folder, "--table", "here.txt"], "--table takes the name of a Markdown file, FILE.md, not 'here.txt'"),
        ([run_folder, "--table", "a.md", "--seed", "0"], "--seed is for one run without --table and --cuts"),
    ):
        assert cli.main(["analyze", *map(str, arguments)]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert message in error
