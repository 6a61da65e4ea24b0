"""Predictions of any model: a module, a callable or an array, turned into a `Predictor` and guarded against what cannot count.

A module or a callable is asked with changed tokens: a prediction may depend on nothing that comes after it. An array cannot be
asked. Its rows are compared with the tokens beside them and with the truth.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regbench.data.instances import Instances
from regbench.evaluation.baselines import score_baselines
from regbench.evaluation.predictions import StoredPredictions, store
from regbench.metrics.scores import normalized_scores, score, score_records
from regbench.models.model import Model, ModelPredictor, parameter_count, shift_in, token_tensor
from regbench.models.predictor import Predictor, rows_at_once
from regbench.results import ArchitectureRecord, Evaluation, Result, SeedRecord, Selection, TrackRecord
from regbench.tasks.base import IO, Task, VectorIO
from regbench.tracks import SPLITS, Track
from regbench.training.provenance import describe_code, describe_environment
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, blaming, nearest

Predicts = Literal["this", "next"]
Kind = Literal["logits", "log_probabilities", "probabilities"]
KINDS = ("logits", "log_probabilities", "probabilities")

PROBES = 31
"""So many places of one instance are changed, to see which predictions change with them."""

PROBE_TOLERANCE = 1e-3
"""Two predictions are equal within this share of the largest number in their row."""

SUM_TOLERANCE = 1e-3
"""The sum of a row of probabilities is 1 within this."""

LARGEST_Z = 6.0
"""Standard errors. An honest predictor agrees so well with the tokens by chance once in a billion times."""

LEAST_GAIN = 0.1
"""Nats a token. A shift is named only where it makes predictions better by more than this."""


@dataclass(frozen=True)
class Given:
    """What a caller hands over, as a `Predictor`.

    Attributes:
        what: "model", "module", "predictor", "callable" or "array".
        predicts: "this": row t is the prediction of token t. "next": row t is that of token t + 1.
        kind: What the numbers of a row are. None for vectors.
        io: What goes in and out.
        ask: Maps inputs (B, L) to rows (B, L, V) as the caller makes them. None of an array.
        rows: The rows of an array, (N, L, V). None of everything else.
        module: The module, if it is one.
    """

    what: str
    predicts: Predicts
    kind: Kind | None
    io: IO
    ask: Callable[[NDArray[Any]], Any] | None = None
    rows: NDArray[Any] | None = None
    module: nn.Module | None = None

    def predict(self, tokens: NDArray[Any]) -> FloatArray:
        """The predictions of tokens (B, L): row t is that of token t.

        A model of the next token is given what a model of regbench is given: a separator, then every token but the last.

        Raises:
            UserError: The model raises, or its rows are not what they are said to be.
        """
        assert self.ask is not None
        inputs = tokens
        if self.predicts == "next":
            inputs = shift_in(torch.from_numpy(np.asarray(tokens)), self.io.separator).numpy()
        with blaming(f"the {self.what} raises"):
            rows = self.ask(inputs)
        return self.distributions(_as_array(rows, self.what), tokens.shape[:2])

    def distributions(
        self, rows: NDArray[Any], shape: tuple[int, ...], lengths: NDArray[Any] | None = None
    ) -> FloatArray:
        """Turns rows into distributions (B, L, V), or into vectors (B, L, D_out).

        Args:
            rows: As the caller makes them.
            shape: (B, L).
            lengths: (B,), where rows of padding need not be distributions. They become uniform.

        Raises:
            UserError: The shape is wrong, a number is NaN, or the rows are of another kind.
        """
        width = self.io.d_out if isinstance(self.io, VectorIO) else self.io.vocab_size
        _check_shape(rows, (*shape, width), self.what)
        real = np.ones(shape, bool) if lengths is None else np.arange(shape[1]) < lengths[:, None]
        _check_numbers(rows, real, self.kind)
        out = np.full(rows.shape, 1.0 / width)
        out[real] = _normalized(rows[real], self.kind)
        return out


def given(
    predictor: Any, task: Task, predicts: str | None, kind: str | None, device: str | torch.device | None = None
) -> Given:
    """Recognises what a caller hands over.

    Args:
        predictor: A module, a callable, an array, or a `Predictor`.
        task: The task that it predicts.
        predicts: "this" or "next". None where the predictor is one of regbench's own, which say it themselves.
        kind: "logits", "log_probabilities" or "probabilities". None as for `predicts`, and for vectors.
        device: Where a callable finds its tokens; by default the CPU. A module finds them where its weights are.

    Raises:
        UserError: It is nothing of these, or a word is missing or unknown.
    """
    io: IO = task.io
    vectors = isinstance(io, VectorIO)
    if predicts is not None and predicts not in ("this", "next"):
        raise UserError(f"unknown predicts '{predicts}'{nearest(predicts, ('this', 'next'))}")
    if kind is not None and kind not in KINDS:
        raise UserError(f"unknown kind '{kind}'{nearest(kind, KINDS)}")
    if vectors and kind is not None:
        raise UserError(f"kind='{kind}' is for tokens; a prediction of vectors is the vector itself: leave kind out")
    own = isinstance(predictor, Model) or (isinstance(predictor, Predictor) and not isinstance(predictor, nn.Module))
    if own:
        said = {"predicts": (predicts, "this")} | (
            {} if isinstance(predictor, Model) else {"kind": (kind, "probabilities")}
        )
        for name, (asked, is_so) in said.items():
            if asked not in (None, is_so):
                raise UserError(f"{name}='{asked}' is wrong: a predictor of regbench has {name}='{is_so}'")
        known: Kind | None = None if vectors else "probabilities"
        if isinstance(predictor, Model):
            place = next((p.device for p in predictor.parameters()), torch.device("cpu"))
            return Given("model", "this", known, io, ModelPredictor(predictor, place).predict, module=predictor)
        return Given("predictor", "this", known, io, predictor.predict)
    if predicts is None:
        raise UserError(
            "say what a row predicts: predicts='next' (the token after it) or predicts='this' (its own token)"
        )
    if kind is None and not vectors:
        raise UserError(f"say what the numbers are: kind={', '.join(map(repr, KINDS[:-1]))} or {KINDS[-1]!r}")
    words: Any = {"predicts": predicts, "kind": kind, "io": io}
    if isinstance(predictor, np.ndarray | Tensor):
        return Given("array", rows=_as_array(predictor, "array"), **words)
    if isinstance(predictor, nn.Module):
        place = next((p.device for p in predictor.parameters()), torch.device("cpu"))
        return Given("module", ask=_asking(predictor, place), module=predictor, **words)
    if callable(predictor) and not isinstance(predictor, type):
        return Given("callable", ask=_asking(predictor, torch.device(device or "cpu")), **words)
    what = (
        f"the class {predictor.__name__}, not an object of it"
        if isinstance(predictor, type)
        else type(predictor).__name__
    )
    raise UserError(f"a predictor is a module, a callable from tokens (B, L), or an array (N, L, V); this is {what}")


def predictions_of(one: Given, task: Task, instances: Instances) -> StoredPredictions:
    """What it predicts for every instance, in the form in which a run keeps its predictions.

    Raises:
        UserError: It sees what it predicts, it is shifted by one place, or its rows are not what they are said to be.
    """
    if one.rows is None:
        training = one.module is not None and one.module.training
        if one.module is not None:
            one.module.eval()
        try:
            _probe(one, instances)
            return _stored(one, task, instances)
        finally:
            if one.module is not None:
                one.module.train(training)
    return _stored(one, task, instances)


def _stored(one: Given, task: Task, instances: Instances) -> StoredPredictions:
    """Asks for all predictions, and weighs them against the tokens and the truth on the way."""
    evidence = _Evidence(task)
    batches = _batches(one, instances) if one.rows is None else _rows_of_array(one, instances)

    def watched() -> Iterator[FloatArray]:
        start = 0
        for batch in batches:
            evidence.add(batch, instances[start : start + len(batch)])
            start += len(batch)
            yield batch

    stored = store(task, watched(), instances)
    if not isinstance(task.io, VectorIO):
        evidence.judge(one)
    return stored


def _batches(one: Given, instances: Instances) -> Iterator[FloatArray]:
    """Predictions as a run asks for them, a batch at a time."""
    size = rows_at_once(one.io, instances.tokens.shape[1], 64)
    for start in range(0, len(instances), size):
        yield one.predict(instances[start : start + size].tokens)


def _rows_of_array(one: Given, instances: Instances) -> Iterator[FloatArray]:
    """The rows of an array, each beside the token that it predicts."""
    assert one.rows is not None
    n, length = instances.scored.shape
    width = one.io.d_out if isinstance(one.io, VectorIO) else one.io.vocab_size
    _check_shape(one.rows, (n, length, width), one.what)
    size = rows_at_once(one.io, length, 64)
    for start in range(0, n, size):
        some = instances[start : start + size]
        shape = some.scored.shape
        rows = one.distributions(one.rows[start : start + size, : shape[1]], shape, some.lengths)
        if one.predicts == "next":  # nothing predicts the first token
            first = 0.0 if isinstance(one.io, VectorIO) else 1.0 / width
            rows = np.concatenate([np.full_like(rows[:, :1], first), rows[:, :-1]], axis=1)
        yield rows


def evaluate_predictor(
    track: Track,
    predictor: Any,
    predicts: str | None,
    kind: str | None,
    split: str,
    name: str | None,
    device: str,
    announce: Callable[[str], None],
) -> tuple[Result, StoredPredictions]:
    """The result of any predictor, and its predictions. `regbench.runner.evaluate` explains the arguments.

    `announce` is told what happens.
    """
    if split not in _SPLITS:
        raise UserError(f"unknown split '{split}'{nearest(split, _SPLITS)}")
    if name is not None and not (name.strip() and name.isprintable()):
        raise UserError(f"a name for tables is needed, not {name!r}")
    one = given(predictor, track.task, predicts, kind, device)
    instances = track.instances(split)
    announce(f"predicting the {split} split of {track.name}")
    started = time.perf_counter()
    stored = predictions_of(one, track.task, instances)
    seconds = time.perf_counter() - started
    scores, curves = score_records(score(track.task, instances, stored.batches()))
    baselines = score_baselines(track, instances, lambda b: announce(f"scoring the baseline {b}"))
    place = next((p.device for p in one.module.parameters()), None) if one.module is not None else None
    record = SeedRecord(
        seed=0,
        scores=scores,
        share_of_the_way=normalized_scores(scores, baselines),
        curves=curves,
        training_curve=[],
        best_step=0,
        steps=0,
        tokens=0,
        seconds=round(seconds, 3),
        tokens_per_second=round(instances.n_tokens / max(seconds, 1e-9), 1),
        peak_memory_bytes=0,
        predictions_sha256=stored.digest,
    )
    result = Result(
        track=TrackRecord(
            name=track.name,
            version=track.version,
            digest=track.definition.digest,
            main_score=track.definition.main_score,
            fingerprints={part: track.instances(part).fingerprint for part in SPLITS},
        ),
        architecture=ArchitectureRecord(
            name=name or _name_of(predictor),
            source=one.what,
            source_sha256=_weights_digest(one.module) if one.module is not None else stored.digest,
            options={},
            parameters=parameter_count(one.module) if one.module is not None else 0,
            state_bytes=None,
        ),
        training={},
        seeds=[record],
        baselines=baselines,
        selection=Selection(),
        environment=describe_environment(place or torch.device("cpu"), {}, {}, "float32"),
        code=describe_code(),
        evaluation=Evaluation.model_validate(
            {"given": one.what, "predicts": one.predicts, "kind": one.kind, "split": split}
        ),
    )
    return result, stored


_SPLITS = ("test", "validation")


def _name_of(predictor: Any) -> str:
    """The name of an object's class, or of a function. An array is called "predictions"."""
    if isinstance(predictor, np.ndarray | Tensor):
        return "predictions"
    name = getattr(predictor, "__name__", None) or getattr(predictor, "name", None)
    named = isinstance(name, str) and name.isprintable() and name != "<lambda>"
    return str(name) if named else "callable" if name == "<lambda>" else type(predictor).__name__


def _weights_digest(module: nn.Module) -> str:
    """SHA-256 of every tensor of a module, with its name, shape and type."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode() + raw.numpy().tobytes())
    return digest.hexdigest()


# --- What the rows are. ---


def _asking(function: Callable[[Tensor], Any], device: torch.device) -> Callable[[NDArray[Any]], Any]:
    """Calls a module or a callable with tokens as a tensor, without gradients. Of several outputs `.logits` is taken."""

    def ask(inputs: NDArray[Any]) -> Any:
        with torch.inference_mode():
            out = function(token_tensor(inputs, device))
        return getattr(out, "logits", out)

    return ask


def _as_array(rows: Any, what: str) -> NDArray[Any]:
    """Rows as an array of floating-point numbers.

    Raises:
        UserError: They are something else.
    """
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu()
        rows = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
    if not isinstance(rows, np.ndarray):
        hint = f"; wrap it: lambda tokens: {what}(tokens)[0]" if isinstance(rows, tuple | list) else ""
        raise UserError(f"the {what} must give an array or a tensor (B, L, V), not {type(rows).__name__}{hint}")
    if not np.issubdtype(rows.dtype, np.floating):
        raise UserError(f"the {what} must give floating-point numbers, not {rows.dtype}")
    return rows


def _check_shape(rows: NDArray[Any], shape: tuple[int, ...], what: str) -> None:
    if rows.shape == shape:
        return
    names = "(N, L, V)" if what == "array" else "(B, L, V)"
    hint = "; swap its last two axes" if rows.ndim == 3 and rows.transpose(0, 2, 1).shape == shape else ""
    raise UserError(f"the {what} has the shape {rows.shape}, not {shape} = {names}{hint}")


def _check_numbers(rows: NDArray[Any], real: NDArray[np.bool_], kind: Kind | None) -> None:
    """Checks that the numbers of real positions are such as their kind can have."""
    if kind in (None, "probabilities"):
        bad = real & ~np.isfinite(rows).all(-1)
    else:  # -inf is a probability of zero, if not all of a row are
        bad = real & (np.isnan(rows).any(-1) | (rows == np.inf).any(-1) | (rows == -np.inf).all(-1))
    if bad.any():
        b, t = np.argwhere(bad)[0]
        found = "NaN" if np.isnan(rows[b, t]).any() else "infinity"
        raise UserError(f"predictions hold {found}, first in row {t} of instance {b} of its batch")


def _normalized(rows: NDArray[Any], kind: Kind | None) -> FloatArray:
    """Rows (T, V) as distributions in float64. The softmax is that of a run."""
    numbers = torch.from_numpy(np.ascontiguousarray(rows)).double()
    if kind is None:
        return cast(FloatArray, numbers.numpy())
    found = _recognized(numbers)
    if kind == "logits":
        if found == "probabilities":
            raise UserError(
                "kind='logits', but the rows are probabilities: none is negative, and each sums to 1; say kind='probabilities'"
            )
        return cast(FloatArray, numbers.softmax(-1).numpy())
    if kind == "log_probabilities":
        if found != kind:
            off = f"exp of a row sums to {_worst(numbers.exp().sum(-1)):.4g}, not 1"
            hint = (
                "they are probabilities already: say kind='probabilities'"
                if found == "probabilities"
                else ("log_softmax them, or say kind='logits'")
            )
            raise UserError(f"kind='log_probabilities', but {off}; {hint}")
        return cast(FloatArray, numbers.exp().numpy())
    if found == "log_probabilities":
        raise UserError("kind='probabilities', but the rows are log-probabilities: say kind='log_probabilities'")
    if bool((numbers < 0).any()):
        raise UserError(
            f"kind='probabilities', but a row holds {float(numbers.min()):.3g}, so that these are logits: softmax them, "
            "or say kind='logits'"
        )
    if found != "probabilities":
        raise UserError(
            f"predicted rows must sum to 1; one sums to {_worst(numbers.sum(-1)):.4g}: softmax them, or say kind='logits'"
        )
    return cast(FloatArray, numbers.numpy())


def _recognized(numbers: Tensor) -> Kind:
    """What rows (T, V) look like."""
    if bool((numbers >= 0).all()) and bool(((numbers.sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        return "probabilities"
    if bool((numbers <= SUM_TOLERANCE).all()) and bool(((numbers.exp().sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        return "log_probabilities"
    return "logits"


def _worst(sums: Tensor) -> float:
    """The sum that is furthest from 1."""
    return float(sums[(sums - 1).abs().argmax()])


# --- What a model sees: it is asked. ---


def _probe(one: Given, instances: Instances) -> None:
    """Refuses a model whose predictions depend on what they predict or on what follows, on chance, or on their batch.

    The longest instance is changed from a place on, at `PROBES` places.

    Raises:
        UserError: The fault, in one line.
    """
    longest = int(instances.lengths.argmax())
    tokens = instances.tokens[longest : longest + 1, : instances.lengths[longest]]
    length = tokens.shape[1]
    count = max(1, min(PROBES, rows_at_once(one.io, length, PROBES + 1) - 1))
    places = np.unique(np.linspace(0, length - 1, count).round().astype(int))
    alone = one.predict(tokens)
    if _changed(alone, one.predict(tokens)).any():
        raise UserError(
            f"the {one.what} gives other predictions when it is asked again: it is random, or keeps something"
        )
    together = one.predict(np.concatenate([tokens, *(_changed_from(tokens, place, one.io) for place in places)]))
    if _changed(alone, together[:1]).any():
        raise UserError(f"the {one.what}'s predictions of an instance depend on the others in its batch")
    reach = []
    for place, rows in zip(places, together[1:], strict=True):
        differs = _changed(alone[0], rows)
        if differs.any():
            reach.append((int(differs.argmax()) - int(place), int(place)))
    if not reach:
        return
    least, place = min(reach)
    if least < 0:
        raise UserError(
            f"the {one.what} sees the future: changing token {place} changes the prediction of token {place + least}"
        )
    if least == 0:
        raise UserError(_sees_itself(one, instances))
    if least == 2 and len(reach) > 2:
        raise UserError(_late(one))


def _sees_itself(one: Given, instances: Instances) -> str:
    """Why row t changes with token t: the rows are one place early, or copies."""
    if one.predicts == "this" and _fits_next(one, instances[:64]):
        return _early(one)
    hint = "; if row t is of token t + 1, say predicts='next'" if one.predicts == "this" else ""
    return f"the {one.what} sees the token that it predicts: changing token t changes the prediction of token t itself{hint}"


def _fits_next(one: Given, instances: Instances) -> bool:
    """Whether rows fit the next token better than their own; for vectors whether they are nearer to it."""
    rows, tokens, scored = one.predict(instances.tokens), instances.tokens, instances.scored
    if tokens.ndim == 3:
        wanted = tokens[..., -rows.shape[-1] :].astype(np.float64)
        gaps = [((rows[b, t] - wanted[b, t + step]) ** 2).mean() for step, (b, t) in _next_and_own(scored)]
        return bool(gaps[0] < gaps[1])
    logs = _cautious_log(rows)
    found = [logs[b, t, tokens[b, t + step].astype(np.int64)].mean() for step, (b, t) in _next_and_own(scored)]
    return bool(found[0] > found[1])


def _next_and_own(scored: NDArray[np.bool_]) -> list[tuple[int, tuple[Any, ...]]]:
    """How far the token is from its row, and the rows, whose next token and whose own token are scored."""
    return [(1, np.nonzero(scored[:, 1:])), (0, np.nonzero(scored))]


def _cautious_log(rows: FloatArray) -> FloatArray:
    """The logarithm of rows (..., V), a tenth of each spread evenly. Zeros then do not outweigh everything else."""
    return cast(FloatArray, np.log(0.9 * rows + 0.1 / rows.shape[-1]))


def _early(one: Given) -> str:
    return f"predictions are one place early: the {one.what}'s row t fits token t + 1 better than token t; say predicts='next'"


def _late(one: Given) -> str:
    hint = "say predicts='this'" if one.predicts == "next" else "shift the tokens only once"
    return (
        f"predictions are one place late: the {one.what} does not use the token just before the one it predicts; {hint}"
    )


def _changed_from(tokens: NDArray[Any], place: int, io: IO) -> NDArray[Any]:
    """(1, L) tokens that differ at `place`, and behind it are drawn anew."""
    changed, rng = tokens.copy(), np.random.default_rng(place)
    if isinstance(io, VectorIO):
        changed[:, place:] += rng.normal(size=changed[:, place:].shape).astype(changed.dtype)
    else:
        changed[:, place:] = rng.integers(0, io.vocab_size, changed[:, place:].shape)
        changed[:, place] = (tokens[:, place].astype(np.int64) + 1) % io.vocab_size
    return changed


def _changed(one: FloatArray, other: FloatArray) -> NDArray[np.bool_]:
    """Which rows differ: (..., L, V) -> (..., L)."""
    peak = np.maximum(np.abs(one).max(-1), np.abs(other).max(-1))
    return cast(NDArray[np.bool_], np.abs(one - other).max(-1) > PROBE_TOLERANCE * np.maximum(peak, 1e-12))


# --- What an array has seen: it is weighed. ---


class _Evidence:
    """Sums over scored tokens that show whether predictions are honest, and whether they are shifted.

    Let q be the prediction of a token x that was drawn from the truth p. If q was made without x, then q(x) has the mean
    sum_v p(v) q(v), whatever q is. The sums of q(x) less this mean are a martingale. A predictor that has seen x, or what
    follows from x, gives it more.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.excess = {shift: np.zeros(2) for shift in (-1, 0, 1)}
        """By shift: the sum of q(x) less its mean, and the variance of this sum. Row t + shift is taken for token t."""
        self.gain = {shift: np.zeros(3) for shift in (-1, 1)}
        """By shift: how much higher log q(x) is than without it, as number, sum, and sum of squares."""
        self.log_likelihood = np.zeros(3)
        """Of the shifts -1, 0 and 1."""

    def add(self, rows: FloatArray, instances: Instances) -> None:
        """Takes the predictions (B, L, V) of some instances."""
        if isinstance(self.task.io, VectorIO):
            return
        tokens = instances.tokens.astype(np.int64)
        scored = instances.scored
        if self.task.knows_truth:
            truth = self.task.truth(instances)
            for shift in self.excess:
                at, beside = _beside(scored, shift)
                q, p, x = rows[beside], truth[at], tokens[at]
                mean = (p * q).sum(-1)
                given_x = np.take_along_axis(q, x[:, None], -1)[:, 0]
                self.excess[shift] += (given_x - mean).sum(), np.maximum((p * q**2).sum(-1) - mean**2, 0.0).sum()
        inner = scored.copy()
        inner[:, 0] = inner[:, -1] = False
        inner[:, 1:-1] &= scored[:, :-2] & scored[:, 2:]
        b, t = np.nonzero(inner)
        logs = [_cautious_log(rows)[b, t + shift, tokens[b, t]] for shift in (-1, 0, 1)]
        self.log_likelihood += [part.sum() for part in logs]
        for shift, part in ((-1, logs[0]), (1, logs[2])):
            difference = part - logs[1]
            self.gain[shift] += len(difference), difference.sum(), (difference**2).sum()

    def judge(self, one: Given) -> None:
        """Refuses predictions that have seen what they predict, and an array that is shifted by one place.

        Raises:
            UserError: The fault, in one line.
        """
        if one.rows is not None:
            if self._better(-1):
                raise UserError(
                    _early(one)
                    if one.predicts == "this"
                    else (
                        "predictions are two places early: the array's row t fits token t + 2 better than token t + 1"
                    )
                )
            if self._better(1) and self.task.knows_truth and abs(self.z(1)) < LARGEST_Z / 2 and self.excess[1][1] > 1:
                hint = "say predicts='this'" if one.predicts == "next" else "shift the tokens only once"
                own, before = ("t + 1", "t") if one.predicts == "next" else ("t", "t - 1")
                raise UserError(
                    f"predictions are one place late: the array's row t fits token {before} better than token {own}, "
                    f"without having seen it; {hint}"
                )
        if self.task.knows_truth and self.z(0) > LARGEST_Z:
            raise UserError(
                f"the {one.what} has seen the tokens that it predicts: it gives them {self.z(0):.0f} standard errors more "
                "probability than the truth allows"
            )

    def z(self, shift: int) -> float:
        """The excess over what honest predictions have, in standard errors. 1 is added to the variance for few tokens."""
        excess, variance = self.excess[shift]
        return float(excess / math.sqrt(variance + 1.0))

    def _better(self, shift: int) -> bool:
        """Whether predictions fit the tokens much better at another shift, and better than a guess."""
        number, total, squares = self.gain[shift]
        if number < 2:
            return False
        mean = total / number
        error = math.sqrt(max(squares / number - mean**2, 0.0) / number)
        guess = -math.log(self.task.io.vocab_size) * number
        best = self.log_likelihood[shift + 1] >= max(guess, self.log_likelihood.max())
        return bool(best) and mean > LEAST_GAIN and mean > LARGEST_Z * error


def _beside(scored: NDArray[np.bool_], shift: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Places of scored tokens, and those of the rows at a shift, where both are scored."""
    b, t = np.nonzero(scored)
    inside = (t + shift >= 0) & (t + shift < scored.shape[1])
    b, t = b[inside], t[inside]
    both = scored[b, t + shift]
    return (b[both], t[both]), (b[both], t[both] + shift)
