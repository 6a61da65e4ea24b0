"""An honest predictor of the tiny track, and what it predicts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from baselines.ngram import NGram
from regbench.tracks import Track


@pytest.fixture(scope="module")
def vocab_size(tiny: Track) -> int:
    return int(tiny.task.io.vocab_size)


@pytest.fixture(scope="module")
def learner(tiny: Track) -> NGram:
    """An honest predictor that is far better than a guess."""
    return NGram(2, tiny.task.io.vocab_size, tiny.task.io.separator)


@pytest.fixture(scope="module")
def rows(tiny: Track, learner: NGram) -> NDArray[np.float64]:
    """Its predictions of the test split, (N, L, V)."""
    return np.asarray(learner.predict(tiny.instances("test").tokens))
