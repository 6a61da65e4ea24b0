"""mLSTM: the matrix memory of xLSTM, linear attention with exponential gates."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv
from regbench.ops.linear_attention import linear_attention

State = tuple[Tensor, Tensor, Tensor]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, d_inner), C with n as its last column (B, H, K, K + 1), and m
(B, H)."""

TINY = 1e-6


class BlockLinear(nn.Module):
    """A linear map without bias whose matrix has blocks on the diagonal: (..., blocks * size) -> the same."""

    def __init__(self, width: int, size: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width // size, size, size) * std)

    def forward(self, x: Tensor) -> Tensor:
        """(..., blocks * size) -> (..., blocks * size)."""
        blocks = x.unflatten(-1, self.weight.shape[:2])
        return torch.einsum("...bi,boi->...bo", blocks, self.weight).flatten(-2)


class MLSTM(mixer.Mixer):
    """The mLSTM block. Beck et al. 2024, section 2.3, with the stabiliser of section 2.2.

        x, z  = up(u)                                       projection = 2 times as wide
        c     = SiLU(conv(x))
        q, k, v = query(c), key(c), value(x)                maps with blocks of 4 channels on the diagonal
        i, f  = input_gate(q, k, v), forget_gate(q, k, v)   one each for a head: log i' = i, f' = sigmoid(f)
        m_t   = max(log f'_t + m_{t-1}, i_t)                the scale that keeps the exponentials small
        C_t   = exp(log f'_t + m_{t-1} - m_t) C_{t-1} + exp(i_t - m_t) k_t^T v_t / sqrt(d)     n_t likewise, with 1 for v
        h_t   = q_t C_t / max(|q_t n_t|, exp(-m_t))
        y     = down((norm(h) + skip c) SiLU(z))            a layer norm of each head

    d is the width of a head. h does not depend on m, so m has no gradient. Starting values are those of the authors' code: the
    gates' maps begin at zero, and the forget gates' biases between 3 and 6.
    """

    class Options(mixer.Options):
        """The options of mLSTM."""

        projection: int = Field(default=2, ge=1, description="width of the memory's inputs, in units of d_model")
        d_conv: int = Field(default=4, ge=1, description="width of the short convolution")
        block_size: int = Field(default=4, ge=1, description="channels of a block in the maps to q, k and v")

        @property
        def d_inner(self) -> int:
            """Width of the memory's inputs."""
            return self.projection * self.d_model

    family = "linear attention"
    paper = mixer.Paper("xLSTM: Extended Long Short-Term Memory", "Beck et al.", 2024, arxiv="2405.04517")
    feed_forward = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, d_inner, n_heads = options.d_model, options.d_inner, options.n_heads
        for name, number in (("n_heads", n_heads), ("block_size", options.block_size)):
            head_width(d_inner, number, of="projection * d_model", by=name)
        self.n_heads = n_heads
        small = math.sqrt(2 / (5 * d_model))
        self.up = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv = ShortConv(d_inner, options.d_conv, bias=True)
        self.query, self.key, self.value = (BlockLinear(d_inner, options.block_size, small) for _ in range(3))
        self.input_gate, self.forget_gate = (nn.Linear(3 * d_inner, n_heads) for _ in range(2))
        self.norm = nn.LayerNorm(d_inner // n_heads, elementwise_affine=False)
        self.norm_weight = nn.Parameter(torch.ones(d_inner))
        self.skip = nn.Parameter(torch.ones(d_inner))
        self.down = nn.Linear(d_inner, d_model, bias=False)
        nn.init.normal_(self.up.weight, std=small)
        nn.init.normal_(self.down.weight, std=2 / options.n_layers / math.sqrt(d_model))
        for gate in (self.input_gate, self.forget_gate):
            nn.init.zeros_(gate.weight)
        nn.init.normal_(self.input_gate.bias, std=0.1)
        with torch.no_grad():
            self.forget_gate.bias.copy_(torch.linspace(3.0, 6.0, n_heads))

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        width = self.skip.shape[0] // self.n_heads
        memory = torch.zeros(batch, self.n_heads, width, width + 1, device=device, dtype=dtype)
        m = torch.zeros(batch, self.n_heads, device=device, dtype=dtype)
        return self.conv.init_window(batch, device, dtype), memory, m

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, memory, m_before = state
        x, z = self.up(x).chunk(2, dim=-1)
        c, window = self.conv(x, window)
        c = F.silu(c)
        q, k, v = self.query(c), self.key(c), self.value(x)
        gates = torch.cat([q, k, v], dim=-1)
        i, log_f = full(self.input_gate(gates)).mT, F.logsigmoid(full(self.forget_gate(gates)).mT)  # (B, H, L)
        m = scale(i.detach(), log_f.detach(), m_before)
        log_decay = log_f + torch.cat([m_before[..., None], m[..., :-1]], dim=-1) - m
        q, k, v = (split_heads(part, self.n_heads) for part in (q, k, v))
        k = k * (k.shape[-1] ** -0.5 * (i - m).exp()[..., None])
        # A value that is always 1 comes out as the product of q and n.
        out, memory = linear_attention(q, k, F.pad(v, (0, 1), value=1.0), log_decay, memory)
        out = full(out)
        h = out[..., :-1] / (torch.maximum(out[..., -1].abs(), (-m).exp()) + TINY)[..., None]
        h = join_heads(self.norm(h)) * self.norm_weight
        y: Tensor = self.down((h + self.skip * c) * F.silu(z))
        return y, (window, memory, m[..., -1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """C, n, m and the window."""
        width = options.d_inner // options.n_heads
        return 4 * ((options.d_conv - 1) * options.d_inner + options.d_inner * (width + 1) + options.n_heads)


def scale(i: Tensor, log_f: Tensor, before: Tensor) -> Tensor:
    """m_t = max(log f'_t + m_{t-1}, i_t) for all t: with F the running sum of log f', m_t - F_t is a running maximum.

    Args:
        i: (B, H, L).
        log_f: (B, H, L), log f'.
        before: (B, H), m before the first position.

    Returns:
        m (B, H, L).
    """
    total = log_f.cumsum(-1)
    largest: Tensor = (i - total).cummax(-1).values
    return total + torch.maximum(largest, before[..., None])
