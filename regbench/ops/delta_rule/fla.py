"""The delta rule by the Triton kernels of flash-linear-attention, which round products of float32 to TF32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regbench.ops.backend import common_type
from regbench.ops.linear_attention import channel_decay
from regbench.ops.linear_attention.fla import bounded, padded


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.delta_rule.delta_rule`. It takes no float64, and the state is float32."""
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule
    from fla.ops.kda import chunk_kda

    if v.numel() == 0:
        zeros = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float32)
        return torch.empty_like(v), zeros if initial_state is None else initial_state
    dtype = common_type(q, k, v)
    keys, values = q.shape[3], v.shape[3]

    def inside(x: Tensor) -> Tensor:
        """(B, H, L, K) -> (B, L, H, K), padded."""
        return padded(x.to(dtype).transpose(1, 2), -1)

    given: dict[str, Any] = {"q": inside(q), "k": inside(k), "v": inside(v)}
    if initial_state is not None:
        given["initial_state"] = padded(padded(initial_state.float(), -1), -2)
    if beta is None:
        assert a is not None
        assert b is not None
        decay = bounded(channel_decay(log_decay, q))
        # Its a reads the state before the decay.
        kernel, given["a"], given["b"] = chunk_dplr_delta_rule, inside(a * decay.exp()), inside(b)
        given["gk"] = padded(decay.transpose(1, 2), -1)
    else:
        given["beta"] = beta.to(dtype).transpose(1, 2).contiguous()
        if log_decay is None and dtype != torch.float32:
            kernel = chunk_delta_rule
        elif log_decay is None:  # that kernel refuses float32
            kernel, given["g"] = chunk_gated_delta_rule, torch.zeros_like(given["beta"])
        elif log_decay.dim() == 3:
            kernel, given["g"] = chunk_gated_delta_rule, bounded(log_decay).transpose(1, 2).contiguous()
        else:
            kernel, given["g"] = chunk_kda, padded(bounded(log_decay).transpose(1, 2), -1)
    z, state = kernel(**given, scale=1.0, output_final_state=True)
    return z[..., :values].transpose(1, 2).to(v.dtype), state[..., :keys, :values]
