"""RWKV-7: a state that decays by channel and unlearns along a direction of its own, with token shifts."""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.rwkv import shift_tokens
from regbench.models.backbone import StreamState, bottleneck, embedding, unembedding
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.mixer import Options, Paper
from regbench.models.model import Model, shift_in
from regbench.ops.delta_rule import WIDEST, delta_rule
from regbench.tasks.base import IO
from regbench.utils.errors import UserError

State = tuple[Tensor, Tensor, Tensor]
"""The last input of the time mixing (B, D), S (B, H, K, K), and the last input of the channel mixing (B, D)."""

FASTEST = math.exp(-0.5)
"""The largest rate of decay: w is at least exp(-0.6065) = 0.545."""


class LowRank(nn.Module):
    """start + inner(x A) B for a map from D to `rank` and back: A begins at zero, B orthogonal and small."""

    def __init__(self, start: Tensor | None, width: int, rank: int, inner: str = "none") -> None:
        super().__init__()
        self.start = None if start is None else nn.Parameter(start)
        self.down = nn.Parameter(torch.zeros(width, rank))
        self.up = nn.Parameter(
            nn.init.orthogonal_(torch.empty(rank, width), gain=0.1 * max(1.0, (rank / width) ** 0.5))
        )
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        hidden = x @ self.down
        hidden = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}.get(self.inner, lambda h: h)(hidden)
        out = hidden @ self.up
        return out if self.start is None else self.start + out


class TimeMixing(nn.Module):
    """The part that looks back: Peng et al. 2025, section 4.

    r, w, k, v, a, g read x moved towards its predecessor, each by weights of its own.

        log w = -exp(-1/2) sigmoid(decay(x))
        v     = v moved towards the first layer's v by sigmoid(value_residual(x)), in all layers but the first
        k^    = k k_k of length 1 in each head, the direction that is unlearnt
        k~    = k (1 + (a - 1) k_a), a = sigmoid(rate(x)) being the rate of learning
        S     = S (diag w - k^T (a k^)) + v^T k~, here transposed, by the op `delta_rule`
        y     = output(g (norm(r S) + (r r_k k~) v)), a group norm, each head a group
    """

    def __init__(self, options: Any, layer: int) -> None:
        super().__init__()
        width, heads = options.d_model, options.n_heads
        self.n_heads = heads
        depth, height = layer / max(options.n_layers - 1, 1), 1 - layer / options.n_layers
        place = torch.arange(width) / width
        powers = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
        self.shift = nn.ParameterDict({name: nn.Parameter(1 - place ** (p * height)) for name, p in powers.items()})
        line = torch.arange(width) / max(width - 1, 1)
        middle = max((width // heads - 1) / 2, 0.5)
        zigzag = (torch.arange(width) % (width // heads) - (width // heads - 1) / 2) / middle
        zigzag = zigzag * zigzag.abs()
        slow = -6 + 6 * line ** (1 + depth**0.3) + 0.5 + 2.5 * zigzag
        self.decay = LowRank(slow, width, rank(2.5, width), "tanh")
        self.rate = LowRank(-0.19 + 0.3 * zigzag + 0.4 * (line - 0.5), width, rank(2.5, width))
        self.gate = LowRank(None, width, rank(5, width), "sigmoid")
        self.value_residual = LowRank(0.73 - 0.4 * (line - 0.5), width, rank(1.7, width)) if layer else None
        self.k_k = nn.Parameter(0.71 - 0.1 * (line - 0.5))
        self.k_a = nn.Parameter(torch.full((width,), 1.02))
        self.r_k = nn.Parameter(torch.full((heads, width // heads), -0.04))
        self.receptance, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.GroupNorm(heads, width, eps=64e-5)
        for linear, spread in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -spread * width**-0.5, spread * width**-0.5)
        nn.init.zeros_(self.output.weight)

    def forward(self, x: Tensor, last: Tensor, S: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The mixing of L positions.

        Args:
            x: (B, L, D).
            last: (B, D), the input before them.
            S: (B, H, K, K), the state before them.
            first: (B, L, D), the first layer's v; None in the first layer.

        Returns:
            y (B, L, D), the state after them, and the first layer's v.
        """
        change = shift_tokens(x, last) - x
        r, w, k, v, a, g = (x + change * self.shift[name] for name in "rwkvag")
        r, k, v = self.receptance(r), self.key(k), self.value(v)
        log_decay = -FASTEST * full(self.decay(w)).sigmoid()
        a, g = self.rate(a).sigmoid(), self.gate(g)
        if self.value_residual is None:
            first = v
        else:
            assert first is not None
            v = torch.lerp(v, first, self.value_residual(x + change * self.shift["v"]).sigmoid().to(v.dtype))
        forgets = F.normalize(full(split_heads(k * self.k_k, self.n_heads)), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, v, a, log_decay = (split_heads(part, self.n_heads) for part in (r, k, v, a, log_decay))
        # The op's a reads the state after the decay, k^ reads it before.
        z, S = delta_rule(r, k, v, log_decay=log_decay, initial_state=S, a=forgets * (-log_decay).exp(), b=-forgets * a)
        # By PyTorch's op itself, as its module refuses a single position of one sequence where heads have one channel.
        norm = self.norm
        normed = torch.group_norm(join_heads(full(z)).flatten(0, 1), self.n_heads, norm.weight, norm.bias, norm.eps)
        normed = normed.view(x.shape)
        bonus = (r * k * self.r_k[:, None]).sum(-1, keepdim=True) * v
        y: Tensor = self.output((normed + join_heads(bonus)) * g)
        return y, S, first


class ChannelMixing(nn.Module):
    """The part that stands in for a feed-forward network: Peng et al. 2025, section 4. y = value(relu(key(x))^2), x moved."""

    def __init__(self, options: Any, layer: int) -> None:
        super().__init__()
        width, hidden = options.d_model, options.expand * options.d_model
        self.shift = nn.Parameter(1 - (torch.arange(width) / width) ** ((1 - layer / options.n_layers) ** 4))
        self.key, self.value = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        nn.init.uniform_(self.key.weight, -0.5 * width**-0.5, 0.5 * width**-0.5)
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D) from the last input (B, D) on."""
        change = shift_tokens(x, last) - x
        y: Tensor = self.value(F.relu(self.key(x + change * self.shift)).square())
        return y


class Block(nn.Module):
    """x + time mixing, then x + channel mixing, each of the normalised x."""

    def __init__(self, options: Any, layer: int) -> None:
        super().__init__()
        self.time_norm, self.channel_norm = nn.LayerNorm(options.d_model), nn.LayerNorm(options.d_model)
        self.time_mixing, self.channel_mixing = TimeMixing(options, layer), ChannelMixing(options, layer)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor, state: State, first: Tensor | None) -> tuple[Tensor, State, Tensor]:
        """(B, L, D) -> (B, L, D) from `state` on, the state after it, and the first layer's v (B, L, D)."""
        last_in_time, S, last_in_channels = state
        timed = self.time_norm(x)
        y, S, first = self.time_mixing(timed, last_in_time, S, first)
        x = x + self.dropout(y)
        channelled = self.channel_norm(x)
        x = x + self.dropout(self.channel_mixing(channelled, last_in_channels))
        return x, (timed[:, -1], S, channelled[:, -1]), first


class RWKV7(Model):
    """RWKV-7 "Goose": Peng et al. 2025, section 4. A whole model, as later layers read the first layer's values.

    Starting values are those of the authors' constructor, which depend on the layer; the output maps begin at zero.
    """

    class Options(Options):
        """The options of RWKV-7."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        expand: int = Field(default=4, ge=1, description="hidden channels of the channel mixing, in units of d_model")

    family = "delta rule"
    paper = Paper('RWKV-7 "Goose" with Expressive Dynamic State Evolution', "Peng et al.", 2025, arxiv="2503.14456")
    takes = ("tokens", "vectors")

    def __init__(self, options: Options, io: IO) -> None:
        super().__init__(options, io)
        head_width(options.d_model, options.n_heads)
        if options.d_model // options.n_heads > WIDEST:
            raise UserError(f"a head has width {options.d_model // options.n_heads}, above {WIDEST}, the largest")
        self.embedding = embedding(io, options.d_model)
        self.first_norm, self.norm = nn.LayerNorm(options.d_model), nn.LayerNorm(options.d_model)
        self.blocks = nn.ModuleList(Block(options, layer) for layer in range(options.n_layers))
        self.bottleneck = bottleneck(io, options.d_model)
        self.unembed = unembedding(io, options.d_model)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""
        logits, _ = self._advance(shift_in(tokens, self.io.separator), self.init_state(len(tokens)))
        return logits

    def init_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first token: zeros."""
        width, heads, weight = self.options.d_model, self.options.n_heads, self.embedding.weight
        zero = weight.new_zeros(batch, width)
        S = weight.new_zeros(batch, heads, width // heads, width // heads)
        one_vector = None if self.bottleneck is None else self.bottleneck.init_state(batch, weight)
        return StreamState(0, [(zero, S, zero) for _ in self.blocks], {}, one_vector)

    def step(self, inputs: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
        """One token of each stream: (B,) -> (B, V) logits of the next, and the state after it."""
        logits, state = self._advance(inputs[:, None], state)
        return logits[:, 0], state

    def _advance(self, inputs: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
        """Inputs (B, L), of vectors (B, L, D_in), -> outputs (B, L, V) from `state` on, and the state after them."""
        x, first, after = self.dropout(self.first_norm(self.embedding(inputs))), None, []
        for block, own in zip(self.blocks, state.mixers, strict=True):
            x, own, first = block(x, own, first)
            after.append(own)
        x, one_vector = self.norm(x), None
        if self.bottleneck is not None:
            assert state.bottleneck is not None
            x, one_vector = self.bottleneck(x, inputs, state.bottleneck)
        return self.unembed(x), StreamState(state.position + inputs.shape[1], after, {}, one_vector)

    def state_bytes(self) -> int:
        """Bytes of recurrent state for one sequence in float32."""
        width = self.options.d_model
        layer: int = 4 * (2 * width + width * width // self.options.n_heads)
        return layer * len(self.blocks) + (0 if self.bottleneck is None else self.bottleneck.state_bytes())


def rank(factor: float, width: int) -> int:
    """The rank that the authors' code suggests: a multiple of 32 near `factor` times the root of the width."""
    return max(32, round(factor * width**0.5 / 32) * 32)
