"""Log-linear attention: against its buckets written out, and flash-linear-attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.gated_deltanet import GatedDeltaNet
from architectures.log_linear_attention import CHUNK, LogLinearAttention
from architectures.mamba2 import Mamba2
from tests.helpers.equations import check_equations, convolved, made, rms_norm, unit
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
BASES: tuple[dict[str, Any], ...] = ({"base": "mamba2", "d_state": 5}, {"base": "gated_deltanet", "expand_k": 1.0})
build = partial(made, LogLinearAttention, moved=True, d_model=D, n_heads=H)


def lambdas(model: Any, x: Tensor) -> Tensor:
    """(B, L, H, levels)."""
    return F.softplus((model.scale * (x @ model.level.weight.T)).unflatten(-1, (H, -1)))


def inputs(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    """q, k, v (B, L, H, K), and beta and the log decay (B, L, H); for Mamba-2 the gate z in the place of beta."""
    base = model.base
    if isinstance(base, Mamba2):
        z, mixed, delta = base.in_proj(x).split([base.sizes[0], sum(base.sizes), H], -1)
        v, k, q = F.silu(convolved(base.conv.conv, mixed)).split(base.sizes, -1)
        delta = F.softplus(delta + base.dt_bias)
        q, k = (part[:, :, None].expand(-1, -1, H, -1) for part in (q, k))
        return q, k, v.unflatten(-1, (H, -1)), z, delta, -base.A_log.exp() * delta
    mixed = torch.cat([linear(x) for linear in (base.query, base.key, base.value)], -1)
    q, k, v = (part.unflatten(-1, (H, -1)) for part in F.silu(convolved(base.conv.conv, mixed)).split(base.sizes, -1))
    beta = torch.sigmoid(x @ base.beta.weight.T)
    g = -base.A_log.exp() * F.softplus(x @ base.time_step.weight.T + base.step_bias)
    return unit(q) / q.shape[-1] ** 0.5, unit(k), v, beta, g


def outputs(model: Any, x: Tensor, o: Tensor) -> Tensor:
    """y of what the heads read, (B, L, H, V)."""
    base = model.base
    if isinstance(base, Mamba2):
        _, _, v, z, *_ = inputs(model, x)
        o = (o + base.D[:, None] * v).flatten(2)
        return rms_norm(o * F.silu(z), base.norm.weight) @ base.out_proj.weight.T
    return (rms_norm(o, base.norm.weight).flatten(2) * F.silu(x @ base.output_gate.weight.T)) @ base.out.weight.T


def buckets(t: int) -> list[tuple[int, int, int]]:
    """(level, first, past the last) of the buckets of position t, by the binary digits of t. Guo et al. 2025, section 3.1."""
    found, end = [(0, t, t + 1)], t
    while end:
        size = end & -end
        found.append((size.bit_length(), end - size, end))
        end -= size
    return found


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Its sections 3.1 and 3.4: at each position, each bucket's state is made anew from its positions, and all that follow."""
    q, k, v, *rest, g = inputs(model, x)
    beta = None if isinstance(model.base, Mamba2) else rest[0]
    if beta is None:
        v = v * rest[1][..., None]
    weight, rows = lambdas(model, x), []
    for t in range(x.shape[1]):
        o: Any = 0.0
        for level, first, end in buckets(t):
            S = x.new_zeros(len(x), H, q.shape[-1], v.shape[-1])
            for s in range(first, t + 1):
                key = k[:, s, :, :, None]
                S = g[:, s].exp()[..., None, None] * S
                if beta is not None:
                    S = S - beta[:, s, :, None, None] * key @ (key.mT @ S)
                if s < end:
                    S = S + (1.0 if beta is None else beta[:, s, :, None, None]) * key @ v[:, s, :, None]
            o = o + weight[:, t, :, min(level, weight.shape[-1] - 1), None] * (q[:, t, :, None] @ S)[:, :, 0]
        rows.append(o)
    return outputs(model, x, torch.stack(rows, 1))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("levels", [4, 12])
def test_is_what_the_paper_writes(base: dict[str, Any], levels: int) -> None:
    model = build(levels=levels, **base)
    check_equations(model, lambda x: by_the_book(model, x), CHUNK + 9)


@pytest.mark.ci
def test_is_what_flash_linear_attention_computes() -> None:
    """On Mamba-2: outputs and gradients over several levels above a chunk."""
    naive = peer("fla.ops.log_linear_attn.naive").naive_log_linear_attn
    model = build(**BASES[0])

    def theirs(x: Tensor) -> Tensor:
        q, k, v, _, delta, g = inputs(model, x)
        return outputs(model, x, naive(q, k, v * delta[..., None], g, lambdas(model, x)))

    check_peer(model, theirs, length=4 * CHUNK + 3)


@pytest.mark.parametrize("base", BASES)
def test_the_state_has_a_part_for_each_digit(base: dict[str, Any]) -> None:
    model = build(**base)
    state, x = model.init_state(2, dtype=torch.float64), torch.randn(2, D, dtype=torch.float64)
    for t in range(1, 35):
        with torch.no_grad():
            _, state = model.step(x, state)
        _, S, seen = state
        assert (len(S), seen) == (t.bit_length(), t)
        assert [bool(S[n].any()) for n in range(len(S))] == [bool(t >> n & 1) for n in range(len(S))]


@pytest.mark.parametrize(("base", "plain"), [(BASES[0], Mamba2), (BASES[1], GatedDeltaNet)])
def test_with_one_level_it_is_its_base(base: dict[str, Any], plain: type[Any]) -> None:
    """Times lambda, which is log 2 where the map to levels is zero: values are divided by it here."""
    model = build(levels=1, **base)
    own = plain(model.options).double()
    own.load_state_dict(model.base.state_dict())
    x = torch.randn(2, 4 * CHUNK + 3, D, dtype=torch.float64)
    with torch.no_grad():
        assert not torch.allclose(model(x), own(x), atol=1e-4)
        model.scale.zero_()
        op = model.op
        model.op = lambda q, *rest: op(q / torch.tensor(2.0, dtype=q.dtype).log(), *rest)
        torch.testing.assert_close(model(x), own(x), rtol=1e-9, atol=1e-11)
