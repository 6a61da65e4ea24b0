"""The training loop: its plan, its schedule, its checkpoints."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from regbench.checks.contract import examine
from regbench.checks.subject import Subject
from regbench.checks.training import trains
from regbench.models.model import Model
from regbench.sweeps.estimate import evaluations_of
from regbench.sweeps.grid import Point
from regbench.tracks import Track
from regbench.training.checkpoint import course_file
from regbench.training.options import TrainingOptions, evaluation_steps, learning_rate
from regbench.training.progress import Progress, Reporter
from regbench.training.step import batch_tensors
from regbench.training.trainer import Trainer, _cut_log
from regbench.utils.errors import UserError
from tests.training.conftest import Recency, log


class Killed(Exception):
    pass


def weights(model: Model) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def kill_at(trainer: Trainer, step: int, *, after_save: bool) -> None:
    """Stops the trainer as a kill would: at `step`, before or after its checkpoint, with nothing cleaned up."""
    trainer.options = trainer.options.model_copy(update={"checkpoint_seconds": 0.0})
    original_step, original_save = trainer._step, trainer._save

    def stepping() -> dict[str, Tensor]:
        if trainer.progress.step == step and not after_save:
            raise Killed
        return original_step()

    def saving() -> None:
        original_save()
        if trainer.progress.step == step and after_save:
            raise Killed

    trainer._step, trainer._save = stepping, saving  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.run()


def test_training_lowers_the_loss_and_keeps_the_best_weights(trainer: Callable[..., Trainer]) -> None:
    t = trainer()
    before = t._evaluate()
    t.best, t.progress.best_validation_loss = {}, float("inf")
    progress = t.run()
    assert progress.best_validation_loss < before - 0.05
    assert t._evaluate() == pytest.approx(progress.best_validation_loss, abs=1e-6)
    losses = [row["validation_loss"] for row in progress.curve]
    assert len(losses) == 4
    assert min(losses) == progress.best_validation_loss


def test_the_best_is_not_the_last_when_training_gets_worse(trainer: Callable[..., Trainer]) -> None:
    t = trainer(learning_rate=1.0, warmup=0.5, final_learning_rate=1.0)
    progress = t.run()
    assert progress.best_validation_loss < progress.curve[-1]["validation_loss"]
    assert progress.best_step < progress.step
    assert t._evaluate() == pytest.approx(progress.best_validation_loss, abs=1e-6)


def test_the_seconds_of_a_training_are_with_its_validation(trainer: Callable[..., Trainer]) -> None:
    """Also with the last one, and with one that a kill comes right behind."""

    def evaluate(made: Trainer) -> float:
        time.sleep(0.1)
        return Trainer._evaluate(made)

    made, killed, resumed = trainer("whole", evaluations=2), trainer(evaluations=2), trainer(evaluations=2)
    for t in (made, killed, resumed):
        t._evaluate = partial(evaluate, t)  # type: ignore[method-assign]
    assert made.run().seconds > 0.2
    kill_at(killed, made.progress.curve[0]["step"], after_save=True)
    assert resumed.run().seconds > 0.2


# A rate so high that the loss soon stalls, and no patience: the rate is lowered several times.
PLATEAU = {"schedule": "plateau", "learning_rate": 0.1, "warmup": 0.0, "plateau_patience": 0}
SGD = {"optimizer": "sgd", "schedule": "constant", "learning_rate": 0.05, "weight_decay": 1e-3}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [1, 7, 20]),
        pytest.param(PLATEAU, [8, 31, 47], marks=pytest.mark.ci),
        pytest.param(SGD, [7], marks=pytest.mark.ci),
    ],
    ids=["cosine", "plateau", "sgd"],
)
def test_a_killed_training_resumes_to_the_same_bits(
    trainer: Callable[..., Trainer], options: dict[str, Any], steps: list[int]
) -> None:
    options = options | {"keep_checkpoints": True}
    whole = trainer("whole", **options)
    whole.run()
    assert whole.progress.lowered >= (2 if "plateau_patience" in options else 0)
    for step, after_save in itertools.product(steps, [True, False]):
        folder = f"killed {'after' if after_save else 'before'} the checkpoint of step {step}"
        kill_at(trainer(folder, **options), step, after_save=after_save)
        resumed = trainer(folder, **options)
        resumed.run()
        assert equal(weights(resumed.model), weights(whole.model)), folder
        assert (resumed.progress.lowered, resumed.progress.curve) == (whole.progress.lowered, whole.progress.curve)
        moments = [0, *(row["tokens"] for row in whole.progress.curve)]
        kept = [[(t.folder / course_file(tokens)).read_bytes() for tokens in moments] for t in (whole, resumed)]
        assert kept[0] == kept[1], folder
        rows = [
            [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in log(t)] for t in (whole, resumed)
        ]
        assert rows[0] == rows[1], folder


@pytest.mark.ci
def test_a_row_of_the_log_is_over_all_steps_since_the_last(trainer: Callable[..., Trainer]) -> None:
    """Those before a kill count too: of a long training only every so many steps have a row."""
    whole = trainer("whole", batch_size=1)
    assert len(whole.plan) >= 400, "a row is of two steps or more"
    whole.run()
    kill_at(trainer("killed", batch_size=1), 41, after_save=True)
    resumed = trainer("killed", batch_size=1)
    resumed.run()
    assert [row["cross_entropy"] for row in log(resumed)] == [row["cross_entropy"] for row in log(whole)]


def test_a_kill_while_the_log_is_cut_leaves_the_old_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a training resumes, rows after its checkpoint are dropped from the log."""
    path = tmp_path / "metrics.jsonl"
    rows = [f'{{"step": {step}}}\n' for step in range(5)]
    path.write_text("".join(rows))
    with monkeypatch.context() as patch:
        patch.setattr("regbench.utils.files.os.replace", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            _cut_log(path, 2)
    assert path.read_text() == "".join(rows)
    _cut_log(path, 2)
    assert path.read_text() == "".join(rows[:3])


def test_a_plateau_schedule_looks_every_epoch_and_then_lowers_the_rate(trainer: Callable[..., Trainer]) -> None:
    t = trainer(**PLATEAU)
    progress = t.run()
    assert [row["step"] for row in progress.curve[:3]] == [8, 16, 24]  # 60 instances in batches of 8
    rates = {row["step"]: row["learning_rate"] for row in log(t)}
    lowered, best = 0, float("inf")
    for row in progress.curve[:-1]:
        lowered += row["validation_loss"] >= best * (1 - 1e-4)
        best = min(best, row["validation_loss"])
        assert rates[row["step"] + 1] == 0.1 * 0.5**lowered
    assert lowered >= 2


@pytest.mark.parametrize(
    ("epochs", "more", "every", "times"),
    [(999, 0, 1, 999), (1000, 0, 1, 1000), (1000, 3, 2, 501), (2000, 0, 2, 1000), (6860, 1, 7, 981)],
)
def test_a_plateau_schedule_looks_a_thousand_times_at_most(epochs: int, more: int, every: int, times: int) -> None:
    """Up to a thousand epochs after each, beyond them after every second, third and so on, and always at the end."""
    total = epochs * 8 + more  # 60 instances in batches of 8
    found = sorted(evaluation_steps(total, 60, TrainingOptions(schedule="plateau", batch_size=8)))
    assert found[:2] == [8 * every, 16 * every]
    assert (len(found), found[-1]) == (times, total)


@pytest.mark.parametrize(
    "options",
    [
        PLATEAU | {"epochs": 9},
        PLATEAU | {"train_instances": 9},
        PLATEAU | {"train_instances": 1, "batch_size": 1},
        {"epochs": 9},
    ],
)
def test_the_cost_of_a_sweep_counts_the_same_evaluations(
    tiny: Track, trainer: Callable[..., Trainer], options: dict[str, Any]
) -> None:
    trained = trainer(**({"train_tokens": 5000} | options))
    point = Point(tiny, tiny.name, "lstm", Recency, {}, {}, Recency.Options(), trained.options, {})
    lengths = tiny.instances("train").lengths
    real = evaluation_steps(len(trained.plan), len(trained.train_split), trained.options)
    assert abs(evaluations_of(point, lengths) - len(real)) <= 1, "to within an epoch's last batches"


def test_a_plateau_is_what_pytorch_calls_one() -> None:
    """The rate after every epoch, for losses that fall, stall, fall by too little, rise and fall again."""
    options = TrainingOptions(
        schedule="plateau",
        warmup=0.0,
        learning_rate=0.01,
        plateau_patience=2,
        plateau_factor=0.3,
        plateau_learning_rate=1e-4,
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2, min_lr=1e-4)
    rng, progress = np.random.default_rng(0), Progress()
    falling = 2.0 - 0.01 * np.arange(20)
    losses = [*falling, *(1.8 - 1e-5 * np.arange(15)), *(1.7 + 0.3 * rng.random(20)), *(falling - 1.0), *([0.5] * 20)]
    rates = set()
    for epoch, loss in enumerate(losses):
        theirs.step(loss)
        progress.note_epoch(loss, options)
        rate = learning_rate(epoch, len(losses), options, progress.lowered)
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        rates.add(rate)
    assert len(rates) == 5
    assert min(rates) == 1e-4


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-100], lambda b: b"\xff" * 200])
def test_a_broken_checkpoint_is_said(trainer: Callable[..., Trainer], damage: Callable[[bytes], bytes]) -> None:
    t = trainer()
    kill_at(t, 5, after_save=True)
    path = t.folder / "resume.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match="cannot read the checkpoint"):
        trainer().run()


def test_divergence_stops_with_the_step_and_the_rate(trainer: Callable[..., Trainer]) -> None:
    t = trainer()
    original = t.model.losses
    t.model.losses = lambda tokens, scored: {  # type: ignore[method-assign]
        k: v * (float("nan") if t.progress.step == 9 else 1.0) for k, v in original(tokens, scored).items()
    }
    with pytest.raises(UserError, match=r"training diverged: the loss is nan at step 1\d of \d+; try .* below 0.005"):
        t.run()


def test_a_gradient_that_is_not_finite_at_the_last_step_is_a_divergence(trainer: Callable[..., Trainer]) -> None:
    t = trainer()
    last = len(t.plan) - 1
    for parameter in t.model.parameters():
        parameter.register_hook(lambda g: g * float("nan") if t.progress.step == last else g)
    with pytest.raises(UserError, match=rf"training diverged: the validation loss is nan at step {last + 1} of"):
        t.run()


def test_a_validation_loss_that_is_never_finite_is_a_divergence(trainer: Callable[..., Trainer]) -> None:
    t = trainer()
    original = t.model.losses
    t.model.losses = lambda tokens, scored: {  # type: ignore[method-assign]
        k: v if t.model.training else v * float("inf") for k, v in original(tokens, scored).items()
    }
    with pytest.raises(UserError, match="training diverged: the validation loss is inf at step"):
        t.run()


def test_a_resumed_training_has_the_threads_it_began_with(trainer: Callable[..., Trainer]) -> None:
    class Told(Reporter):
        lines: ClassVar[list[str]] = []

        def phase(self, text: str) -> None:
            self.lines.append(text)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        kill_at(trainer("killed"), 7, after_save=True)
        torch.set_num_threads(1)
        trainer("killed").run(Told())
        assert torch.get_num_threads() == 3
        assert Told.lines[0] == "going on with 3 threads, as the training began"
    finally:
        torch.set_num_threads(before)


def test_named_terms_are_logged_and_summed(trainer: Callable[..., Trainer]) -> None:
    """A second term must steer the weights, and be in the log under its name."""
    t = trainer("two")
    original = t.model.losses
    t.model.losses = lambda tokens, scored: {  # type: ignore[method-assign]
        **original(tokens, scored),
        "pull": 10.0 * (t.model.blocks[0].mixer.decay - 3.0).square().mean(),  # type: ignore[union-attr, index]
    }
    t.run()
    row = log(t)[0]
    assert {"cross_entropy", "pull", "learning_rate", "tokens_per_second"} <= set(row)
    plain = trainer("plain")
    plain.run()
    moved, unmoved = (x.model.state_dict()["blocks.0.mixer.decay"].mean() for x in (t, plain))
    assert moved > unmoved + 0.02


def test_terms_that_change_are_refused(trainer: Callable[..., Trainer]) -> None:
    """Such as a penalty that begins after a warm-up."""
    t = trainer("late")
    original = t.model.losses

    def losses(tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        terms = original(tokens, scored)
        return terms if t.progress.step < 5 else {**terms, "late": 0.0 * terms["cross_entropy"]}

    t.model.losses = losses  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"were cross_entropy, and at step 6 they are cross_entropy, late: let every"):
        t.run()


def test_a_batch_in_which_nothing_is_scored_is_no_divergence(trainer: Callable[..., Trainer]) -> None:
    """Nor is such a part of the validation split: its loss is that of the rest."""
    t = trainer("sparse")
    t.train_split.scored[:] = np.arange(len(t.train_split))[:, None] % 24 == 0  # of three batches at least one has none
    whole = Trainer._evaluate(t)
    apart = t.validation
    t.validation = apart[np.r_[np.arange(len(apart)), np.zeros(64, int)]]
    t.validation.scored[len(apart) :] = False
    assert t._evaluate() == pytest.approx(whole, rel=1e-5)
    assert math.isfinite(t.run().best_validation_loss)


def test_the_validation_loss_is_over_all_scored_positions(trainer: Callable[..., Trainer]) -> None:
    """However they are cut into batches: a batch with more of them counts more."""
    t = trainer()
    t.validation = t.validation[np.r_[np.zeros(64, int), np.arange(len(t.validation))]]
    with torch.no_grad():
        whole = t.model.eval().losses(*batch_tensors(t.validation, t.device))["cross_entropy"]
    assert t._evaluate() == pytest.approx(float(whole), rel=1e-6)


@pytest.mark.parametrize("loss_on", ["scored", "all"])
def test_the_loss_is_of_the_tokens_asked_for(trainer: Callable[..., Trainer], loss_on: str) -> None:
    t = trainer(loss_on=loss_on)
    seen: list[Tensor] = []
    losses = t.model.losses

    def noted(tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        seen.append(scored)
        return losses(tokens, scored)

    t.model.losses = noted  # type: ignore[method-assign]
    rows = t.plan.rows(0)
    t._step()
    batch = t.train_split[rows]
    assert int(seen[0].sum()) == (batch.n_tokens if loss_on == "all" else int(batch.scored.sum()))
    assert int(batch.scored.sum()) < batch.n_tokens


def test_learning_rate_rises_peaks_and_falls_to_its_share() -> None:
    options = TrainingOptions(learning_rate=1.0, warmup=0.1, final_learning_rate=0.2)
    rates = [learning_rate(step, 100, options) for step in range(100)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert rates[54] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + np.cos(np.pi * 44 / 90)))
    assert rates[-1] == pytest.approx(0.2, abs=1e-3)


class TestFaultsOfTheArchitecture:
    """They are one line that says where; what was trained until then stays, and goes on once it is mended."""

    @pytest.mark.ci
    @pytest.mark.parametrize(
        ("training", "message"),
        [
            (True, r"^training fails at step 3 of \d+: .*test_trainer.py:\d+: ZeroDivisionError: division by zero$"),
            (
                False,
                r"^training fails at the validation split, after step \d+: .*test_trainer.py:\d+: ZeroDivisionError",
            ),
        ],
    )
    def test_in_a_step_and_in_validation(self, trainer: Callable[..., Trainer], training: bool, message: str) -> None:
        made, calls = trainer(checkpoint_seconds=0.0), []
        forward = made.model.forward

        def fails(tokens: Tensor) -> Tensor:
            calls.append(made.model.training)
            if calls.count(True) > 2 and made.model.training == training:
                calls[0] / 0
            return forward(tokens)

        made.model.forward = fails  # type: ignore[method-assign]
        with pytest.raises(UserError, match=message):
            made.run()
        whole, again = trainer("whole"), trainer()
        whole.run()
        again.run()
        assert equal(weights(again.model), weights(whole.model))

    def test_in_the_backward_pass(self, trainer: Callable[..., Trainer]) -> None:
        """The error rises in PyTorch, not on a line of the mixer's: no place is named."""
        made = trainer()
        mixer, forward = made.model.blocks[0].mixer, made.model.blocks[0].mixer.forward  # type: ignore[index, union-attr]

        def overwrites(x: Tensor) -> Tensor:
            y = forward(x).exp()
            z = y.sin()
            y *= 2
            return z

        mixer.forward = overwrites
        with pytest.raises(
            UserError, match="^training fails at step 1 of .*: RuntimeError: one of the variables needed"
        ):
            made.run()


@pytest.mark.ci
def test_complex_parameters_are_trained_checkpointed_and_resumed(trainer: Callable[..., Trainer]) -> None:
    class Turns(Recency):
        def __init__(self, options: object) -> None:
            super().__init__(options)
            self.turn = torch.nn.Parameter(torch.randn(self.options.d_model, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x) * self.turn).real

    whole = trainer("whole", mixer=Turns)
    begun = whole.model.blocks[0].mixer.turn.detach().clone()  # type: ignore[index, union-attr, operator]
    whole.run()
    assert not torch.equal(begun, whole.model.blocks[0].mixer.turn)  # type: ignore[index, union-attr]
    kill_at(trainer("broken", mixer=Turns), 3, after_save=True)
    resumed = trainer("broken", mixer=Turns)
    resumed.run()
    assert equal(weights(resumed.model), weights(whole.model))


@pytest.mark.ci
def test_figures_of_the_weights_are_in_the_log_from_step_0(
    trainer: Callable[..., Trainer], tiny: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trainer("plain")
    plain.run()
    assert log(plain)[0]["step"] == 1
    asked: list[object] = []

    def measured(self: Model, task: object) -> dict[str, float]:
        asked.append(task)
        assert not torch.is_grad_enabled()
        return {"size": float(self.unembed.weight.norm())}  # type: ignore[union-attr, operator]

    monkeypatch.setattr(Model, "measured", measured)
    t = trainer("measured")
    t.task = tiny.task
    start = float(t.model.unembed.weight.detach().norm())  # type: ignore[union-attr, operator]
    t.run()
    first, *rest = log(t)
    assert first == {"step": 0, "tokens": 0, "measured.size": start}
    assert len(rest) == len(log(plain))
    assert len({row["measured.size"] for row in rest}) > 1
    assert set(asked) == {tiny.task}
    assert equal(weights(t.model), weights(plain.model))  # looking changes nothing
    assert t.progress.curve == plain.progress.curve
    killed = trainer("killed")
    killed.task = tiny.task
    kill_at(killed, 7, after_save=True)
    again = trainer("killed")
    again.task = tiny.task
    again.run()
    assert [row.get("measured.size") for row in log(again)] == [row.get("measured.size") for row in log(t)]


def test_a_figure_that_is_no_number_is_refused(
    trainer: Callable[..., Trainer], tiny: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = trainer()
    t.task = tiny.task
    monkeypatch.setattr(Model, "measured", lambda self, task: {"size": float("nan")})
    with pytest.raises(UserError, match="^the model measures size as nan after step 0$"):
        t.run()
    monkeypatch.setattr(Model, "measured", lambda self, task: {"size": 1 / 0})
    with pytest.raises(UserError, match="^measuring fails after step 0: .*ZeroDivisionError"):
        t.run()
    subject = Subject(Recency, Recency.Options(d_model=8), tiny.task.io, task=tiny.task)
    (outcome,) = examine(subject, [trains])
    assert "measuring fails after step 2: " in str(outcome.fault), "`regbench check` and a run say it before training"
