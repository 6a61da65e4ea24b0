"""The selective scan of Mamba: a diagonal linear recurrence whose step size, input and output maps follow the input."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op, check_shapes, common_type

OP = Op(
    "selective_scan",
    {
        "mamba-ssm": Implementation(
            "regbench.ops.selective_scan.mamba_ssm:selective_scan",
            ("cuda",),
            requires="mamba_ssm",
            install="pip install 'regbench[mamba-ssm]'",
            dtypes=(torch.float32, torch.float16, torch.bfloat16),
        ),
        "cpu": Implementation("regbench.ops.selective_scan.cpu:selective_scan", ("cpu",)),
        "chunked": Implementation("regbench.ops.selective_scan.chunked:selective_scan", ("cpu", "cuda")),
        "naive": Implementation("regbench.ops.selective_scan.naive:selective_scan", ("cpu", "cuda")),
    },
)


def selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Selective scan: y_t = C_t h_t + D x_t with h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t, for each channel.

    Gu and Dao (2023), arXiv 2312.00752, Eq. 2 and Algorithm 2, with the Euler rule for B as in their code. ICLL Eq. 93-94, where
    h is S, exp(delta_t A) is A-bar and delta_t B_t is B-bar.

    Args:
        x: (B, L, D), the input.
        delta: (B, L, D), the step sizes, after the softplus that makes them positive.
        A: (D, N), the diagonal of each channel's state matrix. Where it is negative, the state decays.
        B: (B, L, N), the input map of each position, shared by the channels.
        C: (B, L, N), the output map of each position, shared by the channels.
        D: (D,), the skip connection; None for none.
        initial_state: (B, D, N), h before the first position; None for zeros.
        backend: "auto" or an implementation of this op.

    Returns:
        y (B, L, D) and the final state (B, D, N), from which a later call can continue. Gradients flow through both.
    """
    check_shapes("selective_scan", [("x", x, "(B, L, D)"), ("A", A, "(D, N)")])
    batch, length, dim = x.shape
    n_state = A.shape[1]
    check_shapes(
        "selective_scan",
        (
            ("delta", delta, (batch, length, dim)),
            ("A", A, (dim, n_state)),
            ("B", B, (batch, length, n_state)),
            ("C", C, (batch, length, n_state)),
            ("D", D, (dim,)),
            ("initial_state", initial_state, (batch, dim, n_state)),
        ),
    )
    implementation = OP.choose(backend, x.device, common_type(x, delta, A, B, C, D, initial_state))
    y, state = implementation(x, delta, A, B, C, D, initial_state)
    return y, state
