"""Kimi Delta Attention: the delta rule on a state of which every key channel decays by itself."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._delta_mixer import DeltaMixer, rates, start_small, step_bias
from regbench.models.heads import split_heads
from regbench.models.mixer import Mixer, Paper


class KimiDeltaAttention(DeltaMixer, Mixer):
    """The delta rule with a decay for each key channel and position. Kimi Team 2025, sections 3 and 4; see `DeltaMixer`.

        g_t = -exp(A_log) softplus(step(x_t) + step_bias)       one A for each head, from U(1, 16)
        y_t = out(norm(z_t) sigmoid(gate(x_t)))

    The maps to the steps and to the gate have the rank of a head's values.
    """

    class Options(DeltaMixer.Options):
        """The options of Kimi Delta Attention."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")

    family = "delta rule"
    paper = Paper("Kimi Linear: An Expressive, Efficient Attention Architecture", "Kimi Team", 2025, arxiv="2510.26692")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        rank = options.d_v // options.n_heads
        self.time_step = nn.Sequential(
            nn.Linear(options.d_model, rank, bias=False), nn.Linear(rank, options.d_k, bias=False)
        )
        self.A_log, self.step_bias = rates(options.n_heads, low=1.0), step_bias(options.d_k)
        self.output_gate = nn.Sequential(nn.Linear(options.d_model, rank, bias=False), nn.Linear(rank, options.d_v))
        start_small(*self.time_step, *self.output_gate)

    def log_decay(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, L, K)."""
        step = split_heads(F.softplus(self.time_step(x) + self.step_bias), self.n_heads)
        return -self.A_log.exp()[:, None, None] * step

    def gate(self, x: Tensor, z: Tensor) -> Tensor:
        """(B, L, d_v) -> (B, L, d_v)."""
        return z * self.output_gate(x).sigmoid()
