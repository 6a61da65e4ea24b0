"""Linear attention by the Triton kernels of flash-linear-attention, whose products of float32 are rounded to TF32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regbench.ops.backend import common_type


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
    given: dict[str, Any] = {
        name: x.to(dtype).transpose(1, 2).contiguous() for name, x in (("q", q), ("k", k), ("v", v))
    }
    if initial_state is not None:
        given["initial_state"] = initial_state.float()
    if log_decay is None:
        kernel = chunk_simple_gla
    elif log_decay.dim() == 1:
        # Not as `g_gamma`, through which no gradient flows.
        kernel, given["g"] = chunk_simple_gla, log_decay.float().expand(given["q"].shape[:3]).contiguous()
    else:
        kernel, given["g"] = chunk_gla, log_decay.float().transpose(1, 2).contiguous()
    z, state = kernel(**given, scale=1.0, output_final_state=True)
    return z.transpose(1, 2).to(v.dtype), state
