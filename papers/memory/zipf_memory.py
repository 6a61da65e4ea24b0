"""How the error of a linear associative memory falls with its width and its data, for tokens as frequent as Zipf's law says.

*Scaling Laws for Associative Memories* (Cabannes, Dohmatob, Bietti 2023, arXiv:2310.02984). Tokens z = 1..N have p(z) ~ z^-alpha
and the output f(z) = z mod M. Embeddings u_z and outputs v_y in R^d are Gaussian with variance 1/d. The memory is
W = sum_z q(z) v_f(z) u_z^T, and it predicts argmax_y <v_y, W u_z>. The error is the p-mass of the wrong tokens. A scheme is a
choice of q: p itself, 1, or 1 for the most frequent d/8 tokens; of n samples the counts, 1 for those seen, or 1 for the d/12 most
seen.

With `optimizers` the memory is trained instead, by SGD or Adam on the cross entropy of 10,240 samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from scipy import stats

from papers.memory import study
from papers.memory.study import Curve, Expectation, Options, Panel, Study, StudyRows
from regbench.utils.arrays import FloatArray, IntArray

WIDTHS = (10, 20, 50, 100, 200, 500, 1000)
SAMPLES = (10, 100, 1000, 10_000)
SCHEMES = ("q = p", "q = 1", "most frequent d/8")
OF_SAMPLES = ("counts", "seen", "most seen d/12")
RATES = (0.1, 1.0, 10.0, 100.0)
TRAINED_ON, SEEDS = 10_240, 5

Settings = tuple[int, str, bool]
"""Batch, "SGD" or "Adam", and whether W u is normalised."""

PUBLISHED: dict[Settings, tuple[float, ...]] = {
    (1024, "SGD", False): (0.0545, 0.0406, 0.0320, 0.0247, 0.0213, 0.0154, 0.0133),
    (1024, "SGD", True): (0.0870, 0.0797, 0.0580, 0.0341, 0.0327, 0.0211, 0.0193),
    (1024, "Adam", False): (0.0484, 0.0260, 0.0086, 0.0051, 0.0030, 0.0025, 0.0020),
    (1024, "Adam", True): (0.0677, 0.0398, 0.0193, 0.0132, 0.0078, 0.0039, 0.0024),
    (16, "SGD", False): (0.0306, 0.0141, 0.0055, 0.0024, 0.0013, 0.0014, 0.0013),
    (16, "SGD", True): (0.0393, 0.0199, 0.0081, 0.0049, 0.0030, 0.0021, 0.0014),
    (16, "Adam", False): (0.0320, 0.0169, 0.0067, 0.0034, 0.0022, 0.0016, 0.0013),
}
"""Errors by width in the released results of the paper: the best of four learning rates, after 10,240 samples."""


def frequencies(n_tokens: int) -> FloatArray:
    """p(z) ~ z^-2 for z = 1..N, (N,)."""
    weights = np.arange(1, n_tokens + 1, dtype=np.float64) ** -2.0
    return weights / weights.sum()


def error(u: FloatArray, v: FloatArray, q: FloatArray, p: FloatArray, ties: FloatArray | None = None) -> float:
    """The p-mass of the tokens that the memory of weights q gets wrong.

    Args:
        u: (N, d), the tokens' embeddings.
        v: (M, d), the outputs' embeddings.
        q: (N,), how much of each token is stored.
        p: (N,), the tokens' frequencies.
        ties: (N, M), tiny numbers that decide between equal scores. None: embeddings are random, and no scores are equal.
    """
    right = np.arange(len(u)) % len(v)
    stored = np.zeros_like(v)
    np.add.at(stored, right, q[:, None] * u)
    scores = u @ stored.T @ (v @ v.T)  # (U W^T) V^T, with W of rank M
    return float(p[(scores if ties is None else scores + ties).argmax(1) != right].sum())


def unseen_error(p: FloatArray, n: int, n_outputs: int) -> float:
    """The expected error of an unlimited memory of n samples: a guess for the tokens that were not seen (Hutter 2021)."""
    return (1 - 1 / n_outputs) * float((p * (1 - p) ** n).sum())


def unstored_error(p: FloatArray, stored: int, n_outputs: int) -> float:
    """The expected error where the most frequent tokens are all recalled, and the others are guessed."""
    return (1 - 1 / n_outputs) * float(p[stored:].sum())


def scheme(name: str, p: FloatArray, d: int) -> FloatArray:
    """The weights q (N,) of a scheme that knows p."""
    if name == "q = p":
        return p
    return np.ones_like(p) if name == "q = 1" else (np.arange(len(p)) < d // 8).astype(np.float64)


def of_samples(name: str, counts: IntArray, d: int) -> FloatArray:
    """The weights q (N,) of a scheme that knows how often each token was seen."""
    if name == "counts":
        return counts / counts.sum()
    if name == "seen":
        return (counts > 0).astype(np.float64)
    most = np.zeros(len(counts))
    most[np.argsort(-counts, kind="stable")[: max(1, d // 12)]] = 1.0
    return most * (counts > 0)


def run(options: Options) -> Study:
    """Measures every scheme by width and by samples, and compares with the oracles."""
    N, M, p = 1000, 5, frequencies(1000)
    by_width, few, unlimited, spare = _untrained(options, p, M)
    tables = [
        StudyRows(
            f"error by width d, N = {N}, {options.draws} draws (standard error)",
            ("scheme", *(f"d {d}" for d in WIDTHS)),
            [(name, *(_with_error(by_width[name, d]) for d in WIDTHS)) for name in SCHEMES],
        ),
        StudyRows(
            "error by width and samples n",
            ("scheme", "n", *(f"d {d}" for d in (20, 100, 400)), "unlimited"),
            [
                (name, n, *(f"{few[name, d, n].mean():.4f}" for d in (20, 100, 400)), f"{unseen_error(p, n, M):.4f}")
                for name in OF_SAMPLES
                for n in SAMPLES
            ],
        ),
    ]
    expectations = [
        *(study.near_oracle(f"unlimited memory, n = {n}", unlimited[n], unseen_error(p, n, M)) for n in SAMPLES),
        *(
            study.near_oracle(f"seen, d = 400, n = {n}", few["seen", 400, n], unseen_error(p, n, M))
            for n in SAMPLES[:3]
        ),
    ]
    for d in (d for d in WIDTHS if d >= 200):
        expectations.append(
            study.near_oracle(f"{SCHEMES[2]}, d = {d}", by_width[SCHEMES[2], d], unstored_error(p, d // 8, M))
        )
    wide = [d for d in WIDTHS if d >= 50]
    for name, low, high in ((SCHEMES[2], -1.10, -0.90), (SCHEMES[0], -0.40, -0.20)):
        found = study.slope(wide, [by_width[name, d].mean() for d in wide])
        expectations.append(study.between(f"slope of log error on log d from 50 on, {name}", found, low, high))
    ahead = int((spare["q = 1"] < spare["q = p"]).sum())
    expectations.append(
        study.at_least("draws in which q = 1 is ahead of q = p, N = 100, d = 400", ahead, options.draws)
    )
    more, less = few["seen", 20, 10_000].mean(), few["seen", 20, 100].mean()
    expectations.append(
        study.at_least("more data is worse: seen, d = 20, error at n = 10,000 over n = 100", more / less, 1.0)
    )
    guide = [float(0.35 * d**-0.25) for d in WIDTHS]
    oracle = [unstored_error(p, d // 8, M) for d in WIDTHS]
    panels = [
        Panel(
            "unlimited data",
            "width d",
            "error",
            [
                *(Curve(name, WIDTHS, [by_width[name, d].mean() for d in WIDTHS]) for name in SCHEMES),
                Curve("0.35 d^(-1/4)", WIDTHS, guide, True),
                Curve("oracle of the d/8 most frequent", WIDTHS, oracle, True),
            ],
        ),
        Panel(
            "weights q = 1 for the tokens seen",
            "samples n",
            "error",
            [
                *(Curve(f"d = {d}", SAMPLES, [few["seen", d, n].mean() for n in SAMPLES]) for d in (20, 100, 400)),
                Curve("unlimited memory (oracle)", SAMPLES, [unseen_error(p, n, M) for n in SAMPLES], True),
            ],
        ),
    ]
    if options.optimizers:
        for part, more_of in zip((tables, panels, expectations), _trained(options), strict=True):
            part.extend(more_of)  # type: ignore[attr-defined]
    return Study(tuple(tables), tuple(panels), tuple(expectations))


Errors = dict[tuple[str, int], FloatArray]
ErrorsOfSamples = dict[tuple[str, int, int], FloatArray]


def _untrained(
    options: Options, p: FloatArray, M: int
) -> tuple[Errors, ErrorsOfSamples, dict[int, FloatArray], dict[str, FloatArray]]:
    """The errors of every draw: by width, by samples, of an unlimited memory by n, and with capacity to spare."""
    draws, N = options.draws, len(p)
    by_width: Errors = {(name, d): np.empty(draws) for name in SCHEMES for d in WIDTHS}
    few: ErrorsOfSamples = {
        (name, d, n): np.empty(draws) for name in OF_SAMPLES for d in (20, 100, 400) for n in SAMPLES
    }
    unlimited: dict[int, FloatArray] = {n: np.empty(draws) for n in SAMPLES}
    spare: dict[str, FloatArray] = {name: np.empty(draws) for name in SCHEMES[:2]}
    small = frequencies(100)
    for draw in range(draws):
        rng = options.rng(draw)
        for d in WIDTHS:
            u, v = _embeddings(rng, N, d), _embeddings(rng, M, d)
            for name in SCHEMES:
                by_width[name, d][draw] = error(u, v, scheme(name, p, d), p)
        for n in SAMPLES:
            counts = rng.multinomial(n, p)
            ties = 1e-9 * rng.random((N, M))
            # With orthonormal embeddings a score is q(z) at the right output, and 0 elsewhere.
            scores = (counts / n)[:, None] * (np.arange(N)[:, None] % M == np.arange(M)) + ties
            unlimited[n][draw] = p[scores.argmax(1) != np.arange(N) % M].sum()
            for d in (20, 100, 400):
                u, v = _embeddings(rng, N, d), _embeddings(rng, M, d)
                for name in OF_SAMPLES:
                    few[name, d, n][draw] = error(u, v, of_samples(name, counts, d), p)
        u, v = _embeddings(rng, 100, 400), _embeddings(rng, M, 400)
        for name in SCHEMES[:2]:
            spare[name][draw] = error(u, v, scheme(name, small, 400), small)
    return by_width, few, unlimited, spare


def _embeddings(rng: np.random.Generator, count: int, d: int) -> FloatArray:
    """(count, d) Gaussian vectors of length about 1."""
    return rng.standard_normal((count, d)) * d**-0.5


def _with_error(values: FloatArray) -> str:
    return f"{values.mean():.4f} ({values.std(ddof=1) / len(values) ** 0.5:.4f})"


def train(
    rng: np.random.Generator, d: int, rate: float, settings: Settings, *, samples: int = TRAINED_ON, n_tokens: int = 100
) -> float:
    """The error of a memory that was trained on the cross entropy, one pass over the samples.

    Args:
        rng: Draws embeddings, the start and samples.
        d: The width.
        rate: The learning rate. Adam's is divided by d.
        settings: Batch, optimizer (SGD without momentum, Adam with both betas 0), and whether W u is divided by its length.
        samples: How many there are.
        n_tokens: N.
    """
    (batch, optimizer, normalised), M = settings, 5
    p, right = frequencies(n_tokens), np.arange(n_tokens) % M
    u, v = _embeddings(rng, n_tokens, d).astype(np.float32), _embeddings(rng, M, d).astype(np.float32)
    W = _embeddings(rng, d, d).astype(np.float32)
    targets = np.eye(M, dtype=np.float32)[right]
    for _ in range(samples // batch):
        tokens, counts = np.unique(rng.choice(n_tokens, batch, p=p), return_counts=True)
        x = u[tokens]
        hidden = x @ W.T
        length = np.sqrt((hidden**2).sum(1, keepdims=True) + 1e-6)
        out = hidden / length if normalised else hidden
        logits = out @ v.T
        guess = np.exp(logits - logits.max(1, keepdims=True))
        guess /= guess.sum(1, keepdims=True)
        upstream = ((guess - targets[tokens]) * (counts / batch)[:, None].astype(np.float32)) @ v
        if normalised:
            upstream = (upstream - out * (out * upstream).sum(1, keepdims=True)) / length
        gradient = upstream.T @ x
        if optimizer == "SGD":
            gradient *= rate
        else:
            gradient /= np.abs(gradient) + 1e-8
            gradient *= rate / d
        W -= gradient
    return float(p[((u @ W.T) @ v.T).argmax(1) != right].sum())


def _trained(options: Options) -> tuple[list[StudyRows], list[Panel], list[Expectation]]:
    """Trains at every learning rate, and takes the best of each cell."""
    found: dict[tuple[Settings, int, float], FloatArray] = {}
    for settings in PUBLISHED:
        for d in WIDTHS:
            for rate in RATES:
                values = [train(options.rng(1000 * d + seed), d, rate, settings) for seed in range(SEEDS)]
                found[settings, d, rate] = np.array(values)
    best = {
        (s, d): min((found[s, d, rate] for rate in RATES), key=lambda values: float(values.mean()))
        for s in PUBLISHED
        for d in WIDTHS
    }
    heads = ("batch", "optimizer", "norm", *(f"d {d}" for d in WIDTHS))
    rows = [
        (str(b), name, "yes" if norm else "no", *(_with_error(best[(b, name, norm), d]) for d in WIDTHS))
        for b, name, norm in PUBLISHED
    ]
    table = StudyRows(f"trained on {TRAINED_ON:,} samples, N = 100: error at the best rate, {SEEDS} seeds", heads, rows)
    sgd, adam, often = (1024, "SGD", False), (1024, "Adam", False), (16, "SGD", False)
    mean: Callable[[FloatArray], float] = lambda values: float(values.mean())  # noqa: E731
    behind = [d for d in WIDTHS if d >= 50 and mean(best[adam, d]) >= mean(best[sgd, d])]
    worse = [d for d in WIDTHS if mean(best[often, d]) >= mean(best[sgd, d])]
    slower = [d for d in WIDTHS if any(mean(found[sgd, d, a]) <= mean(found[sgd, d, b]) for a, b in pairwise(RATES))]
    far = []
    for s, errors in PUBLISHED.items():
        for d, published in zip(WIDTHS, errors, strict=True):
            # The published mean is of ten seeds. Its noise is taken to be that of ten of ours.
            noise = float(best[s, d].std(ddof=1)) * (1 / SEEDS + 1 / 10) ** 0.5
            if abs(mean(best[s, d]) - published) > 3 * noise:
                far.append(f"{s[1]} {s[0]}{' norm' if s[2] else ''} d {d}")
    panel = Panel(
        "trained, best learning rate",
        "width d",
        "error",
        [
            Curve(f"{n}, batch {b}{', norm' if norm else ''}", WIDTHS, [mean(best[(b, n, norm), d]) for d in WIDTHS])
            for b, n, norm in (sgd, (1024, "SGD", True), adam, often, (16, "Adam", False))
        ],
    )
    cells = len(PUBLISHED) * len(WIDTHS)
    # With few seeds a mean is often more than 3 of its estimated errors off: Student's t.
    outside = 2 * float(stats.t.sf(3, SEEDS - 1))
    allowed = int(stats.binom.ppf(0.99, cells, outside))
    by_rate = StudyRows(
        "SGD at batch 1024: error by learning rate",
        ("norm", "rate", *(f"d {d}" for d in WIDTHS)),
        [
            ("yes" if s[2] else "no", f"{rate:g}", *(f"{mean(found[s, d, rate]):.4f}" for d in WIDTHS))
            for s in (sgd, (1024, "SGD", True))
            for rate in RATES
        ],
    )
    expectations = [
        Expectation("Adam is ahead of SGD at batch 1024, d >= 50", _but(behind), "at every d", not behind),
        Expectation("SGD: batch 16 is ahead of batch 1024", _but(worse), "at every d", not worse),
        Expectation("SGD, batch 1024: a larger rate is better up to 100", _but(slower), "at every d", not slower),
        Expectation(
            f"cells within 3 errors of the released results; chance leaves out {outside * cells:.0f}",
            f"{cells - len(far)} of {cells}" + (f"; not {', '.join(far)}" if far else ""),
            f"at least {cells - allowed}",
            len(far) <= allowed,
        ),
    ]
    return [table, by_rate], [panel], expectations


def _but(widths: Sequence[int]) -> str:
    """At which widths something fails."""
    return "at every d" if not widths else f"not at d = {', '.join(map(str, widths))}"
