"""One training step of every architecture, as a ratio to the transformer's in the same run."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch

from regbench import registry
from regbench.models.build import build, resolve_options
from regbench.models.model import Model
from regbench.tasks.task import TokenIO

BATCH, LENGTH, WIDTH = 32, 400, 128
IO = TokenIO(vocab_size=19, separator=18, max_length=LENGTH, names=tuple("abcdefghijklmnopqr|"))
# The transformer first: the others are told as ratios to it.
NAMES = sorted(registry.entries(registry.ARCHITECTURE), key=lambda name: (name != "transformer", name))
_rates: dict[str, float] = {}


def step(model: Model, tokens: torch.Tensor, scored: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model.losses(tokens, scored)["cross_entropy"].backward()


@pytest.mark.parametrize("name", NAMES)
def test_training_step(benchmark: Any, name: str) -> None:
    """Forward and backward of two layers at width 128, batch 32, length 400, in float32."""
    torch.manual_seed(0)
    cls = registry.load(registry.ARCHITECTURE, name)
    model = build(cls, resolve_options(cls, {"d_model": WIDTH, "n_layers": 2}), IO)
    tokens = torch.randint(IO.vocab_size, (BATCH, LENGTH))
    scored = torch.ones_like(tokens, dtype=torch.bool)
    benchmark.pedantic(step, args=(model, tokens, scored), rounds=5, warmup_rounds=1)
    rate = BATCH * LENGTH / benchmark.stats.stats.min
    _rates[name] = rate
    ratio = rate / _rates["transformer"] if "transformer" in _rates else float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    benchmark.extra_info.update(
        {"tokens/s": round(rate), "times the transformer's": round(ratio, 2), "MiB at most so far": round(peak)}
    )
    print(
        f"\n{name}: {rate:,.0f} tokens/s, {ratio:.2f} of the transformer's; the process peaked at {peak:,.0f} MiB so far"
    )
