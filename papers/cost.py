"""What a model costs: operations, as PyTorch counts them, and bytes of state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regbench.models.model import Model, shift_in
from regbench.ops.backend import use_backend

COUNTABLE = "attention=torch,linear_attention=chunked,delta_rule=chunked,selective_scan=chunked"
"""The forms of ops that are matrix products. Those of the other ops multiply element by element, which is not counted."""


def total_flops(model: Model, tokens: Tensor) -> int:
    """Operations of one forward pass over (B, L) tokens: two for each product of a matrix multiplication.

    Attention counts over all L positions, although a kernel may skip those in the future.
    """
    with counting() as counter, torch.no_grad():
        model(tokens)
    return int(counter.get_total_flops())


@contextlib.contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Ops and the LSTM are PyTorch's matrix products, as the counter does not see into kernels."""
    with (
        use_backend(COUNTABLE),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
        FlopCounterMode(display=False) as counter,
    ):
        yield counter


def stream_bytes(model: Any, tokens: Tensor, **start: Any) -> int:
    """Bytes of state after a model has read (B, L) tokens one by one. `start` goes to `init_state`."""
    state, inputs = model.init_state(len(tokens), **start), shift_in(tokens, model.io.separator)
    with torch.no_grad():
        for t in range(tokens.shape[1]):
            _, state = model.step(inputs[:, t], state)
    return int(state.state_bytes())
