"""WKV by PyTorch operations on any device: time is cut into chunks, so memory grows as L.

The sums of a chunk are built by doubling: a position that has those of the last r positions, and joins to them those of the
position r before, has the sums of the last 2 r. All chunks do so at once; then the state goes on from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 32
"""Positions in a chunk."""


class Sums(NamedTuple):
    """a and b in units of exp(scale), as in `regbench.ops.wkv.WKVState`. No gradient flows through the scale."""

    a: Tensor
    b: Tensor
    scale: Tensor

    def each(self, function: Callable[[Tensor], Tensor]) -> Sums:
        return Sums(*(function(part) for part in self))

    def padded(self, sizes: tuple[int, ...]) -> Sums:
        """With sums of nothing around, in units too small to matter, but finite: infinity less itself is not zero."""
        return Sums(
            F.pad(self.a, sizes),
            F.pad(self.b, sizes),
            F.pad(self.scale, sizes, value=torch.finfo(self.scale.dtype).min / 2),
        )


def wkv_chunked(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, scale: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """See `regbench.ops.wkv.wkv`; computes in float64 if a tensor has it, else in float32."""
    if k.numel() == 0:
        return torch.empty_like(k), (a, b, scale)
    inputs = (w, u, k, v, a, b, scale.detach())
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in inputs) else torch.float32
    given, length = k.dtype, k.shape[1]
    # Sums over a whole sequence are not for half precision.
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
    """exp(log_weight) v and exp(log_weight), each in its own units."""
    scale = log_weight.detach()
    weight = torch.exp(log_weight - scale)  # 1, and has the gradient
    return Sums(weight * v, weight, scale)


def _join(earlier: Sums, decay: Tensor, later: Sums) -> Sums:
    """exp(-decay) times the earlier sums and the later ones together, in the larger of their units."""
    kept = earlier.scale - decay
    largest = torch.maximum(kept, later.scale).detach()
    past, now = torch.exp(kept - largest), torch.exp(later.scale - largest)
    return Sums(past * earlier.a + now * later.a, past * earlier.b + now * later.b, largest)


def _cut(terms: Sums) -> Sums:
    """(B, L, D) -> (B, N, C, D), the last chunk filled up."""
    size = min(CHUNK, terms.a.shape[1])
    return terms.padded((0, 0, 0, -terms.a.shape[1] % size)).each(lambda x: x.unflatten(1, (-1, size)))


def _later(sums: Sums, places: int) -> Sums:
    """Each position takes the sums of the one so many places before; (B, N, C, D), within each chunk."""
    return sums.each(lambda x: x[:, :, :-places]).padded((0, 0, places, 0))


def _carry(within: Sums, w: Tensor, state: Sums, length: int) -> tuple[Sums, Sums]:
    """The state before each chunk (B, N, 1, D), and the one after the last position (B, D), from the sums of every chunk."""
    size = within.a.shape[2]
    starts = []
    for chunk, start in enumerate(range(0, length, size)):
        filled = min(size, length - start)
        starts.append(state)
        state = _join(state, filled * w, Sums(*(part[:, chunk, filled - 1] for part in within)))
    return Sums(*(torch.stack(parts, 1)[:, :, None] for parts in zip(*starts, strict=True))), state
