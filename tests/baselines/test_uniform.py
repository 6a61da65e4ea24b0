import numpy as np
import pytest

from baselines.uniform import Uniform
from regbench.utils.errors import UserError


def test_every_symbol_is_as_likely_and_the_separator_is_not():
    probs = Uniform(5, 4).predict(np.array([[0, 4, 1], [3, 3, 3]]))
    assert probs.shape == (2, 3, 5)
    assert (probs == [0.25, 0.25, 0.25, 0.25, 0.0]).all()


def test_rows_are_the_callers_own():
    probs = Uniform(3, 2).predict(np.zeros((1, 2), int))
    probs[0, 0] = 7.0
    assert (probs[0, 1] == [0.5, 0.5, 0.0]).all()


@pytest.mark.parametrize(("vocab_size", "separator"), [(5, 5), (5, -1), (1, 0), (5, None), (5, "|"), (5, True)])
def test_a_vocabulary_without_a_separator_or_symbols_is_refused(vocab_size, separator):
    with pytest.raises(UserError, match=r"separator|vocab_size"):
        Uniform(vocab_size, separator)
