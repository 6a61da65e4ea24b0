"""The contract of architectures. Each check is a function that returns what is wrong, or None.

`regbench run` runs `options_round_trip`, `SCORABLE` and `trains` before it trains. `regbench check` runs all of `CONTRACT`, and
the tests run it on every built-in architecture.
"""

from __future__ import annotations

import numpy as np
import safetensors.torch
import torch
from pydantic_core import PydanticSerializationError
from torch import Tensor

from regbench.checks.contract import Check, NotApplicable
from regbench.checks.subject import (
    BORDERS,
    CAUSAL_TOLERANCE,
    LENGTH_TOLERANCE,
    Subject,
    depends_on_length,
    differ,
    finite_output,
    sees_future,
)
from regbench.checks.training import overfits, trains
from regbench.data.instances import Instances
from regbench.models.backbone import Backbone, held_bytes
from regbench.models.model import Model, shift_in, token_tensor
from regbench.training.checkpoint import packed
from regbench.utils.errors import UserError, explain_validation

STREAM_TOLERANCE = 1e-4
"""As `TOLERANCE`, between the parallel and the recurrent form in float32: they sum in different orders."""

TRAINED_TOLERANCE = 1e-3
"""As `TOLERANCE`, for a trained model: a wrong refusal costs most there. A leak this small moves no score. Hyena has 1.4e-6."""


EVERY_PLACE = 160
"""Up to this length every token is changed in turn: a form that works in chunks may leak at the end of a chunk alone."""

POSITIONS_AT_ONCE = 8192
"""Of changed sequences that are read together, so that memory stays small."""


def shape(subject: Subject) -> str | None:
    """Logits are (B, L, V), at length 1 too."""
    model, tokens = subject.model(), subject.tokens()
    for part in (tokens, tokens[:, :1]):
        wanted, out = (*part.shape[:2], subject.io.width), model(part)
        if not isinstance(out, Tensor):
            hint = "; take its first, with [0]" if isinstance(out, tuple | list) and out else ""
            return f"it returns {type(out).__name__}, not a tensor {wanted}{hint}"
        if out.shape != wanted:
            return f"it returns the shape {tuple(out.shape)}, not {wanted}"
    return None


def finite(subject: Subject) -> str | None:
    """No NaN or infinity, also at length 1, with all tokens equal, and at the longest length of the task."""
    model, tokens = subject.model(), subject.tokens()
    longest = subject.tokens(1, length=None)
    cases = {
        f"length {tokens.shape[1]}": tokens,
        "length 1": tokens[:, :1],
        "all tokens equal": torch.zeros_like(tokens),
        f"the longest length, {longest.shape[1]}": longest,
    }
    for name, case in cases.items():
        if not model(case).isfinite().all():
            return f"it returns NaN or infinity at {name}"
    return None


def causal(subject: Subject) -> str | None:
    """Changing or leaving out token t changes no logits at or before t: those of position t predict token t itself."""
    model, tokens = subject.moved(), subject.tokens(1, length=None)
    finite_output(model(tokens))
    return _sees_future(subject, model, tokens, CAUSAL_TOLERANCE)


def refuse_trained(subject: Subject, model: Model, instances: Instances, name: str) -> None:
    """Refuses a trained model that sees the future. Training can open a leak that the untrained weights had shut.

    The longest instance is asked for.
    """
    longest = int(instances.lengths.argmax())
    tokens = token_tensor(instances[longest : longest + 1].tokens, subject.device)
    with torch.no_grad():
        fault = _sees_future(subject, model.eval(), tokens, TRAINED_TOLERANCE)
    if fault:
        raise UserError(f"architecture '{name}' cannot be scored: once trained, {fault}")


def _sees_future(subject: Subject, model: Model, tokens: Tensor, tolerance: float) -> str | None:
    """How a model sees the future in one sequence, (1, L), or None. It is asked of the first `EVERY_PLACE` tokens, and of all.

    Up to the length `EVERY_PLACE` it is asked at each place, above it at 32 places, spread evenly, and at `BORDERS`.
    """
    length = tokens.shape[1]
    spread = {*np.linspace(0, length - 1, 32).round().astype(int).tolist(), *BORDERS} & set(range(length))
    for part in (tokens[:, :EVERY_PLACE], tokens) if length > EVERY_PLACE else (tokens,):
        before = model(part)
        if not before.isfinite().all():
            return None  # `finite` reports it
        if differ(before, model(part), tolerance):
            return "the same input gives different outputs: it is random, or keeps something from one call to the next"
        places = spread if part.shape[1] > EVERY_PLACE else range(part.shape[1])
        at_once = max(1, POSITIONS_AT_ONCE // part.shape[1])
        if leak := sees_future(model, part, subject.io, tolerance, places, at_once=at_once):
            # The backbone shifts for a mixer.
            shifts_itself = leak.prediction == leak.token and not isinstance(model, Backbone)
            hint = "; shift its inputs: regbench.shift_in(tokens, io.separator)" if shifts_itself else ""
            return f"it sees the future: {leak}{hint}"
    if leak := depends_on_length(model, tokens, (length + 1) // 2, LENGTH_TOLERANCE):
        return f"it sees the future: {leak}; the length of the input must not matter"
    return None


def batch_independent(subject: Subject) -> str | None:
    """A sequence is predicted the same whatever shares its batch."""
    model, tokens = subject.moved(), subject.tokens()
    if differ(finite_output(model(tokens))[:1], model(tokens[:1])):
        return "a sequence's prediction depends on the others in its batch"
    return None


def state_size(subject: Subject) -> str | None:
    """`state_bytes` is a whole number of bytes, or None. `streams` compares it with the real state."""
    claimed = subject.model().state_bytes()
    if claimed is None or (type(claimed) is int and claimed >= 0):
        return None
    return f"its state_bytes gives {claimed!r} ({type(claimed).__name__}), not a whole number of bytes, or None"


def deterministic(subject: Subject) -> str | None:
    """One seed gives one model, another seed another model. The same input gives the same output to the bit."""
    tokens = subject.tokens()
    first, again, other = (finite_output(subject.model(seed)(tokens)) for seed in (0, 0, 1))
    if not torch.equal(first, again):
        return "two models made under one seed differ"
    model = subject.model()
    if not torch.equal(model(tokens), model(tokens)):
        return "the same input gives different outputs"
    return None if not torch.equal(first, other) else "models made under different seeds are the same"


def streams(subject: Subject) -> str | None:
    """The recurrent form predicts the same as the parallel form, from a new state too. `state_bytes` is the size of its state."""
    model, tokens = subject.moved(), subject.tokens(2, length=None)
    claimed = model.state_bytes()
    trust = "" if claimed is None else f"; its {claimed} bytes of state cannot be checked"
    if not hasattr(model, "step"):
        raise NotApplicable(f"has no recurrent form{trust}")
    try:
        state = model.init_state(len(tokens))  # type: ignore[operator]
    except UserError:
        raise NotApplicable(f"has no recurrent form{trust}") from None
    whole, inputs, held = finite_output(model(tokens)), shift_in(tokens, subject.io.separator), [0]
    for t in range(tokens.shape[1]):
        logits, state = model.step(inputs[:, t], state)  # type: ignore[operator]
        if differ(whole[:, t], logits, STREAM_TOLERANCE):
            apart = float((whole[:, t] - logits).abs().max())
            return f"its recurrent form differs from its parallel form at position {t}, by {apart:.2g} in logits"
        held.append(held_bytes(state) // len(tokens))
    logits, _ = model.step(inputs[:, 0], model.init_state(len(tokens)))  # type: ignore[operator]
    if differ(whole[:, 0], logits, STREAM_TOLERANCE):
        return "its second stream begins with what the first left: init_state must make a new state each time"
    grows = held[-1] != held[len(held) // 2]  # e.g. a window that is not full yet, which may end at what is claimed
    if claimed is not None and (held[-1] > claimed or (held[-1] < claimed and not grows)):
        return f"it claims {claimed} bytes of state for a sequence, and after {tokens.shape[1]} tokens holds {held[-1]}"
    return None


def saves(subject: Subject) -> str | None:
    """Its weights can be saved as safetensors. A model that loads them gives the same outputs to the bit."""
    model, tokens = subject.model(), subject.tokens()
    stored = packed(model.state_dict())
    loaded = subject.model(seed=1)
    loaded.load_state_dict(safetensors.torch.load(stored))
    if torch.equal(finite_output(model(tokens)), loaded(tokens)):
        return None
    return "a model loaded from its saved weights predicts otherwise"


def options_round_trip(subject: Subject) -> str | None:
    """Its options survive being written as JSON and read back."""
    kind = type(subject.options)
    try:
        written = subject.options.model_dump_json()
    except PydanticSerializationError as error:
        return f"its options cannot be written as JSON: {str(error).splitlines()[0]}"
    with explain_validation("its options cannot be read back from JSON", kind.model_fields):
        again = kind.model_validate_json(written)
    return None if again == subject.options else f"its options come back from JSON as {again}"


def compiles(subject: Subject) -> str | None:
    """It works under torch.compile, or declares `compiles = False`. It is traced and not lowered: no compiler is needed."""
    if not subject.cls.compiles:
        raise NotApplicable("declares that it does not")
    model, tokens = subject.model(), subject.tokens()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    return (
        "under torch.compile it predicts otherwise" if differ(finite_output(model(tokens)), compiled(tokens)) else None
    )


SCORABLE: tuple[Check, ...] = (shape, finite, state_size, causal, batch_independent)
"""What a score needs. Run in float32, in which models are scored."""
CONTRACT: tuple[Check, ...] = (
    *SCORABLE,
    trains,
    deterministic,
    streams,
    saves,
    options_round_trip,
    compiles,
    overfits,
)
"""Every check, in this order."""
