"""Forgetting transformer: softmax attention whose scores fall by a forget gate at every position in between."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._delta_mixer import full
from regbench.models import mixer
from regbench.models.heads import head_width, join_heads, split_heads
from regbench.ops.attention import attention
from regbench.ops.attention.naive import attention_weights

State = tuple[Tensor, Tensor, Tensor]
"""The keys and values so far, (B, H, t, K) each, and the running sums of the log gates (B, H, t)."""


class ForgettingTransformer(mixer.Mixer):
    """Forgetting attention. Lin et al. 2025, section 3; without the output gate, norms and shifts of its "Pro".

        q, k, v = query(x), key(x), value(x)
        c_t     = sum over s <= t of log sigmoid(forget_gate(x_s))
        A_ij proportional to exp(<q_i, k_j> / sqrt(d_k) + c_i - c_j) for j <= i
        y_i     = out(sum over j of A_ij v_j)

    c_i is the same for all j, so the softmax does not need it. -c_j is the product of one more channel of q_i, a constant, with
    one more of k_j. So the attention op serves as it is, and no (L, L) matrix is made. It runs in float32 even where products
    are in half precision: the gradient of a gate is a sum over all later positions that nearly cancels. There are no positions:
    the gates tell order. The forget gate's bias begins at zero, and the matrices as PyTorch's, at the authors' width about
    their 0.02.
    """

    family = "attention"
    paper = mixer.Paper(
        "Forgetting Transformer: Softmax Attention with a Forget Gate", "Lin et al.", 2025, "2503.02130"
    )
    training_defaults: ClassVar = {"learning_rate": 1e-3}

    def __init__(self, options: mixer.Options) -> None:
        super().__init__(options)
        head_width(options.d_model, options.n_heads)
        self.n_heads = options.n_heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(options.d_model, options.d_model, bias=False) for _ in range(4)
        )
        self.forget_gate = nn.Linear(options.d_model, options.n_heads)
        nn.init.zeros_(self.forget_gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        q, k, v, log_f = self._inputs(x)
        with torch.autocast(x.device.type, enabled=False):
            q, k = biased(q, k, log_f.cumsum(-1))
            z = attention(q, k, F.pad(full(v), (0, 1)))[..., :-1]  # fused attention wants values as wide as the keys
        y: Tensor = self.out(join_heads(z))
        return y

    def weights(self, x: Tensor) -> Tensor:
        """What each head attends to, (B, L, D) -> (B, H, L, L)."""
        q, k, _, log_f = self._inputs(x)
        return attention_weights(*biased(q, k, log_f.cumsum(-1)))

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these weights in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        y: Tensor = self.out(join_heads(weights @ self._inputs(x)[2]))
        return y

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The cache before the first position. It grows with the stream."""
        empty = torch.zeros(batch, self.n_heads, 0, self.options.d_model // self.n_heads, device=device, dtype=dtype)
        return empty, empty, empty[..., 0]

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: (B, D) -> (B, D), and the cache with its key, value and running sum."""
        q, k, v, log_f = self._inputs(x[:, None])
        keys, values, sums = state
        total = log_f if not sums.shape[-1] else log_f + sums[..., -1:]
        keys, values, sums = torch.cat([keys, k], 2), torch.cat([values, v], 2), torch.cat([sums, total], 2)
        scores = (q @ keys.mT) * q.shape[-1] ** -0.5 + (total - sums)[:, :, None]
        y: Tensor = self.out((scores.softmax(-1) @ values).flatten(1))
        return y, (keys, values, sums)

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(B, L, D) -> queries, keys and values (B, H, L, K), and log sigmoid of the gates (B, H, L)."""
        q, k, v = (split_heads(linear(x), self.n_heads) for linear in (self.query, self.key, self.value))
        return q, k, v, F.logsigmoid(full(self.forget_gate(x)).mT)

    @classmethod
    def state_bytes(cls, options: Any) -> None:
        """None, as the cache grows with L."""
        return


def biased(q: Tensor, k: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, H, L, K + 1), whose scaled products are those of q and k minus the keys' sums (B, H, L).

    The attention op divides by the root of the wider width.
    """
    width, wider = q.shape[-1], q.shape[-1] + 1
    ones = sums.new_full((*q.shape[:3], 1), wider**0.5)
    return torch.cat([full(q) * (wider / width) ** 0.5, ones], -1), torch.cat([full(k), -sums[..., None]], -1)
