"""A specialised CGT: an ordinary transformer, equal to the frozen model, smaller and cheaper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from architectures.cgt import ContextuallyGuided, Specialised
from papers.cost import total_flops
from regbench.checks.architecture import CONTRACT
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.models.model import parameter_count, shift_in
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.utils.errors import UserError
from tests.helpers.subjects import subject_of

TOKENS = TokenIO(vocab_size=9, separator=8, max_length=60, names=tuple("abcdefgh|"))
VECTORS = VectorIO(d_in=3, d_out=2, max_length=60)
FORMS: list[dict[str, Any]] = [
    {},
    {"mixing": "softmax", "positions": "rotary"},
    {"beta": 0.1, "n_layers": 4, "y_layer": 1, "rank": 1},
]


def make(io: IO = TOKENS, **settings: Any) -> ContextuallyGuided:
    """With weights large enough for operators far from the identity and outputs far from equal."""
    torch.manual_seed(0)
    model = ContextuallyGuided(ContextuallyGuided.Options(**{"d_model": 32, "d_y": 16, **settings}), io).eval()
    with torch.no_grad():
        for guide in model.guides:
            for operator in (guide.before_attention, guide.before_mlp):  # type: ignore[union-attr]
                operator.left.weight.mul_(5.0)  # type: ignore[union-attr, operator]
        model.unembed.weight.mul_(50.0)
    return model


def text(io: IO, batch: int, length: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(io, VectorIO):
        return torch.randn(batch, length, io.d_in, generator=generator)
    return torch.randint(io.vocab_size, (batch, length), generator=generator)


@pytest.mark.parametrize("settings", FORMS)
@pytest.mark.parametrize("io", [TOKENS, VECTORS])
def test_it_equals_the_frozen_model(io: IO, settings: dict[str, Any]) -> None:
    model, prefix, rest = make(io, **settings), text(io, 1, 25), text(io, 3, 40, seed=2)
    frozen = model.with_context(rest, model.summary(prefix).expand(3, -1))
    special = model.specialize(prefix[0])
    assert (special(rest) - frozen).abs().max() < 1e-5 * frozen.abs().max()
    assert frozen.abs().max() > 1.0
    assert torch.equal(special(rest), model.specialize(prefix)(rest))
    # and that is neither what the model says without the prompt, nor what another prompt gives
    assert (model(rest) - frozen).abs().max() > 1e-2
    assert (model.specialize(text(io, 1, 25, seed=3))(rest) - frozen).abs().max() > 1e-2


def test_nothing_of_y_is_left_and_it_is_smaller_and_cheaper() -> None:
    model = make()
    special = model.specialize(text(TOKENS, 1, 25))
    assert not [
        n for n, _ in special.named_parameters() if any(w in n for w in ("y_", "guide", "mix", "left", "right"))
    ]
    d, layers, vocabulary, longest = 32, 3, 9, 60
    block = 3 * d * d + 3 * d + d * d + 8 * d * d + 5 * d + 4 * d
    assert parameter_count(special) == layers * block + 2 * d + 2 * vocabulary * d + longest * d
    assert parameter_count(special) < 0.65 * parameter_count(model)
    rest = text(TOKENS, 1, 40)
    # two products for each weight it multiplies by; attention over 40 positions twice d a head's share
    expected = layers * (2 * 12 * d * d + 2 * 2 * 40 * d) + 2 * vocabulary * d
    assert total_flops(special, rest) == rest.numel() * expected
    assert total_flops(special, rest) < 0.7 * total_flops(model, rest)


def test_it_is_an_ordinary_model_that_keeps_the_contract() -> None:
    subject = subject_of(Specialised, TOKENS, d_model=16)
    checks = [check for check in CONTRACT if check is not overfits and check.__name__ != "compiles"]
    assert [(o.check, o.fault) for o in examine(subject, checks) if o.fault or o.note] == []


def test_its_stream_keeps_keys_and_values_of_x_alone() -> None:
    model = make()
    special, rest = model.specialize(text(TOKENS, 1, 25)), text(TOKENS, 2, 10)
    state, inputs = special.init_state(2), shift_in(rest, 8)
    for t in range(10):
        logits, state = special.step(inputs[:, t], state)
        torch.testing.assert_close(logits, special(rest)[:, t], rtol=1e-4, atol=1e-4)
    assert state.state_bytes() == 2 * (2 * 10 * 32 * 3) * 4


def test_the_model_is_left_as_it_was() -> None:
    model = make(beta=0.1).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    special = model.specialize(text(TOKENS, 1, 25))
    assert model.training
    assert special.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    special.blocks[0].mlp.up.weight.data.zero_()  # type: ignore[union-attr, operator]
    assert torch.equal(model.x_blocks[0].mlp.up.weight, before["x_blocks.0.mlp.up.weight"])  # type: ignore[union-attr, arg-type]


def test_prompts_that_cannot_be_used() -> None:
    with pytest.raises(UserError, match=r"specialised to one prompt.*\(2, 5\)"):
        make().specialize(text(TOKENS, 2, 5))
    with pytest.raises(UserError, match=r"specialised to one prompt.*\(2, 5, 3\)"):
        make(VECTORS).specialize(text(VECTORS, 2, 5))
    with pytest.raises(UserError, match="a sequence of 61 tokens is longer than the 60 positions"):
        make().specialize(text(TOKENS, 1, 60))
    assert make().specialize(torch.zeros(0, dtype=torch.int64)) is not None  # no prompt: what stands for nothing known
