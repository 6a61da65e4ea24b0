"""The delta rule: a linear recurrence whose state is a matrix, corrected by rank one where it was wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op, check_shapes, common_type
from regbench.utils.errors import UserError

WIDEST = 256
"""The largest key width K."""

OP = Op(
    "delta_rule",
    {
        "cpu": Implementation("regbench.ops.delta_rule.cpu:delta_rule", ("cpu",)),
        "chunked": Implementation("regbench.ops.delta_rule.chunked:delta_rule", ("cpu", "cuda")),
        "naive": Implementation("regbench.ops.delta_rule.naive:delta_rule", ("cpu", "cuda")),
    },
)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The generalised delta rule: z_t = q_t S_t, where the state first decays and then changes by rank one, for each head.

        S'_t = diag(exp(g_t)) S_{t-1}
        S_t  = S'_t + b_t^T (a_t S'_t) + k_t^T v_t                 with a and b
        S_t  = S'_t + beta_t k_t^T (v_t - k_t S'_t)                with beta: a_t = k_t, b_t = -beta_t k_t, and beta_t k_t writes

    - With beta and without decay: DeltaNet. Schlag et al. (2021), arXiv 2102.11174, section 4.2; Yang et al. (2024),
      arXiv 2406.06484, section 2.2.
    - With beta and one decay for each position: Gated DeltaNet. Yang et al. (2024), arXiv 2412.06464, section 3.1.
    - With beta and one decay for each position and key channel: Kimi Delta Attention. Kimi Team (2025),
      arXiv 2510.26692, section 3.
    - With a and b: RWKV-7. Peng et al. (2025), arXiv 2503.14456, section 4.
    - DeltaProduct takes n_h steps for a token, one decay among them. Siems et al. (2025), arXiv 2502.10297, section 3.

    q is not scaled, and k is not normalised.

    Args:
        q: (B, H, L, K), the queries.
        k: (B, H, L, K), the keys that write.
        v: (B, H, L, V), the values.
        beta: (B, H, L), how far the value at a key moves towards v. Give beta, or a and b.
        log_decay: g, at most 0: (B, H, L) or (B, H, L, K); -inf forgets everything; None for no decay.
        initial_state: (B, H, K, V), S before the first position; None for zeros.
        a: (B, H, L, K), what the correction reads of the decayed state.
        b: (B, H, L, K), where the correction is written.
        backend: "auto" or an implementation of this op.

    Returns:
        z (B, H, L, V) and the final state (B, H, K, V), from which a later call can continue. Gradients flow through both.
    """
    check_shapes("delta_rule", [("q", q, "(B, H, L, K)"), ("v", v, "(B, H, L, V)")])
    batch, heads, length, width = q.shape
    per_head = log_decay is not None and log_decay.dim() == 3
    check_shapes(
        "delta_rule",
        (
            ("k", k, (batch, heads, length, width)),
            ("v", v, (batch, heads, length, v.shape[3])),
            ("beta", beta, (batch, heads, length)),
            ("log_decay", log_decay, (batch, heads, length) if per_head else (batch, heads, length, width)),
            ("initial_state", initial_state, (batch, heads, width, v.shape[3])),
            ("a", a, (batch, heads, length, width)),
            ("b", b, (batch, heads, length, width)),
        ),
    )
    if width > WIDEST:
        raise UserError(f"delta_rule: a key width of {width} is above {WIDEST}, the largest")
    implementation = OP.choose(backend, q.device, common_type(q, k, v))
    if initial_state is None:
        initial_state = q.new_zeros(batch, heads, width, v.shape[3])
    if beta is not None:
        wide = common_type(k, beta, least=torch.float32)
        a, written = k, beta[..., None].to(wide) * k.to(wide)
        k, b = written, -written
    z, state = implementation(q, k, v, a, b, log_decay, initial_state)
    return z.to(v.dtype), state
