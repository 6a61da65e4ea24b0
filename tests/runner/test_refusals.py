"""What a run refuses, before it begins and when it goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import regbench
from regbench import runner
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.typed import AVERAGE
from tests.runner.conftest import QUICK


class TestRefusals:
    def test_a_folder_with_a_run_in_it(self, go: Callable[..., regbench.Result]) -> None:
        go()
        with pytest.raises(UserError, match="holds a run already; choose another --out, or go on with --resume"):
            go()

    def test_two_runs_that_begin_at_once(
        self, go: Callable[..., regbench.Result], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second has checked its folder before the first wrote into it."""
        original, begun = runner.train.plan_of, []

        def plan(*arguments: Any) -> Any:
            if not begun:
                begun.append(True)
                go()
            return original(*arguments)

        monkeypatch.setattr(runner.train, "plan_of", plan)
        with pytest.raises(UserError, match="out holds a run already"):
            go(settings=QUICK | {"d_model": 4})

    @pytest.mark.ci
    def test_a_folder_in_use(self, go: Callable[..., regbench.Result], tmp_path: Path) -> None:
        code = (
            "import sys, time, pathlib; from regbench.utils.files import exclusive\n"
            "with exclusive(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(UserError, match="out is in use by another run"):
                go()
        finally:
            holder.kill()
            holder.wait()
        go()  # the lock went with its holder

    @pytest.mark.parametrize(
        ("forward", "message"),
        [
            ("x.flip(1).cumsum(1)", "'peeks' cannot be scored: it sees the future"),
            ("x.cumsum(1) + x.mean(0)", "'peeks' cannot be scored: a sequence's prediction depends on the others"),
        ],
    )
    def test_a_refused_architecture_leaves_no_folder(
        self, go: Callable[..., regbench.Result], tmp_path: Path, forward: str, message: str
    ) -> None:
        peeks = tmp_path / "peeks.py"
        peeks.write_text(AVERAGE.replace("x.cumsum(1)", forward))
        with pytest.raises(UserError, match=message):
            go(arch=str(peeks))
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"settings": {"training.learning_rat": 1}}, "unknown key 'learning_rat'; did you mean 'learning_rate'"),
            (
                {"settings": {"training.batch_size": "many"}},
                "training option: batch_size: input should be a valid integer",
            ),
            ({"settings": {"training.train_tokens": 7000}}, r"\(7,000\) is above the track's budget of 6,000"),
            ({"settings": {"training.train_tokens": 10}}, "10 training tokens are less than one batch"),
            ({"device": "gpu"}, "unknown device 'gpu'"),
            ({"seeds": ()}, "seeds"),
            ({"seeds": (1, 1)}, "a seed is given twice: 1 1"),
            ({"trials": 0}, "trials: input should be greater than or equal to 1"),
            ({"settings": ["d_model=8"]}, "settings are a mapping such as {'d_model': 96}, not list"),
            (
                {"settings": {"training": {"batch_size": 8}}},
                "'training'; training options have keys such as 'training.le",
            ),
            ({"arch": torch.nn.Linear(2, 2)}, "a class, not Linear; a trained model is scored by regbench.evaluate"),
        ],
    )
    def test_wrong_input(
        self, go: Callable[..., regbench.Result], changes: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(UserError, match=message) as caught:
            go(**changes)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("split", ["validation", "test"])
    def test_a_track_that_leaves_nothing_to_score(
        self, go: Callable[..., regbench.Result], tmp_path: Path, split: str
    ) -> None:
        """Of a list of strings the first symbol is not scored, and here the two instances of a split have no other."""
        shortest = {"min_strings": 1, "max_strings": 2, "max_length": 1}
        splits = {"train": 60, "validation": 24, "test": 24, "seed": 12} | {split: 2}
        changed = TINY | {"name": "short-v1", "parameters": TINY["parameters"] | shortest, "splits": splits}
        (tmp_path / "short-v1.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
        with pytest.raises(UserError, match=f"^short-v1 cannot be scored: nothing is scored in the {split} split$"):
            go(track=str(tmp_path / "short-v1.yaml"), settings=QUICK | {"training.train_tokens": 100})
        assert not (tmp_path / "out").exists()

    def test_what_config_yaml_could_not_say_again(
        self, go: Callable[..., regbench.Result], tmp_path: Path, tiny_file: Path
    ) -> None:
        """Else it is trained to the end, and then its own folder can neither be finished nor read."""
        folder = tmp_path / "my\u3000tracks"
        folder.mkdir()
        track = folder / tiny_file.name
        track.write_text(tiny_file.read_text())
        for changes, message in (
            (
                {"track": str(track)},
                r"the configuration: a string with characters that are not printable: .*my\\u3000tracks",
            ),
            ({"settings": QUICK | {"training.batch_size": 10**400}}, "the configuration: a number beyond 64 bits"),
            (
                {"settings": QUICK | {"d_model": object()}},
                "the settings cannot be written: Unable to serialize unknown type",
            ),
            ({"settings": QUICK | {"d_model": b"\xff"}}, "the settings cannot be written: "),
            ({"seeds": tuple(range(20_000))}, "the configuration: larger than it can need to be"),
        ):
            with pytest.raises(UserError, match=message):
                go(**changes)
            assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("device", "there", "seen"),
        [
            ("cuda", 0, "no GPU; use --device cpu"),
            ("cuda:7", 0, "no GPU; use --device cpu"),
            ("cuda:7", 1, "1 GPU, from cuda:0 on"),
            ("cuda:2", 2, "2 GPUs, from cuda:0 on"),
        ],
    )
    def test_no_such_gpu(
        self,
        go: Callable[..., regbench.Result],
        monkeypatch: pytest.MonkeyPatch,
        device: str,
        there: int,
        seen: str,
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: there > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
        with pytest.raises(UserError, match=f"^device '{device}' is not available: this PyTorch sees {seen}$"):
            go(device=device)

    def test_weights_that_somebody_removes_while_they_are_trained(
        self, go: Callable[..., regbench.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run trains that seed again when it goes on."""
        load = runner.train.load_tensors

        def removed(path: Path) -> object:
            (tmp_path / "out/seed-0/checkpoint.safetensors").unlink()
            return load(path)

        with monkeypatch.context() as patch:
            patch.setattr(runner.train, "load_tensors", removed)
            with pytest.raises(UserError, match="^cannot read the checkpoint .*seed-0/checkpoint.safetensors: No such"):
                go()
        assert regbench.resume(tmp_path / "out").seeds[0].steps > 0

    @pytest.mark.ci
    def test_a_full_disk(
        self, go: Callable[..., regbench.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The checkpoint that does not fit is said in one line; what was written before is whole, and the run resumes."""
        whole = go("whole")
        real, writes = os.fsync, []

        def full(handle: int) -> None:
            writes.append(handle)
            if len(writes) == 4:
                raise OSError(errno.ENOSPC, "No space left on device", "resume.safetensors")
            real(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="cannot write resume.safetensors: the disk is full"):
                go("full", settings=QUICK | {"training.checkpoint_seconds": 0.0})
        assert not [p for p in (tmp_path / "full").rglob(".*") if p.name != ".lock"]
        resumed = regbench.resume(tmp_path / "full")
        assert resumed.seeds[0].predictions_sha256 == whole.seeds[0].predictions_sha256

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "holds no run: there is no config.yaml"),
            ("track: [", "config.yaml:1: broken YAML"),
            ("3", "config.yaml: a configuration is a mapping of fields, not int"),
            ("track: x\narchitecture: y\nsedes: [1]\n", "unknown key 'sedes'; did you mean 'seeds'"),
        ],
    )
    def test_what_cannot_be_resumed(self, tmp_path: Path, content: str | None, message: str) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        if content is not None:
            (folder / "config.yaml").write_text(content)
        with pytest.raises(UserError, match=message):
            regbench.resume(folder)

    @pytest.mark.parametrize("missing", ["architecture", "track"])
    def test_a_file_that_is_seen_from_another_folder(self, tmp_path: Path, missing: str) -> None:
        names = {"architecture": "lstm", "track": "pfa-small-v1"} | {
            missing: {"architecture": "mine.py", "track": "mine.yaml"}[missing]
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(names))
        line = (
            r"config.yaml names mine.*, which is not here: a relative path is seen from the folder where the run began"
        )
        with pytest.raises(UserError, match=line):
            regbench.resume(tmp_path)

    @pytest.mark.ci
    def test_a_plugin_edited_since_the_kill(
        self, go: Callable[..., regbench.Result], tmp_path: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(runner.train, "_score", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                go()
        plugin.write_text(AVERAGE + "# edited\n")
        with pytest.raises(UserError, match="seed-0 has begun before the architecture's code changed"):
            regbench.resume(tmp_path / "out")
