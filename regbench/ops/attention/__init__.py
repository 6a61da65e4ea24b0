"""Causal softmax attention (ICLL A.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Form, Op, common_type
from regbench.utils.errors import UserError

_OP = Op(
    "attention",
    {
        "flash-attn": Form(
            "regbench.ops.attention.flash:attention",
            ("cuda",),
            requires="flash_attn",
            install="pip install 'regbench[flash-attn]'",
            dtypes=(torch.float16, torch.bfloat16, torch.float32),
            exact=(torch.float16, torch.bfloat16),
        ),
        "torch": Form("regbench.ops.attention.fused:attention", ("cpu", "cuda")),
        # Below PyTorch's, which runs everywhere, so that it runs when asked for and `auto` never takes it: no GPU has timed it.
        "triton": Form(
            "regbench.ops.attention.triton:attention",
            ("cuda",),
            requires="triton",
            install="pip install triton",
            dtypes=(torch.float16, torch.bfloat16, torch.float32),
        ),
        "naive": Form("regbench.ops.attention.naive:attention", ("cpu", "cuda")),
    },
)


def attention(q: Tensor, k: Tensor, v: Tensor, backend: str = "auto") -> Tensor:
    """z_i = sum over j <= i of softmax_j(<q_i, k_j> / sqrt(K)) v_j, for each head.

    q, k: (B, H, L, K).  v: (B, H, L, D).  Returns (B, H, L, D).

    Raises:
        UserError: shapes that do not fit, or a backend that is not there.
    """
    if q.shape != k.shape or k.shape[:3] != v.shape[:3] or q.ndim != 4:
        raise UserError(
            f"attention needs q, k (B, H, L, K) and v (B, H, L, D), not {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    out: Tensor = _OP.choose(backend, q.device, common_type(q, k, v))(q, k, v)
    return out
