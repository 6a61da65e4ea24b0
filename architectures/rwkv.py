"""RWKV-4: a recurrence of exponentially weighted means, with each token mixed with the one before it."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regbench.models import mixer
from regbench.ops.wkv import WKVState, wkv

NEARLY_ZERO = 1e-3
"""Initial standard deviation of weights that begin at zero in the authors' code. So what feeds them has a gradient at once."""

State = tuple[Tensor, WKVState, Tensor]
"""The last input of the time mixing (B, D), the sums of the WKV, and the last input of the channel mixing (B, D)."""


def shift_tokens(x: Tensor, last: Tensor) -> Tensor:
    """The input one position earlier: (B, L, D) -> (B, L, D). Before the first stands `last` (B, D)."""
    return torch.cat([last[:, None], x[:, :-1]], dim=1)


class SquaredReLU(torch.autograd.Function):
    """relu(x)^2. Its backward reads the widest tensor of the model twice, while autograd's own would read it four times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A tensor of any shape -> one of the same shape."""
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of x."""
        (positive,) = ctx.saved_tensors
        return (gradient * positive).mul_(2)


class TimeMixing(nn.Module):
    """Time mixing, the part that looks back. Peng et al. 2023, section 3; ICLL Eq. 64-69.

    k, v, r = key(x), value(x), receptance(x)    W_k x_i, W_v x_i, W_r x_i (ICLL Eq. 64, 68) of x mixed with its predecessor:
                                                 mu x_i + (1 - mu) x_{i-1}, mu being time_mix_k, time_mix_v, time_mix_r
    z       = wkv(w, u, k, v)                    (ICLL Eq. 65-67), w = exp(time_decay), u = time_first
    y       = output(sigmoid(r) z)               W_o (sigma(r_i) z_i) (ICLL Eq. 69)
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key, self.value, self.receptance, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        place = torch.arange(width) / max(width - 1, 1)
        self.time_decay = nn.Parameter(-5 + 8 * place**1.35)
        self.time_first = nn.Parameter(torch.arange(width).add(1).remainder(3).sub(1) * 0.5 + torch.tensor(0.3).log())
        mix = (torch.arange(width) / width) ** 0.75
        self.time_mix_k = nn.Parameter(mix.clone())
        self.time_mix_v = nn.Parameter(mix + 0.15)
        self.time_mix_r = nn.Parameter(mix**0.5)
        for linear in (self.key, self.receptance):
            nn.init.normal_(linear.weight, std=NEARLY_ZERO)

    def forward(self, x: Tensor, last: Tensor, sums: WKVState) -> tuple[Tensor, WKVState]:
        """Several positions from a state.

        Args:
            x: (B, L, D).
            last: (B, D), the input before them.
            sums: the sums of the WKV before them.

        Returns:
            (B, L, D), and the sums after them.
        """
        before = shift_tokens(x, last)
        k = self.key(torch.lerp(before, x, self.time_mix_k))
        v = self.value(torch.lerp(before, x, self.time_mix_v))
        r = self.receptance(torch.lerp(before, x, self.time_mix_r))
        z, sums = wkv(self.time_decay.exp(), self.time_first, k, v, sums)
        return self.output(r.sigmoid() * z), sums


class ChannelMixing(nn.Module):
    """Channel mixing, in the place of a feed-forward network. Peng et al. 2023, section 3.

    y = sigmoid(receptance(x)) value(relu(key(x))^2), where x is mixed with its predecessor.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, hidden, bias=False)
        self.value = nn.Linear(hidden, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        mix = (torch.arange(width) / width) ** 0.75
        self.time_mix_k = nn.Parameter(mix.clone())
        self.time_mix_r = nn.Parameter(mix.clone())
        nn.init.normal_(self.receptance.weight, std=NEARLY_ZERO)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        """(B, L, D), and the input (B, D) before them -> (B, L, D)."""
        before = shift_tokens(x, last)
        k = SquaredReLU.apply(self.key(torch.lerp(before, x, self.time_mix_k)))
        r = self.receptance(torch.lerp(before, x, self.time_mix_r))
        return r.sigmoid() * self.value(k)


class RWKV(mixer.Mixer):
    """Time mixing t and channel mixing c in one mixer: t(x) + c(norm(x + t(x))). ICLL A.6.

    The channel mixing looks one position back, too. So it is part of the mixer, and the backbone adds no feed-forward network.
    Where RWKV's channel mixing reads the residual stream, this one reads the mixer's normalised input.

    Parameters have the names and initial values of the authors' code, with these exceptions:

    - In their code every exponent depends on the layer. Here each layer begins as one in the middle.
    - In their code the output maps begin at zero. Here they begin as any linear map, as otherwise nothing before them could learn
      in the first step. Keys and receptances begin near zero, not at zero, for the same reason.
    - Values and the first map of channel mixing begin as any linear map. In their code they are orthogonal and larger.
    """

    class Options(mixer.Options):
        """The options of RWKV."""

        expand: int = Field(default=4, ge=1, description="hidden channels of the channel mixing, in units of d_model")

    family = "recurrent"
    paper = mixer.Paper("RWKV: Reinventing RNNs for the Transformer Era", "Peng et al.", 2023, arxiv="2305.13048")
    feed_forward = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.time_mixing = TimeMixing(options.d_model)
        self.norm = nn.LayerNorm(options.d_model)
        self.channel_mixing = ChannelMixing(options.d_model, options.expand * options.d_model)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. The input before it is zero."""
        zero = torch.zeros(batch, self.options.d_model, device=device, dtype=dtype)
        return zero, WKVState.zeros(batch, self.options.d_model, device, dtype), zero

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) and the state before it -> (B, L, D) and the state after it."""
        last_in_time, sums, last_in_channels = state
        mixed, sums = self.time_mixing(x, last_in_time, sums)
        normed = self.norm(x + mixed)
        return mixed + self.channel_mixing(normed, last_in_channels), (x[:, -1], sums, normed[:, -1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of two inputs, and of the WKV's two sums and their scale."""
        return 4 * 5 * options.d_model
