"""The recurrences of today's architectures: which equals which, against the papers, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures._delta_mixer import DeltaMixer
from architectures.deltanet import DeltaNet
from architectures.forgetting_transformer import ForgettingTransformer
from architectures.gated_deltanet import GatedDeltaNet
from architectures.gated_deltaproduct import GatedDeltaProduct
from architectures.kimi_delta_attention import KimiDeltaAttention
from architectures.mamba2 import Mamba2
from architectures.mamba3 import Mamba3
from architectures.mesanet import ConjugateGradients, MesaNet, solve_exactly
from architectures.mlstm import MLSTM
from architectures.transformer import Transformer
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.ops.backend import use_backend
from regbench.tasks.base import TokenIO
from regbench.utils.errors import UserError

IO = TokenIO(vocab_size=5, separator=4, max_length=80, names=("a", "b", "c", "d", "|"))


def make(cls: type[Mixer], dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    return cls(resolve_options(cls, {"d_model": 12, "n_heads": 3, **options})).to(dtype)


def inputs(dtype: torch.dtype = torch.float32, length: int = 45) -> Tensor:
    return torch.randn(2, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype)


def same(ours: Mixer, other: Mixer, tolerance: float = 1e-6) -> None:
    """To `tolerance` of the largest entry, by the naive implementations."""
    x = inputs()
    with use_backend("naive"), torch.no_grad():
        a, b = ours(x), other(x)
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("negative", [False, True])
def test_gated_deltanet_without_decay_and_gate_is_deltanet(negative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make(DeltaNet, negative_eigenvalues=negative)
    gated = make(GatedDeltaNet, expand_k=1.0, expand_v=1.0, negative_eigenvalues=negative)
    gated.load_state_dict(plain.state_dict(), strict=False)
    monkeypatch.setattr(gated, "gate", lambda x, z: z)
    x = inputs()
    with torch.no_grad():
        assert not torch.allclose(gated(x), plain(x), atol=1e-4)
        gated.A_log.fill_(-torch.inf)
    same(gated, plain)


def test_kimi_delta_attention_with_equal_decays_in_a_head_is_gated_deltanet(monkeypatch: pytest.MonkeyPatch) -> None:
    gated, kimi = make(GatedDeltaNet, expand_k=1.0, expand_v=1.0), make(KimiDeltaAttention)
    shared = {
        k: v for k, v in gated.state_dict().items() if not k.startswith(("time_step", "output_gate", "step_bias"))
    }
    kimi.load_state_dict(shared, strict=False)
    monkeypatch.setattr(kimi, "gate", gated.gate)
    down, up = kimi.time_step
    with torch.no_grad():
        down.weight.copy_(F.pad(gated.time_step.weight, (0, 0, 0, down.out_features - 3)))
        up.weight.copy_(F.pad(torch.eye(3), (0, up.in_features - 3)).repeat_interleave(4, 0))
        kimi.step_bias.copy_(gated.step_bias.repeat_interleave(4))
    same(kimi, gated)


def test_deltaproduct_of_one_step_is_gated_deltanet() -> None:
    one, gated = make(GatedDeltaProduct, n_h=1), make(GatedDeltaNet, negative_eigenvalues=True)
    one.load_state_dict(gated.state_dict())
    same(one, gated)


def unit(x: Tensor) -> Tensor:
    """Of length 1, with 1e-6 under the root, which the papers leave out and the authors' code has."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def by_the_book(model: DeltaMixer, x: Tensor) -> Tensor:
    """Siems et al. 2025, section 3, a token and a step at a time, with Householder matrices."""
    options: Any = model.options
    steps, heads = options.steps, options.n_heads
    width, dim = options.d_k // heads, options.d_v // heads
    kernel = model.conv.conv.weight[:, 0]
    raw = torch.cat([linear(x) for linear in (model.query, model.key, model.value)], -1)
    padded = F.pad(raw, (0, 0, options.d_conv - 1, 0))
    mixed = sum(kernel[:, i] * padded[:, i : i + x.shape[1]] for i in range(options.d_conv))
    q, k, v = (mixed * torch.sigmoid(mixed)).split(model.sizes, -1)  # type: ignore[operator]
    beta = torch.sigmoid(model.beta(x)) * (2 if options.negative_eigenvalues else 1)
    g = model.log_decay(x)
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
        rows.append(z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * model.norm.weight)
    return model.out(model.gate(x, torch.cat(rows, -1)))  # type: ignore[no-any-return]


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
    model, x = make(cls, torch.float64, **options), inputs(torch.float64, 20)
    with torch.no_grad():
        torch.testing.assert_close(model(x), by_the_book(model, x), rtol=1e-9, atol=1e-11)


@pytest.mark.ci
def test_deltaproduct_is_what_flash_linear_attention_computes() -> None:
    pytest.importorskip("einops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no GPU
        naive = pytest.importorskip("fla.ops.gated_delta_product.naive")
    model = make(GatedDeltaProduct, n_h=2)
    q, k, v = torch.randn(2, 3, 20, 4), F.normalize(torch.randn(2, 3, 40, 4), dim=-1), torch.randn(2, 3, 40, 6)
    beta, g = 2 * torch.rand(2, 3, 40), F.logsigmoid(torch.randn(2, 3, 20))
    z, _ = model._recur(q, k, v, beta, g, torch.zeros(2, 3, 4, 6))
    inside = [x.transpose(1, 2) for x in (q, k, v, g, beta)]
    expected = naive.naive_recurrent_gated_delta_product(*inside, scale=1.0, num_householder=2)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(z, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_mamba2_is_linear_attention_with_one_decay_for_a_head() -> None:
    """Dao and Gu 2024, section 7, a position at a time."""
    model, u = make(Mamba2, torch.float64, d_state=5), inputs(torch.float64)
    kernel, bias = model.conv.conv.weight[:, 0], model.conv.conv.bias
    with torch.no_grad():
        z, mixed, dt = model.in_proj(u).split([24, 34, 3], -1)
        padded = F.pad(mixed, (0, 0, 3, 0))
        mixed = F.silu(sum(kernel[:, i] * padded[:, i : i + 45] for i in range(4)) + bias)
        x, B, C = mixed.split([24, 5, 5], -1)
        dt = F.softplus(dt + model.dt_bias)
        S, outputs = u.new_zeros(2, 3, 5, 8), []
        for t in range(45):
            x_t = x[:, t].view(2, 3, 8)
            decay = torch.exp(-model.A_log.exp() * dt[:, t])
            S = decay[..., None, None] * S + dt[:, t, :, None, None] * B[:, t, None, :, None] * x_t[:, :, None]
            outputs.append(torch.einsum("bn,bhnp->bhp", C[:, t], S) + model.D[:, None] * x_t)
        y = torch.stack(outputs, 1).flatten(2) * F.silu(z)
        expected = model.out_proj(y * (y.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * model.norm.weight)
        torch.testing.assert_close(model(u), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("heavy_tail", "turning"), [(False, True), (True, True), (False, False)])
def test_mamba3_is_the_trapezoid_rule_with_turned_inputs(heavy_tail: bool, turning: bool) -> None:
    """Lahoti et al. 2026, section 3, a position at a time, the turned channels as complex numbers.

    With `heavy_tail` A is that of the authors' code since June 2026 (state-spaces/mamba, commit c69aaab).
    """
    model = make(Mamba3, torch.float64, d_state=8, heavy_tail=heavy_tail, turning=turning)
    u = inputs(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
        z, x, B, C, delta, A, trapezoid, theta = model.in_proj(u).split([24, 24, 8, 8, 3, 3, 3, 2], -1)
        delta, mix = F.softplus(delta + model.dt_bias), trapezoid.sigmoid()
        decay = torch.where(A < 0, 1 / (1 - A.clamp(max=0)), 1 + A) if heavy_tail else F.softplus(A)
        alpha = torch.exp(-delta * decay.clamp(min=1e-4))
        beta, gamma = (1 - mix) * delta * alpha, mix * delta
        B, C = ((t * (t.square().mean(-1, keepdim=True) + 1e-5).rsqrt()) for t in (B, C))
        angle, outputs = u.new_zeros(2, 3, 2), []
        S, k, v = u.new_zeros(2, 3, 8, 8), u.new_zeros(2, 3, 8), u.new_zeros(2, 3, 8)
        for t in range(45):
            angle = angle + delta[:, t, :, None] * torch.pi * torch.tanh(theta[:, t, None]) * turning
            both = []
            for normed, norm, bias in ((B, model.B_norm, model.B_bias), (C, model.C_norm, model.C_bias)):
                vector = (normed[:, t] * norm.weight)[:, None] + bias
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


def test_conjugate_gradients_have_the_gradients_of_the_solution() -> None:
    """Of all inputs, by the solution and the last H. H has to be symmetric: its gradient is compared as a symmetric matrix's."""
    given = solving()
    found, right = ConjugateGradients.apply(*given, 30), solve_exactly(*given)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    upstream = [torch.randn_like(right[0]), torch.randn_like(right[1])]
    upstream[1] = upstream[1] + upstream[1].mT
    ours, theirs = (torch.autograd.grad(x, given, upstream) for x in (found, right))
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if place in (1, 2):  # k and beta k stand in one symmetric product, in which they may change places
            a, b = (ours[1] * given[1] + ours[2] * given[2], theirs[1] * given[1] + theirs[2] * given[2])
        if place == 5:
            a, b = a + a.mT, b + b.mT
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-8, atol=1e-8)


def test_mesanet_takes_steps_of_conjugate_gradients_only_where_it_takes_them() -> None:
    with pytest.raises(ValueError, match="cg_steps is about solver=cg, and the solver is exact"):
        MesaNet.Options(solver="exact", cg_steps=3)


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
    pytest.importorskip("einops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no GPU
        naive = pytest.importorskip("fla.ops.mesa_net.naive")
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
    model, u = make(MLSTM, torch.float64), inputs(torch.float64)
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


@pytest.mark.parametrize("scale", [100.0, -100.0])
def test_mlstms_exponential_gates_do_not_overflow(scale: float) -> None:
    model, u = make(MLSTM), inputs()
    with torch.no_grad():
        model.input_gate.bias.fill_(scale)
    y = model(u)
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_forgetting_attention_with_open_gates_is_attention_without_positions() -> None:
    forgetting, plain = make(ForgettingTransformer), make(Transformer)
    with torch.no_grad():
        forgetting.forget_gate.bias.fill_(1e4)
        plain.qkv.weight.copy_(torch.cat([getattr(forgetting, n).weight for n in ("query", "key", "value")]))
        plain.out.weight.copy_(forgetting.out.weight)
    same(forgetting, plain)


@pytest.mark.ci
@pytest.mark.parametrize("bias", [0.0, -4.0, 4.0])
def test_forgetting_attention_is_what_flash_linear_attention_computes(bias: float) -> None:
    pytest.importorskip("einops")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no GPU
        naive = pytest.importorskip("fla.ops.forgetting_attn.naive")
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


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (DeltaNet, {"n_heads": 5}, r"expand_k \* d_model \(12\) must be a multiple of n_heads \(5\)"),
        (GatedDeltaNet, {"n_heads": 2}, r"expand_k \* d_model \(9\) must be a multiple of n_heads \(2\)"),
        (KimiDeltaAttention, {"expand_v": 1.25}, r"expand_v \* d_model \(15\) must be a multiple of n_heads \(4\)"),
        (DeltaNet, {"d_model": 257, "n_heads": 1}, "a head's keys have width 257, above 256, the largest"),
        (GatedDeltaProduct, {"n_h": -1}, "n_h"),
        (GatedDeltaProduct, {"n_h": 0}, "n_h"),
        (Mamba2, {"n_heads": 5}, r"expand \* d_model \(24\) must be a multiple of n_heads \(5\)"),
        (Mamba2, {"d_state": 257}, "d_state"),
        (Mamba3, {"n_heads": 5}, r"expand \* d_model \(24\) must be a multiple of n_heads \(5\)"),
        (Mamba3, {"d_state": 6}, "d_state"),
        (MesaNet, {"n_heads": 5}, r"d_model \(12\) must be a multiple of n_heads \(5\)"),
        (MesaNet, {"cg_steps": 0}, "cg_steps"),
        (MLSTM, {"n_heads": 5}, r"projection \* d_model \(24\) must be a multiple of n_heads \(5\)"),
        (MLSTM, {"block_size": 5}, r"projection \* d_model \(24\) must be a multiple of block_size \(5\)"),
        (ForgettingTransformer, {"n_heads": 5}, r"d_model \(12\) must be a multiple of n_heads \(5\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(cls: type[Mixer], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        build(cls, resolve_options(cls, {"d_model": 12, "n_heads": 4, **settings}), IO)
    assert "\n" not in str(refused.value)
