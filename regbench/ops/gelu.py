"""GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2): on the CPU a pass over the elements each way.

0.5 (1 + tanh(u)) is sigmoid(2 u), so GELU is x sigmoid(2 u) with 2 u = x (A + B x^2). The backward pass computes it again from x.
Elements do not depend on each other, so results do not depend on the number of threads. PyTorch's own takes twice as long.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regbench.ops._numba import exp2, run

BLOCK = 4096
"""Elements of a work item."""

_A = 2 * math.sqrt(2 / math.pi)
_B = 0.044715 * _A
_LOG2_E = math.log2(math.e)

# With NumPy's error model there is no check of each divisor, which would forbid vector arithmetic.


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _forward(begin, end, x, y):  # type: ignore[no-untyped-def]
    a, b, one = x.dtype.type(-_A * _LOG2_E), x.dtype.type(-_B * _LOG2_E), x.dtype.type(1)
    part = slice(begin * BLOCK, end * BLOCK)
    x, y = x[part], y[part]  # an index from 0 needs no check for a sign
    for i in range(x.size):
        y[i] = x[i] / (one + exp2(x[i] * (a + b * x[i] * x[i])))


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _backward(begin, end, dy, x, dx):  # type: ignore[no-untyped-def]
    a, b, one = x.dtype.type(-_A * _LOG2_E), x.dtype.type(-_B * _LOG2_E), x.dtype.type(1)
    slope, cubic = x.dtype.type(_A), x.dtype.type(3 * _B)
    part = slice(begin * BLOCK, end * BLOCK)
    dy, x, dx = dy[part], x[part], dx[part]
    for i in range(x.size):
        square = x[i] * x[i]
        share = one / (one + exp2(x[i] * (a + b * square)))
        dx[i] = dy[i] * share * (one + x[i] * (one - share) * (slope + cubic * square))


class _Gelu(torch.autograd.Function):
    """Takes a contiguous tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        run(_forward, -(-x.numel() // BLOCK), x.view(-1), y.view(-1), one_pass=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        run(_backward, -(-x.numel() // BLOCK), dy.contiguous().view(-1), x.view(-1), dx.view(-1), one_pass=True)
        return dx


def gelu(x: Tensor) -> Tensor:
    """X / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) at each element.

    There is nothing to choose: the kernel takes float32 and float64 on the CPU, and PyTorch's function all else. A subclass of
    Tensor may hold no elements, as those by which PyTorch traces and profiles: it is PyTorch's too.
    """
    if type(x) is not Tensor or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return F.gelu(x, approximate="tanh")
    y: Tensor = _Gelu.apply(x.contiguous())
    return y
