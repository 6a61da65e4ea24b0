"""Automata by the length of the context: in-context language learning, trained on short contexts and tested on long ones.

Instances are those of `pfa`. Those of the test split have so many strings that they are as long as the largest size, where they
end. A position counts for the smallest size that is not below its number. So the curve tells whether a model goes on learning
beyond the length that it was trained on, as counting does (ICLL; Buitrago and Gu 2025, arXiv:2507.02782, on length).

An accuracy is rescaled by what is possible at that length: `floor` and `ceiling` give, for each size, the legal accuracy of the
unigram model and of Bayes. The defaults are measured on the test split of `automata-reach-v1`, where Bayes takes twelve minutes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np
import pydantic

from regbench.data.instances import Instances
from regbench.tasks import base as task
from regbench.tasks._reach import ReachParameters, ReachTask, Size, Sizes
from regbench.tasks.pfa import PFA, PFAParameters
from regbench.utils.arrays import FloatArray, IntArray


class LongAutomataParameters(ReachParameters):
    """The parameters of `long_automata`; a size is a number of tokens."""

    sizes: Sizes = (32, 64, 128)
    beyond: tuple[Size, ...] = (256, 512, 1024)
    # the parameters of `pfa`. They decide the instances of training.
    automata: PFAParameters = PFAParameters(
        n_symbols=8, max_states=8, max_alphabet=8, min_strings=8, max_strings=12, max_length=20
    )
    # for each size the legal accuracy of the unigram model
    floor: tuple[float, ...] = (0.5971, 0.6441, 0.6669, 0.6719, 0.6793, 0.6802)
    ceiling: tuple[float, ...] = (0.816, 0.9497, 0.9765, 0.9909, 0.9955, 0.9981)  # for each size that of Bayes

    @pydantic.model_validator(mode="after")
    def _each_size_has_a_scale(self) -> Self:
        if not len(self.tested) == len(self.floor) == len(self.ceiling):
            raise ValueError(f"floor and ceiling must have a number for each of the {len(self.tested)} sizes")
        if not all(0 <= low < high <= 1 for low, high in zip(self.floor, self.ceiling, strict=True)):
            raise ValueError("each floor must be at least 0, and below its ceiling, which is at most 1")
        return self


class LongAutomata(ReachTask):
    """Strings of random automata in long contexts; see the module."""

    Parameters = LongAutomataParameters
    version = 1
    scores = ("area", "legal_accuracy", "tvd", "nll")
    progress_label = "tokens"
    parameters: LongAutomataParameters

    @cached_property
    def _short(self) -> PFA:
        return PFA(self.parameters.automata)

    @cached_property
    def _long(self) -> PFA:
        """With so many strings that they fill the largest size."""
        p = self.parameters.automata
        strings = -(-self.parameters.tested[-1] // (p.min_length + 1)) + 1
        return PFA(p.model_copy(update={"min_strings": strings, "max_strings": strings}))

    @cached_property
    def io(self) -> task.TokenIO:
        """The symbols and the separator."""
        p = self.parameters
        return replace(self._short.io, max_length=max(p.tested[-1], p.automata.longest))

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. No two instances of any splits have the same automaton."""
        made = (self._long if split == "test" else self._short).generate(splits, split)
        if split == "test":
            lengths = np.minimum(made.lengths, self.parameters.tested[-1]).astype(np.int32)
            made = replace(made, lengths=lengths)[: len(made)]
        return replace(made, generator=f"long_automata/{self.version}")

    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, V): uniform over the symbols that the automaton allows in its state."""
        return self._short.truth(instances)

    def identities(self, instances: Instances) -> list[bytes]:
        """The automaton of each instance, in canonical form."""
        return self._short.identities(instances)

    def _size(self, instances: Instances) -> IntArray:
        """The number of the size that each position counts for, (L,)."""
        return np.searchsorted(self.parameters.tested, np.arange(instances.scored.shape[1]) + 1)

    def progress(self, instances: Instances) -> IntArray:
        """The size that each position counts for, -1 where nothing is scored."""
        return np.where(instances.scored, np.array(self.parameters.tested)[self._size(instances)], -1)

    def chance(self, instances: Instances) -> FloatArray:
        """`floor` by position."""
        return np.broadcast_to(np.array(self.parameters.floor)[self._size(instances)], instances.scored.shape)

    def best(self, instances: Instances) -> FloatArray:
        """`ceiling` by position."""
        return np.broadcast_to(np.array(self.parameters.ceiling)[self._size(instances)], instances.scored.shape)

    def show(self, instances: Instances, index: int) -> str:
        """The automaton, and each string with the states of its symbols."""
        return self._short.show(instances, index)
