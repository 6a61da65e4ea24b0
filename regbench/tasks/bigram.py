"""In-context bigrams: all instances share one Markov chain, except for a few transitions of each instance's own.

An instance has K triggers, each with an output. The output always follows its trigger. After every other symbol the next one is
drawn from a global table pi_b, and the first symbol from pi_1. With the triggers e -> t and o -> x an instance may begin:

    s i n e t h o x a r e t u n o x ...

A predictor has to know the global transitions, which only training teaches. And in each instance it has to find the triggers and
their outputs. An output after the first occurrence of its trigger cannot be predicted, so it is not scored. The task is from
*Birth of a Transformer: A Memory Viewpoint* (Bietti, Cabannes, Bouchacourt, Jegou, Bottou 2023, arXiv:2306.00802). There a
transformer of one layer predicts about 55 % of the in-context outputs, and one of two layers about 99 %. With `predict: outputs`
only these outputs are scored, and so trained on. The paper trains on them alone, too.

The main score is the NLL, not that share. A predictor that repeats what followed a symbol before gets nearly all of the outputs
(the 2-gram of a prompt 99.96 %), but knows nothing of pi_b. The best predictor (`baselines/bigram_solver.py`) must doubt whether
a symbol that has followed once is an output, and gets 98.4 %.

Differences from the paper:
- pi_b does not come from letters in Shakespeare. It is made from `bigrams_seed`: after symbol i, symbol j has the weight
  u^7 / (1 + j), with u uniform over [0, 1) for each pair; rows are divided by their sums. With the default 64 symbols and seed 0
  its entropy rate is 2.36 nats, and the entropy of single symbols is 3.49. For the 65 characters of the paper's Shakespeare they
  are 2.45 and 3.31. pi_1, and pi_q, from which triggers are drawn, are the stationary distribution of this chain (with fewer than
  16 symbols: its distribution 100 steps after the uniform one). In the paper they are the frequencies of characters.
- Outputs are uniform over the symbols that are not triggers. The released code draws them from all symbols. There a trigger may
  be its own output, or two triggers may be each other's outputs, and these repeat to the end. With its counts and five random
  triggers that happens in 8 % of sequences of 256, which hold 28 % of all outputs from a trigger's second occurrence on. With
  its option that no output is its own trigger, these are 0.4 % and 2 %. Both are larger with fewer symbols.
- Random triggers are K independent draws from pi_q, given that they differ. So the probability of a set is proportional to the
  product of its pi_q, and the best predictor can be computed. (The released code draws them in turn, without replacement.)
"""

from __future__ import annotations

import string
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.tasks import base as task
from regbench.tasks._occurrences import occurrences
from regbench.tasks.bigram_chain import bigrams, chains, contexts
from regbench.utils.arrays import FloatArray, IntArray

_NAMES = (string.ascii_letters + string.digits + string.punctuation).replace("|", "")
_LAST = 32  # the most earlier occurrences in a curve: one of more than 64 steps would merge the first few


class BigramParameters(task.Parameters):
    """The parameters of `bigram`. The defaults are the paper's, except that it has 65 symbols."""

    n_symbols: int = pydantic.Field(default=64, ge=3, le=len(_NAMES))  # N, the number of symbols
    n_triggers: int = pydantic.Field(default=5, ge=1)  # K, the triggers of an instance
    length: int = pydantic.Field(default=256, ge=2, le=65536)  # symbols in an instance
    # "random": each instance draws its triggers from pi_q. "fixed": the most frequent symbols by pi_q.
    triggers: Literal["random", "fixed"] = "random"
    # with fixed triggers, how many symbols are more frequent than all of them
    first_trigger: int = pydantic.Field(default=0, ge=0)
    # "uniform": over the symbols that are not triggers. "bigrams": by the row of pi_b of their trigger, without
    # triggers. The best predictor is then unknown, unless outputs alone are scored.
    outputs: Literal["uniform", "bigrams"] = "uniform"
    bigrams_seed: int = pydantic.Field(default=0, ge=0, lt=2**63)  # the seed of the global table pi_b
    # "all": outputs and symbols drawn from the table are scored, and trained on. "outputs": outputs alone, from the
    # second occurrence of their trigger on. What followed it before is then always right.
    predict: Literal["all", "outputs"] = "all"

    @pydantic.model_validator(mode="after")
    def _there_are_outputs(self) -> Self:
        if self.n_triggers > self.n_symbols - 2:
            raise ValueError(
                f"n_triggers ({self.n_triggers}) leaves fewer than two outputs among n_symbols ({self.n_symbols})"
            )
        last = self.n_symbols - self.n_triggers if self.triggers == "fixed" else 0
        if self.first_trigger > last:
            raise ValueError(
                f"first_trigger ({self.first_trigger}) is above {last}, the last place of {self.triggers} triggers"
            )
        return self


class Bigram(task.Task):
    """A global Markov chain with a few transitions of the instance's own; see the module."""

    Parameters = BigramParameters
    version = 1
    main_score = "nll"
    scores = ("nll", "in_context_accuracy", "global_tvd", "tvd")
    group_scores: ClassVar[dict[str, tuple[str, ...]]] = {
        "in_context_accuracy": (
            "token_accuracy",
            "in_context",
            "accuracy in context",
            "Token accuracy of the outputs of triggers that have occurred before (Bietti et al. 2023).",
        ),
        "global_tvd": (
            "tvd",
            "global",
            "TVD, global",
            "TVD over what comes from the global transitions alone: how well training has taught them.",
        ),
    }
    progress_label = "earlier occurrences of the symbol before"
    parameters: BigramParameters

    def __init__(self, parameters: BigramParameters) -> None:
        super().__init__(parameters)
        if parameters.predict == "outputs":
            # Of other tasks the class says what is scored. Here the parameters do.
            self.main_score = "in_context_accuracy"  # type: ignore[misc]
            self.scores = ("in_context_accuracy", "nll")  # type: ignore[misc, assignment]

    @property
    def io(self) -> task.TokenIO:
        """The symbols, and a separator that instances do not use."""
        p = self.parameters
        return task.TokenIO.of((*_NAMES[: p.n_symbols], "|"), p.length)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. No split shares triggers and outputs with another.

        Those of the test and validation splits are distinct. Those of the training split may repeat each other, because few may
        exist with fixed triggers.
        """
        before, p, held_out = splits.first(split), self.parameters, splits.test + splits.validation
        count = before + splits.size(split)
        rows = self._rows() if p.outputs == "bigrams" else None
        drawn = contexts(trigger_weights(p), p.n_triggers, splits.seed, held_out, count, rows)
        places, triggers, outputs = (array[before:] for array in drawn)
        tokens = chains(splits.seed, places, self._rows(), triggers, outputs, p.length)
        truth = {"triggers": triggers, "outputs": outputs}
        instances = Instances.unpadded(tokens, np.ones(tokens.shape, np.bool_), f"bigram/{self.version}", truth)
        groups = self.groups(instances)
        scored = groups["in_context"] if p.predict == "outputs" else groups["in_context"] | groups["global"]
        return replace(instances, scored=scored)

    def _rows(self) -> FloatArray:
        """(N + 1, N): pi_b, and pi_1 as the last row."""
        matrix, marginal = bigrams(self.parameters.n_symbols, self.parameters.bigrams_seed)
        return np.vstack([matrix, marginal])

    def _after_trigger(self, instances: Instances) -> NDArray[np.int8]:
        """(N, L): the number of the trigger before a position, from 0; -1 if the symbol before it is no trigger."""
        found = np.full(instances.tokens.shape, -1, np.int8)
        for k, trigger in enumerate(instances.truth["triggers"].T):
            found[:, 1:][instances.tokens[:, :-1] == trigger[:, None]] = k
        return found

    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V): a row of pi_b after an ordinary symbol. After a trigger its output has probability 1."""
        true = np.zeros((*instances.tokens.shape, self.io.vocab_size))
        rows = self._rows()
        true[:, 0, :-1] = rows[-1]
        true[:, 1:, :-1] = rows[instances.tokens[:, :-1]]
        after = self._after_trigger(instances)
        n, t = np.nonzero(after >= 0)
        true[n, t] = 0.0
        true[n, t, instances.truth["outputs"][n, after[n, t]]] = 1.0
        true[~instances.scored] = 0.0
        return true

    def identities(self, instances: Instances) -> list[bytes]:
        """The triggers and outputs of each instance."""
        pairs = np.concatenate([instances.truth["triggers"], instances.truth["outputs"]], axis=1)
        return [row.tobytes() for row in pairs]

    def _earlier(self, instances: Instances) -> IntArray:
        """(N, L): how often the symbol before a position has occurred before. It is 0 at the first position."""
        return np.pad(occurrences(instances.tokens, self.io.vocab_size)[1][:, :-1], ((0, 0), (1, 0)))

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`in_context`: outputs of triggers that have occurred before. `global`: symbols drawn from pi_b or pi_1."""
        after = self._after_trigger(instances) >= 0
        earlier = self._earlier(instances)
        return {"in_context": after & (earlier > 0), "global": ~after}

    def progress(self, instances: Instances) -> IntArray:
        """How often the symbol before a position has occurred before; -1 if more than 32 times.

        It is 0 at the first position. Outputs count as in context from 1 on.
        """
        earlier = self._earlier(instances)
        return np.where(earlier <= _LAST, earlier, -1)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds three numbers.

        `bigram_entropy_nats` is the entropy rate of the global chain. `in_context_share` is the share of scored positions that
        are in context. `mean_occurrences` is how often a trigger occurs in an instance, its last position not counted.
        """
        matrix, marginal = bigrams(self.parameters.n_symbols, self.parameters.bigrams_seed)
        nats = -(matrix * np.log(np.maximum(matrix, 1e-300))).sum(1)
        after = self._after_trigger(instances) >= 0
        return super().statistics(instances) | {
            "bigram_entropy_nats": float(marginal @ nats),
            "in_context_share": float((after & instances.scored).sum() / instances.scored.sum()),
            "mean_occurrences": float(after.sum() / instances.truth["triggers"].size),
        }


def trigger_weights(p: BigramParameters) -> FloatArray:
    """Weights (N,): the probability that a set of symbols is the triggers is proportional to the product of its weights.

    The mean weight is about 1 or less, so that products of many stay within the range of floating-point numbers.
    """
    marginal = bigrams(p.n_symbols, p.bigrams_seed)[1]
    if p.triggers == "random":
        return marginal * p.n_symbols
    weights = np.zeros(p.n_symbols)
    weights[np.argsort(-marginal, kind="stable")[p.first_trigger :][: p.n_triggers]] = 1.0
    return weights
