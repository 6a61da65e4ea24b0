"""Memory over a distance: a value is written, much is to be ignored, and then the value is read.

An instance is a list of instructions of two tokens. `a= 3` writes the value 3 into the register a, `a? 3` reads it, and `# 5` is
to be ignored. Each register is written, read once about s tokens later, s being the size of the instance, and written anew. With
two registers and a size of 4:

    a= 3  # 5  b= 1  a? 3  # 2  b? 1  a= 4 ...

The values behind readings are scored. Between a writing and its reading stand s tokens, or a few more where other instructions
have those places. What is to be ignored carries values too, by default the same as those that are written.

With one register and two values this is the flip-flop language of *Exposing Attention Glitches with Flip-Flop Language Modeling*
(Liu et al. 2023, arXiv:2306.00946): write, ignore, read. There writings and readings come at random; here the distance is chosen.
Lengths beyond training are those of Mamba's induction heads (Gu and Dao 2023, arXiv:2312.00752, Table 2).
"""

from __future__ import annotations

import string
from functools import cached_property
from typing import Any

import numpy as np
import pydantic
from numba import njit
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.data.rng import below, stream
from regbench.tasks import base as task
from regbench.tasks._reach import DrawnReachTask, ReachParameters, Size, Sizes
from regbench.utils.arrays import FloatArray

_INSTRUCTIONS = 23  # the stream's purpose


class DistanceParameters(ReachParameters):
    """The parameters of `distance`; a size is a number of tokens between a writing and its reading."""

    sizes: Sizes = (4, 8, 16, 32, 64, 128)
    beyond: tuple[Size, ...] = (256, 1024, 4096)
    n_registers: int = pydantic.Field(default=4, ge=1, le=26)  # registers that are written and read
    n_values: int = pydantic.Field(default=16, ge=2, le=16_384)  # values that can be written
    n_noise: int = pydantic.Field(default=0, ge=0, le=16_384)  # tokens of their own behind #. 0: values stand there
    # tokens of an instance. One of a size that does not fit is longer.
    length: int = pydantic.Field(default=256, ge=8, le=1 << 17, multiple_of=2)

    def length_of(self, size: int) -> int:
        """The tokens of an instance of a size: in each, every register is written and read once at least."""
        return max(self.length, 2 * (size // 2 + 6 * self.n_registers + 2))


class Distance(DrawnReachTask):
    """Values that have to be kept for a while; see the module."""

    Parameters = DistanceParameters
    version = 1
    progress_label = "tokens"
    parameters: DistanceParameters

    @cached_property
    def io(self) -> task.TokenIO:
        """Writings a=, b=, ..., readings a?, b?, ..., #, the values, the noise and the separator."""
        p = self.parameters
        registers = string.ascii_lowercase[: p.n_registers]
        values, noise = map(str, range(p.n_values)), (f"#{i}" for i in range(p.n_noise))
        names = (*(f"{r}=" for r in registers), *(f"{r}?" for r in registers), "#", *values, *noise, "|")
        return task.TokenIO.of(names, p.length_of(p.tested[-1]))

    def _draw(self, kind: int, seed: int, start: int, n: int) -> NDArray[Any]:
        p = self.parameters
        return self._filled(n, p.length_of(kind), _fill, seed, start, kind, p.n_registers, p.n_values, p.n_noise)

    def chance(self, instances: Instances) -> FloatArray:
        """One value of all."""
        return np.full(instances.scored.shape, 1.0 / self.parameters.n_values)


@njit(cache=True, nogil=True)
def _fill(begin, end, seed, start, size, n_registers, n_values, n_noise, rows):  # type: ignore[no-untyped-def]
    """Fills rows (N, 2, L); see `DrawnReachTask._draw`. A slot has two tokens. Registers take their slots one after the other."""
    n_slots, ignore = rows.shape[2] // 2, 2 * n_registers
    first, between = ignore + 1, size // 2
    values = np.empty(n_registers, np.int64)
    does = np.empty(n_slots, np.int64)
    for n in range(begin, end):
        rng = stream(seed, _INSTRUCTIONS, (size << 32) + start + n)
        does[:] = ignore
        for register in range(n_registers):
            at = below(rng, 2 * n_registers)
            while True:
                while at < n_slots and does[at] != ignore:
                    at += 1
                reading = at + between + 1
                while reading < n_slots and does[reading] != ignore:
                    reading += 1
                if reading >= n_slots:
                    break
                does[at], does[reading] = register, n_registers + register
                at = reading + 1 + below(rng, 2 * n_registers)
        for slot in range(n_slots):
            what, drawn = does[slot], below(rng, n_values)
            rows[n, 0, 2 * slot] = what
            if what < n_registers:
                values[what] = drawn
            elif what < ignore:
                drawn = values[what - n_registers]
                rows[n, 1, 2 * slot + 1] = 1 + first + drawn
            elif n_noise > 0:
                drawn = n_values + below(rng, n_noise)
            rows[n, 0, 2 * slot + 1] = first + drawn
