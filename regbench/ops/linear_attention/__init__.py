"""Linear attention: a linear recurrence whose state is a matrix, without decay, with a fixed one, or with one that follows
the input."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Form, Op, common_type
from regbench.utils.errors import UserError

_HERE = "regbench.ops.linear_attention"

OP = Op(
    "linear_attention",
    {
        "flash-linear-attention": Form(
            f"{_HERE}.fla:linear_attention_fla",
            ("cuda",),
            requires="fla",
            install="pip install 'regbench[flash-linear-attention]'",
            dtypes=(torch.float16, torch.bfloat16, torch.float32),
            exact=(torch.float16, torch.bfloat16),
        ),
        "cpu": Form(f"{_HERE}.cpu:linear_attention_cpu", ("cpu",)),
        "chunked": Form(f"{_HERE}.chunked:linear_attention_chunked", ("cpu", "cuda")),
        "naive": Form(f"{_HERE}.naive:linear_attention_naive", ("cpu", "cuda")),
    },
)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """z_t = q_t S_t with S_t = diag(a_t) S_{t-1} + k_t^T v_t, for every head on its own.

    Without decay (a_t = 1) this is linear attention: Katharopoulos et al. (2020), arXiv 2006.16236, Eq. 9; ICLL Eq. 32-33.
    With one a for each head it is retention: Sun et al. (2023), arXiv 2307.08621, Eq. 6; ICLL Eq. 43-44, where a is lambda.
    With an a_t of its own for each position and key channel it is gated linear attention: Yang et al. (2023),
    arXiv 2312.06635, Eq. 3; ICLL Eq. 54-55 with beta = 1, where a is alpha. q is not scaled, and z is not normalised.

    Args:
        q: (B, H, L, K), the queries.
        k: (B, H, L, K), the keys.
        v: (B, H, L, V), the values.
        log_decay: log a, at most 0: (H,), or (B, H, L, K) where -inf forgets all, or None for no decay.
        initial_state: (B, H, K, V), S before the first position; None for zeros.
        backend: "auto" or a form of this op.

    Returns:
        z (B, H, L, V) and the final state (B, H, K, V), from which a later call can go on. Gradients flow through both.

    Raises:
        UserError: a shape does not fit the others, or `backend` cannot serve these tensors.
    """
    if q.dim() != 4:
        raise UserError(f"linear_attention: q should have shape (B, H, L, K), but has {tuple(q.shape)}")
    if v.dim() != 4:
        raise UserError(f"linear_attention: v should have shape (B, H, L, V), but has {tuple(v.shape)}")
    batch, heads, length, width = q.shape
    per_head = log_decay is not None and log_decay.dim() == 1
    expected: tuple[tuple[str, Tensor | None, tuple[int, ...]], ...] = (
        ("k", k, (batch, heads, length, width)),
        ("v", v, (batch, heads, length, v.shape[3])),
        ("log_decay", log_decay, (heads,) if per_head else (batch, heads, length, width)),
        ("initial_state", initial_state, (batch, heads, width, v.shape[3])),
    )
    for name, tensor, shape in expected:
        if tensor is not None and tensor.shape != shape:
            raise UserError(f"linear_attention: {name} should have shape {shape}, but has {tuple(tensor.shape)}")
    z, state = OP.choose(backend, q.device, common_type(q, k, v))(q, k, v, log_decay, initial_state)
    return z, state
