"""What a study gives: tables, curves for one picture, and expectations that hold or not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pydantic
from scipy import stats

from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, explain_validation, nearest
from regbench.utils.settings import Settings

STUDIES = ("gradient-memory", "memory-capacity", "zipf-memory")


class Options(Settings):
    """The options that every study has.

    Attributes:
        draws: How many times the random numbers are drawn.
        seed: The seed of all draws.
    """

    draws: int = pydantic.Field(default=20, ge=2, le=10_000)
    seed: int = pydantic.Field(default=0, ge=0, lt=2**63)

    def rng(self, draw: int) -> np.random.Generator:
        """The random numbers of one draw."""
        return np.random.default_rng([self.seed, draw])


@dataclass(frozen=True)
class Rows:
    """A table.

    Attributes:
        title: What stands above it.
        columns: The heads.
        rows: The cells: text, or numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str | float, ...]]


@dataclass(frozen=True)
class Curve:
    """A line of a picture.

    Attributes:
        label: Its name.
        x: Where it was measured, (M,).
        y: What was measured, (M,).
        guide: Whether it is an oracle or a rate, which is drawn thin and grey.
    """

    label: str
    x: Sequence[float] | FloatArray
    y: Sequence[float] | FloatArray
    guide: bool = False


@dataclass(frozen=True)
class Panel:
    """A part of a picture.

    Attributes:
        title: What stands above it.
        x: The label of its horizontal axis, which is logarithmic.
        y: The label of its vertical axis.
        curves: Its lines.
        log: Whether its vertical axis is logarithmic.
        least: The lowest value that a logarithmic axis shows.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log: bool = True
    least: float = 0.0


@dataclass(frozen=True)
class Expectation:
    """Something that must hold.

    Attributes:
        what: What is looked at.
        measured: What was found.
        wanted: What it must be.
        holds: Whether it is.
    """

    what: str
    measured: str
    wanted: str
    holds: bool


@dataclass(frozen=True)
class Study:
    """What a study found.

    Attributes:
        tables: What was measured, as tables.
        panels: The same as a picture.
        expectations: What must hold.
    """

    tables: tuple[Rows, ...]
    panels: tuple[Panel, ...]
    expectations: tuple[Expectation, ...]


def between(what: str, value: float, low: float, high: float) -> Expectation:
    """The expectation that a number lies in [low, high]."""
    return Expectation(what, f"{value:.2f}", f"{low:.2f} to {high:.2f}", bool(low <= value <= high))


def at_most(what: str, value: float, limit: float) -> Expectation:
    """The expectation that a number is not above a limit."""
    return Expectation(what, f"{value:.3g}", f"at most {limit:.3g}", bool(value <= limit))


def at_least(what: str, value: float, limit: float) -> Expectation:
    """The expectation that a number is not below a limit."""
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


def run_study(name: str, settings: Mapping[str, Any]) -> Study:
    """Runs a study.

    Args:
        name: One of `study_names`.
        settings: Its options by name.

    Raises:
        UserError: There is no such study or option (the line has the nearest one), or a value is wrong.
    """
    if name not in STUDIES:
        raise UserError(f"unknown study '{name}'{nearest(name, STUDIES)}")
    module = _module(name)
    options: type[Options] = module.Options
    with explain_validation(f"option of {name}", options.model_fields):
        chosen = options(**settings)
    run: Callable[[Any], Study] = module.run
    return run(chosen)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"papers.memory.{name.replace('-', '_')}")
