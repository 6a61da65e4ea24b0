"""What every op needs to know of the tensors it is given: their shapes, and the type to compute in."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch
from torch import Tensor

from regbench.utils.errors import UserError


def check_rank(op: str, name: str, tensor: Tensor, shape: str) -> None:
    """Refuses a tensor with too few or too many dimensions.

    Args:
        op: the op's name, for the message.
        name: the argument's name, for the message.
        tensor: the argument.
        shape: the dimensions it should have, such as "(B, L, D)".

    Raises:
        UserError: the number of dimensions is another.
    """
    if tensor.dim() != shape.count(",") + 1:
        raise UserError(f"{op}: {name} should have shape {shape}, but has {tuple(tensor.shape)}")


def check_shapes(op: str, expected: Iterable[tuple[str, Tensor | None, tuple[int, ...]]]) -> None:
    """Refuses the first tensor whose shape is not the expected one.

    Args:
        op: the op's name, for the message.
        expected: the name of each argument, the argument (None where it is left out), and the shape it should have.

    Raises:
        UserError: a shape is another.
    """
    for name, tensor, shape in expected:
        if tensor is not None and tensor.shape != shape:
            raise UserError(f"{op}: {name} should have shape {shape}, but has {tuple(tensor.shape)}")


def common_type(*tensors: Tensor | None) -> torch.dtype:
    """The type that holds the types of all tensors. Under autocast an op may be given several types."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors if tensor is not None))


def sum_type(*tensors: Tensor) -> torch.dtype:
    """The type for sums over a whole sequence: float64 if one of the tensors has it, else float32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
