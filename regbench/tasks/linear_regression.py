"""In-context linear regression: vectors y = W x + noise, with a hidden matrix W (CGT section 4.1).

An instance is a sequence of vectors x_1, y_1, x_2, y_2, ... with one W that no other instance shares. y_i is predicted from all
vectors before it, x_i included. A token has d_x + d_y components: an x fills the first d_x, a y the last d_y, and the rest is
zero. (The paper fills both with zeros to a common width. Here a model can tell an x from a y.) With d_x = 2, d_y = 1,
W = (2, -1) and no noise:

    x_1 = (1.0, 0.5, 0)   y_1 = (0, 0, 1.5)   x_2 = (0.0, 1.0, 0)   y_2 = (0, 0, -1.0)   ...

The components of x, W and the noise are Gaussian. The standard deviation of the noise is a parameter. The ys are scored. The
truth is W x, which differs from y by the noise. Ridge regression with the known prior is the best predictor that does not know W.
The task is from *Contextually Guided Transformers via Low-Rank Adaptation* (Zhmoginov, Lee, Vladymyrov, Sandler 2025,
arXiv:2506.05672).
"""

from __future__ import annotations

import numpy as np
import pydantic
from numba import njit

from regbench.data.instances import Instances
from regbench.data.rng import gaussian, stream
from regbench.tasks import base as task
from regbench.utils import threads
from regbench.utils.arrays import FloatArray, IntArray

_VECTORS = 4  # the stream's purpose


class LinearRegressionParameters(task.Parameters):
    """The parameters of `linear_regression`."""

    d_x: int = pydantic.Field(default=8, ge=1, le=1024)  # components of x
    d_y: int = pydantic.Field(default=4, ge=1, le=1024)  # components of y
    n_examples: int = pydantic.Field(default=32, ge=1, le=4096)  # pairs of an x and a y in an instance
    # the standard deviation of the noise on each component of y
    noise: float = pydantic.Field(default=1.0, ge=0.0, le=1e6)


class LinearRegression(task.Task):
    """Pairs of vectors, the second a noisy linear function of the first; see the module."""

    Parameters = LinearRegressionParameters
    version = 1
    main_score = "mse"
    scores = ("mse", "truth_mse")
    progress_label = "examples before"
    parameters: LinearRegressionParameters

    @property
    def io(self) -> task.VectorIO:
        """Vectors of d_x + d_y components. The last d_y are predicted."""
        p = self.parameters
        return task.VectorIO(d_in=p.d_x + p.d_y, d_out=p.d_y, max_length=2 * p.n_examples)

    def generate(self, splits: task.Splits, split: str) -> Instances:
        """The instances of one split. Each has its own W."""
        p, n = self.parameters, splits.size(split)
        weights = np.empty((n, p.d_y, p.d_x))
        tokens = np.zeros((n, self.io.max_length, self.io.d_in), np.float32)
        threads.share(_sample, n, splits.seed, splits.first(split), p.noise, weights, tokens)
        scored = np.zeros(tokens.shape[:2], np.bool_)
        scored[:, 1::2] = True
        return Instances.unpadded(tokens, scored, f"linear_regression/{self.version}", {"weights": weights})

    def truth(self, instances: Instances) -> FloatArray:
        """(N, L, d_y): W x at every y, zero elsewhere."""
        x = instances.tokens[:, 0::2, : self.parameters.d_x].astype(np.float64)
        means = np.zeros((*instances.tokens.shape[:2], self.parameters.d_y))
        means[:, 1::2] = np.einsum("nox,nix->nio", instances.truth["weights"], x)
        return means

    def identities(self, instances: Instances) -> list[bytes]:
        """The matrix W of each instance."""
        return [weights.tobytes() for weights in instances.truth["weights"]]

    def progress(self, instances: Instances) -> IntArray:
        """The number of pairs before the one that a position is in."""
        return np.broadcast_to(np.arange(instances.tokens.shape[1]) // 2, instances.tokens.shape[:2])

    def statistics(self, instances: Instances) -> dict[str, float]:
        """Adds the mean squares of the components of y and of the noise."""
        p = self.parameters
        y = instances.tokens[instances.scored][:, p.d_x :].astype(np.float64)
        noise = y - self.truth(instances)[instances.scored]
        return super().statistics(instances) | {
            "mean_square_y": float((y**2).mean()),
            "mean_square_noise": float((noise**2).mean()),
        }


@njit(cache=True, nogil=True)
def _sample(begin, end, seed, start, noise, weights, tokens):  # type: ignore[no-untyped-def]
    """Fills weights (N, d_y, d_x) and tokens (N, L, d_x + d_y). Instance n is number start + n of the seed's stream."""
    d_y, d_x = weights.shape[1:]
    x = np.empty(d_x)
    for n in range(begin, end):
        rng = stream(seed, _VECTORS, start + n)
        for o in range(d_y):
            for i in range(d_x):
                weights[n, o, i] = gaussian(rng)
        for t in range(0, tokens.shape[1], 2):
            for i in range(d_x):
                x[i] = np.float32(gaussian(rng))  # rounded as predictors see it
                tokens[n, t, i] = x[i]
            for o in range(d_y):
                y = noise * gaussian(rng)
                for i in range(d_x):
                    y += weights[n, o, i] * x[i]
                tokens[n, t + 1, d_x + o] = y
