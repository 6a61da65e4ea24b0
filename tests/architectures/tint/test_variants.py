"""The simulator modules of other model families, each and as one block, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.tint.explicit import NORM_EPSILON
from architectures.tint.layout import Layout
from architectures.tint.linear import LinearModule
from architectures.tint.variants import AlibiAttention, GatedUnit, RMSNormModule, RotaryAttention
from regbench.models.rotary import rotate
from tests.architectures.tint.conftest import close

D, HEADS, T, RATE = 12, 3, 7, 0.03
SEEN = torch.arange(T).expand(2, -1) < torch.tensor([[5], [T]])


def layout() -> Layout:
    return Layout.of(D, HEADS, T, 4)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_prefixes(weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A matrix in the prefix tokens of two sequences."""
    return layout().store(weight.detach(), None if bias is None else bias.detach()).expand(2, -1, -1)


def rms(x: Tensor) -> Tensor:
    """Written out."""
    return x / (x.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt()


def scores(name: str, q: Tensor, k: Tensor) -> Tensor:
    """The scores of heads (B, T, D), position by position."""
    q, k = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k))
    if name == "rotary":
        q, k = rotate(q), rotate(k)
    rows = []
    for t in range(T):
        row = (q[:, :, t, None] * k[:, :, : t + 1]).sum(-1) / (D / HEADS) ** 0.5
        if name == "alibi":
            for head in range(HEADS):
                row[:, head] += 2 ** (-8 * (head + 1) / HEADS) * (torch.arange(t + 1) - t)
        rows.append(F.pad(row.softmax(-1), (0, T - 1 - t)))
    return torch.stack(rows, 2)


def heads(v: Tensor) -> Tensor:
    return v.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def test_rmsnorm_and_its_way_back() -> None:
    plan, x, g = layout(), drawn(2, T, D).requires_grad_(), drawn(2, T, D, seed=1)
    gamma, bias = drawn(D, seed=2), drawn(D, seed=3)
    right = gamma * rms(x) + bias
    (of_x,) = torch.autograd.grad(right, x, g)
    prefix, errors = in_prefixes(gamma.diag(), bias), []
    for epsilon in (1e-3, 5e-4):
        module = RMSNormModule(plan, RATE, epsilon)
        close(plan.get(module(plan.put(x.detach()), prefix)), right, 1e-12)
        errors.append((plan.get(module.backward(plan.put(g), plan.put(x.detach()), prefix)) - of_x).abs().max())
    assert errors[0] < 1e-2 * of_x.abs().max()
    assert float(errors[1] / errors[0]) == pytest.approx(0.5, abs=0.01)  # the difference tends to the derivative
    weight, learned = plan.load(module.descent(plan.put(g), prefix, SEEN))
    close(weight, gamma.diag().expand(2, -1, -1), 1e-15)
    close(learned, bias - RATE * (g * SEEN[..., None]).sum(1), 1e-12)


def test_a_gated_unit_its_way_back_and_its_descent() -> None:
    plan, x, g = layout(), drawn(2, T, D).requires_grad_(), drawn(2, T, D, seed=1)
    W, V = (drawn(D, D, seed=seed).requires_grad_() for seed in (2, 3))
    b, c = (drawn(D, seed=seed).requires_grad_() for seed in (4, 5))
    w, v = in_prefixes(W, b), in_prefixes(V, c)
    right = (x @ W.T + b) * F.silu(x @ V.T + c)
    of_x, of_W, of_b, of_V, of_c = torch.autograd.grad(right, (x, W, b, V, c), g * SEEN[..., None])
    errors = []
    for epsilon in (1e-5, 5e-6):
        module = GatedUnit(plan, RATE, epsilon)
        out, kept = module(plan.put(x.detach()), w, v)
        close(plan.get(out), right, 1e-12)
        masked = plan.put(g * SEEN[..., None])
        back = plan.get(module.backward(masked, kept, w, v))
        errors.append((back - of_x).abs().max())
        new_w, new_v = (plan.load(one) for one in module.descent(masked, kept, w, v, SEEN))
        for new, old, exact, tolerance in (
            (new_w[0], W, of_W, 1e-12),  # no approximation
            (new_w[1], b, of_b, 1e-12),
            (new_v[0], V, of_V, 1e-3),
            (new_v[1], c, of_c, 1e-3),
        ):
            close((new - old).sum(0), -RATE * exact, tolerance)
        _, of_gate = module.upstream(plan.put(g), kept)
        slope = torch.sigmoid(kept.v) * (1 + kept.v * (1 - torch.sigmoid(kept.v)))
        apart = plan.get(of_gate - kept.w * slope * plan.put(g)).abs()
        # The second derivative of SiLU is at most 1/2.
        assert (apart <= epsilon / 4 * g.square() * plan.get(kept.w).abs() + 1e-9).all()
    assert errors[0] < 1e-4 * of_x.abs().max()
    assert float(errors[1] / errors[0]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("name", "attention"), [("rotary", RotaryAttention), ("alibi", AlibiAttention)])
def test_a_block_of_them_is_autograd_with_stopped_scores(
    name: str, attention: type[RotaryAttention] | type[AlibiAttention]
) -> None:
    """RMSNorm, attention, RMSNorm and a gated unit with its output, as in LLaMA: the gradient of the block's input."""
    plan, h, g = layout(), drawn(2, T, D).requires_grad_(), drawn(2, T, D, seed=1)
    query, key, value, out, W, V, down = (drawn(D, D, seed=10 + i) * D**-0.5 for i in range(7))
    first, second = drawn(D, seed=20), drawn(D, seed=21)

    z = first * rms(h)
    weights = scores(name, z @ query.T, z @ key.T).detach()
    middle = h + (weights @ heads(z @ value.T)).transpose(1, 2).flatten(2) @ out.T
    z2 = second * rms(middle)
    end = middle + ((z2 @ W.T) * F.silu(z2 @ V.T)) @ down.T
    (right,) = torch.autograd.grad(end, h, g)

    norm, gated, linear = RMSNormModule(plan, RATE, 1e-6), GatedUnit(plan, RATE, 1e-6), LinearModule(plan, RATE)
    mix, x = attention(plan), plan.put(h.detach())
    p = {name: in_prefixes(w) for name, w in (("q", query), ("k", key), ("v", value), ("o", out), ("d", down))}
    p |= {"1": in_prefixes(first.diag()), "2": in_prefixes(second.diag()), "W": in_prefixes(W), "V": in_prefixes(V)}
    one = norm(x, p["1"])
    qkv = sum(plan.put(plan.get(linear(one, p[part])), slot) for slot, part in enumerate("qkv"))
    assert isinstance(qkv, Tensor)
    mid = x + linear(mix(qkv), p["o"])
    product, kept = gated(norm(mid, p["2"]), p["W"], p["V"])
    close(plan.get(mid + linear(product, p["d"])), end, 1e-12)
    back = plan.put(g)
    back = back + norm.backward(gated.backward(linear.backward(back, p["d"]), kept, p["W"], p["V"]), mid, p["2"])
    of_values = mix.backward(linear.backward(back, p["o"]), qkv)
    back = back + norm.backward(linear.backward(of_values, p["v"]), x, p["1"])
    close(plan.get(back), right, 1e-5)
