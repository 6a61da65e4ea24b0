"""Models as people write them, and the line that refuses one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regbench
from regbench.tracks import Track
from regbench.utils.errors import UserError


class NextToken(nn.Module):
    """A model of the next token as people write them: logits of token t + 1 after the tokens up to t."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(vocab_size, 16)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.gru(self.embedding(tokens))[0])
        return logits


def refused(track: Track, predictor: Any, **words: Any) -> str:
    """The line with which a predictor is refused."""
    with pytest.raises(UserError) as caught:
        regbench.evaluate(track, predictor, **words)
    line = str(caught.value)
    assert "\n" not in line
    return line
