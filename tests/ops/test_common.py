"""What holds of every op with a state or a kernel of its own: its precision, bits, memory, edges, record and refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from regbench.ops.attention import attention
from regbench.ops.backend import use_backend
from regbench.ops.delta_rule import delta_rule
from regbench.ops.linear_attention import linear_attention
from regbench.ops.long_conv import long_conv
from regbench.ops.ngram import ngram_head
from regbench.ops.ngram_counts import ngram_counts
from regbench.ops.selective_scan import selective_scan
from regbench.ops.wkv import WKVState, wkv
from regbench.utils.errors import UserError
from tests.helpers.tensors import assert_same, assert_same_bits_for_any_threads, bytes_kept
from tests.ops import test_attention as of_attention
from tests.ops import test_delta_rule as of_delta_rule
from tests.ops import test_linear_attention as of_linear_attention
from tests.ops import test_ngram as of_ngram
from tests.ops import test_selective_scan as of_scan
from tests.ops import test_wkv as of_wkv

pytestmark = pytest.mark.usefixtures("poison")


class Recurrence(NamedTuple):
    """An op that goes on from a state.

    Attributes:
        run: The op.
        make: Its inputs in float64 for a batch and a length.
        everything: Its outputs and all gradients, of inputs and a backend.
        rounding: How far float32 may be off, relative to the largest entry of each tensor.
    """

    run: Callable[..., Any]
    make: Callable[[int, int], Any]
    everything: Callable[[Any, str], list[Tensor]]
    rounding: float


def by_heads(module: Any, kind: str, batch: int, length: int) -> Any:
    return module.make((batch, 3, length, 8, 16), kind)


HEADS = {
    **{f"delta_rule-{kind}": (of_delta_rule, kind) for kind in of_delta_rule.KINDS},
    **{f"linear_attention-{decay}": (of_linear_attention, decay) for decay in of_linear_attention.DECAYS},
}
"""The module of the tests, and the kind, of ops on q, k and v (B, H, L, ...)."""
RECURRENCES = {
    **{
        name: Recurrence(module.OP, partial(by_heads, module, kind), module.everything, module.ROUNDING)
        for name, (module, kind) in HEADS.items()
    },
    "selective_scan": Recurrence(selective_scan, lambda b, n: of_scan.make(b, n, 33, 7), of_scan.everything, 3e-6),
    "wkv": Recurrence(wkv, lambda b, n: of_wkv.make(b, n, 5), of_wkv.everything, 1e-5),
}
every = pytest.mark.parametrize("name", RECURRENCES)
fast = pytest.mark.parametrize("form", ["cpu", "chunked"])
exactly = pytest.mark.parametrize("form", of_delta_rule.EXACT)


LENGTHS = {
    "delta_rule": [(2, 3, n, 5, 7) for n in (1, 2, 31, 32, 33, 65, 127)],
    "linear_attention": [(2, 3, n, 5, 7) for n in (1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 200)],
}
WIDTHS = {
    "delta_rule": [(1, 1, 40, 1, 1), (3, 1, 40, 16, 32), (1, 2, 40, 8, 33), (2, 2, 40, 1, 65), (1, 1, 40, 256, 1)],
    "linear_attention": [(1, 1, 70, 1, 1), (3, 1, 70, 16, 32), (1, 2, 70, 8, 33), (2, 2, 70, 1, 65), (1, 1, 70, 33, 1)],
}
"""Shapes (B, H, L, K, V)."""


def of_each(shapes: dict[str, list[Any]]) -> list[Any]:
    return [(name, shape) for name in HEADS for shape in shapes[name.partition("-")[0]]]


def check_naive(name: str, form: str, shape: tuple[int, ...], *options: bool) -> Any:
    """Outputs, states and all gradients in float64 are those of the naive implementation."""
    module, kind = HEADS[name]
    inputs = module.make(shape, kind, *options)
    assert_same(module.everything(inputs, form), module.everything(inputs, "naive"), 1e-11)
    return inputs


@exactly
@pytest.mark.parametrize(("name", "shape"), of_each(LENGTHS))
def test_fast_is_naive(name: str, form: str, shape: tuple[int, ...]) -> None:
    check_naive(name, form, shape)


@pytest.mark.ci
@exactly
@pytest.mark.parametrize(("name", "shape"), of_each(WIDTHS))
def test_widths(name: str, form: str, shape: tuple[int, ...]) -> None:
    check_naive(name, form, shape)


@exactly
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_options_and_layouts(name: str, form: str, state: bool, strided: bool) -> None:
    inputs = check_naive(name, form, (2, 3, 65 if name.startswith("linear") else 37, 4, 6), state, strided)
    assert inputs.q.is_contiguous() != strided


DECAYING = [name for name in HEADS if name.endswith(("heads", "positions", "channels")) and "general" not in name]


@fast
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize("case", ["strong", "mixed", "shut"])
@pytest.mark.parametrize(("length", "state"), [(100, True), (40, False)], ids=["chunks", "pairs"])
def test_strong_decay(name: str, form: str, dtype: torch.dtype, case: str, length: int, state: bool) -> None:
    """Log decays of -50 and less, where quotients of running products would be 0 / 0, also among decays close to 1."""
    module, kind = HEADS[name]
    inputs = module.make((2, 2, length, 4, 6), kind, state)
    strong = torch.full_like(inputs.log_decay, -torch.inf if case == "shut" else -50.0)
    often = torch.rand(strong.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    often.view(-1)[0] = True  # also where there are few
    log_decay = strong if case == "strong" else torch.where(often, strong, -0.01)
    inputs = inputs._replace(log_decay=log_decay.detach().requires_grad_())
    exact = [tensor.to(dtype) for tensor in module.everything(inputs, "naive")]
    assert all(tensor.isfinite().all() for tensor in exact)
    assert_same(module.everything(inputs.to(dtype), form), exact, 1e-11 if dtype == torch.float64 else 1e-5)


@every
@fast
@pytest.mark.parametrize("length", [1, 65, 200])
def test_float32(name: str, form: str, length: int) -> None:
    """Against naive in float64: without decay an error stays in the state; corrections with a and b alone may let it grow."""
    op = RECURRENCES[name]
    inputs = op.make(2, min(length, 65) if name.startswith("delta_rule") else length)
    exact = [tensor.float() for tensor in op.everything(inputs, "naive")]
    assert_same(op.everything(inputs.to(torch.float32), form), exact, op.rounding)


@every
@fast
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_computed_in_float32(name: str, form: str, autocast: bool) -> None:
    op = RECURRENCES[name]
    inputs = op.make(2, 45).to(torch.bfloat16)
    exact, exact_state = op.run(*inputs.to(torch.float32), backend="naive")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out, state = op.run(*inputs, backend=form)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, exact.bfloat16(), rtol=1e-2, atol=1e-4)
    if isinstance(state, Tensor):  # that of WKV has units of its own
        assert state.dtype == torch.float32
        torch.testing.assert_close(state, exact_state, rtol=1e-3, atol=1e-4)


@every
@pytest.mark.parametrize("form", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0)])
def test_empty(name: str, form: str, batch: int, length: int) -> None:
    op = RECURRENCES[name]
    inputs = op.make(batch, length).to(torch.float32)
    out, final = op.run(*inputs, backend=form)
    whole, _ = op.run(*op.make(2, 3).to(torch.float32))
    sequences_of_heads = whole.dim() == 4
    assert out.shape[0] == batch
    assert out.shape[2 if sequences_of_heads else 1] == length
    assert out.shape[-1] == whole.shape[-1]
    first = inputs.state if isinstance(final, WKVState) else inputs.initial_state
    if isinstance(final, Tensor):
        assert torch.equal(final, first)
    elif length == 0:
        assert all(torch.equal(a, b) for a, b in zip(final, first, strict=True))


@every
@fast
def test_memory_grows_as_the_length(name: str, form: str) -> None:
    """What waits for the backward pass, at twice the length, is twice as much."""
    op = RECURRENCES[name]
    short, long = (bytes_kept(lambda n=n: op.run(*op.make(1, n).to(torch.float32), backend=form)) for n in (1024, 2048))
    assert long <= 2.1 * short


NGRAM = of_ngram.Case(torch.arange(1200).view(4, 300) % 7, 2, 1)
KERNELS: dict[str, Callable[[], list[Tensor] | tuple[Tensor, ...]]] = {
    "attention": lambda: of_attention.everything(of_attention.leaves(2, 3, 50, (8, 8), torch.float32), "cpu"),
    "delta_rule": lambda: of_delta_rule.everything(
        of_delta_rule.make((3, 4, 70, 8, 40), "channels").to(torch.float32), "cpu"
    ),
    "linear_attention": lambda: of_linear_attention.everything(
        of_linear_attention.make((3, 4, 130, 8, 40), "channels").to(torch.float32), "cpu"
    ),
    "ngram_head": lambda: of_ngram.run(NGRAM, NGRAM.hidden(64, torch.float32), "cpu"),
    "selective_scan": lambda: of_scan.everything(of_scan.make(3, 130, 100, 16).to(torch.float32), "cpu"),
    "wkv": lambda: of_wkv.everything(of_wkv.make(3, 130, 100).to(torch.float32), "cpu"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_same_bits_for_any_number_of_threads(name: str) -> None:
    assert_same_bits_for_any_threads(KERNELS[name], (1, 2, 5, 64))


X, TOKENS = torch.randn(1, 1, 3, 2), torch.zeros(1, 3, dtype=torch.int64)
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "attention": (lambda: attention(X, X, X), "cpu"),
    "delta_rule": (lambda: delta_rule(X, X, X, torch.ones(1, 1, 3)), "cpu"),
    "linear_attention": (lambda: linear_attention(X, X, X), "cpu"),
    "long_conv": (lambda: long_conv(X[0], torch.ones(2, 3)), "fft"),
    "ngram_counts": (lambda: ngram_counts(TOKENS, 2, 1), "cpu"),
    "ngram_head": (lambda: ngram_head(TOKENS, X[0]), "cpu"),
    "selective_scan": (lambda: selective_scan(X[0], X[0].exp(), -torch.ones(2, 2), X[0], X[0]), "cpu"),
    "wkv": (lambda: wkv(torch.ones(2), torch.ones(2), X[0], X[0]), "cpu"),
}
"""A call of each op, and the implementation that `auto` takes for it on a CPU."""


@pytest.mark.parametrize("name", CALLS)
def test_what_ran_is_on_record(name: str) -> None:
    call, best = CALLS[name]
    for asked, ran in (("auto", best), ("naive", "naive"), (f"{name}=naive", "naive"), (f"{name}=auto", best)):
        with use_backend(asked) as record:
            call()
        assert record == {name: ran}


WRONG = {
    "delta_rule-channels": {"q": "k", "k": "k", "v": "initial_state", "beta": "beta", "log_decay": "log_decay"},
    "delta_rule-general-channels": {"a": "a", "b": "b"},
    "linear_attention-channels": {"q": "k", "k": "k", "v": "initial_state", "log_decay": "log_decay"},
    "selective_scan": {"x": "delta", "delta": "delta", "A": "B", "B": "B", "C": "C", "D": "D"},
    "wkv": {"w": "w", "u": "u", "v": "v"},
}
"""The tensor that is made wider, and the one that is named: one whose width others must have leaves the next without a fit."""


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, places in WRONG.items() for wrong in places])
def test_wrong_shapes(name: str, wrong: str) -> None:
    inputs = RECURRENCES[name].make(2, 4)
    tensor = getattr(inputs, wrong)
    op, named = name.partition("-")[0], WRONG[name][wrong]
    with pytest.raises(UserError, match=rf"^{op}: {named} should have shape \([^\n]*, but has \([^\n]*\)$"):
        RECURRENCES[name].run(*inputs._replace(**{wrong: torch.cat([tensor, tensor], -1)}))


def test_wrong_shapes_of_others() -> None:
    with pytest.raises(UserError, match=r"attention: k should have shape \(1, 1, 3, 2\), but has"):
        attention(X, X.repeat(1, 1, 2, 1), X)
    with pytest.raises(UserError, match=r"wkv: state[.a-z]* should have shape"):
        wkv(torch.ones(2), torch.ones(2), X[0], X[0], WKVState.zeros(3, 3))
    with pytest.raises(UserError, match=r"log_decay should have shape \(1, 1, 3\)"):
        delta_rule(X, X, X, torch.ones(1, 1, 3), torch.zeros(1, 3, 1))
    for log_decay, shape in ((torch.zeros(2), r"\(1,\)"), (torch.zeros(1, 1, 5), r"\(1, 1, 3\)")):
        with pytest.raises(UserError, match=rf"^linear_attention: log_decay should have shape {shape}, but has"):
            linear_attention(X, X, X, log_decay)
