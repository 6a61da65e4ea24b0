"""Gradients by CUDA graphs are those of plain steps, and models that cannot be recorded are trained without."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.models.mixer import Mixer
from regbench.models.model import Model
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.training.cuda_graph import GraphedGradients, kept_by_python
from regbench.training.options import TrainingOptions
from regbench.training.parts import gradients_on
from regbench.training.progress import Reporter
from regbench.training.step import gradients, make_optimizer
from regbench.training.trainer import Trainer
from regbench.utils import registry
from tests.helpers.subjects import built
from tests.training.conftest import Recency

TOKENS = TokenIO(vocab_size=9, separator=8, max_length=24, names=tuple("abcdefgh|"))
VECTORS = VectorIO(d_in=4, d_out=2, max_length=24)
CPU = torch.device("cpu")
GPU = torch.device("cuda")
OPTIONS = TrainingOptions(learning_rate=1e-2)
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Counts(Recency):
    """Does something else at every step, as Python counts them."""

    _steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self._steps += 1
        return super().forward(x) * self._steps


class Rebinds(Recency):
    """Puts another tensor in the place of a buffer."""

    mean: Tensor

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.register_buffer("mean", torch.zeros(self.options.d_model))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return super().forward(x) - self.mean


class Chance(Recency):
    """Leaves out its output now and then, by a generator that PyTorch does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (random.random() < 0.5)


class Waits(Recency):
    """Reads a number from the device."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.detach().sum()) > 0 else x


def made(cls: type[Mixer], io: IO = TOKENS, **options: object) -> Model:
    model: Model = built(cls, io, **{"d_model": 16, "n_layers": 1, "dropout": 0.0, **options})
    return model.train()


def batch(io: IO, size: int, length: int, device: torch.device = GPU) -> tuple[Tensor, Tensor]:
    scored = torch.rand(size, length) < 0.5
    scored[:, 0] = True
    if isinstance(io, VectorIO):
        return torch.randn(size, length, io.d_in).to(device), scored.to(device)
    return torch.randint(io.vocab_size, (size, length)).to(device), scored.to(device)


@pytest.mark.parametrize("io", [TOKENS, VECTORS], ids=["tokens", "vectors"])
def test_the_loss_of_fixed_shape_is_the_mean_over_scored_rows(io: IO, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = made(Recency, io), batch(io, 3, 7, CPU)
    found = []
    for is_cpu in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "is_cpu", is_cpu)
            terms = gradients(model, inputs, OPTIONS)
        found.append(
            (terms, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        )
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("cls", "changes"), [(Recency, False), (Counts, True), (Chance, True), (Rebinds, True), (Waits, False)]
)
def test_what_python_keeps_tells_a_model_that_cannot_be_replayed(cls: type[Mixer], changes: bool) -> None:
    model, inputs = made(cls), batch(TOKENS, 2, 5, CPU)
    before = kept_by_python(model)
    assert kept_by_python(model) == before
    gradients(model, inputs, OPTIONS)
    assert (kept_by_python(model) != before) == changes


@pytest.mark.parametrize("name", registry.entries(registry.ARCHITECTURE))
def test_no_built_in_keeps_anything(name: str) -> None:
    """A step of the first batch of a shape may make what is kept, such as positions; the second may not."""
    model, inputs = built(name, TOKENS).train(), batch(TOKENS, 2, 8, CPU)
    gradients(model, inputs, OPTIONS)
    before = kept_by_python(model)
    gradients(model, inputs, OPTIONS)
    after = kept_by_python(model)
    generators = 3  # on a CPU, dropout and noise draw from one of them
    assert after[generators:] == before[generators:]


def test_a_run_says_why_steps_are_not_recorded(
    trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU would: `refused` is read where the time of the rest is estimated."""

    class Refused:
        refused = "steps are not recorded: the model waits for the GPU within a step"

        def __call__(self, *arguments: Any) -> dict[str, Tensor]:
            return gradients(*arguments)

    class Hearing(Reporter):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def phase(self, text: str) -> None:
            self.heard.append(text)

    reporter, one = Hearing(), trainer()
    monkeypatch.setattr("regbench.training.trainer.gradients_on", lambda device: nullcontext(Refused()))
    one.run(reporter)
    assert reporter.heard == [Refused.refused]


@pytest.mark.parametrize("name", ["transformer", "deltanet", "mamba", "lstm", "s4", "mesanet"])
@pytest.mark.parametrize("io", [TOKENS, VECTORS], ids=["tokens", "vectors"])
class TestOnAGPU:
    """Recorded steps beside plain ones."""

    pytestmark = needs_gpu

    def test_gradients_of_replays_are_those_of_plain_steps(self, name: str, io: IO) -> None:
        """Three shapes in turn, each recorded at its third batch. Sums by atomic operations differ in rounding."""
        model = made(registry.load(registry.ARCHITECTURE, name), io).to(GPU)
        twin, graphed, optimizer = copy.deepcopy(model), GraphedGradients(GPU), make_optimizer(model, OPTIONS)
        for i in range(18):
            inputs = batch(io, 4, (8, 16, 24)[i % 3])
            twin.load_state_dict(model.state_dict())
            plain = gradients(twin, inputs, OPTIONS)
            torch.testing.assert_close(graphed(model, inputs, OPTIONS), plain, rtol=1e-5, atol=1e-6)
            for (name_of, mine), other in zip(model.named_parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name_of)
            optimizer.step()
        assert graphed.refused == ""
        assert len(graphed._recordings) == 3


class TestRefusals:
    """What must not be recorded is not, and goes on as it is."""

    pytestmark = needs_gpu

    @pytest.mark.parametrize(
        ("cls", "why"),
        [
            (Counts, "keeps in Python"),
            (Chance, "keeps in Python"),
            (Rebinds, "keeps in Python"),
            (Waits, "waits for the GPU"),
        ],
    )
    def test_a_model_that_cannot_be_recorded(self, cls: type[Mixer], why: str) -> None:
        model, graphed = made(cls).to(GPU), GraphedGradients(GPU)
        twin = copy.deepcopy(model)
        random.seed(0)
        state = random.getstate()
        inputs = [batch(TOKENS, 4, 8) for _ in range(5)]
        mine = [graphed(model, each, OPTIONS) for each in inputs]
        random.setstate(state)
        torch.testing.assert_close(mine, [gradients(twin, each, OPTIONS) for each in inputs])
        assert why in graphed.refused
        assert not graphed._recordings

    def test_dropout_is_drawn_anew_at_each_replay(self) -> None:
        model, graphed, inputs = made(Recency, dropout=0.5).to(GPU), GraphedGradients(GPU), batch(TOKENS, 4, 24)
        losses = {float(graphed(model, inputs, OPTIONS)["cross_entropy"]) for _ in range(8)}
        assert len(graphed._recordings) == 1
        assert len(losses) == 8

    def test_the_variable_turns_it_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with gradients_on(GPU) as by:
            assert isinstance(by, GraphedGradients)
        monkeypatch.setenv("REGBENCH_CUDA_GRAPHS", "0")
        with gradients_on(GPU) as by:
            assert by is gradients
