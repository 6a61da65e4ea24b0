"""The constructed simulator: every module, and the whole, against the explicit twin."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from architectures.tint.explicit import (
    Plan,
    activation,
    activation_backward,
    auxiliary_of,
    descend,
    forward,
    norm_backward,
    normalised,
)
from architectures.tint.layout import Layout
from architectures.tint.linear import LinearModule
from architectures.tint.simulator import AttentionModule, FiniteDifference, Simulator, normalise_slots
from regbench.utils.errors import UserError
from tests.architectures.tint.conftest import IO, close, text, tint

SHAPES = {
    (48, 4): (3, 16, 3, 16, 12),
    (50, 4): (3, 17, 2, 25, 8),
    (64, 4): (3, 22, 2, 32, 8),
    (64, 5): (4, 16, 4, 16, 20),
    (96, 4): (3, 32, 3, 32, 12),
    (768, 4): (3, 256, 3, 256, 12),
}
"""By width and slots: rows, prefix tokens, shards, head width, heads."""
RATE = 0.03


@pytest.mark.parametrize(("width", "slots"), SHAPES)
def test_linear_modules_are_exact(width: int, slots: int) -> None:
    """Forward, backward and descent, with a mask, without a bias, for the bias alone; padded rows stay zero."""
    layout = Layout.of(width, 2, 5, slots)
    assert SHAPES[width, slots] == (
        layout.rows,
        layout.prefixes,
        layout.shards,
        layout.head_width,
        layout.n_heads,
    )
    torch.manual_seed(0)
    module = LinearModule(layout, RATE)
    w, b, x, g = torch.randn(width, width), torch.randn(width), torch.randn(1, 5, width), torch.randn(1, 5, width)
    prefix = layout.store(w, b)[None]
    assert prefix.shape == (1, layout.prefixes, layout.total)
    for found, right in (
        (module(layout.put(x), prefix), x @ w.T + b),
        (module.backward(layout.put(g), prefix), g @ w),
    ):
        close(layout.get(found), right, 1e-12)
        assert found[..., width:].abs().max() == 0.0
    seen = torch.tensor([[True, True, False, True, False]])
    d_w, d_b = (g * seen[..., None]).mT[0] @ x[0], (g * seen[..., None]).sum(1)[0]
    for learn, of_weight, of_bias in (("both", RATE, RATE), ("weight", RATE, 0.0), ("bias", 0.0, RATE)):
        after = module.descent(layout.put(g) + layout.put(x, 1), prefix, seen, learn)
        new_w, new_b = layout.load(after[0])
        close(new_w, w - of_weight * d_w, 1e-12)
        close(new_b, b - of_bias * d_b, 1e-12)
        assert torch.equal(
            after, layout.store(*layout.load(after))
        )  # rows of padding, and biases of other prefix tokens


def test_too_few_slots() -> None:
    with pytest.raises(UserError, match="slots=3 is too few"):
        Layout.of(12, 3, 5, 3)


def test_norm_and_activation_and_their_way_back() -> None:
    layout = Layout.of(12, 3, 5, 4)
    difference, simulator = FiniteDifference(layout, 0.01), Simulator(layout, RATE, 0.01)
    torch.manual_seed(0)
    x, g, gamma = torch.randn(2, 5, 12), torch.randn(2, 5, 12), torch.randn(12)
    close(layout.get(simulator.norm(layout.put(x))), normalised(x), 1e-10)
    prefix = layout.store(gamma.diag(), torch.zeros(12)).expand(2, -1, -1)
    w = simulator.linear.backward(layout.put(g), prefix)
    right, _, _ = norm_backward(g, x, gamma, Plan(1.0))
    close(layout.get(difference(w, layout.put(x), partial(normalise_slots, slots=4))), right, 1e-10)
    back = difference(layout.put(g), layout.put(x), activation)
    close(layout.get(back), activation_backward(g, x, Plan(1.0)), 1e-10)
    assert back[..., 12:].abs().max() == 0.0
    assert torch.equal(activation(layout.put(x))[..., 12:], torch.zeros(2, 5, 36))


def test_attention_and_its_way_back() -> None:
    layout = Layout.of(12, 3, 5, 4)
    module = AttentionModule(layout)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 5, 12, requires_grad=True) for _ in range(3))
    g = torch.randn(2, 5, 12)
    heads = [part.unflatten(-1, (3, 4)).transpose(1, 2) for part in (q, k, v)]
    right = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
    x = sum(layout.put(part, slot) for slot, part in enumerate((q, k, v)))
    assert isinstance(x, torch.Tensor)
    close(layout.get(module(x)), right, 1e-10)
    (of_values,) = torch.autograd.grad(right, v, g)
    close(layout.get(module.backward(layout.put(g), x)), of_values, 1e-10)


def test_an_mlp_of_four_parts_and_its_way_back() -> None:
    """Each part has d units of its own; the bias of the second matrix stands in the first part alone."""
    model = tint(form="construction")
    assert model.constructed is not None
    simulator, layout = model.constructed, model.constructed.layout
    weights, heads = auxiliary_of(model)
    tokens, inputs = text()
    trace = forward(weights, inputs, heads)
    up, down = (weights[f"blocks.1.feed_forward.{name}.weight"] for name in ("up", "down"))
    u = trace.blocks[1].z2 @ up.T + weights["blocks.1.feed_forward.up.bias"]
    g = torch.randn(3, 20, 12)
    g_u = activation_backward(g @ down, u, Plan(1.0))
    memory = simulator.store(weights, 3)
    _, kept, last = simulator._forward(memory, tokens, IO.separator)
    close(layout.get(last), trace.last, 1e-10)
    new: dict[str, torch.Tensor] = {}
    everywhere = torch.ones(3, 20, dtype=torch.bool)
    simulator._block_back(memory, 1, layout.put(g), kept[1], everywhere, new)
    for c in range(4):
        own = slice(12 * c, 12 * c + 12)
        close(layout.get(kept[1][f"u.{c}"]), u[..., own], 1e-10)
        found, bias = layout.load(new[f"1.up.{c}"])
        close(found, up[own] - 0.01 * g_u[..., own].mT @ trace.blocks[1].z2, 1e-10)
        close(bias, weights["blocks.1.feed_forward.up.bias"][own] - 0.01 * g_u[..., own].sum(1), 1e-10)
        found, bias = layout.load(new[f"1.down.{c}"])
        close(found, down[:, own] - 0.01 * g.mT @ activation(u)[..., own], 1e-10)
        right = weights["blocks.1.feed_forward.down.bias"] - 0.01 * g.sum(1)
        close(bias, right if c == 0 else torch.zeros(3, 12), 1e-10)


def test_the_gradient_of_the_loss() -> None:
    """With a segment up to the end: the last label stands behind the text, and the last position is no exception."""
    model = tint(form="construction")
    assert model.constructed is not None
    weights, _ = auxiliary_of(model)
    tokens, _ = text()
    layout = model.constructed.layout
    x = torch.randn(3, 20, 12, requires_grad=True)
    counted = torch.arange(20).expand(3, -1) >= torch.tensor([[0], [5], [19]])
    loss = F.cross_entropy((x @ weights["unembed.weight"].T)[counted], tokens[counted], reduction="sum")
    (right,) = torch.autograd.grad(loss, x)
    memory = model.constructed.store(weights, 3)
    found = model.constructed.loss_gradient(memory, layout.put(x.detach()), tokens, counted)
    close(layout.get(found), right, 1e-10)


@pytest.mark.parametrize(
    ("width", "options"),
    [
        (12, {}),
        (16, {"inner_steps": 3}),
        (24, {"update_at": [6, 13]}),
        (12, {"n_layers": 3, "inner_layers": 1}),
        (12, {"slots": 5, "targets": "after:a", "update_at": [6, 13], "inner_steps": 2}),
    ],
    ids=["one", "steps", "segments", "layers", "targets"],
)
def test_the_whole_is_its_twin(width: int, options: dict[str, Any]) -> None:
    tokens, _ = text()
    heads = 3 if width % 3 == 0 else 4
    twin, constructed = (
        tint(d_model=width, n_heads=heads, form=form, **options) for form in ("explicit", "construction")
    )
    right = twin(tokens)
    close(constructed(tokens), right, 1e-9)
    assert (right[:, 13:] - twin.auxiliary(tokens)[:, 13:]).abs().max() > 1e-3


def test_a_segment_up_to_the_end_and_the_bias_of_down() -> None:
    """The released code lets the bias of the MLP's second matrix learn four times, and leaves the last position unmasked."""
    model = tint(form="construction")
    assert model.constructed is not None
    weights, heads = auxiliary_of(model)
    tokens, inputs = text()
    counted = torch.ones_like(tokens, dtype=torch.bool)
    memory = model.constructed.step(model.constructed.store(weights, 3), tokens, IO.separator, counted, None)
    right = descend(weights, inputs, tokens, counted, heads, Plan(0.01))
    _, bias = model.constructed.layout.load(memory.prefixes["1.down.0"])
    close(
        bias - weights["blocks.1.feed_forward.down.bias"],
        right["blocks.1.feed_forward.down.bias"] - weights["blocks.1.feed_forward.down.bias"],
        1e-9,
    )
    for c in (1, 2, 3):
        assert model.constructed.layout.load(memory.prefixes[f"1.down.{c}"])[1].abs().max() == 0.0
    close(model.constructed.logits(memory, tokens, IO.separator), forward(right, inputs, heads).logits, 1e-9)
