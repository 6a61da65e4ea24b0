"""What a process needs so that Triton's interpreter computes in it as a GPU does."""

from __future__ import annotations

from typing import Any

import torch


def prepare() -> None:
    """Poisons `torch.empty` with NaN, so that a place that is never written shows; and mends bfloat16.

    Triton's interpreter multiplies the integers that bfloat16 is kept in, and cuts off where a GPU rounds.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    torch.use_deterministic_algorithms(True)
    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if (source.dtype.scalar, target.scalar) == (tl.bfloat16, tl.float32):
            data = (source.data.astype(np.uint32) << 16).view(np.float32)
        elif (source.dtype.scalar, target.scalar) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            data = rounded.view(torch.int16).numpy().view(np.uint16)
        else:
            return cast(self, source, target)
        return TensorHandle(data, target.scalar)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (cast_impl(self, x, tl.float32) for x in (a, b))
        return dot(self, a, b, *others)

    InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot = cast_impl, create_dot
