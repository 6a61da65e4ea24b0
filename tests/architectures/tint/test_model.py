"""The architecture: what it refuses, that it never sees the future, and the contract in both forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from architectures.tint import TinT
from regbench.checks.architecture import CONTRACT, causal, compiles
from regbench.checks.contract import examine
from regbench.checks.training import overfits, trains
from regbench.models.backbone import Backbone
from regbench.models.model import parameter_count
from regbench.tasks.base import TokenIO
from regbench.utils.errors import UserError
from tests.architectures.tint.conftest import IO, close, text, tint
from tests.helpers.subjects import subject_of

QUICK = tuple(check for check in CONTRACT if check not in (overfits, compiles))


def test_training_mode_and_a_rate_of_zero_are_the_auxiliary() -> None:
    """To the bit."""
    tokens, _ = text()
    still, model = tint(inner_rate=0.0), tint()
    assert torch.equal(still(tokens), still.auxiliary(tokens))
    assert torch.equal(model(tokens)[:, :8], model.auxiliary(tokens)[:, :8])
    assert not torch.equal(model(tokens)[:, 8:], model.auxiliary(tokens)[:, 8:])
    assert torch.equal(model.train()(tokens), model.auxiliary(tokens))


def test_training_is_the_auxiliarys_and_the_validation_loss_is_of_what_is_scored() -> None:
    tokens, _ = text()
    scored = torch.ones_like(tokens, dtype=torch.bool)
    model = tint()
    own = model.auxiliary.losses(tokens, scored)["cross_entropy"]
    assert torch.equal(model.train().losses(tokens, scored)["cross_entropy"], own)
    changed = torch.nn.functional.cross_entropy(model.eval()(tokens).flatten(0, 1), tokens.flatten())
    with torch.autocast("cpu", torch.bfloat16):
        found = model.losses(tokens, scored)["cross_entropy"]
    assert torch.allclose(found, changed, rtol=1e-6)
    assert not torch.allclose(found, own, rtol=1e-6)


@pytest.mark.parametrize("form", ["explicit", "construction"])
def test_later_tokens_change_nothing_before_them(form: str) -> None:
    """Also across the places where the weights change; and rows with more padding are as those with less."""
    model = tint(form=form, update_at=[6, 13])
    tokens, _ = text()
    whole = model(tokens)
    for t in (5, 6, 13):
        other = tokens.clone()
        other[:, t] = (other[:, t] + 1) % 6
        close(model(other)[:, : t + 1], whole[:, : t + 1], 1e-12)
    padded = torch.nn.functional.pad(tokens, (0, 4), value=IO.separator)
    close(model(padded)[:, :20], whole, 1e-12)
    close(model(tokens[:1, :5]), model.auxiliary(tokens[:1, :5]), 0.0)


def test_padding_is_not_learned_from() -> None:
    tokens, _ = text()
    model = tint(update_at=[12])
    tokens[:, 5:] = IO.separator
    counted = model.counted(torch.nn.functional.pad(tokens, (1, 0), value=IO.separator)[:, :-1], tokens)
    assert counted.sum(1).tolist() == [6, 6, 6]


def test_it_counts_the_parameters_of_the_auxiliary_alone() -> None:
    model = tint(form="construction")
    assert parameter_count(model) == parameter_count(model.auxiliary)
    assert isinstance(model.auxiliary, Backbone)
    assert all(name.startswith("auxiliary.") for name in model.state_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"positions": "rotary"}, "positions: .*'learned'"),
        ({"update_at": [24]}, "update_at=24 leaves nothing behind it: a sequence has 24 tokens at most"),
        ({"update_at": [8, 4]}, "update_at must increase"),
        ({"inner_layers": 3}, r"inner_layers \(3\) is above n_layers \(2\)"),
        ({"form": "construction", "gradient": "full"}, "form=construction computes the gradient first-order, not full"),
        ({"slots": 3}, "slots: .*4"),
        ({"d_model": 13}, "13"),
        ({"ngram_heads": [1]}, "n-gram heads"),
        ({"targets": "after:z"}, "no token has the name 'z'"),
        ({"targets": "before:a"}, "targets is all or after:TOKEN"),
    ],
)
def test_bad_input_is_told_in_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        tint(**options)
    assert "\n" not in str(told.value)


def test_a_rate_that_diverges_is_told() -> None:
    tokens, _ = text()
    with pytest.raises(UserError, match=r"the simulated steps diverge at inner_rate=1e\+200: take a smaller rate"):
        tint(inner_rate=1e200, inner_steps=3)(tokens)


@pytest.mark.parametrize("form", ["explicit", "construction"])
def test_a_validation_refuses_steps_that_diverge(form: str) -> None:
    """Finite logits do not hide them. Training mode takes no step, and a rate that only does harm is a result.

    Every validation is asked alike, so a training that was killed and resumed ends as one that was not.
    """
    tokens, _ = text()
    scored = torch.ones_like(tokens, dtype=torch.bool)
    diverging = tint(form=form, inner_rate=1e4)
    assert diverging(tokens).isfinite().all()
    diverging.train().losses(tokens, scored)
    words = (
        r"diverge at inner_rate=10000: they raise the validation loss behind them from .* nats; .*default is 0.001\)"
    )
    with pytest.raises(UserError, match=words):
        diverging.eval().losses(tokens, scored)
    harmful = tint(form=form, inner_rate=0.3)
    behind = tokens[:, 8:].flatten()
    after, before = (
        torch.nn.functional.cross_entropy(logits[:, 8:].flatten(0, 1), behind)
        for logits in (harmful(tokens), harmful.auxiliary(tokens))
    )
    assert after > before
    harmful.losses(tokens, scored)
    harmful.load_state_dict(diverging.state_dict())
    harmful.options = diverging.options
    if form == "explicit":
        with pytest.raises(UserError, match=words):
            harmful.losses(tokens, scored)


@pytest.mark.parametrize("form", ["explicit", pytest.param("construction", marks=pytest.mark.ci)])
def test_it_keeps_the_contract(form: str) -> None:
    """In float32; tracing and a longer training are in the slow test."""
    torch.set_default_dtype(torch.float32)
    io = TokenIO(vocab_size=5, separator=4, max_length=20, names=("a", "b", "c", "d", "|"))
    subject = subject_of(TinT, io, d_model=12, n_layers=1, n_heads=3, form=form, update_at=[6, 13])
    checks = QUICK if form == "explicit" else (causal, trains)
    assert [o.fault for o in examine(subject, checks)] == [None] * len(checks)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["explicit", "construction"])
def test_it_keeps_the_whole_contract(form: str) -> None:
    torch.set_default_dtype(torch.float32)
    io = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))
    subject = subject_of(TinT, io, form=form, update_at=[8, 20])
    assert [o.fault for o in examine(subject, CONTRACT)] == [None] * len(CONTRACT)
