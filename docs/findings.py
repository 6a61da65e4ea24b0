"""Evaluates docs/findings.yaml: whether what is published holds here. `docs/tables.py` puts it into docs/findings.md.

A finding has *sides*: the rows of a table of trials, or the entry of a board, that it compares. A side may have a `source` of its
own. The criteria are of three forms:

    attention - recurrence > 0.1          the difference of the means over seeds
    attention > 0.9                       one mean
    rank of reach by state over fixed > 0.5    Spearman's rank correlation of two columns over the rows of a side

The score is that of the finding, or what stands before a colon: `reach: attention - recurrence > 10`. A criterion holds, or
fails, where the difference from its bound is larger than chance explains (docs/verdicts.md): by the spread over seeds, averaged
with the one that is expected. Else it is undecided. Where a side has no rows the finding is not measured yet.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import yaml
from scipy.stats import spearmanr

from regbench.leaderboard.store import stored_in
from regbench.metrics.metric import METRICS
from regbench.metrics.significance import SIGNIFICANCE, Change, default_prior, seed_error

ROOT = Path(__file__).resolve().parents[1]
HOLDS, FAILS, UNDECIDED, MISSING = "holds", "does not hold", "undecided", "not measured yet"
CRITERION = re.compile(r"(?:(\w+): )?(.+?)(?: - (.+?))? ([<>]) (-?[\d.]+)")
RANKS = re.compile(r"rank of (\w+) by (\w+) over (.+)")
INSTANCES = 240
"""The fewest test instances of the tracks that are used: how finely an accuracy near 0 or 1 is known."""


@dataclass(frozen=True)
class Side:
    """What one side of a comparison has: by score the value of each seed, and a table with a row for each configuration."""

    seeds: dict[str, list[float]]
    rows: pd.DataFrame

    def shown(self, score: str) -> str:
        """Mean ± standard error over seeds."""
        values = self.seeds[score]
        error = f" ± {rounded(stdev(values) / math.sqrt(len(values)), score)}" if len(values) > 1 else ""
        return f"{rounded(fmean(values), score)}{error}"


def rounded(value: float, score: str) -> str:
    """A value with the digits that its score has: a reach is of other units."""
    return f"{value:.1f}" if score == "reach" else f"{value:.3f}"


def findings() -> list[dict[str, Any]]:
    """What people wrote."""
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / "docs" / "findings.yaml").read_text(encoding="utf-8"))
    return found


@cache
def trials(source: str) -> pd.DataFrame:
    """A committed table of a sweep, all cells as text."""
    return pd.read_csv(ROOT / source, dtype=str, keep_default_na=False)


@cache
def entries(track: str) -> list[dict[str, Any]]:
    """The entries of a board: what they are, and by score the value of each seed."""
    found = []
    for stored in stored_in(ROOT / "leaderboard" / "entries" / track):
        result = stored.entry.result
        about = {**result.architecture.options, "architecture": result.architecture.name, "entry": stored.entry.name}
        seeds = {name: [seed.scores[name].value for seed in result.seeds] for name in result.metrics}
        if result.seeds[0].reach:
            seeds["reach"] = [seed.reach["area"].size for seed in result.seeds if seed.reach]
        found.append({"about": about, "seeds": seeds, "state": result.architecture.state_bytes})
    return found


def label(score: str) -> str:
    """The name of a score for people."""
    return "reach" if score == "reach" else METRICS[score].label


def written(value: Any) -> str:
    """A value as the cell of a table has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def side(finding: dict[str, Any], wanted: dict[str, Any]) -> Side | None:
    """The seeds of all rows of a table that match, or of the best entry that matches. None where nothing does."""
    source = wanted.get("source", finding["source"])
    wanted = {key: value for key, value in wanted.items() if key != "source"}
    choices = {key: [written(one) for one in (v if isinstance(v, list) else [v])] for key, v in wanted.items()}
    if not source.endswith(".csv"):
        match = [one for one in entries(source) if all(written(one["about"].get(k)) in v for k, v in choices.items())]
        if not match:
            return None
        best = max(match, key=lambda one: fmean(one["seeds"][finding["score"]]))
        return Side(best["seeds"], pd.DataFrame([{"state": best["state"]}]))
    if not (ROOT / source).exists():
        return None
    rows = trials(source)
    for key, values in choices.items():
        rows = rows[rows[key].isin(values)]
    scores = [name.removesuffix("_low") for name in rows if name.endswith("_low")]
    seeds = {name: [x for row in rows.to_dict("records") for x in of_seeds(row, name)] for name in scores}
    return Side(seeds, rows) if len(rows) else None


def of_seeds(row: dict[str, str], score: str) -> list[float]:
    """The values of one or of three seeds: a table of a sweep has the lowest, the median and the highest."""
    if row[score] == "":
        return []
    columns = {"1": [score], "3": [f"{score}_low", score, f"{score}_high"]}[row["seeds"]]
    return [float(row[column]) for column in columns]


def decided(difference: float, seeds: list[list[float]], bounded: bool) -> str:
    """Whether a difference from a bound is above 0, below 0, or what chance explains."""
    prior = default_prior(METRICS["token_accuracy" if bounded else "nll"])
    error, freedom = seed_error(seeds, prior, INSTANCES, same=False)
    change = Change(difference, 0.0, error, freedom, freedom, SIGNIFICANCE / 2)
    return HOLDS if change.better else FAILS if change.worse else UNDECIDED


def correlation(rows: pd.DataFrame, x: str, y: str, bound: float) -> tuple[float, str]:
    """Spearman's rank correlation against a bound, with the standard error of Fisher's transform (Fieller et al. 1957)."""
    rank = float(spearmanr(rows[x].astype(float), rows[y].astype(float)).statistic)
    away = (math.atanh(max(-0.99, min(rank, 0.99))) - math.atanh(bound)) / (1.03 / math.sqrt(len(rows) - 3))
    return rank, HOLDS if away > 1.96 else FAILS if away < -1.96 else UNDECIDED


def evaluate(finding: dict[str, Any], criterion: str) -> tuple[str, str]:
    """The verdict of a criterion, and what was compared with its bound.

    Raises:
        ValueError: It is of no known form, or names no side.
    """
    parts = CRITERION.fullmatch(criterion)
    ranks = parts and RANKS.fullmatch(parts[2])
    names = [ranks[3]] if ranks else [name for name in (parts[2], parts[3]) if name] if parts else []
    if not parts or not set(names) <= set(finding["sides"]):
        raise ValueError(f"{finding['name']}: '{criterion}' is no criterion over {', '.join(finding['sides'])}")
    score, sides = parts[1] or finding["score"], [side(finding, finding["sides"][name]) for name in names]
    there = [one for one in sides if one is not None]
    if len(there) < len(names):
        return MISSING, ""
    sign, bound = (1 if parts[4] == ">" else -1), float(parts[5])
    if ranks:
        rank, verdict = correlation(there[0].rows, ranks[2], ranks[1], bound)
        return verdict, f"{rank:.2f} over {len(there[0].rows)} rows"
    seeds = [one.seeds[score] for one in there]
    means = [fmean(values) for values in seeds]
    value = means[0] - (means[1] if len(means) > 1 else 0.0)
    return decided(sign * (value - bound), seeds, score != "reach"), rounded(value, score)


def verdict(finding: dict[str, Any]) -> str:
    """The verdict of all criteria together: the finding holds where each does."""
    found = {evaluate(finding, one)[0] for one in finding["criteria"]}
    return next(one for one in (MISSING, FAILS, UNDECIDED, HOLDS) if one in found)


def ours(finding: dict[str, Any]) -> str:
    """The score of each side that is there, and each rank correlation."""
    ranks = [one for one in finding["criteria"] if "rank of " in one]
    sides = {
        name: side(finding, wanted)
        for name, wanted in finding["sides"].items()
        if f"over {name} " not in " ".join(ranks)
    }
    cells = [f"{name} {found.shown(finding['score'])}" for name, found in sides.items() if found]
    cells += [
        f"{one.split(' > ')[0].replace('rank of', 'rank correlation of')}: {evaluate(finding, one)[1]}" for one in ranks
    ]
    return "; ".join(cells) or "—"


def overview() -> str:
    """A row for each finding."""
    head = "| published | where | there | here | it |\n| --- | --- | --- | --- | --- |"
    rows = [
        f"| [{one['claim']}](#{anchor(one['claim'])}) | {one['paper']} | {one['published']} | {ours(one)} | **{verdict(one)}** |"
        for one in findings()
    ]
    return "\n".join([head, *rows])


def anchor(heading: str) -> str:
    """Where a heading is in its page."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def sections() -> str:
    """A section for each finding: its picture, its criteria with what they came to, its command, and why."""
    return "\n\n".join(section(one) for one in findings())


def section(finding: dict[str, Any]) -> str:
    """One finding."""
    found, picture = verdict(finding), ROOT / "docs" / "figures" / "findings" / f"{finding['name']}.svg"
    about = label(finding["score"])
    lines = [
        f"## {finding['claim']}",
        "",
        f"**{found[0].upper()}{found[1:]}.** {finding['why'].get(found, '').strip()}".rstrip(),
    ]
    if picture.exists() and found != MISSING:
        lines += ["", f"![{about} of each seed: {ours(finding)}](figures/findings/{picture.name})"]
    lines += ["", f"| criterion ({about}) | value | it |", "| --- | --- | --- |"]
    lines += [
        f"| {one} | {evaluate(finding, one)[1] or '—'} | {evaluate(finding, one)[0]} |" for one in finding["criteria"]
    ]
    command = f"{finding['command']}    # about {finding['minutes']} minutes of a core"
    return "\n".join([*lines, "", "```text", command, "```"])
