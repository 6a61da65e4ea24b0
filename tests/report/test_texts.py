"""The page of a run on text: the NLL of each token beside a baseline, with the switch. Tables without normalized scores."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from regbench import cli
from regbench.cli.tables import metrics_of_run, result_table
from regbench.evaluation.baselines import default_baselines
from regbench.evaluation.predictions import CompactPredictions
from regbench.report.content import as_text
from regbench.report.instances import layout
from regbench.results import read_result
from regbench.tracks import Track
from regbench.utils.errors import UserError
from regbench.utils.files import read_arrays
from tests.helpers.browser import data_of, needs_chromium, visit


@pytest.fixture(scope="module")
def model(text_run: Path) -> CompactPredictions:
    return CompactPredictions.from_arrays(read_arrays(text_run / "seed-0" / "predictions.npz"))


def test_white_space_is_itself_again() -> None:
    assert as_text("ĠreturnĊĉx") == " return\n\tx"
    assert as_text("plain") == "plain"


def test_the_layout_is_what_was_said(text_track: Track, model: CompactPredictions) -> None:
    test = text_track.instances("test")
    uniform = next(b for b in default_baselines(text_track, test) if b.name == "uniform")
    drawn = layout(text_track.task, test, [lambda: model, lambda: model], 3, uniform)
    one = drawn["instances"][0]
    assert one["index"] == 3
    assert one["switch"] == test.truth["cut"][3]
    assert one["tokens"][:5] == [as_text(text_track.task.io.names[t]) for t in test.tokens[3, :5]]
    assert len(one["nats"]) == len(one["best"]) == 3
    given = model.probability[3 * 48 : 4 * 48].astype(float)
    np.testing.assert_allclose(one["nats"][0], -np.log(given), atol=0.0051)
    np.testing.assert_allclose(one["nats"][2], np.log(299), atol=0.0051)
    assert one["best"][1][7] == as_text(text_track.task.io.names[model.most_likely[3 * 48 + 7]])
    means = [-np.log(model.probability[i * 48 : (i + 1) * 48].astype(float)).mean() for i in range(20)]
    worst = next(each for each in drawn["instances"] if each["why"] == "the worst")
    assert worst["index"] == int(np.argmax(means))
    with pytest.raises(UserError, match="there is no test instance 20: they are numbered 0 to 19"):
        layout(text_track.task, test, [lambda: model], 20, uniform)


def test_a_run_writes_the_page_and_the_command_the_same_bytes(text_run: Path, text_file: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(text_run, tmp_path / "run"))
    written = (folder / "report.html").read_bytes()
    assert cli.main(["report", str(folder), "--track", str(text_file)]) == 0
    assert (folder / "report.html").read_bytes() == written
    data = data_of(written.decode())
    assert data["strips"] is None
    assert data["texts"]["metric"] == "nll"
    assert "oracle" not in written.decode().partition("<script")[0].partition("</style>")[2]


def test_tables_have_no_normalized_score_without_an_oracle(text_run: Path) -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    result = read_result(text_run)
    console.print(result_table(result, metrics_of_run(result, text_run)))
    printed = console.export_text()
    assert "oracle" not in printed
    assert "normalized" not in printed
    assert "3-gram witten-bell" in printed
    assert "switch" in printed


@pytest.mark.ci
@needs_chromium
def test_the_page_in_a_browser(text_run: Path, tmp_path: Path) -> None:
    """The tokens, their shades, the switch, the tooltip with the keyboard, and the difference to the baseline."""
    script = """
      const blocks = all(".tokens");
      const tokens = blocks[0].querySelectorAll("[data-t]");
      const before = tokens[5].style.backgroundColor;
      blocks[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      const tip = one("#tip").textContent;
      const marked = all(".here").length;
      all("#text-controls input[value=difference]")[0].click();
      await frame();
      const after = all(".tokens")[0].querySelectorAll("[data-t]")[5].style.backgroundColor;
      return { blocks: blocks.length, tokens: tokens.length, switch: one(".tokens .switch").textContent,
               before, after, tip, marked, about: one("#about").textContent,
               scroll: document.documentElement.scrollWidth > innerWidth };
    """
    seen = visit((text_run / "report.html").read_text(), script, tmp_path)
    assert seen.problems == []
    found, data = seen.outcome, data_of((text_run / "report.html").read_text())["texts"]
    first = data["instances"][0]
    assert (found["blocks"], found["tokens"], found["marked"]) == (2, 48, 2)
    assert found["switch"] == f"switch: another text begins at token {first['switch']}"
    assert found["before"] != found["after"]
    assert f"{first['nats'][0][0]:.2f}" in found["tip"]
    assert f"Test instance {first['index']}, the worst of 20 by NLL (nats)" in found["about"]
    assert not found["scroll"]
