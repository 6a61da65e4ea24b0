"""The long convolution as a product of spectra.

A product of spectra is a circular convolution. Both sequences are padded with zeros to at least L + K - 1, so that it does not
wrap around. The backward pass is written out, as PyTorch differentiates a real transform by a complex one of twice the work. A
few sequences are transformed at a time, so that their spectra stay in the cache and no array grows much larger than the input.
"""

from __future__ import annotations

from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor
from torch.autograd.function import once_differentiable

from regbench.ops.backend import common_type

AT_ONCE = 2**19
"""How many padded numbers are transformed at a time on a CPU."""


def good_size(at_least: int) -> int:
    """The smallest even size, at least `at_least`, with no prime factors but 2, 3 and 5. Such sizes transform fast."""
    return 2 * int(next_fast_len(-(-at_least // 2), real=True))


def _spectrum(x: Tensor, size: int) -> Tensor:
    """The transform, with time last: (..., L, D) -> (..., D, size / 2 + 1). One copy pads and transposes."""
    padded = x.new_zeros(*x.shape[:-2], x.shape[-1], size)
    padded[..., : x.shape[-2]] = x.mT
    return torch.fft.rfft(padded)


def _signal(spectrum: Tensor, size: int, length: int) -> Tensor:
    """The first `length` positions of the inverse transform: (..., D, size / 2 + 1) -> (..., length, D)."""
    return torch.fft.irfft(spectrum, n=size)[..., :length].mT


class _LongConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        """(B, L, D), kernel (K, D) -> (B, L, D)."""
        ctx.size = good_size(x.shape[1] + kernel.shape[0] - 1)
        ctx.at_once = max(1, AT_ONCE // (ctx.size * x.shape[2])) if x.device.type == "cpu" else len(x)
        ctx.save_for_backward(x, kernel)
        kernel_spectrum = _spectrum(kernel, ctx.size)
        y = torch.empty_like(x)
        for x_part, y_part in zip(x.split(ctx.at_once), y.split(ctx.at_once), strict=True):
            y_part.copy_(_signal(_spectrum(x_part, ctx.size) * kernel_spectrum, ctx.size, x.shape[1]))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, kernel = ctx.saved_tensors
        # The adjoint of a convolution is a correlation: the product with the conjugate spectrum.
        kernel_spectrum = _spectrum(kernel, ctx.size).conj()
        dkernel_spectrum = torch.zeros_like(kernel_spectrum)
        dx = torch.empty_like(x)
        for x_part, dx_part, dy_part in zip(*(whole.split(ctx.at_once) for whole in (x, dx, dy)), strict=True):
            dy_spectrum = _spectrum(dy_part, ctx.size)
            dx_part.copy_(_signal(dy_spectrum * kernel_spectrum, ctx.size, x.shape[1]))
            dkernel_spectrum += (dy_spectrum * _spectrum(x_part, ctx.size).conj()).sum(0)
        return dx, _signal(dkernel_spectrum, ctx.size, kernel.shape[0])


def long_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """(B, L, D), (D, K) with K <= L -> (B, L, D). It computes in float64 if a tensor has it, else in float32."""
    if x.numel() == 0:
        return torch.empty_like(x)
    dtype = common_type(x, kernel, least=torch.float32)
    y: Tensor = _LongConv.apply(x.to(dtype).contiguous(), kernel.mT.to(dtype))
    return y.to(x.dtype)
