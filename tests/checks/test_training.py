"""What is asked of a training: two steps that work, no leak that only they open, a batch that is overfitted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regbench.checks.architecture import causal
from regbench.checks.contract import examine
from regbench.checks.subject import Subject
from regbench.checks.training import overfits, trains
from regbench.models.backbone import Backbone
from regbench.models.mixer import learns_later
from regbench.tasks.base import TokenIO
from regbench.training.options import TrainingOptions
from regbench.utils import registry
from tests.helpers.contract_mixers import (
    IO,
    UNCOMPILED,
    CountsInABuffer,
    Good,
    PeeksFarIn,
    Unteachable,
    faults,
)
from tests.helpers.subjects import subject_of


def test_a_slow_mixer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.checks.training.OVERFIT_SECONDS", 0.1)
    (outcome,) = examine(subject_of(Good, IO, d_model=16), [overfits])
    assert outcome.fault is None
    assert outcome.note is not None
    assert re.fullmatch(r"not asked: a step on 8 short instances takes [\d.e-]+ s, so all would .* cause", outcome.note)


def test_ngram_heads_find_something_in_a_large_vocabulary() -> None:
    """Of 1,000 tokens drawn at random hardly two follow each other twice: then the head of order 2 would get no gradient."""
    io = TokenIO(1000, 999, 64, tuple(f"t{i}" for i in range(1000)))
    subject = subject_of("lstm", io, d_model=16, ngram_heads=[1, 2], ngram_mlp=True)
    assert [o.fault for o in examine(subject, [trains])] == [None]


def test_a_step_is_asked_in_the_precision_of_the_run() -> None:
    seen = []

    class Looks(Good):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, torch.is_autocast_enabled("cpu"), x.shape[1]))
            return super().forward(x)

    for precision in ("float32", "bfloat16"):
        training = TrainingOptions(precision=precision)  # type: ignore[arg-type]
        subject = dataclasses.replace(subject_of(Looks, IO), training=training)
        assert [o.fault for o in examine(subject, [trains])] == [None]
    assert {half for train, half, length in seen if train} == {False, True}
    assert {length for train, half, length in seen if train} == {36, 32}, (
        "steps at the longest, leaks at a short length"
    )
    assert not any(half for train, half, length in seen if not train)


@pytest.mark.ci
def test_what_cannot_learn_is_caught_by_that_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.checks.training.OVERFIT_STEPS", 75)
    assert faults(Unteachable, UNCOMPILED) == {}
    message = faults(Unteachable, [overfits])["overfits"]
    assert re.search(r"after 75 steps on 8 instances its legal accuracy on them is 0\.\d{3}, not 0.99", message)


def test_an_architecture_may_declare_that_it_cannot_overfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.checks.training.OVERFIT_STEPS", 25)

    class Says(Unteachable):
        @classmethod
        def can_overfit(cls, options: object) -> bool:
            return False

    (outcome,) = examine(subject_of(Says, IO, d_model=16), [overfits])
    assert outcome.fault is None
    assert re.fullmatch(r"declares that it cannot; its legal accuracy on 8 instances is 0\.\d\d", outcome.note or "")


@pytest.mark.ci
def test_an_architecture_that_overfits_may_not_declare_otherwise() -> None:
    honest = registry.load(registry.ARCHITECTURE, "learned_ngram")

    class Lies(honest):  # type: ignore[misc, valid-type]
        @classmethod
        def can_overfit(cls, options: object) -> bool:
            return False

    (outcome,) = examine(subject_of(Lies, IO, features="counts"), [overfits])
    assert outcome.fault == "it declares that it cannot overfit one batch, but it does"


class NormalisesOverTime(Good):
    """In evaluation mode batch normalisation is a fixed map; in training mode it takes means over positions."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.normalise = nn.BatchNorm1d(options.d_model)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.normalise(super().forward(x).transpose(1, 2)).transpose(1, 2)
        return normalised


def test_a_leak_that_training_mode_alone_has_is_refused() -> None:
    subject = subject_of(NormalisesOverTime, IO, d_model=8, n_layers=1)
    with torch.no_grad():
        assert causal(subject) is None
        fault = trains(subject)
        assert trains(subject_of(Good, IO, d_model=8, n_layers=1, dropout=0.5)) is None
    assert fault is not None
    assert fault.startswith("in training mode it sees the future: changing the tokens from 16 on changes the")


def test_what_changes_in_training_may_be_kept_in_a_buffer() -> None:
    assert faults(CountsInABuffer, [trains]) == {}


def test_a_leak_far_in_that_training_alone_has_is_refused() -> None:
    class PeeksInTraining(PeeksFarIn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else Good.forward(self, x)

    class PeeksWithGradients(PeeksFarIn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if torch.is_grad_enabled() else Good.forward(self, x)

    message = (
        "in training mode it sees the future: changing the tokens from 32 on changes the prediction of token 32; batch"
    )
    for cls in (PeeksInTraining, PeeksWithGradients):
        assert faults(cls, UNCOMPILED)["trains"].startswith(message)


def test_experts_that_a_batch_does_not_reach_may_be_marked() -> None:
    class Experts(Good):
        def __init__(self, options: object) -> None:
            super().__init__(options)
            self.rare = nn.Linear(self.options.d_model, self.options.d_model)
            learns_later(*self.rare.parameters())

        def forward(self, x: Tensor) -> Tensor:
            chosen = x.mean(-1, keepdim=True) > 1e6
            return super().forward(x) + chosen * self.rare(x)

    assert faults(Experts, [trains]) == {}


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda terms: terms["cross_entropy"], "gives Tensor, not a dictionary of the terms by name"),
        (lambda terms: None, "gives NoneType, not a dictionary of the terms by name"),
        (lambda terms: terms | {"balance": 0.0}, "gives for 'balance' float, not a tensor of one number"),
        (
            lambda terms: terms | {"balance": torch.ones(2)},
            "gives for 'balance' the shape (2,), not a tensor of one number",
        ),
        (
            lambda terms: terms | {"tokens": torch.zeros(())},
            "gives a term 'tokens', and the log has another figure of that name: rename the term",
        ),
    ],
)
def test_losses_that_are_no_terms_are_told_so(losses: Callable[[dict[str, Tensor]], Any], message: str) -> None:
    class Own(Backbone):
        def __init__(self, options: Any, io: TokenIO) -> None:
            super().__init__(Good, options, io)

        def losses(self, tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
            return losses(super().losses(tokens, scored))  # type: ignore[no-any-return]

    assert faults(Own, [trains]) == {"trains": f"Own.losses {message}"}  # type: ignore[arg-type]


def test_a_large_learning_rate_is_not_blamed_on_the_architecture() -> None:
    training = TrainingOptions(learning_rate=1e30)
    subject = Subject(Good, Good.Options(d_model=8, n_layers=1), IO, training=training)
    with torch.no_grad():
        assert trains(subject) is None
