"""Tasks of vectors, from the track to the result: every built-in mixer, training, scores, pictures, and resumption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import regbench
from regbench import cli
from regbench.checks.architecture import CONTRACT, compiles
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.evaluation.baselines import default_baselines
from regbench.evaluation.predictions import Predictions
from regbench.metrics.scores import score, score_records
from regbench.models.build import build, resolve_options
from regbench.models.model import Model, ModelPredictor, shift_in
from regbench.results import read_result
from regbench.tasks.base import TokenIO, VectorIO
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from regbench.utils.files import read_arrays
from tests.helpers.mixers import SOME_MIXERS
from tests.helpers.subjects import built, subject_of

IO = VectorIO(d_in=5, d_out=2, max_length=12)
TINY = {
    "name": "tiny-regression-v1",
    "task": "linear_regression",
    "parameters": {"d_x": 3, "d_y": 2, "n_examples": 6, "noise": 0.3},
    "splits": {"train": 200, "validation": 20, "test": 30, "seed": 0},
    "budget": {"train_tokens": 12_000},
    "main_score": "mse",
}
CHEAP = tuple(check for check in CONTRACT if check not in (overfits, compiles))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("track") / "tiny-regression-v1.yaml"
    path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def track(file: Path) -> Track:
    return load_track(str(file))


@pytest.fixture
def go(file: Path, tmp_path: Path) -> Callable[..., regbench.Result]:
    def call(out: str, **changes: Any) -> regbench.Result:
        settings = {"d_model": 8, "n_heads": 2, "training.evaluations": 3} | changes.pop("settings", {})
        arguments = {"track": str(file), "arch": "transformer", "settings": settings, "out": tmp_path / out} | changes
        return regbench.run(**arguments)

    return call


@pytest.mark.ci
@pytest.mark.parametrize("name", SOME_MIXERS)
def test_every_built_in_mixer_keeps_the_contract_on_vectors(name: str) -> None:
    """Shapes, finite, causal, gradients, streaming, saving: all but overfitting one batch of pfa. One is compiled."""
    subject = subject_of(name, IO, d_model=16)
    checks = (*CHEAP, compiles) if name == "transformer" else CHEAP
    assert {o.check: o.fault for o in examine(subject, checks) if o.fault} == {}


@pytest.mark.parametrize("name", SOME_MIXERS)
def test_every_built_in_mixer_lowers_its_loss_on_vectors(name: str, track: Track) -> None:
    model = built(name, track.task.io, d_model=16)
    train = track.instances("train")[:16]
    tokens, scored = torch.from_numpy(train.tokens), torch.from_numpy(train.scored)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        (loss,) = model.losses(tokens, scored).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_the_loss_is_the_mean_squared_error_of_the_predicted_components(track: Track) -> None:
    model = built("lstm", track.task.io, d_model=8)
    part = track.instances("validation")
    loss = model.losses(torch.from_numpy(part.tokens), torch.from_numpy(part.scored))
    predicted = ModelPredictor(model, torch.device("cpu"), batch_size=7).predict(part.tokens)
    assert predicted.shape == (20, 12, 2)
    expected = ((predicted[:, 1::2] - part.tokens[:, 1::2, 3:]) ** 2).mean()
    assert float(loss["mse"].detach()) == pytest.approx(expected, rel=1e-5)
    assert score(track.task, part, [predicted])["mse"].value == pytest.approx(expected, rel=1e-12)


def test_inputs_begin_with_zeros_and_miss_the_last() -> None:
    tokens = torch.randn(2, 4, 3)
    inputs = shift_in(tokens, IO.separator)
    assert (inputs[:, 0] == 0).all()
    assert torch.equal(inputs[:, 1:], tokens[:, :-1])


@pytest.mark.ci
def test_a_run_from_the_command_line_to_its_pictures(
    file: Path, track: Track, tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: None
) -> None:
    out = tmp_path / "out"
    arguments = ["--track", str(file), "--arch", "transformer", "--set", "d_model=8", "--out", str(out)]
    assert cli.main(["run", *arguments]) == 0
    printed = capsys.readouterr().out
    for name in ("oracle", "ridge", "least squares", "zero", "transformer"):
        assert name in printed
    result = read_result(out)
    assert list(result.baselines) == [b.name for b in default_baselines(track, track.instances("test"))]
    assert result.metrics == ["mse", "truth_mse"]
    (seed,) = result.seeds
    assert seed.scores["mse"].value < 1.1 * result.baselines["zero"].scores["mse"].value  # it has seen but little
    assert result.baselines["oracle"].scores["truth_mse"].value == 0.0
    assert seed.share_of_the_way["truth_mse"] == pytest.approx(
        1 - seed.scores["truth_mse"].value / result.baselines["zero"].scores["truth_mse"].value
    )
    assert list(seed.training_curve[0].loss) == ["mse"]
    curve = seed.curves["mse"]
    assert curve.axis == "examples before"
    assert curve.position == [0, 1, 2, 3, 4, 5]
    assert curve.stderr is not None
    assert min(curve.stderr) > 0
    assert (out / "score_by_position.png").stat().st_size > 5000
    assert (out / "training.png").stat().st_size > 5000
    predictions = Predictions.from_arrays(read_arrays(out / "seed-0" / "predictions.npz"))
    assert predictions.packed.dtype == np.float32
    assert predictions.digest == seed.predictions_sha256
    scores, curves = score_records(score(track.task, track.instances("test"), predictions.batches(64)))
    assert (scores, curves) == (seed.scores, seed.curves)


def test_ngram_heads_refuse_vectors_in_one_line(go: Callable[..., regbench.Result]) -> None:
    for settings in ({"ngram_heads": [1, 2]}, {"extra_ngram_heads": [1]}):
        with pytest.raises(UserError, match="n-gram heads need tokens, and this task is one of vectors") as caught:
            go("refused", settings=settings)
        assert "\n" not in str(caught.value)


def test_a_whole_model_of_tokens_refuses_vectors_in_one_line() -> None:
    class OnlyTokens(Model):
        pass

    with pytest.raises(UserError, match="^OnlyTokens is for tokens, and this task is one of vectors$"):
        build(OnlyTokens, resolve_options(OnlyTokens, {}), IO)
    names = TokenIO(vocab_size=3, separator=2, max_length=4, names=("a", "b", "|"))
    assert isinstance(build(OnlyTokens, resolve_options(OnlyTokens, {}), names), OnlyTokens)


def test_baselines_of_tokens_are_not_asked(track: Track) -> None:
    names = [b.name for b in default_baselines(track, track.instances("test"))]
    assert sorted(names) == ["least squares", "oracle", "ridge", "zero"]


def test_regbench_data_shows_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "mean square y" in printed
    assert "  -> " in printed


def test_predictions_of_vectors_must_have_the_shape_and_be_finite(track: Track) -> None:
    test = track.instances("test")
    good = np.zeros((30, 12, 2))
    assert score(track.task, test, [good])["mse"].value > 0
    with pytest.raises(UserError, match=r"have the shape \(30, 12, 5\), not \(30, 12, 2\)"):
        score(track.task, test, [np.zeros((30, 12, 5))])
    with pytest.raises(UserError, match="NaN or infinity"):
        score(track.task, test, [np.where(good == 0, np.inf, good)])
