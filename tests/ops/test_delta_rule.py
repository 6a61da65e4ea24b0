"""The delta rule: the fast implementations against the naive one, and all against outside witnesses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import use_backend
from regbench.ops.delta_rule import delta_rule
from regbench.utils.errors import UserError

FAST = ["cpu", "chunked"]
EXACT = [pytest.param("cpu", marks=pytest.mark.ci), "chunked"]
"""For tests in float64, in which the kernels are compiled once more."""
FORMS = [*EXACT, "naive"]
KINDS = ["delta", "positions", "channels", "general", "general-channels"]
"""What the correction is, and what decays: the delta rule alone, with a decay of each position, of each channel; a and b."""


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    """Deterministic mode fills `torch.empty` with NaN, so a place that is never written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None = None
    log_decay: Tensor | None = None
    initial_state: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None

    def given(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(None if t is None else t.detach().to(dtype).requires_grad_() for t in self))

    def cut(self, cuts: list[int]) -> Iterator[Inputs]:
        """Pieces of time, all with the first state."""
        pieces = [None if t is None or t is self.initial_state else t.split(cuts, 2) for t in self]
        for i in range(len(cuts)):
            yield Inputs(*(None if p is None else p[i] for p in pieces))._replace(initial_state=self.initial_state)


def make(shape: tuple[int, int, int, int, int], kind: str, state: bool = True, strided: bool = False) -> Inputs:
    """Random inputs in float64 for B, H, L, K, V. `strided`: cut from wider tensors, heads inside, as in a model."""
    batch, heads, length, width, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(channels: int) -> Tensor:
        size = (batch, length, heads, channels) if strided else (batch, heads, length, channels)
        drawn = torch.randn(*size, dtype=torch.float64, generator=generator)
        return drawn.transpose(1, 2) if strided else drawn

    q, k, v, a, b, g = (normal(c) for c in (width, width, dim, width, width, width))
    k, a, b = (F.normalize(x, dim=-1) for x in (k, a, b))
    decays = {"delta": None, "general": F.logsigmoid(g[..., 0]), "positions": F.logsigmoid(g[..., 0])}
    general = kind.startswith("general")
    tensors = [
        *(q, k, v),
        None if general else 2 * normal(1)[..., 0].sigmoid(),
        decays.get(kind, F.logsigmoid(g)),
        torch.randn(batch, heads, width, dim, dtype=torch.float64, generator=generator) if state else None,
        *((a, b) if general else (None, None)),
    ]
    return Inputs(*(None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors))


def gradients(outputs: tuple[Tensor, Tensor], inputs: Inputs) -> list[Tensor]:
    """z, the final state, and the gradient of every input for upstream gradients of both."""
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(o.shape, dtype=torch.float64, generator=generator).to(o) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs.given(), upstream)]


def everything(inputs: Inputs, backend: str) -> list[Tensor]:
    return gradients(delta_rule(*inputs, backend=backend), inputs)


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal to `tolerance` times the largest entry of each tensor."""
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape
        scale = max(float(b.detach().abs().max()), 1e-30)
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale, msg=lambda m, place=place: f"{place}: {m}")


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 65, 127])
def test_fast_is_naive(form: str, kind: str, length: int) -> None:
    inputs = make((2, 3, length, 5, 7), kind)
    assert_same(everything(inputs, form), everything(inputs, "naive"), 1e-11)


@pytest.mark.ci
@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 1, 16, 32), (1, 2, 8, 33), (2, 2, 1, 65), (1, 1, 256, 1)])
def test_widths(form: str, kind: str, sizes: tuple[int, int, int, int]) -> None:
    batch, heads, width, dim = sizes
    inputs = make((batch, heads, 40, width, dim), kind)
    assert_same(everything(inputs, form), everything(inputs, "naive"), 1e-11)


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_options_and_layouts(form: str, kind: str, state: bool, strided: bool) -> None:
    inputs = make((2, 3, 37, 4, 6), kind, state, strided)
    assert inputs.q.is_contiguous() != strided
    assert_same(everything(inputs, form), everything(inputs, "naive"), 1e-11)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 65])
def test_float32(form: str, kind: str, length: int) -> None:
    """Against naive in float64. Without decay an error stays in the state; corrections with a and b alone may let it grow."""
    inputs = make((2, 3, length, 8, 16), kind)
    exact = [tensor.float() for tensor in everything(inputs, "naive")]
    assert_same(everything(inputs.to(torch.float32), form), exact, 2e-5)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_computed_in_float32(form: str, kind: str, autocast: bool) -> None:
    inputs = make((2, 2, 45, 4, 6), kind).to(torch.bfloat16)
    exact, exact_state = delta_rule(*inputs.to(torch.float32), backend="naive")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        z, state = delta_rule(*inputs, backend=form)
    assert (z.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(z, exact.bfloat16(), rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(state, exact_state, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
@pytest.mark.parametrize("kind", ["positions", "channels"])
@pytest.mark.parametrize("case", ["strong", "mixed", "shut"])
def test_strong_decay(form: str, dtype: torch.dtype, kind: str, case: str) -> None:
    """Log decays of -50 and less, where quotients of running products would be 0 / 0, also among decays close to 1."""
    inputs = make((2, 2, 70, 4, 6), kind)
    assert inputs.log_decay is not None
    strong = torch.full_like(inputs.log_decay, -torch.inf if case == "shut" else -50.0)
    often = torch.rand(strong.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    log_decay = strong if case == "strong" else torch.where(often, strong, -0.01)
    inputs = inputs._replace(log_decay=log_decay.detach().requires_grad_())
    exact = [tensor.to(dtype) for tensor in everything(inputs, "naive")]
    assert all(tensor.isfinite().all() for tensor in exact)
    assert_same(everything(inputs.to(dtype), form), exact, 1e-11 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(form: str, kind: str) -> None:
    inputs = make((1, 2, 35, 2, 3), kind)  # more than a chunk
    places = [place for place, tensor in enumerate(inputs) if tensor is not None]

    def call(*given: Tensor) -> tuple[Tensor, Tensor]:
        filled: list[Tensor | None] = [None] * len(inputs)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        return delta_rule(*filled, backend=form)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(call, inputs.given(), fast_mode=True)


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[1, 79], [32, 48], [40, 1, 39]])
def test_going_on_from_a_state(form: str, kind: str, cuts: list[int]) -> None:
    inputs = make((2, 2, 80, 4, 6), kind)
    pieces, state = [], inputs.initial_state
    for piece in inputs.cut(cuts):
        z, state = delta_rule(*piece._replace(initial_state=state), backend=form)
        pieces.append(z)
    assert state is not None
    assert_same(gradients((torch.cat(pieces, 2), state), inputs), everything(inputs, form), 1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_a_key_returns_the_value_that_was_written_last(form: str) -> None:
    """With beta = 1 and orthonormal keys the state is a table: a query by a key finds what was written there last."""
    keys = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    order = torch.tensor([0, 3, 5, 3, 1, 0, 2, 4, 4, 3])
    values = torch.arange(40, dtype=torch.float64).view(1, 1, 10, 4)
    k = keys[order].view(1, 1, 10, 6)
    _, state = delta_rule(k, k, values, beta=torch.ones(1, 1, 10, dtype=torch.float64), backend=form)
    last = torch.tensor([5, 4, 6, 9, 8, 2])
    torch.testing.assert_close(keys @ state[0, 0], values[0, 0, last], rtol=0, atol=1e-12)


@pytest.mark.ci
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_is_what_flash_linear_attention_computes(form: str, kind: str) -> None:
    """Its reference functions, in float32. That of the general form reads the state before the decay."""
    pytest.importorskip("einops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no GPU
        delta = pytest.importorskip("fla.ops.delta_rule.naive")
        gated = pytest.importorskip("fla.ops.gated_delta_rule.naive")
        kda = pytest.importorskip("fla.ops.kda.naive")
        general = pytest.importorskip("fla.ops.generalized_delta_rule.dplr.naive")
    inputs = make((2, 3, 45, 4, 6), kind).to(torch.float32)
    z, final = delta_rule(*inputs, backend=form)
    q, k, v, beta, g, state, a, b = inputs
    if kind.startswith("general"):
        assert a is not None
        assert g is not None
        g = g if g.dim() == 4 else g[..., None].expand(q.shape)
        expected, expected_final = general.dplr_recurrence(q * 2, k, v, a * g.exp(), b, g, state)
    elif kind == "delta":
        expected, expected_final = delta.delta_rule_recurrence(q * 2, k, v, beta, state)
    else:
        assert beta is not None
        assert g is not None
        inside = [x.transpose(1, 2) for x in (q, k, v, beta, g)]
        q, k, v, beta, g = inside
        others = {"scale": 1.0, "initial_state": state, "output_final_state": True}
        call = gated.naive_recurrent_gated_delta_rule if kind == "positions" else kda.naive_recurrent_kda
        expected, expected_final = call(q, k, v, beta=beta, g=g, **others)
        expected = expected.transpose(1, 2)
    torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final, expected_final, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", EXACT)
def test_later_inputs_do_not_matter(form: str) -> None:
    inputs = make((1, 2, 60, 4, 6), "channels")
    z, _ = delta_rule(*inputs, backend=form)
    for place in range(5):
        changed = inputs[place].detach().clone()  # type: ignore[union-attr]
        changed[:, :, 40:] *= 0.5
        other, _ = delta_rule(*inputs[:place], changed, *inputs[place + 1 :], backend=form)
        assert torch.equal(other[:, :, :40], z[:, :, :40])
        assert not torch.isclose(other[:, :, 40:], z[:, :, 40:]).all()


def test_same_bits_for_any_number_of_threads() -> None:
    inputs = make((3, 4, 70, 8, 40), "channels").to(torch.float32)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5, 64):
            torch.set_num_threads(threads)
            results.append(everything(inputs, "cpu"))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_grows_as_the_length(form: str, kind: str) -> None:
    """What waits for the backward pass, at twice the length, is twice as much."""

    def kept(length: int) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        inputs = make((1, 1, length, 8, 8), kind).to(torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = delta_rule(*inputs, backend=form)
        assert outputs[0].shape[2] == length
        return sum(storages.values())

    assert kept(2048) <= 2.1 * kept(1024)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0)])
def test_empty(form: str, kind: str, batch: int, length: int) -> None:
    inputs = make((batch, 2, length, 3, 4), kind)
    z, final = delta_rule(*inputs, backend=form)
    assert z.shape == (batch, 2, length, 4)
    assert inputs.initial_state is not None
    assert torch.equal(final, inputs.initial_state)


@pytest.mark.parametrize("wrong", ["q", "k", "v", "beta", "log_decay", "initial_state", "a", "b"])
def test_wrong_shapes(wrong: str) -> None:
    inputs = make((2, 3, 4, 5, 6), "general-channels" if wrong in ("a", "b") else "channels")
    tensor = getattr(inputs, wrong)
    broken = inputs._replace(**{wrong: torch.cat([tensor, tensor], -1)})
    # A wider q or v redefines K or V, and the next tensor is the one that no longer fits.
    named = {"q": "k", "v": "initial_state"}.get(wrong, wrong)
    with pytest.raises(UserError, match=rf"^delta_rule: {named} should have shape \([^\n]*, but has \([^\n]*\)$"):
        delta_rule(*broken)
    for name in ("q", "v"):
        with pytest.raises(UserError, match=f"{name} should have shape"):
            delta_rule(*inputs._replace(**{name: getattr(inputs, name)[0]}))
    with pytest.raises(UserError, match=r"log_decay should have shape \(2, 3, 4\)"):
        delta_rule(*inputs._replace(log_decay=torch.zeros(2, 3, 1)))


def test_bad_input_is_refused_in_one_line() -> None:
    wide = torch.zeros(1, 1, 2, 257)
    with pytest.raises(UserError, match="^delta_rule: a key width of 257 is above 256, the largest$"):
        delta_rule(wide, wide, wide, beta=torch.zeros(1, 1, 2))


def test_the_implementation_that_ran_is_on_record() -> None:
    inputs = make((1, 1, 3, 2, 2), "delta")
    for asked, ran in (("auto", "cpu"), ("chunked", "chunked"), ("naive", "naive")):
        with use_backend(asked) as record:
            delta_rule(*inputs.to(torch.float32))
        assert record == {"delta_rule": ran}
