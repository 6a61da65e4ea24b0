"""Linear attention: a linear recurrence whose state is a matrix. It decays not at all, at a fixed rate, or as the input says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op, check_shapes, common_type

OP = Op(
    "linear_attention",
    {
        "cpu": Implementation("regbench.ops.linear_attention.cpu:linear_attention", ("cpu",)),
        "chunked": Implementation("regbench.ops.linear_attention.chunked:linear_attention", ("cpu", "cuda")),
        "naive": Implementation("regbench.ops.linear_attention.naive:linear_attention", ("cpu", "cuda")),
    },
)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Any]:
    """Linear attention with decay: z_t = q_t S_t with S_t = diag(a_t) S_{t-1} + k_t^T v_t, for each head.

    - Without decay (a_t = 1): linear attention. Katharopoulos et al. (2020), arXiv 2006.16236, Eq. 9; ICLL Eq. 32-33.
    - With one a for each head: retention. Sun et al. (2023), arXiv 2307.08621, Eq. 6; ICLL Eq. 43-44, where a is lambda.
    - With one a_t for each position and head: Mamba-2. Dao and Gu (2024), arXiv 2405.21060, section 3.
    - With one a_t for each position and key channel: gated linear attention. Yang et al. (2023), arXiv 2312.06635, Eq. 3;
      ICLL Eq. 54-55 with beta = 1, where a is alpha.

    q is not scaled, and z is not normalised.

    Args:
        q: (B, H, L, K), the queries.
        k: (B, H, L, K), the keys.
        v: (B, H, L, V), the values.
        log_decay: log a, at most 0: (H,), (B, H, L) or (B, H, L, K); -inf forgets everything; None for no decay.
        initial_state: (B, H, K, V), S before the first position; None for zeros, where nobody asks for the final state.
        backend: "auto" or an implementation of this op.

    Returns:
        z (B, H, L, V) and the final state (B, H, K, V), from which a later call can continue, or None if no initial state is
        given. Gradients flow through both.
    """
    check_shapes("linear_attention", [("q", q, "(B, H, L, K)"), ("v", v, "(B, H, L, V)")])
    batch, heads, length, width = q.shape
    decay_shapes = {1: (heads,), 3: (batch, heads, length)}
    decay_shape = decay_shapes.get(0 if log_decay is None else log_decay.dim(), (batch, heads, length, width))
    check_shapes(
        "linear_attention",
        (
            ("k", k, (batch, heads, length, width)),
            ("v", v, (batch, heads, length, v.shape[3])),
            ("log_decay", log_decay, decay_shape),
            ("initial_state", initial_state, (batch, heads, width, v.shape[3])),
        ),
    )
    z, state = OP.choose(backend, q.device, common_type(q, k, v))(q, k, v, log_decay, initial_state)
    return z, None if initial_state is None else state


def channel_decay(log_decay: Tensor | None, q: Tensor) -> Tensor:
    """The log decay of each key channel, (B, H, L, K): zeros for None, and one for all channels from (H,) or (B, H, L)."""
    if log_decay is None:
        return torch.zeros_like(q)
    if log_decay.dim() == 1:
        log_decay = log_decay[:, None, None]
    elif log_decay.dim() == 3:
        log_decay = log_decay[..., None]
    return log_decay.expand(q.shape)
