"""What a model costs: operations, as PyTorch counts them, memory in training, and bytes of state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regbench.models.model import Model, shift_in
from regbench.ops.backend import use_backend

COUNTABLE = "attention=torch,linear_attention=chunked,delta_rule=chunked,selective_scan=chunked"
"""The forms of ops that are matrix products. Those of the other ops multiply element by element, which is not counted."""


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
    """Ops and the LSTM are PyTorch's matrix products, as the counter does not see into kernels."""
    with (
        use_backend(COUNTABLE),
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
