"""Gated DeltaNet: the delta rule on a state that decays as the input says."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._delta_mixer import DeltaMixer, rates, start_small, step_bias
from regbench.models.mixer import Mixer, Paper


class GatedDeltaNet(DeltaMixer, Mixer):
    """The delta rule with one decay for each head and position. Yang et al. 2024, sections 3.1 and 3.4; see `DeltaMixer`.

        g_t = -exp(A_log) softplus(step(x_t) + step_bias)       A begins in U(0, 16), the step between 0.001 and 0.1
        y_t = out(norm(z_t) SiLU(gate(x_t)))

    A head's values are twice as wide as its keys. With the authors' widths, 0.75 D and 1.5 D, there are about 6 D^2 parameters.
    """

    class Options(DeltaMixer.Options):
        """The options of Gated DeltaNet, with the authors' widths."""

        expand_k: float = Field(default=0.75, gt=0, description="width of queries and keys, in units of d_model")
        expand_v: float = Field(default=1.5, gt=0, description="width of the values, in units of d_model")

    family = "delta rule"
    paper = Paper("Gated Delta Networks: Improving Mamba2 with Delta Rule", "Yang et al.", 2024, arxiv="2412.06464")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.time_step = nn.Linear(options.d_model, options.n_heads, bias=False)
        self.A_log, self.step_bias = rates(options.n_heads, low=0.0), step_bias(options.n_heads)
        self.output_gate = nn.Linear(options.d_model, options.d_v, bias=False)
        start_small(self.time_step, self.output_gate)

    def log_decay(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, H, L)."""
        return (-self.A_log.exp() * F.softplus(self.time_step(x) + self.step_bias)).mT

    def gate(self, x: Tensor, z: Tensor) -> Tensor:
        """(B, L, d_v) -> (B, L, d_v)."""
        return z * F.silu(self.output_gate(x))
