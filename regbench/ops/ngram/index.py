"""The part of the n-gram head that needs the tokens alone: which positions share an n-gram, as a list of reads and writes.

Imagine a dictionary of running sums, with n-grams as keys. Position i first *reads* the sum of the n-gram that ends at i, which
is its output. Then it *writes*: it adds h_i to the sum of the n-gram that ends at i - shift. These 2 B L events are sorted by
n-gram and then by time. So each sum is one contiguous run, and the head is one pass over the list with one vector of state. The
gradient is the same pass backwards, with reads and writes exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""The types that tokens may have."""


@dataclass(frozen=True)
class Events:
    """The reads and writes of one order and shift. N = B L; a row is b L + position.

    Every row is read once and written once. A row without an n-gram goes to one of two extra n-grams: one has only reads, the
    other only writes. So it yields zeros in both directions.
    """

    code: Tensor
    """(2 N,) int32, 2 row + (1 for a write). Sorted by n-gram, then by row, with the read of a row before its write."""
    first: Tensor
    """(2 N + 1,) bool, where a new n-gram begins. The entry past the end is True."""
    count: Tensor
    """(2 N,) int32, how many writes a read sums, at least 1; 1 for a write."""

    CHUNK = 128

    @cached_property
    def bounds(self) -> Tensor:
        """Where to cut the list: (chunks + 1,) int32. A cut is at the first end of an n-gram after every CHUNK events."""
        end = self.code.numel()
        here = torch.arange(end + 1, device=self.code.device, dtype=torch.int32)
        following = here.masked_fill(~self.first, end).flip(0).cummin(0).values.flip(0)
        return torch.cat([following[: end : self.CHUNK], following[end:]])


class NGramIndex:
    """Which positions of tokens (B, L) share an n-gram. Each order and shift is computed at its first use, then kept."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self._ranks = [_rank(tokens)]
        self._events: dict[tuple[int, int], Events] = {}

    def ranks(self, order: int) -> Tensor:
        """Numbers of the n-grams that end at positions order - 1, ..., L - 1: (B, max(L - order + 1, 0)) int64.

        Within a sequence equal numbers mean equal n-grams, as they come from sorting, not from hashing. All are below L.
        """
        length = self.tokens.shape[1]
        for n in range(len(self._ranks), order):
            # An n-gram is an (n - 1)-gram and one more token. So it is a pair of ranks, below L^2 for any vocabulary.
            self._ranks.append(_rank(self._ranks[-1][:, :-1] * length + self._ranks[0][:, n:]))
        return self._ranks[order - 1]

    def events(self, order: int, shift: int) -> Events:
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
    """Numbers the keys of each row: (B, M) -> (B, M) int64, from 0 without gaps. Equal keys alone have equal numbers."""
    values, places = _sort(keys)
    ranks = torch.zeros_like(values, dtype=torch.int64)
    ranks[:, 1:] = (values[:, 1:] != values[:, :-1]).cumsum(1)
    return torch.empty_like(ranks).scatter_(1, places, ranks)


def _sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of `keys` sorted, and where each key was: (B, M) -> (B, M), (B, M)."""
    if keys.device.type == "cpu":  # NumPy sorts several times faster than PyTorch, with vector instructions
        places = torch.from_numpy(keys.numpy().argsort(1))
        return keys.gather(1, places), places
    values, places = keys.sort(1)
    return values, places


Scan = Callable[[Tensor, Events, bool], Tensor]
"""Follows the list: (N, D), events, backwards -> (N, D). With `backwards`, from its end, with reads and writes exchanged."""


class _RunningSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, events: Events, backwards: bool, scan: Scan) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        ctx.pass_ = events, backwards, scan
        return scan(values.flatten(0, 1).contiguous(), events, backwards).view(values.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        events, backwards, scan = ctx.pass_
        # The pass is linear, and the adjoint of its adjoint is the pass itself. So it has derivatives of every order.
        return _RunningSums.apply(grads[0], events, not backwards, scan), None, None, None


def running_sums(values: Tensor, events: Events, scan: Scan) -> Tensor:
    """The n-gram head, differentiable, computed by `scan`: (B, L, D) -> (B, L, D)."""
    out: Tensor = _RunningSums.apply(values, events, False, scan)
    return out
