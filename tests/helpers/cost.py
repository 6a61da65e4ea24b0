"""What a training step costs: operations, as PyTorch counts them, and memory."""

from __future__ import annotations

import torch
from torch import Tensor

from papers.cost import counting
from regbench.models.model import Model


def training_flops(model: Model, tokens: Tensor, scored: Tensor) -> int:
    """Operations of one training step, forward and backward of all terms of the loss, without the optimizer.

    Under torch's `FakeTensorMode` a model of any size is counted without memory and time.
    """
    with counting() as counter:
        torch.stack([term.reshape(()) for term in model.losses(tokens, scored).values()]).sum().backward()
    return int(counter.get_total_flops())


def training_bytes(model: Model, tokens: Tensor, scored: Tensor) -> int:
    """Memory of one training step, in bytes.

    Weights, gradients, AdamW's two moments, buffers, and what the forward pass keeps for the backward pass. Temporary memory of
    operations is not counted. Under torch's `FakeTensorMode` a model of any size is counted without memory.
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
