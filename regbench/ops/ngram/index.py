"""The token-only part of the n-gram head: which positions share an n-gram, as one list of reads and writes.

Picture a dictionary of running sums, keyed by n-gram. Position i first *reads* the sum of the n-gram that ends at i:
that is its output. Then it *writes*, i.e. adds h_i to the sum of the n-gram that ends at i - shift. Sorting these 2 B L
events by n-gram and then by time makes each sum one contiguous run, and the head one pass over the list, with a single
vector of state. The gradient is the same pass backwards, with the roles exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of tokens."""


@dataclass(frozen=True)
class Events:
    """The reads and writes of one order and shift. N = B L; a row is b L + position.

    code: (2 N,) int32, 2 row + (1 for a write): sorted by n-gram, then row, a row's read before its write.
    first: (2 N + 1,) bool, where a new n-gram begins; the entry past the end is True.
    count: (2 N,) int32, how many writes a read sums, at least 1; 1 for a write.

    Every row is read once and written once. What has no n-gram goes to two n-grams of their own, one with only reads
    and one with only writes, so that it yields zeros in both directions.
    """

    code: Tensor
    first: Tensor
    count: Tensor

    CHUNK = 128

    @cached_property
    def bounds(self) -> Tensor:
        """(chunks + 1,) int32: the list cut between n-grams, every CHUNK events or as soon after as one ends."""
        end = self.code.numel()
        here = torch.arange(end + 1, device=self.code.device, dtype=torch.int32)
        following = here.masked_fill(~self.first, end).flip(0).cummin(0).values.flip(0)
        return torch.cat([following[: end : self.CHUNK], following[end:]])


class NGramIndex:
    """Made from tokens (B, L) alone. Orders and shifts are worked out when first asked for, then kept."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self._ranks = [_rank(tokens)]
        self._events: dict[tuple[int, int], Events] = {}

    def ranks(self, order: int) -> Tensor:
        """(B, max(L - order + 1, 0)) int64, of the n-grams that end at positions order - 1, ..., L - 1.

        Within a sequence equal ranks mean equal n-grams: sorted, never hashed. All ranks are below L.
        """
        length = self.tokens.shape[1]
        for n in range(len(self._ranks), order):
            # An n-gram is an (n - 1)-gram and one more token: a pair of ranks, below L squared whatever the vocabulary.
            self._ranks.append(_rank(self._ranks[-1][:, :-1] * length + self._ranks[0][:, n:]))
        return self._ranks[order - 1]

    def events(self, order: int, shift: int) -> Events:
        """The list that a scan follows."""
        if (order, shift) not in self._events:
            self._events[order, shift] = self._sort(order, shift)
        return self._events[order, shift]

    def _sort(self, order: int, shift: int) -> Events:
        batch, length = self.tokens.shape
        device, ranks = self.tokens.device, self.ranks(order)
        gram = torch.empty(batch, length, 2, dtype=torch.int64, device=device)
        gram[:, :, 0], gram[:, :, 1] = length, length + 1
        gram[:, order - 1 :, 0] = ranks
        gram[:, order - 1 + shift :, 1] = ranks[:, : max(ranks.shape[1] - shift, 0)]
        keys = gram.flatten(1) * (2 * length) + torch.arange(2 * length, device=device)
        keys, _ = _sort(keys)
        code = keys.remainder(2 * length) if length else keys
        gram = keys - code
        write = code & 1
        first = torch.ones_like(gram, dtype=torch.bool)
        first[:, 1:] = gram[:, 1:] != gram[:, :-1]
        before = write.cumsum(1) - write
        count = before - (before * first).cummax(1).values
        return Events(
            code=(code + 2 * length * torch.arange(batch, device=device)[:, None]).flatten().int(),
            first=torch.cat([first.flatten(), first.new_ones(1)]),
            count=torch.where(write == 1, 1, count.clamp(min=1)).flatten().int(),
        )


def _rank(keys: Tensor) -> Tensor:
    """(B, M) -> (B, M) int64: in each row, equal numbers for equal keys and only for them, from 0 without gaps."""
    values, places = _sort(keys)
    ranks = torch.zeros_like(values, dtype=torch.int64)
    ranks[:, 1:] = (values[:, 1:] != values[:, :-1]).cumsum(1)
    return torch.empty_like(ranks).scatter_(1, places, ranks)


def _sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(B, M) -> (B, M) each: the rows of `keys` sorted, and where each key was."""
    if keys.device.type == "cpu":  # NumPy sorts with vector instructions: several times faster than PyTorch
        places = torch.from_numpy(keys.numpy().argsort(1))
        return keys.gather(1, places), places
    values, places = keys.sort(1)
    return values, places


Scan = Callable[[Tensor, Events, bool], Tensor]
"""(N, D), events, whether backwards -> (N, D): follow the list; reads and writes change roles when backwards."""


class _RunningSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, events: Events, backwards: bool, scan: Scan) -> Tensor:
        ctx.pass_ = events, backwards, scan
        return scan(values.flatten(0, 1).contiguous(), events, backwards).view(values.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        events, backwards, scan = ctx.pass_
        # Linear: the adjoint of the adjoint is the pass itself, so higher derivatives come for free.
        return _RunningSums.apply(grads[0], events, not backwards, scan), None, None, None


def running_sums(values: Tensor, events: Events, scan: Scan) -> Tensor:
    """The head by `scan`, differentiable: (B, L, D) -> (B, L, D)."""
    out: Tensor = _RunningSums.apply(values, events, False, scan)
    return out
