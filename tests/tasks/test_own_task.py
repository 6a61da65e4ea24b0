"""A task in a file of your own: where it is looked for, what an edit of it undoes, and that a broken one is never scored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regbench
from regbench import cli
from regbench.checks.task import examine_task_once
from regbench.report.instances import draw_instances
from regbench.results import read_result
from regbench.tracks import Track, load_track
from regbench.training.trainer import Trainer
from regbench.utils.errors import UserError

RUN = ["run", "--arch", "lstm", "--set", "d_model=8", "--set", "n_layers=1", "--set", "training.train_tokens=1600"]


@pytest.fixture
def edit(own: Path) -> Callable[[str, str], None]:
    """Puts something else into `repeating.py`."""

    def call(old: str, new: str) -> None:
        text = (own / "repeating.py").read_text()
        assert old in text
        (own / "repeating.py").write_text(text.replace(old, new))

    return call


def test_a_tasks_file_is_looked_for_beside_the_track(
    own: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever one stands; and a file of the same name elsewhere is another task."""
    here = load_track("repeating-v1.yaml").instances("test")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert load_track(str(own / "repeating-v1.yaml")).instances("test").fingerprint == here.fingerprint
    text = (own / "repeating.py").read_text()
    (elsewhere / "repeating.py").write_text(text.replace("stream(splits.seed, 0, k)", "stream(splits.seed, 1, k)"))
    (elsewhere / "repeating-v1.yaml").write_text((own / "repeating-v1.yaml").read_text())
    assert load_track("repeating-v1.yaml").instances("test").fingerprint != here.fingerprint
    (elsewhere / "repeating.py").unlink()
    with pytest.raises(UserError, match="^no such file: repeating.py$"):
        load_track("repeating-v1.yaml")


def test_an_edit_without_a_new_version_makes_the_instances_anew(edit: Callable[[str, str], None]) -> None:
    before = load_track("repeating-v1.yaml")
    assert before.task_code is not None
    fingerprint = before.instances("test").fingerprint
    edit("unit(rng) < p.noise", "unit(rng) <= 2 * p.noise")
    assert load_track("repeating-v1.yaml").instances("test").fingerprint != fingerprint
    assert before.instances("test").fingerprint == fingerprint  # what was loaded before the edit is what it was


def test_of_a_distribution_all_that_it_imports_counts(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By relative names too."""
    package = tmp_path / "site" / "words_of_ones_own"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    text = (own / "repeating.py").read_text().replace("unit(rng) < p.noise", "changed(rng, p.noise)")
    (package / "task.py").write_text(
        text.replace("import regbench\n", "import regbench\nfrom .noise import changed\n", 1)
    )
    noise = "from regbench.data.rng import unit\n\n\ndef changed(rng, noise):\n    return unit(rng) < noise\n"
    (package / "noise.py").write_text(noise)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    codes = []
    for changed in (noise, noise.replace("<", "<=")):
        (package / "noise.py").write_text(changed)
        for name in [name for name in sys.modules if name.startswith("words_of_ones_own")]:
            del sys.modules[name]
        module = __import__("words_of_ones_own.task").task
        codes.append(regbench.utils.registry.source_files(module.Repeating))
        codes.append(regbench.utils.registry.source_digest(module.Repeating))
    assert [path.name for path in codes[0]] == ["noise.py", "task.py"]
    assert codes[1] != codes[3]


@pytest.mark.parametrize(
    "at",
    [2, 3],
)
def test_a_run_does_not_go_on_with_another_task(
    edit: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Neither within a seed nor between two."""
    evaluate, calls = Trainer._evaluate, []

    def killed(trainer: Any) -> float:
        calls.append(trainer)
        if len(calls) == at:
            raise KeyboardInterrupt
        return evaluate(trainer)

    settings = {"d_model": 8, "n_layers": 1, "training.train_tokens": 1600, "training.evaluations": 2}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            regbench.run("repeating-v1.yaml", "lstm", (0, 1), settings=settings, out="out")
    edit("(1 - p.noise) * np.eye", "1.0 * (1 - p.noise) * np.eye")
    with pytest.raises(UserError, match="seed-0 has begun before the task's code changed"):
        regbench.resume("out")
    edit("1.0 * (1 - p.noise) * np.eye", "(1 - p.noise) * np.eye")  # undone
    assert [seed.seed for seed in regbench.resume("out").seeds] == [0, 1]


def test_predictions_are_not_drawn_over_other_instances(own: Path, edit: Callable[[str, str], None]) -> None:
    assert cli.main([*RUN, "--track", "repeating-v1.yaml", "--out", "out"]) == 0
    result = read_result(own / "out")
    assert draw_instances(own / "out", result, load_track("repeating-v1.yaml")).strips is not None
    edit("stream(splits.seed, 0, k)", "stream(splits.seed, 1, k)")
    drawn = draw_instances(own / "out", result, load_track("repeating-v1.yaml"))
    assert drawn.strips is None
    assert "the code that makes the test instances of repeating-v1 has changed" in drawn.why_not


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(1 - p.noise) * np.eye", "np.eye", "task 'repeating' cannot be scored: the truth sums to 1.1, not 1, at"),
        (
            "    def identities",
            "    def identites",
            "Repeating of repeating.py is not a complete task: it lacks identities",
        ),
        (
            "        p, first, found",
            "        1 / 0; p, first, found",
            "task 'repeating' raises {}: ZeroDivisionError: division by zero",
        ),
        ("        symbols = np", "        symbols = 1 / 0, np", "raises {}: ZeroDivisionError: division by zero"),
        ("return [row.tobytes()", "return [row.nothing()", "raises {}: AttributeError: 'numpy.ndarray' object has no"),
        (
            "        return regbench.Instances",
            "        return regbench.Instances)",
            "repeating.py cannot be imported: {}: SyntaxError",
        ),
    ],
)
def test_a_broken_task_is_refused_in_one_line_and_leaves_nothing(
    own: Path, edit: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    """By all that would score something on it."""
    edit(old, new)
    line = 1 + (own / "repeating.py").read_text().partition(new)[0].count("\n")
    track = ["--track", "repeating-v1.yaml"]
    for command in (
        ["data", "repeating-v1.yaml"],
        [*RUN, *track, "--out", "out"],
        ["baselines", "repeating-v1.yaml"],
        ["compare", "uniform", "3-gram", *track],
        ["check", "--arch", "lstm", *track],
    ):
        assert cli.main(command) == 2
        complaint = capsys.readouterr().err.replace("examining the task repeating\n", "").strip()
        assert complaint.startswith("regbench: ")
        assert said.format(f"{own / 'repeating.py'}:{line}") in complaint
        assert "\n" not in complaint
    assert not (own / "out").exists()


def test_a_split_need_not_have_the_statistics_of_the_others(
    edit: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = 'return {f"of {len(instances)}": 1.5}'
    edit("    def identities", f"    def statistics(self, instances):\n        {sizes}\n\n    def identities")
    assert cli.main(["data", "repeating-v1.yaml"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "1.500" in line]) == 3


def test_what_fails_in_showing_is_said_too(
    edit: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    edit("    def identities", "    def show(self, instances, index):\n        return 1 / 0\n\n    def identities")
    assert cli.main(["data", "repeating-v1.yaml"]) == 2
    assert "task 'repeating' raises" in capsys.readouterr().err


def test_a_task_that_draws_nothing_of_its_own_is_shown(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each token, and behind those that are scored their true probability."""
    track = load_track("repeating-v1.yaml")
    one = track.instances("test")[3:4]
    text = track.task.show(track.instances("test"), 3)
    truth, names = track.task.truth(one)[0], track.task.io.names
    expected = [
        f"{names[token]}:{truth[t, token]:.2f}" if one.scored[0, t] else names[token]
        for t, token in enumerate(one.tokens[0])
    ]
    assert text.split("  ") == expected


def test_built_in_tasks_are_examined_by_their_tests_and_by_data(
    tiny: Track, monkeypatch: pytest.MonkeyPatch, tiny_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(track: Track) -> None:
        raise UserError("asked")

    assert tiny.task_code is None
    monkeypatch.setattr("regbench.checks.task.examine_task", refuse)
    examine_task_once(tiny)
    assert cli.main(["data", str(tiny_file)]) == 2
    assert capsys.readouterr().err == "regbench: asked\n"
