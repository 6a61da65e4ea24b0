"""Curves as they are drawn."""

from __future__ import annotations

from itertools import compress

from regbench.results import Curve, Result


def well_founded(curve: Curve) -> tuple[list[float], list[float]]:
    """The part of a curve that rests on at least a twentieth of the most positions a bin has: the rest is noise."""
    enough = [count >= max(curve.count) / 20 for count in curve.count]
    return list(compress(curve.position, enough)), list(compress(curve.value, enough))


def points(curve: Curve) -> list[tuple[float, float]]:
    """The same part as (position, score) pairs, rounded to what a screen can show."""
    return [(round(x, 1), round(y, 4)) for x, y in zip(*well_founded(curve), strict=True)]


def axis(result: Result, metric: str) -> str:
    """What a metric's curves are by: the position in the context, or the progress that the task tells."""
    return result.seeds[0].curves[metric].axis or "position in the context (tokens)"


def by_what(result: Result) -> str:
    """The same for headings, of the main score."""
    return axis(result, result.track.main_score).removesuffix(" (tokens)")


def main_loss(result: Result) -> str:
    """Of the named terms of the training loss the one that validation is about: `cross_entropy`, `mse`, else the first."""
    names = [name for seed in result.seeds for point in seed.training_curve for name in point.loss]
    return next((name for name in ("cross_entropy", "mse", *names) if name in names), "loss")
