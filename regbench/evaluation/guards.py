"""Guards against predictions that cannot count: those that see what they predict, and those that are shifted by one place.

All predictions are compared with the tokens beside them and with the truth. A module or a callable is then asked again, about
cut prompts: there what it must not see does not exist. Code that rewrites this module in its own process cannot be stopped.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.cuts import prompts
from regbench.evaluation.given import Given
from regbench.models.predictor import rows_at_once
from regbench.tasks.base import Task, VectorIO
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

CUTS = 200
"""So many cut prompts are asked about, after everything has been scored."""

TOLERANCE = 1e-3
"""Two predictions are equal within this share of the largest number in their row."""

LARGEST_GAIN = 5.0
"""Standard errors. Rounding gains so much by chance once in a million times."""

ROUNDED = 1.0
"""Added to a sum of squared gains, so that a single one is none."""

LARGEST_Z = 6.0
"""Standard errors. An honest predictor agrees so well with the tokens by chance once in a billion times."""

LEAST_GAIN = 0.1
"""Nats a token. A shift is named only where it makes predictions better by more than this."""


def require_bottleneck(predictor: Any, track: Track) -> None:
    """Refuses a predictor that would read the whole prompt on a track that asks what one vector holds."""
    model = getattr(predictor, "model", predictor)  # of what `regbench.load` gives
    if track.task.io.bottleneck is not None and getattr(getattr(model, "io", None), "bottleneck", None) is None:
        raise UserError(
            f"{track.name} asks what one vector of a model holds, and this predictor reads the whole prompt: train an "
            "architecture on it, with regbench run --arch"
        )


# --- What a model sees: it is asked again. ---


class CutCheck:
    """Keeps some of the rows that are scored, and asks for them again with cut prompts, in random order and batches.

    A model that has seen what it predicts, or what follows, or the instances beside it, gives others then. So does one that
    behaves for as long as it is watched. One that looks its answers up gives the same. So cut prompts of fresh instances, of
    which there is nothing to look up, are among the others, and are not to be answered worse.
    """

    def __init__(self, instances: Instances, fresh: Instances | None = None) -> None:
        self.rng = np.random.default_rng()  # nobody can know which
        self.instances, self.fresh = instances, fresh
        there = np.flatnonzero(instances.scored.any(1))
        self.which = self.rng.choice(there, CUTS, replace=len(there) < CUTS)
        self.places = self._places(instances, self.which)
        self.scored: dict[int, FloatArray] = {}

    def _places(self, instances: Instances, which: IntArray) -> IntArray:
        keys = self.rng.random((len(which), instances.scored.shape[1]))
        places: IntArray = np.where(instances.scored[which], keys, -1.0).argmax(1)
        return places

    def add(self, rows: FloatArray, start: int) -> None:
        for k in np.flatnonzero((start <= self.which) & (self.which < start + len(rows))):
            self.scored[int(k)] = rows[self.which[k] - start, self.places[k]].copy()

    def judge(self, one: Given, tolerance: float) -> None:
        """Refuses a model whose rows for the cut prompts are not those that were scored, or are better than for fresh ones."""
        scored, again = np.stack([self.scored[k] for k in range(CUTS)]), self._ask(one)
        off = _apart(scored, again[:CUTS])
        if off.max() > tolerance:
            raise UserError(self._why(one, int(off.argmax()), tolerance))
        seeing = _worth(scored, self.instances, self.which, self.places)
        gains = [
            a - b for a, b in zip(seeing, _worth(again[:CUTS], self.instances, self.which, self.places), strict=True)
        ]
        if any(gain.sum() > LARGEST_GAIN * math.sqrt((gain**2).sum() + ROUNDED) for gain in gains):
            raise UserError(
                f"the {one.what} sees the token that it predicts: its predictions change little with it, and are better for it"
            )
        if self.fresh is not None:
            known = _worth(again[CUTS:], self.fresh, np.arange(CUTS), self.fresh_places)
            for a, b in zip(seeing, known, strict=True):
                if a.mean() - b.mean() > LARGEST_GAIN * math.sqrt((a.var() + b.var()) / CUTS + 1 / CUTS**2):
                    raise UserError(
                        f"the {one.what} is better on these instances than on fresh ones of the same kind: it knows their tokens"
                    )

    def ignore_the_token_before(self, one: Given) -> bool:
        """Whether no row changes with the token just before its place."""
        some = np.flatnonzero(self.places > 0)[: rows_at_once(one.io, self.instances.tokens.shape[1], 64)]
        which, at = self.which[some], (np.arange(len(some)), self.places[some] - 1)
        tokens = self.instances.tokens[which]
        changed = tokens.copy()
        changed[at] = (tokens[at].astype(np.int64) + 1) % one.io.width
        rows = [one.predict(each)[at[0], self.places[some]] for each in (tokens, changed)]
        return bool((_apart(*rows) <= TOLERANCE).all())

    def _ask(self, one: Given) -> FloatArray:
        """The rows (K, V) of the cut prompts, those of fresh instances behind the others."""
        # All are as long as the longest: one that answers the last place alone is honest where every instance is as long.
        length = max(some.tokens.shape[1] for some in (self.instances, self.fresh) if some is not None)
        asked = [prompts(self.instances, self.which, self.places, one.io.separator, length)]
        places = [self.places]
        if self.fresh is not None:
            self.fresh_places = self._places(self.fresh, np.arange(CUTS))
            places.append(self.fresh_places)
            asked.append(prompts(self.fresh, np.arange(CUTS), self.fresh_places, one.io.separator, length))
        tokens, at = np.concatenate([one.tokens for one in asked]), np.concatenate(places)
        rows, most = np.empty((len(tokens), one.io.width)), rows_at_once(one.io, length, 64)
        # The first is asked about alone. It is one that was scored, so that its row is compared.
        rest = np.append(0, self.rng.permutation(np.arange(1, len(tokens))))
        while len(rest):
            some, rest = np.split(rest, [1 if len(rest) == len(tokens) else int(self.rng.integers(1, most + 1))])
            rows[some] = one.predict(tokens[some])[np.arange(len(some)), at[some]]
        return rows

    def _why(self, one: Given, worst: int, tolerance: float) -> str:
        """What a row depends on: its instance is asked about alone, whole, whole once more, and cut."""
        which, place = self.which[worst : worst + 1], self.places[worst]
        whole = self.instances.tokens[which]
        cut = prompts(self.instances, which, self.places[worst : worst + 1], one.io.separator, whole.shape[1]).tokens
        first, second, blind = (one.predict(tokens)[0, place] for tokens in (whole, whole, cut))
        if _apart(first, second) > tolerance:
            return f"the {one.what} gives other predictions when it is asked again: it is random, or keeps something"
        if _apart(first, blind) <= tolerance:
            return f"the {one.what}'s predictions of an instance depend on the others in its batch, or on what was asked before"
        hint = "; if row t is of token t + 1, say predicts='next'" if one.predicts == "this" else ""
        return (
            f"the {one.what} sees the token that it predicts, or what follows: without them it predicts otherwise{hint}"
        )


def _worth(rows: FloatArray, instances: Instances, which: IntArray, places: IntArray) -> list[FloatArray]:
    """How good K predictions are, each (K,): whether the most likely token is right, and its logarithm. Of vectors the error.

    What is most likely may be right by a difference that is as small as rounding. But rounding is right as often as wrong.
    """
    wanted = instances.targets[which, places]
    if wanted.ndim == 2:
        return [-((rows - wanted[:, -rows.shape[1] :]) ** 2).mean(-1)]
    wanted = wanted.astype(np.int64)
    return [(rows.argmax(-1) == wanted).astype(float), _cautious_log(rows)[np.arange(len(rows)), wanted]]


def _apart(one: FloatArray, other: FloatArray) -> FloatArray:
    """How far rows (..., V) are from each other, as a share of the largest number in them."""
    peak = np.maximum(np.abs(one).max(-1), np.abs(other).max(-1))
    return cast(FloatArray, np.abs(one - other).max(-1) / np.maximum(peak, 1e-12))


# --- What predictions have seen: they are weighed. ---


class HonestyCheck:
    """Sums over scored tokens that show whether predictions are honest, and whether they are shifted. Vectors are not checked.

    Let q be the prediction of a token x that was drawn from the truth p. If q was made without x, then q(x) has the mean
    sum_v p(v) q(v), whatever q is. The sums of q(x) less this mean are a martingale. A predictor that has seen x, or what
    follows from x, gives it more.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.excess = {shift: np.zeros(2) for shift in (-1, 0, 1)}
        """By shift: the sum of q(x) less its mean, and the variance of this sum. Row t + shift is taken for token t."""
        self.gain = {shift: np.zeros(4) for shift in (-1, 1)}
        """By shift: how much higher log q(x) is than without it, as number, sum, and sum of squares; and the sum of log q(x)."""
        self.log_likelihood = np.zeros(3)
        """Of the shifts -1, 0 and 1, of the tokens that have a row on either side."""
        self.counts = np.zeros(task.io.width)
        """How often each token is scored."""

    def add(self, rows: FloatArray, instances: Instances) -> None:
        if isinstance(self.task.io, VectorIO):
            return
        tokens = instances.targets.astype(np.int64)
        scored = instances.scored
        if self.task.knows_truth:
            truth = self.task.truth(instances)
            for shift in self.excess:
                at, beside = _beside(scored, shift)
                q, p, x = rows[beside], truth[at], tokens[at]
                mean = (p * q).sum(-1)
                given_x = np.take_along_axis(q, x[:, None], -1)[:, 0]
                self.excess[shift] += (given_x - mean).sum(), np.maximum((p * q**2).sum(-1) - mean**2, 0.0).sum()
        self.counts += np.bincount(tokens[scored], minlength=len(self.counts))
        b, t = np.nonzero(scored)
        early, late = t > 0, t + 1 < instances.lengths[b]
        both = early & late
        self.log_likelihood += [_log_of(rows, tokens, b[both], t[both], shift).sum() for shift in (-1, 0, 1)]
        self._addgain(-1, *(_log_of(rows, tokens, b[early], t[early], shift) for shift in (-1, 0)))
        both[both] = scored[b[both], t[both] - 1] & scored[b[both], t[both] + 1]
        self._addgain(1, *(_log_of(rows, tokens, b[both], t[both], shift) for shift in (1, 0)))

    def _addgain(self, shift: int, there: FloatArray, own: FloatArray) -> None:
        """Takes log q(x) of some tokens, (N,) each: by the rows at a shift, and by their own."""
        gain = there - own
        self.gain[shift] += len(gain), gain.sum(), (gain**2).sum(), there.sum()

    def judge(self, one: Given, cuts: CutCheck) -> None:
        """Refuses predictions that have seen what they predict, and predictions that are shifted by one place."""
        if self._better(-1):
            raise UserError(_early(one))
        late = self._better(1) and self.task.knows_truth and abs(self.z(1)) < LARGEST_Z / 2 and self.excess[1][1] > 1
        if late and (one.rows is not None or cuts.ignore_the_token_before(one)):
            own, before = ("t + 1", "t") if one.predicts == "next" else ("t", "t - 1")
            hint = "say predicts='this'" if one.predicts == "next" else "shift the tokens only once"
            raise UserError(
                f"predictions are one place late: the {one.what}'s row t fits token {before} better than token {own}, without "
                f"having seen it; {hint}"
            )
        if self.task.knows_truth and self.z(0) > LARGEST_Z:
            raise UserError(
                f"the {one.what} has seen the tokens that it predicts: it gives them {self.z(0):.0f} standard errors more "
                "probability than the truth allows"
            )

    def z(self, shift: int) -> float:
        """The excess over what honest predictions have, in standard errors. 1 is added to the variance for few tokens."""
        excess, variance = self.excess[shift]
        return float(excess / math.sqrt(variance + 1.0))

    def _better(self, shift: int) -> bool:
        """Whether predictions fit the tokens much better at another shift, and better than the frequencies of the tokens do."""
        number, total, squares, fit = self.gain[shift]
        if number < 2:
            return False
        mean = total / number
        error = math.sqrt(max(squares / number - mean**2, 0.0) / number)
        share = self.counts / self.counts.sum()
        guess = float(share @ _cautious_log(share)) + LEAST_GAIN
        best = self.log_likelihood[shift + 1] >= self.log_likelihood.max() and fit >= guess * number
        return bool(best and mean > LEAST_GAIN and mean > LARGEST_Z * error)


def _beside(scored: NDArray[np.bool_], shift: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Places of scored tokens, and those of the rows at a shift, where both are scored."""
    b, t = np.nonzero(scored)
    inside = (t + shift >= 0) & (t + shift < scored.shape[1])
    b, t = b[inside], t[inside]
    both = scored[b, t + shift]
    return (b[both], t[both]), (b[both], t[both] + shift)


def _log_of(
    rows: FloatArray, tokens: NDArray[np.int64], b: NDArray[np.intp], t: NDArray[np.intp], shift: int
) -> FloatArray:
    """The cautious logarithm of what the rows at a shift give N tokens, the t-th of instance b: (N,)."""
    logs: FloatArray = np.take_along_axis(_cautious_log(rows[b, t + shift]), tokens[b, t][:, None], -1)[:, 0]
    return logs


def _cautious_log(rows: FloatArray) -> FloatArray:
    """The logarithm of rows (..., V), a tenth of each spread evenly. Zeros then do not outweigh everything else."""
    return cast(FloatArray, np.log(0.9 * rows + 0.1 / rows.shape[-1]))


def _early(one: Given) -> str:
    """What is said of rows that fit the token after theirs."""
    if one.predicts == "next":
        return f"predictions are two places early: the {one.what}'s row t fits token t + 2 better than token t + 1"
    fits = f"the {one.what}'s row t fits token t + 1 better than token t"
    return f"predictions are one place early: {fits}; say predicts='next'"
