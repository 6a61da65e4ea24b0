"""The common skeleton: alignment, structure, positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench.errors import UserError
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.models.model import ModelPredictor, parameter_count, shift_in
from regbench.models.skeleton import sinusoids
from regbench.tasks.task import TokenIO

IO = TokenIO(vocab_size=5, separator=4, max_length=12, names=("a", "b", "c", "d", "|"))


class Identity(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        return x


class WithPositions(Identity):
    @classmethod
    def learned_positions(cls, options: object) -> bool:
        return True


class NoFeedForward(Identity):
    feed_forward = False


def test_shift_in_begins_with_the_separator_and_drops_the_last() -> None:
    assert shift_in(torch.tensor([[1, 2, 3]]), 4).tolist() == [[4, 1, 2]]


def test_the_prediction_of_a_token_depends_on_the_one_before_and_not_on_itself() -> None:
    model = build(Identity, resolve_options(Identity, {"d_model": 8}), IO).eval()
    tokens = torch.tensor([[0, 1, 2]])
    base = model(tokens)
    changed = model(torch.tensor([[0, 3, 2]]))
    assert torch.equal(base[:, :2], changed[:, :2])
    assert not torch.allclose(base[:, 2], changed[:, 2])


def test_parameter_count_by_hand() -> None:
    d, v = 8, 5
    norm, feed_forward = 2 * d, (d * 4 * d + 4 * d) + (4 * d * d + d)
    plain = 2 * v * d + norm + 2 * (norm + norm + feed_forward)
    options = resolve_options(Identity, {"d_model": d, "n_layers": 2})
    assert parameter_count(build(Identity, options, IO)) == plain
    assert parameter_count(build(WithPositions, options, IO)) == plain + 12 * d
    assert parameter_count(build(NoFeedForward, options, IO)) == 2 * v * d + norm + 2 * norm


def test_positions_are_learned_and_end() -> None:
    model = build(WithPositions, resolve_options(WithPositions, {"d_model": 8}), IO)
    same = torch.zeros(1, 12, dtype=torch.long)
    logits = model(same)
    assert not torch.allclose(logits[:, 5], logits[:, 6])
    logits.sum().backward()
    assert model.positions.weight.grad is not None  # type: ignore[union-attr]
    with pytest.raises(UserError, match="a sequence of 13 tokens is longer than the 12 positions"):
        model(torch.zeros(1, 13, dtype=torch.long))


def test_sinusoids_turn_by_a_fixed_angle_from_one_position_to_the_next() -> None:
    """So that one linear map finds the position before, whatever the position: the reason to begin with them."""
    table = sinusoids(50, 16).double()
    before, after = table[:-1], table[1:]
    solution = torch.linalg.lstsq(after, before).solution
    torch.testing.assert_close(after @ solution, before, atol=1e-4, rtol=0)


def test_predictor_gives_distributions_whatever_the_batch() -> None:
    model = build(Identity, resolve_options(Identity, {}), IO)
    tokens = np.random.default_rng(0).integers(0, 5, (7, 9)).astype(np.uint8)
    whole = ModelPredictor(model, torch.device("cpu"), batch_size=100).predict(tokens)
    parts = ModelPredictor(model, torch.device("cpu"), batch_size=2).predict(tokens)
    assert whole.shape == (7, 9, 5)
    assert whole.dtype == np.float64
    np.testing.assert_allclose(whole.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(whole, parts, atol=1e-6)


def test_loss_is_the_mean_over_scored_positions() -> None:
    model = build(Identity, resolve_options(Identity, {}), IO)
    tokens = torch.randint(5, (3, 6))
    scored = torch.rand(3, 6) > 0.5
    logits = model(tokens).log_softmax(-1)
    picked = [-logits[b, t, tokens[b, t]] for b in range(3) for t in range(6) if scored[b, t]]
    torch.testing.assert_close(model.losses(tokens, scored)["cross_entropy"], torch.stack(picked).mean())


def test_dropout_acts_in_training_only() -> None:
    model = build(Identity, resolve_options(Identity, {"dropout": 0.5}), IO)
    tokens = torch.zeros(1, 6, dtype=torch.long)
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_modl": 3}, "option: unknown key 'd_modl'; did you mean 'd_model'"),
        ({"d_model": "wide"}, r"option: d_model: input should be a valid integer.* \(given 'wide'\)"),
        ({"d_model": 0}, "d_model: input should be greater than or equal to 1"),
        ({"dropout": float("nan")}, "dropout: "),
        ({"n_layers": 1.5}, "n_layers: "),
    ],
)
def test_wrong_options_are_refused_in_one_line(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        resolve_options(Identity, settings)
    assert "\n" not in str(caught.value)


def test_an_architecture_that_cannot_be_built_is_blamed() -> None:
    class Broken(Identity):
        def __init__(self, options: object) -> None:
            raise ValueError("not today")

    with pytest.raises(UserError, match=r"Broken cannot be built: .*test_skeleton.py:\d+: ValueError: not today"):
        build(Broken, resolve_options(Broken, {}), IO)
