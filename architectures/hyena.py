"""Hyena: long convolutions with filters from a small network, and gates between them."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.short_conv import short_conv
from regbench.ops.long_conv import long_conv

SHORT = 3
"""Width of the short convolution."""

FILTER_GAIN = 0.1
"""Factor on the initial weights of the last map to the filters. With 1 the filters are much larger than the skip connection: the
validation loss after a third of the budget of pfa-small-v1 is then 1.451 nats instead of 1.424 (seed 0)."""

State = tuple[Tensor, Tensor, Tensor]
"""The last SHORT - 1 inputs of the short convolution (B, SHORT - 1, (N + 1) D), all inputs of each long convolution so far
(N, B, t, D), and the filters so far (N, D, t)."""


class Sine(nn.Module):
    """sin(w x), with a learned frequency w for each channel. With high frequencies the filters are not smooth."""

    def __init__(self, width: int, frequency: float) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.full((width,), frequency))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return torch.sin(self.frequency * x)


class ImplicitFilter(nn.Module):
    """The filters h_t = Window(t) FFN(PositionalEncoding(t)). Poli et al. 2023, section 3.3; l_i in ICLL Eq. 90.

    Time is t = position / max_length for sequences of every length. So a prefix is convolved with a prefix of the same filter.
    The encoding has t and the first cosines and sines of period 1. The window exp(-alpha t) has a rate for each channel. The
    slowest reaches 0.01 at t = 1.5, the fastest at t = 0.3.
    """

    encoding: Tensor
    decay: Tensor

    def __init__(self, filters: int, channels: int, options: Hyena.Options) -> None:
        """Makes `filters` filters for each of `channels` channels."""
        super().__init__()
        self.shape, self.max_length = (filters, channels), options.max_length
        width = options.d_filter
        layers: list[nn.Module] = [nn.Linear(1 + 2 * options.bands, width), Sine(width, options.frequency)]
        for _ in range(options.n_inner):
            layers += [nn.Linear(width, width), Sine(width, options.frequency)]
        last = nn.Linear(width, filters * channels, bias=False)
        with torch.no_grad():
            last.weight *= FILTER_GAIN
        self.network = nn.Sequential(*layers, last)
        # The authors' smallest frequency is slightly above 0. At 0 its sine would be 0 everywhere.
        encoding = 2 * math.pi * torch.linspace(1e-4, max(options.bands - 1, 1e-4), options.bands)
        self.register_buffer("encoding", encoding, persistent=False)
        decay = -math.log(0.01) * torch.linspace(1 / 1.5, 1 / 0.3, channels)
        self.register_buffer("decay", decay, persistent=False)
        mixer.no_weight_decay(*self.network.parameters())

    def forward(self, start: int, stop: int) -> Tensor:
        """The filters at lags from `start` to `stop`: (filters, channels, stop - start)."""
        t = torch.arange(start, stop, device=self.decay.device).to(self.decay.dtype)[:, None] / self.max_length
        angle = t * self.encoding
        with torch.autocast(t.device.type, enabled=False):  # half precision would give filters of other frequencies
            h: Tensor = self.network(torch.cat([t, angle.cos(), -angle.sin()], dim=1)).unflatten(1, self.shape)
        return (h * torch.exp(-t * self.decay)[:, None]).permute(1, 2, 0)


class Hyena(mixer.Mixer):
    """The Hyena recurrence of order N: N long convolutions, each followed by a gate. ICLL Eq. 88-91.

        v^0, ..., v^N = short(in_proj(x))        v^n = W_n x (ICLL Eq. 88), and a short convolution of width 3
        l^n           = filter(n)                l^n_i = FFN(i) (ICLL Eq. 90)
        z^0           = v^0                      (ICLL Eq. 89)
        z^n           = v^n (l^n * z^{n-1})      with a skip connection across the convolution (ICLL Eq. 90)
        y             = out_proj(z^N)            (ICLL Eq. 91, where there is no map)

    v^n gates the n-th convolution, as in Definition 3.1 of the Hyena paper, where it is x^n. In ICLL Eq. 90 its index is one
    lower. The authors' released code leaves the first long convolution out. Here it is kept, as in both papers.

    There is no recurrent form with a bounded state. `step` keeps all inputs of each convolution, and its work grows with the
    position. Positions from `max_length` on are allowed. The filters continue there, and are small.
    """

    class Options(mixer.Options):
        """The options of Hyena."""

        order: int = Field(default=2, ge=1, description="number of long convolutions, N")
        max_length: int = Field(default=1024, ge=1, description="positions to which the filters' time scale belongs")
        d_filter: int = Field(default=64, ge=1, description="width of the network that writes the filters")
        n_inner: int = Field(default=2, ge=0, le=64, description="its hidden layers after the first")
        bands: int = Field(default=16, ge=1, description="cosines, and sines, that encode a position beside its time")
        frequency: float = Field(default=1.0, gt=0, description="frequency of its sines at the start")

        @property
        def d_gates(self) -> int:
            """Channels of v^0, ..., v^N together."""
            return (self.order + 1) * self.d_model

    family = "convolution"
    paper = mixer.Paper(
        "Hyena Hierarchy: Towards Larger Convolutional Language Models", "Poli et al.", 2023, arxiv="2302.10866"
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.order = options.order
        self.in_proj = nn.Linear(options.d_model, options.d_gates)
        self.short = nn.Conv1d(options.d_gates, options.d_gates, SHORT, groups=options.d_gates)
        self.filter = ImplicitFilter(options.order, options.d_model, options)
        self.skip = nn.Parameter(torch.randn(options.order, options.d_model))
        self.out_proj = nn.Linear(options.d_model, options.d_model)
        mixer.no_weight_decay(self.skip)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        z, *gates = self._short(F.pad(self.in_proj(x), (0, 0, SHORT - 1, 0)))
        for gate, kernel, skip in zip(gates, self.filter(0, x.shape[1]), self.skip, strict=True):
            z = gate * long_conv(z, kernel, skip)
        y: Tensor = self.out_proj(z)
        return y

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. It grows with the stream."""
        width = self.skip.shape[1]
        window = torch.zeros(batch, SHORT - 1, self.in_proj.out_features, device=device, dtype=dtype)
        return window, window.new_zeros(self.order, batch, 0, width), window.new_zeros(self.order, width, 0)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position: (B, D) and the state before it -> (B, D) and the state after it."""
        window, past, kernels = state
        window = torch.cat([window, self.in_proj(x)[:, None]], dim=1)
        kernels = torch.cat([kernels, self.filter(past.shape[2], past.shape[2] + 1)], dim=2)
        z, *gates = (part[:, 0] for part in self._short(window))
        inputs = []
        for gate, kernel, skip, before in zip(gates, kernels, self.skip, past, strict=True):
            inputs.append(torch.cat([before, z[:, None]], dim=1))
            z = gate * (torch.einsum("btd,dt->bd", inputs[-1], kernel.flip(1)) + skip * z)
        return self.out_proj(z), (window[:, 1:], torch.stack(inputs), kernels)

    def _short(self, window: Tensor) -> tuple[Tensor, ...]:
        """The short convolution: (B, SHORT - 1 + L, (N + 1) D) -> v^0, ..., v^N, (B, L, D) each."""
        return short_conv(window, self.short).chunk(self.order + 1, dim=-1)
