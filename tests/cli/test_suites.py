"""`regbench run --suite`: a run folder for each track, one table, resuming, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from regbench import runner
from regbench.cli import tables as suites
from regbench.config import Config
from regbench.metrics.metric import METRICS
from regbench.results import read_result
from regbench.sweeps.suite import begin_suite
from regbench.tracks.suite import load_suite
from regbench.training.progress import SILENT
from regbench.utils.files import exclusive
from tests.conftest import TINY
from tests.helpers.typed import PLUGIN, said

RUN = ("run", "--arch", "same.py", "--set", "d_model=8", "--suite", "two.yaml", "--out", "here")


@pytest.fixture(autouse=True)
def _a_suite_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an architecture and a suite of two tiny tracks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("same.py").write_text(PLUGIN)
    Path("tiny-v1.yaml").write_text(yaml.safe_dump(TINY))
    other = TINY | {"name": "other-v1", "main_score": "tvd"}
    Path("other-v1.yaml").write_text(yaml.safe_dump(other))
    Path("two.yaml").write_text(yaml.safe_dump({"name": "two", "tracks": ["tiny-v1.yaml", "other-v1.yaml"]}))


@pytest.mark.ci
def test_a_suite_has_a_run_folder_and_a_row_for_each_track(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, *RUN, "--seed", "0", "1")
    assert code == 0
    results = {name: read_result(Path("here") / name) for name in ("tiny-v1", "other-v1")}
    rows = {line.split()[0]: line for line in out.splitlines() if "±" in line}
    assert list(rows) == ["tiny-v1", "other-v1"]
    shares = []
    for name, result in results.items():
        assert len(result.seeds) == 2
        main = result.track.main_score
        assert f"{result.score(main).value:.3f} ±{result.score(main).stderr:.3f}" in rows[name]
        shares.append(sum(seed.share_of_the_way[main] for seed in result.seeds) / 2)
        assert re.search(rf" {100 * shares[-1]:.0f} ", rows[name])
        choose = max if METRICS[main].higher_is_better else min
        known = {b: record.scores[main].value for b, record in result.baselines.items() if b != "oracle"}
        best = choose(known, key=known.__getitem__)
        assert f"{best} {known[best]:.3f}" in rows[name]
    assert f"mean of the normalized scores: {50 * sum(shares):.0f}, over 2 of 2 tracks" in out
    code, again, _ = said(capsys, "run", "--resume", "here")
    assert code == 0
    assert again == out


@pytest.mark.ci
def test_a_folder_that_another_run_has_is_left_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive(Path("here")):
        code, _, err = said(capsys, *RUN)
        assert code == 2
        assert "here is in use by another run" in err
        assert Path("here").is_dir()
    assert said(capsys, *RUN)[0] == 0


def test_a_refused_suite_leaves_the_folder_that_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    Path("here").mkdir()
    words = [*RUN, "--set", "no_such_option=1"]
    assert said(capsys, *words)[0] == 2
    assert Path("here").is_dir()
    assert [path.name for path in Path("here").iterdir() if path.name != ".lock"] == []
    Path("here/.lock").unlink(missing_ok=True)
    Path("here").rmdir()
    assert said(capsys, *words)[0] == 2
    assert not Path("here").exists()
    Path("file").write_text("")
    code, _, err = said(capsys, *(f"file/{word}" if word == "here" else word for word in RUN))
    assert code == 2
    assert "a part of that path is a file, no folder" in err


def test_two_suites_of_one_second_have_two_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20300101-000000")
    asked = Config(track="tiny-v1.yaml", architecture="same.py", settings={"d_model": 8})
    made = [begin_suite(load_suite("two.yaml"), asked, None, SILENT) for _ in range(2)]
    assert [folder.name for folder in made] == ["two-same-20300101-000000", "two-same-20300101-000000-2"]


def test_an_interrupted_suite_with_jobs_says_how_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seeds are trained by other processes, so that no run has begun in this one."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regbench.cli.live.go_on", stopped)
    code, _, err = said(capsys, *RUN, "--jobs", "1")
    assert code == 130
    assert "interrupted; go on with: regbench run --resume here" in err


@pytest.mark.ci
def test_an_interrupted_suite_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runner.resume

    def stop_at_the_second(folder: Path, reporter: object) -> object:
        if Path(folder).name == "other-v1":
            raise KeyboardInterrupt
        return whole(folder, reporter)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "resume", stop_at_the_second)
    code, _, err = said(capsys, *RUN)
    assert code == 130
    assert "interrupted; go on with: regbench run --resume here" in err
    done = Path("here/tiny-v1/result.json").read_bytes()
    assert not Path("here/other-v1/result.json").exists()
    monkeypatch.setattr(runner, "resume", whole)
    code, out, _ = said(capsys, "run", "--resume", "here")
    assert code == 0
    assert "over 2 of 2 tracks" in out
    assert Path("here/tiny-v1/result.json").read_bytes() == done


@pytest.mark.ci
def test_seeds_side_by_side_give_the_same_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *RUN)[0] == 0
    alone = read_result(Path("here/tiny-v1")).seeds[0].scores
    code, out, _ = said(capsys, *RUN[:-1], "there", "--jobs", "1")
    assert code == 0
    assert "other-v1" in out
    assert read_result(Path("there/tiny-v1")).seeds[0].scores == alone


@pytest.mark.ci
def test_the_best_entry_of_the_board_stands_beside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The best by the direction of the score; broken entries and those of another definition do not count."""
    assert said(capsys, *RUN)[0] == 0
    result = read_result(Path("here/other-v1"))

    class Stored:
        def __init__(self, name: str, value: float, digest: str, faults: list[str]) -> None:
            self.name, self.value, self.digest, self.faults = name, value, digest, faults

        @property
        def entry(self) -> object:
            score = type("S", (), {"value": self.value})()
            track = type("T", (), {"digest": self.digest})()
            found = type("R", (), {"track": track, "score": lambda _, metric: {"tvd": score}[metric]})()
            return type("E", (), {"name": self.name, "result": found})()

    own = result.track.digest
    kept = [
        Stored("first", 0.3, own, []),
        Stored("best", 0.2, own, []),
        Stored("broken", 0.0, own, ["it was changed"]),
        Stored("edited", 0.1, "0" * 64, []),
    ]
    folders: list[Path] = []
    monkeypatch.setattr("regbench.leaderboard.standing.find_board", lambda given: tmp_path)
    monkeypatch.setattr("regbench.leaderboard.standing.stored_in", lambda folder: folders.append(folder) or kept)
    assert suites.best_entry(result, METRICS) == "best 0.200"
    assert folders == [tmp_path / "entries" / "other-v1"]
    kept.clear()
    assert suites.best_entry(result, METRICS) == "—"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--suite", "quik"), "unknown suite 'quik'; did you mean 'quick'"),
        (("--suite", "two.yaml", "--track", "pfa-small-v1"), "--suite names its tracks: leave out --track"),
        (("--suite", "two.yaml", "--config", "c.yaml"), "--suite names its tracks: leave out --config"),
        (("--suite", "two.yaml", "--resume", "here"), "--suite cannot change it"),
        (("--suite", "two.yaml", "--arch", "manba"), "did you mean 'mamba'"),
        (("--suite", "two.yaml", "--set", "d_modle=3"), "did you mean 'd_model'"),
        (("--suite", "two.yaml", "--out", "full"), "full is not empty; choose another --out"),
        (("--suite", "two.yaml", "--out", "begun"), "choose another --out, or go on with --resume begun"),
        (("--resume", "bad"), "bad/suite.yaml is not the record of a suite"),
        (("--suite", "two.yaml", "--jobs", "4096"), "4096 runs"),
        (("--suite", "two.yaml", "--set", "task.max_states=3"), "settings task.NAME are of a single track"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    for file, text in (
        ("full/file", ""),
        ("begun/suite.yaml", "name: two\ntracks: []\n"),
        ("bad/suite.yaml", "name: x"),
    ):
        Path(file).parent.mkdir()
        Path(file).write_text(text)
    code, out, err = said(capsys, "run", *arguments)
    assert code == 2
    assert not out
    assert message in err.splitlines()[-1]
    assert not Path("runs").exists()
    assert Path("full/file").exists()


@pytest.mark.ci
def test_a_track_that_refuses_leaves_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """The second track is of vectors, which this architecture does not take: nothing of the first is left either."""
    Path("two.yaml").write_text(
        yaml.safe_dump({"name": "two", "tracks": ["tiny-v1.yaml", "linear-regression-small-v1"]})
    )
    code, _, err = said(capsys, "run", "--arch", "learned_ngram", "--suite", "two.yaml", "--out", "gone")
    assert code == 2
    assert "vectors" in err.splitlines()[-1]
    assert not Path("gone").exists()
