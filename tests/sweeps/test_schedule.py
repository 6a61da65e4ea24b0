"""The order of a sweep, and that its selection is honest: with a training that is made up."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.config import read_config
from regbench.results import SeedRecord
from regbench.sweeps.schedule import Schedule
from regbench.sweeps.state import SweepFolder
from regbench.sweeps.sweep import Sweep
from regbench.sweeps.work import Ended, Job, Note
from regbench.training import provenance
from regbench.training.checkpoint import TrainingRecord
from regbench.training.trainer import Progress
from regbench.utils.errors import UserError
from regbench.utils.files import exclusive
from tests.helpers.sweeps import Heard, InProcess, write_sweep

SHORTER = {"over": ["training.learning_rate"], "with": {"training.train_tokens": 1000}}
"""Trials of fewer tokens than what is chosen."""
Work = Callable[[Job, Path, Callable[[Note], None]], Ended]


def loss_of(job: Job) -> float:
    """The larger rate is better, the deeper model is better."""
    settings = job.config.settings
    return 2.0 - settings["training.learning_rate"] - settings.get("n_layers", 0) / 10


def made_up(fails: Callable[[Job], Ended | None] = lambda job: None) -> Work:
    """Leaves the files that a training leaves, in no time. fails: which jobs fail, and how."""

    def work(job: Job, folder: Path, tell: Callable[[Note], None]) -> Ended:
        if (failed := fails(job)) is not None:
            return failed
        folder.mkdir(parents=True, exist_ok=True)
        if job.seed is None:
            (folder / "result.json").write_text("{}")
            return Ended()
        TrainingRecord(Progress(best_validation_loss=loss_of(job)), 1, 1).write(folder)
        if job.action == "score":
            record = {
                "seed": job.seed,
                **{name: {} for name in ("scores", "share_of_the_way", "curves")},
                "training_curve": [],
                **dict.fromkeys(("best_step", "steps", "tokens", "peak_memory_bytes"), 1),
                **dict.fromkeys(("seconds", "tokens_per_second"), 1.0),
                "predictions_sha256": "0" * 64,
            }
            (folder / "scores.json").write_text(SeedRecord.model_validate(record).model_dump_json())
            for name in ("metrics.jsonl", "checkpoint.safetensors", "predictions.npz", provenance.FILE):
                (folder / name).write_text("{}")
        return Ended()

    return work


@pytest.fixture
def sweep(tmp_path: Path, tiny_file: Path) -> Callable[..., Sweep]:
    """Makes a sweep of two depths and two rates, of which one is chosen."""
    return lambda **changes: Sweep.read(write_sweep(tmp_path, tiny_file, **changes))


def go(sweep: Sweep, out: Path, work: Work, engine: Callable[[Work], InProcess] = InProcess) -> tuple[Heard, Schedule]:
    heard, folder = Heard(), SweepFolder(out)
    with folder.held():
        folder.begin(sweep.file, sweep.groups)
        schedule = Schedule(folder, sweep.groups, engine(work), heard)
        schedule.run()
    return heard, schedule


def rate_and_depth(job: Job) -> tuple[float, int]:
    return job.config.settings["training.learning_rate"], job.config.settings.get("n_layers", 0)


def test_only_what_was_chosen_is_scored_on_the_test_split(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    heard, schedule = go(sweep(), tmp_path / "out", made_up())
    trials = [(rate_and_depth(job), job.seed) for job in heard.jobs if job.action == "train"]
    scored = [(rate_and_depth(job), job.seed) for job in heard.jobs if job.action == "score"]
    assert trials == [((rate, depth), 0) for depth in (1, 2) for rate in (1e-3, 1e-2)]
    assert scored == [((1e-2, depth), seed) for depth in (1, 2) for seed in (0, 1)]
    assert len(list((tmp_path / "out").rglob("cells/*/trained.json"))) == 6
    assert len(list((tmp_path / "out").rglob("cells/*/scores.json"))) == 4
    assert len(schedule.finished) == 2
    assert schedule.failures == []
    for job in heard.jobs:
        if job.action == "finish":
            assert (job.config.seeds, job.config.trials) == ((0, 1), 2)
    assert (heard.counts.total, heard.counts.done, heard.counts.left) == (6, 6, 0), "as a dry run counts cells"


def test_the_chosen_trial_is_the_first_seed(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    """It is scored where it was trained; with settings of their own the trials are other cells."""
    heard, _ = go(sweep(), tmp_path / "same", made_up())
    folders = {
        action: {j.folder for j in heard.jobs if j.action == action and j.seed == 0} for action in ("train", "score")
    }
    assert folders["score"] < folders["train"]
    heard, _ = go(sweep(select=SHORTER), tmp_path / "other", made_up())
    folders = {
        action: {j.folder for j in heard.jobs if j.action == action and j.seed == 0} for action in ("train", "score")
    }
    assert folders["score"].isdisjoint(folders["train"])
    tokens = {job.action: job.config.settings["training.train_tokens"] for job in heard.jobs}
    assert tokens == {"train": 1000, "score": 3000, "finish": 3000}


def test_a_tie_goes_to_the_first(sweep: Callable[..., Sweep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sweeps.test_schedule.loss_of", lambda job: 1.0)
    heard, _ = go(sweep(), tmp_path / "out", made_up())
    assert {rate_and_depth(job)[0] for job in heard.jobs if job.action == "score"} == {1e-3}


def test_what_is_done_is_not_done_again(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    go(sweep(), tmp_path / "out", made_up())
    heard, schedule = go(sweep(), tmp_path / "out", made_up())
    assert heard.jobs == []
    assert len(schedule.finished) == 2
    more, _ = go(sweep(seeds=[0, 1, 2]), tmp_path / "out", made_up())
    assert Counter((job.action, job.seed) for job in more.jobs) == {("score", 2): 2, ("finish", None): 2}


@pytest.mark.parametrize("after", range(10))
def test_a_sweep_killed_anywhere_goes_on_to_the_same(sweep: Callable[..., Sweep], tmp_path: Path, after: int) -> None:
    """Each moment between two jobs; the work within a job is the runner's, and is killed in its tests."""
    whole, _ = go(sweep(), tmp_path / "whole", made_up())
    done = 0

    def stop(job: Job) -> Ended | None:
        nonlocal done
        if done == after:
            raise KeyboardInterrupt
        done += 1
        return None

    with pytest.raises(KeyboardInterrupt):
        go(sweep(), tmp_path / "killed", made_up(stop))
    heard, schedule = go(sweep(), tmp_path / "killed", made_up())
    assert len(heard.jobs) == len(whole.jobs) - after
    assert [point.label for _, point in sorted(schedule.finished, key=lambda pair: pair[1].label)] == sorted(
        whole.choices
    )

    def names(out: str) -> list[str]:
        return sorted(p.relative_to(tmp_path / out).as_posix() for p in (tmp_path / out).rglob("*"))

    assert names("killed") == names("whole")


def test_a_configuration_that_cannot_be_trained_loses(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    """It counts as a trial, and the rest goes on."""

    def fails(job: Job) -> Ended | None:
        return Ended("training diverged", refused=True) if rate_and_depth(job) == (1e-2, 1) else None

    heard, schedule = go(sweep(), tmp_path / "out", made_up(fails))
    assert [rate_and_depth(j) for j in heard.jobs if j.action == "finish"] == [(1e-3, 1), (1e-2, 2)]
    assert {job.config.trials for job in heard.jobs if job.action == "finish"} == {2}
    assert [failure.message for failure in schedule.failures] == ["training diverged"]
    (kept,) = (tmp_path / "out").rglob("failed.json")
    assert json.loads(kept.read_text())["message"] == "training diverged"
    heard, _ = go(sweep(), tmp_path / "out", made_up(fails))
    assert [rate_and_depth(job) for job in heard.jobs] == [(1e-2, 1)], "what failed is tried again, and nothing else"


def test_a_choice_waits_for_a_trial_that_the_machine_failed(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    """It may be the best: what is chosen must not hang on which process was killed."""

    def fails(job: Job) -> Ended | None:
        return Ended("its process ended by signal 9") if rate_and_depth(job) == (1e-2, 1) else None

    heard, schedule = go(sweep(), tmp_path / "out", made_up(fails))
    assert {rate_and_depth(job)[1] for job in heard.jobs if job.action == "score"} == {2}
    assert heard.counts.left == 0
    assert (heard.counts.done, heard.counts.failed) == (4, 1)
    assert len(schedule.finished) == 1
    _, schedule = go(sweep(), tmp_path / "out", made_up())
    assert len(schedule.finished) == 2


def test_a_group_of_which_nothing_can_be_trained(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    def fails(job: Job) -> Ended | None:
        return Ended("diverged", refused=True) if rate_and_depth(job)[1] == 1 else None

    heard, schedule = go(sweep(), tmp_path / "out", made_up(fails))
    assert {rate_and_depth(job)[1] for job in heard.jobs if job.action == "score"} == {2}
    assert len(schedule.failures) == 2
    assert heard.counts.left == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_that_fails_leaves_no_run(sweep: Callable[..., Sweep], tmp_path: Path, seed: int) -> None:
    """Whose seeds are not all there is not shown: nobody may choose among seeds."""

    def fails(job: Job) -> Ended | None:
        failing = job.action == "score" and job.seed == seed and rate_and_depth(job)[1] == 1
        return Ended("diverged", refused=True) if failing else None

    _, schedule = go(sweep(), tmp_path / "out", made_up(fails))
    assert [group.label for group, _ in schedule.finished] == ["average n_layers=2"]
    assert [failure.label for failure in schedule.failures] == [f"average n_layers=1 learning_rate=0.01 seed {seed}"]


def test_the_first_run_of_a_track_scores_its_baselines_alone(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    """Others of that track wait, so that no two processes compute the same."""
    finishing = 0

    class Many(InProcess):
        def free(self) -> int:
            return 8 - len(self._queue)

        def submit(self, job: Job) -> None:
            nonlocal finishing
            finishing += job.action == "finish"
            assert finishing <= 1
            super().submit(job)

        def wait(self, seconds: float) -> Any:
            nonlocal finishing
            ended = super().wait(seconds)
            finishing -= sum(job.action == "finish" for job, event in ended if isinstance(event, Ended))
            return ended

    heard, _ = go(sweep(), tmp_path / "out", made_up(), Many)
    assert [job.action for job in heard.jobs].count("finish") == 2


def test_groups_may_share_a_cell(sweep: Callable[..., Sweep], tmp_path: Path) -> None:
    """A trial with fewer tokens is a seed of the group that has so few; each is trained once."""
    made = sweep(
        base={"d_model": 8, "training.batch_size": 8},
        grid={
            "arch": [str(tmp_path / "average.py")],
            "training.train_tokens": [2000, 4000],
            "training.learning_rate": [1e-3, 1e-2],
        },
        select={"over": ["training.learning_rate"], "with": {"training.train_tokens": 2000}},
        seeds=[0],
    )
    for width in (1, 4):
        engine = type("Wide", (InProcess,), {"free": lambda self, width=width: width - len(self._queue)})
        heard, schedule = go(made, tmp_path / f"out-{width}", made_up(), engine)
        cells = [(job.action, job.folder) for job in heard.jobs if job.seed is not None]
        assert len(set(cells)) == len(cells) == 4
        assert len(schedule.finished) == 2
        assert heard.counts.left == 0


class TestTheFolder:
    def test_in_use(self, sweep: Callable[..., Sweep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("regbench.sweeps.state._PATIENCE", 0.2)
        with (
            exclusive(tmp_path / "out"),
            pytest.raises(UserError, match="out is in use by another sweep; wait for it, or"),
        ):
            go(sweep(), tmp_path / "out", made_up())

    def test_of_another_version(self, sweep: Callable[..., Sweep], tmp_path: Path) -> None:
        go(sweep(), tmp_path / "out", made_up())
        path = tmp_path / "out" / "begun.json"
        path.write_text(path.read_text().replace('"regbench": "', '"regbench": "9.'))
        with pytest.raises(UserError, match=r"out was begun by regbench 9\.\S+, and this is \S+; choose another --out"):
            go(sweep(), tmp_path / "out", made_up())

    @pytest.mark.parametrize(
        ("searched", "alone"),
        [
            ({}, {}),
            ({}, {"select": None}),  # a group of its own, whose weights are those of a trial among others
            ({"select": SHORTER}, {"select": None}),  # other cells than those of the winner
        ],
    )
    def test_trials_that_were_made_count(
        self, sweep: Callable[..., Sweep], tmp_path: Path, searched: dict[str, Any], alone: dict[str, Any]
    ) -> None:
        """Nobody runs the winner alone in the folder of its search, as if it were the only trial."""
        go(sweep(**searched), tmp_path / "out", made_up())
        winner = {"arch": [str(tmp_path / "average.py")], "n_layers": [1], "training.learning_rate": [1e-2]}
        go(sweep(grid=winner | {"n_layers": [3]}), tmp_path / "out", made_up())  # of another group: they still count
        with pytest.raises(UserError, match="was begun with other trials for average .*n_layers=1.*, and they count"):
            go(sweep(grid=winner, **alone), tmp_path / "out", made_up())

    def test_more_groups_may_join(self, sweep: Callable[..., Sweep], tmp_path: Path) -> None:
        go(sweep(), tmp_path / "out", made_up())
        grid = {"arch": [str(tmp_path / "average.py")], "n_layers": [1, 2, 3], "training.learning_rate": [1e-3, 1e-2]}
        heard, schedule = go(sweep(grid=grid), tmp_path / "out", made_up())
        assert {rate_and_depth(job)[1] for job in heard.jobs} == {3}
        assert len(schedule.finished) == 3


class TestARunThatIsMadeAnew:
    """A seed is added to a sweep whose runs are finished, and in their folders lies what people made of them."""

    @pytest.fixture
    def one(self, sweep: Callable[..., Sweep], tmp_path: Path) -> Callable[[list[int]], Sweep]:
        """Makes a sweep of one configuration with these seeds."""
        grid = {"arch": [str(tmp_path / "average.py")], "n_layers": [1], "training.learning_rate": [1e-2]}
        return lambda seeds: sweep(grid=grid, select=None, seeds=seeds)

    @pytest.fixture
    def run(self, one: Callable[[list[int]], Sweep], tmp_path: Path) -> Path:
        """The folder of a finished run, with analyses in it."""
        go(one([0]), tmp_path / "out", made_up())
        (run,) = (path.parent for path in tmp_path.glob("out/runs/*/*/result.json"))
        (run / "result.json").write_text('{"seeds": "the first"}')
        for name in ("analysis/table.csv", "seed-0/notes.txt", "specialised.safetensors"):
            (run / name).parent.mkdir(exist_ok=True)
            (run / name).write_text("mine")
        (run / "latest").symlink_to("analysis")
        return run

    def test_what_people_put_there_is_kept(self, one: Callable[[list[int]], Sweep], tmp_path: Path, run: Path) -> None:
        _, schedule = go(one([0, 1]), tmp_path / "out", made_up())
        assert schedule.failures == []
        assert read_config(run / "config.yaml").seeds == (0, 1)
        assert (run / "result.json").read_text() == "{}"
        for name in ("analysis/table.csv", "seed-0/notes.txt", "specialised.safetensors", "latest/table.csv"):
            assert (run / name).read_text() == "mine"
        assert (run / "latest").is_symlink()
        assert (run / "seed-1" / "checkpoint.safetensors").exists()
        assert list(run.parent.iterdir()) == [run]

    def test_a_seed_that_is_no_longer_asked_for_goes(
        self, one: Callable[[list[int]], Sweep], tmp_path: Path, run: Path
    ) -> None:
        go(one([0, 1]), tmp_path / "out", made_up())
        go(one([0]), tmp_path / "out", made_up())
        assert not (run / "seed-1").exists()
        assert (run / "analysis" / "table.csv").read_text() == "mine"

    @pytest.mark.parametrize("how", ["fails", "is killed"])
    def test_what_is_not_finished_goes_on(
        self, one: Callable[[list[int]], Sweep], tmp_path: Path, run: Path, how: str
    ) -> None:
        def fails(job: Job) -> Ended | None:
            if job.seed is not None:
                return None
            if how == "is killed":
                raise KeyboardInterrupt
            return Ended("the disk is full")

        with pytest.raises(KeyboardInterrupt) if how == "is killed" else contextlib.nullcontext():
            go(one([0, 1]), tmp_path / "out", made_up(fails))
        assert not (run / "result.json").exists()
        go(one([0, 1]), tmp_path / "out", made_up())
        assert (run / "result.json").read_text() == "{}"
        assert (run / "analysis" / "table.csv").read_text() == "mine"
        assert list(run.parent.iterdir()) == [run]

    def test_a_cell_that_lacks_a_file(self, sweep: Callable[..., Sweep], tmp_path: Path, run: Path) -> None:
        """Weights deleted to save disk: that run fails in one line, the others go on, and nothing is destroyed."""
        (lacking,) = tmp_path.glob("out/cells/*/checkpoint.safetensors")
        lacking.unlink()
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        _, schedule = go(sweep(seeds=[0, 1], select=None), tmp_path / "out", made_up())
        (failure,) = schedule.failures
        assert failure.message == (
            f"{lacking.parent} has no checkpoint.safetensors: put the file back, or remove that folder, and the seed "
            "is trained anew"
        )
        assert len(schedule.finished) == 3
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
