"""Linear attention: the fast implementations against the naive one, and all against sums over pairs and a library."""

from __future__ import annotations

import importlib.util
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import use_backend
from regbench.ops.linear_attention import linear_attention
from regbench.utils.errors import UserError
from tests.helpers.tensors import assert_same, assert_same_bits_for_any_threads

pytestmark = pytest.mark.usefixtures("poison")

FAST = ["cpu", "chunked"]
EXACT = [pytest.param("cpu", marks=pytest.mark.ci), "chunked"]
"""For tests in float64, in which the kernels are compiled once more."""
BACKENDS = [*EXACT, "naive"]
DECAYS = ["none", "heads", "positions", "channels"]


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None = None
    initial_state: Tensor | None = None

    def given(self) -> list[Tensor]:
        return [tensor for tensor in self if tensor is not None]

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(None if t is None else t.detach().to(dtype).requires_grad_() for t in self))


def make(shape: tuple[int, int, int, int, int], decay: str, state: bool = True, strided: bool = False) -> Inputs:
    """Random inputs in float64 for B, H, L, K, V. `strided`: cut from wider tensors, heads inside, as in a model."""
    batch, heads, length, width, dim = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size: int) -> Tensor:
        if strided and len(size) > 1:
            b, h, n, *c = size
            return torch.randn(b, n, h, *c, 2, dtype=torch.float64, generator=generator)[..., 0].transpose(1, 2)
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    decays = {
        "none": None,
        "heads": F.logsigmoid(normal(heads)),
        "positions": F.logsigmoid(normal(batch, heads, length)),
        "channels": F.logsigmoid(normal(batch, heads, length, width)),
    }
    tensors = [
        normal(batch, heads, length, width),
        normal(batch, heads, length, width),
        normal(batch, heads, length, dim),
        decays[decay],
        normal(batch, heads, width, dim) if state else None,
    ]
    return Inputs(*(None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors))


def gradients(outputs: tuple[Tensor, Tensor], inputs: Inputs) -> list[Tensor]:
    """z, the final state, and the gradient of every input for upstream gradients of both."""
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(o.shape, dtype=torch.float64, generator=generator).to(o) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs.given(), upstream)]


def everything(inputs: Inputs, backend: str) -> list[Tensor]:
    return gradients(linear_attention(*inputs, backend=backend), inputs)


def by_pairs(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """ICLL Eq. 36-38 and 60-63: z_i is the sum of A_ij v_j over j <= i, and what is left of the initial state."""
    q, k, v, log_decay, state = inputs
    assert state is not None
    length = q.shape[2]
    if log_decay is None:
        log_decay = torch.zeros_like(q)
    elif log_decay.dim() == 1:
        log_decay = log_decay[None, :, None, None] * torch.ones_like(q)
    elif log_decay.dim() == 3:
        log_decay = log_decay[..., None] * torch.ones_like(q)
    b = log_decay.cumsum(2)
    past = torch.ones(length, length, dtype=torch.bool).tril()
    gaps = (b[:, :, :, None] - b[:, :, None]).masked_fill(~past[..., None], -torch.inf)
    scores = torch.einsum("bhik,bhjk,bhijk->bhij", q, k, gaps.exp())
    z = scores @ v + (q * b.exp()) @ state
    final = (k * (b[:, :, -1:] - b).exp()).mT @ v + b[:, :, -1].exp()[..., None] * state
    return z, final


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 200])
def test_fast_is_naive(backend: str, decay: str, length: int) -> None:
    inputs = make((2, 3, length, 5, 7), decay)
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-11)


@pytest.mark.ci
@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 1, 16, 32), (1, 2, 8, 33), (2, 2, 1, 65), (1, 1, 33, 1)])
def test_widths(backend: str, decay: str, sizes: tuple[int, int, int, int]) -> None:
    batch, heads, width, dim = sizes
    inputs = make((batch, heads, 70, width, dim), decay)
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-11)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("strided", [True, False])
def test_options_and_layouts(backend: str, decay: str, state: bool, strided: bool) -> None:
    inputs = make((2, 3, 65, 4, 6), decay, state, strided)
    assert inputs.q.is_contiguous() != strided
    assert_same(everything(inputs, backend), everything(inputs, "naive"), 1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strided", [True, False])
def test_a_decay_of_positions_is_one_for_all_channels(backend: str, strided: bool) -> None:
    inputs = make((2, 3, 65, 4, 6), "positions", strided=strided)
    assert inputs.log_decay is not None
    expanded = inputs._replace(log_decay=inputs.log_decay[..., None].expand(inputs.q.shape))
    expected = gradients(linear_attention(*expanded, backend=backend), inputs)
    assert_same(everything(inputs, backend), expected, 1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS)
def test_is_the_sum_over_pairs(backend: str, decay: str) -> None:
    inputs = make((2, 2, 50, 4, 6), decay)
    assert_same(everything(inputs, backend), gradients(by_pairs(inputs), inputs), 1e-11)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("length", [1, 65, 200])
def test_float32(backend: str, decay: str, length: int) -> None:
    """Against naive in float64."""
    inputs = make((2, 3, length, 8, 16), decay)
    exact = [tensor.float() for tensor in everything(inputs, "naive")]
    assert_same(everything(inputs.to(torch.float32), backend), exact, 1e-5)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_computed_in_float32(backend: str, decay: str, autocast: bool) -> None:
    inputs = make((2, 2, 65, 4, 6), decay).to(torch.bfloat16)
    exact, exact_state = linear_attention(*inputs.to(torch.float32), backend="naive")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        z, state = linear_attention(*inputs, backend=backend)
    assert (z.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(z, exact.bfloat16(), rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(state, exact_state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.ci)])
@pytest.mark.parametrize("decay", DECAYS[1:])
@pytest.mark.parametrize("case", ["strong", "mixed", "shut"])
def test_strong_decay(backend: str, dtype: torch.dtype, decay: str, case: str) -> None:
    """Log decays of -50 and less, where quotients of running products would be 0 / 0, also among decays close to 1."""
    inputs = make((2, 2, 100, 4, 6), decay)
    assert inputs.log_decay is not None
    strong = torch.full_like(inputs.log_decay, -torch.inf if case == "shut" else -50.0)
    often = torch.rand(strong.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    often.view(-1)[0] = True  # also where there are few
    log_decay = strong if case == "strong" else torch.where(often, strong, -0.01)
    inputs = inputs._replace(log_decay=log_decay.detach().requires_grad_())
    exact = [tensor.to(dtype) for tensor in everything(inputs, "naive")]
    assert all(tensor.isfinite().all() for tensor in exact)
    assert_same(everything(inputs.to(dtype), backend), exact, 1e-11 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS)
def test_gradcheck(backend: str, decay: str) -> None:
    inputs = make((1, 2, 35, 2, 3), decay)  # more than a chunk
    log_decay = [] if inputs.log_decay is None else [inputs.log_decay]

    def call(q: Tensor, k: Tensor, v: Tensor, state: Tensor, *decays: Tensor) -> tuple[Tensor, Tensor]:
        return linear_attention(q, k, v, *(decays or (None,)), initial_state=state, backend=backend)

    assert torch.autograd.gradcheck(call, (*inputs[:3], inputs.initial_state, *log_decay), fast_mode=True)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("cuts", [[1, 99], [32, 68], [40, 1, 59], [33, 31, 36]])
def test_going_on_from_a_state(backend: str, decay: str, cuts: list[int]) -> None:
    inputs = make((2, 2, 100, 4, 6), decay)
    per_position = decay in ("positions", "channels")
    sequences = [*inputs[:3], inputs.log_decay] if per_position else list(inputs[:3])
    pieces, state = [], inputs.initial_state
    for q, k, v, *decays in zip(*(x.split(cuts, 2) for x in sequences), strict=True):  # type: ignore[union-attr]
        z, state = linear_attention(q, k, v, decays[0] if per_position else inputs.log_decay, state, backend=backend)
        pieces.append(z)
    assert state is not None
    assert_same(gradients((torch.cat(pieces, 2), state), inputs), everything(inputs, backend), 1e-11)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("decay", ["positions", "channels"])
def test_later_inputs_do_not_matter(backend: str, decay: str) -> None:
    inputs = make((1, 2, 80, 4, 6), decay)
    z, _ = linear_attention(*inputs, backend=backend)
    for place in range(4):
        changed = inputs[place].detach().clone()  # type: ignore[union-attr]
        changed[:, :, 50:] *= 2
        other, _ = linear_attention(*inputs[:place], changed, *inputs[place + 1 :], backend=backend)
        assert torch.equal(other[:, :, :50], z[:, :, :50])
        assert not torch.isclose(other[:, :, 50:], z[:, :, 50:]).all()


def test_same_bits_for_any_number_of_threads() -> None:
    inputs = make((3, 4, 130, 8, 40), "channels").to(torch.float32)
    assert_same_bits_for_any_threads(lambda: everything(inputs, "cpu"), (1, 2, 5, 64))


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("decay", DECAYS)
def test_memory_grows_as_the_length(backend: str, decay: str) -> None:
    """What waits for the backward pass, at twice the length, is twice as much."""

    def kept(length: int) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        inputs = make((1, 1, length, 8, 8), decay).to(torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = linear_attention(*inputs, backend=backend)
        assert outputs[0].shape[2] == length
        return sum(storages.values())

    assert kept(2048) <= 2.1 * kept(1024)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0)])
def test_empty(backend: str, decay: str, batch: int, length: int) -> None:
    inputs = make((batch, 2, length, 3, 4), decay)
    z, final = linear_attention(*inputs, backend=backend)
    assert z.shape == (batch, 2, length, 4)
    assert inputs.initial_state is not None
    assert torch.equal(final, inputs.initial_state)


def library(decay: str, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """Reference functions of flash-linear-attention. They take B x L x H x K, but for retention. Its import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no GPU
        from fla.ops.gla.naive import naive_recurrent_gla
        from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
        from fla.ops.retention.naive import naive_retention
        from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
    if decay == "heads":  # it returns no state
        return naive_retention(inputs.q * 4**0.5, inputs.k, inputs.v), None
    q, k, v, g = (None if x is None else x.transpose(1, 2) for x in inputs[:4])
    state = {"initial_state": inputs.initial_state, "output_final_state": True}
    if decay == "none":
        z, final = naive_recurrent_linear_attn(q, k, v, scale=1.0, **state)
    elif decay == "positions":
        z, final = naive_recurrent_simple_gla(q, k, v, g, scale=1.0, **state)
    else:
        z, final = naive_recurrent_gla(q * 4**0.5, k, v, g, **state)
    return z.transpose(1, 2), final


@pytest.mark.ci
@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in ("fla", "einops")), reason="needs fla-core")
@pytest.mark.parametrize("decay", DECAYS)
def test_is_what_flash_linear_attention_computes(interpreter: ProcessPoolExecutor, decay: str) -> None:
    """In float32."""
    inputs = make((2, 3, 45, 4, 6), decay, state=decay != "heads")
    if decay == "heads":  # its decays are fixed
        inputs = inputs._replace(log_decay=torch.log1p(-(2.0 ** (-5 - torch.arange(3.0)))))
    inputs = Inputs(*(None if x is None else x.detach().float() for x in inputs))
    expected, expected_final = interpreter.submit(library, decay, inputs).result()
    for backend in [*FAST, "naive"]:
        z, final = linear_attention(*inputs, backend=backend)
        torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-4)
        if expected_final is not None:
            torch.testing.assert_close(final, expected_final, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrong", ["q", "k", "v", "log_decay", "initial_state"])
def test_wrong_shapes(wrong: str) -> None:
    inputs = make((2, 3, 4, 5, 6), "channels")
    tensor = getattr(inputs, wrong)
    broken = inputs._replace(**{wrong: torch.cat([tensor, tensor], -1)})
    # A wider q or v redefines K or V, and the next tensor is the one that no longer fits.
    named = {"q": "k", "v": "initial_state"}.get(wrong, wrong)
    with pytest.raises(UserError, match=rf"^linear_attention: {named} should have shape \([^\n]*, but has \([^\n]*\)$"):
        linear_attention(*broken)
    for name in ("q", "v"):
        with pytest.raises(UserError, match=f"{name} should have shape"):
            linear_attention(*inputs._replace(**{name: getattr(inputs, name)[0]}))
    for log_decay, shape in (
        (torch.zeros(2), r"\(3,\), but has \(2,\)"),
        (torch.zeros(2, 3, 5), r"\(2, 3, 4\), but has \(2, 3, 5\)"),
        (torch.zeros(2, 4, 3), r"\(2, 3, 4\), but has \(2, 4, 3\)"),
        (torch.zeros(2, 3), r"\(2, 3, 4, 5\), but has \(2, 3\)"),
    ):
        with pytest.raises(UserError, match=rf"^linear_attention: log_decay should have shape {shape}$"):
            linear_attention(*inputs[:3], log_decay)


def test_what_ran_is_on_record() -> None:
    inputs = make((1, 1, 3, 2, 2), "none")
    for asked, ran in (("auto", "cpu"), ("chunked", "chunked"), ("naive", "naive")):
        with use_backend(asked) as record:
            linear_attention(*inputs.to(torch.float32))
        assert record == {"linear_attention": ran}
