"""A run from a track to a result, its folder, and its resumption."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import regbench
from regbench import cli, runner
from regbench.config import Config
from regbench.results import read_result
from regbench.runner.train import plan_of
from regbench.sweeps.schedule import run_seeds
from regbench.tracks import Track
from regbench.training import trainer
from regbench.training.progress import Reporter
from regbench.utils.errors import UserError
from tests.conftest import MARKOV, TINY
from tests.helpers.sweeps import Heard
from tests.helpers.typed import AVERAGE
from tests.runner.conftest import QUICK


@pytest.fixture(scope="module")
def whole(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> regbench.Result:
    """A run of two seeds that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "average.py").write_text(AVERAGE)
    return regbench.run(str(tiny_file), str(folder / "average.py"), (0, 1), settings=QUICK, out=folder / "out")


def test_a_file_in_the_way_of_the_default_folder_is_told(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="cannot write runs/tiny-v1: a part of that path is a file, no folder"):
        regbench.run(str(tiny_file), "lstm", settings=QUICK)


@pytest.mark.ci
def test_a_class_is_run_as_a_file_is(whole: regbench.Result, tiny_file: Path, tmp_path: Path) -> None:
    """The same scores. Its folder names the class, and this program goes on with it."""

    class Average(regbench.Mixer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]

    result = regbench.run(str(tiny_file), Average, 0, settings=QUICK, out=tmp_path / "out")
    assert result.seeds[0].scores == whole.seeds[0].scores
    assert (result.architecture.name, result.architecture.source) == ("Average", "tests.runner.test_train")
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["architecture"] == "class:Average"
    (tmp_path / "out" / "result.json").unlink()
    with pytest.raises(UserError, match="'class:Average' is a class of the program that ran it"):
        regbench.resume(tmp_path / "out")
    assert regbench.resume(tmp_path / "out", arch=Average).seeds == result.seeds


def test_a_run_takes_what_python_has(whole: regbench.Result, tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    """A loaded track, a path, and numbers of NumPy. The caller's generator and threads are as before."""
    (tmp_path / "average.py").write_text(AVERAGE)
    settings = QUICK | {"d_model": np.int64(8), "training.batch_size": np.int64(8)}
    torch.manual_seed(7)
    before = torch.get_rng_state(), torch.get_num_threads()
    track = regbench.load_track(tiny_file)
    result = regbench.run(track, tmp_path / "average.py", np.arange(1), settings=settings, out=tmp_path / "out")
    assert result.seeds[0].scores == whole.seeds[0].scores
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    assert regbench.load_track("pfa-small-v1").address == "pfa-small-v1"
    with pytest.raises(UserError, match="no score 'legal'; did you mean 'legal_accuracy'"):
        result.score("legal")
    with pytest.raises(UserError, match="no score 'bleu'; known: legal_accuracy"):
        result.score("bleu")


@pytest.mark.ci
def test_a_resumed_run_gives_the_threads_back(go: Callable[..., regbench.Result], tmp_path: Path) -> None:
    before = torch.get_num_threads()
    original = trainer.Trainer._step

    def stop(self: trainer.Trainer) -> Any:
        if self.progress.step == 5:
            raise KeyboardInterrupt
        return original(self)

    try:
        torch.set_num_threads(3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.Trainer, "_step", stop)
            with pytest.raises(KeyboardInterrupt):
                go(settings=QUICK | {"training.checkpoint_seconds": 0})
        torch.set_num_threads(1)
        result = regbench.resume(tmp_path / "out", regbench.Reporter())
        assert (result.environment.threads, torch.get_num_threads()) == (3, 1)
    finally:
        torch.set_num_threads(before)


def comparable(result: regbench.Result) -> dict[str, Any]:
    """All of a result that two runs of one configuration must share: timings and memory left out."""
    content = result.model_dump(mode="json")
    for seed in content["seeds"]:
        for key in ("seconds", "tokens_per_second", "peak_memory_bytes"):
            del seed[key]
    for baseline in content["baselines"].values():
        del baseline["seconds"]
    del content["code"]
    return content


@pytest.mark.ci
def test_a_strangers_five_line_mixer_runs_and_leaves_a_result(
    go: Callable[..., regbench.Result], tmp_path: Path, tiny: Track, drawn: None
) -> None:
    result = go(seeds=(0, 1))
    assert result.architecture.name == "average"
    assert result.architecture.source == "average.py"
    assert [s.seed for s in result.seeds] == [0, 1]
    assert read_result(tmp_path / "out") == result
    oracle = result.baselines["oracle"].scores
    assert oracle["legal_accuracy"].value == 1.0
    assert oracle["tvd"].value == 0.0
    for name in ("uniform", "unigram", "2-gram", "3-gram", "Baum-Welch"):
        assert 0 < result.baselines[name].scores["legal_accuracy"].value < 1
    names = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert names == {
        ".lock",
        "config.yaml",
        "report.html",
        "result.json",
        "score_by_position.png",
        "training.png",
        *(
            f"seed-{s}/{f}"
            for s in (0, 1)
            for f in ("metrics.jsonl", "checkpoint.safetensors", "predictions.npz", "scores.json", "provenance.json")
        ),
    }


def test_one_configuration_gives_one_result(go: Callable[..., regbench.Result]) -> None:
    assert comparable(result := go("a")) == comparable(go("b"))
    assert comparable(go("c", seeds=(1,))) != comparable(result)


@pytest.mark.parametrize(
    "where", ["training", *(pytest.param(at, marks=pytest.mark.ci) for at in ("scoring", "second seed", "result"))]
)
def test_an_interrupted_run_resumes_to_the_same_result(
    go: Callable[..., regbench.Result],
    whole: regbench.Result,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    class Stop(BaseException):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        if where == "training":
            patch.setattr("regbench.training.trainer.Trainer._evaluate", stop)
        elif where == "scoring":
            patch.setattr(runner.train, "_score", stop)
        elif where == "second seed":
            original = runner.train.seed_record
            patch.setattr(
                runner.train,
                "seed_record",
                lambda plan, seed, *rest: original(plan, seed, *rest) if seed == 0 else stop(),
            )
        else:
            patch.setattr(runner.train, "write_report", stop)
        with pytest.raises(Stop):
            go("broken", seeds=(0, 1))
    assert not (tmp_path / "broken" / "result.json").exists()
    left = tmp_path / "broken" / "seed-0" / ".resume.safetensors.abcdefgh.part"
    left.write_text("half")
    resumed = regbench.resume(tmp_path / "broken")
    assert comparable(resumed) == comparable(whole)
    assert not left.exists()
    assert regbench.resume(tmp_path / "broken") == resumed


@pytest.mark.slow
def test_twenty_kills_at_random_moments(
    go: Callable[..., regbench.Result], tmp_path: Path, tiny_file: Path, plugin: Path
) -> None:
    """SIGKILL, twenty times, each at a random moment of what is left; then the same scores as a run left alone."""
    settings = QUICK | {"training.batch_size": 2, "training.checkpoint_seconds": 0.0, "training.evaluations": 30}
    whole = go("whole", settings=settings)
    flags = [f"--set={k}={v}" for k, v in settings.items()]
    out = tmp_path / "killed"
    fresh = ["run", "--track", str(tiny_file), "--arch", str(plugin), *flags, "--out", str(out)]
    log = out / "seed-0" / "metrics.jsonl"
    chance = random.Random(0)
    kills, steps = 0, []
    while kills < 20:
        arguments = ["run", "--resume", str(out)] if (out / "config.yaml").exists() else fresh
        started = time.time_ns()
        process = subprocess.Popen(
            [sys.executable, "-m", "regbench", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and not (log.exists() and log.stat().st_mtime_ns > started):
            time.sleep(0.002)  # until it trains: it opens its log anew
        time.sleep(chance.uniform(0.0, 0.3))
        if process.poll() is not None:  # it got through; begin anew, so that all twenty are kills
            assert process.returncode == 0
            assert comparable(read_result(out))["seeds"] == comparable(whole)["seeds"]
            shutil.rmtree(out)
            continue
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps.append(log.read_text().count("\n"))
        kills += 1
    assert comparable(regbench.resume(out))["seeds"] == comparable(whole)["seeds"]
    assert len(set(steps)) > 5, f"the kills hit the same few moments: {steps}"


class TestWhatChangedSinceASeedWasFinished:
    """A run of two seeds is killed in the second, after which something it is made from changes."""

    @staticmethod
    def killed(go: Callable[..., regbench.Result], **changes: Any) -> None:
        original = runner.train.seed_record

        def stop(plan: Any, seed: int, *rest: Any) -> Any:
            if seed == 1:
                raise KeyboardInterrupt
            return original(plan, seed, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner.train, "seed_record", stop)
            with pytest.raises(KeyboardInterrupt):
                go(seeds=(0, 1), **changes)

    @pytest.mark.ci
    def test_the_architecture(self, go: Callable[..., regbench.Result], tmp_path: Path, plugin: Path) -> None:
        self.killed(go)
        kept = (tmp_path / "out" / "seed-0" / "scores.json").read_bytes()
        plugin.write_text(AVERAGE.replace("x.cumsum(1)", "2 * x.cumsum(1)"))
        with pytest.raises(UserError, match="seed-0 has begun before the architecture's code changed") as caught:
            regbench.resume(tmp_path / "out")
        assert "\n" not in str(caught.value)
        assert (tmp_path / "out" / "seed-0" / "scores.json").read_bytes() == kept
        plugin.write_text(AVERAGE)  # as it says: the change undone, it goes on
        assert [seed.seed for seed in regbench.resume(tmp_path / "out").seeds] == [0, 1]

    def test_the_options_of_a_run_that_was_finished(self, go: Callable[..., regbench.Result], tmp_path: Path) -> None:
        """Without its result a finished run is scored again, but not under other options."""
        go()
        config = tmp_path / "out" / "config.yaml"
        (tmp_path / "out" / "result.json").unlink()
        config.write_text(config.read_text().replace("d_model: 8", "d_model: 4"))
        with pytest.raises(UserError, match="seed-0 has begun before the options changed"):
            regbench.resume(tmp_path / "out")

    @pytest.mark.ci
    def test_the_text(self, go: Callable[..., regbench.Result], tmp_path: Path) -> None:
        text, track = tmp_path / "text.txt", tmp_path / "cut-v1.yaml"
        text.write_text("one text")
        (tmp_path / "cut.py").write_text(CUT)
        track.write_text(yaml.safe_dump(MARKOV | {"name": "cut-v1", "task": str(tmp_path / "cut.py")}))
        self.killed(go, track=str(track))
        text.write_text("another")
        with pytest.raises(UserError, match="seed-0 has begun before the text that the track is cut from changed"):
            regbench.resume(tmp_path / "out")
        text.write_text("one text")
        assert [seed.seed for seed in regbench.resume(tmp_path / "out").seeds] == [0, 1]

    @pytest.mark.ci
    def test_a_folder_that_does_not_say_what_it_was_made_from(
        self, go: Callable[..., regbench.Result], tmp_path: Path
    ) -> None:
        self.killed(go)
        (tmp_path / "out" / "seed-0" / "provenance.json").unlink()
        with pytest.raises(UserError, match=r"seed-0 has begun, but has no provenance.json, which says from what"):
            regbench.resume(tmp_path / "out")

    @pytest.mark.parametrize("kept", ["finished", "half"])
    def test_a_later_seed_before_an_earlier_one_is_trained(
        self, go: Callable[..., regbench.Result], tmp_path: Path, plugin: Path, kept: str
    ) -> None:
        """`--jobs` may end seed 1 first. It is compared before seed 0 trains, here and by `--jobs`."""
        out, original = tmp_path / "out", trainer.Trainer._save

        def stop(self: trainer.Trainer) -> None:
            original(self)
            if kept == "half":
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.Trainer, "_save", stop)
            try:
                go(seeds=(1,))
            except KeyboardInterrupt:
                assert (out / "seed-1" / "resume.safetensors").exists()
        (out / "result.json").unlink(missing_ok=True)
        config = out / "config.yaml"
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"seeds": [0, 1]}))
        plugin.write_text(AVERAGE.replace("x.cumsum(1)", "2 * x.cumsum(1)"))
        for begin in (regbench.resume, lambda folder: run_seeds(folder, 1, Heard())):
            with pytest.raises(UserError, match="seed-1 has begun before the architecture's code"):
                begin(out)
            assert not (out / "seed-0").exists()

    def test_where_there_is_no_text_checkpoints_are_what_they_were(self, tiny_file: Path, plugin: Path) -> None:
        """The checkpoint of a task without a source is of the six parts that it always was."""
        plan = plan_of(Config(track=str(tiny_file), architecture=str(plugin)), Reporter())
        assert sorted(plan.parts) == ["backend", "device", "options", "source", "track", "training"]


CUT = """
import hashlib
from pathlib import Path

from tests.helpers.markov_text import MarkovText


class Cut(MarkovText):
    portable = False

    def source_digest(self):
        return hashlib.sha256(Path(__file__).with_name("text.txt").read_bytes()).hexdigest()
"""
OWN_SCORE = """
import numpy as np

from regbench.tasks.pfa import PFA


class Mine(PFA):
    main_score = "late_accuracy"
    scores = ("late_accuracy", "tvd", "late_nll")
    group_scores = {"late_accuracy": ("token_accuracy", "late"), "late_nll": ("nll", "late")}

    def groups(self, instances):
        return {"late": np.broadcast_to(np.arange(instances.tokens.shape[1]) >= 8, instances.tokens.shape)}
"""


@pytest.mark.ci
def test_a_task_with_scores_of_its_own_gets_its_result(
    go: Callable[..., regbench.Result],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    drawn: None,
) -> None:
    """Pictures, page and tables know which way they are better, in the run, after --resume and in a report."""
    (tmp_path / "mine.py").write_text(OWN_SCORE)
    track = tmp_path / "mine-v1.yaml"
    content = {"name": "mine-v1", "task": str(tmp_path / "mine.py"), "main_score": "late_accuracy"}
    track.write_text(yaml.safe_dump(TINY | content))
    result = go(track=str(track), seeds=(0, 1))
    assert set(result.seeds[0].scores) == {"late_accuracy", "tvd", "late_nll"}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "late accuracy\u00a0↑" in page
    assert "late nll\u00a0↓" in page
    for command in (
        ["run", "--resume", str(tmp_path / "out")],
        ["report", str(tmp_path / "out"), "--track", str(track)],
    ):
        assert cli.main(command) == 0
    best = max(result.baselines, key=lambda name: result.baselines[name].scores["late_accuracy"].value)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.count("±") == 3]
    assert best in rows[0]


@pytest.mark.ci
def test_a_run_with_other_parameters_of_the_task(
    go: Callable[..., regbench.Result], tiny: Track, tmp_path: Path
) -> None:
    """Also of a loaded track. What reads the run finds them."""
    result = go(track=tiny, settings=QUICK | {"task.max_states": 3})
    assert result.track.name == "tiny-max-states-3-v1"
    loaded = regbench.load(tmp_path / "out")
    assert regbench.evaluate(loaded.track, loaded).score("nll").value == pytest.approx(result.score("nll").value)
