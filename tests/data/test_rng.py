"""The random generator: its distributions, and bytes that never change."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from scipy import stats

from regbench.data.rng import _WHOLE, gaussian, stream, unit


@njit
def draws(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    state = stream(seed, 9, 0)
    uniform, normal = np.empty(n), np.empty(n)
    for k in range(n):
        uniform[k] = unit(state)
        normal[k] = gaussian(state)
    return uniform, normal


def test_distributions() -> None:
    uniform, normal = draws(0, 200_000)
    assert uniform.min() >= 0.0
    assert uniform.max() < 1.0
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96), (6, 15, 10170)):
        assert (normal**power).mean() == pytest.approx(moment, abs=5 * np.sqrt(variance / len(normal)))
    assert abs(np.corrcoef(normal[:-1], normal[1:])[0, 1]) < 5 / np.sqrt(len(normal))
    tail = (np.abs(normal) > 3).sum()
    expected = 2 * stats.norm.sf(3) * len(normal)
    assert tail == pytest.approx(expected, abs=5 * np.sqrt(expected))


def test_the_table_of_whole_parts_is_what_it_is_said_to_be() -> None:
    weights = np.exp(-0.5 * np.arange(40.0) ** 2)
    np.testing.assert_allclose(_WHOLE, (weights.cumsum() / weights.sum())[: len(_WHOLE)], rtol=0, atol=1e-15)
    assert _WHOLE[-1] == 1.0


def test_the_bytes_never_change() -> None:
    """Tracks are frozen on these."""
    uniform, normal = draws(1, 3)
    assert [x.hex() for x in uniform] == ["0x1.6ce95a6336322p-2", "0x1.11464d4e6e909p-1", "0x1.052d5fdad65efp-1"]
    assert [x.hex() for x in normal] == ["-0x1.77a1e5b313a2bp-1", "0x1.214650187b948p+0", "-0x1.d127a78f5110ap-2"]
