"""In-context linear regression by classical methods: zero, least squares, and ridge with the known prior.

At every y the predictor has the pairs before it, X (i, d_x) and Y (i, d_y), and the x of this y.

- "zero": always zero, the mean of y without any knowledge.
- "least squares": W = Y^T (X^+)^T with the pseudo-inverse X^+. With fewer than d_x pairs it is the smallest of the matrices that
  fit all pairs.
- "ridge": W = Y^T X (X^T X + noise^2 I)^-1, the mean of the posterior over W: its entries are standard normal, and the noise is
  Gaussian. No predictor that does not know W has a smaller mean squared error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.models.predictor import Baseline, check_at_least, check_vectors
from regbench.tasks.base import Task
from regbench.tasks.linear_regression import LinearRegressionParameters
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest

METHODS = ("zero", "least squares", "ridge")


@dataclass
class InContextRegression(Baseline):
    """One of the methods above, for every prefix.

    Raises:
        UserError: The method is unknown, or a number is out of range.
    """

    method: str  # one of METHODS
    d_x: int  # components of x
    d_y: int  # components of y
    noise: float = 0.0  # the standard deviation of the noise, for ridge

    only_task = "linear_regression"
    takes = ("vectors",)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"unknown method '{self.method}'{nearest(self.method, METHODS)}")
        check_at_least("d_x", self.d_x, 1)
        check_at_least("d_y", self.d_y, 1)
        if not 0.0 <= self.noise < np.inf:
            raise UserError(f"noise must be finite and at least 0, not {self.noise!r}")
        self.name = self.method
        self.anchor = "start" if self.method == "zero" else None

    @classmethod
    def defaults(cls, task: Task, instances: Instances) -> list[Self]:
        """All methods; [] for other tasks."""
        p = task.parameters
        if not isinstance(p, LinearRegressionParameters):
            return []
        return [cls(method, p.d_x, p.d_y, p.noise) for method in METHODS]

    @property
    def options(self) -> dict[str, Any]:
        """The method, and for ridge the noise."""
        return {"method": self.method} | ({"noise": self.noise} if self.method == "ridge" else {})

    def predict(self, tokens: NDArray[Any]) -> FloatArray:
        """The expected y of every vector: (B, L, d_in) -> (B, L, d_out). It is zero at an x."""
        tokens = check_vectors(tokens, self.d_x + self.d_y)
        predicted = np.zeros((*tokens.shape[:2], self.d_y))
        if self.method != "zero":
            x, y = tokens[:, 0::2, : self.d_x], tokens[:, 1::2, self.d_x :]
            for i in range(1, y.shape[1]):  # the first has no pair before it
                weights = self._fit(x[:, :i], y[:, :i])
                predicted[:, 2 * i + 1] = np.einsum("bxy,bx->by", weights, x[:, i])
        return predicted

    def _fit(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """Fits the transpose of W to i pairs: (B, i, d_x), (B, i, d_y) -> (B, d_x, d_y)."""
        if self.method == "least squares" or self.noise == 0.0:  # without noise, ridge is least squares
            fitted: FloatArray = np.linalg.pinv(x) @ y
            return fitted
        # Of two equal forms, take the one with the smaller matrix to solve.
        if x.shape[1] < self.d_x:
            kernel = x @ x.transpose(0, 2, 1) + self.noise**2 * np.eye(x.shape[1])
            fitted = x.transpose(0, 2, 1) @ np.linalg.solve(kernel, y)
        else:
            gram = x.transpose(0, 2, 1) @ x + self.noise**2 * np.eye(self.d_x)
            fitted = np.linalg.solve(gram, x.transpose(0, 2, 1) @ y)
        return fitted
