"""Starting weights that several architectures share as an option: the same option does the same in each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regbench.models.mixer import Mixer
from regbench.utils import registry


def mixer_of(name: str, **options: object) -> Mixer:
    torch.manual_seed(0)
    cls = registry.load(registry.ARCHITECTURE, name)
    mixer: Mixer = cls(cls.Options(**options))
    return mixer


def queries_and_keys(mixer: Mixer) -> tuple[Tensor, Tensor]:
    """The weights of both, (d_k of all heads, D)."""
    if hasattr(mixer, "qkv"):
        query, key, _ = mixer.qkv.weight.chunk(3)  # type: ignore[operator, union-attr]
        return query, key
    return mixer.query.weight, mixer.key.weight  # type: ignore[union-attr, return-value]


@pytest.mark.parametrize("n_heads", [1, 4])
@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "retnet", "gla"])
def test_mimetic_begins_with_one_score_of_a_position_with_itself(name: str, n_heads: int) -> None:
    """About 3 sqrt(d_k) for a normalised x, whatever the architecture."""
    query, key = queries_and_keys(mixer_of(name, n_heads=n_heads, mimetic=True))
    assert torch.equal(query, key)
    assert query is not key
    x = nn.functional.layer_norm(torch.randn(2000, 64), (64,))
    q, k = ((x @ weight.T).unflatten(-1, (n_heads, -1)) for weight in (query, key))
    width = q.shape[-1]
    assert (q * k).sum(-1).mean().item() / width**0.5 == pytest.approx(3 * width**0.5, rel=0.2)


@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "retnet", "gla"])
def test_the_default_is_the_published_start(name: str) -> None:
    query, key = queries_and_keys(mixer_of(name))
    assert abs((query * key).sum()) < 0.1 * query.norm() * key.norm()


def test_an_lstm_can_begin_with_orthogonal_maps_and_open_gates() -> None:
    lstm = mixer_of("lstm", start="orthogonal").lstm
    assert isinstance(lstm, nn.LSTM)
    for gate in lstm.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(64), atol=1e-5, rtol=0)
    total = lstm.bias_ih_l0 + lstm.bias_hh_l0
    assert total.tolist() == [0.0] * 64 + [1.0] * 64 + [0.0] * 128  # input, forget, cell, output
    assert mixer_of("lstm").lstm.bias_ih_l0.abs().max() <= 64**-0.5  # type: ignore[union-attr, operator]
