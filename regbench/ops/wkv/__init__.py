"""WKV of RWKV: a mean of the past values, weighted by the exponentials of their keys, which decays at a fixed rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regbench.ops.backend import Implementation, Op, check_shapes, common_type

OP = Op(
    "wkv",
    {
        "cpu": Implementation("regbench.ops.wkv.cpu:wkv", ("cpu",)),
        "chunked": Implementation("regbench.ops.wkv.chunked:wkv", ("cpu", "cuda")),
        "naive": Implementation("regbench.ops.wkv.naive:wkv", ("cpu", "cuda")),
    },
)


class WKVState(NamedTuple):
    """The two sums of a stream, in units of exp(scale): a_i = exp(scale) a and b_i = exp(scale) b.

    The scale follows the largest term, so that the sums neither overflow nor vanish. It is only a unit: it has no gradient.
    """

    a: Tensor  # (B, D), the weighted sum of values
    b: Tensor  # (B, D), the sum of weights
    scale: Tensor  # (B, D), the logarithm of the unit

    @classmethod
    def zeros(
        cls, batch: int, dim: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> WKVState:
        """The state (B, D) before the first position: empty sums, in units of exp(-inf)."""
        zero = torch.zeros(batch, dim, device=device, dtype=dtype)
        return cls(zero, zero, torch.full_like(zero, -torch.inf))


def wkv(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, state: WKVState | None = None, backend: str = "auto"
) -> tuple[Tensor, WKVState]:
    """A weighted mean of the past and present values, for each channel.

        z_i = (a_{i-1} + exp(u + k_i) v_i) / (b_{i-1} + exp(u + k_i))
        a_i = exp(-w) a_{i-1} + exp(k_i) v_i
        b_i = exp(-w) b_{i-1} + exp(k_i)

    Peng et al. (2023), arXiv 2305.13048, section 3, and its appendix for sums that stay small; ICLL Eq. 65-67.

    Args:
        w: (D,), the rate of decay, positive.
        u: (D,), added to the key of the present position.
        k: (B, L, D), the keys. They may be of any size, as only differences of keys are exponentiated.
        v: (B, L, D), the values.
        state: the state before the first position; None for an empty past.
        backend: "auto" or an implementation of this op.

    Returns:
        z (B, L, D), and the state after the last position, from which a later call can continue.
    """
    check_shapes("wkv", [("k", k, "(B, L, D)")])
    batch, _, dim = k.shape
    if state is None:
        state = WKVState.zeros(batch, dim, k.device, k.dtype)
    check_shapes("wkv", (("w", w, (dim,)), ("u", u, (dim,)), ("v", v, tuple(k.shape))))
    check_shapes("wkv", ((f"state.{name}", tensor, (batch, dim)) for name, tensor in state._asdict().items()))
    z, final = OP.choose(backend, k.device, common_type(w, u, k, v, *state))(w, u, k, v, *state)
    return z, WKVState(*final)
