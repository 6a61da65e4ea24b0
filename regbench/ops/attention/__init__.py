"""Causal softmax attention (ICLL A.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op, check_shapes, common_type

OP = Op(
    "attention",
    {
        "flash-attn": Implementation(
            "regbench.ops.attention.flash:attention",
            ("cuda",),
            requires="flash_attn",
            install="pip install 'regbench[flash-attn]'",
            dtypes=(torch.float16, torch.bfloat16, torch.float32),
            exact=(torch.float16, torch.bfloat16),
        ),
        "cpu": Implementation("regbench.ops.attention.cpu:attention", ("cpu",), dtypes=(torch.float32, torch.float64)),
        "torch": Implementation("regbench.ops.attention.fused:attention", ("cpu", "cuda")),
        # It stands below PyTorch's, which runs everywhere and was faster on an H200. So "auto" never takes it.
        "triton": Implementation(
            "regbench.ops.attention.triton:attention",
            ("cuda",),
            requires="triton",
            install="pip install triton",
            dtypes=(torch.float16, torch.bfloat16, torch.float32),
        ),
        "naive": Implementation("regbench.ops.attention.naive:attention", ("cpu", "cuda")),
    },
)


def attention(
    q: Tensor, k: Tensor, v: Tensor, backend: str = "auto", *, exact: bool = False, window: int = 0
) -> Tensor:
    """Causal softmax attention: z_i = sum over j <= i of softmax_j(<q_i, k_j> / sqrt(K)) v_j, for each head.

    With a window, the sum and the softmax are over i - window < j <= i alone.

    Args:
        q: (B, H, L, K), the queries.
        k: (B, H, L, K), the keys.
        v: (B, H, L, D), the values.
        backend: "auto" or an implementation of this op.
        exact: whether an implementation that rounds products more than its inputs are rounded is refused.
        window: how many positions a query sees, its own included. 0: all that are not later.

    Returns:
        z (B, H, L, D), in the type of v.
    """
    check_shapes("attention", [("q", q, "(B, H, L, K)"), ("k", k, tuple(q.shape)), ("v", v, "(B, H, L, D)")])
    check_shapes("attention", [("v", v, (*q.shape[:3], v.shape[3]))])
    dtype = common_type(q, k, v)
    out: Tensor = OP.choose(backend, q.device, dtype, exact=exact)(q.to(dtype), k.to(dtype), v.to(dtype), window)
    return out.to(v.dtype)
