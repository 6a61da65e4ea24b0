"""A tiny trained CGT, and a model whose summary of its context is known: how often each token has come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from papers.cgt.segments import Segments
from regbench.analysis.trained import Trained, load
from regbench.tasks.base import TokenIO


@pytest.fixture(scope="session")
def trained(run_folder: Path) -> Trained:
    return load(run_folder)


def segments_of(rows: int, start: int = 2, cut: int = 6, end: int = 12) -> Segments:
    """One of each row."""
    return Segments(np.arange(rows), *(np.full(rows, at) for at in (start, cut, end)), np.zeros(rows, dtype=np.int64))


class Counting(nn.Module):
    """y[b, t]: the shares of each token among tokens[b, :t], 0 before the first. Its logits are 5 y, and nothing else."""

    def __init__(self, io: TokenIO) -> None:
        super().__init__()
        self.io = io

    def context(self, tokens: Tensor) -> Tensor:
        counts = nn.functional.one_hot(tokens, self.io.vocab_size).float().cumsum(1)
        shares = counts / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return nn.functional.pad(shares, (0, 0, 1, 0))[:, :-1]

    def summary(self, prefix: Tensor) -> Tensor:
        return nn.functional.one_hot(prefix, self.io.vocab_size).float().mean(1)

    def with_context(self, tokens: Tensor, y: Tensor) -> Tensor:
        return 5.0 * (y if y.ndim == 3 else y[:, None].expand(-1, tokens.shape[1], -1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.with_context(tokens, self.context(tokens))

    def specialize(self, prefix: Tensor) -> nn.Module:
        raise NotImplementedError
