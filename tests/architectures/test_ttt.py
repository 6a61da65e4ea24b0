"""TTT: against gradient steps by autograd a position at a time, and flash-linear-attention's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from architectures._test_time import Network
from architectures.ttt import TTT
from regbench.ops.delta_rule import delta_rule
from tests.helpers.equations import check_equations, convolved, made
from tests.helpers.peers import check_peer, peer

D, H, K = 12, 3, 4
build = partial(made, TTT, moved=True, d_model=D, n_heads=H)


def inputs(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v (B, L, H, K) and eta (B, L, H)."""
    q, k = convolved(model.conv.conv, (x @ model.shared.weight.T).repeat(1, 1, 2)).chunk(2, -1)
    q, k, v = (part.unflatten(-1, (H, K)) for part in (q, k, model.value(x)))
    return q, k, v, (1.0 if model.options.inner == "linear" else 0.1) * torch.sigmoid(model.rate(x)) / K


def outputs(model: Any, x: Tensor, z: Tensor) -> Tensor:
    """y of z (B, L, H, K)."""
    z = F.layer_norm(z.flatten(2), (D,), model.norm.weight, model.norm.bias, eps=1e-6)
    return (F.gelu(model.gate(x), approximate="tanh") * z) @ model.out.weight.T


def f(model: Any, x: Tensor, matrices: list[Tensor], h: int) -> Tensor:
    """Of one head, Sun et al. 2024, section 2.7."""
    z = x
    for i, W in enumerate(matrices):
        z = (F.gelu(z, approximate="tanh") if i else z) @ W[:-1] + W[-1]
    if not model.options.inner_norm:
        return z
    return x + F.layer_norm(z, (K,), model.inner_weight[h, 0], model.inner_bias[h, 0], eps=1e-6)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Sun et al. 2024, section 2.4, a head and a position at a time; the inner gradient is autograd's."""
    q, k, v, eta = inputs(model, x)
    sequences = []
    for n in range(len(x)):
        heads = []
        for h in range(H):
            base = W = [start[h] for start in model.start]
            rows = []
            for t in range(x.shape[1]):
                if t % model.options.mini_batch == 0:
                    base = W
                loss = (f(model, k[n, t, h], base, h) - v[n, t, h]).square().sum() / 2
                steps = torch.autograd.grad(loss, base, create_graph=True)
                W = [part - eta[n, t, h] * step for part, step in zip(W, steps, strict=True)]
                rows.append(f(model, q[n, t, h], W, h))
            heads.append(torch.stack(rows))
        sequences.append(torch.stack(heads, 1))
    return outputs(model, x, torch.stack(sequences))


@pytest.mark.parametrize("inner", ["linear", "mlp"])
@pytest.mark.parametrize("options", [{"mini_batch": 5}, {}, {"mini_batch": 1, "d_conv": 1}, {"inner_norm": False}])
def test_is_what_the_paper_writes(inner: str, options: dict[str, Any]) -> None:
    model = build(inner=inner, **options)
    check_equations(model, lambda x: by_the_book(model, x), 19)


class OfTheFirst(nn.Module):
    """The rate of a mini-batch's first position for all of it: flash-linear-attention takes other positions' than ours."""

    def __init__(self, rate: nn.Module, size: int) -> None:
        super().__init__()
        self.weight, self.bias, self.size = rate.weight, rate.bias, size

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, H)."""
        first = F.linear(x, self.weight, self.bias)[:, :: self.size]
        return first.repeat_interleave(self.size, 1)[:, : x.shape[1]]


@pytest.mark.ci
@pytest.mark.parametrize("mini_batch", [1, 16])
def test_is_what_flash_linear_attention_computes(mini_batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of TTT-Linear outputs and gradients, in float32 as its naive form computes. Its f adds LN to W x + b and not to x, which it
    leaves to the layer; its loss has x. So ours does here.
    """
    naive = peer("fla.ops.ttt.naive", "einops").chunk_ttt_linear_ref
    model = build(torch.float32, mini_batch=mini_batch)
    model.rate = OfTheFirst(model.rate, mini_batch)
    own = Network.out
    monkeypatch.setattr(Network, "out", lambda network, x, z: own(network, z, z))

    def theirs(x: Tensor) -> Tensor:
        q, k, v, eta = inputs(model, x)
        W, b = (model.start[0][None, :, part].expand(len(x), -1, -1, -1) for part in (slice(-1), slice(-1, None)))
        norm = (part[:, 0] for part in (model.inner_weight, model.inner_bias))
        z, *_ = naive(
            q.clone(),
            k,
            v,
            *norm,
            eta[..., None],
            scale=1.0,
            mini_batch_size=mini_batch,
            initial_state=W,
            initial_state_bias=b,
        )
        return outputs(model, x, z)

    check_peer(model, theirs, length=48, tolerance=2e-5)


def test_starting_values() -> None:
    model = TTT(TTT.Options(d_model=64, n_heads=1, inner="mlp"))
    assert [tuple(W.shape) for W in model.start] == [(1, 65, 256), (1, 257, 64)]
    for W in model.start:
        assert not W[:, -1].any()
        assert float(W[:, :-1].detach().std()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("mini_batch", [1, 2])
def test_without_its_norm_and_a_step_a_position_it_is_the_delta_rule(mini_batch: int) -> None:
    """Of DeltaNet, on keys and queries (k, 1)."""
    model, x = build(mini_batch=mini_batch, inner_norm=False), torch.randn(2, 40, D, dtype=torch.float64)
    q, k, v, eta = inputs(model, x)
    q, k = (F.pad(part, (0, 1), value=1.0) for part in (q, k))
    with torch.no_grad():
        z, _ = delta_rule(
            *(part.transpose(1, 2) for part in (q, k, v)), eta.mT, None, model.start[0].expand(2, -1, -1, -1)
        )
        assert torch.allclose(model(x), outputs(model, x, z.transpose(1, 2)), rtol=1e-9) == (mini_batch == 1)
