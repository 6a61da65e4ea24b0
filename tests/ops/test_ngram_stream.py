"""The n-gram head one token at a time, against the parallel form."""

from __future__ import annotations

import doctest

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import regbench.ops.ngram.stream
from regbench.ops.ngram import NGramState, ngram_head


def streamed(state: NGramState, tokens: Tensor, hidden: Tensor) -> Tensor:
    return torch.stack([state.step(tokens[:, t], hidden[:, t]) for t in range(tokens.shape[1])], 1)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 80),
    vocabulary=st.integers(1, 5),
    order=st.integers(1, 5),
    shift=st.integers(0, 4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_parallel_form(
    batch: int, length: int, vocabulary: int, order: int, shift: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocabulary, (batch, length), generator=generator)
    hidden = torch.randn(batch, length, 3, dtype=dtype, generator=generator)
    out = streamed(NGramState(order, shift), tokens, hidden)
    torch.testing.assert_close(out, ngram_head(tokens, hidden, order, shift))


def test_a_long_stream_does_not_drift() -> None:
    tokens, hidden = torch.zeros(1, 2000, dtype=torch.int64), 1000 + torch.randn(1, 2000, 2)
    out = streamed(NGramState(), tokens, hidden)
    torch.testing.assert_close(out, ngram_head(tokens, hidden), rtol=2e-7, atol=0)


def test_state_grows_with_distinct_ngrams_only() -> None:
    """Period 3, order 2: three n-grams in each of two sequences, whatever the length."""
    state, width = NGramState(order=2, shift=1), 4
    assert state.state_bytes() == 0
    sizes = []
    for t in range(50):
        state.step(torch.full((2,), t % 3), torch.ones(2, width))
        sizes.append(state.state_bytes())
    recent = waiting = 2 * 2
    assert sizes[10:] == [8 * (recent + waiting + 2 * 3 * (2 + width + 1))] * 40
    different = NGramState(order=2, shift=1)
    for t in range(50):
        different.step(torch.tensor([t]), torch.ones(1, width))
    assert different.state_bytes() == 8 * (2 + 2 + 48 * (2 + width + 1))


def test_no_gradient_flows_and_the_type_is_kept() -> None:
    state, hidden = NGramState(), torch.ones(1, 2, dtype=torch.float16, requires_grad=True)
    outs = [state.step(torch.tensor([3]), hidden) for _ in range(3)]
    assert all(not out.requires_grad and out.dtype == torch.float16 for out in outs)
    assert outs[-1].tolist() == [[1.0, 1.0]]


def test_the_worked_example() -> None:
    assert doctest.testmod(regbench.ops.ngram.stream).failed == 0
