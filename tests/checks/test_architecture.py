"""Every line of the contract catches exactly the mixer that breaks it; every built-in keeps them all."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torch import Tensor, nn

import regbench
from regbench.checks.architecture import CONTRACT, SCORABLE, causal, compiles, refuse_trained
from regbench.checks.contract import examine, refuse
from regbench.checks.subject import Subject
from regbench.checks.training import overfits, trains
from regbench.data.instances import Instances
from regbench.models.backbone import Backbone
from regbench.models.mixer import Mixer
from regbench.models.model import Model
from regbench.ops.backend import known_ops, use_backend
from regbench.tasks.base import TokenIO
from regbench.training.progress import Reporter
from regbench.utils import registry
from regbench.utils.errors import UserError
from tests.helpers.contract_mixers import (
    CHEAP,
    IO,
    UNCOMPILED,
    BeginsSilent,
    BornOfChance,
    Complex,
    CountsItsCalls,
    FillsAWindow,
    Forgets,
    Gated,
    GoesOn,
    Good,
    KeepsABatch,
    KeepsItsGraph,
    MakesABufferInTraining,
    PeeksAtBorders,
    PeeksFarIn,
    Remembers,
    Streams,
    StreamsOtherwise,
    ahead,
    faults,
    mixed,
    streamed,
)
from tests.helpers.subjects import subject_of

COMPILED = ("gla", "gated_deltanet", "learned_ngram", "lstm", "mamba", "rwkv", "s4", "transformer")
"""One architecture of each op, and the LSTM, which has none. Tracing takes seconds for each."""

OFTEN = ("lstm", "transformer")
"""Those of them that are compiled in the default suite."""


@pytest.mark.parametrize("name", registry.entries(registry.ARCHITECTURE))
def test_every_built_in_keeps_the_contract(name: str) -> None:
    assert faults(registry.load(registry.ARCHITECTURE, name), UNCOMPILED) == {}


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.ci if name in COMPILED else pytest.mark.slow)
        for name in registry.entries(registry.ARCHITECTURE)
    ],
)
def test_every_built_in_compiles(name: str) -> None:
    assert faults(registry.load(registry.ARCHITECTURE, name), [compiles]) == {}


def test_of_each_op_one_is_compiled() -> None:
    ops = set()
    for name in COMPILED:
        subject = subject_of(name, IO, d_model=16)
        with use_backend("auto") as record:
            subject.model()(subject.tokens())
        ops |= set(record)
    own = {name for name, op in known_ops().items() if op.implementations["naive"].target.startswith("regbench.")}
    assert ops == own - {"ngram_head"}, "n-gram heads are compiled in tests/architectures/test_transformer.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.entries(registry.ARCHITECTURE))
def test_every_built_in_learns(name: str) -> None:
    assert [o.fault for o in examine(subject_of(name, IO), [overfits])] == [None]


def test_a_good_mixer_keeps_the_contract_and_states_that_it_does_not_stream() -> None:
    outcomes = {o.check: o for o in examine(subject_of(Good, IO, d_model=16), CHEAP)}
    assert [o.fault for o in outcomes.values()] == [None] * len(CHEAP)
    assert outcomes["streams"].note == "has no recurrent form"


@pytest.mark.ci
@pytest.mark.parametrize("cls", [Streams, FillsAWindow, BeginsSilent, Complex])
def test_what_is_right_and_unusual_keeps_the_contract(cls: type[Mixer]) -> None:
    assert faults(cls) == {}


class HoldsAnObject(Good):
    class Options(Good.Options):
        kernel: Any = object()


class WritesItsOwnWay(Good):
    class Options(Good.Options):
        width: int = 3

        @pydantic.field_serializer("width")
        def _shown(self, width: int) -> str:
            return f"{width} symbols"


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (HoldsAnObject, "its options cannot be written as JSON: Unable to serialize unknown type: <class 'object'>"),
        (
            WritesItsOwnWay,
            "its options cannot be read back from JSON: width: input should be a valid integer, .*'3 symb",
        ),
    ],
)
def test_options_that_json_cannot_hold_are_refused_before_training(
    cls: type[Mixer], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^architecture '{cls.__name__}' cannot be scored: {message}") as caught:
        regbench.run("pfa-small-v1", cls, settings={"d_model": 8}, out=tmp_path / "out", reporter=Reporter())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.ci
def test_weights_are_moved_no_further_than_where_the_output_is_finite() -> None:
    """Here 0.1 more would be exp(200): past float32."""

    class Explodes(Good):
        def __init__(self, options: object) -> None:
            super().__init__(options)
            self.scale = nn.Parameter(torch.full((self.options.d_model,), 1e-3))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.exp(2000 * self.scale)

    assert faults(Explodes) == {}


@pytest.mark.ci
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
    peeks = mixed(lambda _, y, x: y + 0.01 * x.mean(1, keepdim=True))
    subject = subject_of(peeks, IO, d_model=8)
    assert [torch.is_grad_enabled() for _ in examine(subject, CHEAP[:4])] == [True] * 4
    with pytest.raises(UserError) as kept:
        refuse(subject, (*SCORABLE, trains), "architecture 'x'")
    assert torch.is_grad_enabled()
    assert "future" in str(kept.value)


def one_instance(subject: Subject, length: int) -> Instances:
    tokens = subject.tokens(1, length).numpy()
    return Instances(tokens, np.array([tokens.shape[1]]), np.ones_like(tokens, bool), "x/1")


class TestTrained:
    """`refuse_trained`: a leak that training opens, past where the untrained model was looked at."""

    def test_it_is_refused_once_it_leaks(self) -> None:
        late = mixed(lambda self, y, x: y + (self.gate - 5).relu() * ahead(x), Gated)
        subject = subject_of(late, IO, d_model=16)
        assert [o.fault for o in examine(subject, [causal])] == [None]
        model, one = subject.model().train(), one_instance(subject, IO.max_length)
        refuse_trained(subject, model, one, "x")
        model.blocks[1].mixer.gate.data += 5.1  # type: ignore[index, union-attr]
        message = "^architecture 'x' cannot be scored: once trained, it sees the future: changing the tokens from 34 on changes"
        with pytest.raises(UserError, match=message):
            refuse_trained(subject, model, one, "x")

    @pytest.mark.parametrize("length", [1, 2, 36])
    def test_no_built_in_of_any_length(self, length: int) -> None:
        for name in ("hyena", "s4", "transformer"):
            subject = subject_of(name, IO, d_model=16)
            refuse_trained(subject, subject.moved(), one_instance(subject, length), name)


@pytest.mark.parametrize("chunk", [20, 24, 48, 100, 159, 256])
def test_a_leak_at_the_ends_of_chunks_is_found_for_any_length_of_them(chunk: int) -> None:
    """Wherever it is below position 160, and at powers of two after it. On trained weights, too."""
    cls = type("Leaks", (PeeksAtBorders,), {"chunk": chunk})
    subject = subject_of(cls, dataclasses.replace(IO, max_length=300), d_model=16)
    message = r"sees the future: changing the tokens from (\d+) on changes the prediction of token \1$"
    (outcome,) = examine(subject, [causal])
    found = re.search(message, outcome.fault or "")
    assert found
    assert (int(found[1]) + 1) % chunk == 0
    with pytest.raises(UserError, match=message):
        refuse_trained(subject, subject.moved(), one_instance(subject, 300), "x")


def test_an_architecture_that_does_not_compile_may_say_so() -> None:
    class Says(Good):
        compiles = False

    (outcome,) = examine(subject_of(Says, IO), [compiles])
    assert outcome.note == "declares that it does not"


def overwrites(_: Mixer, y: Tensor, x: Tensor) -> Tensor:
    """What the way back needs."""
    y = y.exp()
    z = y.sin()
    y *= 2
    return z


def claims(state_bytes: Callable[[Any], float], of: type[Mixer] = Streams) -> type[Mixer]:
    return type("Broken", (of,), {"state_bytes": classmethod(lambda cls, options: state_bytes(options))})


BROKEN: list[tuple[str, str, type[Mixer]]] = [
    ("finite", "NaN or infinity at length 1", mixed(lambda _, y, x: y + 0 * x / (x.shape[1] - 1))),
    # Past float32 at 33 steps, which only the longest sequence has.
    ("finite", "NaN or infinity", mixed(lambda _, y, x: y + 0 * torch.full((x.shape[1], 1), 15.0).cumprod(0) * x)),
    (
        "causal",
        "sees the future: changing the tokens from 34 on changes the prediction of token 0",
        mixed(lambda _, y, x: y + 0.01 * x.mean(1, keepdim=True)),
    ),
    # Nothing of the future is seen until training opens the gate.
    ("causal", "changing the tokens from", mixed(lambda self, y, x: y + self.gate * ahead(x), Gated)),
    ("causal", "changing the tokens from 34 on changes the prediction of token 33", PeeksFarIn),
    ("causal", "changing the tokens from 31 on changes the prediction of token 31$", PeeksAtBorders),
    (
        "causal",
        "sees the future: leaving out the tokens from 18 on changes the prediction of token",
        mixed(lambda self, _, x: self.linear(x.cumsum(1) / x.shape[1])),
    ),
    (
        "batch_independent",
        "depends on the others in its batch",
        mixed(lambda self, y, x: y + self.gate * x.mean(0, keepdim=True), Gated),
    ),
    (
        "batch_independent",
        "depends on the others in its batch",
        mixed(lambda _, y, x: y * (torch.nan if x.shape[:2] == (1, 32) else 1.0)),
    ),
    (
        "compiles",
        "under torch.compile it predicts otherwise",
        mixed(lambda _, y, x: y * (torch.nan if torch.compiler.is_compiling() else 1.0)),
    ),
    (
        "trains",
        "the parameter .*linear.* receives no gradient; if only some batches reach it",
        mixed(lambda _, y, x: y.detach() + x),
    ),
    ("trains", "in training it raises .*modified by an inplace operation", mixed(overwrites)),
    (
        "trains",
        "in training its loss is NaN or infinite",
        mixed(lambda self, y, x: y * (torch.nan if self.training else 1.0)),
    ),
    ("trains", "in training it raises .*backward through the graph a second time", KeepsItsGraph),
    ("trains", "two training steps it predicts otherwise than a model with the same weights", KeepsABatch),
    # Dropout by a generator that no checkpoint keeps.
    (
        "trains",
        "in training mode the same weights, input and state of PyTorch's random generator give",
        mixed(lambda self, y, x: y * torch.from_numpy(np.random.default_rng().random(x.shape) > 0.5 * self.training)),
    ),
    (
        "trains",
        "in training mode the same weights, input and state of PyTorch's random generator give",
        CountsItsCalls,
    ),
    ("trains", r"it makes or removes blocks\.0\.mixer\.mean: make every", MakesABufferInTraining),
    ("streams", "begins with what the first left: init_state must make a new state each time", GoesOn),
    (
        "state_size",
        r"its state_bytes gives 16.0 \(float\), not a whole number of bytes, or None",
        claims(lambda options: options.d_model / 2, Good),
    ),
    ("streams", "it claims 8 bytes of state for a sequence, and after 36 tokens holds 144", claims(lambda options: 4)),
    (
        "streams",
        "it claims 288 bytes of state for a sequence, and after 36 tokens holds 144",
        claims(lambda options: 2 * Streams.state_bytes(options)),
    ),
    (
        "streams",
        "it claims 144 bytes of state for a sequence, and after 36 tokens holds 4752",
        streamed(lambda x, state, y, after: (y, after | {"all": torch.cat([state.get("all", x[:, :0]), x], 1)})),
    ),
    (
        "streams",
        "its recurrent form differs from its parallel form at position 0, by",
        streamed(lambda x, _, y, after: (y * torch.nan, after)),
    ),
    # An output that would be broadcast over the batch.
    (
        "streams",
        r"the mixer Broken returns from step the shape \(1, 2, 16\), not \(2, 16\)",
        streamed(lambda x, _, y, after: (y[None], after)),
    ),
    ("deterministic", "two models made under one seed differ", BornOfChance),
    ("streams", "its recurrent form differs from its parallel form at position 1, by", StreamsOtherwise),
    ("saves", "a model loaded from its saved weights predicts otherwise", Forgets),
]


@pytest.mark.parametrize(
    ("check", "message", "cls"),
    [pytest.param(*row, marks=pytest.mark.ci if row[0] == "compiles" else ()) for row in BROKEN],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_mixer_is_caught_by_its_line_alone(check: str, message: str, cls: type[Mixer]) -> None:
    caught = faults(cls, CHEAP if check == "compiles" else UNCOMPILED)
    assert list(caught) == [check], caught
    assert re.search(message, caught[check])


def test_of_nan_only_one_check_complains() -> None:
    """NaN differs from itself: the model would seem random, to leak and to forget its weights."""
    divides = mixed(lambda _, y, x: y / 0)
    outcomes = {o.check: o for o in examine(subject_of(divides, IO, d_model=16), CONTRACT)}
    assert [name for name, outcome in outcomes.items() if outcome.fault] == ["finite"]
    notes = {name for name, outcome in outcomes.items() if outcome.note == "not asked: it returns NaN or infinity"}
    assert notes == {"causal", "trains", "batch_independent", "deterministic", "saves", "compiles", "overfits"}


class WithoutSuper(Good):
    def __init__(self, options: object) -> None:
        self.options = options


class LateSuper(Good):
    def __init__(self, options: object) -> None:
        self.linear = nn.Linear(3, 3)
        super().__init__(options)


class OfDoublePrecision(Good):
    """Its buffer comes from NumPy, where a complex number has 128 bits."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.register_buffer("turn", torch.from_numpy(np.exp(1j * np.arange(self.options.d_model))))

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * self.turn).real.to(x.dtype)


def raises(*_: object) -> Tensor:
    raise RuntimeError("no such luck\nwith a second line")


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (
            mixed(raises),
            r"architecture 'x' cannot be scored: it raises .*test_architecture.py:\d+: RuntimeError: no such luck$",
        ),
        (mixed(lambda _, y, x: y[:, :, :1]), "architecture 'x' cannot be scored: the mixer Broken returns the shape"),
        (
            Remembers,
            "the same input gives different outputs: it is random, or keeps something from one call to the next$",
        ),
        (WithoutSuper, r"scored: WithoutSuper.__init__ must begin with super\(\).__init__\(options\)$"),
        (LateSuper, r"AttributeError: cannot assign module .*; begin with super\(\).__init__\(options\)$"),
        (
            OfDoublePrecision,
            r"scored: blocks\.0\.mixer\.turn is complex128, which a safetensors file cannot hold; take float32",
        ),
        (
            mixed(lambda _, y, x: torch.from_numpy(y.detach().numpy())),
            r"mixer_norm.weight receives no gradient; NumPy and .detach\(\) in the mixer do this$",
        ),
    ],
)
def test_preflight_refuses_in_one_line(cls: type[Mixer], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        refuse(subject_of(cls, IO), (*SCORABLE, trains), "architecture 'x'")
    assert "\n" not in str(caught.value)


class ShiftsNothing(Model):
    """A whole model that forgets to shift its tokens."""

    def __init__(self, options: Any, io: TokenIO) -> None:
        super().__init__(options, io)
        self.table = nn.Embedding(io.vocab_size, io.vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.table(tokens)
        return logits


def test_a_model_that_does_not_shift_is_told_how() -> None:
    with torch.no_grad():
        fault = causal(subject_of(ShiftsNothing, IO))
    assert fault == (
        "it sees the future: changing the tokens from 35 on changes the prediction of token 35; "
        "shift its inputs: regbench.shift_in(tokens, io.separator)"
    )


def test_a_backbone_whose_mixer_peeks_is_not_told_to_shift() -> None:
    class Own(Backbone):
        def __init__(self, options: Any, io: TokenIO) -> None:
            super().__init__(mixed(lambda _, y, x: y + ahead(x)), options, io)

    with torch.no_grad():
        fault = causal(subject_of(Own, IO))
    assert fault == "it sees the future: changing the tokens from 34 on changes the prediction of token 33"
