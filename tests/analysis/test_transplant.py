"""Transplanting y, with a model whose predictions are its y."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regbench.analysis.segments import segments
from regbench.analysis.transplant import transplant
from regbench.tracks import Track
from tests.analysis.conftest import Counting


def test_what_the_donor_has_rises_and_what_it_lacks_falls(tiny: Track) -> None:
    instances = tiny.instances("test")
    parts = segments(tiny.task, instances)
    found = transplant(Counting(tiny.task.io), instances, parts)
    assert found.pairs == len(parts) - 1
    assert found.by_kind["the donor's alone"] > 0.1
    assert found.by_kind["its own alone"] < -0.1
    assert 0.0 < found.total_variation < 1.0


def test_the_figures_of_one_pair(tiny: Track) -> None:
    instances = tiny.instances("test")
    parts = segments(tiny.task, instances)[:2]
    model = Counting(tiny.task.io)
    found = transplant(model, instances, parts)
    shown = [instances.tokens[r, :c].astype(np.int64) for r, c in zip(parts.row, parts.cut, strict=True)]
    own, donor = (
        torch.log_softmax(5 * model.summary(torch.from_numpy(s)[None])[0].double(), -1).numpy() for s in shown
    )
    np.testing.assert_allclose(found.rises, donor - own, atol=1e-6)
    assert found.total_variation == pytest.approx(0.5 * np.abs(np.exp(donor) - np.exp(own)).sum(), abs=1e-6)
    both = np.intersect1d(*shown)
    assert found.by_kind["both texts'"] == pytest.approx((donor - own)[both].mean(), abs=1e-6)
