"""Comba: a delta rule that corrects by a share of what the state held before it decayed, and queries away from the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from architectures._delta_mixer import unit, without_weight_decay
from architectures.gated_deltanet import GatedDeltaNet
from regbench.models.heads import full, join_heads, split_heads
from regbench.models.mixer import Mixer, Paper
from regbench.ops.delta_rule import delta_rule

LEAST = -60.0
"""The log decay is at least this. Of a state that has decayed by exp(-60) nothing is left."""


class Comba(GatedDeltaNet, Mixer):
    """Gated DeltaNet with closed-loop control. Hu et al. 2025, Eq. 5; see `GatedDeltaNet` for what they share.

        S_t = alpha_t S_{t-1} + k_t^T (beta_t v_t - beta~_t k_t S_{t-1})     alpha_t = exp(g_t), and beta~_t = sigmoid(b) beta_t
        z_t = (q_t - d k_t) S_t                                              q also divided by sqrt(d_k / n_heads), and so d k
        y_t = out(norm(z_t) sigmoid(gate(x_t)))

    b and d are one number for each head, and begin at 1 and at 0.02, the authors' choice for small models. The correction reads
    the state before it decays: a "scalar plus low rank" transition. q and k have length 1. The authors' code corrects q before it
    gets length 1, by d sigmoid(b) k. It also gives sigmoid(b) k the length 1 again, so that b has no part in the feedback.
    """

    family = "delta rule"
    paper = Paper("Comba: Improving Bilinear RNNs with Closed-loop Control", "Hu et al.", 2025, arxiv="2506.02475")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: GatedDeltaNet.Options) -> None:
        super().__init__(options)
        self.b = without_weight_decay(torch.ones(options.n_heads))
        self.d = without_weight_decay(torch.full((options.n_heads,), 0.02))

    def advance(self, x: Tensor, state: Any, op: Callable[..., Any] = delta_rule) -> tuple[Tensor, Any]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it. `op` is the recurrence."""
        window, S = state
        mixed = torch.cat([linear(x) for linear in (self.query, self.key, self.value)], dim=-1)
        mixed, window = self.conv(mixed, window)
        q, k, v = (split_heads(part, self.n_heads) for part in F.silu(mixed).split(self.sizes, dim=-1))
        beta = split_heads(full(self.beta(x)).sigmoid(), self.n_heads)  # (B, H, L, 1)
        if self.options.negative_eigenvalues:
            beta = 2 * beta
        g = self.log_decay(x).clamp(min=LEAST)
        q, k = unit(q), unit(k)
        q = (q - self.d[:, None, None] * k) * q.shape[-1] ** -0.5
        # The op's a reads the state after the decay, k reads it before.
        p = self.b.sigmoid()[:, None, None] * k * (-g).exp()[..., None]
        z, S = op(q, beta * k, v, log_decay=g, initial_state=S, a=p, b=-beta * k)
        y: Tensor = self.out(self.gate(x, join_heads(self.norm(full(z)))))
        return y, (window, S)

    def gate(self, x: Tensor, z: Tensor) -> Tensor:
        """(B, L, d_v) -> (B, L, d_v)."""
        return z * self.output_gate(x).sigmoid()
