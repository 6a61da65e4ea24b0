"""N-gram counts: every implementation against counting by hand, on prompts of all kinds."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import regbench.ops.ngram_counts
from regbench.ops.ngram_counts import ngram_counts
from regbench.utils.errors import UserError

BACKENDS = ("cpu", "torch", "naive")
quick = settings(max_examples=60, deadline=None)


def by_hand(tokens: list[int], max_order: int, vocab_size: int) -> np.ndarray:
    """(L, N, V), one n-gram at a time."""
    counts = np.zeros((len(tokens), max_order, vocab_size), int)
    for t in range(len(tokens)):
        for n in range(1, max_order + 1):
            if t + 1 < n - 1:
                continue
            context = tokens[t + 2 - n : t + 1]
            for s in range(n - 1, t + 1):
                if tokens[s - n + 1 : s] == context:
                    counts[t, n - 1, tokens[s]] += 1
    return counts


@st.composite
def prompts(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    batch, length = draw(st.integers(0, 3)), draw(st.integers(0, 70))
    vocab = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "equal", "periodic"]))
    if kind == "random":
        tokens = rng.integers(0, vocab, (batch, length))
    elif kind == "equal":
        tokens = np.full((batch, length), vocab - 1)
    else:
        tokens = np.arange(batch * length).reshape(batch, length) % vocab
    dtype = draw(st.sampled_from([torch.uint8, torch.int32, torch.int64]))
    return torch.from_numpy(tokens).to(dtype), draw(st.integers(1, 5)), vocab


@pytest.mark.parametrize("backend", BACKENDS)
@quick
@given(prompts())
def test_every_implementation_counts_as_by_hand(backend: str, prompt: tuple[Tensor, int, int]) -> None:
    tokens, max_order, vocab = prompt
    counts = ngram_counts(tokens, max_order, vocab, backend=backend)
    assert counts.dtype == torch.int32
    assert counts.shape == (*tokens.shape, max_order, vocab)
    for row, counted in zip(tokens.tolist(), counts.numpy(), strict=True):
        np.testing.assert_array_equal(counted, by_hand(row, max_order, vocab))


@pytest.mark.gpu
def test_the_gpu_counts_the_same() -> None:
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (5, 333)))
    assert torch.equal(ngram_counts(tokens.cuda(), 3, 9).cpu(), ngram_counts(tokens, 3, 9, backend="naive"))


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(regbench.ops.ngram_counts).failed == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), 2, 4), "not .* of torch.float32"),
        ((torch.zeros(3, dtype=torch.int64), 2, 4), r"needs tokens \(B, L\) of integers, not \(3,\)"),
        ((torch.tensor([[0, 4]]), 2, 4), r"token 4 is outside the vocabulary \[0, 4\)"),
        ((torch.tensor([[-1, 2]]), 2, 4), "token -1 is outside"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[Tensor, int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ngram_counts(*arguments)
