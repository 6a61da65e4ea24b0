"""Probes of hidden states: targets against counting in strings, controls against closed forms, and the order of the splits."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import regbench
from regbench import cli, runner
from regbench.analysis import probes
from regbench.analysis.hidden import hidden_states, states_at
from regbench.analysis.key_sets import first_position, hidden_states_of
from regbench.analysis.probe_targets import Target, ngram_samples, state_samples
from regbench.analysis.probes import check_probed, chosen_targets, probe
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.ops.ngram_counts import ngram_counts
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from tests.helpers.subjects import trained_of
from tests.helpers.typed import refused


@pytest.fixture(scope="module")
def pfa() -> Track:
    return load_track("pfa-small-v1")


@pytest.fixture(scope="module")
def some(pfa: Track) -> Instances:
    return pfa.instances("validation")[:30]


def strings(instances: Instances, track: Track) -> list[str]:
    """What a model reads, as a string for each instance."""
    io = track.task.io
    rows = zip(instances.tokens.tolist(), instances.lengths.tolist(), strict=True)
    return ["|" + "".join(io.names[token] for token in row[: length - 1]) for row, length in rows]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("existence", [False, True])
def test_ngram_targets_against_counting_in_strings(pfa: Track, some: Instances, order: int, existence: bool) -> None:
    if existence and order == 1:
        return
    io, read = pfa.task.io, strings(some, pfa)
    samples = ngram_samples(some, io.separator, io.vocab_size, order, existence, np.random.default_rng(0))
    assert len(samples) == 12 * len(some)
    assert np.array_equal(samples.unit, samples.row)
    first = first_position(some)
    for i in range(0, len(samples), 7):
        seen = read[samples.row[i]][: samples.place[i] + 1]
        gram = "".join(io.names[token] for token in samples.query[i])
        assert samples.place[i] >= first
        assert "|" not in gram
        assert gram[:-1] == seen[len(seen) - order + 1 :]  # the last n - 1 tokens

        def count(text: str, seen: str = seen) -> int:
            return sum(seen.startswith(text, at) for at in range(len(seen)))

        if existence:
            assert samples.values["existence"][i] == (count(gram) > 0)
            assert count(gram[-1]) > 0  # a symbol of the prefix
        else:
            assert samples.values["counts"][i] == count(gram) > 0
            every = sum(count(gram[:-1] + name) for name in io.names)
            assert samples.values["frequencies"][i] == pytest.approx(count(gram) / every)
        assert samples.tokens[i, :3].tolist() == [io.names.index(c) for c in seen[:-4:-1]]
    long_enough = some.lengths[samples.stranger] > samples.place
    assert long_enough.all()
    alone = samples.stranger == samples.row
    assert all((some.lengths > place).sum() == 1 for place in samples.place[alone])
    if existence:
        assert 0.4 < samples.values["existence"].mean() < 0.75


def test_counts_are_drawn_in_proportion(pfa: Track, some: Instances) -> None:
    """A symbol that occurred k times is drawn as often as k positions drawn at random would say."""
    io = pfa.task.io
    samples = ngram_samples(some, io.separator, io.vocab_size, 1, False, np.random.default_rng(0))
    expected = [(row := counts[0, 0][: io.separator].astype(float)) @ row / row.sum() for counts in samples.counts]
    spread = np.std(samples.values["counts"] - expected) / len(samples) ** 0.5
    assert abs(samples.values["counts"].mean() - np.mean(expected)) < 4 * spread


def test_state_pairs(pfa: Track, some: Instances) -> None:
    io, states = pfa.task.io, some.truth_at["state"]
    samples = state_samples(some, io.separator, io.vocab_size, np.random.default_rng(0))
    assert samples is not None
    same = states[samples.row, samples.place] == states[samples.row, samples.other]
    assert (same == samples.values["state"]).all()
    assert (samples.place != samples.other).all()
    shared = replace(some, truth={**some.truth, "document": np.arange(len(some)) // 2})
    of_two = state_samples(shared, io.separator, io.vocab_size, np.random.default_rng(0))
    assert of_two is not None
    assert np.array_equal(of_two.unit, of_two.row // 2)
    assert (states[samples.row, samples.place] >= 0).all()
    assert (states[samples.row, samples.other] >= 0).all()
    assert 0.5 < same.mean() < 0.8  # half are forced, and some of the others are equal by chance


@pytest.mark.ci
def test_hidden_states_are_what_the_last_norm_reads(tiny: Track) -> None:
    """Of every kind of model; those after n-gram heads where there are any. `states_at` finds the same."""
    instances = tiny.instances("validation")
    tokens = torch.from_numpy(instances.tokens.astype(np.int64))
    for name, settings in (
        ("transformer", {"ngram_heads": [1], "ngram_after": [2]}),
        ("mamba", {}),
        ("lstm", {}),
        ("hyena", {}),
        ("cgt", {"n_layers": 2, "d_y": 8, "templates": 2}),
    ):
        trained = trained_of(tiny, name, d_model=16, **settings)
        states = hidden_states(trained.model, tokens)
        assert len(states) == 2
        model: object = trained.model
        norm = model.norm if hasattr(model, "norm") else model.x_norm  # type: ignore[attr-defined]
        with torch.no_grad():
            logits = model.unembed(norm(states[-1]))  # type: ignore[attr-defined]
        torch.testing.assert_close(logits, trained.logits(tokens))
        row, place = np.array([19, 0, 7, 7]), np.array([0, 2, 1, 3])
        (layers,) = states_at(trained.model, instances, row, [place])
        torch.testing.assert_close(layers[0], states[0][row, place], atol=1e-5, rtol=1e-4)


@pytest.mark.ci
def test_controls_and_ceiling(pfa: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """The true counts can be read; the constant is its closed form; another instance's state is worth no more than that."""
    monkeypatch.setattr(probes, "TRAINING_INSTANCES", 300)
    monkeypatch.setattr(probes, "OTHER_INSTANCES", 60)
    trained = trained_of(pfa, "lstm", d_model=8, n_layers=1)
    (frequency,) = [t for t in chosen_targets("frequencies") if t.order == 1]
    (found,) = probe(trained, [frequency], steps=500)
    assert found.ceiling.value < 0.1
    io = pfa.task.io

    def samples(split: str, number: int) -> np.ndarray:
        generator = np.random.default_rng([0, number, *b"numbers", 1])
        instances = pfa.instances(split)[: 300 if split == "train" else 60]
        return ngram_samples(instances, io.separator, io.vocab_size, 1, False, generator).values["frequencies"]

    y = samples("test", 2)
    assert found.constant.value == pytest.approx(np.mean(np.abs(samples("train", 0).mean() - y) / y), rel=1e-5)
    error = (found.shuffled.stderr**2 + found.constant.stderr**2) ** 0.5
    assert found.shuffled.value > found.constant.value - 3 * error
    assert found.trained.value == found.layers[found.layer - 1].value
    assert found.untrained.value != found.trained.value  # of other weights


def test_a_feature_that_never_varied_in_training_says_nothing() -> None:
    """Else its first other value would be a million deviations away, and one sample would be the whole error."""
    layer = torch.arange(12.0).reshape(3, 2, 2)
    layer[..., 1] = 7.0
    mean, deviation = probes._scale(layer)
    later = (torch.full((3, 2, 2), 8.0) - mean) / deviation
    assert later[..., 1].abs().max() == 0.0
    assert later[0, 0, 0] == pytest.approx((8.0 - 5.0) / float(layer[..., 0].std()))


@pytest.mark.ci
def test_a_state_that_holds_the_answer_is_read(pfa: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of its own, with `hidden_states`; a linear probe reads what is written there, a number as well as a yes or no."""

    class Holds(regbench.Model):
        def forward(self, tokens: Tensor) -> Tensor:
            return torch.zeros(*tokens.shape, self.io.vocab_size)

        def hidden_states(self, tokens: Tensor) -> list[Tensor]:
            inputs = regbench.shift_in(tokens, self.io.separator)
            counts = torch.nn.functional.one_hot(inputs, self.io.vocab_size).cumsum(1).float()
            followed = ngram_counts(inputs, 2, self.io.vocab_size)[:, :, 1].clamp(max=1).float()
            return [torch.zeros(*tokens.shape, 3), torch.cat([counts, followed], -1), torch.ones(*tokens.shape, 2)]

    monkeypatch.setattr(probes, "TRAINING_INSTANCES", 150)
    monkeypatch.setattr(probes, "OTHER_INSTANCES", 60)
    trained = Trained(Path("nowhere"), "holds", 0, pfa, Holds(regbench.Options(), pfa.task.io))
    (count,) = [t for t in chosen_targets("counts") if t.order == 1]
    found, exists = probe(trained, [count, Target("existence", 2)], steps=150)
    assert (found.layer, found.linear_layer) == (2, 2)
    assert found.linear.value < 0.05
    assert found.trained.value < found.layers[0].value / 2
    assert found.shuffled.value > 2 * found.trained.value
    assert (exists.metric, exists.layer, exists.linear_layer) == ("accuracy", 2, 2)
    assert exists.linear.value > 0.95


def test_strings_of_one_symbol_have_no_2_grams(tiny: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tiny.instances

    def instances(split: str) -> Instances:
        found = given(split)
        tokens = np.where(np.arange(found.tokens.shape[1]) % 2, tiny.task.io.separator, found.tokens)
        return replace(found, tokens=tokens.astype(found.tokens.dtype))

    monkeypatch.setattr(tiny, "instances", instances)
    with pytest.raises(UserError, match="tiny-v1 has no position to probe for count-2: its strings are too short"):
        probe(trained_of(tiny, "lstm", d_model=8), chosen_targets("counts"), steps=2)


def test_the_test_split_is_read_after_every_choice(tiny: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    given, fitted = tiny.instances, probes._Fitted.__init__

    def instances(split: str) -> Instances:
        read.append(split)
        return given(split)

    def fit(self: object, *arguments: object) -> None:
        fitted(self, *arguments)  # type: ignore[arg-type]
        read.append("chosen")

    monkeypatch.setattr(tiny, "instances", instances)
    monkeypatch.setattr(probes._Fitted, "__init__", fit)
    probe(trained_of(tiny, "lstm", d_model=8), chosen_targets("existence,state"), steps=2)
    assert "test" not in read[: len(read) - 1 - read[::-1].index("chosen")]
    assert read.count("chosen") == 3
    assert read[-1] == "test"


@pytest.mark.ci
def test_the_command(tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    runner.run(str(tiny_file), "gla", settings={"d_model": 8, "training.train_tokens": 500}, out=run)
    files = ["--out", str(tmp_path / "p.png"), "--csv", str(tmp_path / "p.csv"), "--what", "frequencies,state"]
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes.probe, "__kwdefaults__", {**probes.probe.__kwdefaults__, "steps": 5})  # type: ignore[dict-item]
        assert cli.main(["probe", str(run), "--track", str(tiny_file), *files]) == 0
    printed = capsys.readouterr().out
    assert "frequency-3" in printed
    assert max(map(len, printed.partition("relative error")[0].splitlines())) <= 80
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["source"] for row in rows} == {
        "trained",
        "untrained",
        "linear",
        "tokens",
        "constant",
        "shuffled",
        "ceiling",
    }
    assert sum(row["target"] == "state" and row["source"] == "trained" for row in rows) == 2  # the layers
    track = ["--track", str(tiny_file)]
    for arguments, message in (
        ([str(run), "--what", "count", *track], "unknown --what 'count'; did you mean 'counts'?"),
        ([str(tmp_path / "no"), *track], "holds no run"),
        ([str(run)], "is loaded only if you name its file: --track "),
        ([str(run), str(run), *track], f"{run} is given twice"),
        ([str(run), "--out", "p.svg", *track], "--out takes the name of a PNG picture"),
    ):
        refused(capsys, ["probe", *arguments], message)


def test_states_that_are_not_whole_numbers_are_no_states(some: Instances) -> None:
    states = some.truth_at["state"]
    found = hidden_states_of(some)
    assert found is not None
    assert found.tolist() == states.tolist()
    for other in (states.astype(np.float64), np.stack([states, states], axis=-1)):
        assert hidden_states_of(replace(some, truth_at={**some.truth_at, "state": other})) is None


def test_what_cannot_be_probed_is_refused(pfa: Track, text_track: Track) -> None:
    vectors = load_track("linear-regression-small-v1")
    targets = chosen_targets("counts,state")
    opaque = Trained(Path("nowhere"), "mine", 0, pfa, regbench.Model(regbench.Options(), pfa.task.io))
    for trained, message in (
        (opaque, "hidden states of Model cannot be read: it has no hidden_states"),
        (
            trained_of(text_track, "lstm", d_model=8),
            "markov-text-v1 has no states to probe for; ask for --what counts$",
        ),
        (
            trained_of(text_track, "lstm", d_model=8, n_layers=1),
            "128 different tokens at most, and markov-text-v1 has 300",
        ),
        (
            trained_of(vectors, "lstm", d_model=8),
            "are for tasks of tokens, and linear-regression-small-v1 is of vectors",
        ),
    ):
        with pytest.raises(UserError, match=message):
            check_probed(trained, targets if "states" in message else targets[:1])
