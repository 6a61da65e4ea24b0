"""S4 in its diagonal form, S4D: a linear state space for each channel, computed as a long convolution."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.ops.long_conv import long_conv


class DiagonalSSM(nn.Module):
    """A state space of N complex states for each channel: S4D (Gu et al. 2022, arXiv 2206.11893). ICLL Eq. 75-80.

        A       = -exp(log_A_real) + i A_imag      the diagonal of the state matrix; B is 1
        Delta   = exp(log_dt)                      the step size of each channel
        A-bar   = exp(Delta A)                     zero-order hold (S4D section 3)
        B-bar   = (A-bar - 1) / A
        h_i     = A-bar h_{i-1} + x_i              S_i = A-bar S_{i-1} + B-bar x_i (ICLL Eq. 79), so S = B-bar h
        y_i     = 2 Re(C B-bar h_i) + D x_i        y_i = C S_i (ICLL Eq. 80), and a skip connection
        K-bar_l = 2 Re(C B-bar A-bar^l)            the same as a convolution (ICLL Eq. 77)

    States come in conjugate pairs, and one of each pair is kept. `d_state` counts both. Each channel has parameters for N / 2.
    """

    def __init__(
        self, channels: int, d_state: int, init: Literal["lin", "inv"], dt_min: float = 1e-3, dt_max: float = 1e-1
    ) -> None:
        """Makes the state spaces.

        Args:
            channels: D.
            d_state: N.
            init: the frequencies at the start, S4D-Lin or S4D-Inv.
            dt_min: the smallest step size at the start.
            dt_max: the largest step size at the start.
        """
        super().__init__()
        n = torch.arange(d_state // 2)
        # S4D section 4.3 has two approximations of HiPPO's spectrum: frequencies evenly spaced, or as 1/n.
        frequency = math.pi * n if init == "lin" else d_state / math.pi * (d_state / (2 * n + 1) - 1)
        self.log_dt = nn.Parameter(torch.empty(channels).uniform_(math.log(dt_min), math.log(dt_max)))
        self.log_A_real = nn.Parameter(torch.full((channels, d_state // 2), math.log(0.5)))
        self.A_imag = nn.Parameter(frequency.float().repeat(channels, 1))
        self.C = nn.Parameter(torch.randn(channels, d_state // 2, 2) * 0.5**0.5)  # complex numbers of variance 1
        self.D = nn.Parameter(torch.randn(channels))
        mixer.state_space(self.log_dt, self.log_A_real, self.A_imag)
        mixer.no_weight_decay(self.D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        return long_conv(x, self.kernel(x.shape[1]), self.D)

    def kernel(self, length: int) -> Tensor:
        """The filter K-bar, (D, L).

        With l = i m + j, A-bar^l = (A-bar^m)^i A-bar^j. With m about sqrt(L), the Vandermonde sum is a product of two matrices.
        Together they hold 2 sqrt(L) powers of each state instead of L.
        """
        log_decay, out = self._discretise()
        stride = math.isqrt(length - 1) + 1 if length else 1
        fine = torch.arange(stride, device=log_decay.device)
        coarse = stride * torch.arange(-(-length // stride), device=log_decay.device)
        powers = torch.exp(log_decay[..., None] * fine)  # (D, N / 2, m)
        starts = out[..., None] * torch.exp(log_decay[..., None] * coarse)  # (D, N / 2, L / m)
        return 2 * (starts.transpose(1, 2) @ powers).real.flatten(1)[:, :length]

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The state h before the first position: zeros (B, D, N / 2), complex."""
        dtype = (dtype or torch.get_default_dtype()).to_complex()
        return torch.zeros(batch, *self.A_imag.shape, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: (B, D) and h before it -> (B, D) and h after it."""
        log_decay, out = self._discretise()
        state = log_decay.exp() * state + x[..., None]
        return 2 * (out * state).sum(-1).real + self.D * x, state

    def _discretise(self) -> tuple[Tensor, Tensor]:
        """The complex log A-bar and C B-bar, (D, N / 2) each."""
        A = torch.complex(-self.log_A_real.exp(), self.A_imag)
        log_decay = self.log_dt.exp()[:, None] * A
        return log_decay, torch.view_as_complex(self.C) * torch.expm1(log_decay) / A


class S4(mixer.Mixer):
    """The S4D layer: a diagonal state space, GELU, and a gated linear unit (GLU) across channels."""

    class Options(mixer.Options):
        """The options of S4."""

        d_state: int = Field(default=64, ge=2, multiple_of=2, description="state of each channel, N")
        init: Literal["lin", "inv"] = Field(default="lin", description="frequencies at the start: S4D-Lin or S4D-Inv")
        glu: bool = Field(default=True, description="whether the output map is a gated linear unit, or linear")

    family = "state space"
    paper = mixer.Paper(
        "On the Parameterization and Initialization of Diagonal State Space Models",
        "Gu et al.",
        2022,
        arxiv="2206.11893",
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.glu = options.glu
        self.ssm = DiagonalSSM(options.d_model, options.d_state, options.init)
        self.out = nn.Linear(options.d_model, (1 + options.glu) * options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        return self._mix_channels(self.ssm(x))

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The state before the first position: zeros (B, D, N / 2), complex."""
        return self.ssm.init_state(batch, device, dtype)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position: (B, D) and the state before it -> (B, D) and the state after it."""
        y, state = self.ssm.step(x, state)
        return self._mix_channels(y), state

    def _mix_channels(self, y: Tensor) -> Tensor:
        """GELU and the output map: (..., D) -> (..., D)."""
        y = self.out(F.gelu(y))
        return F.glu(y, dim=-1) if self.glu else y

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of N / 2 complex numbers for each channel."""
        return 4 * options.d_model * options.d_state
