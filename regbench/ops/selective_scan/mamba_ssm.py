"""The selective scan by the CUDA kernels of mamba-ssm, in float32.

The kernels begin with a state of zeros, and have no gradient for the final state. So N positions are added at each end of the
sequence. Those before it write the initial state, and those after it read the final state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.utils.errors import UserError

LARGEST = 256
"""The largest state of a channel, N, that the kernels take."""


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.selective_scan.selective_scan`. It takes no float64."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    (batch, length, dim), n_state, dtype = x.shape, A.shape[1], x.dtype
    if n_state > LARGEST:
        raise UserError(f"backend 'mamba-ssm' of selective_scan takes a state of up to {LARGEST}, not {n_state}")
    if x.numel() == 0:
        zeros = x.new_zeros(batch, dim, n_state, dtype=torch.float32)
        return torch.empty_like(x), zeros if initial_state is None else initial_state
    x, delta, A, B, C = (tensor.float() for tensor in (x, delta, A, B, C))
    one_hot = torch.eye(n_state, device=x.device).expand(batch, -1, -1)
    before = 0
    if initial_state is not None:
        before = n_state
        fed, step = _feed(initial_state.float(), A)
        x, delta = torch.cat([fed, x], 1), torch.cat([step.expand(batch, n_state, -1), delta], 1)
        B, C = torch.cat([one_hot, B], 1), F.pad(C, (0, 0, n_state, 0))
    # A step of size 0 leaves the state as it is, so C alone selects the output.
    x, delta, B = (F.pad(tensor, (0, 0, 0, n_state)) for tensor in (x, delta, B))
    C = torch.cat([C, one_hot], 1)
    out: Tensor = selective_scan_fn(x.mT, delta.mT, A.contiguous(), B.mT, C.mT, None if D is None else D.float())
    y, final = out[..., before : before + length], out[..., before + length :]
    return y.mT.to(dtype), final


def _feed(state: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """The inputs that turn a state of zeros into `state`.

    Position n writes the n-th entry alone, larger by the decay that follows until the last position. The step is so short that no
    entry decays by more than 1 / e. The result does not depend on the step, so the step has no gradient. They are (B, N, D), and
    the step size is (D,).
    """
    n_state = A.shape[1]
    step = 1 / (n_state * A.detach().abs().amax(1).clamp(min=1))
    to_come = torch.arange(n_state - 1, -1, -1, device=A.device)
    grown = torch.exp(-A * step[:, None] * to_come) / step[:, None]  # (D, N)
    return (state * grown).mT, step
