"""Gated DeltaNet-2: a delta rule that erases and writes with gates of their own, one for each channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._delta_mixer import start_small, unit
from architectures.kimi_delta_attention import KimiDeltaAttention
from regbench.models.heads import full, join_heads, split_heads
from regbench.models.mixer import Mixer, Paper
from regbench.ops.delta_rule import delta_rule


class GatedDeltaNet2(KimiDeltaAttention, Mixer):
    """Kimi Delta Attention whose beta is two gates. Hatamizadeh et al. 2026, section 3; see `KimiDeltaAttention`.

        b_t = sigmoid(erase(x_t)), times 2 with negative eigenvalues    one for each channel of a key
        w_t = sigmoid(write(x_t))                                       one for each channel of a value
        S_t = S' + k_t^T (w_t v_t - (b_t k_t) S'), where S' = exp(g_t) S_{t-1}

    With b = w = beta it is Kimi Delta Attention. With one decay for a head, too, it is Gated DeltaNet.
    """

    family = "delta rule"
    paper = Paper(
        "Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention", "Hatamizadeh et al.", 2026, "2605.22791"
    )

    def __init__(self, options: KimiDeltaAttention.Options) -> None:
        super().__init__(options)
        del self.beta
        self.erase = nn.Linear(options.d_model, options.d_k, bias=False)
        self.write = nn.Linear(options.d_model, options.d_v, bias=False)
        start_small(self.erase, self.write)

    def advance(self, x: Tensor, state: Any, op: Callable[..., Any] = delta_rule) -> tuple[Tensor, Any]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it. `op` is the recurrence."""
        window, S = state
        mixed = torch.cat([linear(x) for linear in (self.query, self.key, self.value)], dim=-1)
        mixed, window = self.conv(mixed, window)
        q, k, v = (split_heads(part, self.n_heads) for part in F.silu(mixed).split(self.sizes, dim=-1))
        b, w = (split_heads(full(gate(x)).sigmoid(), self.n_heads) for gate in (self.erase, self.write))
        if self.options.negative_eigenvalues:
            b = 2 * b
        q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
        z, S = op(q, k, w * v, log_decay=self.log_decay(x), initial_state=S, a=b * k, b=-k)
        y: Tensor = self.out(self.gate(x, join_heads(self.norm(full(z)))))
        return y, (window, S)
