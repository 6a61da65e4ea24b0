"""HGRN2: a gated recurrence whose state is a matrix, where what is forgotten is what is written."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._delta_mixer import start_small
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.ops.linear_attention import linear_attention


class HGRN2(mixer.Mixer):
    """HGRN2. Qin et al. 2024, section 3.

        o, g, i = SiLU(output_gate(x)), forget_gate(x), input(x)
        f_t     = beta + (1 - beta) sigmoid(g_t)               beta is the lower bound of a channel's decay
        S_t     = diag(f_t) S_{t-1} + (1 - f_t)^T i_t          gated linear attention with keys 1 - f
        z_t     = o_t S_t / sqrt(d_k)
        y_t     = out(norm(z_t))                               an RMS norm over all heads

    In the first layer beta is zero. In layer l of L it is learned, and begins at l / L, as in flash-linear-attention. There the
    bounds of all layers are running sums of one softmax, so that they grow with the layer. Here each layer has its own, the
    sigmoid of a parameter. Projections begin as those of GLA.
    """

    class Options(mixer.Options):
        """The options of HGRN2."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")

    family = "linear attention"
    paper = mixer.Paper("HGRN2: Gated Linear RNNs with State Expansion", "Qin et al.", 2024, arxiv="2404.07904")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        self.n_heads, self.width = n_heads, head_width(d_model, n_heads)
        self.output_gate, self.forget_gate, self.input, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.norm = nn.RMSNorm(d_model, eps=1e-5)
        self.bound: nn.Parameter | None = None
        start_small(self.output_gate, self.forget_gate, self.input, self.out)

    def place(self, layer: int) -> None:
        """Makes the lower bound, of which the first layer has none."""
        if layer:
            share = layer / max(self.options.n_layers, layer + 1)
            self.bound = nn.Parameter(torch.full((self.options.d_model,), share).logit())

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """S before the first position, (B, H, K, K)."""
        return torch.zeros(batch, self.n_heads, self.width, self.width, device=device, dtype=dtype)

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, D) and S before it -> (B, L, D) and S after it."""
        o, g, i = F.silu(self.output_gate(x)), full(self.forget_gate(x)), self.input(x)
        log_f, k = F.logsigmoid(g), torch.sigmoid(-g)  # k is 1 - f, without a difference of what is nearly equal
        if self.bound is not None:
            log_f = torch.logaddexp(F.logsigmoid(self.bound), F.logsigmoid(-self.bound) + log_f)
            k = torch.sigmoid(-self.bound) * k
        o, k, i, log_f = (split_heads(part, self.n_heads) for part in (o, k, i, log_f))
        z, state = linear_attention(o * self.width**-0.5, k, i, log_f, state)
        y: Tensor = self.out(self.norm(full(join_heads(z))))
        return y, state

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of S."""
        return 4 * options.d_model**2 // options.n_heads
