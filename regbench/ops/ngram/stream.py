"""The n-gram head one token at a time, for models with a recurrent form (ICLL section 6)."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor
from torch.nn import functional as F


class NGramState:
    """A dictionary of running sums, with the last `order` tokens of each sequence as keys.

    `step` takes O(order + D) for each token, at any position. The state grows only with the number of distinct n-grams. It is for
    inference: it has no gradient.

    >>> state = NGramState(order=1)
    >>> stream = zip([7, 8, 7, 9, 7], [1.0, 2.0, 4.0, 8.0, 16.0])
    >>> [state.step(torch.tensor([token]), torch.tensor([[h]])).item() for token, h in stream]
    [0.0, 0.0, 2.0, 0.0, 5.0]
    """

    def __init__(self, order: int = 1, shift: int = 1) -> None:
        """The state before the first token, of a head as in `ngram_head`."""
        self.order = order
        self.shift = shift
        self._recent: deque[list[int]] = deque(maxlen=order)  # one list of tokens for each step
        self._waiting: deque[list[tuple[int, ...]]] = deque()  # n-grams that ended less than `shift` steps ago
        self._slots: dict[tuple[int, ...], int] = {}  # (sequence, n-gram) -> row of the two tensors below
        self._sums: Tensor | None = None  # (capacity, D); row 0 stays zero, for n-grams that are new
        self._counts: Tensor | None = None  # (capacity, 1)

    @torch.no_grad()
    def step(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The next position of `ngram_head(tokens, hidden, order, shift)`: (B,), (B, D) -> (B, D)."""
        if self._sums is None or self._counts is None:
            # In float64, so that a stream of any length stays equal to the parallel form.
            self._sums = hidden.new_zeros(1, hidden.shape[1], dtype=torch.float64)
            self._counts = hidden.new_ones(1, 1, dtype=torch.float64)
        self._recent.append(tokens.tolist())
        if len(self._recent) < self.order:
            return torch.zeros_like(hidden)
        grams = list(zip(range(len(tokens)), *self._recent, strict=True))
        rows = torch.tensor([self._slots.get(gram, 0) for gram in grams], dtype=torch.int64, device=hidden.device)
        out = (self._sums[rows] / self._counts[rows]).to(hidden.dtype)
        self._waiting.append(grams)
        if len(self._waiting) > self.shift:
            self._add(self._waiting.popleft(), hidden)
        return out

    def _add(self, grams: list[tuple[int, ...]], hidden: Tensor) -> None:
        """Adds hidden (B, D) to the sums of these n-grams."""
        assert self._sums is not None
        assert self._counts is not None
        slots = [self._slots.setdefault(gram, len(self._slots) + 1) for gram in grams]
        lacking = len(self._slots) + 1 - len(self._sums)
        if lacking > 0:
            more = max(lacking, len(self._sums))  # at least twice as many, so that growing costs O(D) a step on average
            self._sums = F.pad(self._sums, (0, 0, 0, more))
            self._counts = F.pad(self._counts, (0, 0, 0, more))
        rows = torch.tensor(slots, dtype=torch.int64, device=hidden.device)  # all different: the keys name the sequence
        self._sums[rows] += hidden
        self._counts[rows] += 1

    @property
    def width(self) -> int:
        """D; 0 before the first token."""
        return 0 if self._sums is None else self._sums.shape[1]

    def state_bytes(self) -> int:
        """Bytes of the tokens, sums and counts that it holds now, for all sequences, at 8 bytes a number."""
        recent = sum(len(tokens) for tokens in self._recent)
        waiting = sum(len(grams) for grams in self._waiting) * self.order
        return 8 * (recent + waiting + len(self._slots) * (self.order + self.width + 1))
