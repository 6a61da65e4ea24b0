"""What models cost, counted by hand where that can be done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from regbench.analysis.cost import flops_per_token, state_at, stream_bytes, training_bytes, training_flops
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.models.model import parameter_count
from regbench.ops.backend import use_backend
from regbench.tasks.base import TokenIO, VectorIO
from regbench.tracks import load_track
from regbench.utils import registry


class Two(nn.Module):
    """Two maps with a ReLU between them; its loss is their sum."""

    def __init__(self, width: int = 6, hidden: int = 10) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.register_buffer("scale", torch.ones(3))

    def losses(self, tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        return {"sum": self.down(torch.relu(self.up(tokens))).sum()}


class Window(Mixer):
    """Keeps the last `window` positions, of 8 channels."""

    window = 64

    def forward(self, x: Tensor) -> Tensor:
        return x

    def init_state(self, batch: int, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.zeros(batch, 0, 8, dtype=dtype)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.cat([state, x[:, None]], 1)[:, -self.window :].clone()


class Short(Window):
    """It stops growing between two of the first lengths that are read."""

    window = 20


def given(batch: int, length: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, length, 6), torch.ones(batch, length, dtype=torch.bool)


def test_memory_is_what_stands_and_what_is_kept_for_the_way_back() -> None:
    """Four copies of the weights and the buffer; of 7 x 5 rows the input of either map, the second also ReLU's own output."""
    model: Any = Two()
    weights, kept = 2 * 60, 7 * 5 * (6 + 10)
    assert training_bytes(model, *given(7)) == 4 * (4 * weights + 3 + kept)


def test_memory_grows_with_the_batch_alone_where_it_should_and_needs_none_to_be_counted() -> None:
    model: Any = Two()
    one, two, three = (training_bytes(model, *given(batch)) for batch in (1, 2, 3))
    assert three - two == two - one == 4 * 5 * (6 + 10)
    with FakeTensorMode():
        large: Any = Two(6, 1 << 30)
        assert training_bytes(large, *given(2)) == 4 * (4 * 12 * (1 << 30) + 3 + 10 * (6 + (1 << 30)))


def test_operations_are_two_for_each_product_and_twice_as_many_on_the_way_back() -> None:
    """The input needs no gradient, so the first map goes back once and the second twice."""
    model: Any = Two()
    products = 7 * 5 * 6 * 10
    assert training_flops(model, *given(7)) == 2 * products * (2 + 1 + 2)


def test_operations_of_an_lstm_are_counted() -> None:
    """A counter of PyTorch's sees nothing of the fused kernel: two layers of four gates, and what is around them."""
    cls = registry.load(registry.ARCHITECTURE, "lstm")
    model = build(cls, resolve_options(cls, {"d_model": 16, "n_layers": 2}), load_track("pfa-small-v1").task.io)
    layers = 2 * 2 * 4 * 16 * 32
    per_token = flops_per_token(model, torch.zeros(1, 50, dtype=torch.long))
    assert layers < per_token < 3 * parameter_count(model)


@pytest.mark.parametrize("name", ["mamba2", "gated_deltanet", "mamba"])
def test_operations_do_not_depend_on_the_kernel_that_would_run(name: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, name)
    model = build(cls, resolve_options(cls, {"d_model": 16, "n_layers": 1}), load_track("pfa-small-v1").task.io)
    tokens = torch.zeros(1, 50, dtype=torch.long)
    counted = flops_per_token(model, tokens)
    seen = {}
    for backend in ("chunked", "cpu"):
        with use_backend(backend), FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens)
        seen[backend] = counter.get_total_flops() / 50
    assert seen["cpu"] < counted == seen["chunked"]


@pytest.mark.ci
@pytest.mark.parametrize("name", ["transformer", "hyena", "forgetting_transformer", "cgt"])
def test_a_state_that_grows_is_what_a_stream_holds(name: str) -> None:
    """After 128 tokens that were read one by one; of the transformer also by its formula."""
    cls = registry.load(registry.ARCHITECTURE, name)
    io = TokenIO(9, 8, 130, tuple("abcdefgh|"))
    model: Any = build(
        cls, resolve_options(cls, {"d_model": 16, "n_heads": 2} if name != "hyena" else {"d_model": 16}), io
    )
    found = state_at(model.eval())
    assert found["128"] == stream_bytes(model, torch.zeros(1, 128, dtype=torch.long))
    assert 7 * found["128"] < found["1024"] <= 8 * found["128"]
    if name == "transformer":
        assert found == {"128": 4 * 2 * 2 * 16 * 128, "1024": 4 * 2 * 2 * 16 * 1024}


@pytest.mark.ci
@pytest.mark.parametrize(("heads", "most"), [({"ngram_heads": [1]}, 9), ({"extra_ngram_heads": [2]}, 81)])
def test_the_state_of_ngram_heads_is_read_to_the_end(heads: dict[str, list[int]], most: int) -> None:
    """It grows with the number of different n-grams, of which there are few; the transformer's cache grows all along."""
    cls, io = registry.load(registry.ARCHITECTURE, "transformer"), TokenIO(9, 8, 2000, tuple("abcdefgh|"))
    small = {"d_model": 16, "n_heads": 2}
    model: Any = build(cls, resolve_options(cls, {**small, **heads}), io).eval()
    found, bare = state_at(model), state_at(build(cls, resolve_options(cls, small), io).eval())
    assert set(found) == {"128", "1024"}
    own = {name: found[name] - bare[name] for name in found}
    layers = 2 if "extra_ngram_heads" in heads else 1
    assert 0 < own["128"] <= own["1024"] <= layers * 8 * (most + 4) * 20
    tokens = torch.randint(9, (1, 1024), generator=torch.Generator().manual_seed(1))
    assert found["1024"] == pytest.approx(stream_bytes(model, tokens), rel=0.02), "with other tokens"


def test_what_learned_positions_do_not_reach_is_left_out() -> None:
    cls = registry.load(registry.ARCHITECTURE, "transformer")
    options = resolve_options(cls, {"d_model": 16, "n_heads": 2, "ngram_heads": [1]})
    found = [state_at(build(cls, options, TokenIO(9, 8, length, tuple("abcdefgh|"))).eval()) for length in (64, 200)]
    assert [list(held) for held in found] == [[], ["128"]]


@pytest.mark.parametrize("mixer", [Window, Short])
def test_a_state_that_stops_growing_is_read_to_the_end(mixer: type[Window]) -> None:
    model: Any = build(mixer, mixer.Options(d_model=8, n_layers=1), TokenIO(9, 8, 64, tuple("abcdefgh|"))).eval()
    assert state_at(model) == {"128": 4 * 8 * mixer.window, "1024": 4 * 8 * mixer.window}
    assert stream_bytes(model, torch.zeros(1, 128, dtype=torch.long)) == 4 * 8 * mixer.window


@pytest.mark.ci
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_window_beside_n_gram_heads_is_read_to_its_end(positions: str) -> None:
    """Learned positions may end before it: then what the state would be is not said."""
    cls, io = registry.load(registry.ARCHITECTURE, "transformer"), TokenIO(9, 8, 100, tuple("abcdefgh|"))
    small = {"d_model": 16, "n_heads": 2, "window": 65, "positions": positions}
    plain: Any = build(cls, resolve_options(cls, small), io).eval()
    assert plain.state_bytes() == 2 * 4 * 2 * 64 * 16
    model: Any = build(cls, resolve_options(cls, {**small, "extra_ngram_heads": [1]}), io).eval()
    assert model.state_bytes() is None
    found = state_at(model)
    assert list(found) == ([] if positions == "learned" else ["128", "1024"])
    if found:
        assert plain.state_bytes() < found["128"] <= found["1024"] < plain.state_bytes() + 2 * 8 * 14 * 10


def test_a_state_that_cannot_be_known_is_empty() -> None:
    """A mixer without `step` has no stream; vectors are read too."""
    cls = registry.load(registry.ARCHITECTURE, "transformer")
    small = {"d_model": 16, "n_heads": 2}
    assert state_at(Two()) == {}
    vectors = VectorIO(d_in=3, d_out=1, max_length=64)
    assert state_at(build(cls, resolve_options(cls, small), vectors).eval())["128"] == 4 * 2 * 2 * 16 * 128
