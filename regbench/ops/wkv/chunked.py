"""WKV by PyTorch operations on any device. Time is cut into chunks, so memory grows as L.

The sums of a chunk are built by doubling. A position that has the sums of the last r positions, plus those of the position r
earlier, has the sums of the last 2 r. All chunks do this at once. Then the state passes from one chunk to the next.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type
from regbench.ops.wkv import WKVState

CHUNK = 32
"""Positions in a chunk."""


def _each(sums: WKVState, function: Callable[[Tensor], Tensor]) -> WKVState:
    """The same function of all three tensors."""
    return WKVState(*(function(part) for part in sums))


def _padded(sums: WKVState, sizes: tuple[int, ...]) -> WKVState:
    """Padded with empty sums. Their unit is very small, but finite, as infinity minus infinity is not a number."""
    empty = torch.finfo(sums.scale.dtype).min / 2
    return WKVState(F.pad(sums.a, sizes), F.pad(sums.b, sizes), F.pad(sums.scale, sizes, value=empty))


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `regbench.ops.wkv.wkv`. It computes in float64 if a tensor has it, else in float32."""
    if k.numel() == 0:
        return torch.empty_like(k), (a, b, scale)
    inputs = (w, u, k, v, a, b, scale.detach())
    dtype = common_type(*inputs, least=torch.float32)
    given, length = k.dtype, k.shape[1]
    # Half precision is too coarse for sums over a whole sequence.
    with torch.autocast(k.device.type, enabled=False):
        w, u, k, v, a, b, scale = (tensor.to(dtype) for tensor in inputs)
        within = _cut(_terms(k, v))
        reach = 1
        while reach < within.a.shape[2]:
            within = _join(_later(within, reach), reach * w, within)
            reach *= 2
        starts, state = _carry(within, w, WKVState(a, b, scale), length)
        passed = torch.arange(within.a.shape[2], device=k.device)[:, None]
        past = _join(starts, passed * w, _later(within, 1))
        top, bottom, _ = _join(past, 0 * w, _cut(_terms(u + k, v)))
    return (top / bottom).flatten(1, 2)[:, :length].to(given), state


def _terms(log_weight: Tensor, v: Tensor) -> WKVState:
    """exp(log_weight) v and exp(log_weight), in the unit exp(log_weight)."""
    scale = log_weight.detach()
    weight = torch.exp(log_weight - scale)  # it is 1, and has the gradient
    return WKVState(weight * v, weight, scale)


def _join(earlier: WKVState, decay: Tensor, later: WKVState) -> WKVState:
    """exp(-decay) times the earlier sums, plus the later sums, in the larger of their units."""
    kept = earlier.scale - decay
    largest = torch.maximum(kept, later.scale).detach()
    past, now = torch.exp(kept - largest), torch.exp(later.scale - largest)
    return WKVState(past * earlier.a + now * later.a, past * earlier.b + now * later.b, largest)


def _cut(terms: WKVState) -> WKVState:
    """Cut into chunks, the last one padded: (B, L, D) -> (B, N, C, D)."""
    size = min(CHUNK, terms.a.shape[1])
    return _each(_padded(terms, (0, 0, 0, -terms.a.shape[1] % size)), lambda x: x.unflatten(1, (-1, size)))


def _later(sums: WKVState, places: int) -> WKVState:
    """Moved back in time within each chunk: a position gets the sums of `places` positions earlier. (B, N, C, D)."""
    return _padded(_each(sums, lambda x: x[:, :, :-places]), (0, 0, places, 0))


def _carry(within: WKVState, w: Tensor, state: WKVState, length: int) -> tuple[WKVState, WKVState]:
    """The states between the chunks. `within` (B, N, C, D) has the sums of each chunk up to each position."""
    size = within.a.shape[2]
    starts = []
    for chunk, start in enumerate(range(0, length, size)):
        filled = min(size, length - start)
        starts.append(state)
        state = _join(state, filled * w, WKVState(*(part[:, chunk, filled - 1] for part in within)))
    return WKVState(*(torch.stack(parts, 1)[:, :, None] for parts in zip(*starts, strict=True))), state
