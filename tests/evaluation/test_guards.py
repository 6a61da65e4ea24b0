"""What `regbench.evaluate` refuses: predictions that see what they predict, depend on chance or their batch, or are shifted."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import regbench
from baselines.bayes import Bayes
from baselines.ngram import NGram
from regbench.evaluation import guards
from regbench.evaluation.any_predictor import weights_digest
from regbench.models.model import shift_in
from regbench.tracks import Track
from tests.helpers.given import NextToken, refused

# --- What a model may not see. ---


def peeking(share: float) -> Callable[[Tensor], Tensor]:
    """A predictor that gives a share of its probability to the token itself."""

    def predict(tokens: Tensor) -> Tensor:
        return share * nn.functional.one_hot(tokens, 5).double() + (1 - share) / 5

    return predict


def test_a_model_that_sees_the_token_itself(tiny: Track) -> None:
    line = refused(tiny, peeking(0.1), predicts="this", kind="probabilities")
    assert line == (
        "the callable sees the token that it predicts, or what follows: without them it predicts otherwise; "
        "if row t is of token t + 1, say predicts='next'"
    )


@pytest.mark.parametrize("at_once", [1, 5, 64])
def test_a_model_that_sees_the_token_in_what_looks_like_rounding(
    tiny: Track, vocab_size: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly uniform rows: one part in a thousand decides what is most likely. However many instances are asked at once."""
    monkeypatch.setattr(guards, "rows_at_once", lambda *_: at_once)

    def peeks(tokens: Tensor) -> Tensor:
        rows = torch.full((*tokens.shape, vocab_size), 1.0 / vocab_size, dtype=torch.float64)
        rows.scatter_(-1, tokens[..., None], 1.0009 / vocab_size)
        return rows / rows.sum(-1, keepdim=True)

    line = refused(tiny, peeks, predicts="this", kind="probabilities")
    assert line == (
        "the callable sees the token that it predicts: its predictions change little with it, and are better for it"
    )


def test_the_digest_is_of_every_weight() -> None:
    """And of its name and shape."""
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    digests = {weights_digest(module) for module in (one, other, nn.Sequential(one), nn.Linear(1, 2), nn.Linear(2, 1))}
    assert len(digests) == 5
    other.load_state_dict(one.state_dict())
    assert weights_digest(other) == weights_digest(one)
    with torch.no_grad():
        other.weight[1, 1] += 1e-6
    assert weights_digest(other) != weights_digest(one)


def test_the_last_row_of_an_array_of_next_tokens_is_not_read(tiny: Track, rows: NDArray[np.float64]) -> None:
    instances = tiny.instances("test")
    early = np.concatenate([rows[:, 1:], rows[:, :1]], axis=1)
    whole = regbench.evaluate(tiny, early, predicts="next", kind="probabilities")
    early[np.arange(len(rows)), instances.lengths - 1] = np.nan
    found = regbench.evaluate(tiny, early, predicts="next", kind="probabilities")
    assert found.score("nll") == whole.score("nll")
    early[0, 2] = np.nan
    assert "NaN" in refused(tiny, early, predicts="next", kind="probabilities")


def test_a_model_that_sees_the_future(tiny: Track, vocab_size: int) -> None:
    class Both(NextToken):
        def __init__(self) -> None:
            super().__init__(vocab_size)
            self.gru = nn.GRU(16, 8, batch_first=True, bidirectional=True)

    line = refused(tiny, Both(), predicts="next", kind="logits")
    assert line == "the module sees the token that it predicts, or what follows: without them it predicts otherwise"


@pytest.mark.parametrize("ahead", [1, 5])
def test_a_model_that_reads_a_later_token(tiny: Track, vocab_size: int, ahead: int) -> None:
    def reads(tokens: Tensor) -> Tensor:
        later = nn.functional.pad(tokens[:, ahead:], (0, min(ahead, tokens.shape[1])), value=tiny.task.io.separator)
        return 0.2 * nn.functional.one_hot(later, vocab_size)  # behind the end as padding: the same in any batch

    assert "or what follows" in refused(tiny, reads, predicts="this", kind="logits")


def test_a_model_that_behaves_for_its_first_calls(vocab_size: int, tiny: Track) -> None:
    calls = iter(range(1000))

    def behaves(tokens: Tensor) -> Tensor:
        return 0.2 * nn.functional.one_hot(tokens * (next(calls) > 2), vocab_size)

    for _ in range(3):
        behaves(torch.zeros(1, 3, dtype=torch.long))
    assert "or what follows" in refused(tiny, behaves, predicts="this", kind="logits")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_model_that_looks_prefixes_up(when: str) -> None:
    """It knows the test split, or keeps what it is shown. Every answer follows from what was asked, so the truth allows it."""
    track = regbench.load_track("mqar-small-v1")
    size, known = track.task.io.vocab_size, {}

    def keep(tokens: NDArray[np.int64]) -> None:
        known.update({row[:t].tobytes(): int(row[t]) for row in tokens for t in range(len(row))})

    def looks_up(tokens: Tensor) -> NDArray[np.float64]:
        own = tokens.numpy().astype(np.int64)
        if when == "meanwhile" and len(known) < 16_000:
            keep(own)
        rows = np.full((*own.shape, size), 1 / size)
        for b, row in enumerate(own):
            for t in range(len(row)):
                if (answer := known.get(row[:t].tobytes())) is not None:
                    rows[b, t] = 0.1 / size
                    rows[b, t, answer] += 0.9
        return rows

    if when == "before":
        keep(track.instances("test").tokens.astype(np.int64))
    line = refused(track, looks_up, predicts="this", kind="probabilities")
    assert "better on these instances than on fresh ones" in line


def test_a_shift_of_a_model_is_named_either_way() -> None:
    track = regbench.load_track("pfa-small-v1")
    learner = NGram(3, track.task.io.vocab_size, track.task.io.separator)

    def this(tokens: Tensor) -> NDArray[np.float64]:
        return np.asarray(learner.predict(tokens.numpy()))

    def following(tokens: Tensor) -> NDArray[np.float64]:
        more = np.concatenate([tokens.numpy(), np.zeros((len(tokens), 1), np.int64)], 1)
        return np.asarray(learner.predict(more))[:, 1:]

    asked = {"kind": "probabilities", "split": "validation"}
    assert "one place early" in (line := refused(track, following, predicts="this", **asked))
    assert line.endswith("say predicts='next'")
    assert "one place late" in (line := refused(track, this, predicts="next", **asked))
    assert line.endswith("say predicts='this'")
    twice = refused(track, lambda tokens: this(shift_in(tokens, 8)), predicts="this", **asked)
    assert twice.endswith("shift the tokens only once")
    early = np.roll(this(torch.from_numpy(track.instances("validation").tokens)), -2, 1)
    assert "two places early" in refused(track, early, predicts="next", **asked)


@pytest.mark.parametrize("name", ["assoc-recall-small-v1", "mqar-small-v1"])
def test_an_early_array_is_named_where_few_tokens_are_scored(name: str) -> None:
    """No two of them stand side by side, so the row that fits is one that is not scored. A guess is never taken for a shift."""
    track, asked = regbench.load_track(name), {"kind": "probabilities", "split": "validation"}
    tokens, io = track.instances("validation").tokens, track.task.io
    early = np.roll(NGram(2, io.vocab_size, io.separator).predict(tokens), -1, 1)
    line = (
        "predictions are one place early: the array's row t fits token t + 1 better than token t; say predicts='next'"
    )
    assert refused(track, early, predicts="this", **asked) == line
    for order in (1, 2):
        right = NGram(order, io.vocab_size, io.separator).predict(tokens)
        assert regbench.evaluate(track, right, predicts="this", **asked).metrics


def test_a_random_model_and_one_that_depends_on_its_batch(tiny: Track, vocab_size: int) -> None:
    rng = np.random.default_rng(0)

    def random(tokens: Tensor) -> Tensor:
        return torch.from_numpy(rng.normal(size=(*tokens.shape, vocab_size)))

    def batch(tokens: Tensor) -> Tensor:
        return torch.ones(*tokens.shape, vocab_size) * torch.arange(vocab_size) * len(tokens)

    def carried(tokens: Tensor) -> Tensor:
        """Reads the same token of the sequences beside it in the batch."""
        return 0.2 * nn.functional.one_hot((tokens.sum(0) - tokens) % vocab_size, vocab_size)

    assert "random" in refused(tiny, random, predicts="next", kind="logits")
    assert "others in its batch" in refused(tiny, batch, predicts="next", kind="logits")
    assert "others in its batch" in refused(tiny, carried, predicts="this", kind="logits")


def test_a_model_that_counts_positions_from_the_end() -> None:
    """What ends a batch decides. So it differs with the others in it."""
    track = regbench.load_track("pfa-small-v1")
    vocab_size = track.task.io.vocab_size

    def backwards(tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1]).flip(0) % vocab_size
        return 3.0 * nn.functional.one_hot(place, vocab_size).expand(len(tokens), -1, -1)

    assert "others in its batch" in refused(track, backwards, predicts="this", kind="logits", split="validation")


def test_a_model_that_answers_the_last_position_alone_is_not_late() -> None:
    track = regbench.load_track("assoc-recall-small-v1")
    size = track.task.io.vocab_size

    def last(tokens: Tensor) -> Tensor:
        """At the last position the token that followed the last key before; a guess elsewhere."""
        rows = torch.full((*tokens.shape, size), 1 / size)
        same = tokens[:, :-2] == tokens[:, -2:-1]
        found = tokens.gather(1, (same * torch.arange(same.shape[1])).argmax(1, keepdim=True) + 1)
        rows[:, -1] = 0.01 / size + 0.99 * nn.functional.one_hot(found[:, 0], size)
        return rows

    result = regbench.evaluate(track, last, predicts="this", kind="probabilities", split="validation")
    assert result.score("final_accuracy").value == 1.0


@pytest.mark.parametrize("name", ["assoc-recall-small-v1", "mqar-small-v1"])
@pytest.mark.parametrize("elsewhere", ["uniform", "frequencies"])
def test_wrong_guesses_that_are_sure_are_not_early(name: str, elsewhere: str) -> None:
    """The rows beside them know nothing, and so fit better."""
    track = regbench.load_track(name)
    some, size = track.instances("validation"), track.task.io.vocab_size
    counts = np.bincount(some.tokens[some.scored], minlength=size)
    known = {"uniform": np.full(size, 1 / size), "frequencies": counts / counts.sum()}[elsewhere]
    rows = np.broadcast_to(known, (*some.tokens.shape, size)).copy()
    guesses = np.random.default_rng(0).integers(0, size, some.scored.sum())
    rows[some.scored] = 0.02 / size + 0.98 * np.eye(size)[guesses]
    asked = {"kind": "probabilities", "split": "validation"}
    assert regbench.evaluate(track, rows, predicts="this", **asked).metrics


# --- What an array may not have seen. ---


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_an_array_that_agrees_with_the_tokens_beyond_the_truth(
    tiny: Track, rows: NDArray[np.float64], share: float, vocab_size: int
) -> None:
    itself = np.eye(vocab_size)[tiny.instances("test").tokens.astype(int)]
    line = refused(tiny, share * itself + (1 - share) * rows, predicts="this", kind="probabilities")
    assert re.search(r"has seen the tokens that it predicts: .* \d+ standard errors more", line)


def test_honest_predictors_agree_as_much_as_the_truth_allows(tiny: Track) -> None:
    """Arrays of all kinds of honest predictors pass: the truth itself, Bayes, n-grams, a guess, a confident fool."""
    test = tiny.instances("test")
    io = tiny.task.io
    truth = tiny.task.truth(test)
    truth[~test.scored] = 1 / io.vocab_size
    fool = np.eye(io.vocab_size)[np.random.default_rng(0).integers(0, io.vocab_size, test.tokens.shape)]
    ngrams = [NGram(order, io.vocab_size, io.separator).predict(test.tokens) for order in (1, 2, 3)]
    bayes = [one.predict(test.tokens) for one in Bayes.defaults(tiny.task, test)]
    for array in (truth, fool, *ngrams, *bayes):
        regbench.evaluate(tiny, array, predicts="this", kind="probabilities")


def test_a_shift_of_an_array_is_named_either_way() -> None:
    """Where there are enough tokens to be sure."""
    track = regbench.load_track("pfa-small-v1")
    test = track.instances("validation")
    learner = NGram(3, track.task.io.vocab_size, track.task.io.separator)
    rows = np.asarray(learner.predict(test.tokens))
    following = np.concatenate([rows[:, 1:], rows[:, :1]], 1)
    asked = {"kind": "probabilities", "split": "validation"}
    assert refused(track, following, predicts="this", **asked).endswith("say predicts='next'")
    assert refused(track, rows, predicts="next", **asked).endswith("say predicts='this'")
    late = np.concatenate([rows[:, :1], rows[:, :-1]], 1)
    assert refused(track, late, predicts="this", **asked).endswith("shift the tokens only once")
