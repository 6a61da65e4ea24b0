"""The long convolution: every channel of a sequence, causally convolved with a filter as long as the sequence itself."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Form, Op
from regbench.utils.errors import UserError

OP = Op(
    "long_conv",
    {
        "fft": Form("regbench.ops.long_conv.fft:long_conv_fft", ("cpu", "cuda")),
        "naive": Form("regbench.ops.long_conv.naive:long_conv_naive", ("cpu", "cuda")),
    },
)


def long_conv(x: Tensor, kernel: Tensor, skip: Tensor | None = None, backend: str = "auto") -> Tensor:
    """y_t = sum over s <= t of kernel_{t-s} x_s, and skip x_t, for every channel on its own.

    Sources: Gu et al. (2022), arXiv 2111.00396, section 2.4; ICLL Eq. 77-78, where the kernel is K-bar. A Fourier transform
    mixes all positions, so rounding, and NaN, do not keep to the order of time; all else does.

    Args:
        x: (B, L, D), the input.
        kernel: (D, K), the filter of each channel, lag 0 first. Lags from K on count as zero, those from L on are unused.
        skip: (D,), added to the filter at lag 0; None for nothing.
        backend: "auto" or a form of this op.

    Returns:
        y (B, L, D), in the type of x.

    Raises:
        UserError: a shape does not fit the others, or `backend` cannot serve these tensors.
    """
    if x.dim() != 3:
        raise UserError(f"long_conv: x should have shape (B, L, D), but has {tuple(x.shape)}")
    _, length, dim = x.shape
    if kernel.dim() != 2 or kernel.shape[0] != dim or kernel.shape[1] == 0:
        raise UserError(f"long_conv: kernel should have shape ({dim}, K) with K > 0, but has {tuple(kernel.shape)}")
    if skip is not None:
        if skip.shape != (dim,):
            raise UserError(f"long_conv: skip should have shape {(dim,)}, but has {tuple(skip.shape)}")
        kernel = torch.cat([kernel[:, :1] + skip[:, None], kernel[:, 1:]], dim=1)
    y: Tensor = OP.choose(backend, x.device)(x, kernel[:, :length])
    return y
