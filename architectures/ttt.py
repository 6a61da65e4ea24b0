"""TTT: a recurrence whose state is a linear map or an MLP, which takes a gradient step at each position."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._delta_mixer import without_weight_decay
from architectures._test_time import Memory, Network, Rates, gelu, learn
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv

State = tuple[Tensor, Memory, int]
"""The last d_conv - 1 inputs of the convolutions (B, d_conv - 1, 2 D), the network f, and the number of positions so far."""


class TTT(mixer.Mixer):
    """TTT-Linear and TTT-MLP, in the backbone after Mamba. Sun et al. 2024, sections 2.3 to 2.7.

        q, k    = conv_q(shared(x)), conv_k(shared(x))        causal and depthwise, with bias
        v       = value(x)
        eta     = eta_base sigmoid(rate(x)) / K               one for each head; eta_base is 1, and 0.1 of the MLP
        l(W; t) = 1/2 |f(k_t; W) - v_t|^2
        W_t     = W_{t-1} - eta_t grad l(W_{t'}; t)           t' is the end of the mini-batch before t
        z_t     = f(q_t; W_t)
        y_t     = out(GELU(gate(x_t)) LN(z_t))
        f(x; W) = x + LN(W x + b), or x + LN(W2 GELU(W1 x + b1) + b2) with 4 K hidden channels

    W_0 is learned, and so is the LN of f, which each head has. With inner_norm=false f is W x + b alone: in mini-batches of one
    position this is the delta rule on keys (k, 1). The authors' code also turns q and k by rotary positions within a
    mini-batch, and takes of its step i a share that begins at 1/i: both are left out, as the equations have neither.
    """

    class Options(mixer.Options):
        """The options of TTT."""

        inner: Literal["linear", "mlp"] = Field(default="linear", description="the network that is the state")
        mini_batch: int = Field(default=16, ge=1, description="positions whose gradients are taken at the same weights")
        d_conv: int = Field(default=4, ge=1, description="width of the convolutions of queries and keys")
        inner_norm: bool = Field(default=True, description="whether that network has a norm and a residual")

        @property
        def layers(self) -> tuple[tuple[int, int], ...]:
            """Shapes of a head's matrices, the bias among their rows."""
            width = self.d_model // self.n_heads
            hidden = () if self.inner == "linear" else (4 * width,)
            return tuple((before + 1, after) for before, after in zip((width, *hidden), (*hidden, width), strict=True))

    family = "delta rule"
    paper = mixer.Paper(
        "Learning to (Learn at Test Time): RNNs with Expressive Hidden States", "Sun et al.", 2024, arxiv="2407.04620"
    )
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        self.n_heads, self.width = n_heads, head_width(d_model, n_heads)
        self.shared, self.value, self.gate, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.conv = ShortConv(2 * d_model, options.d_conv, bias=True)
        self.rate = nn.Linear(d_model, n_heads)
        starts = (
            torch.cat([0.02 * torch.randn(n_heads, i - 1, o), torch.zeros(n_heads, 1, o)], 1) for i, o in options.layers
        )
        self.start = nn.ParameterList(without_weight_decay(start) for start in starts)
        if options.inner_norm:
            self.inner_weight = without_weight_decay(torch.ones(n_heads, 1, self.width))
            self.inner_bias = without_weight_decay(torch.zeros(n_heads, 1, self.width))
        self.norm = nn.LayerNorm(d_model, eps=1e-6)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: the learned W_0."""
        now = tuple(W.to(device, dtype).expand(batch, -1, -1, -1) for W in self.start)
        return (
            self.conv.init_window(batch, device, dtype),
            Memory(now if self.options.mini_batch > 1 else (), now, ()),
            0,
        )

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, memory, seen = state
        options = self.options
        qk, window = self.conv(self.shared(x).repeat(1, 1, 2), window)
        q, k, v = (full(split_heads(part, self.n_heads)) for part in (*qk.chunk(2, -1), self.value(x)))
        size = (1.0 if options.inner == "linear" else 0.1) / self.width
        eta = size * split_heads(full(self.rate(x)).sigmoid(), self.n_heads)
        norm = (self.inner_weight, self.inner_bias) if options.inner_norm else None
        with torch.autocast(x.device.type, enabled=False):
            network = Network(gelu, True, norm)
            z, memory = learn(network, options.mini_batch, seen, q, k, v, Rates(eta), memory)
        y: Tensor = self.out(F.gelu(self.gate(x), approximate="tanh") * self.norm(join_heads(z)))
        return y, (window, memory, seen + x.shape[1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """The window, W_t, and W_{t'} in longer mini-batches than one position. The number of positions is not counted."""
        numbers = options.n_heads * sum(i * o for i, o in options.layers)
        return 4 * ((1 + (options.mini_batch > 1)) * numbers + (options.d_conv - 1) * 2 * options.d_model)
