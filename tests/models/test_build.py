"""A model of any size that options can ask for is refused before it takes memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer, Options
from regbench.tasks.base import TokenIO
from regbench.utils import registry
from regbench.utils.errors import UserError

IO = TokenIO(vocab_size=5, separator=4, max_length=12, names=("a", "b", "c", "d", "|"))
HUGE = 10**9


class Wide(Mixer):
    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.matrix = nn.Linear(options.d_model, options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.matrix(x)
        return y


class OfNumPy(Wide):
    """Does not build without memory."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.matrix.weight.data += torch.from_numpy(np.asarray(self.matrix.weight.detach().numpy()))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """2 GiB more than the process has: what asks for more fails at once."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        has = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("cls", "name", "size", "message"),
    [
        (
            Wide,
            "d_model",
            10**6,
            r"Wide with d_model=1000000 needs [\d,]+ GiB in training, and this machine has [\d,]+$",
        ),
        (Wide, "d_model", 10**18, r"Wide with d_model=\d+ is larger than any memory$"),
        (Wide, "n_layers", HUGE, r"Wide with n_layers=1000000000 has more than 10,000 modules$"),
        (OfNumPy, "n_layers", HUGE, r"OfNumPy with n_layers=1000000000 has more than 10,000 modules$"),
    ],
)
@pytest.mark.usefixtures("little_memory")
def test_what_no_machine_holds_is_refused(cls: type[Any], name: str, size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(cls, resolve_options(cls, {name: size}), IO)


def test_code_that_needs_memory_is_built_as_ever() -> None:
    assert build(OfNumPy, Options(d_model=8), IO)


@pytest.mark.ci
@pytest.mark.parametrize("architecture", sorted(registry.entries(registry.ARCHITECTURE)))
@pytest.mark.usefixtures("little_memory")
def test_no_option_of_an_architecture_asks_for_more_than_there_is(architecture: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, architecture)
    said = []
    for name in cls.Options.model_fields:
        try:
            build(cls, resolve_options(cls, {name: HUGE}), IO)
        except UserError as refused:
            said.append(str(refused))
    assert len(said) >= 2, "d_model and n_layers at least"
    assert not [line for line in said if "alloc" in line]
