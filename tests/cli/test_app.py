"""The command line: what people type, what they see, and how they are told what was wrong."""

from __future__ import annotations

import importlib.metadata
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from regbench import cli
from regbench.cli import app
from regbench.cli.lines import Bar
from regbench.leaderboard.store import ROOT
from regbench.tracks import load_track, track_names
from regbench.training.progress import now_and_then
from regbench.training.terminal import TerminalReporter
from tests.helpers.typed import PLUGIN, refused, said

pytestmark = pytest.mark.usefixtures("_in_an_empty_folder")


def test_run_trains_scores_and_prints_the_table(capsys: pytest.CaptureFixture[str], tiny_file: Path) -> None:
    Path("same.py").write_text(PLUGIN)
    tiny = ["--track", str(tiny_file), "--set", "d_model=8"]
    code, out, err = said(capsys, "run", "--arch", "same.py", *tiny, "--out", "here", "--seed", "0", "1")
    assert code == 0
    assert "training, seed 0" in err
    assert "100 %  loss" in err
    rows = [line for line in out.splitlines() if line.count("±") == 4]
    assert "oracle" in rows[0]
    assert "1.000 ±.000" in rows[0]
    assert any("same, mean" in row for row in rows)
    assert sum("uniform" in row for row in rows) == 1
    assert re.search(r" 100 *\n", out)
    assert "training tokens a seed in" in out
    assert "result and pictures: here" in out
    code, out, _ = said(capsys, "run", "--resume", "here")
    assert code == 0
    assert "same, mean" in out


def test_ls_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "ls")
    assert code == 0
    for name in ("transformer", "lstm", "mamba", "baum_welch", "pfa", *track_names()):
        assert name in out


def test_ls_compares_architectures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "ls", "architectures")
    assert code == 0
    (row,) = (line.split() for line in out.splitlines() if line.startswith("mamba "))
    assert row == ["mamba", "state", "space", "Gu", "and", "Dao", "2023", "66,816", "19.0", "KiB"]
    (row,) = (line for line in out.splitlines() if line.startswith("transformer "))
    assert row.rstrip().endswith("128.0 KiB at 128, 1.0 MiB at 1,024")


def test_ls_shows_the_options_of_one_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "ls", "architectures", "mamba")
    assert code == 0
    assert "Gu and Dao (2023)" in out
    for option in ("d_model", "d_state", "expand"):
        assert option in out
    assert "tuple[int, ...]" in out
    for noise in ("Annotated", "FieldInfo", "typing."):
        assert noise not in out


def test_ls_names_types_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.py").write_text(
        """
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Optional
import regbench
class Router(Enum):
    SOFT = "soft"
    HARD = "hard"
@dataclass
class Decay:
    low: float = 0.5
class M(regbench.Mixer):
    class Options(regbench.Options):
        must: int
        maybe: Optional[float] = None
        mode: Literal["a", "b"] = "a"
        sizes: dict[str, list[int]] = {}
        router: Router = Router.SOFT
        decay: Decay = Decay()
    def forward(self, x):
        return x
"""
    )
    code, out, _ = said(capsys, "ls", "architectures", "m.py")
    assert code == 0
    rows = {cells[1]: cells[2:4] for line in out.splitlines() if len(cells := re.split(r" *[│┃] *", line)) > 4}
    assert rows["must"] == ["int", "required"]
    assert rows["maybe"] == ["float | None", "None"]
    assert rows["mode"] == ["'a' | 'b'", "'a'"]
    assert rows["sizes"] == ["dict[str, list[int]]", "{}"]
    assert rows["router"] == ["'soft' | 'hard'", "'soft'"], "as --set takes it"
    assert rows["decay"] == ["Decay", "{'low': 0.5}"]


def test_data_shows_statistics_and_an_instance(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "data", "pfa-small-v1", "--instance", "3")
    assert code == 0
    for text in ("entropy nats", "mean states", "mean edges", "mean length", "train and test 0", "0 is the start", "→"):
        assert text in out


def test_data_fingerprint_is_what_was_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    from regbench.tracks.track import frozen_tracks

    code, out, _ = said(capsys, "data", "pfa-small-v1", "--fingerprint")
    assert code == 0
    assert dict(line.split() for line in out.splitlines()) == frozen_tracks()["pfa-small-v1"]["fingerprints"]


@pytest.mark.ci
def test_what_a_mixer_prints_is_not_in_the_output(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbench.checks.training.OVERFIT_STEPS", 1)
    monkeypatch.setattr("torch.compile", lambda model, **_: model)
    Path("loud.py").write_text("print('imported')\n" + PLUGIN.replace("return x", "print('forward')\n        return x"))
    tiny = ["--track", str(tiny_file), "--set", "d_model=8"]
    _, out, err = said(capsys, "run", "--arch", "loud.py", *tiny, "--out", "here")
    assert "oracle" in out
    _, checked, err_of_check = said(capsys, "check", "--arch", "loud.py", *tiny)
    assert "shape" in checked
    _, listed, err_of_ls = said(capsys, "ls", "architectures", "loud.py")
    assert "d_model" in listed
    assert "imported" not in out + checked + listed
    assert "forward" not in (out + listed).replace("feed-forward", "")
    for text in (err, err_of_check, err_of_ls):
        assert "imported" in text
    for text in (err, err_of_check):
        assert "\nforward\n" in text


class TestFaultsThatShowLate:
    """Each is one line and exit code 2."""

    LEAKS = """
import torch
import regbench
class Leaks(regbench.Mixer):
    def __init__(self, options):
        super().__init__(options)
        self.register_buffer("steps", torch.zeros(()))
    def forward(self, x):
        self.steps += self.training
        return x + (self.steps > 5) * torch.nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]
"""

    def test_in_the_first_step_nothing_is_begun(self, capsys: pytest.CaptureFixture[str], tiny_file: Path) -> None:
        Path("m.py").write_text(PLUGIN.replace("return x", "assert not self.training, 'no'\n        return x"))
        code, out, err = said(capsys, "run", "--arch", "m.py", "--track", str(tiny_file), "--out", "here")
        assert (code, out) == (2, "")
        assert re.fullmatch(r"regbench: architecture 'm' .* in training it raises .*m.py:4: AssertionError: no\n", err)
        assert not Path("here").exists()

    def test_in_a_later_step(self, capsys: pytest.CaptureFixture[str], tiny_file: Path) -> None:
        late = self.LEAKS.replace("return x", "assert not self.training or self.steps < 30, 'enough'\n        return x")
        Path("m.py").write_text(late)
        tiny = ["--track", str(tiny_file), "--set", "training.batch_size=4"]
        code, out, err = said(capsys, "run", "--arch", "m.py", *tiny, "--out", "here")
        assert (code, out) == (2, "")
        last = err.splitlines()[-1]
        # Two layers count their steps alike.
        assert re.fullmatch(r"regbench: training fails at step 30 of \d+: .*m.py:10: AssertionError: enough", last)
        assert "Traceback" not in err

    @pytest.mark.ci
    def test_a_leak_that_training_opens_is_refused_and_the_weights_stay(
        self, capsys: pytest.CaptureFixture[str], tiny_file: Path
    ) -> None:
        Path("m.py").write_text(self.LEAKS)
        arguments = ["--track", str(tiny_file), "--set", "training.batch_size=4"]
        code, out, err = said(capsys, "run", "--arch", "m.py", *arguments, "--out", "here")
        assert (code, out) == (2, "")
        message = "regbench: architecture 'm' cannot be scored: once trained, it sees the future: changing the token"
        assert err.splitlines()[-1].startswith(message)
        assert Path("here/seed-0/checkpoint.safetensors").exists()
        assert not Path("here/seed-0/scores.json").exists()
        code, _, err = said(capsys, "run", "--resume", "here")
        assert code == 2
        assert err.splitlines()[-1].startswith(message)


@pytest.mark.ci
def test_check_asks_what_run_would_do(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The track's longest length, the backend, the device, the precision, n-gram heads."""
    monkeypatch.setattr("regbench.checks.training.OVERFIT_STEPS", 1)
    monkeypatch.setattr("torch.compile", lambda model, **_: model)
    Path("m.py").write_text(
        """
import sys
import torch
import regbench
from regbench.ops.attention import attention
class M(regbench.Mixer):
    def __init__(self, options):
        super().__init__(options)
        self.out = torch.nn.Linear(options.d_model, options.d_model)
    def forward(self, x):
        half = torch.is_autocast_enabled("cpu")
        print("saw", x.shape[1], x.device.type, self.training and half, self.options.ngram_heads, self.options.ngram_after)
        one = x[:, None]
        return self.out(attention(one, one, one)[:, 0])
"""
    )
    arguments = ["--track", str(tiny_file), "--backend", "naive", "--device", "cpu", "--ngram-heads", "1,2"]
    arguments += ["--ngram-after", "2", "--set", "training.precision=bfloat16", "--set", "d_model=16"]
    code, out, err = said(capsys, "check", "--arch", "m.py", *arguments)
    assert [line.split()[1] for line in out.splitlines() if "FAILS" in line] == ["overfits"]
    assert code == 1
    longest = load_track(str(tiny_file)).task.io.max_length
    assert f"saw {longest} cpu True (1, 2) (2,)" in err
    assert f"saw {longest} cpu False (1, 2) (2,)" in err
    code, out, err = said(capsys, "check", "--arch", "m.py", "--backend", "attention=chunked")
    assert (code, out) == (2, "")
    assert err.startswith("regbench: attention has no backend 'chunked'")
    Path("same.py").write_text(PLUGIN)
    code, _, err = said(capsys, "check", "--arch", "same.py", "--track", str(tiny_file), "--backend", "naive")
    assert code == 2
    assert err == "regbench: backend 'naive' has no effect: this model uses no op with several implementations\n"


@pytest.mark.ci
@pytest.mark.parametrize("by", ["Ctrl-C", "SIGTERM"])
def test_interruption_says_how_to_go_on(
    by: str, capsys: pytest.CaptureFixture[str], tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        if by == "Ctrl-C":
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("regbench.training.trainer.Trainer._step", interrupt)
    Path("same.py").write_text(PLUGIN)
    code, _, err = said(capsys, "run", "--arch", "same.py", "--track", str(tiny_file), "--out", "here")
    assert code == 130
    assert err.endswith("regbench: interrupted; go on with: regbench run --resume here\n")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("at", ["regbench.cli.app._parse", "regbench.runner.evaluate_language_model"])
def test_whatever_is_interrupted_says_the_command(
    at: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(at, interrupt)
    code, out, err = said(capsys, "evaluate", "hf:gpt2", "--prompt", "Strings of one language:", "--out", "here")
    assert (code, out) == (130, "")
    command = "regbench evaluate hf:gpt2 --prompt 'Strings of one language:' --out here"
    assert err == f"regbench: interrupted; go on with: {command}\n"


MOST_COMMANDS = 17


def test_help_lists_few_commands_of_the_benchmark_and_in_one_line_those_of_papers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    listed = re.findall(r"^    (\w+)  +\w", out, flags=re.MULTILINE)
    assert {"run", "ls", "data", "probe"} <= set(listed)
    assert len(listed) <= MOST_COMMANDS
    assert "commands of papers: adapt, analyze, recall, specialize, study, tint\n" in out
    for text in ("examples:", "--arch my_mixer.py"):
        assert text in out


def test_another_distribution_adds_a_command_by_an_entry_point(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_command.py").write_text(
        '"""Say a word."""\ndef configure(parser): parser.add_argument("word")\n'
        "def main(arguments, console):\n    console.print(arguments.word)\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def added(name: str) -> None:
        points = [importlib.metadata.EntryPoint(name, "my_command", "regbench.commands")]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)

    added("say")
    assert said(capsys, "say", "hello")[:2] == (1, "hello\n")
    assert said(capsys, "sai")[2] == "regbench: unknown command 'sai'; did you mean 'say'?\n"
    for taken in ("tint", "ls"):
        added(taken)
        refused(capsys, ["ls"], f"command '{taken}' is registered twice: by ")


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("help", "run"), ("--version",)])
def test_help_and_version_are_no_errors(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    out = capsys.readouterr().out
    if arguments == ("--version",):
        assert re.fullmatch(r"regbench \d+\.\d+\.\d+\n", out)
    else:
        assert ("usage: regbench run" if "run" in arguments else "usage: regbench [-h] [--version] COMMAND") in out


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--seeds", "did you mean '--seed'?"),
        ("--epochs", "did you mean '--set training.epochs=VALUE'?"),
        ("--batch-size", "did you mean '--set training.batch_size=VALUE'?"),
    ],
)
def test_a_training_option_typed_as_a_flag_gets_a_hint(
    capsys: pytest.CaptureFixture[str], flag: str, hint: str
) -> None:
    code, _, err = said(capsys, "run", flag, "3")
    assert code == 2
    assert err == f"regbench: unrecognized argument '{flag}'; {hint}\n"


def test_options_without_a_command_and_an_option_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["-x", "-y"], ["--foo", "--bar"], ["--foo"]):
        code, _, err = said(capsys, *words)
        assert code == 2
        assert err.startswith("regbench: ")
        assert err.count("\n") == 1
    assert "did you mean" not in said(capsys, "run", "--seed")[2], "the option was meant"


def test_check_says_one_cause_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pair.py").write_text(PLUGIN.replace("return x", "return x, None"))
    code, out, _ = said(capsys, "check", "--arch", "pair.py")
    assert code == 1
    lines = [line for line in out.splitlines() if "FAILS" in line]
    assert len(lines) > 5
    assert lines[0].endswith("take its first, with [0]")
    assert sum("take its first" in line for line in lines) == 1
    assert all(line.endswith("for the same reason as shape") for line in lines[1:])


def test_the_baselines_are_scored_after_training(capsys: pytest.CaptureFixture[str], tiny_file: Path) -> None:
    """So nobody waits for them before the training is known to work; and an estimate comes before the training."""
    Path("one.yaml").write_text(tiny_file.read_text().replace("seed: 3", "seed: 11"))
    few = ("--arch", "lstm", "--set", "d_model=8", "--set", "training.train_tokens=1000")
    code, _, err = said(capsys, "run", "--track", "one.yaml", *few)
    assert code == 0
    assert 0 < err.index("training, seed 0") < err.index("scoring the baseline") < err.index("scoring the test split")


def test_the_estimate_is_printed_where_it_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalReporter(Console(stderr=True)) as reporter:
        reporter.estimated(2.0)
        reporter.estimated(7260.0)
    assert capsys.readouterr().err == "the training will take about 2:01:00 (hours:minutes:seconds)\n"


LIGHT = [
    *(
        ["ls", *words]
        for words in ([], ["architectures"], ["architectures", "mamba"], ["baselines"], ["tasks"], ["tracks"])
    ),
    *(["ls", kind] for kind in ("suites", "runs", "training")),
    *([*name, "--help"] for name in ([], *([one] for one in app._commands()))),
    ["data", "pfa-small-v1"],
    ["compare", "lstm", "mamba"],
]


@pytest.mark.ci
def test_what_is_only_read_imports_no_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the tables of `ls` are in the cache. The tasks of `data` and `compare` are compiled by Numba: others need not that."""
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path))
    code = (
        "import json, sys\nfrom regbench import cli\nfor words in json.loads(sys.argv[1]):\n"
        "    try: assert cli.main(words) == 0\n    except SystemExit: pass\n"
        "print('modules:', *({'torch', 'numba', 'matplotlib', 'pandas', 'jinja2'} & set(sys.modules)))"
    )

    def imported(*commands: list[str]) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(commands)], check=True, capture_output=True, text=True, cwd=ROOT
        )
        return {*done.stdout.splitlines()[-1].split()[1:]}

    assert imported(["ls", "architectures"]) >= {"torch"}, "nothing was in the cache"
    imported(["ls", "tracks"], ["ls", "architectures", "mamba"])
    assert imported(*LIGHT[:-2]) == set()
    assert imported(*LIGHT[-2:]) == {"numba"}


class Clock:
    """A second goes by with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_what_lasts_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every five seconds, and never of what is done at once."""
    monkeypatch.setattr("regbench.training.progress.time.monotonic", Clock())
    said: list[str] = []
    progress = now_and_then("predicting", said.append)
    for done in range(1, 13):
        progress(100 * done, 1200)
    assert said[0].startswith("predicting: ")
    assert all(re.fullmatch(r"predicting: [\d,]+ of 1,200 instances", line) for line in said)
    assert 2 <= len(said) <= 3
    with Bar(Console(stderr=True)) as bar:
        for name in ("Bayes", "3-gram"):
            for done in range(1, 13 if name == "Bayes" else 2):
                bar.announce(name, done, 12 if name == "Bayes" else 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["predicted by Bayes: 12 instances", "predicted by 3-gram: 1 instances"]
    assert 2 <= len([line for line in lines if re.fullmatch(r"predicted by Bayes: \d+ of 12 instances", line)]) <= 3


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["compare", "3-gram", "oracle"], "predicted by 3-gram: 24 instances"),
        (["baselines", "{track}"], "predicted by 3-gram on tiny-v1: 24 instances"),
        (["evaluate", "{run}"], "predicting the test split of tiny-v1"),
        (["verify", "{run}"], "scoring what seed 4 predicted, 2 of 2"),
        (["submit", "{run}", "--board", "."], "scoring what seed 4 predicted, 2 of 2"),
    ],
)
def test_each_long_command_says_what_it_does(
    arguments: list[str], line: str, run_folder: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(run=run_folder, track=tiny_file) for word in arguments]
    _, out, err = said(capsys, *words, *([] if arguments[0] == "baselines" else ["--track", str(tiny_file)]))
    assert line in err.splitlines()
    assert line not in out
