"""What the CPU kernels share: a call with PyTorch's tensors, and an exponential that LLVM vectorises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload
from torch import Tensor

from regbench.utils import threads

SMALL = 1 << 20
"""Elements of which one pass takes less time than to wake another thread: a fifth of a millisecond."""


def run(kernel: Callable[..., None], items: int, *tensors: Tensor | int, one_pass: bool = False) -> None:
    """Calls a kernel on PyTorch's tensors, shared among as many threads as PyTorch would use.

    The kernel is `kernel(start, stop, *arrays)`, and its arrays share the tensors' memory; numbers stay as they are. With
    `one_pass` a small tensor is left to the calling thread.
    """
    arrays = (given.detach().numpy() if isinstance(given, Tensor) else given for given in tensors)
    alone = one_pass and isinstance(tensors[0], Tensor) and tensors[0].numel() < SMALL
    threads.share(kernel, items, *arrays, threads=1 if alone else torch.get_num_threads())


# 2^x = 2^n 2^r, where n is the integer nearest to x. 2 * 2^r is a polynomial in r, 2 + _P1 r + ... + _P6 r^6. Of those with the
# value 2 at r = 0 it has the smallest relative error on [-1/2, 1/2], 3e-9.
_LOW, _HIGH = np.float32(-126), np.float32(128)
_ROUND = np.float32(1.5 * 2**23 + 126)  # added to x, it leaves n + 126 in the last bits, and no bits for a fraction
_P0, _P1, _P2, _P3 = np.float32(2), np.float32(1.38629443), np.float32(0.480453056), np.float32(0.111006206)
_P4, _P5, _P6 = np.float32(0.0192353837), np.float32(0.00268134717), np.float32(0.000311898389)


def _last_bits_as_exponent(_: Any, value: Any) -> Any:
    """2^(k-127) for a float32 with last eight bits k > 0; 0 for k = 0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.bitcast(args[0], i32), i32(23)), ir.FloatType())

    return types.float32(types.float32), code


_power: Any = intrinsic(_last_bits_as_exponent)


# Without "reassoc", which would cancel the rounding.
@njit(cache=True, fastmath={"contract"})
def _exp2_float32(x: Any) -> Any:
    """2^x without branches, which LLVM turns into vector code. The error is below 1.5 ulp.

    Results below 2^-125.5 are 0, as denormal numbers would slow the recurrence down. NaN stays NaN.
    """
    x = _LOW if x < _LOW else x
    x = _HIGH if x > _HIGH else x
    rounded = x + _ROUND
    r = x - (rounded - _ROUND)
    # The factor is 2^(n-1), which a float32 can hold even for n = 128.
    return ((((((_P6 * r + _P5) * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0) * _power(rounded)


def exp2(x: Any) -> Any:
    """2^x in compiled code: vector arithmetic for float32, NumPy's function for float64."""
    raise NotImplementedError("exp2 works in compiled code alone")


@overload(exp2, strict=False)  # strict would also compare the annotations
def _exp2_for(x: Any) -> Any:
    if x == types.float32:
        return lambda x: _exp2_float32(x)
    return lambda x: np.exp2(x)
