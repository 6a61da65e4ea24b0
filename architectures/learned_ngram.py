"""Learned n-gram reweighting (LNW): an MLP on the counts of what has followed the last tokens (ICLL section 5.3, Appendix D)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regbench
from regbench.models.model import Model, shift_in
from regbench.ops.ngram_counts import ngram_counts
from regbench.tasks.base import TokenIO


class LearnedNGram(Model):
    """Predicts from n-gram statistics of the prompt alone: a softmax of W_2 GELU(W_1 f + b_1) + b_2.

    The features f (B, L, N V) have, for each order n = 1 to N, one number for each n-gram that begins with the last n - 1 tokens:

    - "counts", LNW: how often it has occurred, c(v).
    - "frequencies", LNW_r: c(v) / sum_u c(u), or zeros where the context is new.
    - "binary", LNW_b: 1 if it has occurred, else 0.

    Contexts have 0, 1 and 2 tokens, as the text of section 5.3 says. Eq. 97 has one token more in each, and subtracts from every
    count the occurrence at the position itself. Here only tokens before the predicted one are counted. An input begins with a
    separator, and separators count as tokens. So a context may reach into the previous string.
    """

    class Options(regbench.Options):
        """The options of LNW."""

        d_model: int = pydantic.Field(default=1024, ge=1, description="hidden units of the MLP")
        n_layers: Literal[1] = pydantic.Field(default=1, description="hidden layers of the MLP: one")
        n_heads: Literal[1] = pydantic.Field(default=1, description="there are no heads")
        features: Literal["counts", "frequencies", "binary"] = pydantic.Field(
            default="frequencies", description="of each n-gram: counts (LNW), frequencies (LNW_r), binary (LNW_b)"
        )
        max_order: int = pydantic.Field(default=3, ge=1, le=5, description="symbols of the longest n-gram, N")

    family = "counts"
    paper = regbench.Paper(
        "In-Context Language Learning: Architectures and Algorithms",
        "Akyürek, Wang, Kim, Andreas",
        2024,
        "2401.12973",
    )
    training_defaults: ClassVar[dict[str, Any]] = {
        "batch_size": 32,
        "epochs": 50,
        "learning_rate": 1e-3,
        "beta1": 0.9,
        "beta2": 0.99,
        "weight_decay": 0.0,  # Adam
        "warmup": 0.0,
        "schedule": "plateau",
        "plateau_patience": 5,
        "plateau_factor": 0.5,
        "plateau_learning_rate": 1e-5,
    }

    def __init__(self, options: Options, io: TokenIO) -> None:
        super().__init__(options, io)
        self.up = nn.Linear(options.max_order * io.vocab_size, options.d_model)
        self.down = nn.Linear(options.d_model, io.vocab_size)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits."""
        inputs = shift_in(tokens, self.io.separator)
        return self._reweight(ngram_counts(inputs, self.options.max_order, self.io.vocab_size))

    def _reweight(self, counts: Tensor) -> Tensor:
        """The MLP on the features of these counts: (..., N, V) integers -> (..., V) logits."""
        counts = counts.to(self.up.weight.dtype)
        if self.options.features == "frequencies":
            counts = counts / counts.sum(-1, keepdim=True).clamp(min=1)
        elif self.options.features == "binary":
            counts = (counts > 0).to(counts.dtype)
        logits: Tensor = self.down(self.dropout(F.gelu(self.up(counts.flatten(-2)))))
        return logits

    @classmethod
    def can_overfit(cls, options: Options) -> bool:
        """Counts tell every prefix of a few instances from the others. Whether n-grams have occurred does not."""
        return options.features == "counts" or (options.features == "frequencies" and options.max_order > 1)

    def init_state(self, batch: int) -> CountState:
        """The state of `batch` streams before their first token."""
        V, N = self.io.vocab_size, self.options.max_order
        tables = [self.up.weight.new_zeros(batch, V**n, V, dtype=torch.int32) for n in range(N)]
        return CountState(tables, torch.zeros(batch, dtype=torch.int64, device=self.up.weight.device), 0)

    def step(self, inputs: Tensor, state: CountState) -> tuple[Tensor, CountState]:
        """One token of each stream. The logits are those of `forward`, but for rounding.

        Args:
            inputs: (B,), the tokens. The first is the separator, as in `shift_in`.
            state: the state before this token. It must not be used again.

        Returns:
            Logits (B, V) of the next token, and the state after this one.
        """
        V, rows = self.io.vocab_size, torch.arange(len(inputs), device=inputs.device)
        for n, table in enumerate(state.tables):
            if state.position >= n:
                table[rows, state.context % V**n, inputs] += 1
        context = (state.context * V + inputs) % V ** len(state.tables)
        counts = [
            table[rows, context % V**n] if state.position + 1 >= n else torch.zeros_like(table[:, 0])
            for n, table in enumerate(state.tables)
        ]
        return self._reweight(torch.stack(counts, 1)), CountState(state.tables, context, state.position + 1)

    def state_bytes(self) -> int:
        """Bytes of a counter for every possible n-gram, 4 each, and of the last tokens as one number, 8."""
        V = self.io.vocab_size
        return sum(4 * V**n for n in range(1, self.options.max_order + 1)) + 8


@dataclass
class CountState:
    """The counts of a stream.

    Attributes:
        tables: for each order n the counts (B, V^(n-1), V) by context. A context is a number in base V.
        context: (B,), the last tokens as such a number.
        position: how many tokens were read.
    """

    tables: list[Tensor]
    context: Tensor
    position: int
