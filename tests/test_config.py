"""`regbench run --config`: what a file says, what goes before it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from regbench import cli
from regbench.config import Config, read_config, read_run
from regbench.utils.errors import UserError
from tests.helpers.typed import PLUGIN, refused


@pytest.fixture
def config_file(tmp_path: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of a mixer that does nothing, in the folder the command is called in."""
    monkeypatch.chdir(tmp_path)
    Path("same.py").write_text(PLUGIN)
    path = tmp_path / "mine.yaml"
    content = {"track": str(tiny_file), "architecture": "same.py", "seeds": [3, 4], "trials": 2}
    path.write_text(yaml.safe_dump({**content, "settings": {"d_model": 8, "n_layers": 1, "training.batch_size": 4}}))
    return path


def ran(*arguments: str) -> Config:
    assert cli.main(["run", "--out", "out", *arguments]) == 0
    return read_config(Path("out/config.yaml"))


@pytest.mark.ci
def test_the_config_of_a_finished_run_is_such_a_file(config_file: Path) -> None:
    first = ran("--config", "mine.yaml", "--seed", "1")
    assert cli.main(["run", "--config", "out/config.yaml", "--out", "again"]) == 0
    assert read_config(Path("again/config.yaml")) == first


@pytest.mark.ci
def test_the_command_line_goes_before_it(config_file: Path) -> None:
    flags = ["--seed", "5", "--set", "d_model=16", "--trials", "7", "--ngram-heads", "1,2", "--device", "cpu"]
    config = ran("--config", "mine.yaml", *flags)
    assert (config.seeds, config.trials, config.device, config.architecture) == ((5,), 7, "cpu", "same.py")
    assert config.settings == {"d_model": 16, "n_layers": 1, "training.batch_size": 4, "ngram_heads": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("trak: x\narchitecture: lstm\n", "mine.yaml: unknown key 'trak'; did you mean 'track'?"),
        ("architecture: lstm\n", "mine.yaml: 'track' is missing"),
        ("track: pfa-small-v1\narchitecture: lstm\nseeds: 3\n", "mine.yaml: seeds: input should be a valid tuple"),
        ("track: pfa-small-v1\narchitecture: lstm\nseeds: []\n", "mine.yaml: seeds: tuple should have at least 1 item"),
        *(
            (
                f"track: none\narchitecture: lstm\nseeds: [{seeds}]\n",
                f"mine.yaml: seeds.{place}: input should be {why}",
            )
            for seeds, place, why in (
                ("-1", 0, "greater than or equal to 0 (given -1)"),
                ("0, 9223372036854775808", 1, "less than 9223372036854775808 (given 9223372036854775808)"),
                ("1, 2.0", 1, "a valid integer (given 2.0)"),
            )
        ),
        ("track: pfa-small-v1\narchitecture: lstm\nsettings: {d_modl: 3}\n", "unknown key 'd_modl'; did you mean"),
        ("track: pfa-small-v1\narchitecture: lstm\nsettings: {training.learning_rat: 3}\n", "'learning_rat'; did you"),
        ("track: pfa-small-v1\narchitecture: lstn\n", "unknown architecture 'lstn'; did you mean 'lstm'?"),
        ("track: x\n  y: [\n", "mine.yaml:2: broken YAML"),
        ("- track\n", "mine.yaml: a configuration is a mapping of fields, not list"),
        (b"\xff\xfe", "mine.yaml is not a text file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    config_file: Path, content: str | bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(capsys, ["run", "--config", "mine.yaml", "--out", "out"], message)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "run: seeds.0: input should be greater than or equal to 0 (given -1)"),
        (["--seed", "0", str(2**64)], f"run: seeds.1: input should be less than {2**63} (given {2**64})"),
        (["--seed", "0", "--out", "mine.yaml"], "cannot write mine.yaml: a file is there, where a folder should be"),
        (["--out", "mine.yaml/more"], "cannot write mine.yaml/more: a part of that path is a file, no folder"),
        (["--set", "d_model=2024-13-45"], "d_model: input should be a valid integer"),
    ],
)
def test_so_is_what_is_wrong_on_the_command_line(
    config_file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = config_file.read_text()
    refused(capsys, ["run", "--config", "mine.yaml", *arguments], message)
    assert sorted(path.name for path in Path().iterdir() if path.name != "__pycache__") == ["mine.yaml", "same.py"]
    assert config_file.read_text() == before


def test_seeds_up_to_the_largest_train(config_file: Path) -> None:
    assert ran("--config", "mine.yaml", "--seed", str(2**63 - 1)).seeds == (2**63 - 1,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "config.yaml: a link, and links are not followed"),
        (lambda path: path.write_text("settings:\n- &a [x, x]\n- *a\n"), "config.yaml:3: broken YAML: an alias"),
        (lambda path: path.write_text("- 1\n"), "config.yaml: a configuration is a mapping of fields, not list"),
    ],
)
def test_that_of_a_run_folder_may_be_a_strangers(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    make(tmp_path / "config.yaml")
    with pytest.raises(UserError, match=message):
        read_run(tmp_path)


def test_there_must_be_such_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read .*none.yaml: No such file or directory"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "config.yaml").write_text("track: x\narchitecture: lstm\n")
    with pytest.raises(UserError, match="is a folder; its configuration is .*config.yaml"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "more", [["--config", "mine.yaml"], ["--arch", "lstm"], ["--set", "d_model=9"], ["--ngram-heads", "1"]]
)
def test_a_resumed_run_takes_nothing_else(
    config_file: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "--resume", "out", *more]) == 2
    expected = f"regbench: --resume goes on with what the run's config.yaml says: {more[0]} cannot change it\n"
    assert capsys.readouterr().err == expected


def test_a_parameter_of_the_task_among_settings_is_of_the_track() -> None:
    """So what runs and reads a run needs to know nothing of it. Text may hold any sign."""
    config = Config(
        track="mine.yaml", architecture="gla", settings={"task.n": [1, 2], "d_model": 8, "task.word": "a&b=c?"}
    )
    assert (config.track, config.settings) == (r'mine.yaml?n=[1,2]&word="a\u0026b=c?"', {"d_model": 8})
    assert Config(**config.model_dump()) == config
    assert Config(track="mine.yaml", architecture="gla").track == "mine.yaml"
