"""Stand-ins on the CPU for the functions of flash-attn and mamba-ssm that the operations call.

Each takes the library's layouts and types, refuses all others, and computes with plain sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    *,
    deterministic: bool = False,
) -> Tensor:
    """flash-attn: (B, L, H, K) three times, in half precision, with the last dimension contiguous."""
    assert q.shape == k.shape == v.shape
    assert q.dtype == k.dtype == v.dtype
    assert q.dtype in HALF
    assert q.shape[-1] <= 256
    assert dropout_p == 0
    assert min(q.shape) > 0
    scores = torch.einsum("bihk,bjhk->bhij", q.double(), k.double()) * (softmax_scale or q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    if window_size != (-1, -1):  # positions before a query that it sees, and after it
        assert causal
        assert window_size[1] == 0
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril(-window_size[0] - 1).bool(), -torch.inf)
    return torch.einsum("bhij,bjhk->bihk", scores.softmax(-1), v.double()).to(q.dtype)


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> Tensor:
    """mamba-ssm: (B, D, L) twice, A (D, N), (B, N, L) twice, D (D,); the types as its C++ checks them."""
    batch, dim, length = u.shape
    assert delta.shape == u.shape
    assert B.shape == C.shape == (batch, A.shape[1], length)
    assert len({u.dtype, delta.dtype, B.dtype, C.dtype, torch.float32}) == 1
    assert A.dtype == torch.float32
    assert A.is_contiguous()
    assert D is None or (D.dtype == torch.float32 and D.shape == (dim,))
    assert z is None
    assert delta_bias is None
    assert not delta_softplus
    h, out = u.new_zeros(batch, dim, A.shape[1]), []
    for t in range(length):
        h = torch.exp(delta[:, :, t, None] * A) * h + (delta[:, :, t] * u[:, :, t])[..., None] * B[:, None, :, t]
        out.append((h * C[:, None, :, t]).sum(-1) + (0 if D is None else D * u[:, :, t]))
    return torch.stack(out, -1)


STAND_INS: dict[str, list[Callable[..., Any]]] = {
    "flash_attn": [flash_attn_func],
    "mamba_ssm.ops.selective_scan_interface": [selective_scan_fn],
}
"""Of each module of a library, what stands in for it."""
