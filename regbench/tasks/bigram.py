"""In-context bigrams: a Markov chain that all instances share, but for a few transitions that are each instance's own.

An instance has K triggers, each with an output: behind a trigger always comes its output. Behind every other symbol the next is
drawn from one global table pi_b, and the first symbol from pi_1. With the triggers e -> t and o -> x an instance may begin

    s i n e t h o x a r e t u n o x ...

A predictor has to know the global transitions, which only training teaches, and to find out, instance by instance, which
symbols are triggers and what they put out. Not scored are the outputs behind a trigger's first occurrence, which nothing
foretells. The task is that of *Birth of a Transformer: A Memory Viewpoint* (Bietti, Cabannes, Bouchacourt, Jegou, Bottou 2023,
arXiv:2306.00802), where one layer of a transformer gets about 55 % of the in-context outputs right and two about 99 %.

The main score is the loss, not that share: who repeats whatever followed a symbol before gets all of it (the 2-gram of a prompt
99.96 %) and knows nothing of pi_b, while the best predictor (`baselines/bigram_solver.py`) must doubt whether what has followed
a symbol once is an output, and gets 98.4 %.

Other than there:
- pi_b is no count of letters in Shakespeare but a table made of `bigrams_seed`: symbol j has the weight u^7 / (1 + j) behind
  symbol i, with u uniform over [0, 1) for each pair, and a row is divided by its sum. For the default 64 symbols and seed 0 its
  entropy rate is 2.36 nats, and the entropy of single symbols 3.49; of the 65 characters of the paper's Shakespeare they are
  2.45 and 3.31. pi_1 and pi_q, from which triggers come, are what that chain tends to: there, the frequencies of characters.
- Outputs are uniform over the symbols that are no triggers. The released code draws them from all symbols: a trigger whose
  output is itself, or two that put out each other, repeat to the end. With its counts and five random triggers 8 % of sequences
  of 256 have such a trap, and 28 % of all outputs from a trigger's second occurrence on are theirs; with its option that a
  trigger's output is another symbol, 0.4 % and 2 %. Among fewer symbols both are larger.
- Random triggers are K independent draws from pi_q, given that they differ: a set has a probability proportional to the product
  of its pi_q. (The released code draws one after the other without replacement.) So the best predictor can be computed.
"""

from __future__ import annotations

import string
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
import pydantic
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from rich.text import Text

from regbench.data.instances import Instances
from regbench.tasks import base as task
from regbench.tasks.bigram_chain import bigrams, chains, contexts, earlier_occurrences
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

_NAMES = (string.ascii_letters + string.digits + string.punctuation).replace("|", "")
_LAST = 32  # earlier occurrences, in a curve: of more than 64 steps it would put the first few together
_WIDTH = 64  # symbols a line, where an instance is shown


class BigramParameters(task.Parameters):
    """The defaults are the paper's, but that it has 65 symbols. Fixed triggers are the most frequent symbols by pi_q."""

    n_symbols: int = pydantic.Field(default=64, ge=3, le=len(_NAMES))
    n_triggers: int = pydantic.Field(default=5, ge=1)
    length: int = pydantic.Field(default=256, ge=2, le=65536)
    triggers: Literal["random", "fixed"] = "random"
    bigrams_seed: int = pydantic.Field(default=0, ge=0, lt=2**63)

    @pydantic.model_validator(mode="after")
    def _there_are_outputs(self) -> Self:
        if self.n_triggers > self.n_symbols - 2:
            raise ValueError(
                f"n_triggers ({self.n_triggers}) leaves fewer than two of n_symbols ({self.n_symbols}) to be outputs"
            )
        return self


class Bigram(task.Task):
    """A global chain with transitions of the instance's own; see the module."""

    Parameters = BigramParameters
    version = 1
    main_score = "nll"
    scores = ("nll", "in_context_accuracy", "global_tvd", "tvd")
    group_scores: ClassVar[dict[str, tuple[str, str]]] = {
        "in_context_accuracy": ("token_accuracy", "in_context"),
        "global_tvd": ("tvd", "global"),
    }
    progress_label = "earlier occurrences of the symbol before"
    parameters: BigramParameters

    @property
    def io(self) -> task.TokenIO:
        p = self.parameters
        return task.TokenIO(
            vocab_size=p.n_symbols + 1,
            separator=p.n_symbols,
            max_length=p.length,
            names=(*_NAMES[: p.n_symbols], "|"),
        )

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """Test takes the first distinct triggers and outputs of the seed's stream, validation the next.

        Training takes all that follow and are neither: they may repeat each other, of fixed triggers there may be few. So no
        split shares triggers and outputs with another, and changing the size of the training split leaves the others as they are.

        Raises:
            UserError: there are too few distinct ones, or in no instance a trigger occurs twice.
        """
        order = ("test", "validation", "train")
        before = sum(splits.size(name) for name in order[: order.index(split)])
        p, held_out = self.parameters, splits.test + splits.validation
        drawn = contexts(trigger_weights(p), p.n_triggers, splits.seed, held_out, before + splits.size(split))
        places, triggers, outputs = (array[before:] for array in drawn)
        tokens = chains(splits.seed, places, self._rows(), triggers, outputs, p.length)
        instances = Instances(
            tokens,
            np.full(len(tokens), p.length, np.int32),
            np.ones(tokens.shape, np.bool_),
            f"bigram/{self.version}",
            truth={"triggers": triggers, "outputs": outputs},
        )
        groups = self.groups(instances)
        if not groups["in_context"].any():
            raise UserError(
                f"bigram: in the {split} split no trigger has an output twice, so there is nothing to score"
            )
        return replace(instances, scored=groups["in_context"] | groups["global"])

    def _rows(self) -> FloatArray:
        """(N + 1, N): pi_b, and pi_1 as the last row."""
        matrix, marginal = bigrams(self.parameters.n_symbols, self.parameters.bigrams_seed)
        return np.vstack([matrix, marginal])

    def _behind(self, instances: Instances) -> NDArray[np.int64]:
        """(N, L): which of its triggers, numbered from 0, a position stands behind; -1 where it is none."""
        found = np.full(instances.tokens.shape, -1)
        for k, trigger in enumerate(instances.truth["triggers"].T):
            found[:, 1:][instances.tokens[:, :-1] == trigger[:, None]] = k
        return found

    def truth(self, instances: Instances) -> FloatArray:
        """One of the rows of pi_b behind an ordinary symbol; behind a trigger its output is certain."""
        true = np.zeros((*instances.tokens.shape, self.io.vocab_size))
        rows = self._rows()
        true[:, 0, :-1] = rows[-1]
        true[:, 1:, :-1] = rows[instances.tokens[:, :-1]]
        behind = self._behind(instances)
        n, t = np.nonzero(behind >= 0)
        true[n, t] = 0.0
        true[n, t, instances.truth["outputs"][n, behind[n, t]]] = 1.0
        true[~instances.scored] = 0.0
        return true

    def identities(self, instances: Instances) -> list[bytes]:
        pairs = np.concatenate([instances.truth["triggers"], instances.truth["outputs"]], axis=1)
        return [row.tobytes() for row in pairs]

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        """`in_context`: outputs of triggers that have occurred before.  `global`: what comes from pi_b or pi_1."""
        behind = self._behind(instances) >= 0
        earlier = earlier_occurrences(instances.tokens, self.parameters.n_symbols)
        return {"in_context": behind & (earlier > 0), "global": ~behind}

    def progress(self, instances: Instances) -> IntArray:
        """How often the symbol before a position has occurred before: in context from 1 on; 0 at the first position.

        -1 where that is more than 32 times.
        """
        earlier = earlier_occurrences(instances.tokens, self.parameters.n_symbols)
        return np.where(earlier <= _LAST, earlier, -1)

    def statistics(self, instances: Instances) -> dict[str, float]:
        """`bigram_entropy_nats`: the entropy rate of the global chain.  `in_context_share`: of the scored positions.
        `mean_occurrences`: of a trigger in an instance, where something follows it.
        """
        matrix, marginal = bigrams(self.parameters.n_symbols, self.parameters.bigrams_seed)
        nats = -(matrix * np.log(np.maximum(matrix, 1e-300))).sum(1)
        behind = self._behind(instances) >= 0
        return super().statistics(instances) | {
            "bigram_entropy_nats": float(marginal @ nats),
            "in_context_share": float((behind & instances.scored).sum() / instances.scored.sum()),
            "mean_occurrences": float(behind.sum() / instances.truth["triggers"].size),
        }

    def show(self, instances: Instances, index: int) -> Group:
        one, names = instances[index : index + 1], self.io.names
        behind, scored = self._behind(one)[0], one.scored[0]
        view = Table(title="triggers", title_justify="left", box=None, pad_edge=False)
        for column in ("symbol", "output", "occurrences"):
            view.add_column(column, justify="right")
        for k, (trigger, output) in enumerate(zip(one.truth["triggers"][0], one.truth["outputs"][0], strict=True)):
            view.add_row(Text(names[trigger]), Text(names[output]), str(int((behind == k).sum())))
        marks = np.where(behind < 0, " ", np.where(scored, "^", "."))
        lines = [Text("instance; below it . marks a trigger's first output, ^ those that can be known", style="italic")]
        for start in range(0, len(scored), _WIDTH):
            part = slice(start, start + _WIDTH)
            text = Text()
            for token, mark in zip(one.tokens[0, part], marks[part], strict=True):
                text.append(names[token], style={"^": "bold green", ".": "yellow"}.get(mark))
            lines += [text, Text("".join(marks[part]).rstrip(), style="dim")]
        return Group(view, Text(), *lines)


def trigger_weights(p: BigramParameters) -> FloatArray:
    """(N,): a set of n_triggers symbols is the triggers with a probability proportional to the product of its weights.

    Their mean is about one or below, so that products of many stay within range.
    """
    marginal = bigrams(p.n_symbols, p.bigrams_seed)[1]
    if p.triggers == "random":
        return marginal * p.n_symbols
    weights = np.zeros(p.n_symbols)
    weights[np.argsort(-marginal, kind="stable")[: p.n_triggers]] = 1.0
    return weights
