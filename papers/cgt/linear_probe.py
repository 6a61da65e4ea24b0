"""Linear probes: how well a linear map reads hidden numbers from a model's representation of the context."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np

from papers.cgt.segments import Segments
from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError

AVERAGED = 4
"""Positions over which the representation is averaged (Zhmoginov et al. 2024, section 4.2, "Predicting the task from y")."""
FOLDS = 10
SEGMENTS_A_COMPONENT = 5
"""A probe needs this many segments for each component of the representation. With fewer, least squares overfits."""


@dataclass(frozen=True)
class LinearProbe:
    """The predictions of a cross-validated linear probe, in standard deviations of each target."""

    names: list[str]  # the K targets
    targets: FloatArray  # normalised targets, (S, K)
    predictions: FloatArray  # each predicted by a map that was fitted to other instances, (S, K)
    error: FloatArray  # mean absolute error, (K,)
    r_squared: FloatArray  # share of variance explained, (K,)
    row: IntArray  # the instance of each segment, (S,)
    fitted: int  # smallest number of segments that a map was fitted to


def require_scikit_learn() -> None:
    """Refuses to go on without scikit-learn, before anything is measured."""
    if importlib.util.find_spec("sklearn") is None:
        raise UserError("this analysis needs the package scikit-learn: pip install 'regbench[analysis]'")


def hidden_targets(instances: Instances, segments: Segments) -> tuple[list[str], FloatArray] | None:
    """The hidden real numbers of each segment, as the task's truth has them.

    A truth with one row for each segment, such as a and b of `arithmetic`, is split by segment. Another truth, such as the matrix
    of `linear_regression`, belongs to the whole instance.

    Returns:
        The K names and the numbers (S, K). None if the truth has no real numbers.
    """
    for name, values in instances.truth.items():
        if not np.issubdtype(values.dtype, np.floating):
            continue
        if values.ndim == 3 and segments.per_row > 1 and values.shape[1] == segments.per_row:
            chosen = values[segments.row, segments.number]
        else:
            chosen = values.reshape(len(values), -1)[segments.row]
        names = ["a", "b"] if name == "coefficients" else [f"{name}[{k}]" for k in range(chosen.shape[1])]
        return names, chosen.astype(np.float64)
    return None


def probe_hidden(representation: FloatArray, instances: Instances, segments: Segments) -> LinearProbe | str | None:
    """A linear probe of the hidden numbers of each segment, from a representation (N, L, d).

    Returns:
        The probe; a line that says why there are too few segments; or None if the truth has no real numbers.
    """
    hidden = hidden_targets(instances, segments)
    if hidden is None:
        return None
    width = representation.shape[-1]
    fitted, needed = fitted_segments(segments), SEGMENTS_A_COMPONENT * width
    if fitted < needed:
        return (
            f"left out: only {fitted} segments to fit to, and {width} components need {needed} "
            f"({SEGMENTS_A_COMPONENT} each)"
        )
    return linear_probe(representation, segments, *hidden)


def fitted_segments(segments: Segments, seed: int = 0) -> int:
    """The smallest number of segments that a map of `linear_probe` is fitted to."""
    return len(segments) - int(np.bincount(_folds(segments.row, np.random.default_rng(seed)), minlength=1).max())


def linear_probe(
    representation: FloatArray, segments: Segments, names: list[str], targets: FloatArray, seed: int = 0
) -> LinearProbe:
    """Least squares from a representation to targets (CGT Table 1, last row; Zhmoginov et al. 2024, section 4.2).

    The representation is averaged over 4 positions at a random place after the cut of each segment. The instances are split at
    random into 10 folds, or into as many as there are. Each segment is predicted by a map fitted to the other folds.

    Args:
        representation: (N, L, d).
        segments: S segments of the N instances.
        names: Names of the K targets.
        targets: (S, K).
        seed: Of places and folds.
    """
    require_scikit_learn()
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    generator = np.random.default_rng(seed)
    fold = _folds(segments.row, generator)
    last = np.maximum(segments.end - AVERAGED, segments.cut)
    places = segments.cut + (generator.random(len(segments)) * (last - segments.cut + 1)).astype(np.int64)
    index = np.minimum(places[:, None] + np.arange(AVERAGED), segments.end[:, None] - 1)
    features = representation[segments.row[:, None], index].mean(1)
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    true = (targets - targets.mean(0)) / np.maximum(targets.std(0), 1e-12)
    # Nothing but rounding is cut off: after a layer norm one direction of the features has little variance, but it counts.
    least_squares = LinearRegression(fit_intercept=False, tol=np.finfo(np.float64).eps * max(features.shape))
    predictions = cross_val_predict(least_squares, features, true, cv=PredefinedSplit(fold))
    left = ((true - predictions) ** 2).sum(0) / np.maximum((true**2).sum(0), 1e-12)
    error = np.abs(true - predictions).mean(0)
    return LinearProbe(names, true, predictions, error, 1.0 - left, segments.row, fitted_segments(segments, seed))


def _folds(row: IntArray, generator: np.random.Generator) -> IntArray:
    """The fold of each segment, (S,) -> 0, 1, ...; all segments of an instance are in one fold."""
    instances, place = np.unique(row, return_inverse=True)
    order: IntArray = generator.permutation(len(instances))
    return order[place] % min(FOLDS, max(1, len(instances)))
