"""The configurations at the papers' scale start, and cost what `docs/papers/cgt.md` says."""

from __future__ import annotations

import contextlib
from functools import cache

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from architectures.cgt import ContextuallyGuided
from regbench.config import OF_TRAINING, parted, read_config
from regbench.models.build import build, resolve_options
from regbench.models.model import parameter_count
from regbench.tasks.base import IO, VectorIO
from regbench.tracks import load_track
from regbench.training.options import TrainingOptions
from regbench.utils import registry
from tests.helpers.cost import training_bytes, training_flops
from tests.helpers.documents import ROOT, table_rows
from tests.helpers.papers_configs import CONFIGS, io_of

LARGE = {"cgt-text-mixture"}
"""Counted and stepped without memory: nothing is computed, but every shape and type is checked."""

H100_FLOPS = 67e12
UTILISATION = 0.3


def inputs(io: IO, batch_size: int) -> torch.Tensor:
    shape = (batch_size, io.max_length)
    return torch.randn(*shape, io.d_in) if isinstance(io, VectorIO) else torch.randint(io.vocab_size, shape)


def memory(name: str) -> int:
    """Bytes of a step of the configuration's own batches, from those of batches of two and of four: what is added is the same."""
    config = read_config(CONFIGS[name])
    io, cls = io_of(config), registry.load(registry.ARCHITECTURE, config.architecture)
    options = resolve_options(cls, parted(config.settings, OF_TRAINING)[1])
    with FakeTensorMode() if name in LARGE else contextlib.nullcontext():
        model, counted = build(cls, options, io), []
        for batch_size in (2, 4):
            tokens = inputs(io, batch_size)
            counted.append(training_bytes(model, tokens, torch.ones(tokens.shape[:2], dtype=torch.bool)))
    two, four = counted
    return two + (config.settings["training.batch_size"] - 2) * (four - two) // 2


@cache
def step(name: str) -> tuple[int, float, bool]:
    """One training step of two instances: parameters, operations a token, and whether the weights have moved."""
    config = read_config(CONFIGS[name])
    io, cls = io_of(config), registry.load(registry.ARCHITECTURE, config.architecture)
    options = resolve_options(cls, parted(config.settings, OF_TRAINING)[1])
    torch.manual_seed(0)
    with FakeTensorMode() if name in LARGE else contextlib.nullcontext():
        model = build(cls, options, io)
        tokens = inputs(io, 2)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        operations = training_flops(model, tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))
        optimizer.step()
        moved = name in LARGE or all((p != old).any() for p, old in zip(model.parameters(), before, strict=True))
        return parameter_count(model), operations / (2 * io.max_length), moved


def test_there_is_one_for_each_experiment() -> None:
    vectors_and_text = {"cgt-linear-regression", "cgt-text-mixture"}
    assert set(CONFIGS) == {"cgt-arithmetic", "cgt-one-task", "transformer-arithmetic", *vectors_and_text}


@pytest.mark.ci
@pytest.mark.parametrize("name", CONFIGS)
def test_it_trains_a_step(name: str) -> None:
    parameters, operations, moved = step(name)
    assert moved
    assert operations > 6 * parameters * 0.5


@pytest.mark.ci
@pytest.mark.parametrize("name", CONFIGS)
def test_its_cost_is_what_the_page_says(name: str) -> None:
    config = read_config(CONFIGS[name])
    training = TrainingOptions(**parted(config.settings, OF_TRAINING)[0])
    tokens = training.train_tokens or load_track(config.track).definition.budget.train_tokens
    parameters, operations, _ = step(name)
    hours = tokens * operations / (UTILISATION * H100_FLOPS) / 3600
    row = table_rows((ROOT / "docs" / "papers" / "cgt.md").read_text(encoding="utf-8"))[name]
    shown = [f"{parameters:,}", f"{tokens:,}", f"{operations / 1e6:,.1f} M", f"{tokens * operations:.2e}"]
    hours_shown = f"{hours:.2g}" if hours < 10 else f"{hours:.0f}"
    assert row == [*shown, hours_shown, f"{memory(name) / 2**30:.1f} GiB"]


def test_arithmetic_is_the_papers() -> None:
    config = read_config(CONFIGS["cgt-arithmetic"])
    _, own = parted(config.settings, OF_TRAINING)
    model = ContextuallyGuided(resolve_options(ContextuallyGuided, own), io_of(config))  # type: ignore[arg-type]
    assert model.y_layer == 4
    assert len(model.guides) == 2
    assert model.x_blocks[0].attention.n_heads == 7  # type: ignore[union-attr]
    assert parameter_count(model) == pytest.approx(1.42e6, rel=0.01)
    budget = load_track(config.track).definition.budget.train_tokens
    assert budget == 400_000 * config.settings["training.batch_size"] * model.io.max_length
    assert config.settings["training.warmup"] * 400_000 == 10_000


def test_one_task_is_the_papers() -> None:
    config = read_config(CONFIGS["cgt-one-task"])
    _, own = parted(config.settings, OF_TRAINING)
    model = ContextuallyGuided(resolve_options(ContextuallyGuided, own), io_of(config))  # type: ignore[arg-type]
    assert (len(model.x_blocks), model.y_layer, model.options.d_y) == (8, 5, 32)
    assert (model.options.rank, model.options.mixing) == (4, "softmax")
    budget = load_track(config.track).definition.budget.train_tokens
    assert budget == 400_000 * config.settings["training.batch_size"] * model.io.max_length
