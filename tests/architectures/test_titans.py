"""Titans: against gradient steps by autograd a position at a time, and flash-linear-attention's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures._test_time import Memory, Network, Rates, learn, silu
from architectures.titans import Titans
from architectures.transformer import Transformer
from tests.helpers.equations import check_equations, convolved, made, rms_norm, unit
from tests.helpers.peers import peer

D, H, K = 12, 3, 4
build = partial(made, Titans, moved=True, d_model=D, n_heads=H)


def inputs(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (B, L, H, K), q and k of length 1."""
    raw = torch.cat([linear(x) for linear in (model.query, model.key, model.value)], -1)
    mixed = F.silu(convolved(model.conv.conv, raw))
    q, k, v = (part.unflatten(-1, (H, K)) for part in mixed.chunk(3, -1))
    return unit(q), unit(k), v


def rates(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Theta, alpha and eta, (B, L, H)."""
    zeros = x.new_zeros(*x.shape[:2], H)
    alpha = torch.sigmoid(model.forget(x)) if model.options.forget else zeros
    eta = torch.sigmoid(model.momentum(x)) if model.options.momentum else zeros
    return torch.sigmoid(model.step_size(x)) * (1 - eta) / model.options.mini_batch, alpha, eta


def outputs(model: Any, x: Tensor, z: Tensor) -> Tensor:
    """The output of the memory for z (B, L, H, K)."""
    return (rms_norm(z, model.norm.weight).flatten(2) * F.silu(model.gate(x))) @ model.out.weight.T


def read(x: Tensor, matrices: list[Tensor]) -> Tensor:
    """M(x)."""
    z = x
    for i, M in enumerate(matrices):
        z = (F.silu(z) if i else z) @ M
    return z


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Behrouz et al. 2024, section 3.1, a head and a position at a time; the inner gradient is autograd's."""
    if model.persistent is not None:
        x = torch.cat([model.persistent.expand(len(x), -1, -1), x], 1)
    q, k, v = inputs(model, x)
    theta, alpha, eta = rates(model, x)
    sequences = []
    for n in range(len(x)):
        heads = []
        for h in range(H):
            base = M = [start[h] for start in model.start]
            S, rows = [torch.zeros_like(part) for part in M], []
            for t in range(x.shape[1]):
                if t % model.options.mini_batch == 0:
                    base = M
                loss = (read(k[n, t, h], base) - v[n, t, h]).square().sum() / 2
                steps = torch.autograd.grad(loss, base, create_graph=True)
                S = [eta[n, t, h] * old - theta[n, t, h] * step for old, step in zip(S, steps, strict=True)]
                M = [(1 - alpha[n, t, h]) * old + step for old, step in zip(M, S, strict=True)]
                rows.append(read(q[n, t, h], M))
            heads.append(torch.stack(rows))
        sequences.append(torch.stack(heads, 1))
    y = outputs(model, x, torch.stack(sequences))
    if model.options.window:
        y = model.attention(y)[:, model.options.persistent :]
    return y


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mini_batch": 5, "depth": 3},
        {"mini_batch": 1, "momentum": False, "d_conv": 1, "depth": 1},
        {"mini_batch": 7, "forget": False, "n_heads": 3, "depth": 1},
        {"mini_batch": 5, "window": 6, "persistent": 3},
    ],
)
def test_is_what_the_paper_writes(options: dict[str, Any]) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), 19)


class Theirs(Network):
    """f and its gradient as flash-linear-attention's memory has them: it has a norm, f(x) = z + LN(z), and in the gradient of LN
    its first term has not the factor of the others, 1 / (K sigma).
    """

    def out(self, x: Tensor, z: Tensor) -> Tensor:
        """For the output z of the layer."""
        return super().out(z, z)

    def gradient(self, base: Any, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of one layer."""
        assert self.norm is not None
        z, (weight, bias) = k @ base[0], self.norm
        z = z - z.mean(-1, keepdim=True)
        sigma = (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        g = weight * (weight * z / sigma + bias - v + k)
        others = g.sum(-1, keepdim=True) + z / sigma * (g * z / sigma).sum(-1, keepdim=True)
        return [(k, 2 * (K * g - others / (K * sigma)))]


@pytest.mark.ci
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("mini_batch", [1, 8])
def test_learns_and_forgets_as_in_flash_linear_attention(mini_batch: int, chunked: bool) -> None:
    """Of one layer outputs and gradients, in float32 as its naive forms compute, with its own norm and gradient."""
    naive = peer("fla.ops.titans.naive", "einops").chunk_titans_linear_ref
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, H, 32, K)
    theta, alpha, eta = torch.rand(3, 2, H, 32, 1) * torch.tensor([0.002, 0.3, 0.9]).view(3, 1, 1, 1, 1)
    M, weight, bias = 5 * torch.randn(2, H, K, K), torch.randn(H, 1, K), torch.randn(H, 1, K)

    def ours(*x: Tensor) -> Tensor:
        q, k, v, theta, alpha, eta, M, weight, bias = x
        memory = Memory((M,) if mini_batch > 1 else (), (M,), (torch.zeros_like(M),))
        rates = Rates(theta, torch.log1p(-alpha[..., 0]), eta[..., 0].log())
        return learn(Theirs(silu, False, (weight, bias)), mini_batch, 0, q, k, v, rates, memory)[0]

    def theirs(*x: Tensor) -> Tensor:
        *rows, M, weight, bias = x
        q, k, v, theta, alpha, eta = (1 * part.transpose(1, 2) for part in rows)  # it changes what it is given
        z, _ = naive(
            *(q, k, v, weight[:, 0], bias[:, 0], theta, alpha, eta),
            chunk_size=mini_batch,
            initial_state=1 * M,
            use_chunk=chunked,
        )
        return z.transpose(1, 2)  # type: ignore[no-any-return]

    results = []
    for form in (ours, theirs):
        given = [part.clone().requires_grad_() for part in (q, k, v, theta, alpha, eta, M, weight, bias)]
        z = form(*given)
        results.append([z, *torch.autograd.grad(z.square().sum(), given)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * float(b.detach().abs().max()))


def test_memory_as_a_layer_is_attention_to_what_the_memory_gives() -> None:
    model = build(window=5)
    alone = Titans(Titans.Options(d_model=D, n_heads=H)).double()
    alone.load_state_dict({name: part for name, part in model.state_dict().items() if "attention" not in name})
    local = Transformer(Transformer.Options(d_model=D, n_heads=H, positions="rotary", window=5)).double()
    local.load_state_dict(model.attention.state_dict())
    x = torch.randn(2, 40, D, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), local(alone(x)), rtol=1e-9, atol=1e-11)


def test_starting_values() -> None:
    model, x = Titans(Titans.Options(d_model=64, n_heads=1)), torch.zeros(1, 1, 64)
    found = [float(rate(x).sigmoid().detach()) for rate in (model.forget, model.momentum, model.step_size)]
    assert found == pytest.approx([0.018, 0.5, 0.5], abs=1e-3)
    assert [float(M.detach().std()) for M in model.start] == pytest.approx([0.25, 0.02], rel=0.05)
