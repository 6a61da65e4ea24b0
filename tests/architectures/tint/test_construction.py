"""The constructed simulator: every module, and the whole, against the explicit twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from architectures.tint.explicit import (
    Plan,
    auxiliary_of,
    descend,
    forward,
)
from architectures.tint.layout import Layout
from architectures.tint.linear import LinearModule
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
