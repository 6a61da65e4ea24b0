"""Linear attention by the Triton kernels of flash-linear-attention, which round products of float32 to TF32."""

from __future__ import annotations

import functools
import importlib.util
import re
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.ops.backend import common_type

WIDTH = 16
"""Keys and values are padded with zeros to a multiple of this width. Narrower tiles do not compile, and in 16 bits the backward
pass needs even widths. The zeros add nothing to any product."""

LEAST = -100.0
"""The least log decay that a kernel is given: e^-100 is 0 in float32. The kernels subtract sums of log decays, and -inf from -inf
is NaN."""

_HOPPER = 9
"""The first number of its compute capability."""
_WRONG, _RIGHT = (3, 4), (3, 7, 1)
"""From the first of these versions of Triton to before the second, a gated gradient is wrong on Hopper (fla issue 640)."""


@functools.cache  # asked at every call of an op
def fails(device: torch.device) -> str | None:
    """Why the kernels do not train on this GPU, or None. The package refuses some versions of Triton in the backward pass."""
    if device.type != "cuda" or not torch.cuda.is_available() or importlib.util.find_spec("tilelang") is not None:
        return None
    version = metadata.version("triton")
    wrong = _WRONG <= tuple(map(int, re.findall(r"\d+", version)[:3])) < _RIGHT
    if not wrong or torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return None
    return f"does not train on {torch.cuda.get_device_name(device)} with Triton {version}: it needs Triton 3.7.1, or tilelang"


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `regbench.ops.linear_attention.linear_attention`. It takes no float64, and the state is float32."""
    from fla.ops.gla import chunk_gla
    from fla.ops.simple_gla import chunk_simple_gla

    if v.numel() == 0:
        zeros = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float32)
        return torch.empty_like(v), zeros if initial_state is None else initial_state
    dtype = common_type(q, k, v)
    keys, values = q.shape[3], v.shape[3]
    given: dict[str, Any] = {
        name: padded(x.to(dtype).transpose(1, 2), -1) for name, x in (("q", q), ("k", k), ("v", v))
    }
    if initial_state is not None:
        given["initial_state"] = padded(padded(initial_state.float(), -1), -2)
    if log_decay is None:
        kernel = chunk_simple_gla
    elif log_decay.dim() == 1:
        # The argument `g_gamma` would take it as it is, but has no gradient.
        kernel, given["g"] = chunk_simple_gla, bounded(log_decay).expand(given["q"].shape[:3]).contiguous()
    elif log_decay.dim() == 3:
        kernel, given["g"] = chunk_simple_gla, bounded(log_decay).transpose(1, 2).contiguous()
    else:
        kernel, given["g"] = chunk_gla, padded(bounded(log_decay).transpose(1, 2), -1)
    z, state = kernel(**given, scale=1.0, output_final_state=True)
    return z[..., :values].transpose(1, 2).to(v.dtype), state[..., :keys, :values]


def bounded(log_decay: Tensor) -> Tensor:
    """The log decay in float32, at least `LEAST`."""
    return log_decay.float().clamp(min=LEAST)


def padded(x: Tensor, axis: int) -> Tensor:
    """The tensor padded with zeros to a multiple of `WIDTH` along its last axis (-1) or the one before it (-2); contiguous."""
    missing = -x.shape[axis] % WIDTH
    return F.pad(x, (0, missing) if axis == -1 else (0, 0, 0, missing)).contiguous()
