"""Challenges: honest weights are verified by cut prompts, and a stranger's code reaches nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regbench
from regbench import cli
from regbench.evaluation.cuts import Cuts, prompts
from regbench.leaderboard import against_run
from regbench.leaderboard.against_run import Answer, Asked, can_isolate, predict_isolated
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.claim import Reference, RunFolder
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import (
    LEVEL,
    Submitted,
    add_evidence,
    differing,
    fresh_seed,
    fresh_split,
    read_evidence,
    same_person,
    today,
)
from regbench.leaderboard.verify import submit, verify_entry
from regbench.metrics.scores import score
from regbench.metrics.significance import Change
from regbench.tracks import SPLITS, Track, load_track
from regbench.training.checkpoint import load_tensors, save_tensors
from regbench.utils.errors import UserError
from tests.leaderboard.conftest import Made, board_of, commit, isolates


def test_cuts_stand_for_all_positions_of_each_score() -> None:
    """Whatever is cut, the mean over many cuts is the score. A group of few positions is met often enough."""
    for name in ("arithmetic-small-v1", "linear-regression-small-v1", "state-tracking-small-v1"):
        track = load_track(name)
        task, test = track.task, track.instances("test")
        rng = np.random.default_rng(0)
        rows = rng.random((*test.scored.shape, task.io.width))
        rows = rows / rows.sum(-1, keepdims=True) if test.tokens.ndim == 2 else rows
        whole = score(task, test, [rows])
        drawn = [Cuts.draw(task, test, seed) for seed in range(30)]
        for metric in task.scores:
            sums = sum(cut.sums(task, test, [rows])[metric].sum() for cut in drawn)
            counts = sum(int(cut.counts[metric].sum()) for cut in drawn)
            assert sums / counts == pytest.approx(whole[metric].value, abs=5 * whole[metric].stderr), (name, metric)
            assert min(int((cut.counts[metric] > 0).sum()) for cut in drawn) > len(test) / 12
        cut = drawn[0]
        alone = cut.batches(rows[np.arange(len(test)), cut.places], test)
        found, wanted = cut.sums(task, test, alone), cut.sums(task, test, [rows])
        assert all(np.allclose(found[metric], wanted[metric]) for metric in task.scores)


def test_a_prompt_holds_nothing_that_follows(tiny: Track) -> None:
    test = tiny.instances("test")
    cut = Cuts.draw(tiny.task, test, 1)
    order = np.random.default_rng(0).permutation(len(test))
    asked = prompts(test, order, cut.places[order], tiny.task.io.separator)
    for row, length, i in zip(asked.tokens, asked.lengths, order, strict=True):
        place = cut.places[i]
        assert length == place + 1
        assert (row[:place] == test.tokens[i, :place]).all()
        assert (row[place:] == tiny.task.io.separator).all()


def test_honest_weights_are_verified_and_anyone_can_repeat_it(lstm: Made, tmp_path: Path) -> None:
    path = board_of(lstm, tmp_path)
    found = challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=1000)
    assert found.findings.faults == []
    assert sum(change.level for change in found.changes.values()) == pytest.approx(LEVEL), "shared by the scores"
    evidence = read_evidence(Stored(path))
    assert evidence.tier == "verified"
    assert evidence.challenge is not None
    assert evidence.about == f"verified {evidence.challenge.date} by a reader"
    assert verify_entry(Stored(path), track=lstm.track).faults == []
    again = challenge(Stored(path), lstm.run, by="another", track=lstm.track, cuts=1000)
    assert (again.number, again.fresh) == (found.number, found.fresh)
    assert again.expected == found.expected == evidence.challenge.expected


def test_the_instances_follow_from_the_commit_and_the_weights(lstm: Made, tmp_path: Path) -> None:
    shutil.copytree(lstm.board, tmp_path / "board")
    path = tmp_path / "board" / lstm.path.relative_to(lstm.board)
    with pytest.raises(UserError, match="is not committed"):
        challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=100)
    commit(tmp_path / "board")
    numbers = [challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=100).number]
    run = lstm.copy(tmp_path / "run")
    weights, notes = load_tensors(run / "seed-1" / "checkpoint.safetensors")
    save_tensors(run / "seed-1" / "checkpoint.safetensors", weights, notes | {"other": "x"})
    numbers.append(challenge(Stored(path), run, by="a reader", track=lstm.track, cuts=100).number)
    path.unlink()
    commit(tmp_path / "board")
    path.write_bytes(lstm.path.read_bytes())
    commit(tmp_path / "board")
    numbers.append(challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=100).number)
    assert len(set(numbers)) == 3


def test_who_submitted_does_not_challenge(lstm: Made, tmp_path: Path) -> None:
    stored = Stored(board_of(lstm, tmp_path))
    add_evidence(stored, submitted=Submitted(date=today(), by="Ada Lovelace"))
    with pytest.raises(UserError, match="somebody else must judge it"):
        challenge(stored, lstm.run, by="ada  LOVELACE.", track=lstm.track, cuts=100)
    for name in ("Ada-Lovelace", "ada_lovelace", "\uff21da Lovelace", " Ada\tLovelace "):
        assert same_person("Ada Lovelace", name)
    assert not same_person("Ada Lovelace", "Ada Byron")


def test_weights_that_are_no_second_training_are_refused(lstm: Made, tmp_path: Path) -> None:
    """Seeds 1 and 2 are seed 0 with a little noise, and all else was made to fit them: only how near they are tells."""
    run = RunFolder(lstm.run)
    reference, seeds = Reference(lstm.track), run.result.seeds
    answers = list(against_run.predict_again(run, None, reference, [Asked(reference.test)], print))
    assert [list(against_run.weight_faults(run, *one, reference))[1:] for one in zip(seeds, answers, strict=True)] == [
        []
    ] * 3
    copied = lstm.copy(tmp_path / "run")
    weights, notes = load_tensors(copied / "seed-0" / "checkpoint.safetensors")
    noisy = {name: one * (1 + 0.001 * np.random.default_rng(0).normal()) for name, one in weights.items()}
    save_tensors(copied / "seed-1" / "checkpoint.safetensors", noisy, notes)
    lines = list(against_run.weight_faults(RunFolder(copied), seeds[1], answers[1], reference))
    assert "the weights of the seeds 0 and 1 are" in lines[-1]
    assert "they are not two trainings" in lines[-1]


def test_weights_of_another_seeds_training_are_refused(lstm: Made) -> None:
    """The training of seed 0 is given out as that of seed 1: it began with other weights."""
    run = RunFolder(lstm.run)
    reference, seeds = Reference(lstm.track), run.result.seeds
    (begun, moved), *_ = (one.first for one in against_run.predict_again(run, None, reference, [], print))
    assert moved.argmin() == begun.argmin() == 0
    rows = [run.predictions(1, reference).packed]
    lines = list(against_run.weight_faults(run, seeds[1], Answer(rows, np.stack([begun, moved])), reference))
    assert "that is where their training began" in lines[1]
    assert "seed 0" in lines[1]


def test_where_nothing_can_be_written_there_is_a_line(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    path = board_of(lstm, tmp_path)
    monkeypatch.setattr(tempfile, "mkstemp", read_only)
    with pytest.raises(UserError, match=r"cannot write .*evidence\.json: the file system is read-only"):
        challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=100)


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
        (lambda e: e["challenge"]["scores"]["tvd"].update(value=0.9), "tvd is worse on fresh instances"),
        (
            lambda e: [e["challenge"][k]["tvd"].update(value=0.9) for k in ("scores", "expected")],
            "expected of the tvd does not follow from the claim",
        ),
        (lambda e: e["challenge"]["expected"]["tvd"].update(stderr=0.5), "expected of the tvd does not follow"),
        (
            lambda e: e["challenge"]["scores"]["nll"].update(stderr=10.0),
            "on fresh instances is 10, more than there can be",
        ),
        (lambda e: e["challenge"].update(date="2026-11-20"), "challenge.date"),
        (lambda e: e["challenge"].update(date="2999-01-01"), "challenge.date"),
        (lambda e: e["challenge"].update(date="2026-02-31"), "challenge.date: day is out of range for month"),
        (lambda e: e.update(schema_version=True), "schema_version"),
        (lambda e: e["challenge"]["scores"].pop("tvd"), "not of this entry's scores"),
        (lambda e: e["challenge"]["expected"].pop("tvd"), "not of this entry's scores"),
        (lambda e: e["challenge"].update(by="x\x1b[2J"), "not printable"),
        (lambda e: e["challenge"].update(by=" "), "challenge.by"),
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
    challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=100)
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
    challenge(Stored(path), lstm.run, by="a reader", track=lstm.track, cuts=100)
    with pytest.raises(UserError, match="is verified, and this run is only claimed"):
        submit(lstm.run, tmp_path / "board", track=lstm.track, replace=True)


def test_weights_that_predict_something_else_are_refused(lstm: Made, tmp_path: Path) -> None:
    path, run = board_of(lstm, tmp_path), lstm.copy(tmp_path / "run")
    shutil.copy(run / "seed-1" / "checkpoint.safetensors", run / "seed-0" / "checkpoint.safetensors")
    found = challenge(Stored(path), run, by="a reader", track=lstm.track, cuts=100)
    assert {fault.check for fault in found.findings.faults} == {"checkpoint"}
    assert read_evidence(Stored(path)).tier == "claimed"


@pytest.mark.ci
@isolates
def test_a_strangers_code_runs_isolated(stranger: Made, tmp_path: Path) -> None:
    path = board_of(stranger, tmp_path)
    with pytest.raises(UserError, match=r"--run-their-code runs my_average.py under bubblewrap"):
        challenge(Stored(path), stranger.run, by="a reader", track=stranger.track, cuts=100)
    asked: dict[str, Any] = {"by": "a reader", "track": stranger.track, "cuts": 200, "run_their_code": True}
    found = challenge(Stored(path), stranger.run, **asked)
    assert found.findings.faults == []
    assert read_evidence(Stored(path)).tier == "verified"


REACHES = """
import os, pathlib, socket
import regbench


class Mine(regbench.Mixer):
    def forward(self, x):
        return x


def seen():
    found = [str(p) for p in ({secret!r}, {home!r}, {repository!r}, {cache!r}, "/etc/passwd") if os.path.exists(p)]
    try:
        socket.create_connection(("1.1.1.1", 53), 1)
        found.append("network")
    except OSError:
        pass
    for path in ("/usr/written", "/job/written", "/written", "/dev/shm/written", {below!r}, "/proc/sys/kernel/core_pattern"):
        try:
            open(path, "a")
            found.append(path)
        except OSError:
            pass
    if os.system("mount -o remount,bind,rw /usr 2>/dev/null") == 0:
        found.append("mount")
    try:
        with open("/tmp/large", "wb") as file:
            file.write(bytes(1 << 29))
        found.append("half a gigabyte")
    except OSError:
        pass
    try:
        for depth in range(3000):
            os.mkdir("x")
            os.chdir("x")
    except OSError:
        pass
    return found


raise SystemExit("reached " + repr(seen()))
"""


def asked_of(made: Made, code: str) -> Any:
    """What a stranger's file answers about the test split."""
    reference = Reference(made.track)
    return next(predict_isolated(RunFolder(made.run), code.encode(), reference, [Asked(reference.test)]))


@pytest.mark.ci
@isolates
def test_it_reaches_nothing(stranger: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another file system is mounted below a folder that is shown."""
    secret, shown = tmp_path / "secret", tmp_path / "site-packages"
    secret.write_text("x")
    (shown / "below").mkdir(parents=True)
    (shown / "installed_for_me.py").write_text("x = 3")  # as PyTorch can be
    monkeypatch.syspath_prepend(shown)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(shown / "below")], capture_output=True, check=False)
    text = REACHES.format(
        secret=str(secret),
        home=str(Path.home() / ".bashrc"),
        repository=str(Path(regbench.__file__).parents[1] / "leaderboard"),
        cache=os.environ["REGBENCH_CACHE"],
        below=str(shown / "below" / "written"),
    )
    try:
        with pytest.raises(UserError, match=r"reached \[\]"):
            asked_of(stranger, f"import installed_for_me\n{text}")
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(shown / "below")], check=True)


@isolates
@pytest.mark.ci
@pytest.mark.parametrize(
    ("code", "seconds", "fault"),
    [
        ("while True: pass", 5, "it said no more, and had an hour"),
        ("x = bytearray(12 << 30)", 60, "MemoryError"),
        ("import mmap; x = [mmap.mmap(-1, 1 << 30) for _ in range(9)]", 60, "Cannot allocate memory"),
        ("import os; os.kill(1, 9); os._exit(0)", 60, "it said no more"),
        ("import os; os.write(1, b'x' * (1 << 26)); os._exit(0)", 60, "failed: "),
    ],
)
def test_it_keeps_within_its_limits(
    stranger: Made, code: str, seconds: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against_run, "SECONDS", seconds)
    with pytest.raises(UserError, match=fault):
        asked_of(stranger, code)


def test_without_bubblewrap_nothing_is_run(stranger: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not can_isolate()
    with pytest.raises(UserError, match="a stranger's code runs only under bubblewrap: install it"):
        asked_of(stranger, "")


def test_on_the_command_line(lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = board_of(lstm, tmp_path)
    common = [str(path), "--run", str(lstm.run), "--track", str(tiny_file), "--by", "me"]
    assert cli.main(["challenge", *common, "--cuts", "100"]) == 0
    said = capsys.readouterr().out
    assert "legal accuracy: " in said
    assert f"{path}: verified, number " in said
    assert cli.main(["challenge", *common, "--cuts", "3"]) == 2
    assert "a challenge has 100 to 20,000 cuts, not 3" in capsys.readouterr().err
