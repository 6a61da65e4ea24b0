"""The table of baselines: its scores and paired differences, the page it is written into, the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from baselines.ngram import NGram
from regbench import cli
from regbench.evaluation import baselines
from regbench.evaluation.baselines import default_baselines, score_baselines
from regbench.evaluation.measured_baselines import TrackTable, measure
from regbench.report.baseline_table import BEGIN, END, Table, markdown, read_table, write_tables
from regbench.results import ScoreRecord
from regbench.tracks import Track, load_track
from regbench.utils.arrays import FloatArray, IntArray
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.typed import refused

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
    said = {b.name: b.predict(test.tokens) for b in default_baselines(tiny, test)}

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


def test_a_difference_that_is_alike_in_every_instance_has_no_number_of_standard_errors(table: TrackTable) -> None:
    """As that of the uniform prediction from one that is always right: log V everywhere, but for rounding."""
    name = next(name for name in table.rows if name != table.best)
    shown = []
    for stderr in (0.1, 3e-17):
        row = table.rows[name].model_copy(update={"difference": {"nll": ScoreRecord(value=4.159, stderr=stderr)}})
        shown.append(markdown(Table(tracks={"x": table.model_copy(update={"rows": {**table.rows, name: row}})})))
    assert "+4.159 (+42 s.e.)" in shown[0]
    assert "+4.159 |" in shown[1]


# --- The command. ---


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
    monkeypatch.setattr("regbench.evaluation.measured_baselines.predict_baseline", None)
    Path("empty.md").write_text("# Nothing\n")
    Path("broken.md").write_text(PAGE)
    for arguments, message in (
        (["pfa-smal-v1"], "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'"),
        ([str(tiny_file), "--write", "gone.md"], "cannot read gone.md: No such file or directory"),
        ([str(tiny_file), "--write", "empty.md"], f"empty.md has no lines '{BEGIN}' and '{END}'"),
    ):
        refused(capsys, ["baselines", *arguments], message)


def test_numbers_that_are_not_of_the_schema_are_refused(tmp_path: Path, table: TrackTable) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "scores.json").write_text(json.dumps({"schema_version": 2, "tracks": {}, "more": 1}))
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
    monkeypatch.setattr(baselines, "WORTH_KEEPING", 0.0)
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
    assert capsys.readouterr().err.endswith(f"regbench: interrupted; go on with: regbench baselines {path}\n")
    measure(load_track(str(path)), lambda name, so_far, total: done.append(name))
    assert "3-gram" in done
    assert "2-gram" not in done


def test_a_track_without_truth_has_its_table_too(text_track: Track, tmp_path: Path) -> None:
    """Its scores are those that stand beside a result."""
    test = text_track.instances("test")
    table = measure(text_track)
    beside = score_baselines(text_track, test, lambda name: None)
    assert {name: row.scores for name, row in table.rows.items()} == {name: b.scores for name, b in beside.items()}
