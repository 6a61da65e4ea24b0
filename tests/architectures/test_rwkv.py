"""RWKV: against the papers' equations written out, and the starting values of the authors' code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from architectures.rwkv import RWKV
from tests.helpers.equations import check_equations


def build(dtype: torch.dtype = torch.float64, **options: object) -> RWKV:
    """With every map and every mixing coefficient drawn anew, as many begin near zero or at one."""
    torch.manual_seed(0)
    model = RWKV(RWKV.Options(**{"d_model": 12, **options}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "time_mix_" in name:
                parameter.uniform_()
            elif parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return model.to(dtype)


def by_the_book(model: RWKV, x: Tensor) -> Tensor:
    """Peng et al. section 3, position by position, the WKV as a quotient of plain sums (ICLL Eq. 65-67)."""
    time, channels = model.time_mixing, model.channel_mixing
    x_before = n_before = a = b = torch.zeros_like(x[:, 0])
    outputs = []
    for x_i in x.unbind(1):

        def mixed(linear: torch.nn.Linear, mu: Tensor, now: Tensor, before: Tensor) -> Tensor:
            return (mu * now + (1 - mu) * before) @ linear.weight.T

        k = mixed(time.key, time.time_mix_k, x_i, x_before)
        v = mixed(time.value, time.time_mix_v, x_i, x_before)
        r = mixed(time.receptance, time.time_mix_r, x_i, x_before)
        now = torch.exp(time.time_first + k)
        z = (a + now * v) / (b + now)
        decay = torch.exp(-torch.exp(time.time_decay))
        a, b = decay * a + k.exp() * v, decay * b + k.exp()
        y = (r.sigmoid() * z) @ time.output.weight.T
        s = x_i + y
        n = (s - s.mean(-1, keepdim=True)) / (s.var(-1, unbiased=False, keepdim=True) + model.norm.eps).sqrt()
        n = n * model.norm.weight + model.norm.bias
        k = mixed(channels.key, channels.time_mix_k, n, n_before)
        r = mixed(channels.receptance, channels.time_mix_r, n, n_before)
        outputs.append(y + r.sigmoid() * (k.clamp(min=0) ** 2 @ channels.value.weight.T))
        x_before, n_before = x_i, n
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("backend", ["cpu", "chunked", "naive"])
@pytest.mark.parametrize("options", [{}, {"expand": 1}, {"d_model": 2}])
@pytest.mark.parametrize("length", [1, 33])
def test_is_what_the_papers_write(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length, ops=("wkv",), backend=backend)


def test_starting_values() -> None:
    """Decays from exp(-exp(-5)), which remembers 150 positions, to exp(-exp(3)), which remembers none."""
    torch.manual_seed(0)
    model = RWKV(RWKV.Options(d_model=64))
    time = model.time_mixing
    assert time.time_decay[[0, -1]].tolist() == [-5, 3]
    assert (time.time_decay.diff() > 0).all()
    bonus = torch.tensor(0.3).log() + torch.tensor([0, 0.5, -0.5])
    torch.testing.assert_close(time.time_first[:6], bonus.repeat(2))
    for mu in (time.time_mix_k, time.time_mix_v, time.time_mix_r):
        assert (mu.diff() > 0).all()
    for linear in (time.key, time.receptance, model.channel_mixing.receptance):
        assert 0 < linear.weight.abs().max() < 0.01
    # So at first the WKV is close to a plain decaying mean, half of which passes.
    assert time.output.weight.abs().max() > 0.05
