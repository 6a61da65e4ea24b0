"""How many tokens a lookup of width d keeps apart: linearly, by an MLP, by attention, by the nearest neighbour.

Slides of *Transformers and Associative Memories* (MIT 9.520, 2023), "Increasing memory capacity". N tokens have a permutation f
of N outputs, all stored alike. Embeddings u and outputs v are Gaussian with variance 1/d. What wins is argmax_k <v_k, y>, with

    linear     y = sum_z' v_f(z') <u_z', u_z>                        a matrix
    MLP        y = sum_z' v_f(z') max(<u_z', u_z> - b, 0)            a hidden unit for each token
    attention  y = sum_z' softmax_z'(beta <u_z', u_z>) v_f(z')       a key for each token
    nearest    y = v_f(z)                                            no interference at the input

The error is of uniform tokens.
"""

from __future__ import annotations

import numpy as np

from papers.memory import study
from papers.memory.study import Curve, Options, Panel, Study, StudyRows
from regbench.utils.arrays import FloatArray

TOKENS = (100, 200, 500, 1000, 2000)
LOOKUPS = ("linear", "MLP, b = 0.3", "MLP, b = 0.5", "attention, beta = 10", "nearest")
TABLE = ((200, 32), (200, 128), (1000, 32), (1000, 64), (1000, 128), (1000, 256))
LIMIT = 0.05
_RATIO = 2**0.25


def errors(rng: np.random.Generator, n: int, d: int, lookups: tuple[str, ...] = LOOKUPS) -> dict[str, float]:
    """The share of N tokens that each lookup gets wrong, with new embeddings of width d."""
    u, v = (rng.standard_normal((n, d)) * d**-0.5 for _ in range(2))
    right, found = rng.permutation(n), {}
    stored = v[right]
    alike = u @ u.T if set(lookups) - {"linear", "nearest"} else np.empty(0)
    for name in lookups:
        if name == "linear":
            y = u @ (u.T @ stored)
        elif name == "nearest":
            y = stored
        elif name.startswith("MLP"):
            y = np.maximum(alike - float(name.rpartition(" ")[2]), 0.0) @ stored
        else:
            scores = float(name.rpartition(" ")[2]) * alike
            weights = np.exp(scores - scores.max(1, keepdims=True))
            y = weights @ stored / weights.sum(1, keepdims=True)
        found[name] = float(((y @ v.T).argmax(1) != right).mean())
    return found


def least_width(options: Options, n: int, name: str, start: float) -> float:
    """The width at which the mean error falls below 5 %, between two tried widths by the logarithm of the width.

    Args:
        options: Draws and seed.
        n: N.
        name: The lookup.
        start: The first width that is tried. Each next one is 19 % larger. If it is wide enough, half of it is tried first.
    """
    width, last = start, (0.0, 1.0)
    while True:
        d = round(width)
        mean = float(np.mean([errors(options.rng(draw), n, d, (name,))[name] for draw in range(options.draws)]))
        if mean < LIMIT:
            if not last[0]:
                return float(d) if d < 2 else least_width(options, n, name, start / 2)
            share = (last[1] - LIMIT) / (last[1] - mean)
            return float(np.exp(np.log(last[0]) + share * np.log(d / last[0])))
        width, last = width * _RATIO, (d, mean)


def run(options: Options) -> Study:
    """Measures the errors of a few sizes, and the widths that each lookup needs."""
    rows: list[tuple[str | float, ...]] = []
    for n, d in TABLE:
        found = [errors(options.rng(draw), n, d) for draw in range(options.draws)]
        rows.append((n, d, *(f"{np.mean([one[name] for one in found]):.3f}" for name in LOOKUPS)))
    widths: dict[str, FloatArray] = {}
    for name in LOOKUPS:
        start, found_widths = 8.0, []
        for n in TOKENS:
            found_widths.append(least_width(options, n, name, start))
            start = max(8.0, found_widths[-1] / _RATIO**3)
        widths[name] = np.array(found_widths)
    growth = study.slope(TOKENS, widths["linear"])
    expectations = [study.between("linear: exponent of the width in N", growth, 0.4, 0.8)]
    for name in LOOKUPS[1:]:  # a width that grows as log N has an exponent that falls towards 0
        found_growth = study.slope(TOKENS, widths[name])
        expectations.append(study.at_most(f"{name}: the same, at most half of that", found_growth, growth / 2))
    panel = Panel(
        "width at which 5 % are wrong",
        "tokens N",
        "width d",
        [
            *(Curve(name, TOKENS, widths[name]) for name in LOOKUPS),
            Curve("N^(1/2)", TOKENS, [float(widths["linear"][0] * (n / TOKENS[0]) ** 0.5) for n in TOKENS], True),
        ],
    )
    tables = (
        StudyRows(f"error, {options.draws} draws", ("N", "d", *LOOKUPS), rows),
        StudyRows(
            "width at which the error falls below 5 %",
            ("lookup", *(f"N {n:,}" for n in TOKENS), "last over first"),
            [
                (name, *(f"{d:.0f}" for d in widths[name]), f"{widths[name][-1] / widths[name][0]:.2f}")
                for name in LOOKUPS
            ]
            + [("log N, for comparison", *("" for _ in TOKENS), f"{np.log(TOKENS[-1]) / np.log(TOKENS[0]):.2f}")],
        ),
    )
    return Study(tables, (panel,), tuple(expectations))
