"""The command line: what people type, what they see, and how they are told what was wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from regbench import cli
from regbench.tracks import track_names

PLUGIN = "import regbench\nclass Same(regbench.Mixer):\n    def forward(self, x):\n        return x\n"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_trains_scores_and_prints_the_table(capsys: pytest.CaptureFixture[str], tiny_file: Path) -> None:
    Path("same.py").write_text(PLUGIN)
    code, out, err = said(
        capsys,
        "run",
        "--arch",
        "same.py",
        "--track",
        str(tiny_file),
        "--set",
        "d_model=8",
        "--out",
        "here",
        "--seed",
        "0",
        "1",
    )
    assert code == 0
    assert "training, seed 0" in err
    assert "100 %  loss" in err
    rows = [line for line in out.splitlines() if line.count("±") == 4]
    assert "oracle" in rows[0]
    assert "1.000 ±0.000" in rows[0]
    assert any("same, median" in row for row in rows)
    assert sum("uniform" in row for row in rows) == 1
    assert "100 %" in out
    assert "training tokens in" in out
    assert "result and pictures: here" in out
    code, out, _ = said(capsys, "run", "--resume", "here")
    assert code == 0
    assert "same, median" in out


def test_ls_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "ls")
    assert code == 0
    for name in ("transformer", "lstm", "mamba", "baum_welch", "pfa", *track_names()):
        assert name in out
    _, out, _ = said(capsys, "ls", "tracks")
    assert "pfa-small-v1" in out
    assert "mamba" not in out


def test_ls_compares_architectures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "ls", "architectures")
    assert code == 0
    (row,) = (line.split() for line in out.splitlines() if line.startswith("mamba"))
    assert row == ["mamba", "Gu", "and", "Dao", "2023", "66,816", "19.0", "KiB"]
    (row,) = (line for line in out.splitlines() if line.startswith("transformer"))
    assert row.split()[-3:] == ["grows", "with", "L"]


def test_ls_shows_the_options_of_one_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "ls", "architectures", "mamba")
    assert code == 0
    assert "Gu and Dao (2023)" in out
    for option in ("d_model", "d_state", "expand"):
        assert option in out


def test_data_shows_statistics_and_an_instance(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "data", "pfa-small-v1", "--instance", "3")
    assert code == 0
    for text in ("entropy nats", "mean states", "mean edges", "mean length", "train and test 0", "0 start", "→"):
        assert text in out


def test_data_fingerprint_is_what_was_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    from regbench.tracks.track import frozen_tracks

    code, out, _ = said(capsys, "data", "pfa-small-v1", "--fingerprint")
    assert code == 0
    assert dict(line.split() for line in out.splitlines()) == frozen_tracks()["pfa-small-v1"]["fingerprints"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "unknown choice 'rnu'; did you mean 'run'"),
        ([], "the following arguments are required: COMMAND"),
        (["run", "--arch", "manba"], "unknown architecture 'manba'; did you mean 'mamba'"),
        (["run", "--track", "pfa-smal-v1"], "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'"),
        (["run", "--arch", "mamba", "--set", "d_stat=3"], "option: unknown key 'd_stat'; did you mean 'd_state'"),
        (["run", "--arch", "mamba", "--set", "d_state=big"], "option: d_state: input should be a valid integer"),
        (["run", "--set", "d_model"], "--set takes KEY=VALUE, not 'd_model'"),
        (["run", "--set", "a=1", "--set", "a=2"], "--set gives 'a' twice"),
        (["run", "--seed", "one"], "argument --seed: invalid int value: 'one'"),
        (["run", "--arhc", "mamba"], "unrecognized arguments: --arhc"),
        (["run", "--backend", "trition", "--arch", "transformer"], "attention has no backend 'trition'"),
        (["run", "--resume", "nowhere"], "nowhere holds no run"),
        (["run", "--resume", "a", "--out", "b"], "not allowed with argument"),
        (["run", "--arch", "gone.py"], "no such file: gone.py"),
        (["ls", "archs"], "unknown choice 'archs'"),
        (["ls", "tracks", "x"], "a NAME goes with"),
        (["data", "pfa-small-v1", "--instance", "500"], "there is no test instance 500: they are numbered 0 to 499"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = said(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("regbench: ")
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_exit_code_reaches_the_shell(regbench: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = regbench("run", "--arch", "manba")
    assert done.returncode == 2
    assert done.stderr == "regbench: unknown architecture 'manba'; did you mean 'mamba'?\n"


def test_interruption_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regbench.training.Trainer._step", interrupt)
    Path("same.py").write_text(PLUGIN)
    code, _, err = said(capsys, "run", "--arch", "same.py", "--track", str(tiny_file), "--out", "here")
    assert code == 130
    assert err.endswith("regbench: interrupted; go on with: regbench run --resume here\n")


def test_help_names_every_command_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for text in ("run", "ls", "data", "examples:", "--arch my_mixer.py"):
        assert text in out
