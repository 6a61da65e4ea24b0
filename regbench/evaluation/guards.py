"""Guards against predictions that cannot count: those that see what they predict, and those that are shifted by one place.

A module or a callable is asked with changed tokens: a prediction may depend on nothing that comes after it. An array cannot be
asked. Its rows are compared with the tokens beside them and with the truth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.evaluation.given import Given
from regbench.models.predictor import rows_at_once
from regbench.tasks.base import IO, Task, VectorIO
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

PROBES = 31
"""So many places of one instance are changed, to see which predictions change with them."""

PROBE_TOLERANCE = 1e-3
"""Two predictions are equal within this share of the largest number in their row."""

ASKED_AGAIN = 64
"""So many instances are asked about twice, to see whether predictions gain from what they must not see."""

LARGEST_GAIN = 5.0
"""Standard errors. Rounding gains so much by chance once in a million times."""

ROUNDED_NATS = 0.01
"""What rounding may change in the logarithm of a probability."""

LARGEST_Z = 6.0
"""Standard errors. An honest predictor agrees so well with the tokens by chance once in a billion times."""

LEAST_GAIN = 0.1
"""Nats a token. A shift is named only where it makes predictions better by more than this."""


def require_bottleneck(predictor: Any, track: Track) -> None:
    """Refuses a predictor that would read the whole prompt on a track that asks what one vector holds.

    Raises:
        UserError: The track's task has a bottleneck, and the predictor is no model of regbench that has it.
    """
    model = getattr(predictor, "model", predictor)  # of what `regbench.load` gives
    if track.task.has_bottleneck and getattr(getattr(model, "io", None), "bottleneck", None) is None:
        raise UserError(
            f"{track.name} asks what one vector of a model holds, and this predictor reads the whole prompt: train an "
            "architecture on it, with regbench run --arch"
        )


# --- What a model sees: it is asked. ---


def probe(one: Given, instances: Instances) -> None:
    """Refuses a model whose predictions depend on what they predict or on what follows, on chance, or on their batch.

    Raises:
        UserError: The fault, in one line.
    """
    _probe_reach(one, instances)
    _probe_padding(one, instances)
    _probe_gain(one, instances)


def _probe_reach(one: Given, instances: Instances) -> None:
    """Changes the longest instance from a place on, at `PROBES` places, and sees which predictions change.

    Raises:
        UserError: Some that must not.
    """
    longest = int(instances.lengths.argmax())
    tokens = instances.tokens[longest : longest + 1, : instances.lengths[longest]]
    length = tokens.shape[1]
    alone = one.predict(tokens)
    if _changed(alone, one.predict(tokens)).any():
        raise UserError(
            f"the {one.what} gives other predictions when it is asked again: it is random, or keeps something"
        )
    places = np.unique(np.linspace(0, length - 1, PROBES).round().astype(int)).tolist()
    reach, at_once = [], max(1, rows_at_once(one.io, length, PROBES + 2) - 2)
    for some in (places[start : start + at_once] for start in range(0, len(places), at_once)):
        changed = [_changed_from(tokens, place, one.io) for place in some]
        first, *answers, last = one.predict(np.concatenate([tokens, *changed, tokens]))
        if _changed(alone[0], first).any() or _changed(alone[0], last).any():
            raise UserError(f"the {one.what}'s predictions of an instance depend on the others in its batch")
        for place, rows in zip(some, answers, strict=True):
            differs = _changed(alone[0], rows)
            if differs.any():
                reach.append((int(differs.argmax()) - place, place))
    if not reach:
        return
    least, place = min(reach)
    if least < 0:
        raise UserError(
            f"the {one.what} sees the future: changing token {place} changes the prediction of token {place + least}"
        )
    if least == 0:
        raise UserError(_sees_itself(one, instances))
    if least == 2 and len(reach) > 2:
        # The places may be two apart. Then the row may still use the token between them.
        between = [place + 1 for behind, place in reach if behind == 2]
        rows = [one.predict(_changed_from(tokens, place, one.io))[0, place + 1] for place in between]
        if not any(_changed(alone[0, place + 1], row) for place, row in zip(between, rows, strict=True)):
            raise UserError(_late(one, " does not use the token just before the one it predicts"))


def _probe_padding(one: Given, instances: Instances) -> None:
    """Reads the shortest instance with the padding that a longer one in its batch would give it, and without.

    Raises:
        UserError: Its predictions differ.
    """
    shortest, longest = int(instances.lengths.argmin()), int(instances.lengths.max())
    length = int(instances.lengths[shortest])
    if length == longest:
        return
    padded = instances.tokens[shortest : shortest + 1, :longest]
    if _changed(one.predict(padded)[:, :length], one.predict(padded[:, :length])).any():
        raise UserError(f"the {one.what}'s predictions of an instance depend on the padding behind it")


def _probe_gain(one: Given, instances: Instances) -> None:
    """Sees whether predictions of tokens are better where the model is given these tokens, be the change as small as it may.

    Raises:
        UserError: They are.
    """
    if isinstance(one.io, VectorIO):  # a small change of a vector changes its score little
        return
    some = instances[np.arange(ASKED_AGAIN) % len(instances)]  # of few instances at several places
    changed, (which, places) = change_behind(some, 0)
    at_once = rows_at_once(one.io, some.tokens.shape[1], ASKED_AGAIN)

    def at_places(tokens: NDArray[Any]) -> FloatArray:
        """(K, V): of each batch only the rows at these places are kept."""
        rows = []
        for start in range(0, len(tokens), at_once):
            here = (start <= which) & (which < start + at_once)
            rows.append(one.predict(tokens[start : start + at_once])[which[here] - start, places[here]])
        return np.concatenate(rows)

    seeing, blind = at_places(some.tokens), at_places(changed.tokens)
    if gain(seeing, blind, some.tokens[which, places]) > LARGEST_GAIN:
        raise UserError(
            f"the {one.what} sees the token that it predicts: its predictions change little with it, and are better for it"
        )


def change_behind(instances: Instances, seed: int) -> tuple[Instances, tuple[IntArray, IntArray]]:
    """Instances that have the tokens of others from a scored place on.

    Returns:
        The instances; and of those with a scored place which they are (K,), and their places (K,).
    """
    rng, tokens = np.random.default_rng(seed), instances.tokens.copy()
    which = np.flatnonzero(instances.scored.any(1))
    places = np.array([rng.choice(np.flatnonzero(instances.scored[i])) for i in which], np.int64)
    for i, place in zip(which, places, strict=True):
        tokens[i, place:] = instances.tokens[i - 1, place:]
    return replace(instances, tokens=tokens), (which, places)


def gain(seeing: FloatArray, blind: FloatArray, tokens: NDArray[Any]) -> float:
    """How much better distributions are that may have seen their tokens, in standard errors.

    A prediction may be most likely right by a difference that is as small as rounding. Rounding is right as often as wrong.

    Args:
        seeing: (K, V), made with the tokens.
        blind: (K, V), made with others in their place.
        tokens: (K,).

    Returns:
        The larger of two: by how often the most likely token is right, and by the log-likelihood.
    """
    rows, wanted = np.arange(len(tokens)), tokens.astype(np.int64)
    right = [(of.argmax(-1) == wanted).astype(float) for of in (seeing, blind)]
    logs = [_cautious_log(of)[rows, wanted] for of in (seeing, blind)]
    hits, nats = right[0] - right[1], logs[0] - logs[1]
    least = len(tokens) * ROUNDED_NATS**2
    return float(
        max(hits.sum() / math.sqrt((hits**2).sum() + 1), nats.sum() / math.sqrt((nats**2).sum() + max(least, 1e-9)))
    )


def _sees_itself(one: Given, instances: Instances) -> str:
    """Why row t changes with token t: the rows are one place early, or copies."""
    if one.predicts == "this" and _fits_next(one, instances[:64]):
        return _early(one)
    hint = "; if row t is of token t + 1, say predicts='next'" if one.predicts == "this" else ""
    return f"the {one.what} sees the token that it predicts: changing token t changes the prediction of token t itself{hint}"


def _fits_next(one: Given, instances: Instances) -> bool:
    """Whether rows fit the next token better than their own; for vectors whether they are nearer to it."""
    fit, count = np.zeros(2), np.zeros(2)
    at_once = rows_at_once(one.io, instances.scored.shape[1], len(instances))
    for start in range(0, len(instances), at_once):
        some = instances[start : start + at_once]
        rows = one.predict(some.tokens)
        for i, (step, (b, t)) in enumerate(_next_and_own(some.scored)):
            own, wanted = rows[b, t], some.tokens[b, t + step]
            if wanted.ndim == 2:
                fit[i] -= ((own - wanted[:, -own.shape[-1] :].astype(np.float64)) ** 2).mean(-1).sum()
            else:
                fit[i] += _cautious_log(own)[np.arange(len(own)), wanted.astype(np.int64)].sum()
            count[i] += len(b)
    return bool(fit[0] / count[0] > fit[1] / count[1])


def _next_and_own(scored: NDArray[np.bool_]) -> list[tuple[int, tuple[Any, ...]]]:
    """How far the token is from its row, and the rows, whose next token and whose own token are scored."""
    return [(1, np.nonzero(scored[:, 1:])), (0, np.nonzero(scored))]


def _log_of(
    rows: FloatArray, tokens: NDArray[np.int64], b: NDArray[np.intp], t: NDArray[np.intp], shift: int
) -> FloatArray:
    """The cautious logarithm of what the rows at a shift give N tokens, the t-th of instance b: (N,)."""
    logs: FloatArray = np.take_along_axis(_cautious_log(rows[b, t + shift]), tokens[b, t][:, None], -1)[:, 0]
    return logs


def _cautious_log(rows: FloatArray) -> FloatArray:
    """The logarithm of rows (..., V), a tenth of each spread evenly. Zeros then do not outweigh everything else."""
    return cast(FloatArray, np.log(0.9 * rows + 0.1 / rows.shape[-1]))


def _early(one: Given, *, sure: bool = True) -> str:
    """What is said of rows that fit the token after theirs. Not sure: a later row that might fit it still better is not there."""
    if one.predicts == "next":
        return "predictions are two places early: the array's row t fits token t + 2 better than token t + 1"
    fits = f"the {one.what}'s row t fits token t + 1 better than token t"
    if sure:
        return f"predictions are one place early: {fits}; say predicts='next'"
    return f"predictions are shifted: {fits}; if they are one place early, say predicts='next'"


def _late(one: Given, why: str) -> str:
    hint = "say predicts='this'" if one.predicts == "next" else "shift the tokens only once"
    return f"predictions are one place late: the {one.what}{why}; {hint}"


def _changed_from(tokens: NDArray[Any], place: int, io: IO) -> NDArray[Any]:
    """(1, L) tokens that differ at `place`, and behind it are drawn anew."""
    changed, rng = tokens.copy(), np.random.default_rng(place)
    if isinstance(io, VectorIO):
        changed[:, place:] += rng.normal(size=changed[:, place:].shape).astype(changed.dtype)
    else:
        changed[:, place:] = rng.integers(0, io.vocab_size, changed[:, place:].shape)
        changed[:, place] = (tokens[:, place].astype(np.int64) + 1) % io.vocab_size
    return changed


def _changed(one: FloatArray, other: FloatArray) -> NDArray[np.bool_]:
    """Which rows differ: (..., L, V) -> (..., L)."""
    peak = np.maximum(np.abs(one).max(-1), np.abs(other).max(-1))
    return cast(NDArray[np.bool_], np.abs(one - other).max(-1) > PROBE_TOLERANCE * np.maximum(peak, 1e-12))


# --- What an array has seen: it is weighed. ---


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
        """Takes the predictions (B, L, V) of some instances."""
        if isinstance(self.task.io, VectorIO):
            return
        tokens = instances.tokens.astype(np.int64)
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
        self._add_gain(-1, *(_log_of(rows, tokens, b[early], t[early], shift) for shift in (-1, 0)))
        both[both] = scored[b[both], t[both] - 1] & scored[b[both], t[both] + 1]
        self._add_gain(1, *(_log_of(rows, tokens, b[both], t[both], shift) for shift in (1, 0)))

    def _add_gain(self, shift: int, there: FloatArray, own: FloatArray) -> None:
        """Takes log q(x) of some tokens, (N,) each: by the rows at a shift, and by their own."""
        gain = there - own
        self.gain[shift] += len(gain), gain.sum(), (gain**2).sum(), there.sum()

    def judge(self, one: Given) -> None:
        """Refuses predictions that have seen what they predict, and an array that is shifted by one place.

        Raises:
            UserError: The fault, in one line.
        """
        if one.rows is not None:
            if self._better(-1):
                raise UserError(_early(one, sure=bool(self.log_likelihood.any())))
            if self._better(1) and self.task.knows_truth and abs(self.z(1)) < LARGEST_Z / 2 and self.excess[1][1] > 1:
                own, before = ("t + 1", "t") if one.predicts == "next" else ("t", "t - 1")
                why = f"'s row t fits token {before} better than token {own}, without having seen it"
                raise UserError(_late(one, why))
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
