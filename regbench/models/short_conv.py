"""The short convolution: every channel mixes its last few positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConv(nn.Module):
    """A causal, depthwise convolution over time, with PyTorch's starting values.

    y_t = sum over i < width of w_i x_{t-i}, for each channel, and a bias where asked.
    """

    def __init__(self, channels: int, width: int, bias: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, bias=bias)

    def forward(self, x: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """The convolution of L positions that follow on a window.

        Seen as an image of height 1, (B, L, D) is a channels-last tensor, which PyTorch convolves as it lies: twice as fast
        on a CPU as `conv1d`.

        Args:
            x: (B, L, D).
            window: (B, width - 1, D), the inputs before it.

        Returns:
            y (B, L, D), and the window after it.
        """
        window = torch.cat([window.to(x.dtype), x], dim=1)
        weight = self.conv.weight.unsqueeze(2)
        y = F.conv2d(window.mT.unsqueeze(2), weight, self.conv.bias, groups=weight.shape[0])
        return y.squeeze(2).mT, window[:, x.shape[1] :]

    def init_window(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The window before the first position: zeros (B, width - 1, D)."""
        channels, _, width = self.conv.weight.shape
        return torch.zeros(batch, width - 1, channels, device=device, dtype=dtype)
