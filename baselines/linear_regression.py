"""In-context linear regression by classical means: nothing, least squares, and ridge with the known prior.

At every y the predictor has the pairs before it, X (i, d_x) and Y (i, d_y), and the x it belongs to.

- "zero": the mean of what can come, whatever came before.
- "least squares": W = Y^T (X^+)^T, with the pseudo-inverse: below d_x pairs, the least of the matrices that fit all of them.
- "ridge": W = Y^T X (X^T X + noise^2 I)^-1, the mean of the posterior over W, for its entries are standard normal and the noise
  is Gaussian. No predictor that does not know W has a smaller mean squared error.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_vectors
from regbench.tasks.base import Task
from regbench.tasks.linear_regression import LinearRegressionParameters
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest

METHODS = ("zero", "least squares", "ridge")


class InContextRegression(Baseline):
    """One of the methods above, for every prefix. d_x, d_y: widths of x and y.  noise: its standard deviation, for ridge."""

    version = 1
    takes = ("vectors",)

    def __init__(self, method: str, d_x: int, d_y: int, noise: float = 0.0) -> None:
        if method not in METHODS:
            raise UserError(f"unknown method '{method}'{nearest(method, METHODS)}")
        for name, value in (("d_x", d_x), ("d_y", d_y)):
            if value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if not 0.0 <= noise < np.inf:
            raise UserError(f"noise must not be negative, and finite, not {noise!r}")
        self.name = self.method = method
        self.d_x, self.d_y, self.noise = d_x, d_y, noise
        self.anchor = "start" if method == "zero" else None

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        p = task.parameters
        if not isinstance(p, LinearRegressionParameters):
            return []
        return [cls(method, p.d_x, p.d_y, p.noise) for method in METHODS]

    @property
    def options(self) -> dict[str, Any]:
        return {"method": self.method} | ({"noise": self.noise} if self.method == "ridge" else {})

    def predict(self, tokens: NDArray[Any]) -> FloatArray:
        """(B, L, D_in) -> (B, L, D_out); zeros at an x, whose components of y are zero."""
        tokens = check_vectors(tokens, self.d_x + self.d_y)
        predicted = np.zeros((*tokens.shape[:2], self.d_y))
        if self.method != "zero":
            x, y = tokens[:, 0::2, : self.d_x], tokens[:, 1::2, self.d_x :]
            for i in range(1, y.shape[1]):  # the first has no pair before it
                weights = self._fit(x[:, :i], y[:, :i])
                predicted[:, 2 * i + 1] = np.einsum("bxy,bx->by", weights, x[:, i])
        return predicted

    def _fit(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """(B, i, d_x), (B, i, d_y) -> (B, d_x, d_y): the transpose of W."""
        if self.method == "least squares" or self.noise == 0.0:  # without noise ridge is its limit, least squares
            fitted: FloatArray = np.linalg.pinv(x) @ y
            return fitted
        # Of two equal forms the one with the smaller matrix to solve.
        if x.shape[1] < self.d_x:
            kernel = x @ x.transpose(0, 2, 1) + self.noise**2 * np.eye(x.shape[1])
            fitted = x.transpose(0, 2, 1) @ np.linalg.solve(kernel, y)
        else:
            gram = x.transpose(0, 2, 1) @ x + self.noise**2 * np.eye(self.d_x)
            fitted = np.linalg.solve(gram, x.transpose(0, 2, 1) @ y)
        return fitted
