"""N-gram heads in any architecture: where they stand, what they cost, and what a stream holds (ICLL section 6)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from regbench.checks.architecture import CONTRACT, compiles
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.models.backbone import StreamState, held_bytes
from regbench.models.model import Model, parameter_count
from regbench.models.ngram_heads import NGramHead
from regbench.ops.ngram import NGramIndex, ngram_head
from regbench.tasks.base import TokenIO
from regbench.utils.errors import UserError
from tests.helpers.mixers import SOME_MIXERS
from tests.helpers.subjects import built, subject_of
from tests.helpers.typed import PLUGIN

IO = TokenIO(vocab_size=5, separator=4, max_length=48, names=("a", "b", "c", "d", "|"))
D = 16
SLOW = (overfits, compiles)
"""Left out. Heads under torch.compile are tested with the transformer."""


def make(name: str, **settings: object) -> Model:
    model: Model = built(name, IO, d_model=D, **settings)
    return model


def broken(name: str, **settings: object) -> dict[str, str]:
    subject = subject_of(name, IO, d_model=D, **settings)
    return {o.check: o.fault for o in examine(subject, [c for c in CONTRACT if c not in SLOW]) if o.fault}


@pytest.mark.parametrize("name", SOME_MIXERS)
def test_any_architecture_takes_them_and_keeps_the_contract(name: str) -> None:
    assert broken(name, ngram_heads=[1, 2, 3], ngram_after=[1, 2]) == {}
    assert make(name, ngram_heads=[1]).state_bytes() is None


def test_a_strangers_mixer_takes_them_with_no_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "same.py"
    path.write_text(PLUGIN)
    assert broken(str(path), ngram_heads=[1], ngram_after=[2]) == {}


def test_they_cost_what_the_paper_says() -> None:
    plain = parameter_count(make("lstm"))
    norm = 2 * D
    for orders in ([1], [1, 2], [1, 2, 3]):
        assert parameter_count(make("lstm", ngram_heads=orders)) - plain == len(orders) * (2 * D * D + norm)
    with_mlp = parameter_count(make("lstm", ngram_heads=[1, 2, 3], ngram_mlp=True)) - plain
    assert with_mlp == 12 * D * D + 4 * norm
    twice = parameter_count(make("lstm", ngram_heads=[1], ngram_after=[1, 2])) - plain
    assert twice == 2 * (2 * D * D + norm)


def test_one_head_is_equation_13() -> None:
    torch.manual_seed(0)
    head = NGramHead(D, order=2).double()
    tokens, x = torch.randint(3, (2, 20)), torch.randn(2, 20, D, dtype=torch.float64)
    expected = x @ head.own.weight.T + ngram_head(tokens, x, 2, backend="naive") @ head.matched.weight.T
    torch.testing.assert_close(head(x, NGramIndex(tokens)), expected)


def test_they_let_a_model_without_memory_see_what_followed(tmp_path: Path) -> None:
    """A mixer that mixes nothing, with heads, tells two pasts apart that end alike; without heads it cannot."""
    past = torch.tensor([[0, 1, 2, 0, 3]]), torch.tensor([[0, 3, 2, 0, 3]])  # after 0 came 1, or 3

    def differ(model: Model) -> bool:
        a, b = (model.double().eval()(tokens)[0, 4] for tokens in past)
        return not torch.allclose(a, b)

    same = tmp_path / "same.py"
    same.write_text(PLUGIN)
    assert not differ(make(str(same)))
    assert differ(make(str(same), ngram_heads=[1]))


def held(model: Model, stream: list[int]) -> list[StreamState]:
    """The states after each token of one stream; the last alone may be used further."""
    states = []
    with torch.no_grad():
        state = model.init_state(1)  # type: ignore[operator]
        for token in stream:
            _, state = model.step(torch.tensor([token]), state)  # type: ignore[operator]
            states.append(copy.deepcopy(state))
    return states


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lstm", {"ngram_heads": [1, 2]}), ("transformer", {"extra_ngram_heads": [1, 2]})],
)
def test_the_streams_state_grows_with_distinct_ngrams_only(name: str, settings: dict[str, object]) -> None:
    """A stream of period 3, ten times as long, holds not a byte more; new n-grams add theirs."""
    model = make(name, **settings).eval()
    assert model.state_bytes() is None
    states = held(model, [0, 1, 2] * 10)
    sizes = [held_bytes(state.ngram_sums()) for state in states]
    assert sizes[5] == sizes[-1]
    layers, width = (1, D) if name == "lstm" else (2, D // 8)
    recent_and_waiting = (1 + 1) + (2 + 2)  # numbers, of orders 1 and 2
    rows = 3 * (1 + width + 1) + 3 * (2 + width + 1)  # of each distinct n-gram: its tokens, its sum, its count
    assert sizes[-1] == layers * 8 * (recent_and_waiting + rows)
    plain = make(name).eval()
    others = held(plain, [0, 1, 2] * 10)
    assert [a.state_bytes() - b.state_bytes() for a, b in zip(states, others, strict=True)] == sizes
    assert held_bytes(held(model, [0, 1, 2] * 10 + [3, 0, 0])[-1].ngram_sums()) > sizes[-1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ngram_heads": [0]}, r"option: ngram_heads.0: input should be greater than or equal to 1 \(given 0\)"),
        ({"ngram_heads": [9]}, "less than or equal to 8"),
        ({"ngram_heads": "1;2"}, "ngram_heads"),
        ({"ngram_heads": [1], "ngram_after": [3]}, "ngram_after=3 is past the last of 2 blocks"),
        ({"ngram_heads": [1], "ngram_after": [0]}, "ngram_after.0: input should be greater than or equal to 1"),
    ],
)
def test_wrong_places_and_orders_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make("lstm", **settings)
