"""The n-gram head on the CPU: one pass over the sorted events in each direction, with one vector of state."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from regbench.ops.ngram.index import Events, NGramIndex, running_sums


def ngram_head(index: NGramIndex, hidden: Tensor, order: int, shift: int) -> Tensor:
    """See `regbench.ops.ngram.ngram_head`; the tokens are those of the index."""
    if hidden.dtype in (torch.float16, torch.bfloat16):  # NumPy has no bfloat16
        return ngram_head(index, hidden.float(), order, shift).to(hidden.dtype)
    return running_sums(hidden, index.events(order, shift), scan)


def scan(values: Tensor, events: Events, backwards: bool) -> Tensor:
    """(N, D) -> (N, D). See `regbench.ops.ngram.index.Scan`."""
    out = torch.empty_like(values)
    arrays = (tensor.detach().numpy() for tensor in (values, out, events.code, events.first, events.count))
    _scan(*arrays, backwards)
    return out


@numba.njit(cache=True, nogil=True)
def _scan(values, out, code, first, count, backwards):  # type: ignore[no-untyped-def]
    """Fills out (N, D) from values (N, D). The rest is that of `Events`.

    Each n-gram has its own sum, in float64. Nothing is ever subtracted, so the error does not grow with L.
    """
    events, width = code.size, values.shape[1]
    total = np.zeros(width, np.float64)
    for step in range(events):
        event = events - 1 - step if backwards else step
        if first[event + backwards]:
            total[:] = 0.0
        row, write = code[event] >> 1, code[event] & 1
        scale = 1.0 / count[event]
        if write != backwards:
            for d in range(width):
                total[d] += values[row, d] * scale
        else:
            for d in range(width):
                out[row, d] = total[d] * scale
