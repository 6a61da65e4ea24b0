"""In-context Bayesian inference of the automaton: predictions under the posterior over automata given the prefix.

The ICLL paper leaves the Bayes-optimal predictor open. Here the prior from which its automata are drawn (section 3.1) is known. A
prefix tells about a deterministic automaton which edges its strings have used. Together with where each of these edges leads,
they are a partial automaton H. Everything that H leaves open is summed in closed form. Let N be the emissions in a state s and k
its known edges, v the number of states reached and u the number of symbols seen. For n states and c symbols:

- The out-degree m is uniform over [min_edges, M], M = min(max_edges, n - 1, c). Given m, a state has k given symbols among its
  own with probability (m)_k / (c)_k. They lead to k given states with 1 / (n-1)_k, and N emissions have m^-N. Here
  (x)_k = x (x-1) ... (x-k+1). So a state contributes f(k, N) / ((c)_k (n-1)_k), f(k, N) = mean over m of (m)_k m^-N.
- The v - 1 states besides the start can be any of the others, in the order in which they are first reached: (n-1)_{v-1}.
- The u symbols are in the alphabet with probability (c)_u / (V)_u, where V is the number of all symbols.

    p(prefix, H) = mean over n and c of  (n-1)_{v-1} (c)_u / (V)_u  prod_s f(k_s, N_s) / ((c)_{k_s} (n-1)_{k_s})

H predicts each next symbol by the factor that it multiplies this with. (The benchmark's automata are then minimised. That changes
no language, so it changes no prediction: see README.md.)

The sum over H remains. It is exact as long as there are not more partial automata than hypotheses allowed: a new edge branches
into all states that it can lead to. Beyond that the hypotheses are a sample, a particle filter. After every token each particle
is moved by Metropolis-Hastings steps. A step forgets an edge, draws another target, replays the whole prefix, and draws the edges
that are then missing ("resample-move": Gilks and Berzuini 2001). A filter without moves loses the truth, because it decides
where an edge leads before the prefix tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from baselines.ngram import NGram
from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_at_least, check_tokens, check_vocabulary, longest_first
from regbench.tasks.base import Task
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.threads import for_each


@dataclass(frozen=True)
class Prior:
    """How automata are drawn (ICLL section 3.1). Ranges include both ends. The defaults are the paper's.

    Raises:
        UserError: A range is wrong or cannot hold.
    """

    states: tuple[int, int] = (4, 12)  # the fewest and the most states
    # the fewest and the most edges of a state. It has no more edges than other states or symbols.
    edges: tuple[int, int] = (1, 4)
    alphabet: tuple[int, int] = (4, 18)  # the fewest and the most symbols of an automaton

    def __post_init__(self) -> None:
        for name, least in (("states", 2), ("edges", 1), ("alphabet", 1)):
            ends = getattr(self, name)
            if not isinstance(ends, tuple) or len(ends) != 2:
                raise UserError(f"{name} must be a tuple of two integers, not {ends!r}")
            low, high = ends
            check_at_least(f"{name}[0]", low, least)
            check_at_least(f"{name}[1]", high, low)
        if self.states[1] > 127:
            raise UserError(f"states[1] must be at most 127, not {self.states[1]}")
        most = min(self.states[0] - 1, self.alphabet[0])
        if self.edges[0] > most:
            raise UserError(
                f"edges[0] must be at most {most}, the most edges of the smallest automaton, not {self.edges[0]}"
            )


@dataclass
class Bayes(Baseline):
    """The posterior predictive distribution under a known prior; see the module.

    Raises:
        UserError: An argument is out of range.
    """

    prior: Prior  # how automata are drawn
    vocab_size: int  # V, the number of tokens
    separator: int  # the token that joins strings
    # the most partial automata that are kept. The posterior is exact up to rounding until more are possible, after a
    # few tokens of a real prompt. With all of them, and `fallback` 0, no predictor is better on average.
    hypotheses: int = 100
    # Metropolis-Hastings steps of each hypothesis after every token of a string. More hypotheses or moves are better;
    # for the same time, more moves are somewhat better (README.md beside this file has the numbers). Time grows nearly
    # with their product, and little faster than the prompt, because most proposals are soon ruled out.
    moves: int = 10
    # the seed of the draws. It is the same for all instances, so no prediction depends on the rest of the batch.
    seed: int = 0
    # the share of an n-gram model (interpolated Kneser-Ney of order 3) in every prediction, so that a token that no
    # hypothesis expects has a finite cost. If all hypotheses rule the next token out, e.g. because the prompt has more
    # symbols than the prior, the n-gram model alone predicts the rest of the string.
    fallback: float = 0.005

    name = "Bayes"
    slow = True

    def __post_init__(self) -> None:
        check_vocabulary(self.vocab_size, self.separator)
        for name, least in (("hypotheses", 1), ("moves", 0), ("seed", 0)):
            check_at_least(name, getattr(self, name), least)
        if self.seed >= 2**63:
            raise UserError(f"seed must be below 2**63, not {self.seed}")
        if not 0.0 <= self.fallback <= 1.0:
            raise UserError(f"fallback must be between 0 and 1, not {self.fallback!r}")
        most, symbols = self.prior.alphabet[1], self.vocab_size - 1
        if most > symbols:
            raise UserError(f"an alphabet of {most} is above the {symbols} symbols of the vocabulary")

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """One with the task's own prior; [] for tasks without ranges of states, edges and alphabet."""
        p, io = task.parameters, task.io
        names = ("states", "edges", "alphabet")
        if not all(hasattr(p, f"{end}_{name}") for name in names for end in ("min", "max")):
            return []
        prior = Prior(**{name: (getattr(p, f"min_{name}"), getattr(p, f"max_{name}")) for name in names})
        # More possible edges are more decisions to revise: 10 moves on pfa-small-v1, 36 at the paper's scale. More take hours.
        moves = min(max(10, prior.states[1] * (io.vocab_size - 1) // 6), 36)
        return [cls(prior, io.vocab_size, io.separator, moves=moves)]

    def predict(self, tokens: IntArray) -> FloatArray:
        """The distribution of every token given those before it: (B, L) -> (B, L, V)."""
        # Imported here: that takes longer than to read predictions from the cache.
        from baselines._bayes_filter import predict_row, tables_of
        from baselines._bayes_hypotheses import Hypotheses, Scratch

        tokens = check_tokens(tokens, self.vocab_size)
        probs = NGram(3, self.vocab_size, self.separator, "kneser-ney").predict(tokens)
        # Symbols are numbered without the separator. The separator becomes -1.
        symbols = np.where(tokens == self.separator, -1, tokens - (tokens > self.separator))
        columns = np.delete(np.arange(self.vocab_size), self.separator)
        prior = self.prior
        tables = tables_of(prior.states, prior.edges, prior.alphabet, self.vocab_size - 1, tokens.shape[1])

        def work(row: int) -> None:
            h = Hypotheses.empty(self.hypotheses, prior.states[1], self.vocab_size - 1)
            mixed = np.ascontiguousarray(probs[row][:, columns])  # another layout would be compiled for again
            predict_row(symbols[row], self.moves, self.seed, self.fallback, tables, h, Scratch.of(h, tables), mixed)
            probs[row][:, columns] = mixed

        for_each(work, longest_first(tokens, self.separator))
        return probs
