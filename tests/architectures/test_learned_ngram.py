"""Learned n-gram reweighting: its features by hand, its function by its formula, its training as in the paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from architectures.learned_ngram import LearnedNGram
from regbench.checks.architecture import causal, compiles, options_round_trip
from regbench.checks.contract import examine
from regbench.models.build import build, resolve_options
from regbench.tasks.base import TokenIO
from regbench.training.options import TrainingOptions
from tests.helpers.subjects import subject_of

IO = TokenIO(vocab_size=4, separator=3, max_length=30, names=("a", "b", "c", "|"))
FEATURES = ("counts", "frequencies", "binary")


def model(features: str = "counts", **options: object) -> Any:
    torch.manual_seed(0)
    settings = {"features": features, "d_model": 16, **options}
    return build(LearnedNGram, resolve_options(LearnedNGram, settings), IO).eval()


def features_of(m: Any, tokens: Tensor) -> Tensor:
    """What the MLP is given: (B, L, N V)."""
    seen: list[Tensor] = []
    hook = m.up.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    m(tokens)
    hook.remove()
    return seen[0]


def test_the_features_of_an_example() -> None:
    """a b a | a, then? The input begins with a separator; after the last a have come b and |, after "| a" has come b."""
    tokens = torch.tensor([[0, 1, 0, 3, 0, 2]])
    unigram, after_a, after_sep_a = [3.0, 1.0, 0.0, 2.0], [0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]
    whole = torch.tensor([*unigram, *after_a, *after_sep_a])
    assert torch.equal(features_of(model("counts"), tokens)[0, 5], whole)
    expected = torch.cat([torch.tensor(part) / sum(part) for part in (unigram, after_a, after_sep_a)])
    assert torch.equal(features_of(model("frequencies"), tokens)[0, 5], expected)
    assert torch.equal(features_of(model("binary"), tokens)[0, 5], (whole > 0).float())


@pytest.mark.parametrize("features", FEATURES)
def test_before_anything_is_read_only_the_first_separator_is_known(features: str) -> None:
    first = features_of(model(features), torch.tensor([[2, 2]]))[0, 0]
    assert first.tolist() == [0, 0, 0, 1, *[0] * 8]


def test_a_new_context_has_no_frequencies() -> None:
    got = features_of(model("frequencies"), torch.tensor([[0, 1, 2, 0]]))[0, 3]
    assert got[4:].tolist() == [0.0] * 8
    assert got[:4].sum() == 1


@pytest.mark.parametrize("features", FEATURES)
def test_it_is_the_mlp_of_the_paper(features: str) -> None:
    m = model(features, max_order=2)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 4, (3, 20)))
    f = features_of(m, tokens)
    x = f @ m.up.weight.T + m.up.bias
    gelu = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(m(tokens), gelu @ m.down.weight.T + m.down.bias)
    assert sum(p.numel() for p in m.parameters()) == (2 * 4) * 16 + 16 + 16 * 4 + 4


def test_the_order_of_old_tokens_beyond_their_ngrams_is_not_seen() -> None:
    """Two prefixes with the same n-grams up to order 2 and the same last token are one to a model of order 2."""
    one, other = torch.tensor([[1, 0, 2, 0, 1, 1, 0, 0]]), torch.tensor([[1, 0, 1, 0, 2, 1, 0, 0]])
    low, high = model(max_order=2), model(max_order=3)
    assert torch.equal(low(one)[0, 7], low(other)[0, 7])
    assert not torch.allclose(high(one)[0, 7], high(other)[0, 7])


@pytest.mark.ci
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("max_order", [1, 3, 5])
def test_it_keeps_the_contract_for_every_option(features: str, max_order: int) -> None:
    subject = subject_of(LearnedNGram, IO, features=features, max_order=max_order, d_model=16)
    checks = [causal, options_round_trip, *([compiles] if max_order == 3 else [])]
    assert [o.fault or o.note for o in examine(subject, checks)] == [None] * len(checks)


def test_its_state_is_a_counter_for_every_ngram() -> None:
    m = model(max_order=3)
    tables = m.init_state(5).tables
    assert m.state_bytes() == sum(table[0].numel() * 4 for table in tables) + 8
    assert sum(table[0].numel() for table in tables) == 4 + 16 + 64


def test_it_is_trained_as_in_the_paper() -> None:
    options = TrainingOptions(**LearnedNGram.training_defaults)
    assert (options.batch_size, options.epochs, options.learning_rate) == (32, 50, 1e-3)
    assert (options.beta1, options.beta2, options.weight_decay) == (0.9, 0.99, 0.0)
    assert (options.schedule, options.plateau_patience, options.plateau_factor) == ("plateau", 5, 0.5)
    assert options.plateau_learning_rate == 1e-5
    defaults = LearnedNGram.Options()
    assert (defaults.d_model, defaults.max_order, defaults.dropout) == (1024, 3, 0.0)
