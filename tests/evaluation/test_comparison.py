"""Distances between predictors: by the definition, from saved predictions, in a sensible order; the command and its errors."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import regbench
from baselines.bayes import Bayes
from baselines.ngram import NGram
from regbench import cli
from regbench.evaluation.comparison import Comparison, distances, first_tokens, mean_distance, similar_order
from regbench.evaluation.find_predictors import find_predictors
from regbench.evaluation.predictions import Predictions
from regbench.tracks import Track, load_track
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.files import read_arrays
from tests.helpers.typed import refused

LAST = "import regbench\nclass Last(regbench.Mixer):\n    def forward(self, x):\n        return x\n"


def compare(predictors: list[str], track: str, **how: Any) -> Comparison:
    return distances(find_predictors(predictors, track), **how)


@pytest.fixture(scope="module")
def runs(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of two seeds and two of one seed of the same architecture."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "last.py").write_text(LAST)
    found = {}
    for name, seeds in (("two", [0, 1]), ("one", [0]), ("other", [2])):
        settings = {"d_model": 8, "n_layers": 1, "training.train_tokens": 2000}
        found[name] = folder / name
        regbench.run(str(tiny_file), str(folder / "last.py"), seeds, settings=settings, out=found[name])
    return found


def expected_distance(a: FloatArray, b: FloatArray, track: Track, tokens: int) -> tuple[float, float]:
    """TVD of (N, L, V) predictions, one position at a time, and the standard error of the ratio of sums to counts."""
    test = track.instances("test")
    sums, counts = np.zeros(len(test)), np.zeros(len(test))
    for i in range(len(test)):
        for t in range(min(tokens, int(test.lengths[i]))):
            if test.scored[i, t]:
                sums[i] += 0.5 * sum(abs(a[i, t, v] - b[i, t, v]) for v in range(a.shape[-1]))
                counts[i] += 1
    value = sums.sum() / counts.sum()
    error = np.std(sums - value * counts, ddof=1) / np.sqrt(len(test)) / counts.mean()
    return value, float(error)


@pytest.mark.parametrize("tokens", [7, 100])
def test_baselines_are_compared_by_the_definition(tiny: Track, tiny_file: Path, tokens: int) -> None:
    test, io = tiny.instances("test"), tiny.task.io
    found = compare(["2-gram", "3-gram", "Bayes", "oracle"], str(tiny_file), tokens=tokens, order="given")
    said = [NGram(n, io.vocab_size, io.separator).predict(test.tokens) for n in (2, 3)]
    said += [Bayes.defaults(tiny.task, test)[0].predict(test.tokens), tiny.task.truth(test)]
    assert found.positions == test.scored[:, :tokens].sum()
    for i, a in enumerate(said):
        assert found.distance[i, i] == 0
        for j, b in enumerate(said[:i]):
            value, error = expected_distance(a, b, tiny, tokens)
            assert found.distance[i, j] == pytest.approx(value, abs=1e-6)
            assert found.distance[j, i] == found.distance[i, j]
            assert found.stderr[i, j] == pytest.approx(error, abs=1e-6)


@pytest.mark.ci
def test_the_distance_to_the_oracle_is_the_score(tiny_file: Path, runs: dict[str, Path]) -> None:
    """Over all tokens, of a run and of a baseline: another way to the same figure."""
    result = regbench.Result.model_validate_json((runs["one"] / "result.json").read_text())
    found = compare([str(runs["one"]), "3-gram", "oracle"], str(tiny_file), tokens=10_000, order="given")
    assert found.distance[0, 2] == pytest.approx(result.seeds[0].scores["tvd"].value, abs=1e-6)
    assert found.distance[1, 2] == pytest.approx(result.baselines["3-gram"].scores["tvd"].value, abs=1e-6)
    assert found.stderr[1, 2] == pytest.approx(result.baselines["3-gram"].scores["tvd"].stderr, abs=1e-6)


def test_errors_are_over_problems_that_instances_share(tiny: Track) -> None:
    """Two instances of one problem count as one: as if their positions were of a single instance."""
    test = tiny.instances("test")
    positions = int(test.scored.sum())
    a, b = np.random.default_rng(0).dirichlet(np.ones(tiny.task.io.vocab_size), (2, positions))
    shared = replace(test, truth={**test.truth, "problem": np.arange(len(test)) // 2})
    joined = replace(
        test[::2],
        scored=np.concatenate([test.scored[::2], test.scored[1::2]], axis=1),
        tokens=np.concatenate([test.tokens[::2], test.tokens[1::2]], axis=1),
    )
    together, as_one = (mean_distance([(a, b)], instances) for instances in (shared, joined))
    assert (together.value, together.stderr) == pytest.approx((as_one.value, as_one.stderr))
    assert together.value == pytest.approx(mean_distance([(a, b)], test).value)


@pytest.mark.ci
def test_several_seeds_are_compared_by_pairs(tiny: Track, tiny_file: Path, runs: dict[str, Path]) -> None:
    found = compare([f"a={runs['two']}", f"b={runs['one']}"], str(tiny_file), order="given")

    def saved(run: str, seed: int) -> FloatArray:
        parts = list(Predictions.from_arrays(read_arrays(runs[run] / f"seed-{seed}" / "predictions.npz")).batches(1000))
        return parts[0]

    first, second, other = saved("two", 0), saved("two", 1), saved("one", 0)
    between = expected_distance(first, second, tiny, 100)[0]
    assert between > 0.001
    assert found.distance[0, 0] == pytest.approx(between, abs=1e-9)
    assert found.distance[1, 1] == 0
    pairs = [expected_distance(seed, other, tiny, 100)[0] for seed in (first, second)]
    assert found.distance[0, 1] == pytest.approx(np.mean(pairs), abs=1e-9)
    assert list(found.seeds) == [2, 1]


def test_the_first_tokens_alone_are_predicted(tiny_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("regbench.evaluation.baselines.WORTH_KEEPING", 0.0)
    lengths: list[int] = []
    original = NGram.predict

    def predict(self: NGram, tokens: FloatArray) -> FloatArray:
        lengths.append(tokens.shape[1])
        return original(self, tokens)

    monkeypatch.setattr(NGram, "predict", predict)
    first = compare(["unigram", "2-gram"], str(tiny_file), tokens=5)
    assert set(lengths) == {5}
    lengths.clear()
    again = compare(["unigram", "2-gram"], str(tiny_file), tokens=5)
    assert lengths == []  # from the cache
    np.testing.assert_array_equal(first.distance, again.distance)
    compare(["unigram", "2-gram"], str(tiny_file), tokens=6)
    assert set(lengths) == {6}


def test_first_tokens_keep_the_truth(tiny: Track) -> None:
    test = tiny.instances("test")
    early = first_tokens(test, 6)
    assert early.tokens.shape == (24, 6)
    assert early.fingerprint != test.fingerprint
    np.testing.assert_array_equal(tiny.task.truth(early), tiny.task.truth(test)[:, :6])


def test_a_registered_name_stands_for_all_its_forms(tiny_file: Path) -> None:
    assert list(compare(["ngram", "uniform"], str(tiny_file), order="given").names) == [
        "unigram",
        "2-gram",
        "3-gram",
        "uniform",
    ]


def test_runs_of_one_architecture_are_called_by_their_folders(tiny_file: Path, runs: dict[str, Path]) -> None:
    arguments = [str(runs["one"]), str(runs["other"]), "uniform"]
    assert list(compare(arguments, str(tiny_file), order="given").names) == ["one", "other", "uniform"]
    assert list(compare([arguments[0], "uniform"], str(tiny_file), order="given").names) == ["last", "uniform"]


def test_similar_ones_stand_side_by_side() -> None:
    points = np.array([0.0, 7.0, 1.0, 6.0, 2.0, 9.0, 3.0])
    order = similar_order(np.abs(points[:, None] - points))
    assert points[order].tolist() == [0, 1, 2, 3, 6, 7, 9]


# --- The command. ---


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_the_command_prints_draws_and_writes(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, runs: dict[str, Path]
) -> None:
    arguments = ["compare", "oracle", "ngram", str(runs["two"]), "--track", str(tiny_file), "--tokens", "9"]
    assert cli.main([*arguments, "--order", "given", "--out", "a/who.png", "--csv", "who.csv"]) == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.partition("difference:")[0].splitlines())
    assert "…" not in out
    rows = [line for line in out.splitlines() if line[1:3] in ("1 ", "2 ", "3 ", "4 ", "5 ")]
    assert [row.split()[1] for row in rows] == ["oracle", "unigram", "2-gram", "3-gram", "last"]
    assert all(len(row) <= 80 for row in rows)
    assert "scored positions among the first 9 tokens of 24 instances" in out
    assert "last: 2 seeds. A distance is the mean over pairs" in out
    found = compare(["oracle", "ngram", str(runs["two"])], str(tiny_file), tokens=9, order="given")
    rows = list(csv.DictReader(Path("who.csv").read_text().splitlines()))
    assert len(rows) == 25
    for row in rows:
        i, j = (list(found.names).index(row[key]) for key in ("predictor", "other"))
        assert float(row["tvd"]) == pytest.approx(found.distance[i, j], abs=1e-6)
        assert float(row["stderr"]) == pytest.approx(found.stderr[i, j], abs=1e-6)
    picture = imread("a/who.png")
    assert picture.shape[0] > 400
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 20


@pytest.mark.usefixtures("_in_an_empty_folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["3-grm", "oracle"], "unknown predictor '3-grm'; did you mean '3-gram'?"),
        (["bays", "oracle"], "unknown predictor 'bays'; did you mean 'bayes'?"),
        (["runs/gone", "oracle"], "there is no run folder runs/gone"),
        (["oracle"], "a comparison needs at least two predictors, not 1"),
        (["oracle", "oracle"], "a comparison needs at least two predictors, not 1"),
        (["a=2-gram", "a=3-gram"], "two predictors are called 'a'"),
        (["a=ngram", "oracle"], "'ngram' stands for several predictors"),
        (["2-gram", "oracle", "--tokens", "0"], "tokens must be at least 1, not 0"),
        (["2-gram", "oracle", "--tokens", "1"], "nothing is scored among the first 1 tokens"),
        (["2-gram", "oracle", "--out", "picture.jpg"], "--out takes the name of a PNG picture, not 'picture.jpg'"),
        (["2-gram", "oracle", "--order", "simlar"], "unknown choice 'simlar'; did you mean 'similar'"),
        ([".", "oracle"], ". holds no run: there is no result.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, arguments: list[str], message: str
) -> None:
    refused(capsys, ["compare", *arguments, *([] if arguments[0] == "." else ["--track", str(tiny_file)])], message)
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_run_on_a_track_of_your_own_needs_its_file(capsys: pytest.CaptureFixture[str], runs: dict[str, Path]) -> None:
    for command in (["compare", str(runs["two"]), "oracle"], ["errors", str(runs["two"])]):
        assert cli.main(command) == 2
        message = "regbench: 'tiny-v1' is no built-in track; if it is yours, give its file: --track FILE.yaml\n"
        assert capsys.readouterr().err == message


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_name_in_brackets_is_no_markup(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, runs: dict[str, Path]
) -> None:
    own = Path("a [red] run")
    shutil.copytree(runs["two"], own)
    assert cli.main(["compare", f"[bold]mine={own}", "oracle", "--track", str(tiny_file)]) == 0
    out = capsys.readouterr().out
    assert out.count("[bold]mine") == 5  # a row of each part of each table, the first predictor, its seeds
    assert cli.main(["run", "--resume", str(own)]) == 0
    assert f"result and pictures: {own}\n" in capsys.readouterr().out


def test_where_nothing_is_scored_at_first_there_are_scores_and_no_distances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track = tmp_path / "late-v1.yaml"
    track.write_text(
        "name: late-v1\ntask: selective_copying\nparameters: {length: 140, n_copied: 16}\n"
        "splits: {train: 2, validation: 2, test: 20, seed: 0}\nbudget: {train_tokens: 300}\nmain_score: token_accuracy\n"
    )
    assert cli.main(["compare", "uniform", "oracle", "--track", str(track)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "no distances: nothing is scored among the first 100 tokens of late-v1: give a larger --tokens" in out
    assert cli.main(["compare", "uniform", "oracle", "--track", str(track), "--tokens", "140"]) == 0
    assert "no distances" not in capsys.readouterr().out


def test_a_task_without_truth_has_scores_and_no_distances(text_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "uniform", "3-gram", "--track", str(text_file)]) == 0
    out = capsys.readouterr().out
    assert {"3-gram", "uniform"} <= {line.split()[0] for line in out.splitlines() if line.strip()}
    assert "no distances: nothing to compare on markov-text-v1: no truth is known there" in out
    refused(
        capsys,
        ["compare", "uniform", "3-gram", "--track", str(text_file), "--csv", "who.csv"],
        "nothing to compare on markov-text-v1",
    )
    with pytest.raises(UserError, match="nothing to compare"):
        compare(["uniform", "3-gram"], str(text_file))


def test_a_run_on_another_track_is_refused(runs: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"one is a run on tiny-v1, and the comparison is on pfa-small-v1"):
        compare([str(runs["one"]), "oracle"], "pfa-small-v1")
    assert load_track("pfa-small-v1").name == "pfa-small-v1"
