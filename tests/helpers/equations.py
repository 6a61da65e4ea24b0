"""A mixer against its equations, written out one position or one head at a time; and parts of them that several share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.build import resolve_options
from regbench.models.mixer import Mixer
from regbench.ops.backend import use_backend
from tests.helpers.peers import move


def made(
    cls: type[Mixer],
    dtype: torch.dtype = torch.float64,
    *,
    layer: int | None = None,
    moved: bool = False,
    **options: Any,
) -> Any:
    """A mixer from seed 0, as that of a layer; `moved` where weights begin at zero, which would hide what they do."""
    torch.manual_seed(0)
    mixer = cls(resolve_options(cls, options))
    if layer is not None:
        mixer.place(layer)
    return (move(mixer) if moved else mixer).to(dtype)


def convolved(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """The causal convolution of each channel, a tap at a time: (B, L, C) -> (B, L, C)."""
    kernel = conv.weight[:, 0]
    padded = F.pad(x, (0, 0, kernel.shape[1] - 1, 0))
    y = torch.stack([kernel[:, i] * padded[:, i : i + x.shape[1]] for i in range(kernel.shape[1])]).sum(0)
    return y if conv.bias is None else y + conv.bias


def unit(x: Tensor) -> Tensor:
    """Of length 1, with 1e-6 under the root, which the papers leave out and the authors' code has."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def check_equations(
    model: Mixer,
    written_out: Callable[[Tensor], Tensor],
    length: int,
    *,
    ops: tuple[str, ...] = (),
    backend: str = "auto",
    forward: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Equal outputs (2, L, D), and equal gradients of the input and of every parameter. From the third position on none is zero.

    Args:
        model: the mixer, in float64.
        written_out: the same map, written out.
        length: L.
        ops: the ops that the mixer uses.
        backend: the implementation of them that must run.
        forward: what to call in the place of the mixer.
    """
    x = torch.randn(2, length, model.options.d_model, dtype=torch.float64, requires_grad=True)
    with use_backend(backend) as record:
        y = (forward or model)(x)
    assert backend == "auto" or record == dict.fromkeys(ops, backend)
    expected, upstream = written_out(x), torch.randn_like(x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-11)
    names, wanted = ["x", *dict(model.named_parameters())], [x, *model.parameters()]
    found, right = (torch.autograd.grad(out, wanted, upstream, materialize_grads=True) for out in (y, expected))
    for name, ours, theirs in zip(names, found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
        assert length < 3 or ours.abs().max() > 0, f"{name} has no gradient"
