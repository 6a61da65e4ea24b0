"""RWKV's WKV: a mean of the values so far, weighted by the exponentials of their keys, that forgets at a fixed rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regbench.ops.backend import Form, Op, common_type
from regbench.utils.errors import UserError

_HERE = "regbench.ops.wkv"

OP = Op(
    "wkv",
    {
        "flash-linear-attention": Form(
            f"{_HERE}.fla:wkv_fla",
            ("cuda",),
            requires="fla",
            install="pip install 'regbench[flash-linear-attention]'",
            dtypes=(torch.float32, torch.float16, torch.bfloat16),
        ),
        "cpu": Form(f"{_HERE}.cpu:wkv_cpu", ("cpu",)),
        "chunked": Form(f"{_HERE}.chunked:wkv_chunked", ("cpu", "cuda")),
        "naive": Form(f"{_HERE}.naive:wkv_naive", ("cpu", "cuda")),
    },
)


class WKVState(NamedTuple):
    """The two sums of a stream, (B, D) each, in units of exp(scale): a_i = exp(scale) a and b_i = exp(scale) b.

    The scale follows the largest term, so that the sums neither overflow nor vanish. It is a choice of units and no more:
    gradients flow through a and b, and through the scale none.
    """

    a: Tensor
    b: Tensor
    scale: Tensor

    @classmethod
    def zeros(
        cls, batch: int, dim: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> WKVState:
        """The state before the first position: empty sums, in units of exp(-inf)."""
        zero = torch.zeros(batch, dim, device=device, dtype=dtype)
        return cls(zero, zero, torch.full_like(zero, -torch.inf))


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: WKVState | None = None, backend: str = "auto"
) -> tuple[Tensor, WKVState]:
    """z_i = (a_{i-1} + exp(u + k_i) v_i) / (b_{i-1} + exp(u + k_i)), for every channel on its own, where

        a_i = exp(-w) a_{i-1} + exp(k_i) v_i
        b_i = exp(-w) b_{i-1} + exp(k_i)

    Sources: Peng et al. (2023), arXiv 2305.13048, section 3 and, for the numbers to stay small, its appendix; ICLL Eq. 65-67.

    Args:
        w: (D,), the rate of decay, positive.
        u: (D,), added to the key of the position at hand.
        k: (B, L, D), the keys; of any size, as no exponential of a key is ever formed by itself.
        v: (B, L, D), the values.
        state: the state before the first position; None for that of an empty past.
        backend: "auto" or a form of this op.

    Returns:
        z (B, L, D), and the state after the last position, from which a later call can go on.

    Raises:
        UserError: a shape does not fit the others, or `backend` cannot serve these tensors.
    """
    if k.dim() != 3:
        raise UserError(f"wkv: k should have shape (B, L, D), but has {tuple(k.shape)}")
    batch, _, dim = k.shape
    if state is None:
        state = WKVState.zeros(batch, dim, k.device, k.dtype)
    expected = [("w", w, (dim,)), ("u", u, (dim,)), ("v", v, tuple(k.shape))]
    expected += [(f"state.{name}", tensor, (batch, dim)) for name, tensor in state._asdict().items()]
    for name, tensor, shape in expected:
        if tensor.shape != shape:
            raise UserError(f"wkv: {name} should have shape {shape}, but has {tuple(tensor.shape)}")
    z, final = OP.choose(backend, k.device, common_type(w, u, k, v, *state))(w, u, k, v, *state)
    return z, WKVState(*final)
