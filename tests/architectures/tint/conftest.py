"""Small auxiliaries, texts, and models in float64 for the tests of TinT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.tint import TinT
from regbench.models.build import build, resolve_options
from regbench.models.model import shift_in
from regbench.tasks.base import TokenIO

IO = TokenIO(vocab_size=7, separator=6, max_length=24, names=("a", "b", "c", "d", "e", "f", "|"))


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Models and maps are made in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def tint(**options: Any) -> TinT:
    """A model in evaluation mode whose weights are moved away from their start."""
    torch.manual_seed(0)
    own = {"d_model": 12, "n_layers": 2, "n_heads": 3, "update_at": [8], "inner_rate": 0.01, **options}
    model = build(TinT, resolve_options(TinT, own), IO)
    assert isinstance(model, TinT)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.5 * parameter.shape[-1] ** -0.5
    return model.eval()


def text(batch: int = 3, length: int = 20) -> tuple[Tensor, Tensor]:
    """Tokens without the separator (B, T), and the inputs that predict them."""
    tokens = torch.randint(6, (batch, length), generator=torch.Generator().manual_seed(1))
    return tokens, shift_in(tokens, IO.separator)


def close(found: Tensor, right: Tensor, tolerance: float) -> None:
    """Equal to `tolerance` times the largest entry."""
    torch.testing.assert_close(found, right, rtol=0, atol=tolerance * max(float(right.detach().abs().max()), 1e-9))
