"""Titans: a memory that is a network, which learns at each position with momentum and forgets."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._attention import Cache, empty_cache
from architectures._delta_mixer import unit, without_weight_decay
from architectures._test_time import Memory, Network, Rates, learn, silu
from architectures.transformer import Transformer
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv

State = tuple[Tensor, Memory, Cache, int]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, 3 D), M and S, what the attention keeps, and the number of
positions so far, persistent ones included."""


class Titans(mixer.Mixer):
    """The neural memory of Titans, and with a window Titans with memory as a layer. Behrouz et al. 2024, sections 3 and 4.

        q, k, v = SiLU(conv(query(x))), SiLU(conv(key(x))), SiLU(conv(value(x)))    q and k of length 1 in each head
        alpha, eta = sigmoid(forget(x)), sigmoid(momentum(x))      one for each head, as theta
        theta      = sigmoid(step(x)) (1 - eta) / mini_batch
        S_t = eta_t S_{t-1} - theta_t grad 1/2 |M(k_t) - v_t|^2    of M_{t'}, at the end of the mini-batch before t
        M_t = (1 - alpha_t) M_{t-1} + S_t
        z_t = M_t(q_t)
        y_t = out(norm(z_t) SiLU(gate(x_t)))                       an RMS norm of each head

    M is an MLP with `depth` layers of K channels, SiLU between them and no biases; M_0 is learned. With one layer and without
    momentum this is a gated delta rule. Memory as a layer (MAL): the memory reads `persistent` learned vectors before the first
    position, and softmax attention with rotary positions reads the last `window` of all y. The paper gives no formulas for
    alpha, eta and theta, no width of M and no starting values. Here alpha begins at 0.018 and eta at 0.5. The last layer begins
    near zero, so that what was written is read; those before it keep a length of 1. theta is divided, as else equal keys in a
    mini-batch, or momentum, step too far and training diverges. Memory as a context and as a gate are left out.
    """

    class Options(mixer.Options):
        """The options of Titans."""

        depth: int = Field(default=2, ge=1, description="layers of the memory")
        mini_batch: int = Field(default=16, ge=1, description="positions whose gradients are taken at the same weights")
        momentum: bool = Field(default=True, description="whether steps have momentum")
        forget: bool = Field(default=True, description="whether the memory decays")
        d_conv: int = Field(default=4, ge=1, description="width of the convolution of queries, keys and values")
        window: int = Field(default=0, ge=0, description="positions of the attention after it; 0 for the memory alone")
        persistent: int = Field(default=0, ge=0, description="learned vectors before the first position")

        @model_validator(mode="after")
        def _persistent_for_attention(self) -> Self:
            if self.persistent and not self.window:
                raise ValueError("persistent vectors are those of memory as a layer: give window=64 too")
            return self

    family = "delta rule"
    paper = mixer.Paper("Titans: Learning to Memorize at Test Time", "Behrouz et al.", 2024, arxiv="2501.00663")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        self.n_heads, self.width = n_heads, head_width(d_model, n_heads, rotary=bool(options.window))
        self.query, self.key, self.value, self.gate, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(5)
        )
        self.conv = ShortConv(3 * d_model, options.d_conv)
        self.step_size = nn.Linear(d_model, n_heads)
        self.momentum = nn.Linear(d_model, n_heads) if options.momentum else None
        self.forget = nn.Linear(d_model, n_heads) if options.forget else None
        for rate, start in ((self.step_size, 0.0), (self.momentum, 0.0), (self.forget, -4.0)):
            if rate is not None:
                nn.init.constant_(rate.bias, start)
        self.start = nn.ParameterList(
            without_weight_decay(torch.randn(n_heads, self.width, self.width) * std)
            for std in (*[2 * self.width**-0.5] * (options.depth - 1), 0.02)
        )
        self.norm = nn.RMSNorm(self.width, eps=1e-5)
        self.attention: Transformer | None = None
        if options.window:
            of_it = Transformer.Options(d_model=d_model, n_heads=n_heads, positions="rotary", window=options.window)
            self.attention = Transformer(of_it)
        self.persistent = nn.Parameter(torch.randn(options.persistent, d_model)) if options.persistent else None

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position, after the persistent vectors. With a window it fills with the stream."""
        now = tuple(M.to(device, dtype).expand(batch, -1, -1, -1) for M in self.start)
        S = tuple(torch.zeros_like(M) for M in now) if self.options.momentum else ()
        cache = empty_cache(batch, self.n_heads, (self.width, self.width), device, dtype)
        memory = Memory(now if self.options.mini_batch > 1 else (), now, S)
        state = (self.conv.init_window(batch, device, dtype), memory, cache, 0)
        if self.persistent is not None:
            _, state = self.advance(self.persistent.to(device, dtype).expand(batch, -1, -1), state)
        return state

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, memory, cache, seen = state
        mixed = torch.cat([linear(x) for linear in (self.query, self.key, self.value)], dim=-1)
        mixed, window = self.conv(mixed, window)
        q, k, v = (full(split_heads(part, self.n_heads)) for part in F.silu(mixed).chunk(3, dim=-1))
        theta = full(self.step_size(x)).sigmoid().mT[..., None] / self.options.mini_batch
        kept = None if self.forget is None else F.logsigmoid(-full(self.forget(x))).mT
        eta = None
        if self.momentum is not None:
            mean = full(self.momentum(x)).mT
            eta, theta = F.logsigmoid(mean), theta * (-mean).sigmoid()[..., None]
        with torch.autocast(x.device.type, enabled=False):
            network, rates = Network(silu, False, None), Rates(theta, kept, eta)
            z, memory = learn(network, self.options.mini_batch, seen, unit(q), unit(k), v, rates, memory)
        y: Tensor = self.out(join_heads(self.norm(z)) * F.silu(self.gate(x)))
        if self.attention is not None:
            y, (cache, *_) = self.attention.advance(y, (cache, [], seen))
        return y, (window, memory, cache, seen + x.shape[1])

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """M_t, M_{t'} in longer mini-batches than one position, S_t, and both windows. The number of positions is not counted."""
        copies = 1 + (options.mini_batch > 1) + options.momentum
        memory = copies * options.depth * options.d_model**2 // options.n_heads
        return 4 * (memory + (3 * (options.d_conv - 1) + 2 * max(0, options.window - 1)) * options.d_model)
