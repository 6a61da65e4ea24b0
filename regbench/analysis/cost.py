"""What a model costs: operations a token, as PyTorch counts them, memory in training, and bytes of a stream's state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regbench.models.model import Model, shift_in


def total_flops(model: Model, tokens: Tensor) -> int:
    """Operations of one forward pass, (B, L): two for each product of its matrix multiplications, attention's among them.

    Attention is counted over all L positions, as the products are written, not as a kernel that skips the future does them.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens)
    return int(counter.get_total_flops())


def training_flops(model: Model, tokens: Tensor, scored: Tensor) -> int:
    """Operations of one training step, forward and backward of all terms of the loss, (B, L), (B, L) bool; the optimizer's apart.

    With everything made under torch's `FakeTensorMode` a model of any size is counted in no memory and no time.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        torch.stack([term.reshape(()) for term in model.losses(tokens, scored).values()]).sum().backward()
    return int(counter.get_total_flops())


def training_bytes(model: Model, tokens: Tensor, scored: Tensor) -> int:
    """Memory of one training step on (B, L), (B, L) bool: weights, gradients and AdamW's two moments, buffers, and all that the
    forward pass keeps for the backward pass. What operations need while they run is not in it.

    Under torch's `FakeTensorMode` a model of any size is counted in no memory.
    """
    standing = {p.untyped_storage()._cdata: 4 * p.nbytes for p in model.parameters()}
    standing |= {b.untyped_storage()._cdata: b.nbytes for b in model.buffers()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = model.losses(tokens, scored)  # alive to the end, so that no two storages had one place
    total = sum(standing.values()) + sum(size for place, size in kept.items() if place not in standing)
    del terms
    return total


def flops_per_token(model: Model, tokens: Tensor) -> float:
    """`total_flops` over the number of tokens read, (B, L)."""
    return total_flops(model, tokens) / (tokens.shape[0] * tokens.shape[1])


def stream_bytes(model: Any, tokens: Tensor, **start: Any) -> int:
    """Bytes of state of a model that has read tokens (B, L) one by one; start: what `init_state` is also given."""
    state, inputs = model.init_state(len(tokens), **start), shift_in(tokens, model.io.separator)
    with torch.no_grad():
        for t in range(tokens.shape[1]):
            _, state = model.step(inputs[:, t], state)
    return int(state.state_bytes())
