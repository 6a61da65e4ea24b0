"""The table of baselines: its scores and paired differences, the page it is written into, the cache behind it, the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import yaml

from baselines.ngram import NGram
from regbench import cli
from regbench.evaluation.baseline_predictions import (
    CompactBaselinePredictions,
    baseline_key,
    baseline_predictions,
    cached_baseline_predictions,
    code_digest,
    whole_baseline_predictions,
)
from regbench.evaluation.baselines import lineup, score_baselines
from regbench.report.baseline_table import BEGIN, END, TrackTable, markdown, measure, read_table, write_tables
from regbench.tracks import Track, load_track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from regbench.utils.registry import _import_file
from tests.conftest import MARKOV, TINY

PAGE = f"# Page\n\n{BEGIN}\nold\n{END}\n\nMore.\n"


@pytest.fixture(scope="module")
def table(tiny: Track) -> TrackTable:
    return measure(tiny)


def test_scores_are_those_beside_every_result(tiny: Track, table: TrackTable) -> None:
    records = score_baselines(tiny, tiny.instances("test"), lambda name: None)
    assert set(table.rows) == set(records)
    for name, record in records.items():
        row = table.rows[name]
        assert row.options == record.options
        for metric, value in record.scores.items():
            assert row.scores[metric].value == pytest.approx(value.value, abs=1e-9)
            assert row.scores[metric].stderr == pytest.approx(value.stderr, abs=1e-9)
    values = [row.scores["legal_accuracy"].value for row in table.rows.values()]
    assert values == sorted(values, reverse=True)
    assert table.best == next(name for name in table.rows if name != "oracle")
    assert table.split == tiny.instances("test").fingerprint


def test_differences_are_paired(tiny: Track, table: TrackTable) -> None:
    """By instance: the mean difference of two predictors, and its error as of a ratio of sums."""
    test = tiny.instances("test")
    said = {b.name: b.predict(test.tokens) for b in lineup(tiny, test)}

    def tvd(name: str) -> FloatArray:
        return np.where(test.scored, 0.5 * np.abs(said[name] - tiny.task.truth(test)).sum(-1), 0.0).sum(1)

    counts = test.scored.sum(1)
    for name, row in table.rows.items():
        if name == table.best:
            assert row.difference == {}
            continue
        gap = tvd(name) - tvd(table.best)
        value = gap.sum() / counts.sum()
        error = np.std(gap - value * counts, ddof=1) / np.sqrt(len(gap)) / counts.mean()
        assert row.difference["tvd"].value == pytest.approx(value, abs=1e-9)
        assert row.difference["tvd"].stderr == pytest.approx(error, abs=1e-9)
    unpaired = np.hypot(*(table.rows[name].scores["tvd"].stderr for name in ("2-gram", "3-gram")))
    assert table.rows["2-gram"].difference["tvd"].stderr < unpaired


def test_the_page_gets_the_table_and_the_numbers_lie_beside_it(tmp_path: Path, table: TrackTable) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    write_tables(page, {"tiny-v1": table})
    text = page.read_text()
    assert text.startswith(f"# Page\n\n{BEGIN}\n\n### tiny-v1\n")
    assert text.endswith(f"|\n\n{END}\n\nMore.\n")
    assert "old" not in text
    (row,) = (line for line in text.splitlines() if line.startswith("| 3-gram |"))
    scores = table.rows["3-gram"].scores
    assert f"| {scores['tvd'].value:.3f} ± {scores['tvd'].stderr:.3f} |" in row
    read = read_table(tmp_path / "scores.json")
    assert read.tracks == {"tiny-v1": table}
    write_tables(page, {"other-v1": table})  # adds a track, keeps the first
    assert list(read_table(tmp_path / "scores.json").tracks) == ["tiny-v1", "other-v1"]
    assert markdown(read_table(tmp_path / "scores.json")) in page.read_text()
    write_tables(page, {"tiny-v1": table})
    assert page.read_text().count("### ") == 2


# --- The cache. ---


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """How many rows NGram was asked for, call by call, with a cache that is empty at first."""
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path))
    found: list[int] = []
    original = NGram.predict

    def predict(self: NGram, tokens: IntArray) -> FloatArray:
        found.append(len(tokens))
        return original(self, tokens)

    monkeypatch.setattr(NGram, "predict", predict)
    return found


def test_predictions_are_made_once(tiny: Track, calls: list[int]) -> None:
    test, told = tiny.instances("test"), []
    model = NGram(2, 5, 4)
    assert cached_baseline_predictions(model, tiny, test) is None
    made = baseline_predictions(model, tiny, test, lambda done, total: told.append((done, total)))
    assert told[-1] == (24, 24)
    whole = NGram(2, 5, 4).predict(test.tokens)
    calls.clear()
    again = baseline_predictions(NGram(2, 5, 4), tiny, test)
    assert calls == []
    np.testing.assert_array_equal(again.packed, made.packed)
    assert (again.seconds, again.processor_seconds, again.threads) == (
        made.seconds,
        made.processor_seconds,
        made.threads,
    )
    batches = list(again.batches(10))
    assert [len(batch) for batch in batches] == [10, 10, 4]
    for i in range(24):
        n = test.lengths[i]
        np.testing.assert_array_equal(batches[i // 10][i % 10, :n], whole[i, :n])
    baseline_predictions(NGram(3, 5, 4), tiny, test)  # another option
    baseline_predictions(NGram(2, 5, 4), tiny, tiny.instances("validation"))  # other instances
    assert sum(calls) == 24 + 20 + 2  # and one row each beforehand, to compile


def test_a_broken_cache_is_made_again(tiny: Track, calls: list[int], tmp_path: Path) -> None:
    test = tiny.instances("test")
    made = baseline_predictions(NGram(2, 5, 4), tiny, test)
    (path,) = (tmp_path / "baseline-predictions").iterdir()
    content = path.read_bytes()
    middle = len(content) // 2
    in_the_stream = content[:middle] + b"\xff" * 8 + content[middle + 8 :]
    for damage in (b"", content[:-50], b"\xff" * 99, in_the_stream):
        path.write_bytes(damage)
        calls.clear()
        np.testing.assert_array_equal(baseline_predictions(NGram(2, 5, 4), tiny, test).packed, made.packed)
        assert calls


TASK = """
from tests.helpers.markov_text import MarkovText


class Mine(MarkovText):
    version = 1
    scores = ("nll", "token_accuracy")

    def groups(self, instances):
        return super().groups(instances)
"""


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda s: s.replace("class Mine", "# prose\nclass Mine"), True),
        (lambda s: s.replace("super().groups(instances)", "{}"), False),
        (lambda s: s.replace('("nll", "token_accuracy")', '("nll",)'), False),
    ],
)
def test_a_task_of_ones_own_that_is_edited_is_scored_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], same: bool
) -> None:
    """Its instances may stay as they were, and their fingerprint with them, while its truth or its scores change."""
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(TASK)
    path = tmp_path / "mine-v1.yaml"
    path.write_text(yaml.safe_dump(MARKOV | {"name": "mine-v1", "task": str(tmp_path / "mine.py")}))
    model, found = NGram(1, 300, 299), []
    for text in (TASK, edit(TASK)):
        (tmp_path / "mine.py").write_text(text)
        track = load_track(str(path))
        test = track.instances("test")
        baseline_predictions(model, track, test)
        announced: list[str] = []
        records = score_baselines(track, test, announced.append)
        assert set(records["unigram"].scores) == set(track.task.scores)
        found.append((len(list((tmp_path / "cache" / "baseline-predictions").iterdir())), bool(announced)))
    assert found == [(1, True), (1, False) if same else (2, True)]


def test_the_key_of_a_built_in_task_is_of_the_tasks_folder(tiny: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of the engine under it does not cost Bayes' minutes; the truth is not there."""
    model, test = NGram(2, 5, 4), tiny.instances("test")
    keys, original = [baseline_key(model, tiny, test)], Path.read_bytes

    def edited(path: Path, name: str) -> bytes:
        return original(path) + (b"\nx = 1\n" if path.as_posix().endswith(name) else b"")

    for name in ("regbench/data/instances.py", "regbench/tasks/automata.py"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", partialmethod(edited, name))
            keys.append(baseline_key(model, tiny, test))
    assert keys[0] == keys[1] != keys[2]
    assert baseline_key(model, tiny, test) == keys[0] != baseline_key(model, tiny, test, scoring="x")


def test_a_cache_that_cannot_be_written_is_done_without(
    tiny: Track, calls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tiny.instances("test")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path / "file"))
    assert len(baseline_predictions(NGram(2, 5, 4), tiny, test).packed) == test.n_tokens


SOURCE = """'A module.'


class Plugin:
    'A class.'

    def one(self):
        'A function.'
        return 1
"""


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (lambda s: s.replace("A class", "Another word"), True),
        (lambda s: s.replace("return 1", "return 1  # why"), True),
        (lambda s: s.replace("    'A class.'\n\n", ""), True),
        (lambda s: s.replace("return 1", "return 2"), False),
        (lambda s: s.replace("one", "two"), False),
        (lambda s: s.replace("return 1", 'return "A function."'), False),
    ],
)
def test_prose_is_no_part_of_the_code(tmp_path: Path, edit: object, same: bool) -> None:
    digests = []
    for name, text in (("a", SOURCE), ("b", edit(SOURCE))):  # type: ignore[operator]
        (tmp_path / f"{name}.py").write_text(text)
        module = _import_file(tmp_path / f"{name}.py")
        digests.append(code_digest(module.Plugin))
        del sys.modules[module.__name__]
    assert (digests[0] == digests[1]) is same


# --- The command. ---


@pytest.fixture
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_the_command_prints_and_writes(capsys: pytest.CaptureFixture[str], tiny_file: Path, table: TrackTable) -> None:
    Path("page.md").write_text(PAGE)
    assert cli.main(["baselines", str(tiny_file), "--write", "page.md"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    for name, row in table.rows.items():
        (scores,) = (line for line in out.splitlines() if line.startswith(f" {name} ") and line.count("±") == 4)
        assert f"{row.scores['nll'].value:.3f} ±{row.scores['nll'].stderr:.3f}" in scores
    assert out.count("s.e.)") == 2 * (len(table.rows) - 1)
    written = read_table(Path("scores.json")).tracks["tiny-v1"]
    assert {name: row.scores for name, row in written.rows.items()} == {n: r.scores for n, r in table.rows.items()}
    assert markdown(read_table(Path("scores.json"))) in Path("page.md").read_text()


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_bad_input_is_one_line_before_anything_is_computed(
    capsys: pytest.CaptureFixture[str], tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regbench.report.baseline_table.baseline_predictions", None)
    Path("empty.md").write_text("# Nothing\n")
    Path("broken.md").write_text(PAGE)
    for arguments, message in (
        (["pfa-smal-v1"], "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'"),
        ([str(tiny_file), "--write", "gone.md"], "cannot read gone.md: No such file or directory"),
        ([str(tiny_file), "--write", "empty.md"], f"empty.md has no lines '{BEGIN}' and '{END}'"),
    ):
        assert cli.main(["baselines", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err
        assert captured.err.count("\n") == 1


def test_numbers_that_are_not_of_the_schema_are_refused(tmp_path: Path, table: TrackTable) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "scores.json").write_text(json.dumps({"schema_version": 1, "tracks": {}, "more": 1}))
    with pytest.raises(UserError, match="unknown key 'more'"):
        write_tables(tmp_path / "page.md", {"tiny-v1": table})
    assert (tmp_path / "page.md").read_text() == PAGE
    (tmp_path / "scores.json").write_text("{")
    with pytest.raises(UserError, match="scores.json"):
        read_table(tmp_path / "scores.json")


def test_an_interruption_loses_only_the_baseline_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path))
    path = tmp_path / "other-v1.yaml"
    path.write_text(yaml.safe_dump(TINY | {"name": "other-v1", "splits": TINY["splits"] | {"seed": 9}}))  # type: ignore[operator]
    interrupted, done = NGram(3, 5, 4), []
    original = NGram.predict

    def predict(self: NGram, tokens: IntArray) -> FloatArray:
        if self.order == interrupted.order and self.smoothing == interrupted.smoothing:
            raise KeyboardInterrupt
        return original(self, tokens)

    with monkeypatch.context() as patch:
        patch.setattr(NGram, "predict", predict)
        assert cli.main(["baselines", str(path)]) == 130
    assert capsys.readouterr().err.endswith("regbench: interrupted\n")
    measure(load_track(str(path)), lambda name, so_far, total: done.append(name))
    assert "3-gram" in done
    assert "2-gram" not in done


def test_a_track_without_truth_has_its_table_too(text_track: Track, tmp_path: Path) -> None:
    """Its baselines' predictions are kept in brief, and give the same scores as those that stand beside a result."""
    test = text_track.instances("test")
    table = measure(text_track)
    beside = score_baselines(text_track, test, lambda name: None)
    assert {name: row.scores for name, row in table.rows.items()} == {name: b.scores for name, b in beside.items()}
    model = NGram(2, 300, 299)
    said = baseline_predictions(model, text_track, test)
    assert isinstance(said, CompactBaselinePredictions)
    again = baseline_predictions(model, text_track, test)
    np.testing.assert_array_equal(again.probability, said.probability)  # type: ignore[union-attr]
    assert said.probability.dtype == np.float64
    with pytest.raises(UserError, match="of the baselines on markov-text-v1 no whole distributions are kept"):
        whole_baseline_predictions(model, text_track, test)
