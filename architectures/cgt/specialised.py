"""A CGT with a constant y, as an ordinary transformer: every T is folded into the matrix after it (CGT section 3.1).

Let R_x be the rows of R(y) for x, and R_1 the row for the appended 1. With A = I + L R_x^T and c = L R_1, T(x) = A x + c and
W T(x) + b = (W A) x + (W c + b). An embedding, the blocks of x, a norm and an unembedding remain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures.cgt.layers import Block, Cache, Operator, Reader
from regbench.models import mixer
from regbench.models.backbone import unembedding
from regbench.models.model import Model, shift_in
from regbench.tasks.base import IO
from regbench.utils.errors import UserError


@dataclass
class SpecialisedState:
    """What the model keeps of sequences that it reads token by token.

    Attributes:
        position: Number of tokens read.
        caches: Keys and values of each block.
    """

    position: int
    caches: list[Cache]

    def state_bytes(self) -> int:
        """Bytes of all B sequences together."""
        return sum(cache.nbytes() for cache in self.caches)


class Specialised(Model):
    """An ordinary transformer without y, which `ContextuallyGuided.specialize` makes from a prompt."""

    class Options(mixer.Options):
        """The options of the specialised model."""

        positions: Literal["learned", "rotary"] = Field(default="learned", description="how positions are encoded")

    takes = ("tokens", "vectors")

    def __init__(self, options: Specialised.Options, io: IO) -> None:
        super().__init__(options, io)
        d, rotary = options.d_model, options.positions == "rotary"
        self.reader = Reader(io, d, learned_positions=not rotary, dropout=options.dropout)
        self.blocks = nn.ModuleList(
            Block(d, d, options.n_heads, rotary=rotary, mimetic=False, dropout=options.dropout, bias=True)
            for _ in range(options.n_layers)
        )
        self.norm = nn.LayerNorm(d)
        self.unembed = unembedding(io, d)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""
        return self._run(shift_in(tokens, self.io.separator), 0, [None] * len(self.blocks))

    def init_state(self, batch: int) -> SpecialisedState:
        """The state of `batch` sequences before their first token."""
        return SpecialisedState(0, [Cache() for _ in self.blocks])

    def step(self, inputs: Tensor, state: SpecialisedState) -> tuple[Tensor, SpecialisedState]:
        """Reads one token of each sequence, the separator first. The old state must not be used again.

        Args:
            inputs: (B,), or (B, D_in) for vectors.
            state: What was read before.

        Returns:
            The logits of the next token, (B, V), or its prediction, (B, D_out); and the new state.
        """
        out = self._run(inputs[:, None], state.position, list(state.caches))[:, 0]
        return out, SpecialisedState(state.position + 1, state.caches)

    def _run(self, inputs: Tensor, start: int, caches: list[Cache | None]) -> Tensor:
        x = self.reader(inputs, start)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        out: Tensor = self.unembed(self.norm(x))
        return out


@torch.no_grad()
def fold(operator: Operator, y: Tensor, linear: nn.Linear, into: nn.Linear) -> None:
    """Sets `into` to the map x -> linear(T(x; y)). The product is computed in float64, and the weights are rounded once.

    Args:
        operator: T.
        y: A constant y, (d_y,).
        linear: The map after T.
        into: A map of the same widths, with a bias.
    """
    left, right = (part.double() for part in operator.matrices(y))
    weight = linear.weight.double()
    into.weight.copy_(weight + weight @ left @ right[:-1].T)
    bias = weight @ left @ right[-1]
    into.bias.copy_(bias if linear.bias is None else bias + linear.bias.double())


def one_prompt(prefix: Tensor, ndim: int) -> Tensor:
    """A prompt as a batch of one.

    Args:
        prefix: (c, ...) or (1, c, ...).
        ndim: Dimensions of one token: 0, or 1 for vectors.

    Returns:
        (1, c, ...).

    Raises:
        UserError: It has another shape, or there are several prompts.
    """
    if prefix.ndim == ndim + 1:
        prefix = prefix[None]
    if prefix.ndim != ndim + 2 or len(prefix) != 1:
        raise UserError(
            f"a model is specialised to one prompt, a sequence of tokens; this has the shape {tuple(prefix.shape)}"
        )
    return prefix
