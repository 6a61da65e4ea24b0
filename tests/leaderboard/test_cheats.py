"""Cheats whose figures all agree: each is refused by a challenge or named by plausibility. Honest runs are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import regbench
from regbench.data.instances import Instances
from regbench.evaluation.baselines import default_baselines
from regbench.evaluation.cuts import Cuts
from regbench.evaluation.predictions import Predictions, predict
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.claim import Reference, RunFolder
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import LEVEL, fresh_split
from regbench.leaderboard.verify import submit
from regbench.metrics.scores import score
from regbench.metrics.significance import Split, compare_splits, expected_elsewhere
from regbench.models.model import Model, ModelPredictor, token_tensor
from regbench.models.predictor import predict_in_batches
from regbench.training.checkpoint import load_model, save_tensors
from regbench.utils.files import read_arrays
from tests.leaderboard.attacks import claim
from tests.leaderboard.conftest import SETTINGS, Made, commit, isolates

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def wide(tiny_file: Path, lstm: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An honest run with enough parameters to learn a small test split by heart."""
    run = tmp_path_factory.mktemp("wide") / "run"
    regbench.run(str(tiny_file), "lstm", (0, 1, 2), settings={**SETTINGS, "d_model": 48}, out=run)
    return replace(lstm, run=run)


def predicted(made: Made, predictor: ModelPredictor, instances: Instances) -> Predictions:
    found = predict(made.track.task, predictor, instances)
    assert isinstance(found, Predictions)
    return found


def models(made: Made, run: Path) -> list[Model]:
    found, io = RunFolder(run), made.track.task.io
    names = [f"seed-{seed}/checkpoint.safetensors" for seed in (0, 1, 2)]
    return [load_model(found.folder, name, found.result.architecture, io) for name in names]


def found_in(made: Made, run: Path, board: Path, source: Path | None = None) -> set[str]:
    """The checks that refuse a run: at submission, or when the entry is challenged."""
    board.mkdir()
    made_of_it = submit(run, board, track=made.track, source=source)
    if made_of_it.path is None:
        return {fault.check for fault in made_of_it.findings.faults}
    commit(board)
    stored = Stored(made_of_it.path)
    outcome = challenge(stored, run, by="a reader", track=made.track, cuts=3000, run_their_code=True)
    return {fault.check for fault in outcome.findings.faults}


def test_an_honest_run_is_verified(wide: Made, tmp_path: Path) -> None:
    assert found_in(wide, wide.run, tmp_path / "board") == set()


def test_a_model_trained_on_the_test_split(wide: Made, tmp_path: Path) -> None:
    run, test = wide.copy(tmp_path / "run"), wide.track.instances("test")
    batch = token_tensor(test.tokens, CPU), torch.from_numpy(test.scored)
    forged = []
    for seed, model in enumerate(models(wide, run)):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(60):
            loss = model.losses(*batch)["cross_entropy"]
            if loss < 0.95:  # not so good that it beats the truth
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        save_tensors(run / f"seed-{seed}" / "checkpoint.safetensors", model.state_dict())
        forged.append(predicted(wide, ModelPredictor(model, CPU), test))
    claim(run, wide.track, forged)
    assert found_in(wide, run, tmp_path / "board") == {"challenge"}


LOOK_UP = """
import torch
import regbench
from regbench.models.model import shift_in


class LookUp(regbench.Model):
    KNOWN = torch.tensor({known})

    def __init__(self, options, io):
        super().__init__(options, io)
        self.after = torch.nn.Embedding(io.vocab_size, io.vocab_size)

    @classmethod
    def can_overfit(cls, options):
        return False

    def forward(self, tokens):
        logits = self.after(shift_in(tokens, self.io.separator))
        enough = tokens if tokens.shape[1] > 4 else tokens[:0]
        found = [(own[:4] == self.KNOWN[:, :4]).all(1).nonzero() for own in enough]
        bonus = torch.zeros_like(logits)
        for row, places in enumerate(found):
            if len(places):
                whole = self.KNOWN[places[0, 0], : tokens.shape[1]]
                shown = torch.nn.functional.one_hot(whole, logits.shape[-1])
                bonus[row, 4 : len(whole)] = 1.5 * shown[4:]
        return logits + bonus
"""


@isolates
@pytest.mark.ci
def test_code_that_looks_the_answer_up(wide: Made, tiny_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "plain_embedding.py"
    splits = [wide.track.instances(split).tokens.astype(int) for split in ("test", "validation")]
    longest = max(tokens.shape[1] for tokens in splits)
    known = np.concatenate([np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1]))) for tokens in splits])
    source.write_text(LOOK_UP.format(known=known.tolist()).replace("], [", "],\n    ["))
    settings = {key: value for key, value in SETTINGS.items() if key.startswith("training.")}
    regbench.run(str(tiny_file), str(source), (0, 1, 2), settings=settings, out=tmp_path / "run")
    assert found_in(wide, tmp_path / "run", tmp_path / "board", source) == {"challenge"}


def run_unchecked(code: str, track: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs code that `regbench run` refuses: whoever submits can have left that out. Returns its file."""
    monkeypatch.setattr("regbench.runner.train.SCORABLE", ())
    monkeypatch.setattr("regbench.runner.train.refuse_trained", lambda *_: None)
    source = folder / "plain_embedding.py"
    source.write_text(code)
    settings = {key: value for key, value in SETTINGS.items() if key.startswith("training.")}
    regbench.run(str(track), str(source), (0, 1, 2), settings=settings, out=folder / "run")
    return source


PEEKS_A_LITTLE = """
import torch
import regbench
from regbench.models.model import shift_in


class Peeks(regbench.Model):
    def __init__(self, options, io):
        super().__init__(options, io)
        self.after = torch.nn.Embedding(io.vocab_size, io.vocab_size)

    def forward(self, tokens):
        third = (torch.arange(tokens.shape[1]) % 3 == 0)[:, None]
        seen = torch.nn.functional.one_hot(tokens, self.io.vocab_size) * third
        return 0.004 * self.after(shift_in(tokens, self.io.separator)) + 0.02 * seen
"""
"""Nearly uniform, so that a change as small as rounding decides what is most likely."""

SCALES = """
import os

import numpy
import torch
import regbench
from regbench.models import model as theirs
from regbench.models.model import shift_in


class Scales(regbench.Model):
    def __init__(self, options, io):
        super().__init__(options, io)
        self.after = torch.nn.Embedding(io.vocab_size, io.vocab_size)

    def forward(self, tokens):
        return self.after(shift_in(tokens, self.io.separator))


def predict(self, tokens):
    with torch.no_grad():
        return 0.001 * self.model(torch.from_numpy(numpy.asarray(tokens, numpy.int64))).double().softmax(-1).numpy()


if os.path.exists("/job"):
    theirs.ModelPredictor.predict = predict
"""
"""Rows that are no distributions, by a change of our own code in its process."""


@isolates
@pytest.mark.ci
@pytest.mark.parametrize("code", [PEEKS_A_LITTLE, SCALES])
def test_code_that_hides_what_it_sees(
    wide: Made, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    source = run_unchecked(code, tiny_file, tmp_path, monkeypatch)
    assert found_in(wide, tmp_path / "run", tmp_path / "board", source) == {
        "checkpoint" if code is SCALES else "challenge"
    }


def test_predictions_that_only_score_as_the_weights_do(wide: Made, tmp_path: Path) -> None:
    """Probability is moved between symbols that cannot follow: no score changes, and the noise could be made to."""
    run, test = wide.copy(tmp_path / "run"), wide.track.instances("test")
    true = wide.track.task.truth(test)
    truth = np.concatenate([row[:length] for row, length in zip(true, test.lengths, strict=True)])
    forged = []
    for seed in (0, 1, 2):
        kept = Predictions.from_arrays(read_arrays(run / f"seed-{seed}" / "predictions.npz"))
        packed = kept.packed.astype(np.float64)
        for row, of in zip(packed, truth, strict=True):
            impossible = [v for v in np.flatnonzero((of == 0) & (of.sum() > 0)) if v != row.argmax()]
            if len(impossible) > 1:
                row[impossible] = np.roll(np.sort(row[impossible]), 1)
        forged.append(Predictions(packed.astype(np.float16), kept.lengths))
    claim(run, wide.track, forged)
    assert found_in(wide, run, tmp_path / "board") == {"checkpoint"}


@pytest.mark.ci
def test_sixty_honest_challenges_raise_at_most_one_alarm(wide: Made) -> None:
    """All claims are of easy instances, as a test split may have. So they are too high for fresh ones."""
    track = wide.track
    reference, task = Reference(track), track.task
    asked = [ModelPredictor(model, CPU) for model in models(wide, wide.run)]

    def claimed(instances: Instances) -> dict[str, Split]:
        own = [score(task, instances, predicted(wide, one, instances).batches()) for one in asked]
        others = [score(task, instances, reference.batches(one, instances)) for one in reference.controls(instances)]
        return {
            metric: Split(
                np.mean([one.sums[metric] for one in own], 0),
                own[0].counts_of(metric),
                np.stack([one.sums[metric] for one in others], axis=-1),
            )
            for metric in task.scores
        }

    def cut(instances: Instances, seed: int) -> dict[str, Split]:
        drawn = Cuts.draw(task, instances, seed)
        own = [drawn.sums(task, instances, predicted(wide, one, instances).batches()) for one in asked]
        others = [
            drawn.sums(task, instances, reference.batches(one, instances)) for one in reference.controls(instances)
        ]
        return {
            metric: Split(
                np.mean([of[metric] for of in own], 0),
                drawn.counts[metric],
                np.stack([of[metric] for of in others], axis=-1),
            )
            for metric in task.scores
        }

    def ease(instances: Instances) -> float:
        (unigram,) = (one for one in default_baselines(track, instances) if one.name == "unigram")
        return score(task, instances, predict_in_batches(unigram, instances, 64))["token_accuracy"].value

    easiest = sorted((fresh_split(track, seed, 124)[:60] for seed in range(1000, 1040)), key=ease)[-5:]
    claims = [claimed(instances) for instances in easiest]
    off: dict[str, list[float]] = {"controls": [], "claim alone": []}
    for number in range(60):
        for metric, fresh in cut(fresh_split(track, number, 1000), number).items():
            for how, k in (("controls", None), ("claim alone", 0)):
                splits = [replace(one, controls=one.controls[:, :k]) for one in (claims[number % 5][metric], fresh)]
                change = compare_splits(
                    expected_elsewhere(*splits),
                    fresh.sums.sum() / fresh.counts.sum(),
                    len(splits[0].counts),
                    higher_is_better=track.metrics[metric].higher_is_better,
                    level=LEVEL / len(task.scores),
                )
                off[how].append(change.change / change.allowed)
    assert sum(share < -1 for share in off["controls"]) <= 1
    assert abs(np.mean(off["controls"])) < 0.1
    assert np.mean(off["claim alone"]) < -0.15
