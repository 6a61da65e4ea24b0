"""Stand-ins on the CPU for the functions of flash-attn, mamba-ssm and flash-linear-attention that the operations call.

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


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention: (B, T, H, K), V for v, log decays like q; the state (B, H, K, V) float32."""
    assert q.dtype == k.dtype == v.dtype
    assert q.shape == k.shape == g.shape
    assert v.shape[:3] == q.shape[:3]
    assert q.shape[-1] % 2 == v.shape[-1] % 2 == 0  # its backward pass in 16 bits asserts it
    assert min(q.shape[-1], v.shape[-1]) >= 16  # narrower tiles do not compile
    assert initial_state is None or initial_state.dtype == torch.float32
    S = (
        q.new_zeros(q.shape[0], *q.shape[2:], v.shape[3], dtype=torch.float32)
        if initial_state is None
        else initial_state
    )
    assert g.isfinite().all()  # it subtracts running sums
    out, scale = [], q.shape[-1] ** -0.5 if scale is None else scale
    for t in range(q.shape[1]):
        S = g[:, t].float().exp()[..., None] * S + k[:, t].float()[..., None] * v[:, t].float()[..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t].float() * scale, S))
    return torch.stack(out, 1).to(v.dtype), S if output_final_state else None


def chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, **others: Any
) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention: a log decay (B, T, H) for each head, or none."""
    assert g is None or g.shape == q.shape[:3]
    return chunk_gla(q, k, v, torch.zeros_like(q) if g is None else g[..., None].expand(q.shape), **others)


def chunk_dplr_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    gk: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention: the general delta rule, whose a reads the state before the decay. (B, T, H, K), V for v."""
    assert q.dtype == k.dtype == v.dtype == a.dtype == b.dtype
    assert q.shape == k.shape == a.shape == b.shape == gk.shape
    assert min(q.shape[-1], v.shape[-1]) >= 16
    assert all(x.is_contiguous() for x in (q, k, v, a, b, gk))
    assert initial_state is None or initial_state.dtype == torch.float32
    S = (
        q.new_zeros(q.shape[0], *q.shape[2:], v.shape[3], dtype=torch.float32)
        if initial_state is None
        else initial_state
    )
    assert gk.isfinite().all()
    out, scale = [], q.shape[-1] ** -0.5 if scale is None else scale
    for t in range(q.shape[1]):
        read = torch.einsum("bhk,bhkv->bhv", a[:, t].float(), S)
        S = gk[:, t].float().exp()[..., None] * S + b[:, t].float()[..., None] * read[..., None, :]
        S = S + k[:, t].float()[..., None] * v[:, t].float()[..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, t].float() * scale, S))
    return torch.stack(out, 1).to(v.dtype), S if output_final_state else None


def chunk_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **others: Any) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention: the delta rule with a log decay like q; beta (B, T, H)."""
    assert beta.shape == q.shape[:3]
    assert beta.dtype == q.dtype
    q, k, v, beta = (x.float() for x in (q, k, v, beta))
    written = beta[..., None] * k
    a, b = (k * g.float().exp()).contiguous(), -written.contiguous()
    return chunk_dplr_delta_rule(q, written.contiguous(), v, a, b, g, **others)


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **others: Any
) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention: a log decay (B, T, H)."""
    assert g.shape == q.shape[:3]
    return chunk_kda(q, k, v, g[..., None].expand(q.shape).contiguous(), beta, **others)


def chunk_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **others: Any) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention: without decay."""
    assert q.dtype != torch.float32
    return chunk_kda(q, k, v, torch.zeros_like(q), beta, **others)


STAND_INS: dict[str, list[Callable[..., Any]]] = {
    "flash_attn": [flash_attn_func],
    "mamba_ssm.ops.selective_scan_interface": [selective_scan_fn],
    "fla.ops.gla": [chunk_gla],
    "fla.ops.simple_gla": [chunk_simple_gla],
    "fla.ops.delta_rule": [chunk_delta_rule],
    "fla.ops.gated_delta_rule": [chunk_gated_delta_rule],
    "fla.ops.generalized_delta_rule": [chunk_dplr_delta_rule],
    "fla.ops.kda": [chunk_kda],
}
"""Of each module of a library, what stands in for it."""
