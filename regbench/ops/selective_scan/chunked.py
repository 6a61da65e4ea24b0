"""The selective scan by PyTorch operations on any device. Time is cut into chunks, and the state passes from chunk to chunk.

Within a chunk states are built by doubling. A state that has the last r inputs, plus the decayed state r positions earlier, has
the last 2 r. Only the inputs and the state at the start of each chunk are stored for the backward pass, which computes the chunk
again. So arrays of (B, L, D, N) are never held.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regbench.ops.backend import common_type

CHUNK = 32
"""Positions in a chunk."""


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.selective_scan.selective_scan`. It computes in float64 if a tensor has it, else in float32."""
    state = x.new_zeros(x.shape[0], *A.shape) if initial_state is None else initial_state
    if x.numel() == 0:
        return torch.empty_like(x), state
    skip = x.new_zeros(()) if D is None else D
    inputs = (x, delta, A, B, C, skip, state)
    dtype = common_type(*inputs, least=torch.float32)
    given, outputs = x.dtype, []
    # Half precision is too coarse for sums over a whole sequence.
    with torch.autocast(x.device.type, enabled=False):
        x, delta, A, B, C, skip, state = (tensor.to(dtype) for tensor in inputs)
        for parts in zip(*(tensor.split(CHUNK, dim=1) for tensor in (x, delta, B, C)), strict=True):
            y, state = checkpoint(_chunk, *parts, A, state, use_reentrant=False, preserve_rng_state=False)
            outputs.append(y)
        y = torch.cat(outputs, dim=1) + skip * x
    return y.to(given), state


def _chunk(x: Tensor, delta: Tensor, B: Tensor, C: Tensor, A: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of one chunk and the state after it.

    x and delta are (B, C, D), B and C (B, C, N), A (D, N), the state (B, D, N).
    """
    decay = torch.exp(delta[..., None] * A)  # (B, C, D, N)
    h = (delta * x)[..., None] * B[:, :, None]
    h = torch.cat([h[:, :1] + decay[:, :1] * state[:, None], h[:, 1:]], dim=1)
    reach = 1
    while reach < x.shape[1]:
        h = torch.cat([h[:, :reach], h[:, reach:] + decay[:, reach:] * h[:, :-reach]], dim=1)
        decay = torch.cat([decay[:, :reach], decay[:, reach:] * decay[:, :-reach]], dim=1)
        reach *= 2
    return (h @ C[..., None]).squeeze(-1), h[:, -1].clone()  # a view would keep all of h
