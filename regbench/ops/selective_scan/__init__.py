"""The selective scan of Mamba: a diagonal linear recurrence whose step size, input and output maps follow the input."""

from __future__ import annotations

import torch
from torch import Tensor

from regbench.ops.backend import Form, Op, common_type
from regbench.utils.errors import UserError

_HERE = "regbench.ops.selective_scan"

OP = Op(
    "selective_scan",
    {
        "mamba-ssm": Form(
            f"{_HERE}.mamba_ssm:selective_scan_mamba_ssm",
            ("cuda",),
            requires="mamba_ssm",
            install="pip install 'regbench[mamba-ssm]'",
            dtypes=(torch.float32, torch.float16, torch.bfloat16),
        ),
        "cpu": Form(f"{_HERE}.cpu:selective_scan_cpu", ("cpu",)),
        "chunked": Form(f"{_HERE}.chunked:selective_scan_chunked", ("cpu", "cuda")),
        "naive": Form(f"{_HERE}.naive:selective_scan_naive", ("cpu", "cuda")),
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
    """y_t = C_t h_t + D x_t with h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t, for every channel on its own.

    Sources: Gu and Dao (2023), arXiv 2312.00752, Eq. 2 and Algorithm 2, with the Euler rule for B as in their code;
    ICLL Eq. 93-94, where h is S, exp(delta_t A) is A-bar and delta_t B_t is B-bar.

    Args:
        x: (B, L, D), the input.
        delta: (B, L, D), the step sizes, positive (after the softplus).
        A: (D, N), the diagonal of each channel's state matrix, negative for a state that decays.
        B: (B, L, N), the input map of each position, shared by the channels.
        C: (B, L, N), the output map of each position, shared by the channels.
        D: (D,), the skip connection; None for none.
        initial_state: (B, D, N), h before the first position; None for zeros.
        backend: "auto" or a form of this op.

    Returns:
        y (B, L, D) and the final state (B, D, N), from which a later call can go on. Gradients flow through both.

    Raises:
        UserError: a shape does not fit the others, or `backend` cannot serve these tensors.
    """
    if x.dim() != 3:
        raise UserError(f"selective_scan: x should have shape (B, L, D), but has {tuple(x.shape)}")
    if A.dim() != 2:
        raise UserError(f"selective_scan: A should have shape (D, N), but has {tuple(A.shape)}")
    batch, length, dim = x.shape
    n_state = A.shape[1]
    expected: tuple[tuple[str, Tensor | None, tuple[int, ...]], ...] = (
        ("delta", delta, (batch, length, dim)),
        ("A", A, (dim, n_state)),
        ("B", B, (batch, length, n_state)),
        ("C", C, (batch, length, n_state)),
        ("D", D, (dim,)),
        ("initial_state", initial_state, (batch, dim, n_state)),
    )
    for name, tensor, shape in expected:
        if tensor is not None and tensor.shape != shape:
            raise UserError(f"selective_scan: {name} should have shape {shape}, but has {tuple(tensor.shape)}")
    form = OP.choose(backend, x.device, common_type(x, delta, A, B, C, D, initial_state))
    y, state = form(x, delta, A, B, C, D, initial_state)
    return y, state
