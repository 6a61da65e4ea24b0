"""N-gram heads as layers that any architecture can take (ICLL section 6, Eq. 12-13, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from regbench.ops.ngram import NGramIndex, NGramState, ngram_head


class NGramHead(nn.Module):
    """NGH^n(h)_t = W1 h_t + W2 (A(n) h)_t: 2 D^2 parameters, no attention to learn. ICLL Eq. 13.

    `own` is W1 and `matched` W2; A(n) h is the mean of what followed the earlier occurrences of the last n tokens.
    """

    def __init__(self, d_model: int, order: int) -> None:
        super().__init__()
        self.order = order
        self.own = nn.Linear(d_model, d_model, bias=False)
        self.matched = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, index: NGramIndex) -> Tensor:
        """(B, L, D) -> (B, L, D), with the index of the tokens read at these positions."""
        out: Tensor = self.own(x) + self.matched(ngram_head(index.tokens, x, self.order, index=index))
        return out

    def init_state(self) -> NGramState:
        return NGramState(self.order)

    def step(self, x: Tensor, tokens: Tensor, state: NGramState) -> Tensor:
        """One position: (B, D), (B,) -> (B, D); the state is changed in place."""
        out: Tensor = self.own(x) + self.matched(state.step(tokens, x))
        return out


class NGramHeads(nn.Module):
    """NGH(n1, n2, ...): heads one after the other, each on the residual stream behind a norm.

    With `mlp`, a feed-forward network of 6 D^2 parameters follows, which for three heads makes the 12 D^2 of an ordinary
    layer, as in the paper's language models (ICLL section 6, Setup: Language Modeling). Norms are not counted.
    """

    def __init__(self, d_model: int, orders: Sequence[int], mlp: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in orders)
        self.heads = nn.ModuleList(NGramHead(d_model, order) for order in orders)
        self.mlp_norm = nn.LayerNorm(d_model) if mlp else None
        self.up = nn.Linear(d_model, 3 * d_model, bias=False) if mlp else None
        self.down = nn.Linear(3 * d_model, d_model, bias=False) if mlp else None

    def forward(self, x: Tensor, index: NGramIndex) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        for norm, head in zip(self.norms, self.heads, strict=True):
            x = x + head(norm(x), index)
        return self._mlp(x)

    def init_state(self) -> list[NGramState]:
        return [head.init_state() for head in self.heads]  # type: ignore[operator]

    def step(self, x: Tensor, tokens: Tensor, state: list[NGramState]) -> Tensor:
        """One position: (B, D), (B,) -> (B, D); the state is changed in place."""
        for norm, head, own in zip(self.norms, self.heads, state, strict=True):
            x = x + head.step(norm(x), tokens, own)  # type: ignore[operator]
        return self._mlp(x)

    def _mlp(self, x: Tensor) -> Tensor:
        if self.mlp_norm is None or self.up is None or self.down is None:
            return x
        out: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return out
