"""A mixer against somebody else's implementation of it: outputs, and the gradients of the input and of the parameters."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from regbench.models.mixer import Mixer


def peer(module: str, *needed: str) -> Any:
    """The module of a library; the test is skipped where it, or another that it needs, is not installed."""
    for name in (*needed, module.partition(".")[0]):
        pytest.importorskip(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fla warns where there is no GPU
        return importlib.import_module(module)


def move(model: Mixer, size: float = 0.3) -> Mixer:
    """The mixer with its weights moved from where they begin, as some begin at zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += size * noise.to(parameter)
    return model


def check_peer(
    model: Mixer,
    theirs: Callable[[Tensor], Tensor],
    pairs: Sequence[tuple[str, Tensor | Callable[[], Tensor]]] = (),
    *,
    length: int = 45,
    tolerance: float = 1e-9,
    x: Tensor | None = None,
) -> None:
    """Equal outputs, and equal gradients of the input and of the parameters.

    Args:
        model: ours.
        theirs: the same map. It reads our parameters, or copies of them that `pairs` names.
        pairs: the name of each of our parameters that has a copy, and the copy; or what gives the copy's gradient in our form.
        length: L.
        tolerance: relative to the largest entry of each tensor.
        x: (2, L, D), the input; drawn if it is not given.
    """
    dtype = next(model.parameters()).dtype
    if x is None:
        x = torch.randn(
            2, length, model.options.d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
    ours, other = (x.detach().to(dtype).clone().requires_grad_() for _ in range(2))
    y, expected = model(ours), theirs(other)
    _close(y, expected, tolerance, "output")
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    named = dict(model.named_parameters())
    copies = dict(pairs)
    found = torch.autograd.grad(y, [ours, *named.values()], upstream, allow_unused=False)
    if not copies:  # they have read our own
        right = torch.autograd.grad(expected, [other, *named.values()], upstream)
        for name, a, b in zip(["x", *named], found, right, strict=True):
            _close(a, b, tolerance, name)
        return
    assert set(copies) == set(named), "a parameter has no copy"
    expected.backward(upstream)
    grads = dict(zip(named, found[1:], strict=True))
    _close(found[0], other.grad, tolerance, "x")
    for name, copy in copies.items():
        grad = copy() if callable(copy) else copy.grad
        _close(grads[name], grad, tolerance, name)


def _close(found: Tensor, right: Tensor | None, tolerance: float, name: str) -> None:
    assert right is not None, f"{name} has no gradient there"
    assert float(right.detach().abs().max()) > 0, f"{name} is zero there"
    atol = tolerance * float(right.detach().abs().max())
    torch.testing.assert_close(
        found.detach(), right.detach().to(found).reshape(found.shape), rtol=0, atol=atol, msg=lambda m: f"{name}: {m}"
    )
