"""Challenges: honest weights are verified; weights trained on the test split, mixtures and look-ups are refused."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import regbench
from regbench import cli
from regbench.leaderboard import isolated
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.entry import canonical
from regbench.leaderboard.job import Job
from regbench.leaderboard.store import Stored
from regbench.leaderboard.submit import submit
from regbench.leaderboard.tiers import (
    LEVEL,
    Evidence,
    Reproduced,
    Submitted,
    add_evidence,
    differing,
    fresh_seed,
    fresh_split,
    read_evidence,
    today,
)
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.significance import Change
from regbench.tracks import SPLITS, Track
from regbench.utils.errors import UserError
from tests.leaderboard.attacks import seal, store
from tests.leaderboard.conftest import Made

needs_namespaces = pytest.mark.skipif(not isolated.available(), reason="no user namespaces here")


def board_of(made: Made, folder: Path) -> Path:
    """A copy of the board; the entry's file in it."""
    shutil.copytree(made.board, folder / "board")
    return folder / "board" / made.path.relative_to(made.board)


def test_honest_weights_are_verified_and_anyone_can_repeat_it(lstm: Made, tmp_path: Path) -> None:
    path = board_of(lstm, tmp_path)
    found = challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, instances=200)
    assert found.findings.faults == []
    assert sum(change.level for change in found.changes.values()) == pytest.approx(LEVEL), "shared by the scores"
    evidence = read_evidence(Stored(path))
    assert evidence.tier == "verified"
    assert evidence.challenge is not None
    assert evidence.about == f"verified {evidence.challenge.date} by a reader"
    assert verify_entry(Stored(path), track=lstm.track).faults == []
    again = challenge(Stored(path), lstm.run, by="another", track=lstm.track, instances=200, number=found.number)
    assert again.fresh == found.fresh
    assert again.expected == found.expected == evidence.challenge.expected


def test_where_nothing_can_be_written_there_is_a_line(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    path = board_of(lstm, tmp_path)
    monkeypatch.setattr(tempfile, "mkstemp", read_only)
    with pytest.raises(UserError, match=r"cannot write .*evidence\.json: the file system is read-only"):
        challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, instances=100)


def test_fresh_instances_are_in_no_split(tiny: Track, lstm: Made) -> None:
    fresh = fresh_split(tiny, fresh_seed(lstm.entry, 7), 150)
    assert len(fresh) == 150
    seen = {identity for split in SPLITS for identity in tiny.task.identities(tiny.instances(split))}
    assert not seen & set(tiny.task.identities(fresh))
    assert fresh_seed(lstm.entry, 7) != fresh_seed(lstm.entry, 8)


def test_a_difference_without_noise_is_told() -> None:
    """Every answer was right, and every fresh one is wrong: neither mean has an error to divide by."""
    assert differing({"token_accuracy": Change(-1.0, 0.0, 0.0, 9, 9, 0.001)}) == [
        "token_accuracy is worse on fresh instances by 1, and no noise"
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda e: e.update(entry="0" * 64), "of another entry"),
        (lambda e: e["challenge"].update(number=1), "not of the instances"),
        (lambda e: e["challenge"]["scores"]["tvd"].update(value=0.9), "tvd is worse on fresh instances"),
        (
            lambda e: [e["challenge"][k]["tvd"].update(value=0.9) for k in ("scores", "expected")],
            "expected of the tvd does not follow from the claim",
        ),
        (lambda e: e["challenge"]["expected"]["tvd"].update(stderr=0.5), "expected of the tvd does not follow"),
        (lambda e: e["challenge"]["scores"].pop("tvd"), "not of the instances or the scores"),
        (lambda e: e["challenge"]["expected"].pop("tvd"), "not of the instances or the scores"),
        (lambda e: e["challenge"].update(by="x\x1b[2J"), "not printable"),
        (lambda e: e["challenge"].update(by=" "), "challenge.by"),
        (lambda e: e["challenge"].update(date="2026-02-31"), "challenge.date: day is out of range for month"),
        (
            lambda e: e["challenge"].update(instances=2**62),
            "challenge.instances: input should be less than or equal to 20000",
        ),
        (lambda e: e.update(tier="reproduced"), "unknown key 'tier'"),
    ],
)
def test_evidence_that_does_not_hold(
    lstm: Made, tmp_path: Path, change: Callable[[dict[str, Any]], object], fault: str
) -> None:
    path = board_of(lstm, tmp_path)
    challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, instances=100, number=3)
    beside = path.with_name(Stored(path).evidence_name)
    content = json.loads(beside.read_text())
    change(content)
    beside.write_text(json.dumps(content))
    (found,) = verify_entry(Stored(path), track=lstm.track).faults
    assert found.check == "tier"
    assert fault in found.text


def test_a_claimed_entry_does_not_replace_a_verified_one(lstm: Made, tmp_path: Path) -> None:
    path = board_of(lstm, tmp_path)
    with pytest.raises(UserError, match="--replace puts this run in its place"):
        submit(lstm.run, tmp_path / "board", track=lstm.track)
    challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, instances=100)
    with pytest.raises(UserError, match="is verified, and this run is only claimed"):
        submit(lstm.run, tmp_path / "board", track=lstm.track, replace=True)


def test_weights_that_predict_something_else_are_refused(lstm: Made, tmp_path: Path) -> None:
    path, run = board_of(lstm, tmp_path), lstm.copy(tmp_path / "run")
    shutil.copy(run / "seed-1" / "checkpoint.safetensors", run / "seed-0" / "checkpoint.safetensors")
    found = challenge(Stored(path), run, by="a reader", track=lstm.track, instances=100)
    assert {fault.check for fault in found.findings.faults} == {"checkpoint"}
    assert read_evidence(Stored(path)).tier == "claimed"


def test_a_board_that_cannot_be_written_is_refused_before_anything_is_predicted(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lines = board_of(lstm, tmp_path), list[str]()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only", str(tmp_path))

    monkeypatch.setattr("regbench.utils.files.tempfile.TemporaryFile", full)
    with pytest.raises(UserError, match="the file system is read-only"):
        challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, announce=lines.append)
    assert lines == []


def test_an_entry_that_is_replaced_meanwhile_gets_no_evidence(lstm: Made, tmp_path: Path) -> None:
    path = board_of(lstm, tmp_path)

    def replaces(line: str) -> None:
        if line.startswith("seed 2"):
            content = lstm.entry.content()
            content["configuration"]["trials"] = content["result"]["selection"]["trials"] = 9
            path.write_text(canonical(seal(content)))

    with pytest.raises(UserError, match="has been replaced in the meantime"):
        challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, instances=100, announce=replaces)
    assert not path.with_name(Stored(path).evidence_name).exists()


def test_two_kinds_of_evidence_at_once_are_both_kept(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(board_of(lstm, tmp_path))

    def slowly(of: Stored) -> Evidence:
        found = read_evidence(of)
        time.sleep(0.2)
        return found

    monkeypatch.setattr("regbench.leaderboard.tiers.read_evidence", slowly)
    again = Reproduced(date=today(), by="b", machine="c", seeds=[0, 1, 2], scores=[{}, {}, {}], identical=[])
    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(add_evidence, stored, reproduced=again),
            pool.submit(add_evidence, stored, submitted=Submitted(date=today(), by="a")),
        ]
    assert [one.exception() for one in both] == [None, None]
    evidence = read_evidence(stored)
    assert (evidence.reproduced, evidence.submitted) == (again, Submitted(date=today(), by="a"))


def test_weights_under_another_name_are_refused(lstm: Made, tmp_path: Path) -> None:
    path = board_of(lstm, tmp_path)
    content = lstm.entry.content()
    content["name"] = "lstm-mine"
    content["result"]["training"]["weight_decay"] = content["configuration"]["settings"]["training.weight_decay"] = 0.07
    store(seal(content), path.parent.parent)
    found = challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, instances=100)
    assert "one is a copy of the other" in str(found.findings.faults[0])


@pytest.mark.ci
@needs_namespaces
def test_a_strangers_code_runs_isolated(stranger: Made, tmp_path: Path) -> None:
    path = board_of(stranger, tmp_path)
    with pytest.raises(UserError, match="--run-their-code runs my_average.py isolated"):
        challenge(Stored(path), stranger.run, by="a reader", track=stranger.track, instances=100)
    found = challenge(
        Stored(path), stranger.run, by="a reader", track=stranger.track, instances=100, run_their_code=True
    )
    assert found.findings.faults == []
    assert read_evidence(Stored(path)).tier == "verified"


REACHES = """
import os, pathlib, socket
import regbench


class Mine(regbench.Mixer):
    def forward(self, x):
        return x


def seen():
    found = [str(p) for p in ({secret!r}, {home!r}, {repository!r}, {cache!r}) if os.path.exists(p) and p != "/root"]
    for name in ("regbench.tracks", "regbench.tasks.pfa", "regbench.evaluation", "baselines.oracle"):
        try:
            __import__(name)
            found.append(name)
        except ImportError:
            pass
    try:
        socket.create_connection(("1.1.1.1", 53), 1)
        found.append("network")
    except OSError:
        pass
    for path in ("/usr/written", "/proc/sys/kernel/core_pattern"):
        try:
            open(path, "a")
            found.append(path)
        except OSError:
            pass
    if os.system("mount -o remount,bind,rw /usr 2>/job/said") == 0:
        found.append("mount")
    try:
        os.mkdir("/tmp/root")
        os.chroot("/tmp/root")  # what lies above it is then outside
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        found += [path for path in ({secret!r}, "/home") if os.path.exists(path)]
    except OSError:
        pass
    return found


raise SystemExit("reached " + repr(seen()))
"""


@pytest.mark.ci
@needs_namespaces
def test_it_reaches_nothing(stranger: Made, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    text = REACHES.format(
        secret=str(secret),
        home=str(Path.home() / ".bashrc"),
        repository=str(Path(regbench.__file__).parents[1] / "leaderboard"),
        cache=os.environ["REGBENCH_CACHE"],
    )
    job = Job("", {}, stranger.track.task, text.encode())
    with pytest.raises(UserError, match=r"reached \[\]"):
        next(isolated.predict_isolated(job, [b""], [stranger.track.instances("test")], print))


KEYRINGS = """
import ctypes, subprocess, sys

keyctl = ctypes.CDLL(None).syscall
print(keyctl({number}, 1, None))  # a session of its own, as a login has it


def session(limit):
    code = "import ctypes; print(ctypes.CDLL(None).syscall({number}, 0, -3, 0))"
    return subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True).stdout


from regbench.leaderboard.isolated import _limit

print(session(None) == session(None), session(_limit) == session(_limit))
"""


@pytest.mark.ci
@needs_namespaces
def test_no_message_is_left_in_the_keyring_of_the_login() -> None:
    code = KEYRINGS.format(number=isolated._KEYCTL[platform.machine()])
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    if said[0] == "-1":
        pytest.skip("this system has no keyrings, or forbids them")
    assert said[1:] == ["True", "False"]


@pytest.mark.ci
@needs_namespaces
def test_it_sees_packages_that_are_installed_for_the_user_alone(
    stranger: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch can be."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "installed_for_me.py").write_text("x = 3")
    monkeypatch.syspath_prepend(packages)
    job = Job("", {}, stranger.track.task, b"import installed_for_me\nraise SystemExit(f'saw {installed_for_me.x}')")
    with pytest.raises(UserError, match="saw 3"):
        next(isolated.predict_isolated(job, [b""], [stranger.track.instances("test")], print))


@needs_namespaces
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "seconds", "fault"),
    [
        ("while True: pass", 5, "took more than 5 s"),
        ("x = bytearray(12 << 30)", 60, "MemoryError"),
        ("import os; os.kill(1, 9); os._exit(0)", 60, "left no predictions: out-0-0.npz: no such file"),
        ("import os; os.symlink('/etc/passwd', '/job/out-0-0.npz'); os._exit(0)", 60, "links are not followed"),
        ("import os; os.symlink('/etc/passwd', '/job/log'); print('its own'); os._exit(1)", 60, "failed: no output"),
    ],
)
def test_it_keeps_within_its_limits(
    stranger: Made, code: str, seconds: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbench.leaderboard.job.SECONDS", seconds)
    job = Job("", {}, stranger.track.task, code.encode())
    with pytest.raises(UserError, match=fault):
        next(isolated.predict_isolated(job, [b""], [stranger.track.instances("test")], print))


def test_without_namespaces_nothing_is_run(stranger: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "available", lambda: False)
    job = Job("", {}, stranger.track.task, b"")
    with pytest.raises(UserError, match="cannot isolate a process"):
        next(isolated.predict_isolated(job, [b""], [stranger.track.instances("test")], print))


def test_on_the_command_line(lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = board_of(lstm, tmp_path)
    common = [str(path), "--run", str(lstm.run), "--track", str(tiny_file), "--by", "me"]
    assert cli.main(["challenge", *common, "--instances", "100", "--number", "5"]) == 0
    said = capsys.readouterr().out
    assert "legal accuracy: " in said
    assert f"{path}: verified, number 5" in said
    assert cli.main(["challenge", *common, "--instances", "3"]) == 2
    assert "a challenge has 100 to 20,000 instances, not 3" in capsys.readouterr().err
