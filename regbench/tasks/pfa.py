"""In-context language learning: strings of a random probabilistic automaton (ICLL section 3).

An instance is a list of strings of one automaton, joined by a separator. No other instance shares the automaton. For example:

    c a d a | c a b | c a d

A predictor sees a prefix and predicts the distribution of the next token. The truth is uniform over the symbols that the
automaton allows in its current state. Positions whose token is a symbol are scored, except the first of an instance.
"""

from __future__ import annotations

import string
from functools import lru_cache
from typing import Self

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import between, stream
from regbench.tasks import base as task
from regbench.tasks._drawn import first_distinct
from regbench.tasks.automata import sample_automata
from regbench.utils import threads
from regbench.utils.arrays import FloatArray

_STRINGS = 2  # the stream's purpose
_LONGEST = 1 << 20  # tokens of an instance


class PFAParameters(task.Parameters):
    """The parameters of `pfa`. Ranges include both ends. The defaults are the paper's (ICLL sections 3.1 and 3.3)."""

    n_symbols: int = pydantic.Field(default=18, ge=2, le=100)  # all symbols of the task
    min_states: int = pydantic.Field(default=4, ge=2)  # the fewest states of an automaton, before it is minimised
    max_states: int = pydantic.Field(default=12, le=127)  # the most states
    min_alphabet: int = pydantic.Field(default=4, ge=1)  # the fewest symbols of an automaton
    max_alphabet: int = 18  # the most symbols
    min_edges: int = pydantic.Field(default=1, ge=1)  # the fewest edges from a state
    max_edges: int = pydantic.Field(default=4, le=126)  # the most edges
    min_strings: int = pydantic.Field(default=10, ge=1)  # the fewest strings of an instance
    max_strings: int = 20  # the most strings
    min_length: int = pydantic.Field(default=1, ge=1)  # the fewest symbols of a string
    max_length: int = 50  # the most symbols

    @pydantic.model_validator(mode="after")
    def _ranges_are_ordered(self) -> Self:
        for name in ("states", "alphabet", "edges", "strings", "length"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ValueError(f"min_{name} ({low}) is above max_{name} ({high})")
        if self.max_alphabet > self.n_symbols:
            raise ValueError(f"max_alphabet ({self.max_alphabet}) is above n_symbols ({self.n_symbols})")
        if self.longest > _LONGEST:
            raise ValueError(f"max_strings and max_length come to {self.longest:,} tokens; the most is {_LONGEST:,}")
        if self.min_edges > min(self.min_states - 1, self.min_alphabet):
            raise ValueError(
                f"min_edges ({self.min_edges}) is more than the other states or the symbols of the smallest automaton"
            )
        return self

    @property
    def longest(self) -> int:
        """The most tokens of an instance: its strings, with a separator between two."""
        return self.max_strings * (self.max_length + 1) - 1

    def range(self, name: str) -> tuple[int, int]:
        """(min, max) of "states", "alphabet", "edges", "strings" or "length"."""
        return getattr(self, f"min_{name}"), getattr(self, f"max_{name}")


class PFA(task.Task):
    """Strings of random probabilistic automata; see the module."""

    Parameters = PFAParameters
    version = 1
    main_score = "legal_accuracy"
    scores = ("legal_accuracy", "token_accuracy", "tvd", "nll")
    parameters: PFAParameters

    @property
    def io(self) -> task.TokenIO:
        """The symbols and the separator."""
        p = self.parameters
        symbols = string.ascii_lowercase + string.ascii_uppercase
        names = tuple(symbols[v] if p.n_symbols <= len(symbols) else str(v) for v in range(p.n_symbols))
        return task.TokenIO.of((*names, "|"), p.longest)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. No two instances of any splits have the same automaton."""
        before = splits.first(split)
        tables, candidates = _distinct_automata(self.parameters, splits.seed, before + splits.size(split))
        tables, candidates = tables[before:], candidates[before:]
        p, io = self.parameters, self.io
        tokens = np.full((len(tables), io.max_length), io.separator, np.min_scalar_type(io.separator))
        states = np.full(tokens.shape, -1, np.int8)
        lengths = np.empty(len(tables), np.int32)
        ranges = p.range("strings"), p.range("length")
        arrays = tokens, states, lengths
        threads.share(_sample_strings, len(tables), splits.seed, candidates, tables, *ranges, *arrays)
        longest = int(lengths.max(initial=0))
        tokens, states = tokens[:, :longest].copy(), states[:, :longest].copy()
        scored = states >= 0
        scored[:, :1] = False
        return Instances(
            tokens, lengths, scored, f"pfa/{self.version}", truth={"transitions": tables}, truth_at={"state": states}
        )

    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V): uniform over the symbols that the automaton allows in its state."""
        tables, state = instances.truth["transitions"], instances.truth_at["state"]
        rows = np.arange(len(instances))[:, None]
        allowed = np.zeros((*state.shape, self.io.vocab_size))
        allowed[..., :-1] = tables[rows, np.maximum(state, 0)] >= 0
        allowed[~instances.scored] = 0.0
        return allowed / np.maximum(allowed.sum(-1, keepdims=True), 1.0)

    def identities(self, instances: Instances) -> list[bytes]:
        """The automaton of each instance, in canonical form."""
        return [table.tobytes() for table in instances.truth["transitions"]]

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds means of states, of edges of a state, of strings of an instance, and of the truth's entropy in nats."""
        tables, state = instances.truth["transitions"], instances.truth_at["state"]
        edges = (tables >= 0).sum(-1)
        n_edges = edges[np.arange(len(instances))[:, None], np.maximum(state, 0)]
        used, padding = edges > 0, float(instances.tokens.shape[1] - np.mean(instances.lengths))
        return super().statistics(instances) | {
            "mean_states": float(used.sum(-1).mean()),
            "mean_edges": float(edges.sum() / used.sum()),
            "mean_strings": float((instances.tokens == self.io.separator).sum(-1).mean() + 1 - padding),
            "entropy_nats": float(np.log(n_edges[instances.scored]).mean()),
        }

    def show(self, instances: Instances, index: int) -> str:
        """The automaton, and each string over the states that its symbols were drawn in."""
        one, names = instances[index : index + 1], self.io.names
        tokens, states = one.tokens[0], one.truth_at["state"][0]
        lines = ["automaton: symbol → next state, 0 is the start"]
        for state, row in enumerate(one.truth["transitions"][0]):
            edges = [f"{names[symbol]} → {row[symbol]}" for symbol in np.flatnonzero(row >= 0)]
            lines += [f"{state:>2}   {'   '.join(edges)}   each with 1/{len(edges)}"] if edges else []
        lines.append("strings, over the states")
        for at in np.split(np.arange(len(tokens)), np.flatnonzero(tokens == self.io.separator) + 1):
            lines += [" ".join(f"{names[tokens[t]]:>2}" for t in at), " ".join(f"{states[t]:>2}" for t in at)]
        return "\n".join(lines)


@lru_cache(maxsize=2)
def _distinct_automata(p: PFAParameters, seed: int, count: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """The first distinct automata of the stream, (count, S, V), and their places in it (count,)."""
    ranges = {name: p.range(name) for name in ("states", "alphabet", "edges")}

    def draw(start: int, n: int) -> NDArray[np.int8]:
        return sample_automata(seed, start, n, n_symbols=p.n_symbols, **ranges)

    return first_distinct(draw, "automata", count)


@njit(cache=True, nogil=True)
def _sample_strings(begin, end, seed, candidates, tables, n_strings, length, tokens, states, lengths):  # type: ignore[no-untyped-def]
    """Fills tokens (N, L), the state before each token (-1 at separators and padding), and lengths (N,). ICLL section 3.2."""
    n_symbols = tables.shape[2]
    for n in range(begin, end):
        rng = stream(seed, _STRINGS, candidates[n])
        symbols = np.empty(n_symbols, np.int64)
        at = 0
        for s in range(between(rng, n_strings[0], n_strings[1])):
            if s > 0:
                at += 1  # the separator is there already
            state = np.int64(0)
            for _ in range(between(rng, length[0], length[1])):
                allowed = 0
                for v in range(n_symbols):
                    if tables[n, state, v] >= 0:
                        symbols[allowed] = v
                        allowed += 1
                symbol = symbols[between(rng, 0, allowed - 1)]
                tokens[n, at], states[n, at] = symbol, state
                state = np.int64(tables[n, state, symbol])
                at += 1
        lengths[n] = at
