"""What a study gives: tables, curves for one picture, and expectations that hold or not."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from scipy import stats

from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest

STUDIES = {"gradient-memory": 20, "memory-capacity": 5, "zipf-memory": 20}
"""The studies, and how many times each draws its random numbers."""


@dataclass(frozen=True)
class Options:
    """The options of a study."""

    draws: int = 20
    seed: int = 0
    optimizers: bool = False  # zipf-memory: whether memories are trained, too

    def rng(self, draw: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, draw])


@dataclass(frozen=True)
class StudyRows:
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str | float, ...]]


@dataclass(frozen=True)
class Curve:
    """A line of a picture."""

    label: str
    x: Sequence[float] | FloatArray
    y: Sequence[float] | FloatArray
    guide: bool = False  # an oracle or a rate, which is drawn thin and grey


@dataclass(frozen=True)
class Panel:
    """A part of a picture. Its horizontal axis is logarithmic."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log: bool = True  # the vertical axis


@dataclass(frozen=True)
class Expectation:
    """Something that must hold."""

    what: str
    measured: str
    wanted: str
    holds: bool


@dataclass(frozen=True)
class Study:
    """What a study found: tables, the same as a picture, and what must hold."""

    tables: tuple[StudyRows, ...]
    panels: tuple[Panel, ...]
    expectations: tuple[Expectation, ...]


def between(what: str, value: float, low: float, high: float) -> Expectation:
    return Expectation(what, f"{value:.2f}", f"{low:.2f} to {high:.2f}", bool(low <= value <= high))


def at_most(what: str, value: float, limit: float) -> Expectation:
    return Expectation(what, f"{value:.3g}", f"at most {limit:.3g}", bool(value <= limit))


def at_least(what: str, value: float, limit: float) -> Expectation:
    return Expectation(what, f"{value:.3g}", f"at least {limit:.3g}", bool(value >= limit))


def near_oracle(what: str, values: FloatArray, oracle: float) -> Expectation:
    """The expectation that the mean of draws (M,) is an oracle's value, but for as much as three standard errors of many draws.

    Few draws may be farther away, as Student's t says.
    """
    mean, error = float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)
    errors = float(stats.t.isf(stats.norm.sf(3), len(values) - 1))
    measured = f"{mean:.4f} ± {error:.4f}"
    return Expectation(
        what, measured, f"{oracle:.4f}, within {errors:.1f} errors", abs(mean - oracle) <= errors * error
    )


def slope(x: Sequence[float], y: Sequence[float] | FloatArray) -> float:
    """The slope of log y on log x by least squares."""
    return float(np.polyfit(np.log(x), np.log(np.asarray(y)), 1)[0])


def study_names() -> dict[str, str]:
    """Every study, with its one line."""
    return {name: (_module(name).__doc__ or "").partition("\n")[0] for name in STUDIES}


def run_study(name: str, draws: int | None = None, seed: int = 0, optimizers: bool = False) -> Study:
    """Runs one of `STUDIES`.

    Raises:
        UserError: There is no such study, or it has no such option.
    """
    if name not in STUDIES:
        raise UserError(f"unknown study '{name}'{nearest(name, STUDIES)}")
    if optimizers and name != "zipf-memory":
        raise UserError(f"--optimizers is for zipf-memory: {name} trains no memories")
    if (draws is not None and draws < 2) or seed < 0:
        raise UserError("--draws takes a number of 2 or more, and --seed one of 0 or more")
    found: Study = _module(name).run(Options(draws or STUDIES[name], seed, optimizers))
    return found


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"papers.memory.{name.replace('-', '_')}")
