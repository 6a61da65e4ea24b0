import numpy as np
import pytest

from baselines.oracle import Oracle
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from regbench.utils.errors import UserError
from tests.baselines.conftest import uniform

TASK = PFA(
    PFA.Parameters(n_symbols=5, min_states=3, max_states=5, max_alphabet=5, min_strings=2, max_strings=4, max_length=6)
)
SEPARATOR, VOCAB = 5, 6


@pytest.fixture(scope="module")
def instances():
    return TASK.generate(Splits(train=1, validation=1, test=30, seed=4), "test")


def test_is_the_truth_where_there_is_one_and_uniform_elsewhere(instances):
    probs = Oracle(TASK, instances).predict(instances.tokens)
    np.testing.assert_array_equal(probs[instances.scored], TASK.truth(instances)[instances.scored])
    assert (probs[~instances.scored] == uniform(SEPARATOR, VOCAB)).all()
    np.testing.assert_allclose(probs.sum(-1), 1.0)


def test_finds_an_instance_in_any_batch_cut_or_padded(instances):
    oracle = Oracle(TASK, instances)
    whole = oracle.predict(instances.tokens)
    rows = np.array([17, 3, 17, int(instances.lengths.argmin())])
    cut = instances[rows]
    np.testing.assert_array_equal(oracle.predict(cut.tokens), whole[rows][:, : cut.tokens.shape[1]])
    padded = np.pad(cut.tokens, ((0, 0), (0, 90)), constant_values=SEPARATOR).astype(np.int32)
    np.testing.assert_array_equal(oracle.predict(padded)[:, : cut.tokens.shape[1]], oracle.predict(cut.tokens))
    assert (oracle.predict(padded)[:, -1] == uniform(SEPARATOR, VOCAB)).all()


def test_is_scored_on_the_truth_of_each_where_two_have_the_same_tokens():
    """Short strings of different automata may be equal."""
    short = PFA(TASK.parameters.model_copy(update={"min_strings": 1, "max_strings": 1, "max_length": 3}))
    instances = short.generate(Splits(train=1, validation=1, test=200, seed=4), "test")
    assert len(set(instances.as_bytes())) < 200
    oracle = Oracle(short, instances)
    probs, truth = oracle.predict_instances(instances), short.truth(instances)
    np.testing.assert_array_equal(probs[instances.scored], truth[instances.scored])
    assert (probs[~instances.scored] == uniform(SEPARATOR, VOCAB)).all()


def test_an_instance_it_does_not_know_is_refused_by_its_row(instances):
    tokens = instances.tokens.copy()
    tokens[2, 0] = (tokens[2, 0] + 1) % 5
    with pytest.raises(UserError, match="row 2 is none of the 30 instances"):
        Oracle(TASK, instances).predict(tokens)


def test_defaults(instances):
    (oracle,) = Oracle.defaults(TASK, instances)
    assert (oracle.name, oracle.anchor, oracle.options) == ("oracle", "end", {})
