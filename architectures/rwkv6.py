"""RWKV-6: a matrix state that decays as the input says, with token shifts that the input sets, too."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.rwkv import NEARLY_ZERO, SquaredReLU, shift_tokens
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.ops.linear_attention import linear_attention

State = tuple[Tensor, Tensor, Tensor]
"""The last input of the time mixing (B, D), S (B, H, K, K), and the last input of the channel mixing (B, D)."""

PARTS = ("w", "k", "v", "r", "g")
"""What reads a shifted input: decay, key, value, receptance and gate."""


class TimeMixing(nn.Module):
    """The part that looks back. Peng et al. 2024, section 4.2.

    lerp_s(x) = x_t + (x_{t-1} - x_t) mu_s                              a token shift with fixed weights
    x_s       = x_t + (x_{t-1} - x_t) (mu_s + tanh(lerp(x) A_s) B_s)    one that the input sets, for s in w, k, v, r, g
    log w_t   = -exp(decay + tanh(x_w A) B)
    k, v, r   = key(x_k), value(x_v), receptance(x_r)
    z_t       = r_t (S_{t-1} + diag(u) k_t^T v_t)
    S_t       = diag(w_t) S_{t-1} + k_t^T v_t
    y_t       = output(norm(z_t) SiLU(gate(x_g)))                       a group norm, each head a group

    The op reads S after a position. So it gets keys, values and decays one position later, and the bonus u is added to what it
    gives.
    """

    def __init__(self, width: int, n_heads: int, rank: int, decay_rank: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.mu = nn.Parameter(torch.zeros(width))
        self.mus = nn.ParameterDict({name: nn.Parameter(torch.zeros(width)) for name in PARTS})
        self.down = nn.Parameter(torch.zeros(width, len(PARTS) * rank))
        self.up = nn.Parameter(torch.empty(len(PARTS), rank, width).uniform_(-0.01, 0.01))
        self.decay = nn.Parameter(torch.zeros(width))
        self.decay_down = nn.Parameter(torch.zeros(width, decay_rank))
        self.decay_up = nn.Parameter(torch.empty(decay_rank, width).uniform_(-0.01, 0.01))
        self.bonus = nn.Parameter(torch.zeros(width))
        self.key, self.value, self.receptance, self.gate, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.norm = nn.GroupNorm(n_heads, width, eps=64e-5)
        for linear in (self.key, self.receptance):
            nn.init.normal_(linear.weight, std=NEARLY_ZERO)

    def forward(self, x: Tensor, last: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        """The mixing of L positions.

        Args:
            x: (B, L, D).
            last: (B, D), the input before them.
            S: (B, H, K, K), the state before them.

        Returns:
            (B, L, D), and the state after them.
        """
        change = shift_tokens(x, last) - x
        low = torch.tanh((x + change * self.mu) @ self.down).unflatten(-1, (len(PARTS), -1))
        moved = torch.einsum("blsr,srd->sbld", low, self.up)
        w, k, v, r, g = (x + change * (self.mus[name] + more) for name, more in zip(PARTS, moved, strict=True))
        log_w = -torch.exp(full(self.decay + torch.tanh(w @ self.decay_down) @ self.decay_up))
        k, v, r, log_w = (
            split_heads(part, self.n_heads) for part in (self.key(k), self.value(v), self.receptance(r), log_w)
        )
        k_before, v_before, log_w_before = (F.pad(part, (0, 0, 1, 0))[:, :, :-1] for part in (k, v, log_w))
        z, S = linear_attention(r, k_before, v_before, log_w_before, S)
        z = z + (r * split_heads(self.bonus[None, None], self.n_heads) * k).sum(-1, keepdim=True) * v
        S = log_w[:, :, -1, :, None].exp() * S + full(k[:, :, -1, :, None] * v[:, :, -1, None])
        # By PyTorch's op itself, as its module refuses a single position of one sequence where heads have one channel.
        norm = self.norm
        normed = torch.group_norm(join_heads(full(z)).flatten(0, 1), self.n_heads, norm.weight, norm.bias, norm.eps)
        y: Tensor = self.output(normed.view(x.shape) * F.silu(self.gate(g)))
        return y, S


class ChannelMixing(nn.Module):
    """Channel mixing, in the place of a feed-forward network: sigmoid(receptance(x_r)) value(relu(key(x_k))^2), x shifted."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.mu_k, self.mu_r = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.key, self.value = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.receptance.weight, std=NEARLY_ZERO)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        """(B, L, D), and the input (B, D) before them -> (B, L, D)."""
        change = shift_tokens(x, last) - x
        k = SquaredReLU.apply(self.key(x + change * self.mu_k))
        return self.receptance(x + change * self.mu_r).sigmoid() * self.value(k)


class RWKV6(mixer.Mixer):
    """RWKV-6 "Finch": time mixing t and channel mixing c in one mixer, t(x) + c(norm(x + t(x))). Peng et al. 2024, section 4.

    Where RWKV's channel mixing reads the residual stream, this one reads the mixer's normalised input, as in `rwkv`. Token
    shifts, decays and bonuses begin as in the authors' code, by layer. Their output maps begin at zero, and here as any linear
    map. Keys and receptances begin near zero, and values, gates and the first map of channel mixing as any linear map, where
    theirs are orthogonal. For so narrow models the ranks are a quarter of theirs.
    """

    class Options(mixer.Options):
        """The options of RWKV-6."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        expand: float = Field(
            default=3.5, gt=0, description="hidden channels of the channel mixing, in units of d_model"
        )
        shift_rank: int = Field(default=8, ge=1, description="rank of each map to the token shifts")
        decay_rank: int = Field(default=16, ge=1, description="rank of the map to the decays")

    family = "linear attention"
    paper = mixer.Paper(
        "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", "Peng et al.", 2024, "2404.05892"
    )
    feed_forward = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        width = options.d_model
        head_width(width, options.n_heads)
        self.time_mixing = TimeMixing(width, options.n_heads, options.shift_rank, options.decay_rank)
        self.norm = nn.LayerNorm(width)
        self.channel_mixing = ChannelMixing(width, max(1, round(options.expand * width)))
        self.place(0)

    def place(self, layer: int) -> None:
        """Sets the token shifts, decays and bonuses of this layer."""
        width, time, channels = self.options.d_model, self.time_mixing, self.channel_mixing
        depth, height = layer / max(self.options.n_layers - 1, 1), max(1 - layer / self.options.n_layers, 0.0)
        place, line = torch.arange(width) / width, torch.arange(width) / max(width - 1, 1)
        mu = 1 - place**height
        starts = {
            time.mu: mu,
            time.mus["w"]: mu,
            time.mus["k"]: mu,
            time.mus["v"]: mu - 0.3 * depth,
            time.mus["r"]: 1 - place ** (0.5 * height),
            time.mus["g"]: 1 - place ** (0.5 * height),
            time.decay: -6 + 5 * line ** (0.7 + 1.3 * depth),
            time.bonus: depth * (1 - line) + 0.1 * (torch.arange(1, width + 1) % 3 - 1),
            channels.mu_k: mu,
            channels.mu_r: mu,
        }
        with torch.no_grad():
            for parameter, start in starts.items():
                parameter.copy_(start)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. The input before it is zero."""
        width, heads = self.options.d_model, self.options.n_heads
        zero = torch.zeros(batch, width, device=device, dtype=dtype)
        S = torch.zeros(batch, heads, width // heads, width // heads, device=device, dtype=dtype)
        return zero, S, zero

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        last_in_time, S, last_in_channels = state
        mixed, S = self.time_mixing(x, last_in_time, S)
        normed = self.norm(x + mixed)
        return mixed + self.channel_mixing(normed, last_in_channels), (x[:, -1], S, normed[:, -1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of two inputs and of S."""
        return 4 * (2 * options.d_model + options.d_model**2 // options.n_heads)
