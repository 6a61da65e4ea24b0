"""The n-gram head one token at a time, against the parallel form."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


def test_state_ends_with_the_ngrams_there_are() -> None:
    """Two symbols make 2 and 4 and 8 n-grams: once met, a stream of any length adds nothing."""
    for order in (1, 2, 3):
        state = NGramState(order)
        sizes = []
        for token in torch.randint(2, (400, 1), generator=torch.Generator().manual_seed(0)):
            state.step(token, torch.ones(1, 4))
            sizes.append(state.state_bytes())
        assert sizes[-1] == sizes[150] == 8 * (order + order + 2**order * (order + 4 + 1))


class Work(TorchDispatchMode):
    """Counts the elements that operations read from a table, write to it or make anew, and those moved when it grows."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.constant_pad_nd.default:
            self.moved += out.numel()
        elif func in (torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default):
            self.elements += args[2].numel()  # what is written: `out` is the whole table
        elif not func.is_view:
            self.elements += out.numel()
        return out


class Probed(dict[Any, Any]):
    """A dictionary that counts how often it is asked, and for how many tokens."""

    probes = hashed = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.probes, self.hashed = self.probes + 1, self.hashed + len(key)
        return super().get(key, default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.probes, self.hashed = self.probes + 1, self.hashed + len(key)
        return super().setdefault(key, default)


@pytest.mark.parametrize("new_ngrams", [False, True])
@pytest.mark.parametrize("order", [1, 4])
def test_a_step_costs_the_same_at_any_position(order: int, new_ngrams: bool) -> None:
    """O(order + D) for each sequence, by counting: two probes of order tokens, and a fixed number of vectors.

    Where every n-gram is new the table grows: by doubling, so that the rows ever moved stay below four a step.
    """
    batch, steps, costs, moved = 3, 200, {}, 0
    for width in (8, 16):
        state = NGramState(order)
        state._slots = probed = Probed()
        seen = []
        for t in range(steps):
            token = t if new_ngrams else t % 5
            before = probed.probes, probed.hashed
            with Work() as work:
                state.step(torch.full((batch,), token), torch.ones(batch, width))
            moved += work.moved
            seen.append((work.elements, probed.probes - before[0], probed.hashed - before[1]))
        assert set(seen[20:]) == {seen[20]}
        costs[width] = seen[20]
        assert work.moved == 0 or new_ngrams
    assert costs[8][1:] == costs[16][1:] == (2 * batch, 2 * batch * (order + 1))  # a key names its sequence too
    vectors = (costs[16][0] - costs[8][0]) / (8 * batch)
    assert 0 < vectors < 10
    assert moved < (4 * steps * batch * (8 + 1 + 16 + 1) if new_ngrams else 4 * 5 * batch * (8 + 1 + 16 + 1))


def test_no_gradient_flows_and_the_type_is_kept() -> None:
    state, hidden = NGramState(), torch.ones(1, 2, dtype=torch.float16, requires_grad=True)
    outs = [state.step(torch.tensor([3]), hidden) for _ in range(3)]
    assert all(not out.requires_grad and out.dtype == torch.float16 for out in outs)
    assert outs[-1].tolist() == [[1.0, 1.0]]


def test_the_worked_example() -> None:
    assert doctest.testmod(regbench.ops.ngram.stream).failed == 0
