"""`regbench.evaluate`: any model scored as a run scores its own, and what cannot count refused in one line."""

from __future__ import annotations

import errno
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import regbench
from baselines.ngram import NGram
from regbench import cli
from regbench.evaluation.any_predictor import _name_of
from regbench.evaluation.baselines import default_baselines
from regbench.evaluation.given import given
from regbench.evaluation.predictions import Predictions, read_predictions
from regbench.metrics.scores import score, score_records
from regbench.models.model import ModelPredictor, shift_in
from regbench.results import Result, read_result
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.given import NextToken, refused


def test_a_result_says_where_a_predictor_computes(tiny: Track, learner: NGram) -> None:
    """A callable computes where it finds its tokens, a wrapped model where its weights are."""
    words: Any = {"predicts": "this", "kind": "logits"}
    assert given(lambda tokens: tokens, tiny.task, **words).device == torch.device("cpu")
    assert given(lambda tokens: tokens, tiny.task, **words, device="meta").device == torch.device("meta")
    module = nn.Linear(2, 2, device="meta")
    assert given(module, tiny.task, **words).device == torch.device("meta")
    assert given(learner, tiny.task, None, None).device == torch.device("cpu")
    wrapped = ModelPredictor(module, torch.device("meta"))  # type: ignore[arg-type]
    assert given(wrapped, tiny.task, None, None).device == torch.device("meta")


# --- The same predictions get the same scores. ---


def test_a_run_a_model_and_an_array_get_scores_equal_to_the_bit(tiny: Track, tiny_file: Path, run_folder: Path) -> None:
    run = read_result(run_folder)
    test = tiny.instances("test")
    model = regbench.load(run_folder)
    stored = read_predictions(run_folder, 0, tiny.task, test)
    assert isinstance(stored, Predictions)
    array = np.full((*test.tokens.shape, stored.packed.shape[1]), np.nan, np.float16)  # padding need not be predictions
    array[np.arange(test.tokens.shape[1]) < test.lengths[:, None]] = stored.packed
    logits = model.logits(test.tokens)
    for result in (
        regbench.evaluate(str(tiny_file), model),
        regbench.evaluate(tiny, model.model),
        regbench.evaluate(tiny, model.model.__call__, predicts="this", kind="logits"),
        regbench.evaluate(tiny, array, predicts="this", kind="probabilities"),
        regbench.evaluate(tiny, logits, predicts="this", kind="logits"),
        regbench.evaluate(tiny, logits.double().log_softmax(-1), "this", "log_probabilities"),
    ):
        assert result.seeds[0].scores == run.seeds[0].scores
        assert result.seeds[0].curves == run.seeds[0].curves
        assert result.seeds[0].predictions_sha256 == run.seeds[0].predictions_sha256
        assert result.seeds[0].share_of_the_way == run.seeds[0].share_of_the_way
        assert {name: record.scores for name, record in result.baselines.items()} == {
            name: record.scores for name, record in run.baselines.items()
        }
        assert result.track == run.track
    own, named = (regbench.evaluate(tiny, model, name=name).architecture for name in (None, "mine"))
    assert (own.name, named.name) == ("cgt", "mine")
    assert own.parameters == run.architecture.parameters


def test_a_model_of_the_next_token_is_given_a_separator_first(tiny: Track, vocab_size: int) -> None:
    model, test = NextToken(vocab_size), tiny.instances("test")
    model.gru.eval()
    result = regbench.evaluate(tiny, model, predicts="next", kind="logits")
    tokens = torch.from_numpy(test.tokens.astype(np.int64))
    with torch.inference_mode():
        logits = model(shift_in(tokens, tiny.task.io.separator))
    array = regbench.evaluate(tiny, logits, predicts="this", kind="logits")
    for metric, record in result.seeds[0].scores.items():
        assert record.value == pytest.approx(array.seeds[0].scores[metric].value, rel=1e-4)
    assert result.architecture.name == "NextToken"
    assert result.architecture.parameters == sum(p.numel() for p in model.parameters())
    assert (model.training, model.gru.training) == (True, False), "a model is given back as it came"


def test_a_predictor_may_take_gradient_steps(tiny: Track, vocab_size: int) -> None:
    """A bigram table that learns from each token before the next, as models do that are trained at test time."""

    def learner(tokens: Tensor) -> Tensor:
        rows = []
        with torch.enable_grad():
            table = torch.zeros(len(tokens), vocab_size, vocab_size, requires_grad=True)
            each = torch.arange(len(tokens))
            for last, token in zip(tokens[:, :-1].T, tokens[:, 1:].T, strict=True):
                rows.append(table[each, last])
                (step,) = torch.autograd.grad(F.cross_entropy(rows[-1], token, reduction="sum"), table)
                table = (table - 2 * step).detach().requires_grad_()
            rows.append(table[each, tokens[:, -1]])
        return torch.stack(rows, 1)

    scores = regbench.evaluate(tiny, learner, predicts="next", kind="logits").seeds[0].scores
    assert scores["nll"].value < np.log(vocab_size)


def test_an_array_of_the_next_token_leaves_the_first_token_uniform(
    tiny: Track, rows: NDArray[np.float64], vocab_size: int
) -> None:
    after = np.concatenate([rows[:, 1:], np.full_like(rows[:, :1], 1 / vocab_size)], 1)
    first = rows.copy()
    first[:, 0] = 1 / vocab_size
    one = regbench.evaluate(tiny, after, predicts="next", kind="probabilities")
    other = regbench.evaluate(tiny, first, predicts="this", kind="probabilities")
    assert one.seeds[0].scores == other.seeds[0].scores


def test_a_score_over_no_position_is_refused(tiny: Track, vocab_size: int) -> None:
    """The first few instances of a track may have no position of a group."""
    test = tiny.instances("test")[:2]
    nothing = replace(test, scored=np.zeros_like(test.scored))
    rows = np.full((*test.tokens.shape, vocab_size), 1 / vocab_size)
    with pytest.raises(UserError, match="no position of these 2 instances counts for '.*': take more of them"):
        score_records(score(tiny.task, nothing, [rows]))


def test_outputs_with_logits_are_taken(tiny: Track, vocab_size: int) -> None:
    class Wrapped(NextToken):
        def forward(self, tokens: Tensor) -> Any:
            return type("Output", (), {"logits": super().forward(tokens)})()

    one = regbench.evaluate(tiny, Wrapped(vocab_size), predicts="next", kind="logits")
    other = regbench.evaluate(tiny, NextToken(vocab_size), predicts="next", kind="logits")
    assert one.seeds[0].scores == other.seeds[0].scores


def test_the_validation_split_has_its_own_baselines(tiny: Track, learner: NGram) -> None:
    result = regbench.evaluate(tiny, learner, split="validation", name="mine")
    assert (result.split, result.architecture.name) == ("validation", "mine")
    baseline = result.baselines["2-gram"].scores["nll"]
    assert result.seeds[0].scores["nll"].value == pytest.approx(baseline.value, abs=2e-3)
    assert baseline != regbench.evaluate(tiny, learner).baselines["2-gram"].scores["nll"]


def test_a_task_of_vectors(tmp_path: Path) -> None:
    definition = regbench.load_track("linear-regression-small-v1").definition.model_dump()
    definition |= {"name": "vectors-v1", "splits": {"train": 20, "validation": 10, "test": 40, "seed": 3}}
    (tmp_path / "vectors-v1.yaml").write_text(yaml.safe_dump(definition))
    track = regbench.load_track(str(tmp_path / "vectors-v1.yaml"))
    d_in, d_out = track.task.io.d_in, track.task.io.d_out

    def last_mean(vectors: Tensor) -> Tensor:
        """The mean of the components so far, this one included."""
        steps = torch.arange(1, vectors.shape[1] + 1)[:, None]
        return (vectors.cumsum(1) / steps)[..., d_in - d_out :]

    result = regbench.evaluate(track, last_mean, predicts="next", out=tmp_path / "mean")
    assert result.evaluation is not None
    assert result.evaluation.kind is None
    assert read_result(tmp_path / "mean") == result
    assert "sees the token that it predicts" in refused(track, last_mean, predicts="this")
    assert "leave kind out" in refused(track, last_mean, predicts="next", kind="logits")


def test_a_task_without_a_known_truth(text_track: Track) -> None:
    vocab_size = text_track.task.io.vocab_size
    result = regbench.evaluate(text_track, NextToken(vocab_size), predicts="next", kind="logits")
    assert set(result.seeds[0].scores) == set(text_track.task.scores)


# --- What is written. ---


def test_a_folder_has_a_page_and_can_be_compared(tiny: Track, learner: NGram, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    result = regbench.evaluate(tiny, learner, out=folder, name="mine <b>")
    assert read_result(folder) == result
    assert {path.name for path in folder.iterdir()} >= {"report.html", "score_by_position.png", "seed-0"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "mine &lt;b&gt; on tiny-v1" in page
    assert "regbench did not train it" in page
    assert "training tokens in" not in page
    assert "peak memory" not in page
    again = Result.model_validate_json((folder / "result.json").read_text(encoding="utf-8"))
    assert again.evaluation is not None
    assert again.evaluation.model_dump() == {
        "given": "predictor",
        "predicts": "this",
        "kind": "probabilities",
        "split": "test",
    }
    with pytest.raises(UserError, match="holds a run already"):
        regbench.evaluate(tiny, learner, out=folder)


def test_a_name_that_no_result_can_hold_is_refused(tiny: Track, learner: NGram) -> None:
    with pytest.raises(UserError, match=r"^name: a string with characters that are not printable: 'two\\nlines'$"):
        regbench.evaluate(tiny, learner, name="two\nlines")


def test_it_is_no_entry(tiny: Track, learner: NGram, tmp_path: Path) -> None:
    from regbench.leaderboard.verify import submit

    regbench.evaluate(tiny, learner, out=tmp_path / "mine")
    with pytest.raises(UserError, match="evaluate") as caught:
        submit(tmp_path / "mine", tmp_path, track=tiny)
    assert "\n" not in str(caught.value)


# --- What rows may hold. ---


def test_the_kind_of_rows_is_named(tiny: Track, rows: NDArray[np.float64]) -> None:
    smooth = 0.9 * rows + 0.1 / rows.shape[-1]
    logits = np.log(smooth) + 3.0
    cases = {
        ("probabilities", "logits"): (logits, "softmax them, or say kind='logits'"),
        ("probabilities", "log_probabilities"): (np.log(smooth), "say kind='log_probabilities'"),
        ("log_probabilities", "logits"): (logits, "log_softmax them in float32, or say kind='logits'"),
        ("log_probabilities", "probabilities"): (smooth, "say kind='probabilities'"),
        ("logits", "probabilities"): (smooth, "say kind='probabilities'"),
    }
    for (kind, _), (array, end) in cases.items():
        assert refused(tiny, array, predicts="this", kind=kind).endswith(end)
    for kind, array in (("logits", logits), ("log_probabilities", np.log(smooth)), ("probabilities", smooth)):
        regbench.evaluate(tiny, array, predicts="this", kind=kind)  # type: ignore[arg-type]


def test_rows_that_are_no_distributions(tiny: Track, rows: NDArray[np.float64]) -> None:
    words: dict[str, Any] = {"predicts": "this", "kind": "probabilities"}
    assert "one sums to 1.1" in refused(tiny, 1.1 * rows, **words)
    hole = rows.copy()
    hole[3, 2, 1] = np.nan
    assert "NaN, first in row 2 of instance 3" in refused(tiny, hole, **words)
    hole[3, 2, 1] = np.inf
    assert "infinity" in refused(tiny, hole, **words)
    assert "infinity" in refused(tiny, np.full_like(rows, -np.inf), predicts="this", kind="log_probabilities")


@pytest.mark.parametrize("kind", [">f4", ">f8", np.longdouble])
def test_floating_point_numbers_that_pytorch_does_not_know(tiny: Track, rows: NDArray[np.float64], kind: Any) -> None:
    scores = [
        regbench.evaluate(tiny, one, "this", "probabilities").seeds[0].scores
        for one in (rows.astype(np.float32), rows.astype(np.float32).astype(kind))
    ]
    assert scores[0] == scores[1]


def test_tensors_that_numpy_does_not_know(tiny: Track, rows: NDArray[np.float64]) -> None:
    words: dict[str, Any] = {"predicts": "this", "kind": "probabilities"}
    tensor = torch.from_numpy(rows)
    as_float32, as_float16 = (
        regbench.evaluate(tiny, one, "this", "probabilities").seeds[0].scores
        for one in (tensor.half().float(), tensor.half())
    )
    assert as_float32 == as_float16
    uneven = torch.full_like(tensor, 0.9 / (rows.shape[-1] - 1))  # in bfloat16 these are 0.3 % too large
    uneven[..., 0] = 0.1
    for coarse in (torch.bfloat16, torch.float8_e5m2):
        assert "softmax them in float32" in refused(tiny, uneven.to(coarse), **words)
    assert "can become an array: this one raises TypeError: " in refused(tiny, tensor.to_sparse(), **words)


def test_wrong_shapes_and_types(tiny: Track, rows: NDArray[np.float64], vocab_size: int) -> None:
    words: dict[str, Any] = {"predicts": "this", "kind": "probabilities"}
    n, length, width = rows.shape
    assert f"not ({n}, {length}, {width}) = (N, L, V)" in refused(tiny, rows[:-1], **words)
    assert "swap its last two axes" in refused(tiny, rows.transpose(0, 2, 1), **words)
    assert "not int64" in refused(tiny, rows.astype(np.int64), **words)
    model = NextToken(vocab_size)
    assert "wrap it" in refused(tiny, lambda tokens: (model(tokens), None), predicts="next", kind="logits")
    assert "(B, L, V)" in refused(tiny, lambda tokens: model(tokens)[:, -1], predicts="next", kind="logits")
    assert "the callable raises" in refused(tiny, lambda tokens: 1 / 0, predicts="next", kind="logits")
    assert "not an object of it" in refused(tiny, NextToken, predicts="next", kind="logits")
    assert "this is the class NGram, not an object of it" in refused(tiny, NGram)
    assert "this is str; a run is loaded by regbench.load(DIR)" in refused(tiny, "runs/lstm")
    shorter = refused(tiny, rows[:, :-1], predicts="next", kind="probabilities")
    assert f"{length - 1} rows for {length} tokens: give each instance one more" in shorter
    in_a_dictionary = refused(tiny, lambda tokens: {"logits": model(tokens)}, predicts="next", kind="logits")
    assert "wrap it: lambda tokens: callable(tokens)['logits']" in in_a_dictionary


def test_words_that_are_missing_or_wrong(tiny: Track, learner: NGram, vocab_size: int) -> None:
    model = NextToken(vocab_size)
    assert "say what a row predicts" in refused(tiny, model)
    assert "say what the numbers are" in refused(tiny, model, predicts="next")
    assert "did you mean 'next'" in refused(tiny, model, predicts="nxt", kind="logits")
    assert "did you mean 'logits'" in refused(tiny, model, predicts="next", kind="logit")
    assert "unknown split 'tset'; did you mean 'test'?" in refused(tiny, learner, split="tset")
    assert "has predicts='this'" in refused(tiny, learner, predicts="next")
    assert "a name for tables" in refused(tiny, learner, name=" ")
    assert "a name for tables is needed, not 3" in refused(tiny, learner, name=3)
    for word in ("predicts", "kind"):
        assert f"unknown {word} '1'; known: " in refused(tiny, model, **{"predicts": "next", "kind": "logits", word: 1})
    assert "unknown split 'None'; known: test, validation" in refused(tiny, learner, split=None)
    assert "unknown device 'gpu'" in refused(tiny, model.forward, predicts="next", kind="logits", device="gpu")


def test_a_model_for_other_tokens(tiny: Track, run_folder: Path) -> None:
    """A run of another track would only complain of an index."""
    other = regbench.load_track("mad-recall-small-v1")
    trained = regbench.load(run_folder)
    own, theirs = tiny.task.io.vocab_size, other.task.io.vocab_size
    for model in (trained, trained.model):  # not what wraps it: that may change what goes in and out
        assert refused(other, model) == f"the model is for {own} tokens, and this task has {theirs} tokens"


# --- Names, baselines, runs on another track. ---


def test_a_model_is_called_as_its_file_where_its_own_name_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "two_layers.py"
    path.write_text(
        "class Model:\n    def forward(self, x): return x\nclass Gru(Model): pass\ndef predict(x): return x\n"
    )
    spec = importlib.util.spec_from_file_location("two_layers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "two_layers", module)
        spec.loader.exec_module(module)
        names = [_name_of(one) for one in (module.Model(), module.predict, module.Gru(), module.Gru().forward)]
    assert names == ["two_layers", "two_layers", "Gru", "Gru"]
    assert _name_of(Mock(spec=["_orig_mod"], _orig_mod=nn.Linear(1, 1))) == "Linear", "as torch.compile gives it"


def test_only_the_baselines_that_are_asked_for(tiny: Track, learner: NGram) -> None:
    assert regbench.evaluate(tiny, learner, baselines=()).baselines == {}
    assert regbench.evaluate(tiny, learner, baselines=()).normalized == []
    few = regbench.evaluate(tiny, learner, baselines=["unigram", "oracle"])
    assert set(few.baselines) == {"unigram", "oracle"}
    assert few.normalized == regbench.evaluate(tiny, learner).normalized
    with pytest.raises(UserError, match="^tiny-v1 has no baseline 'orakle'; did you mean 'oracle'"):
        regbench.evaluate(tiny, learner, baselines=["orakle"])


def test_an_own_task_keeps_its_contract_also_without_baselines(tmp_path: Path, learner: NGram) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "from regbench.tasks.pfa import PFA\n\n\nclass Broken(PFA):\n    def truth(self, instances):\n"
        "        return 2 * super().truth(instances)\n"
    )
    track = tmp_path / "broken-v1.yaml"
    track.write_text(yaml.safe_dump(TINY | {"name": "broken-v1", "task": str(path)}))
    with pytest.raises(UserError, match="task 'broken' cannot be scored: the truth sums to 2"):
        regbench.evaluate(load_track(track), learner, baselines=())


def test_the_fast_baselines_are_scored_first(tiny: Track) -> None:
    names = [one.name for one in default_baselines(tiny, tiny.instances("test"))]
    assert set(names[-2:]) == {"Bayes", "Baum-Welch"}


def test_a_run_on_a_track_with_other_lengths(
    run_folder: Path, tmp_path: Path, tiny: Track, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second seed, beside one baseline."""
    shorter = tmp_path / "shorter-v1.yaml"
    shorter.write_text(
        yaml.safe_dump(TINY | {"name": "shorter-v1", "parameters": {**TINY["parameters"], "max_length": 5}})  # type: ignore[dict-item]
    )
    track = ["--track", str(shorter)]
    out = ["--baselines", "oracle", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert cli.main(["evaluate", str(run_folder), *track, "--seed", "4", *out]) == 0
    result = read_result(tmp_path / "out")
    assert (result.track.name, result.architecture.name, [*result.baselines]) == ("shorter-v1", "cgt", ["oracle"])
    known = regbench.evaluate(load_track(shorter), regbench.load(run_folder, 4).model, baselines=())
    assert result.seeds[0].predictions_sha256 == known.seeds[0].predictions_sha256
    shown = capsys.readouterr().out
    assert "mapping" not in shown
    assert f"result and pictures: {tmp_path / 'out'}" in shown
    assert cli.main(["evaluate", str(run_folder), *track, "--prompt", "a"]) == 2
    assert "--prompt is for a language model" in capsys.readouterr().err
    assert cli.main(["evaluate", "hf:gpt2", *track, "--seed", "1"]) == 2
    assert "--seed is for a run" in capsys.readouterr().err
    assert cli.main(["evaluate", str(run_folder), "--track", "pfa-small-v1"]) == 2
    assert "pfa-small-v1 has other tokens" in capsys.readouterr().err


def test_a_disk_that_is_full_at_the_end_is_told(
    tiny: Track, learner: NGram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the page, after the predictions: the folder then holds no result, and the next evaluation may go there."""
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("regbench.runner.score.write_report", Mock(side_effect=full))
        with pytest.raises(UserError, match="the disk is full"):
            regbench.evaluate(tiny, learner, out=tmp_path / "mine")
    assert regbench.evaluate(tiny, learner, out=tmp_path / "mine") == read_result(tmp_path / "mine")
