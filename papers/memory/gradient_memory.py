"""Gradient steps on frozen embeddings write associative memories: exact checks, and three steps that make an induction head.

*Birth of a Transformer: A Memory Viewpoint* (Bietti et al. 2023, arXiv:2306.00802), section 6, and the slides of the work, cited
as S. With inputs u_z, outputs v_k and logits xi_k = <v_k, W u_z>, the gradient of the cross entropy is a sum of v_k u_z^T.

The last part is a simplified model, which makes the theorem of S true. The first layer's scores are of positions, and its values
of tokens. The second layer's keys are the first layer's output, and its query and values are of tokens. There is no residual
connection to the logits. The theorem's own simplifications are not in the slides.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from papers.memory import study
from papers.memory.study import Curve, Expectation, Options, Panel, Study, StudyRows
from regbench.utils.arrays import FloatArray

N_TOKENS = 50
WIDTHS = (32, 64, 128, 256)
RANKS, PRODUCT_WIDTH = (256, 64, 16), 256
UPDATE_WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
TOP_DOWN = ("o2", "k2", "k1")
SYMBOLS = LENGTH = 16
SEEDS = 3


def run(options: Options) -> Study:
    """Checks the lemma, one step, noise and the maximal update, and takes three steps in every order."""
    tables, expectations = [], [lemma(options), one_step(options), *noisy(options)]
    accuracy = {d: np.array([gaussian_step(options.rng(draw), d) for draw in range(options.draws)]) for d in WIDTHS}
    expectations += [study.at_least("one step, Gaussian, d = 64: accuracy", accuracy[64].mean(), 0.99)]
    expectations += [
        study.at_least(f"one step, Gaussian, d = {d}: accuracy", accuracy[d].mean(), 0.999) for d in (128, 256)
    ]
    tables.append(
        StudyRows(
            f"one gradient step, Gaussian embeddings, N = {N_TOKENS}, {options.draws} draws",
            ("width d", "accuracy"),
            [(d, f"{values.mean():.4f}") for d, values in accuracy.items()],
        )
    )
    products, of_products = _products(options)
    tables.append(products)
    expectations += of_products
    lengths = np.array([update_lengths(options.rng(0), d) for d in UPDATE_WIDTHS])
    tables.append(
        StudyRows(
            "maximal update: lengths of W_0 u and of Delta W u",
            ("width d", "start", "update"),
            [(d, f"{start:.3f}", f"{update:.3f}") for d, (start, update) in zip(UPDATE_WIDTHS, lengths, strict=True)],
        )
    )
    for name, values in zip(("|W_0 u|", "|Delta W u|"), lengths.T, strict=True):
        expectations.append(study.at_most(f"{name}: largest distance from 1", float(np.abs(values - 1).max()), 0.2))
        expectations.append(study.at_most(f"{name}: |slope| in log d", abs(study.slope(UPDATE_WIDTHS, values)), 0.05))
    steps, more = _orders(options)
    lazy = [float((d / UPDATE_WIDTHS[0]) ** -0.5) for d in UPDATE_WIDTHS]
    panels = (
        Panel(
            "one gradient step",
            "width d",
            "accuracy",
            [Curve("Gaussian embeddings", WIDTHS, [accuracy[d].mean() for d in WIDTHS])],
            False,
        ),
        Panel(
            "maximal update",
            "width d",
            "length",
            [
                Curve("start, |W_0 u|", UPDATE_WIDTHS, lengths[:, 0]),
                Curve("update, |Delta W u|", UPDATE_WIDTHS, lengths[:, 1]),
                Curve("d^(-1/2): an update in the lazy regime", UPDATE_WIDTHS, lazy, True),
            ],
        ),
    )
    return Study((*tables, steps), panels, (*expectations, *more))


def gradient(W: FloatArray, u: FloatArray, v: FloatArray, right: NDArray[np.int64]) -> FloatArray:
    """The gradient (d, d) of the cross entropy by the lemma: sum_k E_z[(p_W(k|z) - 1{k = f(z)}) v_k u_z^T].

    Args:
        W: (d, d).
        u: (N, d), the inputs, each as likely.
        v: (M, d), the outputs.
        right: (N,), the place of the right output of each input.
    """
    scores = u @ W.T @ v.T
    guess = np.exp(scores - scores.max(1, keepdims=True))
    guess /= guess.sum(1, keepdims=True)
    guess[np.arange(len(u)), right] -= 1.0
    found: FloatArray = v.T @ guess.T @ u / len(u)
    return found


def by_autograd(W: FloatArray, u: FloatArray, v: FloatArray, right: NDArray[np.int64]) -> FloatArray:
    """The same by automatic differentiation."""
    weights = torch.from_numpy(W.copy()).requires_grad_()
    logits = torch.from_numpy(u) @ weights.T @ torch.from_numpy(v).T
    F.cross_entropy(logits, torch.from_numpy(right)).backward()
    assert weights.grad is not None
    return weights.grad.numpy()


def lemma(options: Options, n: int = N_TOKENS, d: int = 64) -> Expectation:
    """S, "Gradients as memories"."""
    rng = options.rng(0)
    u, v, W, right = _normal(rng, n, d), _normal(rng, n, d), _normal(rng, d, d), rng.integers(0, n, n)
    apart = np.abs(gradient(W, u, v, right) - by_autograd(W, u, v, right)).max()
    return study.at_most("lemma: largest distance from automatic differentiation", float(apart), 1e-14)


def one_step(options: Options, n: int = N_TOKENS) -> Expectation:
    """One step with rate 1 on orthonormal embeddings: v_k^T W_1 u_z = (1/N) (1{k = f(z)} - 1/N)."""
    u, v = np.split(_orthonormal(options.rng(1), 2 * n), 2)
    W = -by_autograd(np.zeros((2 * n, 2 * n)), u, v, np.arange(n))
    apart = np.abs(v @ W @ u.T - (np.eye(n) - 1 / n) / n).max()
    return study.at_most("one step, orthonormal: largest distance from the exact scores", float(apart), 1e-15)


def gaussian_step(rng: np.random.Generator, d: int, n: int = N_TOKENS) -> float:
    """The accuracy of one step with Gaussian embeddings."""
    u, v = _normal(rng, n, d), _normal(rng, n, d)
    W = -gradient(np.zeros((d, d)), u, v, np.arange(n))
    return float(((u @ W.T @ v.T).argmax(1) == np.arange(n)).mean())


def product_step(rng: np.random.Generator, rank: int, relu: bool, d: int = PRODUCT_WIDTH, n: int = N_TOKENS) -> float:
    """The accuracy of a memory of two factors after one step on both at once (S, "Factorizations", "Non-linear MLP").

    The logits are <v_k, U V u_z>, or <v_k, U max(V u_z, 0)>. U (d, rank) and V (rank, d) begin at random. The rate is N, because
    the loss is a mean over N inputs.
    """
    u, v = (torch.from_numpy(_normal(rng, n, d)) for _ in range(2))
    factors = [torch.from_numpy(rng.standard_normal(s) * s[1] ** -0.5).requires_grad_() for s in ((d, rank), (rank, d))]

    def logits(U: Tensor, V: Tensor) -> Tensor:
        hidden = u @ V.T
        return (hidden.relu() if relu else hidden) @ U.T @ v.T

    right = torch.arange(n)
    gradients = torch.autograd.grad(F.cross_entropy(logits(*factors), right), factors)
    U, V = (factor.detach() - n * gradient for factor, gradient in zip(factors, gradients, strict=True))
    return float((logits(U, V).argmax(1) == right).double().mean())


def noisy(options: Options, n: int = N_TOKENS, times: int = 20, d: int = 1024) -> list[Expectation]:
    """Inputs u_y + n_t, y and t independent (S, "filter out exogenous noise"): one step leaves no trace of the noise n_t."""
    rng = options.rng(2)
    u, v, noise = _normal(rng, n, d), _normal(rng, n, d), _normal(rng, times, d)
    x, right = (u[:, None] + noise).reshape(-1, d), np.repeat(np.arange(n), times)
    W = -by_autograd(np.zeros((d, d)), x, v, right)
    # The noise is in both terms of the gradient, and cancels.
    exact = v.T @ u / n - np.outer(v.sum(0), u.sum(0)) / n**2
    accuracy = float(((x @ W.T @ v.T).argmax(1) == right).mean())
    return [
        study.at_most(
            "noisy inputs: largest distance from the memory without noise", float(np.abs(W - exact).max()), 1e-15
        ),
        study.at_least("noisy inputs: accuracy", accuracy, 1.0),
    ]


def update_lengths(rng: np.random.Generator, d: int, pairs: int = 10) -> tuple[float, float]:
    """The mean lengths of W_0 u_j and of Delta W u_j, with Delta W = sum_j v_j u_j^T."""
    u, v = _normal(rng, pairs, d), _normal(rng, pairs, d)
    start = rng.standard_normal((d, d), dtype=np.float32) * np.float32(d**-0.5)
    return float(np.linalg.norm(u @ start.T, axis=1).mean()), float(np.linalg.norm(u @ u.T @ v, axis=1).mean())


class Head(NamedTuple):
    """The frozen parts of the simplified model."""

    e: Tensor  # (N, d), tokens
    p: Tensor  # (T, d), positions
    u: Tensor  # (N, d), unembeddings
    first: Tensor  # (N, d), tokens as the first layer's values, W_O1 W_V1 e
    second: Tensor  # (N, d), tokens as the second layer's values, W_V2 e

    @classmethod
    def draw(cls, rng: np.random.Generator, d: int, orthonormal: bool) -> Head:
        """Orthonormal or Gaussian embeddings, and Gaussian values' matrices."""
        count = 2 * SYMBOLS + LENGTH
        rows = torch.from_numpy(_orthonormal(rng, d)[:count] if orthonormal else _normal(rng, count, d))
        e, p, u = rows.split([SYMBOLS, LENGTH, SYMBOLS])
        o1, v1, v2 = (torch.from_numpy(_normal(rng, d, d)) for _ in range(3))
        return cls(e, p, u, e @ (o1 @ v1).T, e @ v2.T)

    def logits(self, tokens: Tensor, memories: dict[str, Tensor]) -> Tensor:
        """(B, T) tokens -> (B, N) logits of what follows the last one."""
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        looks = (self.p @ memories["k1"] @ self.p.T).masked_fill(future, float("-inf")).softmax(-1)
        match = self.e @ memories["k2"] @ self.first.T  # (query, token that the key is made of)
        keys = match[tokens[:, -1:], tokens] @ looks.T
        copied = self.second @ memories["o2"].T @ self.u.T  # (token, logit)
        return torch.einsum("bt,btk->bk", keys.softmax(-1), copied[tokens])

    def recall(self, memories: dict[str, Tensor]) -> tuple[float, float, float]:
        """The share of pairs that W_O2, W_K2 and W_K1 recall."""
        scores = (
            self.second @ memories["o2"].T @ self.u.T,
            self.e @ memories["k2"] @ self.first.T,
            self.p[1:] @ memories["k1"] @ self.p[:-1].T,
        )
        o2, k2, k1 = (float((s.argmax(1) == torch.arange(len(s))).double().mean()) for s in scores)
        return o2, k2, k1


def sequences(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Sequences with one trigger, which occurs once before the last place and there.

    Returns:
        Tokens (B, T), and the output (B,) that followed the trigger.
    """
    trigger, rows = rng.integers(0, SYMBOLS, count), np.arange(count)
    tokens = rng.integers(0, SYMBOLS - 1, (count, LENGTH))
    tokens += tokens >= trigger[:, None]  # any symbol but the trigger
    at = rng.integers(0, LENGTH - 2, count)
    tokens[rows, at] = tokens[:, -1] = trigger
    return torch.from_numpy(tokens), torch.from_numpy(tokens[rows, at + 1])


def three_steps(
    rng: np.random.Generator, d: int, orthonormal: bool, order: tuple[str, ...] = TOP_DOWN, count: int = 16_384
) -> tuple[tuple[float, float, float], float]:
    """Takes one gradient step on each of W_O2, W_K2 and W_K1, which begin at zero.

    Each step is scaled to a Frobenius norm: 10 sqrt(N) for W_O2, 100 for the others. Where a gradient is zero, so is the step.

    Returns:
        The recall of W_O2, W_K2 and W_K1, and the accuracy on new sequences.
    """
    head = Head.draw(rng, d, orthonormal)
    tokens, outputs = sequences(rng, count)
    memories = {name: torch.zeros(d, d, dtype=torch.float64) for name in TOP_DOWN}
    norms = {"o2": 10 * SYMBOLS**0.5, "k2": 100.0, "k1": 100.0}
    for name in order:
        memories[name].requires_grad_()
        (G,) = torch.autograd.grad(F.cross_entropy(head.logits(tokens, memories), outputs), memories[name])
        size = float(G.norm())
        memories[name] = -G * (norms[name] / size) if size > 1e-12 else torch.zeros_like(G)
    tokens, outputs = sequences(rng, 4096)
    accuracy = float((head.logits(tokens, memories).argmax(1) == outputs).double().mean())
    return head.recall(memories), accuracy


def _products(options: Options) -> tuple[StudyRows, list[Expectation]]:
    """One joint step on two factors, of several ranks."""
    rows: list[tuple[str | float, ...]] = []
    expectations = []
    for rank in RANKS:
        linear, mlp = (
            float(np.mean([product_step(options.rng(draw), rank, relu) for draw in range(options.draws)]))
            for relu in (False, True)
        )
        rows.append((rank, f"{linear:.3f}", f"{mlp:.3f}"))
        if rank >= N_TOKENS:  # fewer dimensions than tokens between the factors are too few for one step
            expectations.append(study.at_least(f"one joint step, two factors, r = {rank}: accuracy", linear, 0.99))
            expectations.append(study.at_least(f"one joint step, MLP of {rank} units: accuracy", mlp, 0.95))
    title = f"one joint gradient step on both factors, Gaussian embeddings, N = {N_TOKENS}, d = {PRODUCT_WIDTH}"
    return StudyRows(title, ("rank r", "accuracy of U V u", "of U max(V u, 0)"), rows), expectations


def _orders(options: Options) -> tuple[StudyRows, list[Expectation]]:
    """Three steps from the top down, with both kinds of embeddings, and in every other order."""
    rows, expectations = [], []
    for kind, d in (("orthonormal", 256), ("Gaussian", 512)):
        for seed in range(SEEDS):
            recall, accuracy = three_steps(options.rng(seed), d, kind == "orthonormal")
            rows.append((f"{kind}, d {d}", "o2, k2, k1", str(seed), *(f"{r:.3f}" for r in recall), f"{accuracy:.3f}"))
            if kind == "orthonormal":
                what, measured = f"three steps top down, seed {seed}", ", ".join(f"{r:.3f}" for r in recall)
                holds = all(r >= w for r, w in zip(recall, (1.0, 1.0, 0.9), strict=True))
                expectations.append(Expectation(what, measured, "recall at least 1, 1, 0.9", holds))
                expectations.append(study.at_least(f"{what}: accuracy", accuracy, 0.9))
    others = [order for order in permutations(TOP_DOWN) if order != TOP_DOWN]
    for order in others:
        found = [three_steps(options.rng(seed), 256, True, order) for seed in range(SEEDS)]
        for seed, (recall, accuracy) in enumerate(found):
            rows.append(
                ("orthonormal, d 256", ", ".join(order), str(seed), *(f"{r:.3f}" for r in recall), f"{accuracy:.3f}")
            )
        best = max(accuracy for _, accuracy in found)
        expectations.append(study.at_most(f"order {', '.join(order)}: largest accuracy", best, 0.3))
    heads = ("embeddings", "order", "seed", "recall of o2", "k2", "k1", "accuracy")
    return StudyRows(f"three gradient steps, N = T = {SYMBOLS}, simplified model", heads, rows), expectations


def _normal(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """(count, d) Gaussian vectors of length about 1."""
    return rng.standard_normal((count, d)) * d**-0.5


def _orthonormal(rng: np.random.Generator, d: int) -> FloatArray:
    """(d, d) with orthonormal rows."""
    rows: FloatArray = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rows
