"""sLSTM: against the paper's recurrence without its stabiliser, and the authors' package."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.slstm import SLSTM
from tests.helpers.equations import check_equations, convolved, made
from tests.helpers.peers import check_peer, peer

D, H = 12, 3
build = partial(made, SLSTM, moved=True, d_model=D, n_heads=H)


def by_the_book(model: Any, x: Tensor) -> Tensor:
    """Beck et al. 2024, section 2.2, a head and a position at a time, with plain exponentials: h must not depend on m."""
    heads, width = model.n_heads, x.shape[-1] // model.n_heads
    u = F.silu(convolved(model.conv.conv, x))
    biases = model.bias.view(4, heads, width)
    rows = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        W = [gate.weight[head] for gate in (model.input_gate, model.forget_gate, model.cell, model.output_gate)]
        R = model.recurrent[head].split(width, -1)
        c = n = h = x.new_zeros(len(x), width)
        outputs = []
        for t in range(x.shape[1]):
            seen = [u[:, t, part], u[:, t, part], x[:, t, part], x[:, t, part]]
            i, f, z, o = (seen[g] @ W[g].T + h @ R[g] + biases[g, head] for g in range(4))
            c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
            n = torch.sigmoid(f) * n + torch.exp(i)
            h = torch.sigmoid(o) * c / n
            outputs.append(h)
        rows.append(F.layer_norm(torch.stack(outputs, 1), (width,)) * model.norm_weight[part])
    return torch.cat(rows, -1)


@pytest.mark.parametrize("options", [{}, {"n_heads": 1, "d_conv": 1}, {"n_heads": 6, "d_conv": 2}])
@pytest.mark.parametrize("length", [1, 33])
def test_is_what_the_paper_writes(options: dict[str, Any], length: int) -> None:
    model = build(**options)
    check_equations(model, lambda x: by_the_book(model, x), length)


@pytest.mark.ci
def test_is_what_the_authors_package_computes() -> None:
    layer = peer("xlstm.blocks.slstm.layer")
    model = build()
    config = layer.sLSTMLayerConfig(embedding_dim=D, num_heads=H, backend="vanilla", dtype="float32")
    theirs = layer.sLSTMLayer(config).double()
    conv, cell, width = theirs.conv1d.conv, theirs.slstm_cell, D // H
    # What is called fgate there is the input gate, and the other way round.
    maps = {"input_gate": theirs.fgate, "forget_gate": theirs.igate, "cell": theirs.zgate, "output_gate": theirs.ogate}
    with torch.no_grad():
        conv.weight.copy_(model.conv.conv.weight)
        conv.bias.copy_(model.conv.conv.bias)
        for name, gate in maps.items():
            gate.weight.copy_(getattr(model, name).weight)
        cell._recurrent_kernel_.copy_(model.recurrent.mT)
        cell._bias_.copy_(model.bias)
        theirs.group_norm.weight.copy_(model.norm_weight - 1)
    check_peer(
        model,
        theirs,
        [
            ("recurrent", lambda: cell._recurrent_kernel_.grad.mT),
            ("bias", cell._bias_),
            ("norm_weight", theirs.group_norm.weight),
            ("conv.conv.weight", conv.weight),
            ("conv.conv.bias", conv.bias),
            *((f"{name}.weight", gate.weight) for name, gate in maps.items()),
        ],
    )
    assert width == 4


def test_starting_values() -> None:
    model = SLSTM(SLSTM.Options(d_model=64, n_heads=4))
    i, f, z, o = model.bias.detach().clone().view(4, 4, 16)
    assert not torch.stack([i, z, o]).any()
    assert f[:, 0].tolist() == [5.0] * 4
    assert f[:, -1].tolist() == pytest.approx([-7.0] * 4)
    assert (f.diff(dim=-1) < 0).all()
    assert not model.recurrent.any()
    model.place(1)
    middle, (first, last) = model.bias.detach().view(4, 4, 16)[1, 0], (5.0, -7.0)
    assert middle[[0, -1]].tolist() == pytest.approx([first, last])
    assert (middle[1:-1] > f[0, 1:-1]).all()
    assert middle[8].item() == pytest.approx(5 - 12 * (8 / 15) ** 1.6)
    assert SLSTM(SLSTM.Options(d_model=4, n_heads=4)).bias.isfinite().all()
