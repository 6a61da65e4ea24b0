"""What a notebook shows: short representations, tables, and progress without the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import regbench
from regbench.results import read_result
from regbench.tracks import Track
from regbench.training.progress import Reporter


def test_a_result_is_shown_in_a_line_and_as_a_table(run_folder: Path) -> None:
    result = read_result(run_folder)
    line = repr(result)
    assert line.startswith("<Result: cgt on tiny-v1, test split, 2 seeds: legal_accuracy 0.")
    assert len(line) < 250
    frame = result.to_frame()
    assert frame["predictor"].tolist() == ["cgt", "cgt", *result.baselines]
    assert frame.set_index("predictor").loc["oracle", "tvd_stderr"] == result.baselines["oracle"].scores["tvd"].stderr
    seeds = frame[frame["kind"] == "seed"].set_index("seed")
    for one in result.seeds:
        assert seeds.loc[one.seed, "nll"] == one.scores["nll"].value
        assert seeds.loc[one.seed, "normalized"] == pytest.approx(100 * one.share_of_the_way["legal_accuracy"])
    assert len(frame) == len(result.seeds) + len(result.baselines)
    shown = result.model_copy(update={"architecture": result.architecture.model_copy(update={"name": "<b>"})})
    page = shown._repr_html_()
    assert "&lt;b&gt; on tiny-v1" in page
    assert "<b>" not in page.partition("</p>")[2]
    assert "<td>oracle</td>" in page


def test_a_result_without_anchors_has_no_normalized_score(text_run: Path) -> None:
    frame = read_result(text_run).to_frame()
    assert "normalized" not in frame
    assert frame["nll"].notna().all()


def test_a_track_says_what_it_is(tiny: Track) -> None:
    assert repr(tiny) == (
        "<Track tiny-v1: task pfa; 60 training, 20 validation, 24 test instances; budget 6,000 training tokens; "
        "ranked by legal_accuracy>"
    )


def test_a_run_shows_its_progress_and_takes_one_seed(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"d_model": 8, "training.train_tokens": 500}
    result = regbench.run(str(tiny_file), "lstm", 3, settings=settings, out=tmp_path / "a")
    assert [seed.seed for seed in result.seeds] == [3]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "training, seed 3" in shown.err
    regbench.run(str(tiny_file), "lstm", seeds=[3], settings=settings, out=tmp_path / "b", reporter=Reporter())
    assert capsys.readouterr().err == ""
