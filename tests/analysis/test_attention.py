"""What heads attend to: the sets of keys, the kinds, the command; without an op's help, and of heads built by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from regbench import cli, runner
from regbench.analysis.attention import ablate, measure, without_heads
from regbench.analysis.key_sets import key_sets, kind_of
from regbench.models.mixer import Mixer
from regbench.ops.ngram import NGramIndex, ngram_head
from regbench.results import ScoreRecord
from regbench.tracks import Track, load_track
from regbench.utils import registry
from regbench.utils.errors import UserError
from tests.helpers.equations import made
from tests.helpers.subjects import trained_of

WITH_WEIGHTS = {
    "transformer": {"n_heads": 2},
    "transformer rotary": {"n_heads": 2, "positions": "rotary", "extra_ngram_heads": [1, 2]},
    "forgetting_transformer": {"n_heads": 2},
    "retnet": {"n_heads": 2},
    "gla": {"n_heads": 2},
    "differential_transformer": {"n_heads": 2},
    "sparse_attention": {"n_heads": 2, "block_size": 4, "blocks": 2},
    "path_attention": {"n_heads": 2},
    "linear_transformer": {"n_heads": 2},
    "linear_transformer elu": {"n_heads": 2, "feature_map": "elu"},
}


def mixer_of(name: str) -> Any:
    return made(registry.load(registry.ARCHITECTURE, name.split()[0]), d_model=16, **WITH_WEIGHTS[name])


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_weights_times_values_are_the_output(name: str) -> None:
    torch.manual_seed(0)
    mixer = mixer_of(name)
    x, tokens = torch.randn(2, 13, 16, dtype=torch.float64), torch.randint(0, 4, (2, 13))
    index = [NGramIndex(tokens)] if mixer.reads_tokens else []
    weights = mixer.weights(x, *index)  # type: ignore[operator]
    assert weights.shape[-2:] == (13, 13)
    assert not weights.triu(1).any()
    torch.testing.assert_close(mixer.mix(x, weights), mixer(x, *index))  # type: ignore[operator]
    altered = mixer.mix(x, weights.roll(1, 0))  # type: ignore[operator]
    assert (altered - mixer(x, *index)).abs().max() > 1e-3


def test_sets_against_loops() -> None:
    """On two instances with separators, tokens and states by hand."""
    separator = 3
    inputs = torch.tensor([[3, 0, 1, 0, 1, 2, 3, 0, 1, 0, 1, 2], [3, 0, 0, 0, 3, 1, 0, 0, 2, 1, 0, 0]])
    tokens = torch.cat([inputs[:, 1:], torch.tensor([[0], [0]])], 1)
    states = torch.where(tokens == separator, -1, (tokens * 2 + torch.arange(12)) % 3)
    sets = key_sets(inputs, separator, states)
    for b in range(2):
        row = inputs[b].tolist()
        for t in range(12):
            expected: dict[str, set[int]] = {
                "self": {t},
                "previous": {t - 1} - {-1},
                "previous-2": {t - 2} if t > 1 else set(),
                "first": {0},
                "separator": {max(j for j in range(t + 1) if row[j] == separator)},
                "same": {j for j in range(t) if row[j] == row[t]},
                "state": {j for j in range(1, t + 1) if states[b, j - 1] == states[b, t]},
            }
            for n in (1, 2, 3):
                last = row[t - n + 1 : t + 1] if t - n + 1 >= 0 else None
                expected[f"match-{n}"] = {j for j in range(n, t) if row[j - n : j] == last}
            expected["only-m"] = expected["match-1"] - expected["match-2"]
            expected["only-state"] = expected["state"] - expected["match-1"]
            for name, keys in expected.items():
                assert set(sets[name][b, t].nonzero().flatten().tolist()) == keys, (name, b, t)
    eye = torch.eye(12).expand(2, 12, 12)
    for n in (1, 2, 3):
        rows = sets[f"match-{n}"].float()
        torch.testing.assert_close(rows / rows.sum(-1, keepdim=True).clamp(min=1), ngram_head(inputs, eye, n))


SMALL = {"d_model": 8, "n_layers": 1}


class LooksBack(Mixer):
    """Two heads: one attends to the position before, one to all of the past alike."""

    def forward(self, x: Tensor) -> Tensor:
        """The first head's output."""
        return self.mix(x, self.weights(x))

    def weights(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, 2, L, L)."""
        length = x.shape[1]
        previous = torch.diag(torch.ones(length - 1), -1)
        previous[0, 0] = 1.0
        past = torch.ones(length, length).tril()
        return torch.stack([previous, past / past.sum(-1, keepdim=True)]).expand(len(x), 2, length, length)

    def mix(self, x: Tensor, weights: Tensor) -> Tensor:
        """The first head's output with given weights."""
        return weights[:, 0] @ x


class Signed(LooksBack):
    """Its first head has a coefficient of -3 for the position before, and of 1 for its own."""

    def weights(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, 2, L, L). The first position has none before it: -3 is its own there, too."""
        weights = super().weights(x).clone()
        weights[:, 0] = torch.eye(x.shape[1]) - 3 * weights[:, 0]
        return weights


def test_heads_built_by_hand_get_their_kinds(tiny: Track) -> None:
    instances = tiny.instances("test")
    found = measure(trained_of(tiny, LooksBack, **SMALL), instances)
    first, second = found.heads
    assert (first.kind, first.mass["previous"].value, first.mass["previous"].stderr) == ("previous", 1.0, 0.0)
    assert first.name == "1.1"
    assert first.excess["previous"] == pytest.approx(1.0)
    assert found.queries == instances.scored[:, found.first :].sum() < instances.scored.sum()
    assert second.kind == "mixed"
    assert all(abs(second.mass[name].value - found.chance[name]) < 1e-6 for name in found.chance)
    assert second.per_key["only-state"].value == pytest.approx(1.0, abs=1e-6)
    heads = measure(trained_of(tiny, "transformer", d_model=8, n_heads=1, extra_ngram_heads=[2]), instances).heads
    static = [head for head in heads if head.number == 2]
    assert [head.name for head in static] == ["1.2", "2.2"]
    for head in static:
        assert head.mass["match-2"].value == pytest.approx(1.0, abs=1e-6)
        assert head.kind in ("match-2", "match-3")  # on so few tokens the two sets are often one
        assert head.per_key["only-state"].value == 0.0


def test_errors_are_over_problems(tiny: Track) -> None:
    """Every instance twice, as two instances of one problem, has the error of the instances once."""
    trained, instances = trained_of(tiny, LooksBack, **SMALL), tiny.instances("test")
    twice = instances[np.tile(np.arange(len(instances)), 2)]
    shared = replace(twice, truth={**twice.truth, "problem": np.tile(np.arange(len(instances)), 2)})
    once, again = (measure(trained, some).heads[1] for some in (instances, shared))
    for name, record in once.mass.items():
        assert again.mass[name].value == pytest.approx(record.value)
        assert again.mass[name].stderr == pytest.approx(record.stderr, rel=1e-6)


def test_a_head_is_named_by_its_largest_excess() -> None:
    """Of nested sets by the smallest that has nearly all of the mass; where no excess is large it is mixed."""

    def kind(excess: dict[str, float], **mass: float) -> str:
        shares = {**excess, **{f"match-{name[1:]}": value for name, value in mass.items()}}
        return kind_of({name: ScoreRecord(value=value, stderr=0.0) for name, value in shares.items()}, excess)

    assert kind({"self": 0.31, "first": 0.2}) == "self"
    assert kind({"self": 0.29, "first": 0.2}) == "mixed"
    nested = {"match-1": 0.6, "match-2": 0.5, "match-3": 0.4, "previous": 0.3}
    assert kind(nested, m1=0.8, m2=0.73, m3=0.7) == "match-2"
    assert kind(nested, m1=0.8, m2=0.73, m3=0.73) == "match-3"
    assert kind(nested, m1=0.8, m2=0.71, m3=0.7) == "match-1"


def test_coefficients_are_shares_of_absolute_mass(tiny: Track) -> None:
    found = measure(trained_of(tiny, "retnet", d_model=16, n_heads=2), tiny.instances("test"))
    assert found.coefficients
    assert not measure(trained_of(tiny, LooksBack, **SMALL), tiny.instances("test")).coefficients
    for head in found.heads:
        assert all(0.0 <= record.value <= 1.0 + 1e-6 for record in head.mass.values())
    signed = measure(trained_of(tiny, Signed, **SMALL), tiny.instances("test"))
    assert signed.coefficients
    assert signed.heads[0].mass["previous"].value == pytest.approx(0.75)
    assert signed.heads[0].mass["self"].value == pytest.approx(0.25)


def test_a_whole_model_names_its_layers(tiny: Track) -> None:
    """Both streams of `cgt`; their weights are those that the model uses."""
    trained = trained_of(tiny, "cgt", d_model=16, n_layers=2, d_y=8, y_heads=2, n_heads=2, templates=2)
    found = measure(trained, tiny.instances("test"))
    assert [head.name for head in found.heads] == ["x1.1", "x1.2", "x2.1", "x2.2", "y1.1", "y1.2"]
    model: Any = trained.model
    layer = model.y_blocks[0].attention
    x = torch.randn(2, 9, 24)
    values = layer.qkv(x).chunk(3, -1)[2].view(2, 9, 2, 4).transpose(1, 2)
    torch.testing.assert_close(layer.out((layer.weights(x) @ values).transpose(1, 2).flatten(2)), layer(x))


def test_ablation_puts_uniform_attention_in_the_place_of_a_head(tiny: Track) -> None:
    instances = tiny.instances("test")
    trained = trained_of(tiny, LooksBack, **SMALL)
    torch.nn.init.normal_(trained.model.unembed.weight)  # type: ignore[union-attr, arg-type]
    first = measure(trained, instances).heads[0]
    tokens = torch.from_numpy(instances.tokens.astype(np.int64))
    whole = trained.logits(tokens)
    with without_heads(trained.model, "mine", [("1", 2)]):
        torch.testing.assert_close(trained.logits(tokens), whole)  # it is uniform already, and its output is not read
    with without_heads(trained.model, "mine", [("1", 1)]):
        assert (trained.logits(tokens) - whole).abs().max() > 1e-3
    torch.testing.assert_close(trained.logits(tokens), whole)
    effect = ablate(trained, instances, [first])
    assert effect.heads == ["1.1"]
    assert effect.change["tvd"].value == pytest.approx(effect.after["tvd"].value - effect.before["tvd"].value)
    assert effect.change["tvd"].value != 0


class Otherwise(LooksBack):
    """It inherits weights and mix, which say nothing of its own forward."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice the first head's output."""
        return 2 * super().forward(x)


def test_weights_that_are_not_those_of_forward_are_refused(tiny: Track) -> None:
    trained, instances = trained_of(tiny, Otherwise, **SMALL), tiny.instances("test")
    fault = r"Otherwise.mix\(x, weights\(x\)\) is not its forward\(x\): these are not its attention weights"
    with pytest.raises(UserError, match=fault):
        measure(trained, instances)
    with without_heads(trained.model, "mine", [("1", 1)]), pytest.raises(UserError, match=fault):
        trained.logits(torch.from_numpy(instances.tokens.astype(np.int64)))


def test_an_ablation_leaves_out_scores_that_have_no_position(tmp_path: Path) -> None:
    """As `longer_accuracy` on the validation split, whose walks are not longer than those of training."""
    (tmp_path / "walks-v1.yaml").write_text(
        "name: walks-v1\ntask: state_tracking\nparameters: {groups: [parity], length: 12, test_length: 24}\n"
        "splits: {train: 2, validation: 8, test: 8, seed: 0}\nbudget: {train_tokens: 100}\nmain_score: longer_accuracy\n"
    )
    track = load_track(tmp_path / "walks-v1.yaml")
    trained = trained_of(track, LooksBack, **SMALL)
    first = measure(trained, track.instances("test")).heads[0]
    for split, counted in (("validation", False), ("test", True)):
        effect = ablate(trained, track.instances(split), [first])
        for found in (effect.before, effect.after, effect.change):
            assert ("longer_accuracy" in found) is counted
            assert "token_accuracy" in found


@pytest.fixture(scope="module")
def small_run(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a transformer."""
    folder = tmp_path_factory.mktemp("attention") / "run"
    settings = {"d_model": 16, "n_heads": 2, "training.train_tokens": 1000}
    runner.run(str(tiny_file), "transformer", settings=settings, out=folder)
    return folder


@pytest.mark.ci
def test_the_command_prints_and_writes(
    small_run: Path, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--track", str(tiny_file), "--out", str(tmp_path), "--split", "test"]
    assert cli.main(["attention", str(small_run), *common, "--ablate", "1.2,2.1", "--range", "2:6"]) == 0
    printed = capsys.readouterr().out
    assert "without 1.2,2.1: 1.2, 2.1" in printed
    assert max(map(len, printed.partition("share of attention")[0].splitlines())) <= 80
    record = json.loads((tmp_path / "attention.json").read_text())
    assert [(head["layer"], head["number"]) for head in record["heads"]] == [("1", 1), ("1", 2), ("2", 1), ("2", 2)]
    assert record["ablation"]["heads"] == ["1.2", "2.1"]
    pictures = [path.name for path in tmp_path.glob("*.png")]
    assert "heads.png" in pictures
    assert any(name.startswith("map-") for name in pictures)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


MEAN = """
import regbench, torch


class Mean(regbench.Mixer):
    mix = 0.5  # not the method of this name

    def forward(self, x):
        return self.weights(x)[:, 0] @ x

    def weights(self, x):
        past = torch.ones(x.shape[1], x.shape[1]).tril()
        return (past / past.sum(-1, keepdim=True)).expand(len(x), 1, -1, -1)
"""


@pytest.mark.ci
def test_a_mixer_of_ones_own_is_executed_only_if_it_is_named(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs one method to be read. To be ablated it needs another."""
    file, run = tmp_path / "mean.py", str(tmp_path / "run")
    file.write_text(MEAN)
    runner.run(str(tiny_file), str(file), settings={"d_model": 8, "training.train_tokens": 500}, out=Path(run))
    track = ["--track", str(tiny_file)]
    assert cli.main(["attention", run, *track, "--arch", str(file)]) == 0
    assert "2.1  mixed" in capsys.readouterr().out
    for arguments, message in (
        ([], f"is executed only if you name it: --arch {file}"),
        (["--arch", str(file), "--ablate", "1.1"], "cannot be ablated: Mean has no mix(x, weights)"),
    ):
        assert cli.main(["attention", run, *track, *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.ci
def test_what_cannot_be_read_is_refused_in_one_line(
    small_run: Path, run_folder: Path, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is anything executed that a folder alone names."""
    lstm, evil = tmp_path / "lstm", tmp_path / "evil"
    runner.run(str(tiny_file), "lstm", settings={"d_model": 8, "training.train_tokens": 500}, out=lstm)
    shutil.copytree(small_run, evil)
    config = yaml.safe_load((evil / "config.yaml").read_text())
    (evil / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    (evil / "config.yaml").write_text(yaml.safe_dump(config | {"architecture": str(evil / "trap.py")}))
    away = tmp_path / "away"
    shutil.copytree(small_run, away)
    (away / "config.yaml").write_text(yaml.safe_dump(config | {"track": "../away"}))
    track = ["--track", str(tiny_file)]
    capsys.readouterr()
    for arguments, message in (
        ([str(tmp_path / "no")], "holds no run"),
        ([str(lstm), *track], "'lstm' has no attention to read: its mixer LSTM has no weights(x)"),
        ([str(evil), *track], "which is executed only if you name it: --arch "),
        ([str(away)], "is on the track ../away, which is no built-in one"),
        ([str(small_run)], "is loaded only if you name its file: --track "),
        ([str(small_run), *track, "--ablate", "mach"], "unknown kind 'mach'; did you mean 'match'?"),
        ([str(small_run), *track, "--ablate", "3.1"], "unknown head '3.1'; heads are 1.1 to 2.2"),
        ([str(run_folder), *track, "--ablate", "y1.1"], "the heads of 'cgt' cannot be ablated: it is a whole model"),
        ([str(small_run), *track, "--range", "50"], "--range takes two positions"),
        ([str(small_run), *track, "--range", "²:5"], "--range takes two positions"),
        ([str(small_run), *track, "--ablate", ","], "unknown head ''; heads are 1.1 to 2.2"),
        ([str(small_run), *track, "--ablate", ""], "--ablate is empty: give it a value, or leave it out"),
        ([str(small_run), *track, "--instance", "20"], "there is no instance 20 among 20"),
    ):
        assert cli.main(["attention", *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not (tmp_path / "sprung").exists()


def test_weights_that_look_ahead_are_refused(tiny: Track) -> None:
    class Ahead(LooksBack):
        def weights(self, x: Tensor) -> Tensor:
            return super().weights(x).mT

    class Flat(LooksBack):
        def weights(self, x: Tensor) -> Tensor:
            return super().weights(x)[:, 0]

    for mixer, message in ((Ahead, "look ahead"), (Flat, r"not \(B, H, L, L\)")):
        trained = replace(trained_of(tiny, LooksBack, **SMALL))
        trained.model.blocks[0].mixer.__class__ = mixer  # type: ignore[union-attr, index, assignment]
        with pytest.raises(UserError, match=message):
            measure(trained, tiny.instances("test"))
