"""The bottleneck of a task: what a model predicts after one token follows from one vector, in both forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import regbench
from regbench.checks.architecture import CONTRACT, compiles, streams
from regbench.checks.contract import examine
from regbench.checks.training import overfits, trains
from regbench.models.backbone import held_bytes
from regbench.models.bottleneck import Bottleneck
from regbench.models.model import Model
from regbench.tasks.base import TokenIO
from regbench.utils.errors import UserError
from tests.helpers.mixers import MIXERS
from tests.helpers.subjects import built, subject_of

IO = TokenIO(vocab_size=6, separator=5, max_length=17, names=("a", "b", "c", "d", ">", "|"), bottleneck=4)
INPUTS = torch.tensor([[5, 0, 4, 1, 2, 4, 3], [5, 1, 1, 1, 1, 1, 1], [4, 0, 0, 0, 0, 0, 0], [5, 2, 3, 0, 1, 2, 4]])


def model(name: str) -> Model:
    """One with moved weights: at its start RWKV-7 writes nothing into the residual stream."""
    return subject_of(name, IO, d_model=16, n_layers=1).moved()


def test_every_output_after_the_token_is_decoded_from_the_output_there_and_the_distance() -> None:
    torch.manual_seed(0)
    decoder = Bottleneck(4, torch.nn.Linear(8, 8), 8, 7)
    outputs = torch.randn(4, 7, 8)
    decoded, _ = decoder(outputs, INPUTS, decoder.init_state(4, outputs))
    for row, tokens in enumerate(INPUTS.tolist()):
        first = tokens.index(4) if 4 in tokens else 7
        assert torch.equal(decoded[row, :first], outputs[row, :first])
        for t in range(first, 7):
            z = outputs[row, first] + decoder.distances.weight[t - first]
            torch.testing.assert_close(decoded[row, t], decoder.norm(z + decoder.network(z)))


@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6), (3,), (2, 5)])
def test_positions_one_after_the_other_are_decoded_as_all_at_once(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    decoder = Bottleneck(4, torch.nn.Linear(8, 8), 8, 7)
    outputs = torch.randn(4, 7, 8)
    begin = decoder.init_state(4, outputs)
    whole, last = decoder(outputs, INPUTS, begin)
    parts, state = [], begin
    for start, end in zip((0, *cuts), (*cuts, 7), strict=True):
        decoded, state = decoder(outputs[:, start:end], INPUTS[:, start:end], state)
        parts.append(decoded)
        assert held_bytes(state) == 4 * decoder.state_bytes()
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(state.vector, last.vector)
    assert torch.equal(state.distance, last.distance)


@pytest.mark.parametrize("name", ["transformer", "mamba", "lstm", "rwkv7"])
def test_tokens_after_the_bottleneck_change_no_prediction_and_those_before_change_all(name: str) -> None:
    made = model(name)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    predicted = made(tokens)
    later, earlier = tokens.clone(), tokens.clone()
    later[0, 5:] = torch.tensor([3, 3, 0, 1])
    earlier[0, 0] = 2
    assert torch.equal(made(later), predicted)
    assert ((made(earlier) - predicted)[0, 5:].abs().amax(-1) > 1e-6).all()
    assert not torch.equal(predicted[0, 5], predicted[0, 6])  # the distance is told


@pytest.mark.ci
@pytest.mark.parametrize("name", MIXERS)
def test_every_architecture_keeps_the_contract_with_a_bottleneck(name: str) -> None:
    """The contract without a bottleneck, which is a part of the backbone, asks whether a mixer compiles."""
    subject = subject_of(name, IO, **({"d_model": 16, "n_heads": 2} if name not in ("lstm", "rwkv7") else {}))
    # Instances to overfit are of another task.
    checks = [check for check in CONTRACT if check not in (compiles, overfits)]
    assert [outcome for outcome in examine(subject, checks) if outcome.fault] == []


@pytest.mark.parametrize(("n_symbols", "length"), [(16, 33), (2, 3)])
def test_n_gram_heads_may_be_trained_with_a_bottleneck(n_symbols: int, length: int) -> None:
    """The check asks for a gradient, so the tokens that it trains on repeat something before the bottleneck."""
    names = (*map(str, range(n_symbols)), ".", ">", "|")
    io = TokenIO(n_symbols + 3, n_symbols + 2, length, names, bottleneck=n_symbols + 1)
    with torch.no_grad():
        assert trains(subject_of("lstm", io, d_model=16, ngram_heads=(1, 2, 3) if length > 3 else ())) is None


@pytest.mark.parametrize("name", ["mamba", "rwkv7"])
def test_a_stream_longer_than_an_instance_is_refused_in_one_line(name: str) -> None:
    one: Any = model(name)
    state = one.init_state(2)
    for _ in range(IO.max_length):
        _, state = one.step(torch.full((2,), 4), state)
    with pytest.raises(UserError, match="a sequence of 18 tokens is longer than the 17 positions"):
        one.step(torch.full((2,), 4), state)


def test_n_gram_heads_stream_through_a_bottleneck() -> None:
    with torch.no_grad():
        assert streams(subject_of("retnet", IO, d_model=16, n_heads=2, ngram_heads=(1, 2), short_conv=3)) is None


def test_a_whole_model_is_refused() -> None:
    with pytest.raises(UserError, match="take an architecture made of a mixer"):
        built("learned_ngram", IO)


def test_what_reads_the_whole_prompt_is_not_scored() -> None:
    track = regbench.load_track("mad-compression-small-v1")
    with pytest.raises(UserError, match="asks what one vector of a model holds"):
        regbench.evaluate(track, lambda tokens: np.zeros(1), predicts="this", kind="logits")
    with pytest.raises(UserError, match="asks what one vector of a model holds"):
        regbench.evaluate(track, "hf:somewhere")


@pytest.mark.ci
def test_a_trained_model_is_scored_as_its_run_was(tmp_path: Any) -> None:
    run = regbench.run(
        "mad-compression-small-v1",
        "lstm",
        settings={"d_model": 8, "n_layers": 1, "training.train_tokens": 3000, "training.train_instances": 100},
        out=tmp_path / "run",
    )
    assert set(run.baselines) == {"unigram", "oracle"}  # the others read the whole prompt
    again = regbench.evaluate("mad-compression-small-v1", regbench.load(tmp_path / "run"))
    for name in ("token_accuracy", "nll"):
        assert again.score(name) == run.score(name)
