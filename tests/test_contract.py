"""Every line of the contract catches exactly the mixer that breaks it; every built-in keeps them all."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from regbench import registry
from regbench.contract import CONTRACT, preflight, sample_tokens, violations
from regbench.errors import UserError
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.tasks.task import TokenIO

IO = TokenIO(vocab_size=5, separator=4, max_length=32, names=("a", "b", "c", "d", "|"))


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
        growth = torch.full((x.shape[1], 1), 20.0).cumprod(0)  # past float32 at 30 steps; the sample has 29 at most
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


def found(cls: type[Mixer]) -> dict[str, str]:
    torch.manual_seed(0)
    model = build(cls, resolve_options(cls, {"d_model": 16}), IO)
    return violations(model, sample_tokens(model, length=29))


@pytest.mark.parametrize("name", registry.entries(registry.ARCHITECTURE))
def test_every_built_in_keeps_the_contract(name: str) -> None:
    assert found(registry.load(registry.ARCHITECTURE, name)) == {}


def test_a_good_mixer_keeps_the_contract() -> None:
    assert found(Good) == {}


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (NaNAtLengthOne, "finite", "NaN or infinity at length 1"),
        (InfiniteWhenLong, "finite", "NaN or infinity"),
        (Peeks, "causal", "sees the future: changing token . changes the prediction of token 0"),
        (PeeksOneAhead, "causal", "sees the future"),
        (MixesTheBatch, "batch_independent", "depends on the others in its batch"),
        (DropsAGradient, "gradients", "the parameter .*linear.* receives no gradient"),
    ],
)
def test_a_broken_mixer_is_caught_by_its_line_alone(cls: type[Mixer], check: str, message: str) -> None:
    faults = found(cls)
    assert list(faults) == [check], faults
    assert re.search(message, faults[check])


def test_the_checks_leave_the_model_as_it_was() -> None:
    model = build(Good, resolve_options(Good, {}), IO).train()
    violations(model, sample_tokens(model))
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert [check.__name__ for check in CONTRACT][:3] == ["shape", "finite", "causal"]


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
    model = build(cls, resolve_options(cls, {}), IO)
    with pytest.raises(UserError, match=message) as caught:
        preflight(model, "x", torch.device("cpu"))
    assert "\n" not in str(caught.value)
