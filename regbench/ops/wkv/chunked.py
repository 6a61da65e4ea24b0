"""WKV by PyTorch operations on any device. Time is cut into chunks, so memory grows as L.

The sums of a chunk are built by doubling. A position that has the sums of the last r positions, plus those of the position r
earlier, has the sums of the last 2 r. All chunks do this at once. Then the state passes from one chunk to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type

CHUNK = 32
"""Positions in a chunk."""


class Sums(NamedTuple):
    """Sums in units of exp(scale), as in `regbench.ops.wkv.WKVState`. The scale has no gradient."""

    a: Tensor
    b: Tensor
    scale: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> Sums:
        """The same function of all three tensors."""
        return Sums(*(function(part) for part in self))

    def padded(self, sizes: tuple[int, ...]) -> Sums:
        """Padded with empty sums. Their unit is very small, but finite, as infinity minus infinity is not a number."""
        return Sums(
            F.pad(self.a, sizes),
            F.pad(self.b, sizes),
            F.pad(self.scale, sizes, value=torch.finfo(self.scale.dtype).min / 2),
        )


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
        starts, state = _carry(within, w, Sums(a, b, scale), length)
        passed = torch.arange(within.a.shape[2], device=k.device)[:, None]
        past = _join(starts, passed * w, _later(within, 1))
        top, bottom, _ = _join(past, 0 * w, _cut(_terms(u + k, v)))
    return (top / bottom).flatten(1, 2)[:, :length].to(given), state


def _terms(log_weight: Tensor, v: Tensor) -> Sums:
    """exp(log_weight) v and exp(log_weight), in the unit exp(log_weight)."""
    scale = log_weight.detach()
    weight = torch.exp(log_weight - scale)  # it is 1, and has the gradient
    return Sums(weight * v, weight, scale)


def _join(earlier: Sums, decay: Tensor, later: Sums) -> Sums:
    """exp(-decay) times the earlier sums, plus the later sums, in the larger of their units."""
    kept = earlier.scale - decay
    largest = torch.maximum(kept, later.scale).detach()
    past, now = torch.exp(kept - largest), torch.exp(later.scale - largest)
    return Sums(past * earlier.a + now * later.a, past * earlier.b + now * later.b, largest)


def _cut(terms: Sums) -> Sums:
    """Cut into chunks, the last one padded: (B, L, D) -> (B, N, C, D)."""
    size = min(CHUNK, terms.a.shape[1])
    return terms.padded((0, 0, 0, -terms.a.shape[1] % size)).each(lambda x: x.unflatten(1, (-1, size)))


def _later(sums: Sums, places: int) -> Sums:
    """Moved back in time within each chunk: a position gets the sums of `places` positions earlier. (B, N, C, D)."""
    return sums.each(lambda x: x[:, :, :-places]).padded((0, 0, places, 0))


def _carry(within: Sums, w: Tensor, state: Sums, length: int) -> tuple[Sums, Sums]:
    """The states between the chunks. `within` (B, N, C, D) has the sums of each chunk up to each position."""
    size = within.a.shape[2]
    starts = []
    for chunk, start in enumerate(range(0, length, size)):
        filled = min(size, length - start)
        starts.append(state)
        state = _join(state, filled * w, Sums(*(part[:, chunk, filled - 1] for part in within)))
    return Sums(*(torch.stack(parts, 1)[:, :, None] for parts in zip(*starts, strict=True))), state
