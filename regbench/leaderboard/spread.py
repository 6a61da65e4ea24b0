"""What is expected of the seeds of each board, in `spread.json`.

It is fitted when a board has enough entries, and kept. So no verdict moves because another entry came. To fit it anew, remove the
board's lines from the file: `regbench leaderboard` writes them again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betaln, digamma, polygamma

from regbench.leaderboard.entry import Entry, canonical
from regbench.leaderboard.store import find_board, kept
from regbench.metrics.metric import Metric, Metrics
from regbench.metrics.significance import Prior, default_prior
from regbench.results import BaselineRecord
from regbench.utils.errors import UserError

SPREAD = "spread.json"

FEWEST = 8
"""A prior is fitted to the seeds of so many entries, or more."""

Priors = Mapping[str, Prior]
"""What is expected of the seeds, by score."""


def kept_spread(folder: Path) -> Mapping[str, Priors]:
    """What `spread.json` of a leaderboard holds, by the digest of a track's definition."""
    found: Mapping[str, Priors] = kept(folder, SPREAD, dict[str, Prior])
    return found


def spread_file(folder: Path, fitted: Mapping[str, Priors]) -> str:
    """The text of `spread.json`: what is there, and what was fitted for boards that are new."""
    known = {digest: priors for digest, priors in fitted.items() if priors} | {**kept_spread(folder)}
    return canonical({key: {name: one.model_dump() for name, one in priors.items()} for key, priors in known.items()})


def prior_of(digest: str, metric: Metric) -> Prior:
    """What is expected of the seeds of a score on the track of a digest: as the board here says, or the default."""
    try:
        known = kept_spread(find_board(None))
    except UserError:  # there is no board here
        known = {}
    return known.get(digest, {}).get(metric.name) or default_prior(metric)


def fit_priors(entries: Sequence[Entry], known: Metrics, baselines: Mapping[str, BaselineRecord]) -> dict[str, Prior]:
    """What is expected of the seeds, by score. A third of the way from chance to the oracle is a gap. Empty with few entries."""
    if len(entries) < FEWEST:
        return {}
    ends = [record.scores for record in baselines.values() if record.anchor]
    return {
        name: fit_prior(
            [[seed.scores[name].value for seed in entry.result.seeds] for entry in entries],
            metric,
            int(np.count_nonzero(entries[0].instances.counts_of(name))),
            float(f"{abs(ends[0][name].value - ends[1][name].value) / 3:.4g}") if len(ends) == 2 else None,
        )
        for name, metric in known.items()
    }


def fit_prior(entries: Sequence[Sequence[float]], metric: Metric, instances: int, gap: float | None) -> Prior:
    """Fits what is expected of one score, over so many instances, to the seeds of a board's entries (Smyth 2004, section 6.2).

    Seeds that agree to the last digit have reached the end of the scale, and tell nothing of a spread. The prior counts at most
    as much as all seeds that it was fitted to. For `gap` see `Prior`.
    """
    prior = default_prior(metric).model_copy(update={"gap": gap})
    several = [seeds for seeds in entries if len(seeds) > 1]
    if len(several) < FEWEST:
        return prior
    cuts = [prior.gap_in(seeds) for seeds in several]
    above = np.array(
        [sum(x > cut for x in seeds) if cut is not None else 0 for seeds, cut in zip(several, cuts, strict=True)]
    )
    below = np.array([len(seeds) for seeds in several]) - above

    def unlikely(log: float) -> float:
        a = math.exp(log)
        return float((betaln(a, a) - betaln(a + above, a + below)).sum())

    learning = math.exp(minimize_scalar(unlikely, bounds=(math.log(0.02), math.log(20.0)), method="bounded").x)
    prior = prior.model_copy(update={"learning": float(f"{learning:.2g}")})
    unit = prior.model_copy(update={"spread": 1.0})
    spread = [seeds for seeds in several if len(set(seeds)) > 1]
    if len(spread) < FEWEST:
        return prior
    half = np.array([len(seeds) - 1 for seeds in spread]) / 2  # of the degrees of freedom
    logs = np.log([statistics.variance(x) / unit.at(statistics.fmean(x), instances) ** 2 for x in spread])
    logs += np.log(half) - digamma(half)
    excess, most = logs.var(ddof=1) - polygamma(1, half).mean(), half.sum()
    own = brentq(lambda x: polygamma(1, x) - excess, 1e-3, most) if excess > polygamma(1, most) else most
    size = math.exp((logs.mean() + digamma(own) - math.log(own)) / 2)
    return prior.model_copy(update={"spread": float(f"{size:.3g}"), "freedom": float(f"{2 * own:.3g}")})
