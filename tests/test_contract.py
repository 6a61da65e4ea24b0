"""Every line of the contract catches exactly the mixer that breaks it; every built-in keeps them all."""

from __future__ import annotations

import re
import time

import pytest
import torch
from torch import Tensor, nn

from regbench import registry
from regbench.contract import CONTRACT, Subject, causal, examine, learns, preflight, refuse_trained, streams, trains
from regbench.errors import UserError
from regbench.models.build import resolve_options
from regbench.models.mixer import Mixer
from regbench.tasks.task import TokenIO
from regbench.training import TrainingOptions

IO = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))


class Good(Mixer):
    def __init__(self, options: object) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self.linear = nn.Linear(self.options.d_model, self.options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.linear(x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None])
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
        growth = torch.full((x.shape[1], 1), 15.0, device=x.device).cumprod(
            0
        )  # past float32 at 33 steps, which only the longest has
        return super().forward(x) + 0 * growth * x


class Peeks(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * x.mean(1, keepdim=True)


class PeeksOneAhead(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]


class Gated(Good):
    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.gate = nn.Parameter(torch.zeros(1))


class PeeksThroughAGateThatIsShut(Gated):
    """Sees nothing of the future until training opens the gate."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.gate * nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]


class PeeksFarIn(Good):
    def forward(self, x: Tensor) -> Tensor:
        far = torch.arange(x.shape[1], device=x.device)[:, None] >= 32
        return super().forward(x) + far * nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]


class MixesTheBatchThroughAGateThatIsShut(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.gate * x.mean(0, keepdim=True)


class NaNWhenAlone(Good):
    """Of one short sequence by itself; the longest is well."""

    def forward(self, x: Tensor) -> Tensor:
        alone = len(x) == 1 and x.shape[1] == 32
        return super().forward(x) * (torch.nan if alone else 1.0)


class NaNCompiled(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (torch.nan if torch.compiler.is_compiling() else 1.0)


class MixesTheBatch(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(0, keepdim=True)


class DropsAGradient(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach() + x


class BeginsSilent(Good):
    """Its last map begins at zero, as many do: what is before it has no gradient at the first step, and has one later."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.out = nn.Linear(self.options.d_model, self.options.d_model)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(super().forward(x))
        return mixed


class OverwritesWhatBackwardNeeds(Good):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).exp()
        z = y.sin()
        y *= 2
        return z


class RefusesToTrain(Good):
    def forward(self, x: Tensor) -> Tensor:
        assert not self.training, "not for training"
        return super().forward(x)


class NaNInTraining(Good):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (torch.nan if self.training else 1.0)


class KeepsItsGraph(Good):
    """In training, from one step to the next."""

    before: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        mixed = super().forward(x) + (self.before if self.training else 0.0)
        if self.training:
            self.before = mixed.mean()
        return mixed


class Complex(Good):
    """A complex parameter, which the fused AdamW does not take."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.turn = nn.Parameter(torch.randn(self.options.d_model, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.turn * super().forward(x)).real + self.turn.imag


class Remembers(Good):
    """The mean of all it ever saw."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.seen: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.mean((0, 1)).detach()
        return super().forward(x) + self.seen


class Chance(Good):
    """Drops what it likes, in training and out of it."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.1)


class Raises(Good):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no such luck\nwith a second line")


class StreamsOtherwise(Good):
    def init_state(self, batch: int, device: object = None, dtype: object = None) -> None:
        return None

    def step(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        return self.linear(x), None


class Streams(Good):
    """The mean so far, with a recurrent form: a sum of D numbers, and the count in 8 bytes."""

    def init_state(
        self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        D = self.options.d_model
        return {"sum": torch.zeros(batch, D, device=device, dtype=dtype), "n": torch.zeros(batch, 1, dtype=torch.int64)}

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        state = {"sum": state["sum"] + x, "n": state["n"] + 1}
        return self.linear(state["sum"] / state["n"]), state

    @classmethod
    def state_bytes(cls, options: object) -> int:
        return 4 * options.d_model + 8  # type: ignore[attr-defined]


class StreamsNaN(Streams):
    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = super().step(x, state)
        return y * torch.nan, state


class StreamsWide(Streams):
    """An output that would be broadcast over the batch."""

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, state = super().step(x, state)
        return y[None], state


class ClaimsTooLittle(Streams):
    @classmethod
    def state_bytes(cls, options: object) -> int:
        return 4


class ClaimsTooMuch(Streams):
    @classmethod
    def state_bytes(cls, options: object) -> int:
        return 2 * super().state_bytes(options)


class Hoards(Streams):
    """A state that grows with the length, claimed to be what it is at first."""

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = super().step(x, state)
        return y, {**after, "all": torch.cat([state.get("all", x[:, :0]), x], 1)}


class ClaimsAFloat(Good):
    @classmethod
    def state_bytes(cls, options: object) -> int:
        return options.d_model / 2  # type: ignore[attr-defined, no-any-return]


class FillsAWindow(Good):
    """The sum of the last 64 positions, kept as they come: after 36 tokens not all of the state that it claims is there."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.cumsum(1)
        return self.linear(total - nn.functional.pad(total, (0, 0, 64, 0))[:, : x.shape[1]])

    def init_state(
        self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        return []

    def step(self, x: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        state = [*state, x][-64:]
        return self.linear(torch.stack(state).sum(0)), state

    @classmethod
    def state_bytes(cls, options: object) -> int:
        return 64 * 4 * options.d_model  # type: ignore[attr-defined]


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


@pytest.mark.parametrize("cls", [Streams, FillsAWindow, BeginsSilent, Complex])
def test_what_is_right_and_unusual_keeps_the_contract(cls: type[Mixer]) -> None:
    assert faults(cls) == {}


def test_a_claim_about_a_state_that_nobody_can_see_is_said_to_be_one() -> None:
    class Claims(Good):
        @classmethod
        def state_bytes(cls, options: object) -> int:
            return 12

    (outcome,) = examine(Subject(Claims, resolve_options(Claims, {"n_layers": 2}), IO), [streams])
    assert outcome.note == "has no recurrent form; its 24 bytes of state are taken on trust"


def test_weights_are_moved_no_further_than_where_the_output_is_finite() -> None:
    """Here 0.1 more would be exp(200): past float32."""

    class Explodes(Good):
        def __init__(self, options: object) -> None:
            super().__init__(options)
            self.scale = nn.Parameter(torch.full((self.options.d_model,), 1e-3))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.exp(2000 * self.scale)

    assert faults(Explodes) == {}


def test_what_has_no_gradient_is_not_moved() -> None:
    class Masked(Good):
        def __init__(self, options: object) -> None:
            super().__init__(options)
            self.future = nn.Parameter(torch.zeros(1), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.future * x.mean(1, keepdim=True)

    assert faults(Masked) == {}


def test_gradients_are_on_again_between_the_lines_and_after_a_refusal() -> None:
    """Also while the refusal is kept, and its frames with it."""
    subject = Subject(Peeks, resolve_options(Peeks, {"d_model": 8}), IO)
    assert [torch.is_grad_enabled() for _ in examine(subject, CHEAP[:4])] == [True] * 4
    with pytest.raises(UserError) as kept:
        preflight(subject, "x")
    assert torch.is_grad_enabled()
    assert "future" in str(kept.value)


class TestTrained:
    """`refuse_trained`: a leak that training opens, past where the untrained model was looked at."""

    class LeaksLate(Gated):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (self.gate - 5).relu() * nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]

    def test_it_is_refused_once_it_leaks(self) -> None:
        subject = Subject(self.LeaksLate, resolve_options(self.LeaksLate, {"d_model": 16}), IO)
        assert [o.fault for o in examine(subject, [causal])] == [None]
        model, tokens = subject.model().train(), subject.longest()
        refuse_trained(subject, model, tokens, "x")
        model.blocks[1].mixer.gate.data += 5.1  # type: ignore[index, union-attr]
        message = (
            "^architecture 'x' cannot be scored: now that it is trained it sees the future: changing token 0 changes"
        )
        with pytest.raises(UserError, match=message):
            refuse_trained(subject, model, tokens, "x")

    @pytest.mark.parametrize("length", [1, 2, 36])
    def test_no_built_in_of_any_length(self, length: int) -> None:
        for name in ("hyena", "s4", "transformer"):
            cls = registry.load(registry.ARCHITECTURE, name)
            subject = Subject(cls, resolve_options(cls, {"d_model": 16}), IO)
            refuse_trained(subject, subject.moved(), subject.tokens(1, length), name)


def test_a_step_is_asked_in_the_precision_of_the_run() -> None:
    seen = []

    class Looks(Good):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, torch.is_autocast_enabled("cpu"), x.shape[1]))
            return super().forward(x)

    for precision in ("float32", "bfloat16"):
        training = TrainingOptions(precision=precision)  # type: ignore[arg-type]
        assert [
            o.fault for o in examine(Subject(Looks, resolve_options(Looks, {}), IO, training=training), [trains])
        ] == [None]
    assert {half for train, half, length in seen if train} == {False, True}
    assert {length for train, half, length in seen if train} == {36}
    assert not any(half for train, half, length in seen if not train)


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
        (PeeksThroughAGateThatIsShut, "causal", "sees the future: changing token 0"),
        (PeeksFarIn, "causal", "sees the future: changing token 34 changes the prediction of token 3[34]"),
        (MixesTheBatch, "batch_independent", "depends on the others in its batch"),
        (MixesTheBatchThroughAGateThatIsShut, "batch_independent", "depends on the others in its batch"),
        (NaNWhenAlone, "batch_independent", "depends on the others in its batch"),
        (NaNCompiled, "compiles", "under torch.compile it predicts otherwise"),
        (DropsAGradient, "trains", "the parameter .*linear.* receives no gradient"),
        (OverwritesWhatBackwardNeeds, "trains", "in training it raises .*modified by an inplace operation"),
        (RefusesToTrain, "trains", r"in training it raises .*test_contract.py:\d+: AssertionError: not for training"),
        (NaNInTraining, "trains", "in training its loss is NaN or infinite"),
        (KeepsItsGraph, "trains", "in training it raises .*backward through the graph a second time"),
        (ClaimsAFloat, "state_size", r"its state_bytes gives 16.0 \(float\), not a whole number of bytes, or None"),
        (ClaimsTooLittle, "streams", "it claims 8 bytes of state for a sequence, and after 36 tokens holds 144"),
        (ClaimsTooMuch, "streams", "it claims 288 bytes of state for a sequence, and after 36 tokens holds 144"),
        (Hoards, "streams", "it claims 144 bytes of state for a sequence, and after 36 tokens holds 4752"),
        (StreamsNaN, "streams", "its recurrent form leaves the parallel one at position 0"),
        (StreamsWide, "streams", r"the mixer StreamsWide returns from step the shape \(1, 2, 16\), not \(2, 16\)"),
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
        (Narrow, "architecture 'x' cannot be scored: the mixer Narrow returns the shape"),
        (Shorter, "architecture 'x' cannot be scored: the mixer Shorter returns the shape"),
        (
            Remembers,
            "the same input gives different outputs: it is random, or keeps something from one call to the next$",
        ),
        (Chance, "the same input gives different outputs: it is random, or keeps something from one call to the next$"),
        (
            OverwritesWhatBackwardNeeds,
            "cannot be scored: in training it raises RuntimeError: one of the variables needed",
        ),
        (ClaimsAFloat, "cannot be scored: its state_bytes gives 64.0"),
    ],
)
def test_preflight_refuses_in_one_line(cls: type[Mixer], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        preflight(Subject(cls, resolve_options(cls, {}), IO), "x")
    assert "\n" not in str(caught.value)
