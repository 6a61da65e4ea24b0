"""The pytest plug-in as people meet it: their own test files, run by a pytest of their own."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regbench
from regbench import runner
from tests.helpers.documents import ROOT, blocks

pytest_plugins = ["pytester"]

RECORDS = "regbench_scores"
QUICK = {"d_model": 8, "n_layers": 1, "training.batch_size": 8, "training.evaluations": 4}
TEST = "def test_it(regbench_score):\n    regbench_score({arguments})\n"


@pytest.fixture(scope="module")
def good(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of an LSTM that has learned."""
    folder = tmp_path_factory.mktemp("runs") / "good"
    regbench.run(str(tiny_file), "lstm", (0, 1), settings=QUICK | {"training.learning_rate": 0.02}, out=folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _loaded(good: Path) -> None:
    """A pytest inside this one forgets the modules it was first to import; PyTorch cannot be imported twice."""


@pytest.fixture(scope="module")
def bad(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a learning rate at which it does not learn."""
    folder = tmp_path_factory.mktemp("runs") / "bad"
    regbench.run(str(tiny_file), "lstm", (0, 1), settings=QUICK | {"training.learning_rate": 1e-6}, out=folder)
    return folder


@pytest.fixture
def write(pytester: pytest.Pytester, tiny_file: Path) -> Callable[..., None]:
    """Writes `test_guard.py`, whose one test calls the fixture with these arguments; the track is the tiny one."""

    def call(arch: str | None = None, **arguments: Any) -> None:
        given = {"track": str(tiny_file), "metric": "nll"} | arguments
        texts = [repr(arch)] if arch else []
        texts += [f"{k}={(str(v) if isinstance(v, Path) else v)!r}" for k, v in given.items()]
        pytester.makepyfile(test_guard=TEST.format(arguments=", ".join(texts)))

    return call


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is trained")

    monkeypatch.setattr(runner, "run", refuse)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """A pytest in the test's own folder, without plug-ins that would be loaded anew each time."""
    return pytester.runpytest("-p", "no:hypothesispytest", "-p", "no:benchmark", *arguments)


def record_of(pytester: pytest.Pytester) -> Path:
    (path,) = (pytester.path / RECORDS).iterdir()
    return path


def failure(result: pytest.RunResult) -> str:
    """What the one failing test says: the text between its heading and the summary."""
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    return text.split("FAILURES")[1].split("\n", 2)[2].split("\n====")[0]


class TestLoading:
    @pytest.mark.ci
    def test_the_installed_plugin_is_this_one(self) -> None:
        (point,) = (p for p in importlib.metadata.entry_points(group="pytest11") if p.name == "regbench")
        assert point.value == "regbench.pytest_plugin"

    def test_a_pytest_that_does_not_use_it_loads_nothing_heavy(self, tmp_path: Path) -> None:
        """With no other plug-in, so that what is loaded is loaded by this one."""
        (tmp_path / "test_nothing.py").write_text(
            "import sys\n"
            "def test_nothing():\n"
            "    heavy = {'torch', 'numpy', 'numba', 'pydantic', 'yaml', 'matplotlib', 'pandas', 'scipy', 'rich'}\n"
            "    assert 'regbench.pytest_plugin' in sys.modules\n"
            "    assert heavy & set(sys.modules) == set()\n"
        )
        command = [sys.executable, "-m", "pytest", "-p", "regbench.pytest_plugin", "-q", "test_nothing.py"]
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_flags_are_in_the_help(self, pytester: pytest.Pytester) -> None:
        text = run(pytester, "--help").stdout.str()
        assert "--regbench-update" in text
        assert "--regbench-tracks=T,T" in text
        assert "regbench_score" in run(pytester, "--fixtures").stdout.str()


@pytest.mark.ci
def test_the_example_of_the_page(pytester: pytest.Pytester, tiny_file: Path) -> None:
    """docs/score-regression.md: records, then passes by training again to the very score; on a smaller track."""
    pages = ("README.md", "docs/score-regression.md")
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    mixer, example = (
        next(block for kind, block in blocks(text) if kind == "python" and block.startswith(f"# {name}"))
        for name in ("my_mixer.py", "test_my_mixer.py")
    )
    Path("my_mixer.py").write_text(mixer)
    assert "pfa-small-v1" in example
    pytester.makepyfile(test_my_mixer=example.replace("pfa-small-v1", str(tiny_file)).replace("400_000", "4_000"))
    recorded = run(pytester, "--regbench-update")
    recorded.assert_outcomes(passed=1)
    recorded.stdout.re_match_lines([r"test_my_mixer\.py::test_it_still_learns: recorded legal_accuracy 0\.\d+ in "])
    path = record_of(pytester)
    assert path.name == "test_my_mixer.test_it_still_learns.my_mixer-tiny-v1.json"
    before = path.read_bytes()
    assert [seed["seed"] for seed in json.loads(before)["seeds"]] == [0, 1]
    again = run(pytester)
    again.assert_outcomes(passed=1)
    assert "regbench =" not in again.stdout.str(), "there is nothing to say"
    assert path.read_bytes() == before


@pytest.mark.ci
def test_a_class_is_named_as_in_a_run(pytester: pytest.Pytester, tiny_file: Path) -> None:
    mixer = (
        "import regbench\n\n\nclass Passes(regbench.Mixer):\n    def forward(self, x):\n        return x.cumsum(1)\n"
    )
    call = f"regbench_score(Passes, track={str(tiny_file)!r}, settings={{'d_model': 8, 'training.train_tokens': 4000}})"
    pytester.makepyfile(test_own=f"{mixer}\n\ndef test_it(regbench_score):\n    {call}\n")
    run(pytester, "--regbench-update").assert_outcomes(passed=1)
    assert record_of(pytester).name == "test_own.test_it.Passes-tiny-v1.json"
    run(pytester).assert_outcomes(passed=1)


class TestOutcomes:
    @pytest.mark.ci
    def test_a_worse_score_fails_and_is_explained(
        self, pytester: pytest.Pytester, write: Callable[..., None], good: Path, bad: Path
    ) -> None:
        write(folder=good)
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        write(folder=bad, level=0.01)
        text = failure(run(pytester))
        then, now = (regbench.read_result(folder).seeds for folder in (good, bad))
        expected, got = (np.mean([seed.scores["nll"].value for seed in seeds]) for seeds in (then, now))
        assert text.startswith(f"nll of lstm on tiny-v1: expected {expected:.4f}, got {got:.4f}, worse (noise 0.")
        for row in (
            rf"  expected  {expected:.4f} \(by seed 0: {then[0].scores['nll'].value:.4f}, 1: ",
            rf"  got       {got:.4f} \(by seed 0: {now[0].scores['nll'].value:.4f}, 1: ",
            rf"  change    -{got - expected:.4f} where \+ is better; -0\.\d+ is allowed",
            r"  noise     0\.\d+, one standard error: 0\.\d+ from instances, 0\.\d+ from seeds; allowed are \d\.\d\d of them "
            r"\(level 0\.005, [\d.]+ degrees of freedom\)",
            r"  training  the \w+ loss is first apart at evaluation \d of 4, step \d+: expected \d\.\d+, got \d\.\d+, noise ",
            r"  positions no bin by itself is apart by more than chance explains with so few seeds$",
            r"  changed   nothing that the record knows of",
            rf"  run       {re.escape(str(bad))}",
            r"If this is meant, record it with --regbench-update",
        ):
            assert re.search(rf"^{row}", text, flags=re.MULTILINE), row
        assert "Traceback" not in text
        assert "regbench/" not in text, "no lines of the plug-in's own code"

    def test_a_better_score_passes_and_is_said(
        self, pytester: pytest.Pytester, write: Callable[..., None], good: Path, bad: Path
    ) -> None:
        write(folder=bad)
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        before = record_of(pytester).read_bytes()
        write(folder=good)
        result = run(pytester)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            ["*test_it: nll of lstm on tiny-v1: expected *, better (*); keep it with --regbench-update"]
        )
        assert record_of(pytester).read_bytes() == before
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        assert record_of(pytester).read_bytes() != before

    def test_the_outcome_is_returned(self, pytester: pytest.Pytester, tiny_file: Path, good: Path) -> None:
        pytester.makepyfile(
            "def test_it(regbench_score):\n"
            f"    outcome = regbench_score(folder={str(good)!r}, track={str(tiny_file)!r})\n"
            "    assert outcome.got.sample.mean > 0.2\n"
            "    assert outcome.change.change == 0.0\n"
            "    sample, counts = outcome.got.sample, outcome.got.counts\n"
            "    assert abs(sum(outcome.got.instances) / sum(counts) - sample.mean) < 1e-5\n"
        )
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        run(pytester).assert_outcomes(passed=1)


@pytest.mark.usefixtures("no_training")
class TestBeforeAnythingIsTrained:
    def test_a_missing_record_fails_in_one_line(self, pytester: pytest.Pytester, write: Callable[..., None]) -> None:
        write("lstm")
        path = pytester.path / RECORDS / "test_guard.test_it.lstm-tiny-v1.json"
        expected = f"regbench: no score is recorded in {path}; record it with --regbench-update"
        assert failure(run(pytester)) == expected
        assert not path.parent.exists()

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("track", "other-v1", "is of the track other-v1, not tiny-v1"),
            ("track_digest", "ab" * 32, "is of another tiny-v1: the track was edited since (digest abababababab, now"),
            ("test_fingerprint", "cd" * 32, "is of other test instances of tiny-v1 (fingerprint cdcdcdcdcdcd, now"),
            ("architecture", "median", "is of the architecture median, not lstm"),
            ("metric", "tvd", "is of tvd, not nll; record with --regbench-update"),
            ("settings", {"d_model": 9}, "is of other settings: d_model=9 is now 8; record with --regbench-update"),
            ("schema_version", 2, "schema_version: input should be 1"),
        ],
    )
    def test_a_record_of_something_else(
        self,
        pytester: pytest.Pytester,
        write: Callable[..., None],
        good: Path,
        field: str,
        value: object,
        message: str,
    ) -> None:
        write(folder=good)
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        path = record_of(pytester)
        path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
        write("lstm", settings={"d_model": 8})
        text = failure(run(pytester))
        assert message in text
        assert "\n" not in text

    @pytest.mark.parametrize(
        ("arch", "arguments", "message"),
        [
            ("lstm", {"track": "pfa-smal-v1"}, "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'?"),
            ("lstm", {"metric": "nnl"}, "tiny-v1 has no score 'nnl'; did you mean 'nll'?"),
            ("lstm", {"settings": {"f": float("inf")}}, "settings cannot be recorded"),
            (None, {}, "regbench_score needs an architecture, or folder= with a finished run"),
            (None, {"folder": "runs/nowhere"}, "cannot read "),
            (None, {"folder": "x", "seeds": (1,), "device": "cpu"}, "seeds, device cannot be given with it"),
        ],
    )
    def test_wrong_arguments(
        self,
        pytester: pytest.Pytester,
        write: Callable[..., None],
        arch: str | None,
        arguments: dict[str, Any],
        message: str,
    ) -> None:
        if "settings" in arguments:  # repr(inf) is no Python
            pytester.makepyfile(
                "def test_it(regbench_score):\n    regbench_score('lstm', settings={'f': float('inf')})\n"
            )
        else:
            write(arch, **arguments)
        text = failure(run(pytester))
        assert text.startswith("regbench: ")
        assert message in text
        assert "\n" not in text

    def test_a_wrong_level_is_said_before_anything_is_trained(
        self, pytester: pytest.Pytester, write: Callable[..., None]
    ) -> None:
        write("lstm", level=0.7)
        said = "regbench: level must be above 0 and below 0.5, not 0.7"
        assert failure(run(pytester, "--regbench-update")) == said

    @pytest.mark.ci
    def test_a_run_of_another_architecture_or_track(
        self, pytester: pytest.Pytester, write: Callable[..., None], good: Path
    ) -> None:
        write("mamba", folder=good)
        assert failure(run(pytester)).endswith("is a run of lstm, not mamba")
        write(folder=good, track="pfa-small-v1")
        assert "is of the track tiny-v1, not pfa-small-v1" in failure(run(pytester, "--regbench-update"))


class TestSeeds:
    def test_more_seeds_may_be_recorded_than_compared(
        self, pytester: pytest.Pytester, write: Callable[..., None], good: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[int, ...]] = []

        def stand_in(track: str, arch: str, seeds: Any, *, out: Path, **_: object) -> None:
            asked.append(tuple(seeds))
            out.parent.mkdir(exist_ok=True)
            out.symlink_to(good, target_is_directory=True)

        monkeypatch.setattr(runner, "run", stand_in)
        write("lstm", seeds=(4,), record_seeds=(0, 1, 2))
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        run(pytester).assert_outcomes(passed=1)
        write("lstm")
        run(pytester).assert_outcomes(passed=1)
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        assert asked == [(0, 1, 2), (4,), (0,), (0, 1, 2)]

    def test_one_seed_is_no_record(
        self, pytester: pytest.Pytester, write: Callable[..., None], tiny_file: Path
    ) -> None:
        write("lstm", seeds=(0,), settings=QUICK)
        said = "regbench: one seed says nothing of the spread over seeds: record two or more, better three"
        assert failure(run(pytester, "--regbench-update")).startswith(said)


@pytest.mark.usefixtures("no_training")
class TestTracks:
    def test_tests_on_other_tracks_are_skipped(
        self, pytester: pytest.Pytester, write: Callable[..., None], good: Path
    ) -> None:
        write(folder=good)
        run(pytester, "--regbench-update").assert_outcomes(passed=1)
        run(pytester, "--regbench-tracks", "pfa-v1, tiny-v1").assert_outcomes(passed=1)
        result = run(pytester, "--regbench-tracks", "pfa-v1", "-rs")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED*on the track tiny-v1, and --regbench-tracks chose pfa-v1"])


@pytest.mark.usefixtures("no_training")
class TestRecords:
    @pytest.mark.ci
    def test_every_call_has_its_own(self, pytester: pytest.Pytester, tiny_file: Path, good: Path) -> None:
        call = f"regbench_score(folder={str(good)!r}, track={str(tiny_file)!r}, metric="
        pytester.makepyfile(
            test_guard="import pytest\n"
            "@pytest.mark.parametrize('metric', ['nll', 'tvd'])\n"
            f"def test_one(regbench_score, metric):\n    {call}metric)\n"
            "@pytest.mark.parametrize('odd', ['a/b', 'a:b', 'ä' * 300])\n"
            f"def test_odd(regbench_score, odd):\n    {call}'nll')\n"
            "class TestMore:\n"
            "    def test_one(self, regbench_score):\n"
            f"        {call}'nll', name='first')\n"
            f"        {call}'tvd', name='second')\n"
        )
        run(pytester, "--regbench-update").assert_outcomes(passed=6)
        names = sorted(path.name for path in (pytester.path / RECORDS).iterdir())
        assert len(names) == 7
        assert "test_guard.TestMore.test_one.second.json" in names
        assert sum(name.startswith("test_guard.test_odd-a-b-.lstm-tiny-v1-") for name in names) == 2
        run(pytester).assert_outcomes(passed=6)

    def test_two_calls_that_would_share_one(self, pytester: pytest.Pytester, tiny_file: Path, good: Path) -> None:
        call = f"    regbench_score(folder={str(good)!r}, track={str(tiny_file)!r}, metric="
        pytester.makepyfile(test_guard=f"def test_it(regbench_score):\n{call}'nll')\n{call}'tvd')\n")
        text = failure(run(pytester, "--regbench-update"))
        name = "test_guard.test_it.lstm-tiny-v1.json"
        assert text == f"regbench: two scores of this test share the record {name}; give each a name="

    def test_files_are_seen_from_the_tests_folder(
        self, pytester: pytest.Pytester, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Wherever pytest is called from: the architecture, the track, a run, and the records."""
        asked: list[str] = []
        monkeypatch.setattr(runner, "run", lambda track, arch, *_, **__: asked.extend((track, arch)))
        inner = pytester.mkdir("inner")
        (inner / "my-v1.yaml").write_text(tiny_file.read_text())
        arguments = "'../mine.py:Mine', track='my-v1.yaml'"
        (inner / "test_guard.py").write_text(TEST.format(arguments=arguments))
        text = failure(run(pytester, "inner"))
        assert f"no score is recorded in {inner / RECORDS / 'test_guard.test_it.Mine-tiny-v1.json'}" in text
        run(pytester, "inner", "--regbench-update")
        assert asked == [str(inner / "my-v1.yaml"), str(inner / "../mine.py:Mine")]
