"""Forgetting transformer: softmax attention whose scores fall by a forget gate at every position in between."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
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

    Two more channels of q_i and k_j have c_i - c_j as their product. So the attention op serves as it is. The softmax does not
    need c_i. Gradients do: each row of the scores' gradient sums to zero, up to rounding. With c_i this rounding cancels. Without
    it the gates' gradients would add it up over all positions. The op runs in float32 even where products are in half precision,
    as the gradient of a gate is a sum over all later positions that nearly cancels. There are no positions: the gates tell order.
    The forget gate's bias begins at zero, and the matrices as PyTorch's, at the authors' width about their 0.02.
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
            wider = F.pad(full(v), (0, q.shape[-1] - v.shape[-1]))  # fused attention wants values as wide as the keys
            z = attention(q, k, wider, exact=True)[..., : v.shape[-1]]
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
    """Queries and keys, whose scaled products are those of q and k (B, H, L, K), plus sums_i - sums_j of the sums (B, H, L).

    Their width is the next multiple of 4 from K + 2 on, as PyTorch's kernels on a GPU want it in float32. The attention op
    divides by its root.
    """
    width = q.shape[-1]
    wider = -(-(width + 2) // 4) * 4
    own, ones, zeros = sums[..., None], torch.ones_like(sums)[..., None], (0, wider - width - 2)
    q = torch.cat([full(q) * (wider / width) ** 0.5, wider**0.5 * torch.cat([own, ones], -1)], -1)
    k = torch.cat([full(k), ones, -own], -1)
    return F.pad(q, zeros), F.pad(k, zeros)
