"""Every line of the contract catches exactly the mixer that breaks it; every built-in keeps them all."""

from __future__ import annotations

import re
import time

import pytest
import torch
from torch import Tensor, nn

from regbench import registry
from regbench.contract import CONTRACT, Subject, examine, learns, preflight
from regbench.errors import UserError
from regbench.models.build import resolve_options
from regbench.models.mixer import Mixer
from regbench.tasks.task import TokenIO

IO = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))


class Good(Mixer):
    def __init__(self, options: object) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self.linear = nn.Linear(self.options.d_model, self.options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.linear(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])
        return mixed


class Narrow(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :, :1]


class Shorter(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :1]


class NaNAtLengthOne(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * x / (x.shape[1] - 1)


class InfiniteWhenLong(Good):
    def forward(self, x: Tensor) -> Tensor:
        growth = torch.full((x.shape[1], 1), 15.0).cumprod(0)  # past float32 at 33 steps, which only the longest has
        return super().forward(x) + 0 * growth * x


class Peeks(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * x.mean(1, keepdim=True)


class PeeksOneAhead(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]


class MixesTheBatch(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(0, keepdim=True)


class DropsAGradient(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach() + x


class Raises(Good):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no such luck\nwith a second line")


class StreamsOtherwise(Good):
    def init_state(self, batch: int, device: object = None, dtype: object = None) -> None:
        return None

    def step(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        return self.linear(x), None


class Forgets(Good):
    """Keeps a part of itself out of its weights."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.scale = torch.randn(self.options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class BornOfChance(Good):
    """Its weights come from elsewhere than the seed."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        nn.init.normal_(self.linear.weight, generator=torch.Generator().manual_seed(time.perf_counter_ns()))


class Unteachable(Good):
    """Sees nothing: the last norm's input is the same everywhere, but every parameter has a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 + 0 * x + 1e-3 * super().forward(x).mean(2, keepdim=True)


CHEAP = tuple(check for check in CONTRACT if check is not learns)


def faults(cls: type[Mixer], checks: object = CHEAP) -> dict[str, str]:
    subject = Subject(cls, resolve_options(cls, {"d_model": 16}), IO)
    return {o.check: o.fault for o in examine(subject, checks) if o.fault}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", registry.entries(registry.ARCHITECTURE))
def test_every_built_in_keeps_the_contract(name: str) -> None:
    assert faults(registry.load(registry.ARCHITECTURE, name)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.entries(registry.ARCHITECTURE))
def test_every_built_in_learns(name: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, name)
    assert [o.fault for o in examine(Subject(cls, resolve_options(cls, {}), IO), [learns])] == [None]


def test_a_good_mixer_keeps_the_contract_and_states_that_it_does_not_stream() -> None:
    outcomes = {o.check: o for o in examine(Subject(Good, resolve_options(Good, {"d_model": 16}), IO), CHEAP)}
    assert [o.fault for o in outcomes.values()] == [None] * len(CHEAP)
    assert outcomes["streams"].note == "has no recurrent form"


def test_what_cannot_learn_is_caught_by_that_line_alone() -> None:
    assert faults(Unteachable) == {}
    message = faults(Unteachable, [learns])["learns"]
    assert re.search(r"after 400 steps on 8 instances its legal accuracy on them is 0\.\d\d, not 0.99", message)


def test_who_cannot_learn_by_heart_may_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regbench.contract.LEARNING_STEPS", 25)

    class Says(Unteachable):
        @classmethod
        def memorises(cls, options: object) -> bool:
            return False

    (outcome,) = examine(Subject(Says, resolve_options(Says, {"d_model": 16}), IO), [learns])
    assert outcome.fault is None
    assert re.fullmatch(r"states that it cannot; its legal accuracy on 8 instances is 0\.\d\d", outcome.note or "")


def test_who_can_learn_by_heart_may_not_deny_it() -> None:
    honest = registry.load(registry.ARCHITECTURE, "learned_ngram")

    class Lies(honest):  # type: ignore[misc, valid-type]
        @classmethod
        def memorises(cls, options: object) -> bool:
            return False

    (outcome,) = examine(Subject(Lies, resolve_options(Lies, {"features": "counts"}), IO), [learns])
    assert outcome.fault == "it states that it cannot learn instances by heart, but it does"


def test_an_architecture_that_does_not_compile_may_say_so() -> None:
    class Says(Good):
        compiles = False

    (outcome,) = examine(
        Subject(Says, resolve_options(Says, {}), IO), [c for c in CONTRACT if c.__name__ == "compiles"]
    )
    assert outcome.note == "states that it does not"


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (NaNAtLengthOne, "finite", "NaN or infinity at length 1"),
        (InfiniteWhenLong, "finite", "NaN or infinity"),
        (Peeks, "causal", "sees the future: changing token . changes the prediction of token 0"),
        (PeeksOneAhead, "causal", "sees the future"),
        (MixesTheBatch, "batch_independent", "depends on the others in its batch"),
        (DropsAGradient, "gradients", "the parameter .*linear.* receives no gradient"),
        (BornOfChance, "deterministic", "two models made under one seed differ"),
        (StreamsOtherwise, "streams", "its recurrent form leaves the parallel one at position 1"),
        (Forgets, "saves", "a model loaded from its saved weights predicts otherwise"),
    ],
)
def test_a_broken_mixer_is_caught_by_its_line_alone(cls: type[Mixer], check: str, message: str) -> None:
    caught = faults(cls)
    assert list(caught) == [check], caught
    assert re.search(message, caught[check])


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Raises, r"architecture 'x' cannot be scored: it raises .*test_contract.py:\d+: RuntimeError: no such luck$"),
        (Peeks, "architecture 'x' cannot be scored: it sees the future"),
        (Narrow, "architecture 'x' cannot be scored: the mixer returns the shape"),
        (Shorter, "architecture 'x' cannot be scored: the mixer returns the shape"),
    ],
)
def test_preflight_refuses_in_one_line(cls: type[Mixer], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        preflight(Subject(cls, resolve_options(cls, {}), IO), "x")
    assert "\n" not in str(caught.value)
