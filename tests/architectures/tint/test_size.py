"""Table 3 of the paper: the formula, the cells that agree, and the count of what is built."""

from __future__ import annotations

import pytest

from architectures.tint.layout import Layout
from architectures.tint.simulator import Simulator
from architectures.tint.size import counted, expected, formula
from regbench.utils.errors import UserError

TABLE_3 = {
    "OPT-125M": ((768, 12, 12), (3072, 12, 192, 5_013_504), (0.431, 0.424, 0.421, 1.276), (0.4, 0.4, 0.4, 1.2)),
    "OPT-350M": ((1024, 16, 24), (4096, 16, 256, 6_225_920), (1.073, 1.055, 1.046, 3.174), (1.2, 1.1, 1.1, 3.4)),
    "OPT-1.3B": ((2048, 32, 24), (8192, 16, 512, 21_233_664), (3.671, 3.586, 3.567, 10.824), (3.7, 3.6, 3.5, 10.8)),
    "OPT-2.7B": ((2560, 32, 32), (10240, 16, 640, 32_030_720), (7.390, 7.206, 7.175, 21.771), (7.4, 7.2, 7.2, 21.8)),
}
"""By model: width, heads, layers; then D, H, K, Q; then billions by the formula; then as printed."""
APART = {("OPT-125M", 3), ("OPT-350M", 0), ("OPT-350M", 2), ("OPT-350M", 3), ("OPT-1.3B", 2)}
"""The five printed cells that do not follow from the formula."""


@pytest.mark.parametrize("name", TABLE_3)
def test_the_formula_is_that_of_table_3(name: str) -> None:
    (width, heads, layers), sizes, billions, printed = TABLE_3[name]
    found = formula(width, heads, layers, 2048, 4)
    assert (found.width, found.heads, found.prefixes, found.module) == sizes
    parts = [part / 1e9 for part in (found.forward, found.backward, found.descent, found.total)]
    assert tuple(round(part, 3) for part in parts) == billions
    apart = {(name, i) for i, part in enumerate(parts) if round(part, 1) != printed[i]}
    assert apart == {cell for cell in APART if cell[0] == name}


@pytest.mark.parametrize(("width", "slots"), [(12, 4), (50, 4), (64, 5)])
def test_the_count_is_that_of_the_terms(width: int, slots: int) -> None:
    simulator = Simulator(Layout.of(width, 2, 40, slots), 1e-3, 1e-2)
    assert counted(simulator) == expected(simulator)
    assert len(counted(simulator)) == 21


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((770, 11, 12, 2048, 4), "4 slots do not divide the width 770"),
        ((768, 11, 12, 2048, 4), r"d \(768\) must be a multiple of heads \(11\)"),
        ((768, 12, 0, 2048, 4), "layers=0 is not a size"),
    ],
)
def test_sizes_that_do_not_fit(sizes: tuple[int, int, int, int, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        formula(*sizes)
