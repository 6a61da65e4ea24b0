"""Scores of several runs by the value of one option.

So the papers show their ablations: 2024, Figures 7 and 10; CGT, Figures 7, 8, 11 and 12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from papers.cgt.pictures import STYLE
from papers.cgt.table import DYNAMIC, FROZEN, RunTable
from regbench.metrics.metric import METRICS
from regbench.metrics.significance import student_quantile
from regbench.report.palette import COLOURS
from regbench.report.pictures import save_picture
from regbench.results import read_result
from regbench.utils.errors import UserError, nearest


@dataclass(frozen=True)
class ByOption:
    """Scores of runs by the value of an option.

    Attributes:
        option: The option, as `--set` names it.
        metric: The score.
        scores: By mode and value, the scores of all seeds of all runs with this value. Values ascend.
    """

    option: str
    metric: str
    scores: Mapping[str, Mapping[Any, tuple[float, ...]]]

    def lines(self) -> list[str]:
        """For each mode the best value, and how far the others are behind it.

        "undecided": not significantly, p of 0.05 or more by Student's t, times the number of the others.
        """
        return [f"{mode}: {self._verdict(by_value)}" for mode, by_value in self.scores.items()]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        modes = {
            mode: [{"value": value, "by_seed": list(seeds)} for value, seeds in by_value.items()]
            for mode, by_value in self.scores.items()
        }
        return {"option": self.option, "metric": self.metric, "scores": modes}

    def _verdict(self, by_value: Mapping[Any, tuple[float, ...]]) -> str:
        sign = 1.0 if METRICS[self.metric].higher_is_better else -1.0
        ranked = sorted(by_value, key=lambda value: -sign * float(np.mean(by_value[value])))
        best, *others = ranked
        parts = []
        for value in others:
            behind = sign * float(np.mean(by_value[best]) - np.mean(by_value[value]))
            if min(len(by_value[best]), len(by_value[value])) < 2:
                parts.append(f"{value} is behind by {behind:.3f}, undecided with one seed")
                continue
            error = float(np.hypot(*(np.std(by_value[v], ddof=1) / len(by_value[v]) ** 0.5 for v in (best, value))))
            freedom = len(by_value[best]) + len(by_value[value]) - 2
            decided = "" if behind > student_quantile(0.025 / len(others), freedom) * error else ", undecided"
            parts.append(f"{value} is behind by {behind:.3f} ±{error:.3f}{decided}")
        return f"best at {self.option}={best}; {'; '.join(parts)}"


def option_values(folders: Sequence[str | Path], option: str) -> list[Any]:
    """The value that an option has in each run.

    Args:
        folders: The run folders.
        option: An option of the architecture, or `training.NAME`.

    Raises:
        UserError: A run is not finished or has no such option, or all have the same value.
    """
    values = []
    for folder in folders:
        result = read_result(Path(folder))
        options = {**result.architecture.options, **{f"training.{k}": v for k, v in result.training.items()}}
        if option not in options:
            raise UserError(f"{folder} has no option '{option}'{nearest(option, options)}")
        value = options[option]
        values.append(value if isinstance(value, int | float | str) else json.dumps(value))
    if len(set(map(repr, values))) == 1:
        raise UserError(f"all runs have {option}={values[0]}: there is nothing to plot by it")
    return values


def by_option(found: RunTable, option: str, values: Sequence[Any]) -> ByOption:
    """Puts the rows of a table together by the value of an option.

    Args:
        found: The table, with one cut. Baselines in it are left out.
        option: The option.
        values: Its value in each run, in the order of the rows.
    """
    rows = [row for row in found.rows if row.seeds]
    scores: dict[str, dict[Any, tuple[float, ...]]] = {}
    numbers = all(isinstance(value, int | float) for value in values)
    order = sorted(range(len(rows)), key=lambda i: values[i] if numbers else str(values[i]))
    for mode in (DYNAMIC, *FROZEN):
        for i in order:
            if mode in rows[i].scores:
                by_value = scores.setdefault(mode, {})
                by_value[values[i]] = by_value.get(values[i], ()) + rows[i].scores[mode][found.metric].by_seed
    return ByOption(option, found.metric, scores)


def plot_by_option(found: ByOption, title: str, path: Path) -> None:
    """Draws a point for each seed, and the mean of each value with three standard errors, as the paper does."""
    every = list(dict.fromkeys(value for by_value in found.scores.values() for value in by_value))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(7.0, 4.0 + 1.1 * len(every)), 4.2), layout="constrained")
        axes = figure.subplots()
        for number, (mode, by_value) in enumerate(found.scores.items()):
            colour, aside = COLOURS[number], 0.14 * (number - (len(found.scores) - 1) / 2)
            x = np.array([every.index(value) for value in by_value]) + aside
            means = np.array([np.mean(seeds) for seeds in by_value.values()])
            errors = [np.std(s, ddof=1) / len(s) ** 0.5 if len(s) > 1 else 0.0 for s in by_value.values()]
            axes.errorbar(
                x, means, 3 * np.array(errors), color=colour, marker="_", markersize=11, capsize=3, linewidth=1
            )
            axes.plot([], [], color=colour, marker="o", linestyle="", label=mode)
            for place, seeds in zip(x, by_value.values(), strict=True):
                axes.plot(np.full(len(seeds), place), seeds, "o", color=colour, markersize=4, alpha=0.6)
        axes.set_xticks(range(len(every)), [str(value) for value in every])
        axes.set(title=title, xlabel=found.option)
        axes.set_ylabel(METRICS[found.metric].heading)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        save_picture(figure, path)
