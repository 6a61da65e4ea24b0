"""A whole sweep of a tiny track, with the real runner: what it leaves, and what it never reads."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench import runner
from regbench.config import Config, read_config
from regbench.leaderboard.verify import submit
from regbench.results import Code, read_result
from regbench.sweeps.curves import write_curves
from regbench.sweeps.state import SweepFolder
from regbench.sweeps.sweep import Sweep, Swept
from regbench.sweeps.tables import Spread, write_best
from regbench.sweeps.work import Ended, Job, Note, do
from regbench.tracks import Track
from regbench.training.checkpoint import load_tensors
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.sweeps import BASE, Heard, InProcess, write_sweep
from tests.helpers.typed import AVERAGE

DIVERGES = """
import regbench


class Diverges(regbench.Mixer):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        return x * float("nan") if self.steps > 14 and self.options.d_model == 16 else 2 * x
"""

TOO_LARGE = """
import regbench


class TooLarge(regbench.Mixer):
    steps = 0

    def forward(self, x):
        y = 2 * x
        if y.requires_grad:
            y.register_hook(self.count)
        return y

    def count(self, gradient):
        self.steps += 1
        if self.steps > 14 and self.options.d_model == 16:
            raise MemoryError("no memory")
"""

SEEN: list[tuple[str, str]] = []
"""Which splits each action made."""


@pytest.fixture(scope="module")
def swept(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sweep, Swept, Heard]]:
    """Three depths, two rates to choose from, three seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    rates = [1e-3, 1e-2]
    grid = {"arch": [str(folder / "average.py")], "n_layers": [1, 2, 3], "training.learning_rate": rates}
    base = BASE | {"training.keep_checkpoints": True}
    sweep = Sweep.read(write_sweep(folder, tiny_file, grid=grid, base=base, seeds=[0, 1, 2]))
    heard, action, instances = Heard(), ["none"], Track.instances

    def work(job: Job, where: Path, tell: Callable[[Note], None]) -> Ended:
        action[0] = job.action
        try:
            return do(job, where, tell)
        finally:
            action[0] = "none"

    def seen(track: Track, split: str) -> Any:
        SEEN.append((action[0], split))
        return instances(track, split)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweep, "_engine", lambda *_: InProcess(work))
        patch.setattr(Track, "instances", seen)
        patch.setattr("regbench.runner.train.describe_code", lambda: Code(commit="0" * 40, dirty=False))
        yield sweep, sweep.run(heard, out=folder / "out"), heard


def lines(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.ci
def test_trials_never_touch_the_test_split(swept: tuple[Sweep, Swept, Heard]) -> None:
    assert {split for action, split in SEEN if action == "train"} == {"train", "validation"}
    assert {split for action, split in SEEN if action == "none"} <= {"train"}
    _, done, heard = swept
    lost = {j.folder for j in heard.jobs if j.action == "train"} - {j.folder for j in heard.jobs if j.action == "score"}
    assert len(lost) == 3
    for folder in map(Path, lost):
        names = {path.name for path in folder.iterdir()}
        kept = {"metrics.jsonl", "checkpoint.safetensors", "trained.json", "code.json", "provenance.json"}
        assert names == {".lock", "course", *kept}
        assert "legal_accuracy" not in (folder / "trained.json").read_text()
    assert done.failures == []


@pytest.mark.ci
def test_the_tables(swept: tuple[Sweep, Swept, Heard]) -> None:
    _, done, _ = swept
    table, trials = lines(done.folder / "table.csv"), lines(done.folder / "trials.csv")
    assert [(row["n_layers"], row["trials"], row["seeds"]) for row in table] == [(n, "2", "3") for n in "123"]
    assert [row["best"] for row in table].count("yes") == 1
    best = min(table, key=lambda row: float(row["validation_loss"]))
    assert best["best"] == "yes"
    for row, shown in zip(table, done.rows, strict=True):
        result = read_result(shown.folder)
        values = sorted(seed.scores["legal_accuracy"].value for seed in result.seeds)
        assert [float(row[f"legal_accuracy{end}"]) for end in ("_low", "", "_high")] == pytest.approx(values, abs=1e-6)
        assert float(row["normalized_score"]) == pytest.approx(
            Spread.of([seed.share_of_the_way["legal_accuracy"] for seed in result.seeds]).median, abs=1e-6
        )
        tried = [one for one in trials if one["n_layers"] == row["n_layers"]]
        chosen = min(tried, key=lambda one: float(one["validation_loss"]))
        assert [one["chosen"] for one in tried].count("yes") == 1
        assert chosen["chosen"] == "yes"
        assert chosen["configuration"] == row["configuration"]
    assert [row.point.axes["n_layers"] for row in done.best] == [int(best["n_layers"])]


def test_the_curves(swept: tuple[Sweep, Swept, Heard]) -> None:
    """Of depth, which has three values, and not of the rate, which has two; baselines beside it."""
    _, done, _ = swept
    found = lines(done.folder / "curves.csv")
    assert {row["axis"] for row in found} == {"n_layers", ""}
    own = [row for row in found if row["predictor"] == "average" and row["metric"] == "legal_accuracy"]
    assert [row["value"] for row in own] == ["1", "2", "3"]
    table = lines(done.folder / "table.csv")
    assert [row["median"] for row in own] == [row["legal_accuracy"] for row in table]
    assert {"oracle", "unigram"} < {row["predictor"] for row in found if row["axis"] == ""}
    assert (done.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_is_a_configuration_that_run_takes(swept: tuple[Sweep, Swept, Heard]) -> None:
    _, done, _ = swept
    config = read_config(done.folder / "best.yaml")
    (best,) = done.best
    assert config.settings == best.point.settings
    assert config.seeds == (0, 1, 2)
    assert config.trials == 6, "all that was tried with this architecture"


def test_the_trials_of_a_group_that_did_not_finish_are_counted(
    swept: tuple[Sweep, Swept, Heard], tmp_path: Path
) -> None:
    """They took part in the choice."""
    sweep, done, _ = swept
    folder = SweepFolder(tmp_path)
    folder.begin(sweep.file, sweep.groups)
    write_best(folder, done.rows[:1])
    assert read_config(tmp_path / "best.yaml").trials == 6
    folder.begin(sweep.file, [group for group in sweep.groups if group.key == done.rows[0].group.key])
    write_best(folder, done.rows[:1])
    assert read_config(tmp_path / "best.yaml").trials == 6, "groups that left the file count"
    assert done.rows[0].result.selection.trials == 2


def test_earlier_settings_of_base_count_as_trials(tiny_file: Path, tmp_path: Path) -> None:
    """Whoever reads the scores of one learning rate, and then gives another, has chosen."""
    for count, rate in enumerate((1e-3, 3e-3, 1e-2), 1):
        grid, base = {"arch": ["lstm"], "d_model": [16, 8]}, {"training.learning_rate": rate}
        sweep = Sweep.read(write_sweep(tmp_path, tiny_file, grid=grid, base=base, select=None, seeds=[0]))
        folder = SweepFolder(tmp_path / "out")
        folder.begin(sweep.file, sweep.groups)
        assert folder.tried(sweep.groups[0].first) == 2 * count


def test_the_best_of_an_earlier_form_of_the_sweep_goes(swept: tuple[Sweep, Swept, Heard], tmp_path: Path) -> None:
    """With a second track in the file the best of the first has another name."""
    sweep, done, _ = swept
    folder = SweepFolder(tmp_path)
    folder.begin(sweep.file, sweep.groups)
    (tmp_path / "runs" / "tiny-v1").mkdir(parents=True)
    for name in ("best-tiny-v1.yaml", "best-of-mine.yaml"):
        (tmp_path / name).write_text("")
    write_best(folder, done.rows)
    assert sorted(path.name for path in tmp_path.glob("best*")) == ["best-of-mine.yaml", "best.yaml"]


def test_the_curves_of_an_earlier_form_of_the_sweep_go(tmp_path: Path) -> None:
    """Where an axis has fewer values now, the old curves would stand beside the new table."""
    for name in ("curves.csv", "curves.png", "table.csv"):
        (tmp_path / name).write_text("")
    write_curves(tmp_path, [], [])
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.ci
def test_a_run_folder_is_as_a_run_leaves_it(swept: tuple[Sweep, Swept, Heard], tmp_path: Path) -> None:
    """Trained cell by cell, and resumed in between: the same scores as `regbench.run` in one go."""
    _, done, _ = swept
    row = done.rows[0]
    config = read_config(row.folder / "config.yaml")
    assert (config.seeds, config.trials) == ((0, 1, 2), 2)
    names = {p.relative_to(row.folder).as_posix() for p in row.folder.rglob("*") if p.is_file()}
    whole = runner.run(
        config.track, config.architecture, config.seeds, settings=config.settings, trials=2, out=tmp_path / "run"
    )
    assert names == {p.relative_to(tmp_path / "run").as_posix() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert [seed.predictions_sha256 for seed in row.result.seeds] == [seed.predictions_sha256 for seed in whole.seeds]
    assert [seed.scores for seed in row.result.seeds] == [seed.scores for seed in whole.seeds]
    assert [seed.share_of_the_way for seed in row.result.seeds] == [seed.share_of_the_way for seed in whole.seeds]
    assert row.result.environment == whole.environment
    weights = [
        load_tensors(folder / "seed-1" / "checkpoint.safetensors")[0] for folder in (row.folder, tmp_path / "run")
    ]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[1])


def test_the_board_takes_it(swept: tuple[Sweep, Swept, Heard], tmp_path: Path, tiny: Track) -> None:
    _, done, _ = swept
    made = submit(done.rows[0].folder, tmp_path, track=tiny, name="mine")
    assert [str(fault) for fault in made.findings.faults] == []
    assert made.path is not None
    assert json.loads(made.path.read_text())["result"]["selection"] == {"split": "validation", "trials": 2}


def test_once_more_does_nothing_and_leaves_the_same_bytes(
    swept: tuple[Sweep, Swept, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, done, _ = swept
    names = ("table.csv", "trials.csv", "curves.csv", "curves.png", "best.yaml", "begun.json", "sweep.yaml")
    before = [(done.folder / name).read_bytes() for name in names]
    heard = Heard()
    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess())
    sweep.run(heard, out=done.folder)
    assert heard.jobs == []
    assert [(done.folder / name).read_bytes() for name in names] == before


@pytest.mark.ci
def test_fewer_instances_are_said_in_the_result(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the board recomputes the plan of training from them."""
    monkeypatch.setattr("regbench.runner.train.describe_code", lambda: Code(commit="0" * 40, dirty=False))
    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess())
    grid = {"arch": ["lstm"], "train_instances": [16]}
    sweep = Sweep.read(write_sweep(tmp_path, tiny_file, grid=grid, select=None, seeds=[0, 1, 2]))
    done = sweep.run(Heard(), out=tmp_path / "out")
    (row,) = done.rows
    assert row.result.training["train_instances"] == 16
    assert row.result.selection.trials == 1
    track = sweep.groups[0].first.track
    made = submit(row.folder, tmp_path / "board", track=track)
    assert [str(fault) for fault in made.findings.faults] == []
    assert made.path is not None
    assert "train_instances-16" in made.path.name
    result = json.loads((row.folder / "result.json").read_text())
    result["training"]["train_instances"] = 60
    (row.folder / "result.json").write_text(json.dumps(result))
    (row.folder / "config.yaml").write_text((row.folder / "config.yaml").read_text().replace(": 16\n", ": 60\n"))
    faults = submit(row.folder, tmp_path / "board", track=track).findings.faults
    assert "training" in {fault.check for fault in faults}


def two_widths(source: str, tiny_file: Path, folder: Path) -> Swept:
    """A sweep of this mixer with the widths 16 and 8, of which one is chosen."""
    (folder / "mixer.py").write_text(source)
    base = {"training.batch_size": 8, "training.train_tokens": 2000}
    grid = {"arch": [str(folder / "mixer.py")], "d_model": [16, 8]}
    sweep = Sweep.read(write_sweep(folder, tiny_file, grid=grid, base=base, select={"over": ["d_model"]}, seeds=[0]))
    return sweep.run(Heard(), out=folder / "out")


@pytest.mark.ci
def test_a_diverging_configuration_is_told_and_the_rest_goes_on(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess())
    done = two_widths(DIVERGES, tiny_file, tmp_path)
    assert [row.point.axes for row in done.rows] == [{"d_model": 8}]
    (failure,) = done.failures
    assert failure.refused
    assert failure.message.startswith("training diverged: the loss is")
    assert done.rows[0].result.selection.trials == 2
    trials = lines(tmp_path / "out" / "trials.csv")
    assert [(row["validation_loss"] == "", row["chosen"]) for row in trials] == [(True, "no"), (False, "yes")]


@pytest.mark.parametrize("steps", [9, pytest.param(-1, marks=pytest.mark.ci)])
@pytest.mark.parametrize(
    "error",
    [
        'MemoryError("no memory")',
        'RuntimeError("CUDA error: unspecified launch failure")',
        'RuntimeError("can\'t start new thread")',
    ],
)
def test_what_the_machine_lacks_is_no_verdict_on_a_configuration(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, steps: int
) -> None:
    """Its group waits, so that nothing is chosen, and scored on the test split, while it may still win. In checks, too."""
    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess())
    source = TOO_LARGE.replace('MemoryError("no memory")', error).replace("> 9", f"> {steps}")
    done = two_widths(source, tiny_file, tmp_path)
    (failure,) = done.failures
    assert error.partition('"')[2].rstrip('")') in failure.message
    assert (failure.refused, done.rows) == (False, [])
    assert {row["chosen"] for row in lines(tmp_path / "out" / "trials.csv")} == {"no"}


def test_a_lost_gpu_is_no_verdict_on_a_configuration(tiny_file: Path, tmp_path: Path) -> None:
    config = Config(track=str(tiny_file), architecture="lstm", seeds=(0,), device="cuda:99")
    ended = do(Job("train", str(tmp_path), config, 0, "lstm"), tmp_path / "cell", lambda _: None)
    assert ended.message is not None
    assert "is not available" in ended.message
    assert not ended.refused


def test_code_that_is_edited_meanwhile_is_not_trained(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of two codes would be compared."""

    def edits(job: Job, folder: Path, tell: Callable[[Note], None]) -> Ended:
        ended = do(job, folder, tell)
        (tmp_path / "mixer.py").write_text(AVERAGE + "# edited\n")
        return ended

    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess(edits))
    done = two_widths(AVERAGE, tiny_file, tmp_path)
    (failure,) = done.failures
    assert failure.message.endswith("mixer.py has changed since the sweep was started: start it again")
    assert (failure.refused, done.rows) == (False, [])


@pytest.mark.parametrize("gone", [False, True])
def test_a_track_that_is_edited_meanwhile_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Trials of two tracks would be compared. A file that is gone for a moment is no fault of a configuration."""
    track = tmp_path / "own-v1.yaml"
    content = TINY | {"name": "own-v1"}
    track.write_text(yaml.safe_dump(content))

    def edits(job: Job, folder: Path, tell: Callable[[Note], None]) -> Ended:
        ended = do(job, folder, tell)
        track.unlink(missing_ok=True)
        if not gone:
            track.write_text(yaml.safe_dump(content | {"splits": TINY["splits"] | {"seed": 9}}))  # type: ignore[operator]
        return ended

    monkeypatch.setattr(Sweep, "_engine", lambda *_: InProcess(edits))
    done = two_widths(AVERAGE, track, tmp_path)
    (failure,) = done.failures
    said = "cannot read .*own-v1.yaml" if gone else "the track .*own-v1.yaml has changed since the sweep was started"
    assert re.match(said, failure.message)
    assert (failure.refused, done.rows) == (False, [])


def test_only_a_sweeps_own_folder_is_written(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep.read(write_sweep(tmp_path, tiny_file))
    with pytest.raises(UserError, match="is not empty, and holds no sweep; choose another --out"):
        sweep.run(Heard(), out=tmp_path)
    assert not (tmp_path / "begun.json").exists()
    assert not (tmp_path / ".lock").exists()


def test_a_sweep_that_was_killed_while_it_wrote_its_first_file_is_its_own(tiny_file: Path, tmp_path: Path) -> None:
    sweep, folder = Sweep.read(write_sweep(tmp_path, tiny_file)), SweepFolder(tmp_path / "out")
    with folder.held():
        (folder.path / ".begun.json.x1y2z3w4.part").write_text("{")
        folder.begin(sweep.file, sweep.groups)
        assert {path.name for path in folder.path.iterdir()} == {".lock", "begun.json", "sweep.yaml"}


def test_an_unknown_device_is_refused_at_once(tiny_file: Path, tmp_path: Path) -> None:
    sweep = Sweep.read(write_sweep(tmp_path, tiny_file, device="gpu"))
    with pytest.raises(UserError, match="unknown device 'gpu'; did you mean 'cuda'?"):
        sweep.run(Heard(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.ci
def test_a_seeds_folder_of_another_training(tiny_file: Path, tmp_path: Path) -> None:
    """What `train_seed` left is gone on with only as what it was."""
    config = yaml.safe_load(write_sweep(tmp_path, tiny_file).read_text())
    settings = {"d_model": 8, "training.train_tokens": 1000, "training.batch_size": 8}
    one = Config(track=str(tiny_file), architecture=config["grid"]["arch"][0], settings=settings)
    trained = runner.train_seed(one, 0, tmp_path / "cell")
    assert not (tmp_path / "cell" / "scores.json").exists()
    assert not (tmp_path / "cell" / "resume.safetensors").exists()
    assert runner.train_seed(one, 0, tmp_path / "cell") == trained
    other = one.model_copy(update={"settings": settings | {"training.learning_rate": 0.1}})
    with pytest.raises(UserError, match="has begun before the training options changed"):
        runner.score_seed(other, 0, tmp_path / "cell")
    with pytest.raises(UserError, match="has begun before the seed changed"):
        runner.score_seed(one, 1, tmp_path / "cell")
    record = runner.score_seed(one, 0, tmp_path / "cell")
    assert record.steps == trained.steps
    assert record.training_curve[-1].validation_loss == trained.progress.validation_loss


def test_what_a_killed_process_left_in_a_cell_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a checkpoint; the checkpoint before it stays."""
    monkeypatch.setattr(runner, "train_seed", lambda *_: None)
    left, kept = tmp_path / ".resume.safetensors.abcd_123.part", tmp_path / "resume.safetensors"
    for path in (left, kept):
        path.write_text("")
    job = Job("train", str(tmp_path), Config(track="pfa-small-v1", architecture="lstm"), 0, "lstm")
    assert do(job, tmp_path, lambda _: None) == Ended()
    assert kept.exists()
    assert not left.exists()
