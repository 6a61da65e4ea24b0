"""Log-linear attention: a linear recurrence that keeps a state for each scale of the past, so that its state grows as log L."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from architectures._delta_mixer import without_weight_decay
from architectures.gated_deltanet import GatedDeltaNet
from architectures.mamba2 import Mamba2
from regbench.models import mixer
from regbench.models.heads import full, split_heads
from regbench.ops.delta_rule import delta_rule
from regbench.ops.linear_attention import linear_attention

State = tuple[Tensor, Tensor, int]
"""The window of the convolution, the states of the buckets (n, B, H, K, V), and the number of positions so far, t."""

CHUNK = 32
"""Positions whose levels are one matrix of weights: a power of two."""

OF_BASE = {"mamba2": ("d_state", "expand"), "gated_deltanet": ("expand_k", "expand_v", "negative_eigenvalues")}
"""Options that belong to one base alone."""


class LogLinearAttention(mixer.Mixer):
    """Log-linear Mamba-2 or log-linear Gated DeltaNet. Guo et al. 2025, sections 3.1 to 3.4.

    The positions before t are cut into buckets by the binary digits of t (a Fenwick tree): the first bucket has as many as the
    highest digit says, and so on down. The position itself is level 0, and the bucket of 2^(l-1) positions is level l.

        lambda_t = softplus(scale * level(x_t))         one for each head and level
        S_t^l    = the base's state, from the positions of bucket l alone
        y_t      = the sum over l of lambda_t^l q_t S_t^l

    All else is the base's: see `Mamba2` and `GatedDeltaNet`. Buckets of 2^(levels-2) positions and more share the last level,
    so with one level this is the base, its output times lambda. To write a position, the buckets of all trailing ones of t become
    one. The parallel form is as many calls of the base's op as there are levels above a chunk: for each, sequences are cut into
    pieces of two buckets, of which the first writes and the second reads. They are computed again for the backward pass, so that
    memory grows as L. `scale` begins at 1. The authors do not divide q by sqrt(K) on Gated DeltaNet; a norm follows.
    """

    class Options(Mamba2.Options, GatedDeltaNet.Options):
        """The options of both bases."""

        n_heads: int = Field(default=4, ge=1, description="heads of each mixer")
        base: Literal["mamba2", "gated_deltanet"] = Field(
            default="mamba2", description="the recurrence that has several states"
        )
        levels: int = Field(default=12, ge=1, le=32, description="levels with a weight of their own")

        @model_validator(mode="after")
        def _of_this_base(self) -> Self:
            for base, names in OF_BASE.items():
                for name in names:
                    if base != self.base and getattr(self, name) != type(self).model_fields[name].default:
                        raise ValueError(f"{name} is an option of base={base}, and this is {self.base}")
            return self

    family = "linear attention"
    paper = mixer.Paper("Log-Linear Attention", "Guo et al.", 2025, arxiv="2506.04761")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.n_heads = options.n_heads
        self.base: Any = (Mamba2 if options.base == "mamba2" else GatedDeltaNet)(options)
        self.op: Callable[..., Any] = linear_attention if options.base == "mamba2" else delta_rule
        self.level = nn.Linear(options.d_model, options.n_heads * options.levels, bias=False)
        self.scale = without_weight_decay(torch.ones(options.n_heads * options.levels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        window, S = self.base.init_state(x.shape[0], x.device, x.dtype)
        y: Tensor = self.base.advance(x, (window, S), partial(log_linear, self.op, self._weights(x)))[0]
        return y

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position. It grows as the logarithm of the stream."""
        window, S = self.base.init_state(batch, device, dtype)
        return window, S.new_zeros(0, *S.shape), 0

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, position by position, and the state after it."""
        window, S, t = state
        y, (window, S) = self.base.advance(x, (window, S), partial(stream, self.op, self._weights(x), t))
        return y, (window, S, t + x.shape[1])

    def _weights(self, x: Tensor) -> Tensor:
        """Lambda, (B, L, D) -> (B, H, L, levels)."""
        return split_heads(F.softplus(self.scale * full(self.level(x))), self.n_heads)


def log_linear(
    op: Callable[..., Any], weights: Tensor, q: Tensor, k: Tensor, v: Tensor, *given: Any
) -> tuple[Any, Any]:
    """The parallel form.

    Args:
        op: the base's.
        weights: lambda, (B, H, L, levels).
        q: (B, H, L, K).
        k: (B, H, L, K).
        v: (B, H, L, V).
        given: the further arguments of `op`, (B, H, L) each, and last the state.

    Returns:
        z (B, H, L, V), and the state as it was.
    """
    *gates, S = given
    length, last = q.shape[2], weights.shape[-1] - 1
    z = _recomputed(_inside, op, weights, q, k, v, *gates)
    half = CHUNK
    while half < length:
        level = min(half.bit_length(), last)
        z = z + _recomputed(_across, op, 2 * half, weights[..., level, None], q, k, v, *gates)
        half *= 2
    return z, S


def stream(
    op: Callable[..., Any], weights: Tensor, start: int, q: Tensor, k: Tensor, v: Tensor, *given: Any
) -> tuple[Tensor, Tensor]:
    """The recurrent form, from position `start` on.

    Args:
        op: as in `log_linear`, and so `weights`, q, k and v.
        weights: see op.
        start: t.
        q: see op.
        k: see op.
        v: see op.
        given: the further arguments of `op`, and last the states of the buckets (n, B, H, K, V), by the digit of t, lowest first.

    Returns:
        z (B, H, L, V), and the states after it.
    """
    *gates, S = given
    outputs = []
    for i, t in enumerate(range(start, start + q.shape[2])):
        # The new position is a bucket that alone is written. What is empty stays so.
        slots = len(S) + 1
        now = [part[:, :, i : i + 1] for part in (q, k, v, *gates, weights)]
        *rest, weight = (part.expand(slots, *part.shape) for part in now)
        q_t, k_t, v_t, *gates_t = (part.flatten(0, 1) for part in rest)
        own = torch.arange(len(q_t), device=q.device)[:, None, None, None] < len(q)
        S = torch.cat([S.new_zeros(1, *S.shape[1:]), S])
        z, S = op(q_t, k_t, v_t * own, *gates_t, S.flatten(0, 1))
        z, S = z.unflatten(0, (slots, -1)), S.unflatten(0, (slots, -1))
        levels = torch.arange(slots, device=q.device).clamp(max=weight.shape[-1] - 1)
        weight = weight[0].movedim(-1, 0)[levels][..., None]
        outputs.append((weight * z).sum(0))
        ones = (~t & (t + 1)).bit_length() - 1
        S = torch.cat([torch.zeros_like(S[:ones]), S[: ones + 1].sum(0, keepdim=True), S[ones + 2 :]])
    return torch.cat(outputs, 2), S


def _recomputed(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """Its value, computed again for the backward pass, by the implementations that are chosen now."""
    run = copy_context().run
    z: Tensor = checkpoint(run, function, *given, use_reentrant=False, preserve_rng_state=False)
    return z


def _inside(op: Callable[..., Any], weights: Tensor, *inputs: Tensor) -> Tensor:
    """What positions read of their own chunk: one matrix of the weight of each value, times lambda of its level."""
    batch, size, length = len(weights), min(CHUNK, weights.shape[2]), weights.shape[2]
    weights, q, k, v, *gates = (_pieces(part, size) for part in (weights, *inputs))
    i = torch.arange(size, device=q.device)
    # Levels by the highest digit in which two positions differ.
    differ = i[:, None] ^ i
    levels = sum((differ >= 2**n).long() for n in range(size.bit_length())).clamp(max=weights.shape[-1] - 1)
    one_hot = torch.eye(size, dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
    held, _ = op(q, k, one_hot, *gates)
    held = held * weights.gather(-1, levels.expand(held.shape))
    return _joined(held.to(v.dtype) @ v, batch, length)


def _across(op: Callable[..., Any], size: int, weight: Tensor, *inputs: Tensor) -> Tensor:
    """What the second half of each piece of `size` positions reads of the first half."""
    batch, length, half = len(weight), weight.shape[2], size // 2
    q, k, v, *gates = (_pieces(part, min(size, length)) for part in inputs)
    second = (torch.arange(q.shape[2], device=q.device) >= half)[:, None]
    z, _ = op(q, k, v.masked_fill(second, 0.0), *gates)
    return weight * _joined(z.masked_fill(~second, 0.0), batch, length)


def _pieces(x: Tensor, size: int) -> Tensor:
    """(B, H, L, *) -> (B N, H, size, *): zeros fill the last piece."""
    count = -(-x.shape[2] // size)
    x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, count * size - x.shape[2]))
    return x.unflatten(2, (count, size)).transpose(1, 2).flatten(0, 1)


def _joined(x: Tensor, batch: int, length: int) -> Tensor:
    """(B N, H, size, V) -> (B, H, L, V)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :length]
