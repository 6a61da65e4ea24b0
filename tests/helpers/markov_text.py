"""A task like text: two excerpts of Markov chains, a large vocabulary, and no truth that it would tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.tasks.base import Parameters, Splits, Task, TokenIO
from regbench.utils.arrays import IntArray


class MarkovParameters(Parameters):
    """Each topic has a successor for every token; one in four tokens is drawn at random instead, the first ones most often."""

    vocab_size: int = 300
    length: int = 48
    min_cut: int = 20
    max_cut: int = 28
    topics: int = 5


class MarkovText(Task):
    """Half of two chains, the cut where the second begins."""

    Parameters = MarkovParameters
    version = 1
    main_score = "nll"
    scores = ("nll", "nll_behind_cut", "token_accuracy")
    group_scores = {"nll_behind_cut": ("nll", "behind_cut", "NLL after the switch (nats)", "NLL.")}  # noqa: RUF012
    progress_label = "tokens behind the cut"
    knows_truth = False

    @property
    def io(self) -> TokenIO:
        p = self.parameters
        words = [f"Ġword{i}" if i % 3 else f"part{i}" for i in range(p.vocab_size - 2)]
        return TokenIO(p.vocab_size, p.vocab_size - 1, p.length, (*words, "Ċ", "<|>"))

    def generate(self, splits: Splits, split: str) -> Instances:
        p, n = self.parameters, splits.size(split)
        rng = np.random.default_rng([splits.seed, ("train", "validation", "test").index(split)])
        symbols = p.vocab_size - 1
        after = np.random.default_rng(splits.seed).integers(0, symbols, (p.topics, symbols))
        cut = rng.integers(p.min_cut, p.max_cut + 1, n)
        topic = rng.integers(0, p.topics, (n, 2))
        tokens = np.zeros((n, p.length), np.int64)
        for t in range(p.length):
            now = np.where(t < cut, topic[:, 0], topic[:, 1])
            likely = after[now, tokens[:, max(0, t - 1)]]
            drawn = (symbols * rng.random(n) ** 3).astype(np.int64)
            tokens[:, t] = np.where((rng.random(n) < 0.25) | (t == cut) | (t == 0), drawn, likely)
        return Instances(
            tokens.astype(np.min_scalar_type(p.vocab_size - 1)),
            np.full(n, p.length, np.int32),
            np.ones(tokens.shape, bool),
            "markov_text/1",
            {"cut": cut.astype(np.int32), "topic": topic.astype(np.int32)},
        )

    def identities(self, instances: Instances) -> list[bytes]:
        return [row.tobytes() for row in instances.tokens]

    def _distance(self, instances: Instances) -> NDArray[np.int64]:
        return np.arange(instances.tokens.shape[1]) - instances.truth["cut"][:, None].astype(np.int64)

    def groups(self, instances: Instances) -> dict[str, NDArray[np.bool_]]:
        return {"behind_cut": self._distance(instances) >= 0}

    def progress(self, instances: Instances) -> IntArray:
        return np.maximum(self._distance(instances), -1)
