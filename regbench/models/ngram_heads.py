"""N-gram heads as layers that any mixer can be combined with (ICLL section 6, Eq. 12-13, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from regbench.ops.gelu import gelu
from regbench.ops.ngram import NGramIndex, NGramState, ngram_head


class NGramHead(nn.Module):
    """One head: NGH^n(h)_t = W1 h_t + W2 (A(n) h)_t. It has 2 D^2 parameters and learns no attention. ICLL Eq. 13.

    `own` is W1, `matched` is W2, and `order` is n. A(n) h is the mean of what followed the earlier occurrences of the last n
    tokens.
    """

    def __init__(self, d_model: int, order: int) -> None:
        super().__init__()
        self.order = order
        self.own = nn.Linear(d_model, d_model, bias=False)
        self.matched = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, index: NGramIndex) -> Tensor:
        """(B, L, D) -> (B, L, D), with the index of the tokens at these positions."""
        out: Tensor = self.own(x) + self.matched(ngram_head(index.tokens, x, self.order, index=index))
        return out

    def init_state(self) -> NGramState:
        """The sums before the first token."""
        return NGramState(self.order)

    def step(self, x: Tensor, tokens: Tensor, state: NGramState) -> Tensor:
        """One position: (B, D), tokens (B,) -> (B, D). It changes the state in place."""
        out: Tensor = self.own(x) + self.matched(state.step(tokens, x))
        return out


class NGramHeads(nn.Module):
    """Several heads, NGH(n1, n2, ...): one after the other on the residual stream, each after a norm.

    With `mlp` a feed-forward network of 6 D^2 parameters follows. With three heads this makes 12 D^2, without the norms, as
    many as a common layer has. So do the paper's language models (ICLL section 6, Setup: Language Modeling).
    """

    def __init__(self, d_model: int, orders: Sequence[int], mlp: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in orders)
        self.heads = nn.ModuleList(NGramHead(d_model, order) for order in orders)
        self.mlp_norm = nn.LayerNorm(d_model) if mlp else None
        self.up = nn.Linear(d_model, 3 * d_model, bias=False) if mlp else None
        self.down = nn.Linear(3 * d_model, d_model, bias=False) if mlp else None

    def forward(self, x: Tensor, index: NGramIndex) -> Tensor:
        """(B, L, D) -> (B, L, D), with the index of the tokens at these positions."""
        for norm, head in zip(self.norms, self.heads, strict=True):
            x = x + head(norm(x), index)
        return self._mlp(x)

    def init_state(self) -> list[NGramState]:
        """The sums of each head before the first token."""
        return [head.init_state() for head in self.heads]  # type: ignore[operator]

    def step(self, x: Tensor, tokens: Tensor, state: list[NGramState]) -> Tensor:
        """One position: (B, D), tokens (B,) -> (B, D). It changes the states in place."""
        for norm, head, own in zip(self.norms, self.heads, state, strict=True):
            x = x + head.step(norm(x), tokens, own)  # type: ignore[operator]
        return self._mlp(x)

    def _mlp(self, x: Tensor) -> Tensor:
        """The feed-forward network, where there is one."""
        if self.mlp_norm is None or self.up is None or self.down is None:
            return x
        out: Tensor = x + self.down(gelu(self.up(self.mlp_norm(x))))
        return out
