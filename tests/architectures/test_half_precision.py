"""Where bfloat16 would round what must not be rounded: each architecture is beside itself in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import architectures.mamba
from architectures.forgetting_transformer import ForgettingTransformer
from architectures.hyena import Hyena
from architectures.mamba import Mamba


def apart(half: Tensor, exact: Tensor) -> float:
    return float((half.double() - exact.double()).norm() / exact.double().norm())


def test_the_gradient_of_a_forget_gate_at_many_positions() -> None:
    """It is a sum over all later positions that nearly cancels: with its terms in half precision it would be rounding."""
    torch.manual_seed(0)
    mixer = ForgettingTransformer(ForgettingTransformer.Options(d_model=64, n_heads=4))
    x, y = torch.randn(2, 2, 256, 64)
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = (mixer(x).float() * y).sum()
        gradients.append(torch.autograd.grad(loss, list(mixer.parameters())))
    names = [name for name, _ in mixer.named_parameters()]
    off = {name: apart(half, exact) for name, exact, half in zip(names, *gradients, strict=True)}
    assert 1e-4 < max(off.values()) < 0.04, off


def test_the_step_sizes_of_mamba(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    mixer, x, found = Mamba(Mamba.Options(d_model=64)), torch.randn(4, 64, 64), []
    scan = architectures.mamba.selective_scan

    def noting(v: Tensor, delta: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        found.append(delta.detach())
        return scan(v, delta, *rest)

    monkeypatch.setattr(architectures.mamba, "selective_scan", noting)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            mixer(x)
    exact, half = (delta.double().mean((0, 1)) for delta in found)
    assert float((half / exact - 1).abs().max()) < 2e-3, "a bias that is rounded gives up to 2 %"


def test_the_filters_of_hyena() -> None:
    torch.manual_seed(0)
    mixer = Hyena(Hyena.Options(d_model=16, frequency=10))
    exact = mixer.filter(0, 400)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mixer.filter(0, 400), exact)
