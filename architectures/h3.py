"""H3: two state spaces, one that shifts and one that sums, with products between them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures.s4 import DiagonalSSM
from regbench.models import mixer
from regbench.models.heads import head_width
from regbench.ops.long_conv import long_conv

NEARLY_ZERO = 0.02
"""Initial standard deviation of all taps, around 1 for the tap of the previous token and around 0 for the others."""

State = tuple[Tensor, Tensor]
"""The last d_shift - 1 keys (B, d_shift - 1, D), and the state of the diagonal state space."""


class H3(mixer.Mixer):
    """Q SSM_diag(SSM_shift(K) V): "hungry hungry hippos", Dao et al. 2022, section 3.1. ICLL Eq. 81-87.

        q, k, v = qkv(x)                     q_i = W_q x_i, k_i = W_k x_i, v_i = W_v x_i (ICLL Eq. 81, 85)
        k_i     = sum_l shift_l k_{i-l}      the shift SSM: its state is the last keys, its C the taps `shift`
        x'_i    = k_i^T v_i                  an outer product for each head (ICLL Eq. 82)
        z'      = ssm(x')                    S_i = A-bar S_{i-1} + B-bar x'_i, z'_i = C S_i (ICLL Eq. 83-84)
        z_i     = q_i z'_i                   (ICLL Eq. 86)
        y_i     = out(z_i)                   (ICLL Eq. 87)

    A head has `head_dim` channels (d_k and d_v in ICLL), and one diagonal state space for all entries of its outer product. With
    head_dim 1, as in the paper's small models, all products are channel by channel.

    At the start the shift SSM passes on the previous token, which is what the paper built it for. So the products begin as
    those of an induction head. With random taps (`shift_init=random`, larger than the authors') the validation loss after a third
    of the budget of pfa-small-v1 is 1.513 nats instead of 1.411 (seed 0).
    """

    class Options(mixer.Options):
        """The options of H3."""

        head_dim: int = Field(default=1, ge=1, description="channels of a head; an outer product has their square")
        d_state: int = Field(default=64, ge=2, multiple_of=2, description="state of the diagonal SSM, N")
        d_shift: int = Field(default=64, ge=1, description="state of the shift SSM: keys it holds")
        init: Literal["lin", "inv"] = Field(default="lin", description="frequencies at the start: S4D-Lin or S4D-Inv")
        shift_init: Literal["lag", "random"] = Field(
            default="lag", description="the shift SSM at the start: the key one back, or random taps"
        )

    family = "state space"
    paper = mixer.Paper(
        "Hungry Hungry Hippos: Towards Language Modeling with State Space Models",
        "Dao et al.",
        2022,
        arxiv="2212.14052",
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        width, self.head_dim = options.d_model, options.head_dim
        head_width(width, self.head_dim, by="head_dim")
        self.qkv = nn.Linear(width, 3 * width)
        taps, direct = torch.randn(width, options.d_shift), torch.randn(width)
        if options.shift_init == "lag":
            taps *= NEARLY_ZERO
            taps[:, min(1, options.d_shift - 1)] += 1
            direct *= NEARLY_ZERO
        self.shift, self.shift_D = nn.Parameter(taps), nn.Parameter(direct)
        self.ssm = DiagonalSSM(width // self.head_dim, options.d_state, options.init)
        self.out = nn.Linear(width, width)
        mixer.no_weight_decay(self.shift_D)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k = long_conv(k, self.shift, self.shift_D)
        z = self.ssm(self._outer(k, v))
        return self._read(q, z)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        width, taps = self.shift.shape
        keys = torch.zeros(batch, taps - 1, width, device=device, dtype=dtype)
        return keys, self.ssm.init_state(batch * self.head_dim**2, device, dtype)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: (B, D) and the state before it -> (B, D) and the state after it."""
        keys, h = state
        q, k, v = self.qkv(x[:, None]).chunk(3, dim=-1)
        keys = torch.cat((keys, k), dim=1)
        k = torch.einsum("btd,dt->bd", keys, self.shift.flip(1))[:, None] + self.shift_D * k
        z, h = self.ssm.step(self._outer(k, v)[:, 0], h)
        return self._read(q, z[:, None])[:, 0], (keys[:, 1:], h)

    def _outer(self, k: Tensor, v: Tensor) -> Tensor:
        """Outer products: (B, L, D), (B, L, D) -> (B head_dim^2, L, heads). Each entry is a sequence of its own."""
        return (self._by_entry(k)[:, :, None] * self._by_entry(v)[:, None]).flatten(0, 2)

    def _read(self, q: Tensor, z: Tensor) -> Tensor:
        """Products with the queries: q (B, L, D), z (B head_dim^2, L, heads) -> (B, L, D)."""
        z = z.unflatten(0, (-1, self.head_dim, self.head_dim))
        z = (self._by_entry(q)[:, :, None] * z).sum(1)  # (B, head_dim, L, heads)
        return self.out(z.permute(0, 2, 3, 1).flatten(2))

    def _by_entry(self, x: Tensor) -> Tensor:
        """(B, L, heads head_dim) -> (B, head_dim, L, heads)."""
        return x.unflatten(2, (-1, self.head_dim)).permute(0, 3, 1, 2)

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of the last keys and of the state of the diagonal state space."""
        return 4 * options.d_model * (options.d_shift - 1 + options.head_dim * options.d_state)
