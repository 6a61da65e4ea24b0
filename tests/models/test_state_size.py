"""Bytes of state against what a stream holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from papers.cost import stream_bytes
from regbench.models.mixer import Mixer
from regbench.models.state_size import state_at
from regbench.tasks.base import TokenIO, VectorIO
from tests.helpers.subjects import built

NAMES = tuple("abcdefgh|")
SMALL = {"d_model": 16, "n_heads": 2}


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


@pytest.mark.ci
@pytest.mark.parametrize("name", ["transformer", "hyena", "forgetting_transformer", "cgt"])
def test_a_state_that_grows_is_what_a_stream_holds(name: str) -> None:
    """After 128 tokens that were read one by one; of the transformer also by its formula."""
    model = built(name, TokenIO(9, 8, 130, NAMES), **(SMALL if name != "hyena" else {"d_model": 16}))
    found = state_at(model)
    assert found["128"] == stream_bytes(model, torch.zeros(1, 128, dtype=torch.long))
    assert 7 * found["128"] < found["1024"] <= 8 * found["128"]
    if name == "transformer":
        assert found == {"128": 4 * 2 * 2 * 16 * 128, "1024": 4 * 2 * 2 * 16 * 1024}


@pytest.mark.ci
@pytest.mark.parametrize(("heads", "most"), [({"ngram_heads": [1]}, 9), ({"extra_ngram_heads": [2]}, 81)])
def test_the_state_of_ngram_heads_is_read_to_the_end(heads: dict[str, list[int]], most: int) -> None:
    """It grows with the number of different n-grams, of which there are few; the transformer's cache grows all along."""
    io = TokenIO(9, 8, 2000, NAMES)
    model = built("transformer", io, **SMALL, **heads)
    found, bare = state_at(model), state_at(built("transformer", io, **SMALL))
    assert set(found) == {"128", "1024"}
    own = {name: found[name] - bare[name] for name in found}
    layers = 2 if "extra_ngram_heads" in heads else 1
    assert 0 < own["128"] <= own["1024"] <= layers * 8 * (most + 4) * 20
    tokens = torch.randint(9, (1, 1024), generator=torch.Generator().manual_seed(1))
    assert found["1024"] == pytest.approx(stream_bytes(model, tokens), rel=0.02), "with other tokens"


def test_what_learned_positions_do_not_reach_is_left_out() -> None:
    ios = [TokenIO(9, 8, length, NAMES) for length in (64, 200)]
    found = [state_at(built("transformer", io, **SMALL, ngram_heads=[1])) for io in ios]
    assert [list(held) for held in found] == [[], ["128"]]


@pytest.mark.parametrize("mixer", [Window, Short])
def test_a_state_that_stops_growing_is_read_to_the_end(mixer: type[Window]) -> None:
    model = built(mixer, TokenIO(9, 8, 64, NAMES), d_model=8, n_layers=1)
    assert state_at(model) == {"128": 4 * 8 * mixer.window, "1024": 4 * 8 * mixer.window}
    assert stream_bytes(model, torch.zeros(1, 128, dtype=torch.long)) == 4 * 8 * mixer.window


@pytest.mark.ci
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_window_beside_n_gram_heads_is_read_to_its_end(positions: str) -> None:
    """Learned positions may end before it: then what the state would be is not said."""
    io, small = TokenIO(9, 8, 100, NAMES), {**SMALL, "window": 65, "positions": positions}
    plain = built("transformer", io, **small)
    assert plain.state_bytes() == 2 * 4 * 2 * 64 * 16
    model = built("transformer", io, **small, extra_ngram_heads=[1])
    assert model.state_bytes() is None
    found = state_at(model)
    assert list(found) == ([] if positions == "learned" else ["128", "1024"])
    if found:
        assert plain.state_bytes() < found["128"] <= found["1024"] < plain.state_bytes() + 2 * 8 * 14 * 10


def test_a_state_that_cannot_be_known_is_empty() -> None:
    """A mixer without `step` has no stream; vectors are read too."""
    assert state_at(nn.Linear(2, 2)) == {}
    vectors = VectorIO(d_in=3, d_out=1, max_length=64)
    assert state_at(built("transformer", vectors, **SMALL))["128"] == 4 * 2 * 2 * 16 * 128
