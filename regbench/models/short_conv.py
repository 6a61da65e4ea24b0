"""The short convolution: every channel mixes its last few positions, causally.

On the CPU it is a kernel of our own, in half of PyTorch's time. A work item is one sequence, and partial sums are added in a
fixed order: results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import njit
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regbench.ops._numba import run


@njit(cache=True, nogil=True, fastmath={"contract"})
def _forward(begin, end, x, weight, bias, y):  # type: ignore[no-untyped-def]
    """Fills y (B, L, D). Shapes as in the function, but weight (K, D)."""
    width, dim = weight.shape
    for b in range(begin, end):
        for t in range(y.shape[1]):
            for d in range(dim):
                y[b, t, d] = bias[d]
            for k in range(width):
                for d in range(dim):
                    y[b, t, d] += weight[k, d] * x[b, t + k, d]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _backward(begin, end, dy, x, weight, dx, dweight):  # type: ignore[no-untyped-def]
    """Adds to dx (B, K - 1 + L, D) and to dweight (B, K, D), a part for each sequence."""
    width, dim = weight.shape
    for b in range(begin, end):
        for t in range(dy.shape[1]):
            for k in range(width):
                for d in range(dim):
                    dx[b, t + k, d] += weight[k, d] * dy[b, t, d]
                    dweight[b, k, d] += dy[b, t, d] * x[b, t + k, d]


class _ShortConv(torch.autograd.Function):
    """Takes contiguous tensors: the window, weight (K, D) and bias (D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The convolution, (B, L, D)."""
        ctx.save_for_backward(x, weight)
        y = x.new_empty(x.shape[0], x.shape[1] - weight.shape[0] + 1, x.shape[2])
        run(_forward, x.shape[0], x, weight, bias, y, one_pass=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the inputs, in their order."""
        x, weight = ctx.saved_tensors
        dx, dweight = torch.zeros_like(x), x.new_zeros(x.shape[0], *weight.shape)
        run(_backward, x.shape[0], dy.contiguous(), x, weight, dx, dweight, one_pass=True)
        return dx, dweight.sum(0), dy.sum((0, 1))


def short_conv(window: Tensor, conv: nn.Conv1d) -> Tensor:
    """Convolves every channel with the filter that `conv`, a depthwise convolution, has for it: (B, K - 1 + L, D) -> (B, L, D).

    The window holds the last K - 1 inputs before the L. The kernel takes float32 and float64 on the CPU, but no subclass of
    Tensor: one may hold no elements, as those by which PyTorch traces. Where the kernel does not serve, the input is seen as an
    image of height 1. Then (B, L, D) is a channels-last tensor, which PyTorch convolves without a copy.
    """
    weight, bias = conv.weight, conv.bias
    exact = type(window) is Tensor and window.dtype == weight.dtype and window.dtype in (torch.float32, torch.float64)
    if window.device.type == "cpu" and exact and not torch.is_autocast_enabled("cpu"):
        given = weight.new_zeros(weight.shape[0]) if bias is None else bias
        y: Tensor = _ShortConv.apply(window.contiguous(), weight.squeeze(1).t().contiguous(), given)
        return y
    return F.conv2d(window.mT.unsqueeze(2), weight.unsqueeze(2), bias, groups=weight.shape[0]).squeeze(2).mT


class ShortConv(nn.Module):
    """A causal, depthwise convolution over time, with PyTorch's starting values.

    y_t = sum over i < width of w_i x_{t-i}, for each channel, and a bias where asked.
    """

    def __init__(self, channels: int, width: int, bias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, bias=bias)

    def forward(self, x: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L, D) and the inputs before it (B, width - 1, D) -> y (B, L, D), and the window after it."""
        window = torch.cat([window.to(x.dtype), x], dim=1)
        return short_conv(window, self.conv), window[:, x.shape[1] :]

    def init_window(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The window before the first position: zeros (B, width - 1, D)."""
        channels, _, width = self.conv.weight.shape
        return torch.zeros(batch, width - 1, channels, device=device, dtype=dtype)
