"""Based: linear attention with a Taylor series of the exponential, beside softmax attention in a short window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._attention import Cache, attend, empty_cache
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.rotary import rotate

State = tuple[Tensor, Cache, int]
"""S (B, H, F, V + 1), the keys and values in the window, and the number of positions so far."""

CHUNK = 128
"""Positions that see each other through the polynomial itself, and all earlier ones through S."""


class Based(mixer.Mixer):
    """Based. Arora et al. 2024, section 4: what reads all of the past is linear, and what is exact sees the last few positions.

        q, k, v = query(x), key(x), value(x)                   q and k have d = feature_dim channels a head
        phi(q)  = 1, q / d^(1/4), q_a q_b / d^(1/2) (a < b), q_a^2 / (2 d)^(1/2)
        S_i     = S_{i-1} + phi(k_i)^T (v_i, 1)
        z_i     = phi(q_i) S_i, divided by its last channel    A_ij proportional to 1 + s + s^2 / 2, s = <q_i, k_j> / sqrt(d)
        l_i     = softmax attention to the last `window` positions, by heads of its own with rotary positions
        y_i     = out(z_i, l_i)

    The authors put z and l into layers of their own, with gated convolutions in the layers between. Here a layer has both, so
    that a model of any depth has both, and `short_conv` is the convolution. With window=0 a layer is their linear attention
    alone, as in their code. Their order is a `hybrid` of this and a transformer with a window.
    """

    class Options(mixer.Options):
        """The options of Based."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        feature_dim: int = Field(default=16, ge=1, le=64, description="d: channels of a head's queries and keys")
        window: int = Field(default=64, ge=0, description="positions of the softmax attention; 0 for none of it")

        @property
        def features(self) -> int:
            """Channels of phi, F."""
            return 1 + self.feature_dim + self.feature_dim * (self.feature_dim + 1) // 2

    family = "linear attention"
    paper = mixer.Paper(
        "Simple linear attention language models balance the recall-throughput tradeoff",
        "Arora et al.",
        2024,
        arxiv="2402.18668",
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        self.n_heads, self.window = n_heads, options.window
        self.width = head_width(d_model, n_heads, rotary=bool(options.window))
        self.query, self.key = (nn.Linear(d_model, n_heads * options.feature_dim, bias=False) for _ in range(2))
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.local = nn.Linear(d_model, 3 * d_model, bias=False) if options.window else None
        self.out = nn.Linear((1 + bool(options.window)) * d_model, d_model, bias=False)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. The window fills with the stream."""
        S = torch.zeros(batch, self.n_heads, self.options.features, self.width + 1, device=device, dtype=dtype)
        return S, empty_cache(batch, self.n_heads, (self.width, self.width), device, dtype), 0

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        _, cache, seen = self.init_state(len(x), x.device, x.dtype)
        y, *_ = self._read(x, None, cache, seen)
        return y

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        S, cache, seen = state
        y, pending, cache = self._read(x, S, cache, seen)
        return y, (pending(), cache, seen + x.shape[1])

    def _read(self, x: Tensor, S: Tensor | None, cache: Cache, seen: int) -> tuple[Tensor, Callable[[], Tensor], Cache]:
        """The output (B, L, D), what gives S after it, and the window after it."""
        q, k, v = (split_heads(linear(x), self.n_heads) for linear in (self.query, self.key, self.value))
        with torch.autocast(x.device.type, enabled=False):
            z, pending = taylor_attention(full(q), full(k), F.pad(full(v), (0, 1), value=1.0), S)
            z = join_heads(z[..., :-1] / z[..., -1:])
        if self.local is not None:
            q, k, v = (split_heads(part, self.n_heads) for part in self.local(x).chunk(3, -1))
            nearby, cache = attend(rotate(q, start=seen), rotate(k, start=seen), v, cache, self.window)
            z = torch.cat([z, join_heads(nearby)], -1)
        y: Tensor = self.out(z)
        return y, pending, cache

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of S and of the window. The number of positions is not counted."""
        window = 2 * max(0, options.window - 1) * options.d_model
        return 4 * (options.features * (options.d_model + options.n_heads) + window)


def taylor_attention(q: Tensor, k: Tensor, v: Tensor, S: Tensor | None) -> tuple[Tensor, Callable[[], Tensor]]:
    """Sums of values with the weights 1 + s + s^2 / 2. No feature of a first chunk of queries and of a last one of keys is made.

    Args:
        q: (B, H, L, d).
        k: (B, H, L, d).
        v: (B, H, L, V).
        S: (B, H, F, V), the state before them. None: there is nothing before them.

    Returns:
        (B, H, L, V), and what gives the state after them.
    """
    outputs: list[Tensor] = []
    last: tuple[Tensor, Tensor] | None = None
    for q_c, k_c, v_c in zip(*(part.split(CHUNK, 2) for part in (q, k, v)), strict=True):
        S = S if last is None else _after(S, *last)
        s = q_c @ k_c.mT * q.shape[-1] ** -0.5
        z = (1 + s + s.square() / 2).tril() @ v_c
        outputs.append(z if S is None else z + taylor(q_c) @ S)
        last = k_c, v_c
    assert last is not None
    return torch.cat(outputs, 2), partial(_after, S, *last)


def _after(S: Tensor | None, k: Tensor, v: Tensor) -> Tensor:
    """The state after a chunk."""
    added = taylor(k).mT @ v
    return added if S is None else S + added


def taylor(x: Tensor) -> Tensor:
    """phi: (..., d) -> (..., F). The product of two of them is 1 + s + s^2 / 2 for s = <q, k> / sqrt(d)."""
    d = x.shape[-1]
    x = x * d**-0.25
    a, b = torch.triu_indices(d, d, 1, device=x.device)
    unit = torch.eye(
        d, dtype=x.dtype, device=x.device
    )  # a product with it is faster than to index, and so is its gradient
    return torch.cat([torch.ones_like(x[..., :1]), x, (x @ unit[:, a]) * (x @ unit[:, b]), x.square() * 2**-0.5], -1)
