"""Simulator modules of other model families: RMSNorm, rotary positions, ALiBi and gated units.

No auxiliary here has them; they show that the construction reaches models such as LLaMA and BLOOM. Each has the passes of the
modules in `simulator.py`, with the same maps and prefix tokens:

RMSNorm: as layer norm, with the root mean square of each slot. Its matrix is fixed, its bias learns.
Attention: the scores have another form. No gradient flows through them, so the way back to the values is the same.
Gated unit: y = (W x + b) act(V x + c), elementwise. The way to W is exact, that to V a finite difference.

Paper: Appendix I. Its RMS is a sum, here it is a mean as in the models, so our weight is smaller by the root of d.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.tint.explicit import NORM_EPSILON
from architectures.tint.layout import Layout
from architectures.tint.linear import LinearModule
from architectures.tint.simulator import AttentionModule, FiniteDifference
from regbench.models.rotary import rotate


class RMSNormModule(nn.Module):
    """w x / RMS(x) + b of slot 0, with w and b in prefix tokens (I.1, I.2)."""

    def __init__(self, layout: Layout, rate: float, epsilon: float) -> None:
        super().__init__()
        self.layout, self.linear = layout, LinearModule(layout, rate)
        self.difference = FiniteDifference(layout, epsilon)

    def forward(self, x: Tensor, prefix: Tensor) -> Tensor:
        """Slot 0 -> slot 0: (B, T, D) -> (B, T, D). The prefix tokens hold the diagonal matrix of w."""
        return self.linear(self.layout.put(self.layout.get(rms_slots(x, self.layout.slots))), prefix)

    def backward(self, g: Tensor, x: Tensor, prefix: Tensor) -> Tensor:
        """The gradient of x from that of the output, all in slot 0: a finite difference in the direction w g."""
        return self.difference(self.linear.backward(g, prefix), x, partial(rms_slots, slots=self.layout.slots))

    def descent(self, g: Tensor, prefix: Tensor, seen: Tensor) -> Tensor:
        """The prefix tokens after one step of the bias on the positions seen, (B, T) bool."""
        return self.linear.descent(g, prefix, seen, "bias")


class RotaryAttention(AttentionModule):
    """Attention whose queries and keys are turned by their positions (Su et al. 2021)."""

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        return super()._logits(rotate(query), rotate(key))


class AlibiAttention(AttentionModule):
    """Attention with linear biases (I.3, I.4; Press et al. 2021).

    Head n of h adds 2^(-8 n / h) (s - t) to the score of the query at t and the key at s.
    """

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        heads, length = query.shape[1], query.shape[2]
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=query.dtype, device=query.device) / heads)
        place = torch.arange(length, dtype=query.dtype, device=query.device)
        return super()._logits(query, key) + slopes[:, None, None] * (place - place[:, None])


class Gated(NamedTuple):
    """What a gated unit keeps for its way back, each in slot 0: its input, W x + b and V x + c."""

    x: Tensor
    w: Tensor
    v: Tensor


class GatedUnit(nn.Module):
    """(W x + b) act(V x + c) of slot 0 (I.5 to I.8). W, b and V, c stand in prefix tokens of their own.

    A unit of more than d outputs is several of these, as the MLP.
    """

    def __init__(self, layout: Layout, rate: float, epsilon: float, act: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.layout, self.linear, self.epsilon, self.act = layout, LinearModule(layout, rate), epsilon, act

    def forward(self, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Gated]:
        """Slot 0 -> slot 0, and what the way back needs; w and v are prefix tokens."""
        kept = Gated(x, self.linear(x, w), self.linear(x, v))
        return self._gate(kept.w, kept.v), kept

    def upstream(self, g: Tensor, kept: Gated) -> tuple[Tensor, Tensor]:
        """The gradients of W x + b and, by a finite difference, of V x + c, from that of the output; all in slot 0."""
        scaled, moved = kept.w / self.epsilon, kept.v + self.epsilon * g
        return self._gate(g, kept.v), self._gate(scaled, moved) - self._gate(scaled, kept.v)

    def backward(self, g: Tensor, kept: Gated, w: Tensor, v: Tensor) -> Tensor:
        """The gradient of x in slot 0."""
        g_w, g_v = self.upstream(g, kept)
        return self.linear.backward(g_w, w) + self.linear.backward(g_v, v)

    def descent(self, g: Tensor, kept: Gated, w: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Both prefix tokens after one step on the positions seen, (B, T) bool."""
        x = self.layout.put(self.layout.get(kept.x), 1)
        g_w, g_v = self.upstream(g, kept)
        return self.linear.descent(g_w + x, w, seen), self.linear.descent(g_v + x, v, seen)

    def _gate(self, a: Tensor, b: Tensor) -> Tensor:
        """The product a act(b) in slot 0. The other slots are 0, because a is 0 there."""
        return a * self.act(b)


def rms_slots(x: Tensor, slots: int) -> Tensor:
    """Every slot divided by its root mean square, (B, T, D) -> (B, T, D)."""
    parts = x.unflatten(-1, (slots, -1))
    return F.rms_norm(parts, parts.shape[-1:], eps=NORM_EPSILON).flatten(-2)
