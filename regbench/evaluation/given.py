"""What a caller hands over to be scored: a module, a callable or an array, recognised and turned into distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regbench.models.model import CPU, Model, ModelPredictor, device_of, find_device, shift_in, token_tensor
from regbench.models.predictor import Predictor
from regbench.tasks.base import IO, Task, VectorIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, blaming, nearest

Predicts = Literal["this", "next"]
Kind = Literal["logits", "log_probabilities", "probabilities"]
KINDS = get_args(Kind)

SUM_TOLERANCE = 1e-3
"""The sum of a row of probabilities is 1 within this."""


@dataclass(frozen=True)
class Given:
    """What a caller hands over, as a `Predictor`."""

    what: str
    """"model", "module", "predictor", "callable" or "array"."""
    predicts: Predicts
    """"this": row t is the prediction of token t. "next": row t is that of token t + 1."""
    kind: Kind | None
    """What the numbers of a row are. None for vectors."""
    io: IO
    ask: Callable[[NDArray[Any]], Any] | None = None
    """Maps inputs (B, L) to rows (B, L, V) as the caller makes them. None of an array."""
    rows: NDArray[Any] | None = None
    """The rows of an array, (N, L, V). None of everything else."""
    module: nn.Module | None = None
    device: torch.device = CPU

    def predict(self, tokens: NDArray[Any]) -> FloatArray:
        """The predictions of tokens (B, L): row t is that of token t.

        A model of the next token is given what a model of regbench is given: a separator, then every token but the last.
        """
        assert self.ask is not None
        inputs = tokens
        if self.predicts == "next":
            inputs = shift_in(torch.from_numpy(np.asarray(tokens)), self.io.separator).numpy()
        with blaming(f"the {self.what} raises"):
            rows = self.ask(inputs)
        return self.distributions(as_array(rows, self.what), tokens.shape[:2])

    def distributions(
        self, rows: NDArray[Any], shape: tuple[int, ...], lengths: NDArray[Any] | None = None
    ) -> FloatArray:
        """Turns rows into distributions (B, L, V), or into vectors (B, L, D_out).

        Rows behind `lengths` need not be distributions, and become uniform.
        """
        width = self.io.width
        check_shape(rows, (*shape, width), self.what)
        real = np.ones(shape, bool) if lengths is None else np.arange(shape[1]) < lengths[:, None]
        _check_numbers(rows, real, self.kind)
        out = np.full(rows.shape, 1.0 / width)
        out[real] = _normalized(rows[real], self.kind)
        return out


def given(
    predictor: Any, task: Task, predicts: str | None, kind: str | None, device: str | torch.device | None = None
) -> Given:
    """Recognises what a caller hands over.

    "predicts" and "kind" are None where the predictor is one of regbench's own, which say it themselves.
    """
    io: IO = task.io
    vectors = isinstance(io, VectorIO)
    if isinstance(predictor, type) or not (
        callable(predictor) or isinstance(predictor, np.ndarray | Tensor | Predictor)
    ):
        what = type(predictor).__name__
        if isinstance(predictor, type):
            what = f"the class {predictor.__name__}, not an object of it"
        hint = "; a run is loaded by regbench.load(DIR)" if isinstance(predictor, str | Path) else ""
        raise UserError(
            f"a predictor is a module, a callable from tokens (B, L), or an array (N, L, V); this is {what}{hint}"
        )
    theirs = predictor.io if isinstance(predictor, Model) else io
    if (type(theirs), theirs.width) != (type(io), io.width):
        raise UserError(f"the model is for {_what_it_reads(theirs)}, and this task has {_what_it_reads(io)}")
    if predicts is not None and predicts not in get_args(Predicts):
        raise UserError(f"unknown predicts '{predicts}'{nearest(predicts, get_args(Predicts))}")
    if kind is not None and kind not in KINDS:
        raise UserError(f"unknown kind '{kind}'{nearest(kind, KINDS)}")
    if vectors and kind is not None:
        raise UserError(f"kind='{kind}' is for tokens; a prediction of vectors is the vector itself: leave kind out")
    known: Kind | None = None if vectors else "probabilities"
    if isinstance(predictor, Model):
        _check_said("predicts", predicts, "this")
        place = device_of(predictor)
        return Given(
            "model", "this", known, io, ModelPredictor(predictor, place).predict, module=predictor, device=place
        )
    if isinstance(predictor, Predictor) and not isinstance(predictor, nn.Module):
        _check_said("predicts", predicts, "this")
        _check_said("kind", kind, "probabilities")
        return Given("predictor", "this", known, io, predictor.predict, device=getattr(predictor, "device", CPU))
    if predicts is None:
        raise UserError(
            "say what a row predicts: predicts='next' (the token after it) or predicts='this' (its own token)"
        )
    if kind is None and not vectors:
        raise UserError(f"say what the numbers are: kind={', '.join(map(repr, KINDS[:-1]))} or {KINDS[-1]!r}")
    words: Any = {"predicts": predicts, "kind": kind, "io": io}
    if isinstance(predictor, np.ndarray | Tensor):
        return Given("array", rows=as_array(predictor, "array"), **words)
    if isinstance(predictor, nn.Module):
        place = device_of(predictor)
        return Given("module", ask=_asking(predictor, place), module=predictor, device=place, **words)
    try:
        place = torch.device(device or "cpu")
    except RuntimeError:
        place = find_device(str(device))  # it says which there are
    return Given("callable", ask=_asking(predictor, place), device=place, **words)


def _what_it_reads(io: IO) -> str:
    return f"vectors of {io.d_in} components" if isinstance(io, VectorIO) else f"{io.vocab_size} tokens"


def _check_said(name: str, said: str | None, is_so: str) -> None:
    """Refuses what is said of one of regbench's own predictors, if it is not so."""
    if said not in (None, is_so):
        raise UserError(f"{name}='{said}' is wrong: a predictor of regbench has {name}='{is_so}'")


# --- What the rows are. ---


def _asking(function: Callable[[Tensor], Any], device: torch.device) -> Callable[[NDArray[Any]], Any]:
    """Calls a module or a callable with tokens as a tensor, without gradients. Of several outputs `.logits` is taken."""

    def ask(inputs: NDArray[Any]) -> Any:
        with torch.no_grad():
            out = function(token_tensor(inputs, device))
        return getattr(out, "logits", out)

    return ask


def as_array(rows: Any, what: str) -> NDArray[Any]:
    if isinstance(rows, Tensor):
        with blaming(f"the {what} must give a tensor that can become an array: this one raises"):
            rows = rows.detach().cpu()  # of 16 and 8 bits NumPy knows but one
            rows = (rows.float() if rows.is_floating_point() and rows.itemsize < 4 else rows).numpy()
    if not isinstance(rows, np.ndarray):
        part = "['logits']" if isinstance(rows, dict) and "logits" in rows else "[0]" if isinstance(rows, tuple) else ""
        hint = f"; wrap it: lambda tokens: {what}(tokens){part}" if part else ""
        raise UserError(f"the {what} must give an array or a tensor (B, L, V), not {type(rows).__name__}{hint}")
    if not np.issubdtype(rows.dtype, np.floating):
        raise UserError(f"the {what} must give floating-point numbers, not {rows.dtype}")
    return rows


def check_shape(rows: NDArray[Any], shape: tuple[int, ...], what: str) -> None:
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
    # First float64: PyTorch takes neither long double nor another byte order.
    numbers = torch.from_numpy(np.ascontiguousarray(rows, np.float64))
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
                else ("log_softmax them in float32, or say kind='logits'")
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
            f"predicted rows must sum to 1; one sums to {_worst(numbers.sum(-1)):.4g}: softmax them in float32, or say "
            "kind='logits'"
        )
    return cast(FloatArray, numbers.numpy())


def _recognized(numbers: Tensor) -> Kind:
    if bool((numbers >= 0).all()) and bool(((numbers.sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        return "probabilities"
    if bool((numbers <= SUM_TOLERANCE).all()) and bool(((numbers.exp().sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        return "log_probabilities"
    return "logits"


def _worst(sums: Tensor) -> float:
    return float(sums[(sums - 1).abs().argmax()])
