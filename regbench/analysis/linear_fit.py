"""What a linear map reads from y of the numbers behind a context: each stretch by a map fitted to other instances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbench.analysis.segments import Segments
from regbench.data.instances import Instances
from regbench.utils.arrays import FloatArray, IntArray

AVERAGED = 4
"""Over so many positions y is averaged before a and b are read from it (2024, section 4.2, "Predicting the task from y")."""
FOLDS = 10
ROWS_A_COMPONENT = 5
"""So many stretches are fitted to for each component of y, at the least: with fewer, least squares tells of itself."""


@dataclass(frozen=True)
class LinearFit:
    """How well a linear map of y says what is hidden, on stretches it was not fitted to. In standard deviations of the target.

    names: K targets.  true, said: (S, K), normalised.  error: (K,) mean absolute error.  explained: (K,) R^2.  row: (S,) of
    which instance each stretch is.  fitted: to how many stretches each map was fitted, at the least.
    """

    names: list[str]
    true: FloatArray
    said: FloatArray
    error: FloatArray
    explained: FloatArray
    row: IntArray
    fitted: int


def hidden_targets(instances: Instances, segments: Segments) -> tuple[list[str], FloatArray] | None:
    """The real numbers behind each stretch that the task's truth tells, (S, K) with their names; None where it tells none.

    A truth of one row for each stretch, as the a and b of `arithmetic`, is taken apart by stretch; another, as the matrix of
    `linear_regression`, belongs to the whole instance.
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


def fit_hidden(y: FloatArray, instances: Instances, segments: Segments) -> LinearFit | str | None:
    """The fit of what is hidden behind the stretches, (N, L, d) -> a fit; of too few stretches a line that says so; else None.

    None: the truth tells no real numbers.
    """
    hidden = hidden_targets(instances, segments)
    if hidden is None:
        return None
    fitted, needed = fitted_rows(segments), ROWS_A_COMPONENT * y.shape[-1]
    if fitted < needed:
        return (
            f"left out: {fitted} stretches to fit to are fewer than {ROWS_A_COMPONENT} for each of the {y.shape[-1]} "
            f"components of y ({needed})"
        )
    return linear_fit(y, segments, *hidden)


def fitted_rows(segments: Segments, seed: int = 0) -> int:
    """To how many stretches the maps of `linear_fit` are fitted, at the least."""
    return len(segments) - int(np.bincount(_folds(segments.row, np.random.default_rng(seed)), minlength=1).max())


def linear_fit(y: FloatArray, segments: Segments, names: list[str], targets: FloatArray, seed: int = 0) -> LinearFit:
    """Least squares from y, averaged over 4 positions at a random place behind the cut, to normalised targets (S, K).

    Cross-validated: the instances are parted at random into 10 folds, or as many as there are, and the stretches of each are
    read by a map fitted to those of the others, so that every stretch is read once. 2024, section 4.2; CGT Table 1's last row.
    """
    generator = np.random.default_rng(seed)
    fold = _folds(segments.row, generator)
    last = np.maximum(segments.end - AVERAGED, segments.cut)
    places = segments.cut + (generator.random(len(segments)) * (last - segments.cut + 1)).astype(np.int64)
    index = np.minimum(places[:, None] + np.arange(AVERAGED), segments.end[:, None] - 1)
    seen = y[segments.row[:, None], index].mean(1)
    seen = np.concatenate([seen, np.ones((len(seen), 1))], axis=1)
    true = (targets - targets.mean(0)) / np.maximum(targets.std(0), 1e-12)
    said = np.empty_like(true)
    for number in np.unique(fold):
        own = fold == number
        said[own] = seen[own] @ np.linalg.lstsq(seen[~own], true[~own], rcond=None)[0]
    left = ((true - said) ** 2).sum(0) / np.maximum((true**2).sum(0), 1e-12)
    error = np.abs(true - said).mean(0)
    return LinearFit(names, true, said, error, 1.0 - left, segments.row, fitted_rows(segments, seed))


def _folds(row: IntArray, generator: np.random.Generator) -> IntArray:
    """In which fold each stretch is, (S,) -> 0, 1, ...; those of one instance are together."""
    instances, place = np.unique(row, return_inverse=True)
    order: IntArray = generator.permutation(len(instances))
    return order[place] % min(FOLDS, max(1, len(instances)))
