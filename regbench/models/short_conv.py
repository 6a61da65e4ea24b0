"""The short convolution: every channel mixes its last few positions, causally."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def short_conv(window: Tensor, conv: nn.Conv1d) -> Tensor:
    """Convolves every channel with the filter that `conv` has for it.

    The input is seen as an image of height 1. Then (B, L, D) is a channels-last tensor, which PyTorch convolves without a copy.
    On a CPU this is twice as fast as `conv1d`, or as a sum of shifted products.

    Args:
        window: (B, K - 1 + L, D), the inputs, with the last K - 1 inputs before them.
        conv: a depthwise convolution of D channels and width K; its weights alone are used.

    Returns:
        (B, L, D).
    """
    image, weight = window.mT.unsqueeze(2), conv.weight.unsqueeze(2)
    return F.conv2d(image, weight, conv.bias, groups=weight.shape[0]).squeeze(2).mT


class ShortConv(nn.Module):
    """A causal, depthwise convolution over time, with PyTorch's starting values.

    y_t = sum over i < width of w_i x_{t-i}, for each channel, and a bias where asked.
    """

    def __init__(self, channels: int, width: int, bias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, bias=bias)

    def forward(self, x: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """The convolution of L positions that follow on a window.

        Args:
            x: (B, L, D).
            window: (B, width - 1, D), the inputs before it.

        Returns:
            y (B, L, D), and the window after it.
        """
        window = torch.cat([window.to(x.dtype), x], dim=1)
        return short_conv(window, self.conv), window[:, x.shape[1] :]

    def init_window(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The window before the first position: zeros (B, width - 1, D)."""
        channels, _, width = self.conv.weight.shape
        return torch.zeros(batch, width - 1, channels, device=device, dtype=dtype)
