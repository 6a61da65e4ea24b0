"""The selective scan by PyTorch operations on any device: time is cut into chunks, and the state goes on from chunk to chunk.

Within a chunk states are built by doubling: a state that knows the last r inputs, and joins the decayed state of the position
r before, knows the last 2 r. Only the inputs and the state at each chunk's start wait for the backward pass, which computes the
chunk again: arrays of (B, L, D, N) are never held.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 32
"""Positions in a chunk."""


def selective_scan_chunked(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.selective_scan.selective_scan`; computes in float64 if a tensor has it, else in float32."""
    state = x.new_zeros(x.shape[0], *A.shape) if initial_state is None else initial_state
    if x.numel() == 0:
        return torch.empty_like(x), state
    skip = x.new_zeros(()) if D is None else D
    inputs = (x, delta, A, B, C, skip, state)
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in inputs) else torch.float32
    given, outputs = x.dtype, []
    # Sums over a whole sequence are not for half precision.
    with torch.autocast(x.device.type, enabled=False):
        x, delta, A, B, C, skip, state = (tensor.to(dtype) for tensor in inputs)
        for parts in zip(*(tensor.split(CHUNK, dim=1) for tensor in (x, delta, B, C)), strict=True):
            y, state = checkpoint(_chunk, *parts, A, state, use_reentrant=False, preserve_rng_state=False)
            outputs.append(y)
        y = torch.cat(outputs, dim=1) + skip * x
    return y.to(given), state


def _chunk(x: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of a few positions (B, C, D) and the state after them, from the state (B, D, N) before them."""
    decay = torch.exp(delta[..., None] * A)  # (B, C, D, N)
    h = (delta * x)[..., None] * B[:, :, None]
    h = torch.cat([h[:, :1] + decay[:, :1] * state[:, None], h[:, 1:]], dim=1)
    reach = 1
    while reach < x.shape[1]:
        h = torch.cat([h[:, :reach], h[:, reach:] + decay[:, reach:] * h[:, :-reach]], dim=1)
        decay = torch.cat([decay[:, :reach], decay[:, reach:] * decay[:, :-reach]], dim=1)
        reach *= 2
    return (h @ C[..., None]).squeeze(-1), h[:, -1].clone()  # a view would keep all of h
