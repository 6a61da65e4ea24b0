"""The probes themselves: many small MLPs as one batch (ICLL Appendix E), and ridge regressions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.analysis.probe_targets import Samples, Target
from regbench.utils.arrays import FloatArray

WIDTH = 64
"""w: a token or a state has WIDTH / 2 numbers for each token of the n-gram, and the MLP has WIDTH hidden units."""
STEPS = 1200
BATCH = 128
RATES = (3e-3, 1e-4)
"""The learning rate falls from the first to the second along half a cosine."""
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Of the linear probe; validation chooses."""


class MLPProbes:
    """Many MLP probes as one batch of K targets times R sources (ICLL Eq. 99-107).

    Of an n-gram e_1 is P h and e_2 is flatten(E[n-gram]). Of two states e_1 is P h_i and e_2 is P h_j.

        y = w_2 GELU(W_1 [e_1, e_2, e_1 * e_2] + b_1) + b_2
    """

    def __init__(self, sources: int, classifies: Sequence[bool], width: int, order: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.shape, self.classifies, self.order = (len(classifies), sources), classifies, order
        generator = torch.Generator().manual_seed(0)
        k, r = self.shape
        wide = max(order, 1) * WIDTH // 2

        def matrix(rows: int, columns: int) -> Tensor:
            # The same start for every source: they differ in what they read alone.
            start = torch.randn(k, 1, rows, columns, generator=generator) * rows**-0.5
            return start.expand(k, r, rows, columns).clone().requires_grad_()

        self.project, self.first = matrix(width, wide), matrix(3 * wide, WIDTH)
        self.second = matrix(WIDTH, 1)
        self.bias, self.last = torch.zeros(k, r, 1, WIDTH), torch.zeros(k, r, 1, 1)
        self.tokens: Tensor | None = None
        if order:
            start = torch.randn(k, 1, order * vocab_size, WIDTH // 2, generator=generator)
            self.tokens = start.expand(k, r, -1, -1).clone().requires_grad_()
        self.parameters = [self.project, self.first, self.second, self.bias, self.last]
        self.parameters += [self.tokens] if self.tokens is not None else []
        for parameter in self.parameters:
            parameter.requires_grad_()

    def __call__(self, x: Tensor, query: Tensor) -> Tensor:
        """(R, S, P, F) and (S, n) -> (K, R, S)."""
        one = x[:, :, 0] @ self.project
        if self.tokens is None:
            other = x[:, :, 1] @ self.project
        else:
            rows = query + self.vocab_size * torch.arange(self.order)
            other = self.tokens[:, :, rows].flatten(3)
        mixed = torch.cat([one, other, one * other], dim=-1) @ self.first + self.bias
        return (F.gelu(mixed) @ self.second + self.last).squeeze(-1)

    def train(self, x: Tensor, query: Tensor, wanted: Tensor, steps: int) -> None:
        """Trains all probes: squared error for numbers, cross entropy for yes and no (ICLL Appendix E).

        `x` is (R, S, P, F), `query` (S, n), and `wanted` (K, S).
        """
        generator = torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(self.parameters, lr=RATES[0], betas=(0.9, 0.99), fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps), RATES[1])
        for _ in range(steps):
            batch = torch.randint(x.shape[1], (BATCH,), generator=generator)
            out = self(x[:, batch], query[batch])
            loss = torch.zeros(())
            for k, classifies in enumerate(self.classifies):
                y = wanted[k, batch].expand_as(out[k])
                one = F.binary_cross_entropy_with_logits if classifies else F.mse_loss
                loss = loss + one(out[k], y) * self.shape[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    @torch.no_grad()
    def predict(self, x: Tensor, query: Tensor) -> Tensor:
        """(R, S, P, F) and (S, n) -> (K, R, S)."""
        parts = [self(x[:, i : i + 1024], query[i : i + 1024]) for i in range(0, x.shape[1], 1024)]
        return torch.cat(parts, dim=-1)


class LinearProbes:
    """Ridge regressions: of n-grams one for each symbol c on h, of states one on h_i, h_j and h_i * h_j."""

    def __init__(
        self, target: Target, layers: list[Tensor], held_out: list[Tensor], samples: Samples, validation: Samples
    ) -> None:
        self.target = target
        self.symbols = sorted(set(samples.query[:, -1].tolist())) if samples.query.shape[1] else [-1]
        y = samples.values[target.what]
        wanted = torch.from_numpy(2 * y - 1 if target.classifies else y)
        self.mean = float(wanted.mean())
        best: float | None = None
        for layer, x in enumerate(layers):
            for penalty in PENALTIES:
                weights = self._fit(self._inputs(x), samples, wanted, penalty)
                right = self._apply(weights, self._inputs(held_out[layer]), validation)
                loss = float(loss_of(target, right, validation.values[target.what]).mean())
                loss = -loss if target.classifies else loss
                if best is None or loss < best:
                    best, self.layer, self.weights = loss, layer, weights

    def predict(self, layers: list[Tensor], samples: Samples) -> FloatArray:
        """The chosen layer's probe, (S,)."""
        return self._apply(self.weights, self._inputs(layers[self.layer]), samples)

    @staticmethod
    def _inputs(x: Tensor) -> Tensor:
        """(S, P, F) -> (S, F + 1) of one place, (S, 3 F + 1) of two."""
        parts = [x[:, 0]] if x.shape[1] == 1 else [x[:, 0], x[:, 1], x[:, 0] * x[:, 1]]
        return torch.cat([*parts, torch.ones(len(x), 1)], dim=1).double()

    def _of(self, samples: Samples, symbol: int) -> Tensor:
        """The samples of one symbol."""
        if symbol < 0:
            return torch.arange(len(samples))
        return torch.from_numpy(np.flatnonzero(samples.query[:, -1] == symbol))

    def _fit(self, x: Tensor, samples: Samples, wanted: Tensor, penalty: float) -> dict[int, Tensor]:
        """The weights for each symbol. The constant is not penalised."""
        ridge = torch.full((x.shape[1],), penalty, dtype=torch.float64)
        ridge[-1] = 1e-6
        weights = {}
        for symbol in self.symbols:
            mine = self._of(samples, symbol)
            own = x[mine]
            weights[symbol] = torch.linalg.solve(own.mT @ own + ridge.diag(), own.mT @ wanted[mine])
        return weights

    def _apply(self, weights: dict[int, Tensor], x: Tensor, samples: Samples) -> FloatArray:
        """The predictions, (S,). A symbol that was never seen in training has the mean."""
        out = torch.full((len(x),), self.mean, dtype=torch.float64)
        for symbol in self.symbols:
            mine = self._of(samples, symbol)
            out[mine] = x[mine] @ weights[symbol]
        found: FloatArray = out.numpy()
        return found


def loss_of(target: Target, predicted: FloatArray, y: FloatArray) -> FloatArray:
    """Of each sample the relative error, or 1 where yes (above 0) or no is right."""
    if target.classifies:
        return ((predicted > 0) == (y > 0.5)).astype(np.float64)
    return np.abs(predicted - y) / y
