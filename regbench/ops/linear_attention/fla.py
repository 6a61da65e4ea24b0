"""Linear attention by the Triton kernels of flash-linear-attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regbench.errors import UserError


def linear_attention_fla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`; not for float64.

    Raises:
        UserError: a tensor is float64.
    """
    if any(tensor.dtype == torch.float64 for tensor in (q, k, v)):
        raise UserError("backend 'fla' of linear_attention does not compute in float64")
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    given: dict[str, Any] = {name: x.transpose(1, 2).contiguous() for name, x in (("q", q), ("k", k), ("v", v))}
    if initial_state is not None:
        given["initial_state"] = initial_state.float()
    if log_decay is None:
        kernel = chunk_simple_gla
    elif log_decay.dim() == 1:
        # Not as `g_gamma`, through which no gradient flows.
        kernel, given["g"] = chunk_simple_gla, log_decay.float().expand(given["q"].shape[:3]).contiguous()
    else:
        kernel, given["g"] = chunk_gla, log_decay.transpose(1, 2).contiguous()
    z, state = kernel(**given, scale=1.0, output_final_state=True)
    return z.transpose(1, 2), state
