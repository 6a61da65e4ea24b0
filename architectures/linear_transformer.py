"""Linear transformer: attention without the softmax, so that it is a recurrence."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.heads import head_width, join_heads, split_heads, start_alike
from regbench.ops.linear_attention import linear_attention
from regbench.ops.linear_attention.naive import linear_attention_weights

TINY = 1e-6
"""Added to the sum of weights, as in the authors' code. With `relu` all weights of a position can be zero."""


class LinearTransformer(mixer.Mixer):
    """Multi-head linear attention. ICLL Eq. 26-33; Katharopoulos et al. 2020, Eq. 4-12.

        q, k, v = query(x), key(x), value(x)           W_q x_i, W_k x_i, W_v x_i (ICLL Eq. 26, 28)
        S_i     = S_{i-1} + phi(k_i)^T v_i             (ICLL Eq. 32)
        z_i     = phi(q_i) S_i / sqrt(d_k)             (ICLL Eq. 33), the same as the sum of A_ij v_j over j <= i with
                                                       A_ij = <phi(q_i), phi(k_j)> / sqrt(d_k) (ICLL Eq. 27, 29)
        y_i     = out(z_i)                             W_o z_i (ICLL Eq. 30)

    phi is the identity, as in ICLL. Weights may then be negative, and are not normalised. With a positive map, elu(x) + 1
    (Katharopoulos et al.) or relu(x), they are normalised: z_i = phi(q_i) S_i / <phi(q_i), sum of phi(k_j) over j <= i>.
    ICLL has no 1 / sqrt(d_k) in Eq. 27. Here it makes the scale independent of a head's width, and W_q can undo it.

    Learned positions are added to the embedding (ICLL Eq. 16), as in the released experiments. With `positions=none` the order of
    tokens shows only in what has been summed so far.
    """

    class Options(mixer.Options):
        """The options of the linear transformer."""

        feature_map: Literal["identity", "elu", "relu"] = Field(
            default="identity", description="phi: identity, elu(x) + 1 or relu(x); the last two normalise the weights"
        )
        positions: Literal["none", "learned"] = Field(default="learned", description="how positions are encoded")
        mimetic: bool = Field(default=False, description="whether queries and keys begin with the same weights")

    family = "linear attention"
    paper = mixer.Paper(
        "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention",
        "Katharopoulos et al.",
        2020,
        arxiv="2006.16236",
    )
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.n_heads, self.width = options.n_heads, head_width(options.d_model, options.n_heads)
        self.feature_map = options.feature_map
        self.query, self.key, self.value, self.out = (
            nn.Linear(options.d_model, options.d_model, bias=False) for _ in range(4)
        )
        if options.mimetic:
            start_alike(self.query.weight, self.key.weight)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """S before the first position, (B, H, K, V). With normalised weights it has one more column, the sum of phi(k)."""
        columns = self.width + (self.feature_map != "identity")
        return torch.zeros(batch, self.n_heads, self.width, columns, device=device, dtype=dtype)

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, D) and S before it -> (B, L, D) and S after it."""
        q, k, v = (split_heads(linear(x), self.n_heads) for linear in (self.query, self.key, self.value))
        if self.feature_map == "identity":
            z, state = linear_attention(q * self.width**-0.5, k, v, initial_state=state)
        else:
            q, k = self._features(q), self._features(k)
            # One more value channel holds 1 everywhere. Its output is the sum of the weights.
            z, state = linear_attention(q, k, F.pad(v, (0, 1), value=1.0), initial_state=state)
            z = z[..., :-1] / (z[..., -1:] + TINY)
        return self.out(join_heads(z)), state

    def weights(self, x: Tensor) -> Tensor:
        """The coefficients A_ij of each head, (B, L, D) -> (B, H, L, L). With `identity` they may be negative."""
        q, k = (split_heads(linear(x), self.n_heads) for linear in (self.query, self.key))
        if self.feature_map == "identity":
            return linear_attention_weights(q * self.width**-0.5, k)
        weights = linear_attention_weights(self._features(q), self._features(k))
        return weights / (weights.sum(-1, keepdim=True) + TINY)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """`forward` with these coefficients in the place of its own: (B, L, D), (B, H, L, L) -> (B, L, D)."""
        y: Tensor = self.out(join_heads(weights @ split_heads(self.value(x), self.n_heads)))
        return y

    def _features(self, x: Tensor) -> Tensor:
        """phi(x), for the positive maps."""
        return F.elu(x) + 1 if self.feature_map == "elu" else F.relu(x)

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether they are asked for (ICLL Eq. 16)."""
        return options.positions == "learned"

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """Bytes of S."""
        columns = options.d_model // options.n_heads + (options.feature_map != "identity")
        return 4 * options.d_model * columns
