"""Bad input is one line and exit code 2, and loses nothing."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regbench import cli
from tests.helpers.typed import PLUGIN, refused, said

pytestmark = pytest.mark.usefixtures("_in_an_empty_folder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "unknown command 'rnu'; did you mean 'run'"),
        (["run", "--arch", "manba"], "unknown architecture 'manba'; did you mean 'mamba'"),
        (["run", "--track", "pfa-smal-v1"], "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'"),
        (["run", "--arch", "mamba", "--set", "d_stat=3"], "option: unknown key 'd_stat'; did you mean 'd_state'"),
        (
            ["run", "--arch", "mamba", "--set", "train_tokens=9"],
            "'train_tokens'; did you mean 'training.train_tokens'?",
        ),
        (["run", "--arch", "mamba", "--set", "d_state=big"], "option: d_state: input should be a valid integer"),
        (["run", "--set", "trainng.batch_size=8"], "'trainng.batch_size'; did you mean 'training.batch_size'?"),
        (["run", "--set", "training.lr=1"], "unknown key 'lr'; did you mean 'learning_rate'?"),
        (["run", "--set", "training.clip=1"], "unknown key 'clip'; did you mean 'gradient_clip'?"),
        (["run", "--set", "wd=1"], "unknown key 'wd'; did you mean 'training.weight_decay'?"),
        (["run", "--set", "training.max_steps=9"], "'training.max_steps'; did you mean 'training.train_tokens'?"),
        (["run", "--set", "seed=3"], "unknown key 'seed'; it is no setting, but an argument of the run: --seed"),
        (["run", "--set", "d_stats=3"], "unknown key 'd_stats'; did you mean 'd_state'?"),
        (["run", "--lr", "1"], "'--lr'; did you mean '--set training.learning_rate=VALUE'?"),
        (["run", "--steps=9"], "'--steps=9'; did you mean '--set training.train_tokens=9'?"),
        (["run", "--d-model", "9"], "'--d-model'; did you mean '--set d_model=VALUE'?"),
        (["run", "d_state=9"], "'d_state=9'; did you mean '--set d_state=9'?"),
        (["compare", "--lr", "1"], "unrecognized argument '--lr'; known: --course, --csv, --help, --order"),
        (["run", "--set", "d_model"], "--set takes KEY=VALUE, not 'd_model'"),
        (["run", "--set", "a=1", "--set", "a=2"], "--set gives 'a' twice"),
        (["run", "--seed", "one"], "argument --seed: invalid int value: 'one'"),
        (["run", "--arhc", "mamba"], "unrecognized argument '--arhc'; did you mean '--arch'?"),
        (
            ["run", "--backend", "trition", "--arch", "transformer"],
            "no op has a backend 'trition'; did you mean 'triton'?",
        ),
        (["run", "--resume", "nowhere"], "nowhere holds no run"),
        (["run", "--out", ""], "--out is empty: give it a value, or leave it out"),
        (["run", "--resume", "", "--arch", "lstm"], "--resume is empty"),
        (["run", "--config", ""], "--config is empty"),
        (["run", "--set", ""], "--set is empty"),
        (["report", ""], "DIR is empty"),
        (["compare", "2-gram", ""], "PREDICTOR is empty"),
        (["run", "--arch", "lstm,mamba"], "unknown architecture 'lstm,mamba'; give one architecture"),
        (
            ["run", "--arch", "runs/a/config.yaml"],
            "config.yaml'; one of your own is a Python file, and `regbench ls arch",
        ),
        (["data", "suites/quick"], "unknown track 'suites/quick'; `regbench ls tracks` lists"),
        (["run", "mamba"], "unrecognized argument 'mamba'; did you mean '--arch mamba'?"),
        (["run", "pfa-v1"], "unrecognized argument 'pfa-v1'; did you mean '--track pfa-v1'?"),
        (["check", "mine.py"], "one of the arguments --arch --all is required; did you mean '--arch mine.py'?"),
        (["run", "--resume", "a", "--ngram-after", "2"], "says: --ngram-after cannot change it"),
        (["run", "--resume", "a", "--ngram-heads", " "], "says: --ngram-heads cannot change it"),
        (["run", "--ngram-heads", ""], "--ngram-heads is empty"),
        (["run", "--ngram-heads", "1", "--ngram-after", " "], "--ngram-after is empty: give numbers"),
        (["run", "--ngram-after", "2"], "--ngram-after says where --ngram-heads stand: give those too"),
        (["run", "--set", "ngram_after=[2]"], "option: ngram_after is about n-gram heads, and there are none"),
        (["run", "--set", "ngram_mlp=true"], "option: ngram_mlp is about n-gram heads, and there are none"),
        (["run", "--set", "d_model=true"], "option: d_model: true, false, yes and no are not allowed here"),
        (["run", "--set", "dropout=yes"], "option: dropout: true, false, yes and no are not allowed here"),
        (["run", "--set", "training.batch_size=on"], "training option: batch_size: true, false"),
        (["check", "--arch", "mamba", "--track", "pfa-smal-v1"], "unknown track 'pfa-smal-v1'"),
        (["check", "--arch", "mamba", "--device", "gpu"], "unknown device 'gpu'; did you mean 'cuda'?"),
        (["check", "--arch", "mamba", "--ngram-after", "2"], "--ngram-after says where --ngram-heads stand"),
        (["check", "--arch", "mamba", "--backend", "scan=cpu"], "no op is called 'scan'"),
        (["check", "--arch", "mamba", "--set", "training.epoch=1"], "unknown key 'epoch'; did you mean 'epochs'"),
        (["run", "--resume", "a", "--out", "b"], "not allowed with argument"),
        (["run", "--arch", "gone.py"], "no such file: gone.py"),
        (["ls", "archs"], "unknown choice 'archs'"),
        (["ls", "tracks", "x"], "a NAME goes with"),
        (["data", "pfa-small-v1", "--fingerprint", "--to", "x"], "--to: not allowed with argument --fingerprint"),
        (["data", "pfa-small-v1", "--instance", "500"], "there is no test instance 500: they are numbered 0 to 499"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    refused(capsys, arguments, message)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "{}"],
        ["report", "{}"],
        ["submit", "{}"],
        ["compare", "uniform", "{}.json"],
        ["leaderboard", "--board", "{}"],
    ],
)
def test_a_path_that_is_too_long_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.format("a" * 5000) for word in arguments]
    refused(capsys, words, f"regbench: {'a' * 60}... is longer than a file's name can be\n")


def test_an_architecture_whose_file_leaves_or_brings_other_options_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("leaves.py").write_text("import sys\nsys.exit(3)\n")
    Path("other.py").write_text(PLUGIN + "    class Options:\n        a: int = 1\n")
    for arguments in (["run", "--arch"], ["check", "--arch"], ["ls", "architectures"]):
        code, out, err = said(capsys, *arguments, "leaves.py")
        assert (code, out) == (2, "")
        assert re.fullmatch(r"regbench: leaves.py cannot be imported: .*leaves.py:2: SystemExit: 3\n", err)
        code, out, err = said(capsys, *arguments, "other.py")
        assert (code, out, err) == (2, "", "regbench: Options of Same in other.py must subclass regbench.Options\n")


def test_exit_code_reaches_the_shell(regbench: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = regbench("run", "--arch", "manba")
    assert done.returncode == 2
    assert done.stderr == "regbench: unknown architecture 'manba'; did you mean 'mamba'?\n"


def test_where_nobody_reads_on_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `regbench ls | head -1`."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        monkeypatch.setattr("sys.stderr", io.StringIO())
        assert cli.main(["ls", "tracks"]) == 0


def test_a_file_that_may_not_be_read_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "runs/[mine]")

    monkeypatch.setattr("regbench.cli.commands.ls._list_runs", refuse)
    assert said(capsys, "ls", "runs")[::2] == (2, "regbench: runs/[mine]: Permission denied\n")


def test_a_folder_in_brackets_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x[", "y]z").mkdir(parents=True)
    assert said(capsys, "ls", "runs", "x[/y]z") == (0, "no runs in x[/y]z\n", "")


def test_a_full_disk_behind_the_output_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not exit code 1, which says that a check has failed."""
    said_of_it = io.StringIO()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        monkeypatch.setattr("sys.stderr", said_of_it)
        assert cli.main(["ls", "suites"]) == 2
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert said_of_it.getvalue() == "regbench: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "??.000"), ("latin-1", "?±.000"), ("utf-8", "μ±.000")])
def test_what_an_encoding_has_not_is_replaced(
    encoding: str, shown: str, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("out", "w", encoding=encoding) as out, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", out)
        assert cli.main(["compare", "μ=oracle", "3-gram", "--track", str(tiny_file)]) == 0
    text = Path("out").read_bytes().decode(encoding)
    row = next(line.replace("|", " ").split() for line in text.splitlines() if line[:1] == shown[0])
    assert (row[0] + row[2]) == shown


def test_names_in_brackets_and_colons_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my[bold].py").write_text('"""A [red]mixer[/] :smile:."""\n' + PLUGIN)
    code, out, _ = said(capsys, "ls", "architectures", "my[bold].py")
    assert code == 0
    assert "options of my[bold], for --set" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["errors", "2-gram", "--track", "pfa-small-v1", "--out", "file/x"],
        ["compare", "2-gram", "3-gram", "--track", "pfa-small-v1", "--csv", "file/x.csv"],
        ["compare", "2-gram", "3-gram", "--track", "pfa-small-v1", "--out", "file/x.png"],
    ],
)
def test_where_nothing_can_be_written_nothing_is_computed(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError

    for work in (
        "regbench.cli.commands.errors._measured",
        "regbench.evaluation.comparison.distances",
    ):
        monkeypatch.setattr(work, never)
    Path("file").write_text("")
    refused(capsys, arguments, "file")


def test_a_folder_that_holds_no_entries(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is a board written into it."""
    Path("docs", "figures").mkdir(parents=True)
    assert said(capsys, "verify", "docs") == (2, "", "regbench: docs holds neither a run nor entries\n")
    refused = said(capsys, "challenge", "docs", "--run", "r", "--by", "b")[2]
    assert refused.startswith("regbench: no such file: docs; an entry is a file")
    code, _, err = said(capsys, "leaderboard", "--board", "docs")
    assert (code, err) == (
        2,
        "regbench: docs is no leaderboard: it has no entries/; a new board begins as an empty folder\n",
    )
    assert [path.name for path in Path("docs").iterdir()] == ["figures"]
