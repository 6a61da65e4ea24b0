"""The long convolution: each channel of a sequence, convolved causally with a filter as long as the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op, check_shapes

OP = Op(
    "long_conv",
    {
        "fft": Implementation("regbench.ops.long_conv.fft:long_conv", ("cpu", "cuda")),
        "naive": Implementation("regbench.ops.long_conv.naive:long_conv", ("cpu", "cuda")),
    },
)


def long_conv(x: Tensor, kernel: Tensor, skip: Tensor | None = None, backend: str = "auto") -> Tensor:
    """Long convolution: y_t = skip x_t + sum over s <= t of kernel_{t-s} x_s, for each channel.

    Gu et al. (2022), arXiv 2111.00396, section 2.4; ICLL Eq. 77-78, where the kernel is K-bar. A Fourier transform mixes all
    positions: the rounding of an output, and NaN, can come from later inputs. Nothing else can.

    Args:
        x: (B, L, D), the input.
        kernel: (D, K), the filter of each channel, lag 0 first. Lags from K on are zero. Lags from L on are not used.
        skip: (D,), added to the filter at lag 0; None for none.
        backend: "auto" or an implementation of this op.

    Returns:
        y (B, L, D), in the type of x.
    """
    check_shapes("long_conv", [("x", x, "(B, L, D)")])
    _, length, dim = x.shape
    check_shapes("long_conv", [("kernel", kernel, "(D, K)"), ("kernel", kernel, (dim, max(1, kernel.shape[-1])))])
    if skip is not None:
        check_shapes("long_conv", [("skip", skip, (dim,))])
        kernel = torch.cat([kernel[:, :1] + skip[:, None], kernel[:, 1:]], dim=1)
    y: Tensor = OP.choose(backend, x.device)(x, kernel[:, :length])
    return y
