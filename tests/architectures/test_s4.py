"""S4: its kernel against a dense matrix power, and the layer against linear filters."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.linalg import expm
from scipy.signal import lfilter

from architectures.s4 import S4, DiagonalSSM
from tests.helpers.equations import made

LENGTHS = [1, 2, 3, 63, 64, 65, 127, 200]
build = partial(made, S4, d_model=6, d_state=8)


def dense(ssm: DiagonalSSM, channel: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A-bar (N, N), B-bar and C of one channel with both of each conjugate pair, by zero-order hold of the whole system."""
    A = (-ssm.log_A_real.exp() + 1j * ssm.A_imag).detach().numpy()[channel]
    C = torch.view_as_complex(ssm.C).detach().numpy()[channel]
    A, C = np.concatenate([A, A.conj()]), np.concatenate([C, C.conj()])
    n = len(A)
    # The exponential of [[A, B], [0, 0]] Delta holds both A-bar and B-bar.
    block = np.zeros((n + 1, n + 1), complex)
    block[:n, :n], block[:n, n] = np.diag(A), 1
    held = expm(block * ssm.log_dt[channel].exp().item())
    return held[:n, :n], held[:n, n], C


@pytest.mark.parametrize("init", ["lin", "inv"])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_kernel_is_a_matrix_power(init: str, length: int) -> None:
    ssm = build(init=init).ssm
    found = ssm.kernel(length).detach().numpy()
    assert found.shape == (6, length)
    for channel in (0, 5):
        A, B, C = dense(ssm, channel)
        h, expected = B, []
        for _ in range(length):
            expected.append((C @ h).real)
            h = A @ h
        np.testing.assert_allclose(found[channel], expected, rtol=1e-9, atol=1e-11)


def test_the_layer_is_filters_and_a_gate() -> None:
    """Each channel is a sum of one-pole filters (scipy's), then GELU, and the gated linear unit."""
    model = build()
    x = torch.randn(2, 100, 6, dtype=torch.float64)
    y = model.ssm.D.detach().numpy() * x.numpy()
    for d in range(6):
        A, B, C = dense(model.ssm, d)
        for pole, gain in zip(np.diag(A), C * B, strict=True):
            y[..., d] += lfilter([gain], [1, -pole], x[..., d].numpy().astype(complex), axis=1).real
    value, gate = F.linear(F.gelu(torch.from_numpy(y)), model.out.weight, model.out.bias).chunk(2, -1)
    torch.testing.assert_close(model(x), value * torch.sigmoid(gate), rtol=1e-9, atol=1e-11)


def test_starting_values() -> None:
    """The two initialisations of S4D, and time steps uniform in their logarithm."""
    lin, inv = (build(torch.float32, d_model=400, d_state=64, init=init).ssm for init in ("lin", "inv"))
    n = torch.arange(32)
    for ssm, frequency in ((lin, math.pi * n), (inv, 64 / math.pi * (64 / (2 * n + 1) - 1))):
        torch.testing.assert_close(-ssm.log_A_real.exp(), torch.full((400, 32), -0.5))
        torch.testing.assert_close(ssm.A_imag, frequency.expand(400, -1))
    dt = lin.log_dt.exp()
    assert dt.min() >= 0.999e-3
    assert dt.max() <= 0.1001
    assert abs(float(dt.log10().mean().detach()) + 2) < 4 * (2 / 12**0.5) / 20
    assert 0.95 < torch.view_as_complex(lin.C).abs().square().mean().item() < 1.05
