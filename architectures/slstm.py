"""sLSTM: the scalar memory of xLSTM, a gated recurrence with exponential gates, whose heads feed back to themselves."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.mlstm import BlockLinear
from regbench.models import mixer
from regbench.models.heads import full, head_width
from regbench.models.short_conv import ShortConv

State = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, D); h, c, n and m, (B, D) each."""


class SLSTM(mixer.Mixer):
    """The sLSTM layer. Beck et al. 2024, section 2.2, with its stabiliser m.

        u          = SiLU(conv(x))                                  depthwise and causal
        i, f, z, o = maps of u, u, x, x, + R h_{t-1} + bias         matrices of one block a head, for R too
        m_t        = max(log sigmoid(f) + m_{t-1}, i)
        i', f'     = exp(i - m_t), exp(log sigmoid(f) + m_{t-1} - m_t)
        c_t        = f' c_{t-1} + i' tanh(z)
        n_t        = f' n_{t-1} + i'
        h_t        = sigmoid(o) c_t / n_t
        y_t        = norm(h_t)                                      a layer norm of each head, with one weight a channel

    h does not depend on m. So m gets no gradient, and begins at minus infinity, where the first step forgets the empty memory.
    The whole recurrence is in float32, also under autocast. Starting values are those of the authors' code: R is zero, and the
    biases of the forget gates go from 5 to -7 in each head, in later layers more slowly. The feed-forward network is the
    backbone's; that of the authors is gated, and has 1.3 times as many units as channels.
    """

    class Options(mixer.Options):
        """The options of sLSTM."""

        d_conv: int = Field(default=4, ge=1, description="width of the short convolution before the gates")

    family = "recurrent"
    paper = mixer.Paper("xLSTM: Extended Long Short-Term Memory", "Beck et al.", 2024, arxiv="2405.04517")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        width = head_width(d_model, n_heads)
        self.n_heads = n_heads
        small = math.sqrt(2 / (5 * d_model))
        self.conv = ShortConv(d_model, options.d_conv, bias=True)
        self.input_gate, self.forget_gate, self.cell, self.output_gate = (
            BlockLinear(d_model, width, small) for _ in range(4)
        )
        self.recurrent = nn.Parameter(torch.zeros(n_heads, width, 4 * width))
        self.bias = nn.Parameter(torch.zeros(4 * d_model))
        self.place(0)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.norm_weight = nn.Parameter(torch.ones(d_model))

    def place(self, layer: int) -> None:
        """Sets the biases of the forget gates."""
        width, depth = self.recurrent.shape[1], layer / max(self.options.n_layers - 1, 1)
        forget = 5 - 12 * (torch.arange(width) / max(width - 1, 1)) ** (0.3 + 1.3 * depth)
        with torch.no_grad():
            self.bias.view(4, self.n_heads, width)[1] = forget

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros, and minus infinity for m."""
        zero = torch.zeros(batch, self.options.d_model, device=device, dtype=dtype)
        return self.conv.init_window(batch, device, dtype), zero, zero, zero, zero - torch.inf

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, *memory = state
        u, window = self.conv(x, window)
        u = F.silu(u)
        given = [self.input_gate(u), self.forget_gate(u), self.cell(x), self.output_gate(x)]
        with torch.autocast(x.device.type, enabled=False):
            raw = torch.stack([full(part) for part in given], 2) + self.bias.view(4, -1)
            raw = raw.unflatten(-1, (self.n_heads, -1)).permute(1, 3, 0, 2, 4).flatten(-2)  # (L, H, B, 4 K)
            h, c, n, m = (full(part).unflatten(-1, (self.n_heads, -1)).transpose(0, 1) for part in memory)
            outputs = []
            for raw_t in raw.unbind(0):
                i, f, z, o = torch.baddbmm(raw_t, h, self.recurrent.to(raw)).chunk(4, -1)
                kept = F.logsigmoid(f) + m
                m = torch.maximum(kept, i).detach()
                i, f = (i - m).exp(), (kept - m).exp()
                c, n = f * c + i * torch.tanh(z), f * n + i
                h = torch.sigmoid(o) * c / n
                outputs.append(h)
            y = self.norm(torch.stack(outputs, 2).movedim(0, 2)).flatten(-2) * self.norm_weight
        h, c, n, m = (part.transpose(0, 1).flatten(1) for part in (h, c, n, m))
        return y, (window, h, c, n, m)

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """h, c, n, m and the window."""
        return 4 * (4 + options.d_conv - 1) * options.d_model
