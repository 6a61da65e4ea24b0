"""The recurrences of today's architectures, against the papers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.deltanet import DeltaNet
from architectures.forgetting_transformer import ForgettingTransformer
from architectures.gated_deltanet import GatedDeltaNet
from architectures.gated_deltaproduct import GatedDeltaProduct
from architectures.kimi_delta_attention import KimiDeltaAttention
from architectures.mamba2 import Mamba2
from architectures.mamba3 import Mamba3
from architectures.mesanet import ConjugateGradients, MesaNet
from architectures.mlstm import MLSTM
from regbench.models.mixer import Mixer
from tests.helpers.equations import convolved, made, rms_norm, unit
from tests.helpers.peers import peer

make = partial(made, dtype=torch.float32, d_model=12, n_heads=3)


def inputs(dtype: torch.dtype = torch.float32, length: int = 45) -> Tensor:
    return torch.randn(2, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Siems et al. 2025, section 3, a token and a step at a time, with Householder matrices."""
    options: Any = model.options
    steps, heads = options.steps, options.n_heads
    width, dim = options.d_k // heads, options.d_v // heads
    raw = torch.cat([linear(x) for linear in (model.query, model.key, model.value)], -1)
    q, k, v = F.silu(convolved(model.conv.conv, raw)).split(model.sizes, -1)
    beta = torch.sigmoid(model.beta(x)) * (2 if options.negative_eigenvalues else 1)
    g = None if type(model) is DeltaNet else -F.softplus(model.time_step(x) + model.step_bias)
    if g is not None:
        g = (g.unflatten(-1, (heads, -1)) * model.A_log.exp()[:, None]).transpose(1, 2)
    rows = []
    for h in range(heads):
        S = x.new_zeros(len(x), width, dim)
        outputs = []
        for t in range(x.shape[1]):
            if g is not None:
                S = g[:, h, t].exp().reshape(len(x), -1, 1) * S
            for n in range(steps):
                place = h * steps + n
                key = unit(k[:, t, place * width : (place + 1) * width])
                value = v[:, t, place * dim : (place + 1) * dim]
                b = beta[:, t, place, None, None]
                householder = torch.eye(width, dtype=x.dtype) - b * key[:, :, None] * key[:, None]
                S = householder @ S + b * key[:, :, None] * value[:, None]
            query = unit(q[:, t, h * width : (h + 1) * width]) / width**0.5
            outputs.append((query[:, None] @ S)[:, 0])
        z = torch.stack(outputs, 1)
        rows.append(rms_norm(z, model.norm.weight))
    y = torch.cat(rows, -1)
    if type(model) is not DeltaNet:
        gate = torch.sigmoid if type(model) is KimiDeltaAttention else F.silu
        y = y * gate(model.output_gate(x))
    return y @ model.out.weight.T


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (DeltaNet, {}),
        (DeltaNet, {"negative_eigenvalues": True, "expand_v": 2.0}),
        (GatedDeltaNet, {}),
        (GatedDeltaProduct, {"n_h": 3}),
        (KimiDeltaAttention, {}),
    ],
)
def test_is_what_the_papers_write(cls: type[Mixer], options: dict[str, Any]) -> None:
    model, x = make(cls, dtype=torch.float64, **options), inputs(torch.float64, 20)
    with torch.no_grad():
        torch.testing.assert_close(model(x), by_the_book(model, x), rtol=1e-9, atol=1e-11)


def test_mamba2_is_linear_attention_with_one_decay_for_a_head() -> None:
    """Dao and Gu 2024, section 7, a position at a time."""
    model, u = make(Mamba2, dtype=torch.float64, d_state=5), inputs(torch.float64)
    with torch.no_grad():
        z, mixed, dt = model.in_proj(u).split([24, 34, 3], -1)
        x, B, C = F.silu(convolved(model.conv.conv, mixed)).split([24, 5, 5], -1)
        dt = F.softplus(dt + model.dt_bias)
        S, outputs = u.new_zeros(2, 3, 5, 8), []
        for t in range(45):
            x_t = x[:, t].view(2, 3, 8)
            decay = torch.exp(-model.A_log.exp() * dt[:, t])
            S = decay[..., None, None] * S + dt[:, t, :, None, None] * B[:, t, None, :, None] * x_t[:, :, None]
            outputs.append(torch.einsum("bn,bhnp->bhp", C[:, t], S) + model.D[:, None] * x_t)
        y = torch.stack(outputs, 1).flatten(2) * F.silu(z)
        expected = model.out_proj(rms_norm(y, model.norm.weight))
        torch.testing.assert_close(model(u), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("heavy_tail", "turning"), [(False, True), (True, True), (False, False)])
def test_mamba3_is_the_trapezoid_rule_with_turned_inputs(heavy_tail: bool, turning: bool) -> None:
    """Lahoti et al. 2026, section 3, a position at a time, the turned channels as complex numbers.

    With `heavy_tail` A is that of the authors' code since June 2026 (state-spaces/mamba, commit c69aaab).
    """
    model = make(Mamba3, dtype=torch.float64, d_state=8, heavy_tail=heavy_tail, turning=turning)
    u = inputs(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
        z, x, B, C, delta, A, trapezoid, theta = model.in_proj(u).split([24, 24, 8, 8, 3, 3, 3, 2], -1)
        delta, mix = F.softplus(delta + model.dt_bias), trapezoid.sigmoid()
        decay = torch.where(A < 0, 1 / (1 - A.clamp(max=0)), 1 + A) if heavy_tail else F.softplus(A)
        alpha = torch.exp(-delta * decay.clamp(min=1e-4))
        beta, gamma = (1 - mix) * delta * alpha, mix * delta
        angle, outputs = u.new_zeros(2, 3, 2), []
        S, k, v = u.new_zeros(2, 3, 8, 8), u.new_zeros(2, 3, 8), u.new_zeros(2, 3, 8)
        for t in range(45):
            angle = angle + delta[:, t, :, None] * torch.pi * torch.tanh(theta[:, t, None]) * turning
            both = []
            for raw, norm, bias in ((B, model.B_norm, model.B_bias), (C, model.C_norm, model.C_bias)):
                vector = rms_norm(raw[:, t], norm.weight)[:, None] + bias
                turned = torch.complex(vector[..., :2], vector[..., 2:4]) * torch.polar(torch.ones_like(angle), angle)
                both.append(torch.cat([turned.real, turned.imag, vector[..., 4:]], -1))
            old = beta[:, t, :, None, None] * k[..., None] * v[..., None, :]
            (k, q), v = both, x[:, t].view(2, 3, 8)
            S = alpha[:, t, :, None, None] * S + old + gamma[:, t, :, None, None] * k[..., None] * v[..., None, :]
            outputs.append(torch.einsum("bhn,bhnp->bhp", q, S) + model.D[:, None] * v)
        expected = model.out_proj(torch.stack(outputs, 1).flatten(2) * F.silu(z))
        torch.testing.assert_close(model(u), expected, rtol=1e-9, atol=1e-11)


def test_mesanet_by_conjugate_gradients_is_mesanet_by_solving() -> None:
    """Outputs and all gradients, of weights moved from their start."""
    by_steps, exact = make(MesaNet), make(MesaNet, solver="exact")
    with torch.no_grad():
        for parameter in by_steps.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    exact.load_state_dict(by_steps.state_dict())
    x = inputs()
    found, right = by_steps(x), exact(x)
    torch.testing.assert_close(found, right, rtol=0, atol=2e-4 * float(right.detach().abs().max()))
    upstream = torch.randn_like(found)
    gradients = (torch.autograd.grad(y, list(m.parameters()), upstream) for y, m in ((found, by_steps), (right, exact)))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-4 * float(b.abs().max()))


def solving(length: int = 20) -> list[Tensor]:
    """q, k, beta k, log decay, Lambda and H in float64."""
    generator = torch.Generator().manual_seed(0)
    q, k = (F.normalize(torch.randn(2, 3, length, 4, generator=generator).double(), dim=-1) for _ in range(2))
    beta, g = torch.rand(2, 2, 3, length, generator=generator).double()
    root = torch.randn(2, 3, 4, 4, generator=generator).double()
    ridge = 0.25 + torch.rand(3, 1, 4, generator=generator).double()
    tensors = [q, k, beta[..., None] * k, g.log(), ridge, root @ root.mT]
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def test_mesanet_reads_a_sequence_of_no_tokens() -> None:
    """It leaves the state as it is."""
    model = make(MesaNet)
    _, before = model.advance(inputs(), model.init_state(2))
    y, after = model.advance(inputs()[:, :0], before)
    assert y.shape[1] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_gradient_of_the_solution_may_be_very_small() -> None:
    given = [tensor.detach().float().requires_grad_() for tensor in solving()]
    found, _ = ConjugateGradients.apply(*given, 30)
    upstream = torch.randn_like(found)
    usual, small = (torch.autograd.grad(found, given, upstream * x, retain_graph=True) for x in (1.0, 2.0**-60))
    for a, b in zip(usual, small, strict=True):
        torch.testing.assert_close(b * 2.0**60, a, rtol=1e-6, atol=1e-7)


@pytest.mark.ci
def test_mesanet_is_what_flash_linear_attention_computes() -> None:
    naive = peer("fla.ops.mesa_net.naive", "einops")
    q, k, written, g, ridge, _ = (tensor.detach().float() for tensor in solving())
    beta, H = (written * k).sum(-1), torch.zeros(2, 3, 4, 4)
    found, _ = ConjugateGradients.apply(q, k, written, g, ridge, H, 30)
    z = torch.einsum("bhlk,bhlkv->bhlv", found, states(written, k, g))
    inside = [x.transpose(1, 2) for x in (q, k, k, g)]
    expected = naive.naive_mesa_net_exact(*inside, ridge[:, 0], beta.transpose(1, 2))[0]
    torch.testing.assert_close(z, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


def states(written: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """G of all positions, (B, H, L, K, V)."""
    G, kept = written.new_zeros(*written.shape[:2], written.shape[3], v.shape[3]), []
    for t in range(written.shape[2]):
        G = g[:, :, t, None, None].exp() * G + written[:, :, t, :, None] * v[:, :, t, None]
        kept.append(G)
    return torch.stack(kept, 2)


def test_mlstm_is_what_the_paper_writes() -> None:
    """Beck et al. 2024, section 2.3, without the stabiliser, of which the output must not depend."""
    model, u = make(MLSTM, dtype=torch.float64), inputs(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
        x, z = model.up(u).chunk(2, -1)
        c = F.silu(model.conv(x, model.conv.init_window(2, dtype=x.dtype))[0])
        q, k, v = model.query(c), model.key(c) / 8**0.5, model.value(x)
        gates = torch.cat([q, k * 8**0.5, v], -1)
        i, f = model.input_gate(gates).exp(), model.forget_gate(gates).sigmoid()
        C, n, outputs = u.new_zeros(2, 3, 8, 8), u.new_zeros(2, 3, 8), []
        for t in range(45):
            q_t, k_t, v_t = (part[:, t].view(2, 3, 8) for part in (q, k, v))
            C = f[:, t, :, None, None] * C + i[:, t, :, None, None] * k_t[..., None] * v_t[..., None, :]
            n = f[:, t, :, None] * n + i[:, t, :, None] * k_t
            below = torch.clamp((n * q_t).sum(-1).abs(), min=1.0)
            outputs.append(torch.einsum("bhk,bhkv->bhv", q_t, C) / below[..., None])
        h = F.layer_norm(torch.stack(outputs, 1), (8,)).flatten(2) * model.norm_weight
        expected = model.down((h + model.skip * c) * F.silu(z))
        torch.testing.assert_close(model(u), expected, rtol=1e-4, atol=1e-5)  # 1e-6 is added to the divisor


@pytest.mark.ci
@pytest.mark.parametrize("bias", [0.0, -4.0, 4.0])
def test_forgetting_attention_is_what_flash_linear_attention_computes(bias: float) -> None:
    naive = peer("fla.ops.forgetting_attn.naive", "einops")
    model, x = make(ForgettingTransformer), inputs()
    with torch.no_grad():
        model.forget_gate.bias.fill_(bias)
        q, k, v, g = (part.transpose(1, 2) for part in model._inputs(x))
        expected = model.out(naive.naive_forgetting_attn(q, k, v, g).flatten(2))
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("bias", "error"), [(0.0, 1e-4), (-3.0, 5e-4)])
def test_the_gradient_of_a_forget_gate_keeps_its_digits(bias: float, error: float) -> None:
    """At 1,024 positions, against float64. Without c_i in the scores the errors are 2.7e-4 and 2.1e-3 or more."""
    grads = []
    for dtype in (torch.float32, torch.float64):
        model = make(ForgettingTransformer, d_model=64, n_heads=4).to(dtype)
        with torch.no_grad():
            model.forget_gate.bias.fill_(bias)
        x = torch.randn(1, 1024, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(dtype)
        (model(x) * torch.linspace(-1, 1, 64, dtype=dtype)).square().mean().backward()
        grads.append([p.grad.double() for p in model.forget_gate.parameters()])
    for single, double in zip(*grads, strict=True):
        assert (single - double).norm() < error * double.norm()


def test_starting_values() -> None:
    """Of the rates and steps: as Mamba's, and without weight decay."""
    for cls, low in ((GatedDeltaNet, 0.0), (KimiDeltaAttention, 1.0), (Mamba2, 1.0)):
        model = make(cls, n_heads=32, d_model=128)
        bias = model.dt_bias if cls is Mamba2 else model.step_bias
        rates, steps = model.A_log.detach().exp(), F.softplus(bias.detach())
        assert low <= float(rates.min()) < low + 3
        assert 13 < float(rates.max()) <= 16
        assert 0.00099 < float(steps.min()) < 0.004
        assert 0.03 < float(steps.max()) < 0.1001
        assert model.A_log._no_weight_decay
        assert bias._no_weight_decay
    gates = make(MLSTM).forget_gate
    assert gates.bias.tolist() == [3.0, 4.5, 6.0]
    assert not gates.weight.any()


@pytest.mark.ci
def test_deltaproduct_is_what_flash_linear_attention_computes() -> None:
    naive = peer("fla.ops.gated_delta_product.naive", "einops")
    model = make(GatedDeltaProduct, n_h=2)
    q, k, v = torch.randn(2, 3, 20, 4), F.normalize(torch.randn(2, 3, 40, 4), dim=-1), torch.randn(2, 3, 40, 6)
    beta, g = 2 * torch.rand(2, 3, 40), F.logsigmoid(torch.randn(2, 3, 20))
    z, _ = model._recur(q, k, v, beta, g, torch.zeros(2, 3, 4, 6))
    inside = [x.transpose(1, 2) for x in (q, k, v, g, beta)]
    expected = naive.naive_recurrent_gated_delta_product(*inside, scale=1.0, num_householder=2)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(z, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
