"""Gated DeltaNet-2 and Comba: against their recurrences, and flash-linear-attention's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.comba import Comba
from architectures.gated_deltanet import GatedDeltaNet
from architectures.gated_deltanet2 import GatedDeltaNet2
from regbench.models.heads import split_heads
from regbench.models.mixer import Mixer
from regbench.ops.backend import use_backend
from tests.helpers.equations import check_equations, convolved, made, rms_norm, unit
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
make = partial(made, moved=True, d_model=D, n_heads=H)


def inputs(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v after the convolution, (B, L, H, K) each, k and q not yet of length 1."""
    raw = torch.cat([linear(x) for linear in (model.query, model.key, model.value)], -1)
    q, k, v = F.silu(convolved(model.conv.conv, raw)).split(model.sizes, -1)
    return q.unflatten(-1, (H, -1)), k.unflatten(-1, (H, -1)), v.unflatten(-1, (H, -1))


def outputs(model: Any, x: Tensor, z: Tensor) -> Tensor:
    """y of z (B, L, H, V)."""
    z = rms_norm(z, model.norm.weight)
    return (z.flatten(2) * torch.sigmoid(model.output_gate(x))) @ model.out.weight.T


def gated_deltanet2(model: Any, x: Tensor) -> Tensor:
    """Its section 3, a head and a position at a time, with the matrix of transition."""
    q, k, v = inputs(model, x)
    q, k, width = unit(q), unit(k), q.shape[-1]
    b = torch.sigmoid(x @ model.erase.weight.T).unflatten(-1, (H, -1)) * (
        2 if model.options.negative_eigenvalues else 1
    )
    w = torch.sigmoid(x @ model.write.weight.T).unflatten(-1, (H, -1))
    decay = model.log_decay(x).exp()
    heads = []
    for h in range(H):
        S, rows = x.new_zeros(len(x), width, v.shape[-1]), []
        for t in range(x.shape[1]):
            k_t = k[:, t, h, :, None]
            erased = torch.eye(width, dtype=x.dtype) - k_t @ (b[:, t, h, :, None] * k_t).mT
            S = erased @ torch.diag_embed(decay[:, h, t]) @ S + k_t @ (w[:, t, h] * v[:, t, h])[:, None]
            rows.append((q[:, t, h, None] @ S)[:, 0] / width**0.5)
        heads.append(torch.stack(rows, 1))
    return outputs(model, x, torch.stack(heads, 2))


def comba(model: Any, x: Tensor) -> Tensor:
    """Hu et al. 2025, Eq. 5, a head and a position at a time, with the matrix of transition."""
    q, k, v = inputs(model, x)
    q, k, width = unit(q), unit(k), q.shape[-1]
    beta = torch.sigmoid(x @ model.beta.weight.T) * (2 if model.options.negative_eigenvalues else 1)
    alpha = model.log_decay(x).exp()
    heads = []
    for h in range(H):
        S, rows = x.new_zeros(len(x), width, v.shape[-1]), []
        feedback = torch.sigmoid(model.b[h]) * beta[:, :, h]
        for t in range(x.shape[1]):
            k_t = k[:, t, h, :, None]
            a_t, b_t, c_t = (part[:, None, None] for part in (alpha[:, h, t], beta[:, t, h], feedback[:, t]))
            S = (a_t * torch.eye(width, dtype=x.dtype) - c_t * k_t @ k_t.mT) @ S + b_t * k_t @ v[:, t, h, None]
            rows.append(((q[:, t, h] - model.d[h] * k[:, t, h])[:, None] @ S)[:, 0] / width**0.5)
        heads.append(torch.stack(rows, 1))
    return outputs(model, x, torch.stack(heads, 2))


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"negative_eigenvalues": True, "expand_v": 2.0, "d_conv": 1}])
@pytest.mark.parametrize(("cls", "book"), [(GatedDeltaNet2, gated_deltanet2), (Comba, comba)])
def test_is_what_the_paper_writes(cls: type[Mixer], book: Any, options: dict[str, Any], backend: str) -> None:
    model = make(cls, **options)
    check_equations(model, lambda x: book(model, x), 33, ops=("delta_rule",), backend=backend)


@pytest.mark.ci
def test_gated_deltanet2_is_what_flash_linear_attention_computes() -> None:
    """Outputs and gradients; in float32, as its naive form computes."""
    naive = peer("fla.ops.gdn2.naive", "einops").naive_recurrent_gdn2
    model = make(GatedDeltaNet2, torch.float32)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = inputs(model, x)
        b, w = (torch.sigmoid(gate(x)).unflatten(-1, (H, -1)) for gate in (model.erase, model.write))
        z, _ = naive(unit(q), unit(k), v, model.log_decay(x).transpose(1, 2), b, w)
        return outputs(model, x, z)

    check_peer(model, theirs, tolerance=5e-6)


@pytest.mark.ci
def test_comba_is_what_flash_linear_attention_computes() -> None:
    """By its form in chunks: the naive recurrence there reads the state after it has decayed, and its kernels before."""
    naive = peer("fla.ops.comba.naive", "einops").naive_chunk_comba
    model = make(Comba, torch.float32)

    def theirs(x: Tensor) -> Tensor:
        q, k, v = inputs(model, x)
        k = unit(k)
        q, p = unit(q) - model.d[:, None] * k, torch.sigmoid(model.b)[:, None] * k
        z, _ = naive(q, k, v, p, model.log_decay(x).mT, torch.sigmoid(model.beta(x)), chunk_size=16)
        return outputs(model, x, z)

    check_peer(model, theirs, tolerance=5e-6)


def test_starting_values() -> None:
    model = Comba(Comba.Options(d_model=64, n_heads=4))
    assert (model.b.tolist(), model.d.tolist()) == ([1.0] * 4, pytest.approx([0.02] * 4))
    two = GatedDeltaNet2(GatedDeltaNet2.Options(d_model=64, n_heads=4))
    assert not hasattr(two, "beta")
    assert split_heads(two.erase(torch.zeros(1, 2, 64)), 4).shape == (1, 4, 2, 16)


def test_gated_deltanet2_with_one_gate_and_one_decay_is_gated_deltanet(monkeypatch: pytest.MonkeyPatch) -> None:
    two, gated = make(GatedDeltaNet2), make(GatedDeltaNet, expand_k=1.0, expand_v=1.0)
    kept = {
        k: v for k, v in gated.state_dict().items() if k.startswith(("query", "key", "value", "conv", "norm", "out."))
    }
    two.load_state_dict(kept, strict=False)
    monkeypatch.setattr(two, "gate", gated.gate)
    monkeypatch.setattr(two, "log_decay", lambda x: gated.log_decay(x)[..., None].expand(-1, -1, -1, 4))
    x = torch.randn(2, 45, D, dtype=torch.float64)
    with use_backend("naive"), torch.no_grad():
        for gate in (two.erase, two.write):
            gate.weight.copy_(gated.beta.weight.repeat_interleave(4, 0))
        torch.testing.assert_close(two(x), gated(x), rtol=1e-9, atol=1e-11)
