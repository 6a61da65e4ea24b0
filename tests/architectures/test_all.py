"""What holds of every architecture, by name: its forms agree, a state can be continued, its sizes are as stated.

A new architecture needs a row in `cases.py`. Its own file then tests only what is special to it, against the papers and other
people's code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.based import CHUNK as CHUNK_OF_BASED
from architectures.path_attention import CHUNK as CHUNK_OF_PATH
from regbench.models.mixer import Mixer
from regbench.models.model import Model, parameter_count, shift_in
from regbench.ops.backend import Op, known_ops, use_backend
from regbench.tasks.base import TokenIO
from regbench.utils import registry
from tests.architectures.cases import CASES, MODELS, WITHOUT_OPS, WITHOUT_RECURRENT_FORM
from tests.helpers.mixers import MIXERS
from tests.helpers.subjects import built
from tests.helpers.tensors import bytes_kept

V, LONGEST = 5, 80
IO = TokenIO(vocab_size=V, separator=4, max_length=LONGEST, names=("a", "b", "c", "d", "|"))
BLOCK_NORM, FEED_FORWARD = 2, (8, 5 + 2)
"""Parameters in units of D; of the feed-forward network D^2 and D, its norm included."""


def rows(table: dict[str, Any]) -> list[Any]:
    """One row for each architecture and each of its options."""
    return [pytest.param(name, o, id=f"{name}-{i}") for name, options in table.items() for i, o in enumerate(options)]


every = pytest.mark.parametrize("name", CASES)
every_variant = pytest.mark.parametrize(("name", "options"), rows({name: c.variants for name, c in CASES.items()}))
every_model = pytest.mark.parametrize(
    ("name", "options"),
    rows({name: (*c.variants, *c.reading) for name, c in CASES.items()} | MODELS),
)


def model_of(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float64, **others: Any) -> Model:
    """One block. No weight is left where it begins, as some begin at or near zero."""
    common = CASES[name].common if name in CASES else {}
    model = built(name, IO, **{**common, **options, **others})
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


def test_the_tables_know_every_architecture() -> None:
    assert sorted(CASES) == sorted(MIXERS)
    assert sorted([*CASES, *MODELS, *WITHOUT_RECURRENT_FORM]) == sorted(registry.entries(registry.ARCHITECTURE))


def streamed(model: Any, tokens: Tensor) -> Tensor:
    """Logits (B, L, V) of the recurrent form."""
    state, logits = model.init_state(len(tokens)), []
    for token in shift_in(tokens, IO.separator).unbind(1):
        out, state = model.step(token, state)
        logits.append(out)
    return torch.stack(logits, 1)


@every_model
def test_the_recurrent_form_is_the_parallel_one(name: str, options: dict[str, Any]) -> None:
    """By each implementation of its ops, a convolution or a scan, over more than two of their chunks; and with all gradients,
    where the recurrent form has them.
    """
    model = model_of(name, options)
    tokens, _ = sequences(71)
    whole = model(tokens)
    for backend in ("naive", *implementations_of(model)):
        with use_backend(backend), torch.no_grad():
            close(model(tokens), whole.detach(), 1e-9, backend)
    logits = streamed(model, tokens)
    close(logits, whole, 1e-9)
    if not model.options.ngram_heads and "extra_ngram_heads" not in options:  # their sums are for inference
        named, upstream = dict(model.named_parameters()), torch.randn_like(whole)
        gradients = (
            torch.autograd.grad(out, list(named.values()), upstream, materialize_grads=True) for out in (logits, whole)
        )
        for place, ours, right in zip(named, *gradients, strict=True):
            close(ours, right, 1e-9, place)


@pytest.mark.ci
@every_model
def test_the_recurrent_form_in_float32(name: str, options: dict[str, Any]) -> None:
    model = model_of(name, options, torch.float32)
    tokens, _ = sequences(39)  # more than a chunk
    with torch.no_grad():
        close(streamed(model, tokens), model(tokens), 1e-4)


OWN_CHUNKS = {"based": CHUNK_OF_BASED + 20, "path_attention": CHUNK_OF_PATH + 20}
"""Of mixers whose own chunks are longer than those of the ops: more than one of them."""


@every_variant
def test_a_state_can_be_continued_over_several_chunks(name: str, options: dict[str, Any]) -> None:
    """Where a mixer computes many positions from a state: chunk after chunk is the whole, with all gradients, and ends in the
    state of the recurrent form.
    """
    mixer = mixer_of(name, options)
    if type(mixer).advance is Mixer.advance:
        assert type(mixer).step is not Mixer.step, "neither advance nor step"
        return
    sizes = [1, 33, 5, OWN_CHUNKS.get(name, 32)]
    x = inputs(mixer, 2, sum(sizes)).requires_grad_()
    state, pieces = mixer.init_state(2, dtype=torch.float64), []
    for chunk in x.split(sizes, dim=1):
        y, state = mixer.advance(chunk, state)
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


def implementations_of(model: Model) -> list[str]:
    """The backends of each op that the model uses which run on a CPU here, without the naive ones."""
    with use_backend("auto") as record:
        model(sequences(3)[0])
    ops = known_ops()
    return [
        f"{op}={backend}"
        for op in record
        for backend, how in ops[op].implementations.items()
        if backend != "naive" and how.fault(torch.device("cpu"), None) is None
    ]


@every_variant
@pytest.mark.parametrize(("length", "ngram_heads"), [(1, ()), (67, (1, 3))], ids=["1", "67-ngram"])
def test_every_implementation_has_the_naive_ones_loss_and_gradients(
    name: str, options: dict[str, Any], ngram_heads: tuple[int, ...], length: int
) -> None:
    """Of every parameter of the model, at odd lengths. 67 is more than two chunks."""
    model = model_of(name, options, ngram_heads=ngram_heads)
    named = dict(model.named_parameters())

    def everything(backend: str) -> list[Tensor]:
        with use_backend(backend):
            (loss,) = model.losses(*sequences(length)).values()
        return [loss, *torch.autograd.grad(loss, list(named.values()), materialize_grads=True)]

    naive = everything("naive")
    backends = implementations_of(model)
    assert backends or name in WITHOUT_OPS
    for backend in backends:
        for place, ours, right in zip(["loss", *named], everything(backend), naive, strict=True):
            close(ours, right, 1e-9, f"{backend}, {place}")


@pytest.mark.parametrize("size", [200.0, -200.0])
@pytest.mark.parametrize(
    ("name", "bias"),
    [
        ("comba", "step_bias"),
        ("hgrn2", ""),
        ("mlstm", "input_gate.bias"),
        ("rglru", "recurrence_bias"),
        ("slstm", "bias"),
    ],
)
def test_gates_that_are_open_or_shut_keep_all_finite(name: str, bias: str, size: float) -> None:
    """In float32, in the first layer and a later one; HGRN2's have no bias, and are set by the input."""
    for block in model_of(name, {}, torch.float32, n_layers=2).blocks:
        mixer = block.mixer
        x = inputs(mixer, 2, 40, torch.float32) if bias else size * torch.ones(2, 40, 12)
        with torch.no_grad():
            if bias:
                mixer.get_parameter(bias)[:12] = size  # of sLSTM's four gates the one of the input
        y = mixer(x)
        y.sum().backward()
        assert y.isfinite().all()
        assert all(p.grad.isfinite().all() for p in mixer.parameters())


TIME_SCALES = {
    "mamba": {"A_log", "D", "dt_proj.bias"},
    "s4": {"ssm.log_dt", "ssm.log_A_real", "ssm.A_imag", "ssm.D"},
    "hyena": {"skip", "filter.network"},
}


@pytest.mark.parametrize("name", TIME_SCALES)
def test_no_weight_decay_where_it_would_move_the_time_scales(name: str) -> None:
    """Of Hyena, its filters."""
    mixer = mixer_of(name, {})
    decayed = {n for n, p in mixer.named_parameters() if not getattr(p, "_no_weight_decay", False)}
    kept = {n for n, _ in mixer.named_parameters() if n.startswith(tuple(TIME_SCALES[name]))}
    assert decayed == {n for n, _ in mixer.named_parameters()} - kept
    assert len(kept) >= len(TIME_SCALES[name])


HALF_PRECISION = {"auto": (0.05, 0.11), "naive": (0.11, 0.17)}
"""How far bfloat16 may be from float32: its outputs, relative to the largest of them, and its gradient, relative to its norm.

About twice the largest that was measured, which are RetNet's outputs, 0.024, and GLA's gradient, 0.056: both divide by the size
of what they have just rounded. The naive implementations sum in half precision, with GLA at 0.058 and 0.085. The others are
within 0.016 and 0.026.
"""


@pytest.mark.ci
@every
@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_bfloat16_autocast(name: str, backend: str) -> None:
    model = built(name, IO, d_model=32, n_heads=4, ngram_heads=(1, 2))
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


@pytest.mark.ci
@every_variant
def test_every_tensor_is_made_where_the_model_lies(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the implementations that a GPU has without extras, on the device `meta`, which refuses to mix with the CPU. 33
    positions are more than a chunk.
    """
    choose = Op.choose

    def as_on_a_gpu(op: Op, name: str, device: torch.device, *others: Any, **exact: bool) -> Callable[..., Any]:
        assert device.type == "meta"
        return choose(op, name, torch.device("cuda"), *others, **exact)

    monkeypatch.setattr(Op, "choose", as_on_a_gpu)
    monkeypatch.setattr("regbench.ops.backend.installed", lambda module: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # knows no such device
    model = model_of(name, options, torch.float32).to("meta")
    tokens = sequences(33)[0].to("meta")
    with use_backend("auto") as record:
        logits = model(tokens)
    assert logits.device.type == "meta"
    assert set(record.values()) <= {"chunked", "fft", "torch"}
    assert record or name in WITHOUT_OPS
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
    """The gradient, by the implementations that are there, is the CPU's in float64, but for rounding.

    On a CPU it is within 5e-6 in float32. In bfloat16 a GPU may round no worse than a CPU does, which is within 0.15, and within
    0.35 for MesaNet: it divides by what was rounded. cuDNN's convolutions round to TF32.
    """
    options, gradients = CASES[name].variants[0], {}
    for device, dtype, half in (
        ("cpu", torch.float64, False),
        ("cpu", torch.float32, True),
        ("cuda", torch.float32, False),
        ("cuda", torch.float32, True),
    ):
        model = model_of(name, options, dtype, n_layers=2, ngram_heads=ngram_heads).to(device)
        tokens, scored = (part.to(device) for part in sequences(67))
        with torch.autocast(device, torch.bfloat16, enabled=half):
            (loss,) = model.losses(tokens, scored).values()
        found = torch.autograd.grad(loss, list(model.parameters()))
        gradients[device, half] = torch.cat([loss.reshape(1), *(g.flatten() for g in found)]).detach().cpu().double()
    right = gradients["cpu", False]
    errors = {key: float((gradient - right).norm() / right.norm()) for key, gradient in gradients.items()}
    assert errors["cuda", False] < 2e-3
    assert errors["cpu", True] < (0.35 if name == "mesanet" else 0.16)
    assert errors["cuda", True] < 1.3 * errors["cpu", True] + 0.01


@every_variant
def test_parameters_are_those_of_the_papers_matrices(name: str, options: dict[str, Any]) -> None:
    case, model = CASES[name], model_of(name, options, n_layers=3)
    o = model.options
    block = case.parameters(o) + BLOCK_NORM * o.d_model
    if case.feed_forward:
        block += FEED_FORWARD[0] * o.d_model**2 + FEED_FORWARD[1] * o.d_model
    positions = LONGEST * o.d_model if case.positions and o.positions == "learned" else 0
    mixers = 3 * block + 2 * case.later(o)
    assert parameter_count(model) == 2 * V * o.d_model + positions + mixers + BLOCK_NORM * o.d_model


@every_variant
def test_state_bytes_are_those_of_the_state(name: str, options: dict[str, Any]) -> None:
    """Of one sequence in float32, before the first position and after some."""
    case, model = CASES[name], model_of(name, options, torch.float32, n_layers=2)
    mixer = model.blocks[0].mixer
    state, before = mixer.init_state(1, dtype=torch.float32), -1
    for _ in range(8):
        held = sum(part.numel() * part.element_size() for part in tensors(state))
        assert isinstance(state, Tensor) or len([p for p in state if isinstance(p, int)]) == case.uncounted
        claimed = mixer.state_bytes(mixer.options)
        if claimed is None:
            assert case.grows
            assert model.state_bytes() is None
            assert held > before or (held == before and name == "log_linear_attention")
        else:
            assert model.state_bytes() == 2 * claimed
            assert held == claimed or (case.grows and before < held < claimed)
        before = held
        _, state = mixer.step(inputs(mixer, 1, 1, torch.float32)[:, 0], state)


def growth(model: Model, length: int) -> float:
    """By how much the bytes that a longer sequence adds grow as it doubles: 2 where memory is linear, 4 where it is square."""

    def kept(length: int) -> int:
        tokens, scored = sequences(length)
        return bytes_kept(lambda: model.losses(tokens[:1], scored[:1]), without=model.parameters())

    short, middle, long = (kept(times * length) for times in (1, 2, 4))
    return (long - middle) / (middle - short)


@every
def test_memory_grows_as_the_length(name: str) -> None:
    io = TokenIO(vocab_size=V, separator=4, max_length=1024, names=IO.names)
    model = built(name, io, d_model=16, n_layers=1)
    assert 1.8 < growth(model, 256) <= 2.1  # the kernels of S4 and H3 keep a part that grows as the root
    if name in ("transformer", "hyena"):  # that the measure can tell
        with use_backend("naive"):
            assert growth(model, 64) > 3
