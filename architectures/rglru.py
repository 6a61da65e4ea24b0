"""RG-LRU: a gated linear recurrence of single channels, the recurrent block of Griffin and Hawk."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from architectures.mlstm import BlockLinear
from regbench.models import mixer
from regbench.models.heads import full, head_width
from regbench.models.short_conv import ShortConv
from regbench.ops.linear_attention import linear_attention

State = tuple[Tensor, Tensor, int]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, d_rnn), h (B, d_rnn), and the number of positions so far."""

SHARPNESS = 8.0
"""c: a channel's decay is a^c where its gate is fully open."""

STEEPEST = 1000.0
"""The largest derivative of the root in the input's factor. That of a root of nearly 0 would be infinite."""


class RGLRU(mixer.Mixer):
    """The recurrent block of Griffin. De et al. 2024, sections 2.3 and 2.4.

        x_t   = conv(in_x(u))                                  causal and depthwise
        r_t   = sigmoid(recurrence_gate(x_t))                  matrices of one block a head
        i_t   = sigmoid(input_gate(x_t))
        log a_t = -c r_t softplus(Lambda)                      c = 8
        h_t   = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t)        the first position has 1 in the place of the root
        y_t   = out(h_t GELU(in_y(u)))

    Each channel is a head of linear attention, with keys and queries of 1. As in the authors' code, the gates read x, the first
    position is not scaled, the root's derivative is at most 1000, GELU is by tanh, and Lambda begins where a is 0.9 to 0.999. The
    authors have 4/3 D channels. The feed-forward network is the backbone's, and theirs is gated. Griffin has local attention in
    every third layer, which is a `hybrid` of this and a transformer with a window.
    """

    class Options(mixer.Options):
        """The options of RG-LRU."""

        expand: float = Field(default=4 / 3, gt=0, description="channels of the recurrence, in units of d_model")
        d_conv: int = Field(default=4, ge=1, description="width of the short convolution")

        @property
        def d_rnn(self) -> int:
            """Channels of the recurrence: the multiple of n_heads nearest to expand * d_model."""
            return max(1, round(self.expand * self.d_model / self.n_heads)) * self.n_heads

    family = "recurrent"
    paper = mixer.Paper(
        "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models",
        "De et al.",
        2024,
        arxiv="2402.19427",
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, d_rnn = options.d_model, options.d_rnn
        width = head_width(d_rnn, options.n_heads, of="expand * d_model")
        self.in_x, self.in_y = nn.Linear(d_model, d_rnn), nn.Linear(d_model, d_rnn)
        self.conv = ShortConv(d_rnn, options.d_conv, bias=True)
        self.recurrence_gate, self.input_gate = (BlockLinear(d_rnn, width, width**-0.5) for _ in range(2))
        self.recurrence_bias, self.input_bias = (nn.Parameter(torch.zeros(d_rnn)) for _ in range(2))
        a = torch.empty(d_rnn).uniform_(0.9**2, 0.999**2).sqrt()
        self.Lambda = nn.Parameter((1 / a - 1).log())
        mixer.state_space(self.Lambda)
        self.out = nn.Linear(d_rnn, d_model)
        for linear, std in (
            (self.in_x, d_model**-0.5),
            (self.in_y, d_model**-0.5),
            (self.conv.conv, 0.1 * options.d_conv**-0.5),
            (self.out, math.sqrt(2 / options.n_layers / d_rnn)),
        ):
            nn.init.normal_(linear.weight, std=std)
            assert linear.bias is not None
            nn.init.zeros_(linear.bias)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        h = torch.zeros(batch, self.options.d_rnn, device=device, dtype=dtype)
        return self.conv.init_window(batch, device, dtype), h, 0

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, h, seen = state
        gate = F.gelu(self.in_y(x), approximate="tanh")
        x, window = self.conv(self.in_x(x), window)
        r, i = full(self.recurrence_gate(x)) + self.recurrence_bias, full(self.input_gate(x)) + self.input_bias
        log_a = -SHARPNESS * r.sigmoid() * F.softplus(self.Lambda)
        scale = _Root.apply(-torch.expm1(2 * log_a))
        if not seen:
            scale = torch.cat([torch.ones_like(scale[:, :1]), scale[:, 1:]], 1)
        v = (scale * i.sigmoid() * full(x)).mT[..., None]  # (B, H, L, 1)
        one = torch.ones_like(v)
        z, S = linear_attention(one, one, v, log_a.mT, h[..., None, None])
        y: Tensor = self.out(z[..., 0].mT * gate)
        return y, (window, S[..., 0, 0], seen + x.shape[1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of h and of the window. The number of positions is not counted."""
        return 4 * options.d_rnn * options.d_conv


class _Root(torch.autograd.Function):
    """The square root, with a derivative of at most `STEEPEST`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The root of x."""
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        """The gradient of x."""
        (root,) = ctx.saved_tensors
        gradient: Tensor = upstream / (2 * root).clamp(min=1 / STEEPEST)
        return gradient
