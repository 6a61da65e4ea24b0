"""Submitting: from a run folder to an entry, its name, what it replaces, and the command line."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from regbench import cli
from regbench.leaderboard.entry import Entry, canonical, check_name, parse_entry
from regbench.leaderboard.origin import default_name, name_faults, same_configuration
from regbench.leaderboard.store import stored_in
from regbench.leaderboard.verify import submit
from regbench.utils.errors import UserError
from tests.leaderboard.attacks import seal
from tests.leaderboard.conftest import Made


def names(board: Path) -> list[str]:
    return sorted(str(path.relative_to(board)) for path in board.rglob("[!.]*") if path.is_file())


def test_a_run_becomes_an_entry(lstm: Made) -> None:
    entry = lstm.entry
    assert entry.name == "lstm+d_model-8+n_layers-1+batch_size-8+evaluations-3+epochs-2"
    assert names(lstm.board) == [f"entries/tiny-v1/{entry.file_name}"]
    assert entry.command == (
        "regbench run --arch lstm --track tiny-v1 --seed 0 1 2 --set d_model=8 --set n_layers=1 --set training.batch_size=8 "
        "--set training.epochs=2 --set training.evaluations=3 --trials 2"
    )
    assert entry.result.model_dump_json() == Entry.model_validate(entry.content()).result.model_dump_json()


def test_defaults_do_not_make_a_name_longer(lstm: Made) -> None:
    asked, result = lstm.entry.configuration, lstm.entry.result
    assert default_name(asked.model_copy(update={"settings": {}}), result) == "lstm"
    settings = {"dropout": 0.0, "ngram_heads": [1, 2, 3], "training.learning_rate": 1e-05}
    assert default_name(asked.model_copy(update={"settings": settings}), result) == "lstm+ngh-1-2-3+learning_rate-1e-05"
    settings = {"ngram_heads": [1], "ngram_mlp": True}
    assert default_name(asked.model_copy(update={"settings": settings}), result) == "lstm+ngh-1+ngram_mlp"


def test_a_strangers_source_is_kept_and_never_run(stranger: Made, tmp_path: Path) -> None:
    stem = stranger.path.stem
    kept = stranger.path.with_name(f"{stem}.py.txt")
    assert stranger.source is not None
    assert kept.read_bytes() == stranger.source.read_bytes()
    assert {Path(n).name for n in names(stranger.board)} == {f"{stem}.json", f"{stem}.py.txt"}
    moved = tmp_path / "moved.py"
    moved.write_text(stranger.source.read_text() + "\nraise SystemExit('it was run')\n")
    made = submit(stranger.run, tmp_path, track=stranger.track, source=moved)
    assert [str(fault) for fault in made.findings.faults] == [
        "source: the file 'my_average.py' is not the one that was run"
    ]
    with pytest.raises(UserError, match="--source"):
        submit(stranger.run, tmp_path, track=stranger.track, source=tmp_path / "nowhere.py")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_full_disk_leaves_the_board_as_it_was(
    stranger: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Entry, source and evidence: whichever does not fit any more, none is there."""
    synced = []

    def full(handle: int) -> None:
        synced.append(handle)
        if len(synced) == place + 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    for board in (tmp_path / "new", shutil.copytree(stranger.board, tmp_path / "board")):
        before = {name: (board / name).read_bytes() for name in names(board)}
        synced.clear()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="the disk is full"):
                submit(stranger.run, board, track=stranger.track, source=stranger.source, by="me", replace=True)
        assert {name: (board / name).read_bytes() for name in names(board)} == before


def test_the_same_again_replaces_and_never_doubles(stranger: Made, tmp_path: Path) -> None:
    board = tmp_path / "board"
    shutil.copytree(stranger.board, board)
    made = submit(stranger.run, board, track=stranger.track, name="other_name", replace=True)
    stem = stranger.path.stem
    assert [path.name for path in made.removed] == [f"{stem}.json", f"{stem}.py.txt"]
    assert made.replaced == []
    assert made.path is not None
    assert names(board) == [f"entries/tiny-v1/{made.path.stem}.{kind}" for kind in ("json", "py.txt")]
    again = submit(stranger.run, board, track=stranger.track, name="other_name", replace=True)
    assert again.path == made.path
    assert (sorted(path.suffix for path in again.replaced), again.removed) == ([".json", ".txt"], [])
    assert len(stored_in(board)) == 1


def test_a_newer_option_does_not_make_it_another_configuration(lstm: Made) -> None:
    entry = lstm.entry
    result = entry.result
    old = result.model_copy(update={"training": {k: v for k, v in result.training.items() if k != "plateau_factor"}})
    other = result.model_copy(update={"training": {**result.training, "weight_decay": 0.5}})
    newer = result.model_copy(update={"training": {**result.training, "plateau_factor": 0.123}})
    assert same_configuration(result, old)
    assert not same_configuration(result, other)
    assert not same_configuration(newer, old), "of an option that it does not have, the default was trained"


def test_an_older_entry_of_another_name_is_found(lstm: Made, tmp_path: Path) -> None:
    board = tmp_path / "board"
    shutil.copytree(lstm.board, board)
    stored = stored_in(board)[0]
    content = json.loads(stored.path.read_text())
    content["name"] = "lstm+older"
    del content["result"]["training"]["plateau_factor"]
    older = parse_entry(seal(content), "older")
    assert older.configuration_digest != lstm.entry.configuration_digest
    path = stored.path.with_name(older.file_name)
    path.write_text(canonical(older.content()))
    stored.path.unlink()
    with pytest.raises(UserError, match="is the same configuration: --replace"):
        submit(lstm.run, board, track=lstm.track, name="lstm+mine")
    made = submit(lstm.run, board, track=lstm.track, name="lstm+mine", replace=True)
    assert made.removed == [path]
    assert [stored.path for stored in stored_in(board)] == [made.path]


def test_a_name_of_another_configuration_is_not_taken(lstm: Made, stranger: Made, tmp_path: Path) -> None:
    board = tmp_path / "board"
    shutil.copytree(stranger.board, board)
    stored = stored_in(board)[0]
    entry = stored.entry
    taken = board / "entries" / "tiny-v1" / "lstm-mine-00000000.json"
    taken.write_text(stored.path.read_text().replace(f'"name": "{entry.name}"', '"name": "lstm-mine"'))
    before = names(board)
    with pytest.raises(UserError, match="another configuration of the name 'lstm-mine': give one with --name"):
        submit(lstm.run, board, track=lstm.track, name="lstm-mine")
    assert names(board) == before


@pytest.mark.parametrize(
    ("name", "fault"), [("mamba", "must be 'lstm'"), ("mine", "must be 'lstm'"), ("lstms", "must be 'lstm'")]
)
def test_a_built_in_architecture_goes_by_its_name(lstm: Made, tmp_path: Path, name: str, fault: str) -> None:
    made = submit(lstm.run, tmp_path, track=lstm.track, name=name)
    assert [f.check for f in made.findings.faults] == ["name"]
    assert fault in made.findings.faults[0].text


def test_a_stranger_does_not_go_by_a_built_in_name(stranger: Made, tmp_path: Path) -> None:
    made = submit(stranger.run, tmp_path, track=stranger.track, name="mamba+better", source=stranger.source)
    assert "called as 'mamba' is" in made.findings.faults[0].text


@pytest.mark.parametrize(
    "name",
    [
        "oracle",
        "3-gram",
        "unigram+better",
        "rnamba",
        "mam-ba",
        "mabma",
        "mambas",
        "transf0rmer",
        "1stm",
        "bayes",
        "mamba_official",
        "gla_ngh",
    ],
)
def test_a_stranger_does_not_look_like_a_built_in_or_a_baseline(stranger: Made, name: str) -> None:
    assert any("or nearly: give another with --name" in fault for fault in name_faults(name, stranger.entry.result))


@pytest.mark.parametrize("name", ["samba", "my_average", "average+mamba", "hymba", "mine-2", "gated"])
def test_other_names_are_free(stranger: Made, name: str) -> None:
    assert list(name_faults(name, stranger.entry.result)) == []


def test_a_default_name_is_never_too_long(lstm: Made) -> None:
    settings = {
        "d_model": 8,
        **{f"training.{key}": 0.0123456789 for key in ("learning_rate", "weight_decay", "beta1", "beta2")},
    }
    asked = lstm.entry.configuration.model_copy(update={"settings": settings})
    name = default_name(asked, lstm.entry.result)
    check_name(name)
    other = asked.model_copy(update={"settings": {**settings, "training.beta2": 0.01}})
    assert default_name(other, lstm.entry.result) != name


def test_every_fault_has_its_line_and_nothing_is_written(
    lstm: Made, tmp_path: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lstm.copy(tmp_path / "run")
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(
        text.replace('"dirty": false', '"dirty": true').replace('"trials": 2', '"trials": 1')
    )
    (run / "seed-1" / "predictions.npz").write_bytes(b"")
    board = tmp_path / "board"
    board.mkdir()
    assert cli.main(["submit", str(run), "--board", str(board), "--track", str(tiny_file)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["predictions", "configuration", "code", "refused"]
    assert said[-1].startswith("refused: 3 faults")
    assert names(board) == []


def test_on_the_command_line(lstm: Made, tmp_path: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--board", str(tmp_path), "--track", str(tiny_file)]
    assert cli.main(["submit", str(lstm.run), "--name", "lstm-small", *common]) == 0
    assert "regbench leaderboard" in capsys.readouterr().out
    (stored,) = stored_in(tmp_path)
    assert stored.path.name == f"lstm-small-{lstm.entry.configuration_digest[:8]}.json"
    assert cli.main(["submit", str(lstm.run), *common]) == 2
    assert "is the same configuration: --replace puts this run in its place" in capsys.readouterr().err
    common.append("--replace")
    assert cli.main(["submit", str(lstm.run), *common]) == 0
    assert f"removed {stored.path}\n" in capsys.readouterr().out
    assert len(names(tmp_path)) == 1
    assert cli.main(["submit", str(lstm.run), *common]) == 0
    (stored,) = stored_in(tmp_path)
    assert f"overwrote {stored.path}\n" in capsys.readouterr().out


def test_a_run_that_lost_a_file_is_named_with_its_folder(
    lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(lstm.run, run)
    (run / "config.yaml").unlink()
    (tmp_path / "board").mkdir()
    for arguments in (["submit", "--board", str(tmp_path / "board")], ["verify"]):
        assert cli.main([*arguments, str(run), "--track", str(tiny_file)]) == 2
        assert capsys.readouterr().err == f"regbench: {run}: config.yaml: no such file\n"
    shutil.copy(lstm.run / "config.yaml", run)
    (run / "result.json").unlink()
    for command in ("submit", "verify"):
        assert cli.main([command, str(run)]) == 2
        assert capsys.readouterr().err == (
            f"regbench: {run} holds a run that is not finished; go on with: regbench run --resume {run}\n"
        )
    (run / "result.json").write_text("{")
    assert cli.main(["report", str(run), "--track", str(tiny_file)]) == 2
    assert capsys.readouterr().err.startswith(f"regbench: cannot read {run / 'result.json'}:1: not JSON: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such folder: nowhere"),
        (["."], ". holds no run: there is no result.json"),
        (["{run}/.."], "with runs, such as "),
        ([".", "--board", "nowhere"], "no such folder: nowhere"),
        (["{run}", "--board", "."], "'tiny-v1' is no built-in track; if it is yours, give its file: --track FILE.yaml"),
        (["{run}", "--board", ".", "--track", "{track}", "--name", "A b"], "cannot name an entry"),
    ],
)
def test_what_is_no_run_is_said_in_one_line(
    arguments: list[str],
    message: str,
    lstm: Made,
    tiny_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    filled = [a.format(run=lstm.run, track=tiny_file) for a in arguments]
    code = cli.main(["submit", *filled])
    said = capsys.readouterr()
    assert message in said.out + said.err
    assert code in (1, 2)
    assert list(tmp_path.iterdir()) == []


def test_no_leaderboard_is_said_in_one_line(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from regbench.leaderboard import store

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store, "ROOT", tmp_path)
    assert cli.main(["submit", str(lstm.run)]) == 2
    assert (
        capsys.readouterr().err
        == "regbench: no leaderboard/ here or beside regbench's source: say which with --board DIR\n"
    )
    (tmp_path / "leaderboard").mkdir()
    (tmp_path / "leaderboard" / "RULES.md").touch()
    assert store.find_board(None) == Path("leaderboard")
