"""Verifying on the command line and by hand: alone, with predictions, with the run, a whole board."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regbench import cli
from regbench.evaluation.predictions import Predictions
from regbench.leaderboard import origin
from regbench.leaderboard.against_run import repredict
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.origin import digest_at, is_built_in, unreadable
from regbench.leaderboard.store import Stored, stored_in
from regbench.leaderboard.verify import submit, verify_entry, verify_run
from regbench.results import Result
from regbench.tracks import Track
from regbench.utils import registry
from regbench.utils.files import read_arrays
from tests.helpers.typed import AVERAGE, refused
from tests.leaderboard.attacks import claim, seal, store
from tests.leaderboard.conftest import Made, commit, git


def test_an_honest_entry_alone_with_predictions_and_with_its_run(lstm: Made, stranger: Made) -> None:
    for made in (lstm, stranger):
        assert verify_entry(made.stored, track=made.track).faults == []
        assert verify_entry(made.stored, track=made.track, run=made.run).faults == []


def test_a_track_that_is_not_here_cannot_be_verified(lstm: Made) -> None:
    findings = verify_entry(lstm.stored)
    assert str(findings.faults[0]).startswith("track: 'tiny-v1' is no built-in track; if it is yours, give")


def test_nothing_is_imported_or_executed(stranger: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's architecture is never loaded, nor is anything unpickled."""
    import pickle

    import numpy as np

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("executed")

    monkeypatch.setattr(registry, "_import_file", refuse)
    monkeypatch.setattr(np, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    assert verify_entry(stranger.stored, track=stranger.track, run=stranger.run).faults == []


def test_a_changed_source_is_compared_with_that_of_the_commit(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    (repository / "architectures").mkdir(parents=True)
    source = repository / "architectures" / "lstm.py"
    text = Path(registry.source_files(registry.load(registry.ARCHITECTURE, "lstm"))[0]).read_text()
    source.write_text(text + "OLDER = 1\n")
    first = commit(repository)
    monkeypatch.setattr(origin, "ROOT", repository)
    then = digest_at(first, "architectures.lstm")

    def claiming(digest: str | None, made_at: str | None, **architecture: Any) -> Path:
        content = lstm.entry.content()
        content["result"]["architecture"].update(source_sha256=digest, **architecture)
        content["result"]["code"].update(commit=made_at, dirty=None if made_at is None else False)
        return store(seal(content), tmp_path / "board")

    def said(*words: Any, **more: Any) -> list[str]:
        return [str(fault) for fault in verify_entry(Stored(claiming(*words, **more)), track=lstm.track).faults]

    findings = verify_entry(Stored(claiming(then, first)), track=lstm.track)
    assert findings.faults == []
    assert findings.notes == [f"architectures.lstm has changed since commit {first[:12]}, by which this entry was made"]
    (fault,) = said(then, first, parameters=1)
    assert fault.startswith("architecture: 1 parameters, and these options give ")
    options = {**lstm.entry.result.architecture.options, "d_model": 16}
    assert said(then, first, options=options)[0] == "architecture: d_model is 16, and the configuration gives 8"
    for digest, made_at in (("0" * 64, first), ("0" * 64, "f" * 40), ("0" * 64, None), (then, "f" * 40)):
        (fault,) = said(digest, made_at)
        assert fault.startswith("source: architectures.lstm is not today's, and at commit ")
    git(repository, "checkout", "-q", "-b", "elsewhere")
    source.write_text(text + "OTHER = 1\n")
    other = commit(repository)
    git(repository, "checkout", "-q", "-")
    assert "not in the history here" in said(then, other)[0], "a commit of another branch"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff", "it is no text"),
        (b"", "it defines no class"),
        ("class A:  # \u202e hidden".encode(), "line 1 has the character U+202E"),
        ("a\u200b = 1".encode(), "U+200B"),
        ("class A:\n  x = '\u05d0'".encode(), "line 2 has the character U+05D0"),
        (b"class A:\n  x = '\x1b[2J'", "U+001B"),
        (b"class", "it is no Python: SyntaxError"),
        (b"# coding: raw_unicode_escape\nclass A:  # \\u000a  import os", "it names an encoding of its own"),
        (b"# coding: nonsense\nclass A: pass", "it names an encoding of its own"),
        (b"-" * 200_000 + b"1", "it is no Python"),
    ],
)
def test_what_nobody_can_read(content: bytes, fault: str) -> None:
    (found,) = unreadable(content)
    assert fault in found
    assert list(unreadable(b"# coding: utf8\n" + AVERAGE.encode())) == []


def test_a_contribution_brings_no_evidence(
    lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "leaderboard"
    (board / "entries").mkdir(parents=True)
    (board / "RULES.md").touch()
    base = commit(tmp_path)
    command = ["verify", str(board), "--track", str(tiny_file), "--contribution", base]
    assert submit(lstm.run, board, track=lstm.track, by="Ada").path is not None
    commit(tmp_path)
    assert cli.main(command) == 0
    assert capsys.readouterr().out.endswith(".json: ok\n")
    stored = stored_in(board)[0]
    challenge(stored, lstm.run, by="Ben", track=lstm.track, cuts=100)
    verified = commit(tmp_path)
    assert cli.main(command) == 1
    assert "a contribution brings an entry, and no evidence" in capsys.readouterr().out
    stored.path.with_name(stored.evidence_name).unlink()
    commit(tmp_path)
    assert cli.main([*command[:-1], verified]) == 1, "nor does it take any away"
    refused(capsys, [*command[:-1], "no-such-commit"], "in no git repository that has the commit")


@pytest.mark.ci
def test_the_digest_at_a_commit_is_that_of_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an architecture borrows from another (h3 imports from s4), and where it is a package (cgt)."""
    classes = {name: registry.load(registry.ARCHITECTURE, name) for name in registry.entries(registry.ARCHITECTURE)}
    for cls in classes.values():
        for path in registry.source_files(cls):
            copy = tmp_path / path.relative_to(origin.ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    made_at = commit(tmp_path)
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    for name, cls in classes.items():
        assert digest_at(made_at, f"architectures.{name}") == registry.source_digest(cls), name
    assert digest_at(made_at, "architectures.nowhere") is None
    assert digest_at("--help", "architectures.lstm") is None


def test_what_is_built_in(lstm: Made, stranger: Made) -> None:
    record = lstm.entry.result.architecture
    assert is_built_in(record)
    assert is_built_in(record.model_copy(update={"name": "cgt", "source": "architectures.cgt"}))  # a package
    assert not is_built_in(stranger.entry.result.architecture)
    for change in (
        {"name": "mamba"},
        {"source": "lstm.py"},
        {"source": "regbench.lstm"},
        {"name": "x", "source": "architectures.x"},
    ):
        assert not is_built_in(record.model_copy(update=change))


def test_on_the_command_line(
    lstm: Made, stranger: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--track", str(tiny_file)]
    assert cli.main(["verify", str(lstm.path), *own]) == 0
    assert capsys.readouterr().out == f"{lstm.path}: ok\n"
    assert cli.main(["verify", str(lstm.path), "--run", str(lstm.run), "--checkpoint", *own]) == 0
    assert "predicted again from its weights" in capsys.readouterr().out
    assert cli.main(["verify", str(lstm.run), *own]) == 0
    assert cli.main(["verify", str(stranger.run), "--source", str(stranger.source), *own]) == 0
    assert cli.main(["verify", str(stranger.run), *own]) == 0, "the run says where its file is"
    for folder in (lstm.board, lstm.board / "entries", lstm.path.parent):
        assert cli.main(["verify", str(folder), *own]) == 0
    forged = tmp_path / "tiny-v1" / lstm.path.name
    forged.parent.mkdir()
    forged.write_text(lstm.path.read_text().replace('"trials": 2', '"trials": 1', 1))
    capsys.readouterr()
    assert cli.main(["verify", str(tmp_path / "tiny-v1"), *own]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{forged}: REFUSED"
    assert [line.split(":")[0] for line in said[1:]] == ["  form", "  configuration"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mamba"], "no such file: mamba; an entry is a file, such as "),
        (["."], "holds neither a run nor entries"),
        (["{board}", "--run", "{run}"], "go with one entry"),
        (["{entry}", "--checkpoint", "--track", "{track}"], "--checkpoint needs the run"),
        (["{run}/.."], "holds neither a run nor entries; it has "),
        (["{entry}", "--track", "{track}", "--run", "nowhere"], "no such folder: nowhere"),
        (["{entry}", "--track", "{track}", "--run", "{run}/seed-0"], "seed-0 holds no run: there is no result.json"),
        (["{run}", "--track", "{track}", "--run", "nowhere"], "--run goes with entries, and {run} is a run"),
        (["{entry}", "--track", "{track}", "--source", "mine.py"], "--source goes with a run, and "),
    ],
)
def test_wrong_arguments_are_said_in_one_line(
    arguments: list[str],
    message: str,
    lstm: Made,
    tiny_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    filled = [a.format(board=lstm.board, run=lstm.run, entry=lstm.path, track=tiny_file) for a in arguments]
    refused(capsys, ["verify", *filled], message.format(run=lstm.run))


def test_near_ties_moved_onto_legal_symbols_are_found(lstm: Made, tmp_path: Path) -> None:
    """Each number is changed by less than the rounding of another machine, and the scores are computed from the file."""
    run = lstm.copy(tmp_path / "run")
    test = lstm.track.instances("test")
    truth = lstm.track.task.truth(test)
    legal = np.concatenate([row[:length] > 0 for row, length in zip(truth, test.lengths, strict=True)])
    forged = []
    for seed in (0, 1, 2):
        kept = Predictions.from_arrays(read_arrays(run / f"seed-{seed}" / "predictions.npz"))
        packed = kept.packed.copy()
        best_legal = np.where(legal, packed, 0).argmax(1)
        rows = np.arange(len(packed))
        near = (packed.max(1) - packed[rows, best_legal] < 0.03) & legal.any(1) & (packed.argmax(1) != best_legal)
        packed[rows[near], packed[near].argmax(1)] -= np.float16(0.016)
        packed[rows[near], best_legal[near]] += np.float16(0.016)
        forged.append(Predictions(packed, kept.lengths))
    content = claim(run, lstm.track, forged)
    findings = verify_run(run, lstm.track)[1]
    assert findings.faults == []
    assert (
        Result.model_validate(content).score("legal_accuracy").value > lstm.entry.result.score("legal_accuracy").value
    )
    repredict(run, findings, lstm.track)
    assert "and that of the weights" in str(findings.faults[-1])


def test_a_files_name_cannot_forge_a_line(lstm: Made, tmp_path: Path, tiny_file: Path, capsys: Any) -> None:
    folder = tmp_path / "tiny-v1"
    folder.mkdir()
    for name in ("a.json\nb.json: ok\n.json", "\x1b[2Ja.json", "\u202ea.json"):
        shutil.copy(lstm.path, folder / name)
    assert cli.main(["verify", str(folder), "--track", str(tiny_file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert not [line for line in lines if line.endswith(": ok")]
    assert cli.main(["verify", str(tmp_path / "x\nregbench: ok")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["submit", "verify"])
def test_runs_whose_truth_nobody_knows_are_refused_at_once(
    command: str,
    text_run: Path,
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is generated or computed."""

    def no_work(self: Track, split: str) -> None:
        raise AssertionError("instances were asked for")

    monkeypatch.setattr(Track, "instances", no_work)
    board = ["--board", str(tmp_path)] if command == "submit" else []
    assert cli.main([command, str(text_run), "--track", str(text_file), *board]) == 2
    out, error = capsys.readouterr()
    assert (
        "its text depends on the machine it was made on and its truth is unknown, so nobody else could check" in error
    )
    assert error.count("\n") == 1
    assert not out
    assert not list(tmp_path.iterdir())
