"""What the architectures of the delta rule share: projections, short convolutions, norms and the streamed state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv
from regbench.ops.delta_rule import WIDEST, delta_rule
from regbench.utils.errors import UserError

State = tuple[Tensor, Tensor]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, channels), and S (B, H, K, V)."""

GAIN = 2**-2.5
"""Of the Xavier starting weights of every projection; flash-linear-attention had it for three of these until 2025."""

EPSILON = 1e-6


class DeltaMixer(mixer.Mixer):
    """A layer of heads that correct their state by the delta rule. Its architectures differ in decay, gate and steps.

        q, k, v = SiLU(conv(query(x))), SiLU(conv(key(x))), SiLU(conv(value(x)))    conv is causal and depthwise
        q, k    = q / |q| / sqrt(d_k / n_heads), k / |k|
        beta    = sigmoid(beta(x)), times 2 with negative eigenvalues
        S_t     = S' + beta_t k_t^T (v_t - k_t S'), where S' = exp(g_t) S_{t-1}     the op `delta_rule`
        y_t     = out(gate(norm(q_t S_t)))                                          an RMS norm of each head

    d_k = expand_k * D and d_v = expand_v * D. There are no positions: the convolution and the state tell order.
    """

    class Options(mixer.Options):
        """The options that all of them have."""

        expand_k: float = Field(default=1.0, gt=0, description="width of queries and keys, in units of d_model")
        expand_v: float = Field(default=1.0, gt=0, description="width of the values, in units of d_model")
        d_conv: int = Field(default=4, ge=1, description="width of the convolution of queries, keys and values")
        negative_eigenvalues: bool = Field(
            default=False, description="whether beta is up to 2, so that a step can turn a direction of the state round"
        )

        @property
        def d_k(self) -> int:
            """Width of queries and keys."""
            return round(self.expand_k * self.d_model)

        @property
        def d_v(self) -> int:
            """Width of the values."""
            return round(self.expand_v * self.d_model)

        @property
        def steps(self) -> int:
            """How many delta steps a token makes."""
            return 1

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads, steps = options.d_model, options.n_heads, options.steps
        for name, width in (("expand_k", options.d_k), ("expand_v", options.d_v)):
            head_width(width, n_heads, of=f"{name} * d_model")
        if options.d_k // n_heads > WIDEST:
            raise UserError(f"a head's keys have width {options.d_k // n_heads}, above {WIDEST}, the largest")
        self.n_heads, self.steps = n_heads, steps
        self.sizes = (options.d_k, steps * options.d_k, steps * options.d_v)
        self.query, self.key, self.value = (nn.Linear(d_model, size, bias=False) for size in self.sizes)
        self.conv = ShortConv(sum(self.sizes), options.d_conv)
        self.beta = nn.Linear(d_model, steps * n_heads, bias=False)
        self.norm = nn.RMSNorm(options.d_v // n_heads, eps=1e-5)
        self.out = nn.Linear(options.d_v, d_model, bias=False)
        start_small(self.query, self.key, self.value, self.beta, self.out)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        options: Any = self.options
        width, dim = options.d_k // self.n_heads, options.d_v // self.n_heads
        S = torch.zeros(batch, self.n_heads, width, dim, device=device, dtype=dtype)
        return self.conv.init_window(batch, device, dtype), S

    def log_decay(self, x: Tensor) -> Tensor | None:
        """g, the log decay of a position: (B, L, D) -> (B, H, L) or (B, H, L, K), or None for no decay."""
        return None

    def gate(self, x: Tensor, z: Tensor) -> Tensor:
        """The normalised output of the heads, (B, L, d_v), after the gate."""
        return z

    def advance(self, x: Tensor, state: Any, op: Callable[..., Any] = delta_rule) -> tuple[Tensor, Any]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it. `op` is the recurrence."""
        window, S = state
        mixed = torch.cat([linear(x) for linear in (self.query, self.key, self.value)], dim=-1)
        mixed, window = self.conv(mixed, window)
        q, k, v = (split_heads(part, self.n_heads) for part in F.silu(mixed).split(self.sizes, dim=-1))
        k, v = (self._steps_in_time(part) for part in (k, v))
        beta = self._steps_in_time(split_heads(full(self.beta(x)).sigmoid(), self.n_heads))
        if self.options.negative_eigenvalues:
            beta = 2 * beta
        z, S = self._recur(unit(q) * q.shape[-1] ** -0.5, unit(k), v, beta.squeeze(-1), self.log_decay(x), S, op)
        z = join_heads(self.norm(full(z)))
        y: Tensor = self.out(self.gate(x, z))
        return y, (window, S)

    def _recur(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        log_decay: Tensor | None,
        S: Any,
        op: Callable[..., Any] = delta_rule,
    ) -> tuple[Tensor, Any]:
        """The output z (B, H, L, V), and the state after it. Of a token's steps the first decays, and the last is read."""
        if self.steps > 1:
            first, last = (0, self.steps - 1), (self.steps - 1, 0)
            q = F.pad(q.unsqueeze(3), (0, 0, *last)).flatten(2, 3)
            log_decay = None if log_decay is None else F.pad(log_decay.unsqueeze(3), first).flatten(2, 3)
        z, S = op(q, k, v, beta, log_decay, S)
        return z[:, :, self.steps - 1 :: self.steps], S

    def _steps_in_time(self, x: Tensor) -> Tensor:
        """(B, H, L, steps * K) -> (B, H, L * steps, K)."""
        return x if self.steps == 1 else x.unflatten(-1, (self.steps, -1)).flatten(2, 3)

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """S and the window."""
        channels = options.d_k + options.steps * (options.d_k + options.d_v)
        return 4 * (options.d_k * options.d_v // options.n_heads + (options.d_conv - 1) * channels)


def unit(x: Tensor) -> Tensor:
    """Vectors (..., K) of length 1. Those near zero stay near zero, so that their gradient stays finite."""
    x = full(x)
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def start_small(*linears: nn.Linear) -> None:
    """Gives these maps small starting values: Xavier's with `GAIN`, and biases of zero."""
    for linear in linears:
        nn.init.xavier_uniform_(linear.weight, gain=GAIN)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def rates(count: int, low: float) -> nn.Parameter:
    """The logarithms of rates drawn from U(low, 16), (count,), without weight decay."""
    return without_weight_decay(torch.empty(count).uniform_(low, 16).clamp(min=1e-4).log())


def step_bias(count: int) -> nn.Parameter:
    """The bias by which softplus begins between 0.001 and 0.1, uniform in the logarithm, (count,), without weight decay."""
    step = torch.empty(count).uniform_(math.log(1e-3), math.log(1e-1)).exp()
    return without_weight_decay(step + torch.log(-torch.expm1(-step)))


def without_weight_decay(start: Tensor) -> nn.Parameter:
    """A parameter on which weight decay does not act."""
    parameter = nn.Parameter(start)
    mixer.no_weight_decay(parameter)
    return parameter
