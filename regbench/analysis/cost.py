"""What a model costs: operations, as PyTorch counts them, memory in training, and bytes of state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regbench.models.backbone import StreamState, held_bytes
from regbench.models.model import Model, shift_in
from regbench.ops.backend import use_backend
from regbench.tasks.base import VectorIO


def total_flops(model: Model, tokens: Tensor) -> int:
    """Operations of one forward pass over (B, L) tokens: two for each product of a matrix multiplication.

    Attention counts over all L positions, although a kernel may skip those in the future.
    """
    with _counting() as counter, torch.no_grad():
        model(tokens)
    return int(counter.get_total_flops())


def training_flops(model: Model, tokens: Tensor, scored: Tensor) -> int:
    """Operations of one training step, forward and backward of all terms of the loss, without the optimizer.

    Under torch's `FakeTensorMode` a model of any size is counted without memory and time.

    Args:
        model: The model.
        tokens: (B, L).
        scored: (B, L) bool.
    """
    with _counting() as counter:
        torch.stack([term.reshape(()) for term in model.losses(tokens, scored).values()]).sum().backward()
    return int(counter.get_total_flops())


@contextlib.contextmanager
def _counting() -> Iterator[FlopCounterMode]:
    """Attention and the LSTM are PyTorch's matrix products, as the counter does not see into kernels."""
    with (
        use_backend("attention=torch"),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
        FlopCounterMode(display=False) as counter,
    ):
        yield counter


def training_bytes(model: Model, tokens: Tensor, scored: Tensor) -> int:
    """Memory of one training step, in bytes.

    Weights, gradients, AdamW's two moments, buffers, and what the forward pass keeps for the backward pass. Temporary memory of
    operations is not counted. Under torch's `FakeTensorMode` a model of any size is counted without memory.

    Args:
        model: The model.
        tokens: (B, L).
        scored: (B, L) bool.
    """
    standing = {p.untyped_storage()._cdata: 4 * p.nbytes for p in model.parameters()}
    standing |= {b.untyped_storage()._cdata: b.nbytes for b in model.buffers()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = model.losses(tokens, scored)  # kept alive, so that no two storages have one address
    total = sum(standing.values()) + sum(size for place, size in kept.items() if place not in standing)
    del terms
    return total


def flops_per_token(model: Model, tokens: Tensor) -> float:
    """`total_flops` divided by the number of tokens, (B, L)."""
    return total_flops(model, tokens) / (tokens.shape[0] * tokens.shape[1])


def stream_bytes(model: Any, tokens: Tensor, **start: Any) -> int:
    """Bytes of state after a model has read (B, L) tokens one by one. `start` goes to `init_state`."""
    state, inputs = model.init_state(len(tokens), **start), shift_in(tokens, model.io.separator)
    with torch.no_grad():
        for t in range(tokens.shape[1]):
            _, state = model.step(inputs[:, t], state)
    return int(state.state_bytes())


def state_at(model: Any) -> dict[Literal["128", "1024"], int]:
    """Bytes of state of one sequence in float32 after 128 and after 1,024 tokens, from what the recurrent form holds.

    The state is measured after 8, 16 and 24 random tokens. If both gaps are equal, the state grows by the same number of bytes
    at each token, and the rest follows. The state of n-gram heads grows with the number of different n-grams. So with such heads
    all 1,024 random tokens are read.

    Args:
        model: a model in its evaluation form. One with positions that are learned need not have 1,024 of them.

    Returns:
        Bytes by the number of tokens. Empty where there is no recurrent form, or where the state grows in another way. With
        n-gram heads, without those for which the model has too few positions.
    """
    held, heads = _read(model, (8, 16, 24))
    names: tuple[Literal["128", "1024"], ...] = ("128", "1024")
    if heads:
        held, _ = _read(model, (128, 1024))
        return {name: held[int(name)] for name in names if int(name) in held}
    if len(held) < 3 or held[24] - held[16] != held[16] - held[8]:
        return {}
    return {name: held[8] + (int(name) - 8) * (held[16] - held[8]) // 8 for name in names}


def _read(model: Any, lengths: tuple[int, ...]) -> tuple[dict[int, int], bool]:
    """Bytes of state after so many random tokens, and whether n-gram heads hold some of them.

    Reading ends early where there is no recurrent form, where a stranger's fails (`regbench check` says why), or where learned
    positions end.
    """
    random, place = torch.Generator().manual_seed(0), next(model.parameters()).device
    held: dict[int, int] = {}
    state: Any = None
    with contextlib.suppress(Exception), torch.no_grad():
        state = model.init_state(1)
        for t in range(1, lengths[-1] + 1):
            if isinstance(model.io, VectorIO):
                token = torch.randn(1, model.io.d_in, generator=random)
            else:
                token = torch.randint(model.io.vocab_size, (1,), generator=random)
            _, state = model.step(token.to(place), state)
            if t in lengths:
                held[t] = held_bytes(state)
    return held, isinstance(state, StreamState) and state.ngram_bytes() > 0
