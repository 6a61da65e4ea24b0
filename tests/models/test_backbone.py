"""The common backbone: alignment, structure, positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench.models.backbone import Backbone, StreamState, held_bytes, sinusoids
from regbench.models.build import build, build_without_memory, resolve_options
from regbench.models.mixer import Mixer, Options
from regbench.models.model import Model, ModelPredictor, shift_in
from regbench.tasks.base import TokenIO, VectorIO
from regbench.utils import registry
from regbench.utils.errors import UserError
from tests.helpers.mixers import MIXERS

IO = TokenIO(vocab_size=5, separator=4, max_length=12, names=("a", "b", "c", "d", "|"))


class Identity(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        return x


class WithPositions(Identity):
    @classmethod
    def learned_positions(cls, options: object) -> bool:
        return True


def test_shift_in_begins_with_the_separator_and_drops_the_last() -> None:
    assert shift_in(torch.tensor([[1, 2, 3]]), 4).tolist() == [[4, 1, 2]]


def test_the_prediction_of_a_token_depends_on_the_one_before_and_not_on_itself() -> None:
    model = build(Identity, resolve_options(Identity, {"d_model": 8}), IO).eval()
    tokens = torch.tensor([[0, 1, 2]])
    base = model(tokens)
    changed = model(torch.tensor([[0, 3, 2]]))
    assert torch.equal(base[:, :2], changed[:, :2])
    assert not torch.allclose(base[:, 2], changed[:, 2])


def test_positions_are_learned_and_end() -> None:
    model = build(WithPositions, resolve_options(WithPositions, {"d_model": 8}), IO)
    same = torch.zeros(1, 12, dtype=torch.long)
    logits = model(same)
    assert not torch.allclose(logits[:, 5], logits[:, 6])
    logits.sum().backward()
    assert model.positions.weight.grad is not None  # type: ignore[union-attr]
    with pytest.raises(UserError, match="a sequence of 13 tokens is longer than the 12 positions"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(UserError, match="a sequence of 13 tokens is longer than the 12 positions"):
        model.step(torch.zeros(1, dtype=torch.long), StreamState(12, [], {}))  # type: ignore[operator]


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


def test_predictor_lets_a_model_learn_at_test_time() -> None:
    """Its forward pass asks for gradients itself, and gets the same ones as outside of a prediction."""

    class Learns(Identity):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                w = torch.ones(x.shape[-1], requires_grad=True)
                (step,) = torch.autograd.grad((w * x[:, :1]).square().sum(), w)
            return x * (w - step).detach()

    model = build(Learns, resolve_options(Learns, {}), IO).eval()
    tokens = np.random.default_rng(0).integers(0, 5, (3, 9)).astype(np.uint8)
    outside = model(torch.from_numpy(tokens.astype(np.int64))).detach().double().softmax(-1).numpy()
    np.testing.assert_allclose(ModelPredictor(model).predict(tokens), outside, atol=1e-9)


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


def test_dropout_acts_on_the_embedding_and_on_all_that_a_block_adds() -> None:
    """So it is called once, and in each block once for the mixer and once for the feed-forward network."""
    model = build(Identity, resolve_options(Identity, {"d_model": 8, "n_layers": 3, "dropout": 0.5}), IO)
    calls: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            assert module.p == 0.5
            module.register_forward_hook(lambda _, inputs, out: calls.append(out))
    model(torch.zeros(1, 6, dtype=torch.long))
    assert len(calls) == 1 + 2 * 3


def test_an_architecture_that_cannot_be_built_is_blamed() -> None:
    class Broken(Identity):
        def __init__(self, options: object) -> None:
            raise ValueError("not today")

    with pytest.raises(UserError, match=r"Broken cannot be built: .*test_backbone.py:\d+: ValueError: not today"):
        build(Broken, resolve_options(Broken, {}), IO)


def test_a_family_that_is_none_is_refused_with_the_nearest() -> None:
    class Strange(Identity):
        family = "state spaces"

    with pytest.raises(UserError, match="^Strange.family is 'state spaces'; did you mean 'state space'"):
        build(Strange, resolve_options(Strange, {}), IO)


@pytest.mark.parametrize("name", MIXERS)
def test_vectors_are_read_in_half_precision_as_tokens_are(name: str) -> None:
    """The residual stream stays in float32: a mixer need not know what the task is of."""
    cls, read = registry.load(registry.ARCHITECTURE, name), []
    vectors, tokens = torch.randn(2, 9, 3), torch.zeros(2, 9, dtype=torch.long)
    for io, given in ((VectorIO(3, 2, 12), vectors), (IO, tokens)):
        model = build(cls, resolve_options(cls, {"d_model": 16}), io)
        model.blocks[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].dtype))  # type: ignore[index, union-attr]
        with torch.autocast("cpu", torch.bfloat16):
            terms = model.losses(given, torch.ones(2, 9, dtype=torch.bool))
        torch.stack(list(terms.values())).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert read == [torch.float32, torch.float32]


class Returns(Mixer):
    """What it is told to."""

    def __init__(self, options: object, what: Callable[[Tensor], object]) -> None:
        super().__init__(options)
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(x)  # type: ignore[return-value]


def returning(what: Callable[[Tensor], object], mixer: type[Mixer] = Returns) -> Backbone:
    return Backbone(lambda options: mixer(options, what), resolve_options(Mixer, {"d_model": 8}), IO)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x: None, "returns None, not a tensor (2, 6, 8) of float32"),
        (lambda x: (x, x), "returns tuple, not a tensor (2, 6, 8) of float32; take its first, with [0]"),
        (lambda x: x[..., :1], "returns the shape (2, 6, 1), not (2, 6, 8)"),
        (lambda x: x[:, :, None], "returns the shape (2, 6, 1, 8), not (2, 6, 8)"),
        (lambda x: x.double(), "returns float64, not float32"),
        (lambda x: x.half(), "returns float16, not float32"),
        (lambda x: x.bfloat16(), "returns bfloat16, not float32"),
        (lambda x: x.long(), "returns int64, not float32"),
        (lambda x: x + 0j, "returns complex64, not float32"),
    ],
)
def test_a_mixer_that_returns_something_else_is_told_so(what: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        returning(what)(torch.zeros(2, 6, dtype=torch.long))
    assert str(caught.value) == f"the mixer Returns {message}"


def test_under_autocast_a_mixer_may_return_what_products_are_in() -> None:
    tokens = torch.zeros(2, 6, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        for what in (lambda x: x @ torch.eye(8), lambda x: x.bfloat16(), lambda x: x):
            assert returning(what)(tokens).isfinite().all()
        with pytest.raises(UserError, match="^the mixer Returns returns float16, not float32$"):
            returning(lambda x: x.half())(tokens)
    assert returning(lambda x: x).double()(tokens).dtype == torch.float64


class Steps(Returns):
    def init_state(self, batch: int, device: object = None, dtype: object = None) -> None:
        return None

    def step(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        return self.what(x)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x: x, "returns a Tensor from step, not its output (B, D) and the state after it"),
        (lambda x: (x[0], None), "returns from step the shape (8,), not (2, 8)"),
        (lambda x: (x.double(), None), "returns from step float64, not float32"),
    ],
)
def test_a_step_that_returns_something_else_is_told_so(what: Callable[[Tensor], object], message: str) -> None:
    model = returning(what, Steps)
    with pytest.raises(UserError) as caught:
        model.step(torch.zeros(2, dtype=torch.long), model.init_state(2))
    assert str(caught.value) == f"the mixer Steps {message}"


class Stateful(Identity):
    """Of 4 D bytes."""

    def init_state(self, batch: int, device: object = None, dtype: object = None) -> Tensor:
        return torch.zeros(batch, self.options.d_model)

    @classmethod
    def state_bytes(cls, options: Options) -> int:
        return 4 * options.d_model


class Wider(Stateful):
    """Of 8 D bytes, with positions."""

    @classmethod
    def state_bytes(cls, options: Options) -> int:
        return 8 * options.d_model

    @classmethod
    def learned_positions(cls, options: object) -> bool:
        return True


def alternating(*kinds: type[Mixer]) -> Backbone:
    """A model of two blocks, one of each kind."""
    left = list(kinds)
    return Backbone(lambda options: left.pop(0)(options), resolve_options(Mixer, {"d_model": 8, "short_conv": 3}), IO)


def test_each_block_counts_where_their_mixers_differ() -> None:
    window = 4 * 2 * 8
    assert alternating(Stateful, Wider).state_bytes() == 4 * 8 + 8 * 8 + 2 * window
    assert alternating(Stateful, Wider).positions is not None
    assert alternating(Stateful, Identity).state_bytes() is None
    with pytest.raises(UserError, match="^Identity has no recurrent form"):
        alternating(Stateful, Identity).init_state(1)
    with pytest.raises(UserError, match="^Mixer has no forward"):
        alternating(Stateful, Mixer)


def test_a_mixer_is_told_where_it_stands() -> None:
    class Placed(Mixer):
        places: ClassVar[list[int]] = []

        def forward(self, x: Tensor) -> Tensor:
            return x

        def place(self, layer: int) -> None:
            self.places.append(layer)

    Backbone(Placed, Options(d_model=4, n_layers=3), IO)
    assert Placed.places == [0, 1, 2]


def test_who_has_no_forward_is_told_so() -> None:
    class Empty(Mixer):
        pass

    class Nothing(Model):
        pass

    with pytest.raises(
        UserError, match=r"^Empty has no forward\(self, x\), which maps x \(B, L, D\) to the same shape$"
    ):
        build(Empty, resolve_options(Empty, {}), IO)
    with pytest.raises(UserError, match=r"^Nothing has no forward\(self, tokens\), which maps tokens"):
        build(Nothing, resolve_options(Nothing, {}), IO)(torch.zeros(1, 2, dtype=torch.long))


def test_bytes_held_are_counted_however_a_state_nests_them() -> None:
    @dataclass
    class Held:
        sums: dict[str, list[Tensor]]
        position: int

    numbers = torch.zeros(2, 3)
    assert held_bytes(Held({"a": [numbers, numbers.double()]}, 7)) == 24 + 48
    assert held_bytes([None, (numbers, "text"), 3]) == 24


@pytest.mark.parametrize("name", sorted(registry.entries(registry.ARCHITECTURE)))
def test_without_memory_it_has_the_same_weights_and_draws_none(name: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, name)
    random = torch.get_rng_state()
    empty = build_without_memory(cls, cls.Options(), IO)
    assert torch.equal(torch.get_rng_state(), random)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    whole = build(cls, cls.Options(), IO)
    assert [(n, p.shape) for n, p in empty.named_parameters()] == [(n, p.shape) for n, p in whole.named_parameters()]
    assert empty.state_bytes() == whole.state_bytes()
