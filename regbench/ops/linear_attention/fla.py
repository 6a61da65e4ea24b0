"""Linear attention by the Triton kernels of flash-linear-attention, whose products of float32 are rounded to TF32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type

WIDTH = 16
"""Keys and values are filled up with zeros to a multiple of this: narrower tiles do not compile, and in 16 bits the backward pass
wants even widths. What is filled up adds nothing to any product."""


def linear_attention_fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`; not for float64. The state is float32."""
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    if v.numel() == 0:
        zeros = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float32)
        return torch.empty_like(v), zeros if initial_state is None else initial_state
    dtype = common_type(q, k, v)
    keys, values = q.shape[3], v.shape[3]
    given: dict[str, Any] = {
        name: _filled(x.to(dtype).transpose(1, 2), -1) for name, x in (("q", q), ("k", k), ("v", v))
    }
    if initial_state is not None:
        given["initial_state"] = _filled(_filled(initial_state.float(), -1), -2)
    if log_decay is None:
        kernel = chunk_simple_gla
    elif log_decay.dim() == 1:
        # Not as `g_gamma`, through which no gradient flows.
        kernel, given["g"] = chunk_simple_gla, log_decay.float().expand(given["q"].shape[:3]).contiguous()
    else:
        kernel, given["g"] = chunk_gla, _filled(log_decay.float().transpose(1, 2), -1)
    z, state = kernel(**given, scale=1.0, output_final_state=True)
    return z[..., :values].transpose(1, 2).to(v.dtype), state[..., :keys, :values]


def _filled(x: Tensor, axis: int) -> Tensor:
    """With zeros up to a multiple of `WIDTH` along the last axis or the one before it; contiguous."""
    missing = -x.shape[axis] % WIDTH
    return F.pad(x, (0, missing) if axis == -1 else (0, 0, 0, missing)).contiguous()
