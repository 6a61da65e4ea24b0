"""What holds of every architecture made of a mixer, by name: its forms agree, its state carries on, its sizes are as stated.

A new architecture needs a row in `CASES`; its own file then tests only what is its own, against the papers and outside witnesses.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.models.model import Model, parameter_count
from regbench.ops.backend import Op, known_ops, use_backend
from regbench.tasks.base import TokenIO
from regbench.utils import registry
from tests.helpers.mixers import MIXERS

V, LONGEST = 5, 80
IO = TokenIO(vocab_size=V, separator=4, max_length=LONGEST, names=("a", "b", "c", "d", "|"))
BLOCK_NORM, FEED_FORWARD = 2, (8, 5 + 2)
"""Parameters in units of D; of the feed-forward network D^2 and D, its norm included."""


@dataclass(frozen=True)
class Case:
    """An architecture, and what is known of it.

    parameters: of one mixer, from its options, by counting the papers' matrices.
    variants: options under which its forms and its state are tested.
    feed_forward, positions: what the backbone adds to it.
    uncounted: numbers in its state that `state_bytes` leaves out, as its docstring says.
    grows: whether its state grows with the stream.
    """

    parameters: Callable[[Any], int]
    variants: tuple[dict[str, Any], ...] = ({},)
    feed_forward: bool = True
    positions: bool = False
    uncounted: int = 0
    grows: bool = False
    common: dict[str, Any] = field(default_factory=lambda: {"d_model": 12, "n_heads": 3})


def _gla(o: Any) -> int:
    maps = 2 * o.d_model * o.d_k + 3 * o.d_model * o.d_v + o.d_v  # q, k; v, gate and its bias, out
    return maps + o.d_model * o.gate_rank + o.gate_rank * o.d_k + o.d_k


def _mamba(o: Any) -> int:
    inner, n = o.d_inner, o.d_state
    return (
        3 * o.d_model * inner
        + inner * (o.d_conv + 1)
        + inner * (o.rank + 2 * n)
        + inner * (o.rank + 1)
        + inner * (n + 1)
    )


def _hyena(o: Any) -> int:
    maps = o.d_gates * (o.d_model + 1) + o.d_model * (o.d_model + 1)
    layers = [1 + 2 * o.bands] + [o.d_filter] * o.n_inner
    network = sum(o.d_filter * (width + 2) for width in layers) + o.d_filter * o.order * o.d_model
    return maps + o.d_gates * (3 + 1) + network + o.order * o.d_model


def _s4(o: Any) -> int:
    return o.d_model * (2 * o.d_state + 2) + (1 + o.glu) * o.d_model * (o.d_model + 1)


def _h3(o: Any) -> int:
    ssm = o.d_model // o.head_dim * (2 * o.d_state + 2)
    return 4 * o.d_model * (o.d_model + 1) + o.d_model * (o.d_shift + 1) + ssm


def _delta(o: Any) -> int:
    """q, k, v and their convolution, beta, the norm of a head, out."""
    channels = o.d_k + o.steps * (o.d_k + o.d_v)
    return channels * (o.d_model + o.d_conv) + o.steps * o.n_heads * o.d_model + o.d_v // o.n_heads + o.d_v * o.d_model


def _gated_delta(o: Any) -> int:
    return _delta(o) + o.n_heads * (o.d_model + 2) + o.d_v * o.d_model


def _kda(o: Any) -> int:
    rank = o.d_v // o.n_heads
    return _delta(o) + rank * (2 * o.d_model + o.d_k + o.d_v) + o.n_heads + o.d_k + o.d_v


def _mamba2(o: Any) -> int:
    inner, conv = o.d_inner, o.d_inner + 2 * o.d_state
    return o.d_model * (inner + conv + o.n_heads) + conv * (o.d_conv + 1) + 3 * o.n_heads + inner + inner * o.d_model


def _mamba3(o: Any) -> int:
    into = 2 * o.d_inner + 2 * o.d_state + 3 * o.n_heads + o.d_state // 4
    return o.d_model * (into + o.d_inner) + 2 * o.d_state * (1 + o.n_heads) + 2 * o.n_heads


def _mlstm(o: Any) -> int:
    inner = o.d_inner
    return 3 * o.d_model * inner + inner * (o.d_conv + 1 + 3 * o.block_size + 2) + 2 * o.n_heads * (3 * inner + 1)


CASES = {
    "transformer": Case(
        lambda o: 4 * o.d_model**2, ({}, {"positions": "rotary", "n_heads": 2}), positions=True, grows=True
    ),
    "linear_transformer": Case(lambda o: 4 * o.d_model**2, ({}, {"feature_map": "elu"}, {"feature_map": "relu"})),
    "retnet": Case(lambda o: (2 + 3 * o.expand_v) * o.d_model**2, ({}, {"expand_v": 1, "n_heads": 1}), uncounted=1),
    "gla": Case(_gla, ({"gate_rank": 4}, {"expand_k": 1.0, "expand_v": 2.0, "gate_temperature": 1.0})),
    "rwkv": Case(lambda o: (5 + 2 * o.expand) * o.d_model**2 + 9 * o.d_model, ({}, {"expand": 1}), feed_forward=False),
    "lstm": Case(lambda o: 8 * o.d_model * (o.d_model + 1), feed_forward=False),
    "mamba": Case(_mamba, ({"d_state": 5}, {"d_conv": 1, "expand": 3, "dt_rank": 2}), feed_forward=False),
    "s4": Case(_s4, ({"d_state": 8}, {"d_state": 2, "init": "inv", "glu": False})),
    "h3": Case(_h3, ({"d_state": 8, "d_shift": 5}, {"d_state": 4, "d_shift": 1, "head_dim": 3, "init": "inv"})),
    "hyena": Case(
        _hyena, ({"d_filter": 8, "max_length": 50}, {"order": 3, "bands": 1, "n_inner": 0, "d_filter": 4}), grows=True
    ),
    "deltanet": Case(_delta, ({}, {"negative_eigenvalues": True, "expand_v": 2.0, "d_conv": 1})),
    "gated_deltanet": Case(_gated_delta, ({}, {"n_heads": 1, "negative_eigenvalues": True})),
    "gated_deltaproduct": Case(_gated_delta, ({}, {"n_h": 3, "negative_eigenvalues": False})),
    "mamba2": Case(_mamba2, ({"d_state": 5}, {"d_conv": 1, "expand": 3, "d_state": 8}), feed_forward=False),
    "mamba3": Case(_mamba3, ({"d_state": 8}, {"d_state": 4, "expand": 1})),
    "mesanet": Case(
        lambda o: (
            4 * o.d_model**2
            + 2 * o.d_model * o.d_conv
            + 2 * o.n_heads * (o.d_model + 1)
            + o.d_model
            + o.d_model // o.n_heads
        ),
        ({}, {"solver": "exact", "d_conv": 2}),
    ),
    "mlstm": Case(_mlstm, ({}, {"block_size": 1, "projection": 1, "d_conv": 2}), feed_forward=False),
    "forgetting_transformer": Case(
        lambda o: 4 * o.d_model**2 + o.n_heads * (o.d_model + 1), ({}, {"n_heads": 1}), grows=True
    ),
    "kimi_delta_attention": Case(_kda, ({}, {"expand_k": 0.5, "expand_v": 2.0})),
}
ROWS = [
    pytest.param(name, options, id=f"{name}-{i}") for name, c in CASES.items() for i, options in enumerate(c.variants)
]
every = pytest.mark.parametrize("name", CASES)
every_variant = pytest.mark.parametrize(("name", "options"), ROWS)


def model_of(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float64, **others: Any) -> Model:
    """Two blocks. No weight is left where it begins, as some begin at or near zero."""
    cls = registry.load(registry.ARCHITECTURE, name)
    torch.manual_seed(0)
    model = build(cls, resolve_options(cls, {**CASES[name].common, **options, **others}), IO)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.5 * parameter.shape[-1] ** -0.5
    return model.to(dtype)


def mixer_of(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float64) -> Mixer:
    mixer = model_of(name, options, dtype).blocks[0].mixer
    assert isinstance(mixer, Mixer)
    return mixer


def inputs(mixer: Mixer, batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, mixer.options.d_model, dtype=torch.float64, generator=generator).to(dtype)


def sequences(length: int) -> tuple[Tensor, Tensor]:
    """Tokens (3, L), and that all of them are scored."""
    tokens = torch.randint(V, (3, length), generator=torch.Generator().manual_seed(2))
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, list | tuple):
        for part in state:
            yield from tensors(part)


def stream(mixer: Mixer, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """x (B, L, D) one position at a time."""
    outputs = []
    for x_t in x.unbind(1):
        y, state = mixer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def close(found: Tensor, right: Tensor, tolerance: float, name: str = "") -> None:
    """Equal to `tolerance` times the largest entry; what is below a millionth is as good as zero."""
    largest = float(right.detach().abs().max()) if right.numel() else 0.0
    atol = tolerance * max(largest, 1e-6)
    torch.testing.assert_close(found, right, rtol=0, atol=atol, msg=lambda m: f"{name}: {m}")


def test_the_table_knows_every_architecture_made_of_a_mixer() -> None:
    assert sorted(CASES) == sorted(MIXERS)


@every_variant
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_streaming_is_the_parallel_form(
    name: str, options: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    """One position at a time from the state of the one before, over more than two of any op's chunks."""
    mixer = mixer_of(name, options, dtype)
    x = inputs(mixer, 3, 71, dtype)
    with torch.no_grad():
        y, _ = stream(mixer, x, mixer.init_state(3, dtype=dtype))
        close(y, mixer(x), tolerance)


@every_variant
def test_a_state_carries_on_over_several_chunks(name: str, options: dict[str, Any]) -> None:
    """The parallel form of a chunk from the state that the last one left, with all gradients; and that state is the recurrent
    form's. Without a parallel form from a state (the transformer, LSTM, S4, H3 and Hyena), the state is carried step by step.
    """
    mixer = mixer_of(name, options)
    x = inputs(mixer, 2, 71).requires_grad_()
    advance = getattr(mixer, "_advance", lambda x, state: stream(mixer, x, state))
    state, pieces = mixer.init_state(2, dtype=torch.float64), []
    for chunk in x.split([1, 33, 5, 32], dim=1):
        y, state = advance(chunk, state)
        pieces.append(y)
    y, whole = torch.cat(pieces, 1), mixer(x)
    close(y, whole, 1e-9)
    for ours, right in zip(
        tensors(state), tensors(stream(mixer, x, mixer.init_state(2, dtype=x.dtype))[1]), strict=True
    ):
        close(ours, right, 1e-9)
    wanted = {"x": x, **dict(mixer.named_parameters())}
    upstream = torch.randn_like(whole)
    found, right_ones = (torch.autograd.grad(out, list(wanted.values()), upstream) for out in (y, whole))
    for place, ours, right in zip(wanted, found, right_ones, strict=True):
        close(ours, right, 1e-9, place)


@every_variant
def test_a_position_sees_only_its_past(name: str, options: dict[str, Any]) -> None:
    """A prefix gets the outputs that it has in the whole, to rounding; past it, other inputs make other outputs."""
    mixer = mixer_of(name, options)
    x = inputs(mixer, 2, 71)
    with torch.no_grad():
        whole = mixer(x)
        for length in (1, 37, 64):
            close(mixer(x[:, :length]), whole[:, :length], 1e-9)
            other = mixer(torch.cat([x[:, :length], x[:, length:] + 1], 1))
            close(other[:, :length], whole[:, :length], 1e-9)
            assert not torch.isclose(other[:, length:], whole[:, length:]).all(-1).any()


def forms_of(model: Model) -> list[str]:
    """The backends of each op that the model uses which run on a CPU here, the naive ones left out."""
    with use_backend("auto") as record:
        model(sequences(3)[0])
    ops = known_ops()
    return [
        f"{op}={form}"
        for op in record
        for form, how in ops[op].implementations.items()
        if form != "naive" and "cpu" in how.devices and how.missing is None
    ]


@every_variant
@pytest.mark.parametrize(("length", "ngram_heads"), [(1, ()), (67, ()), (67, (1, 3))], ids=["1", "67", "67-ngram"])
def test_every_form_has_the_naive_ones_loss_and_gradients(
    name: str, options: dict[str, Any], ngram_heads: tuple[int, ...], length: int
) -> None:
    """Of every parameter of the model, at odd lengths; 67 is more than two chunks."""
    model = model_of(name, options, ngram_heads=ngram_heads)
    named = dict(model.named_parameters())

    def everything(backend: str) -> list[Tensor]:
        with use_backend(backend):
            (loss,) = model.losses(*sequences(length)).values()
        return [loss, *torch.autograd.grad(loss, list(named.values()), materialize_grads=True)]

    naive = everything("naive")
    forms = forms_of(model)
    assert forms or name == "lstm"
    for backend in forms:
        for place, ours, right in zip(["loss", *named], everything(backend), naive, strict=True):
            close(ours, right, 1e-9, f"{backend}, {place}")


HALF_PRECISION = {"auto": (0.05, 0.11), "naive": (0.11, 0.17)}
"""How far bfloat16 may be from float32: its outputs, relative to the largest of them, and its gradient, relative to its norm.

About twice the largest that was measured, which are RetNet's outputs with n-gram heads, 0.024, and GLA's gradient, 0.056: they
divide by the size of what they have just rounded. The naive forms sum in half precision, with GLA at 0.058 and 0.085. The
others are within 0.016 and 0.026.
"""


@every
@pytest.mark.parametrize("ngram_heads", [(), (1, 2)], ids=["", "ngram"])
@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_bfloat16_autocast(name: str, ngram_heads: tuple[int, ...], backend: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, name)
    torch.manual_seed(0)
    model = build(cls, resolve_options(cls, {"d_model": 32, "ngram_heads": ngram_heads}), IO)
    tokens, scored = sequences(65)
    results = []
    for enabled in (False, True):
        with use_backend(backend), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = model(tokens)
            (loss,) = model.losses(tokens, scored).values()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        results.append((logits.detach().float(), gradient))
        assert logits.dtype == (torch.bfloat16 if enabled else torch.float32)
    (exact, gradient), (half, half_gradient) = results
    assert half.isfinite().all()
    assert half_gradient.isfinite().all()
    off = (half - exact).abs().max() / exact.abs().max()
    off_gradient = (half_gradient - gradient).norm() / gradient.norm()
    assert off < HALF_PRECISION[backend][0]
    assert off_gradient < HALF_PRECISION[backend][1]
    assert off > 1e-4  # that it was computed in half precision at all


@every_variant
def test_every_tensor_is_made_where_the_model_lies(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the forms that a GPU gets without extras, on the device `meta`, which refuses to mix with the CPU."""
    choose, find = Op.choose, importlib.util.find_spec

    def as_on_a_gpu(op: Op, backend: str, device: torch.device, *others: Any) -> Callable[..., Any]:
        assert device.type == "meta"
        return choose(op, backend, torch.device("cuda"), *others)

    monkeypatch.setattr(Op, "choose", as_on_a_gpu)
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == "fla" else find(module))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # knows no such device
    model = model_of(name, options, torch.float32).to("meta")
    tokens = sequences(67)[0].to("meta")
    with use_backend("auto") as record:
        logits = model(tokens)
    assert logits.device.type == "meta"
    assert set(record.values()) <= {"chunked", "fft", "torch"}
    assert record or name == "lstm"
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    state = model.init_state(3)  # type: ignore[operator]
    for _ in range(2):
        logits, state = model.step(tokens[:, 0], state)  # type: ignore[operator]
    assert logits.device.type == "meta"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every
@pytest.mark.parametrize("ngram_heads", [(), (1, 3)], ids=["", "ngram"])
def test_on_a_gpu(name: str, ngram_heads: tuple[int, ...]) -> None:
    """The gradient, by whatever forms are there, is the CPU's in float64, but for rounding.

    On a CPU it is within 5e-6 in float32, and in bfloat16 within 0.03, GLA's within 0.11. cuDNN's convolutions round to TF32.
    """
    options, gradients = CASES[name].variants[0], {}
    for device, dtype, half in (
        ("cpu", torch.float64, False),
        ("cuda", torch.float32, False),
        ("cuda", torch.float32, True),
    ):
        model = model_of(name, options, dtype, ngram_heads=ngram_heads).to(device)
        tokens, scored = (part.to(device) for part in sequences(67))
        with torch.autocast(device, torch.bfloat16, enabled=half):
            (loss,) = model.losses(tokens, scored).values()
        found = torch.autograd.grad(loss, list(model.parameters()))
        gradients[device, half] = torch.cat([loss.reshape(1), *(g.flatten() for g in found)]).cpu().double()
    right = gradients["cpu", False]
    assert (gradients["cuda", False] - right).norm() < 2e-3 * right.norm()
    assert (gradients["cuda", True] - right).norm() < (0.25 if name == "gla" else 0.1) * right.norm()


@every_variant
def test_parameters_are_those_of_the_papers_matrices(name: str, options: dict[str, Any]) -> None:
    case, model = CASES[name], model_of(name, options, n_layers=3)
    o = model.options
    block = case.parameters(o) + BLOCK_NORM * o.d_model
    if case.feed_forward:
        block += FEED_FORWARD[0] * o.d_model**2 + FEED_FORWARD[1] * o.d_model
    positions = LONGEST * o.d_model if case.positions and o.positions == "learned" else 0
    assert parameter_count(model) == 2 * V * o.d_model + positions + 3 * block + BLOCK_NORM * o.d_model


@every_variant
def test_state_bytes_are_those_of_the_state(name: str, options: dict[str, Any]) -> None:
    """Of one sequence in float32, before the first position and after some."""
    case, model = CASES[name], model_of(name, options, torch.float32)
    mixer = model.blocks[0].mixer
    state, before = mixer.init_state(1, dtype=torch.float32), -1
    for _ in range(8):
        held = sum(part.numel() * part.element_size() for part in tensors(state))
        assert isinstance(state, Tensor) or len([p for p in state if isinstance(p, int)]) == case.uncounted
        if case.grows:
            assert model.state_bytes() is None
            assert held > before
        else:
            assert mixer.state_bytes(mixer.options) == held
            assert model.state_bytes() == 2 * held
        before = held
        _, state = mixer.step(inputs(mixer, 1, 1, torch.float32)[:, 0], state)


def bytes_kept(model: Model, length: int) -> int:
    """What waits for the backward pass of a batch of one, each storage once, parameters left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    tokens, scored = sequences(length)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.losses(tokens[:1], scored[:1])
    return sum(storage.nbytes() for storage in kept.values())


def growth(model: Model, length: int) -> float:
    """By how much the bytes that a longer sequence adds grow as it doubles: 2 where memory is linear, 4 where it is square."""
    short, middle, long = (bytes_kept(model, times * length) for times in (1, 2, 4))
    return (long - middle) / (middle - short)


@every
def test_memory_grows_as_the_length(name: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, name)
    io = TokenIO(vocab_size=V, separator=4, max_length=1024, names=IO.names)
    model = build(cls, resolve_options(cls, {"d_model": 16, "n_layers": 1}), io)
    assert 1.8 < growth(model, 256) <= 2.1  # the kernels of S4 and H3 keep a part that grows as the root
    if name in ("transformer", "hyena"):  # that the measure can tell
        with use_backend("naive"):
            assert growth(model, 64) > 3


@every
def test_docstrings_cite_section_and_equation(name: str) -> None:
    """ICLL for what the paper compares, and the architecture's own paper; of later ones, their own paper's."""
    cls = registry.load(registry.ARCHITECTURE, name)
    tree = ast.parse(inspect.getsource(inspect.getmodule(cls)))
    nodes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef | ast.FunctionDef))]
    text = " ".join(ast.get_docstring(node) or "" for node in nodes)
    assert cls.paper is not None
    assert cls.paper.year
    places = r"(Eq\. \d+|A\.\d+|sections? \d+)"
    assert re.search(f"ICLL {places}" if cls.paper.year <= 2023 else rf"20\d\d, .*{places}", text)
    assert name == "lstm" or cls.paper.arxiv
