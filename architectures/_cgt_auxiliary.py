"""The auxiliary loss of CGT: y is frozen at the end of a random prefix, and x alone, run afresh, predicts what follows.

CGT section 3.2; Zhmoginov et al. 2024, section 3.5 and Figures 2 and 6. A window begins at a random `start` of each row; its
first `context` tokens (l_Delta) may be read but are not predicted; the `horizon` tokens after them are. Positions in the window
count from 0 and its first input is the separator, as for a specialised model that is given that text alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Freeze = Literal["prefix", "context", "tail", "never"]
"""Which y a window is read with:

prefix: that of the window's start: all of it is read by one specialised model that never saw what was before (2024, Fig. 6b).
context: that of the end of the context, in the whole window: a specialised model that reads part of its own prompt again
    (2024, Fig. 6a).
tail: each position's own within the context, and behind it that of its end (2024, section 4.2, as the formula has it).
never: each position's own (2024, section 3.5, before the augmentations).
"""


@dataclass(frozen=True)
class Windows:
    """A window of every row. index: (B, W) positions of the row.  scored: (B, W) which of them are predicted.  cut: (B,) the
    position behind the context.
    """

    index: Tensor
    scored: Tensor
    cut: Tensor

    def take(self, values: Tensor) -> Tensor:
        """What stands in the windows: (B, L, ...) -> (B, W, ...)."""
        return values[torch.arange(len(values), device=values.device)[:, None], self.index]

    def frozen(self, y: Tensor, freeze: Freeze) -> Tensor:
        """The y that the windows are read with: (B, L, d) -> (B, W, d), or (B, 1, d) where it stands still."""
        rows = torch.arange(len(y), device=y.device)
        if freeze == "prefix":
            return y[rows, self.index[:, 0]][:, None]
        if freeze == "context":
            return y[rows, self.cut][:, None]
        index = self.index if freeze == "never" else torch.minimum(self.index, self.cut[:, None])
        return y[rows[:, None], index]


def draw_windows(scored: Tensor, real: Tensor, *, horizon: int | None, context: int, latest: float) -> Windows:
    """A random window of every row: its start is uniform over 0 .. latest n - context, n the row's length.

    At least one token follows the context, where the row has so many. scored, real: (B, L) bool. Draws from torch's generator.
    """
    batch, length = scored.shape
    lengths = real.sum(1)
    last = torch.minimum((latest * lengths).long() - context, lengths - 1 - context).clamp(min=0)
    start = (torch.rand(batch, device=scored.device) * (last + 1)).long().clamp(max=last)
    width = length if horizon is None else min(length, context + horizon)
    offset = torch.arange(width, device=scored.device)
    index = start[:, None] + offset
    inside = (index < length) & (offset >= context)
    index = index.clamp(max=length - 1)
    return Windows(index, inside & scored.gather(1, index), (start + context).clamp(max=length - 1))


def augment(y: Tensor, smooth: int, shift: int) -> Tensor:
    """y made vaguer in time: each row is a moving average over a random 1..smooth positions, a random 0..shift positions late.

    (B, L, d) -> (B, L, d), causal: position t takes from positions up to t - shift, and from position 0 where there are none.
    Zhmoginov et al. 2024, section 3.5, "y sequence augmentations"; the paper does not say how it smoothed and shifted.
    """
    batch, length, _ = y.shape
    device = y.device
    width = 1 + (torch.rand(batch, 1, device=device) * smooth).long().clamp(max=smooth - 1)
    late = (torch.rand(batch, 1, device=device) * (shift + 1)).long().clamp(max=shift)
    end = (torch.arange(length, device=device) - late).clamp(min=0)
    begin = (end - width + 1).clamp(min=0)
    sums = torch.cat([torch.zeros_like(y[:, :1]), y.cumsum(1)], dim=1)
    rows = torch.arange(batch, device=device)[:, None]
    return (sums[rows, end + 1] - sums[rows, begin]) / (end + 1 - begin)[..., None]
