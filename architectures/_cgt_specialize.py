"""A CGT whose y stands still, as an ordinary transformer: every T is folded into the matrix behind it (CGT section 3.1).

With A = I + L R_x^T and c = L R_1, where R_x are the rows of R(y) for x and R_1 the one for the appended 1, T(x) = A x + c, so
that W T(x) + b = (W A) x + (W c + b). What is left is an embedding, blocks of x, a norm and an unembedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures._cgt_generator import Operator
from architectures._cgt_layers import Block, Cache, Reader
from regbench.models import mixer
from regbench.models.backbone import unembedding
from regbench.models.model import Model, shift_in
from regbench.tasks.base import IO
from regbench.utils.errors import UserError


@dataclass
class SpecialisedState:
    """What a stream keeps: how many tokens it has read, and the keys and values of every block."""

    position: int
    caches: list[Cache]

    def state_bytes(self) -> int:
        """Bytes it holds now, for all streams together."""
        return sum(cache.nbytes() for cache in self.caches)


class Specialised(Model):
    """An ordinary transformer, made by `specialize` of a CGT and a prompt: no y, no generator, no prompt."""

    class Options(mixer.Options):
        positions: Literal["learned", "rotary"] = Field(default="learned", description="how positions are told")

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
        """The state of `batch` streams before their first token."""
        return SpecialisedState(0, [Cache() for _ in self.blocks])

    def step(self, inputs: Tensor, state: SpecialisedState) -> tuple[Tensor, SpecialisedState]:
        """One token of each stream, the separator first: (B,) -> (B, V) logits of the next. The old state must not be used."""
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
    """Makes `into` the map linear(T(x; y)) for one y (d_y,). In float64: the weights are rounded once."""
    left, right = (part.double() for part in operator.matrices(y))
    weight = linear.weight.double()
    into.weight.copy_(weight + weight @ left @ right[:-1].T)
    bias = weight @ left @ right[-1]
    into.bias.copy_(bias if linear.bias is None else bias + linear.bias.double())


def one_prompt(prefix: Tensor, ndim: int) -> Tensor:
    """A prompt as a batch of one: (c, ...) or (1, c, ...) -> (1, c, ...), where a token alone has ndim dimensions.

    Raises:
        UserError: it is of another shape, or several prompts.
    """
    if prefix.ndim == ndim + 1:
        prefix = prefix[None]
    if prefix.ndim != ndim + 2 or len(prefix) != 1:
        raise UserError(
            f"a model is specialised to one prompt, a sequence of tokens; this has the shape {tuple(prefix.shape)}"
        )
    return prefix
