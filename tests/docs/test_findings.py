"""The page of findings has the verdicts that its criteria come to on the committed trials, and words for each."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_words import LIMIT, words
from tests.helpers.documents import ROOT, section, table_rows

FINDINGS = runpy.run_path(str(ROOT / "docs" / "findings.py"))
PAGE = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
ALL = [pytest.param(one, id=one["name"]) for one in FINDINGS["findings"]()]
CSV = "architecture,seeds,state,area,area_low,area_high\n"


def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str) -> dict[str, Any]:
    (tmp_path / "trials.csv").write_text(CSV + rows)
    monkeypatch.setitem(FINDINGS["side"].__globals__, "ROOT", tmp_path)
    FINDINGS["trials"].cache_clear()
    sides = {name: {"architecture": name} for name in ("lstm", "mamba", "s4")}
    both = {"both of them": {"architecture": ["lstm", "mamba"]}}
    return {"name": "example", "source": "trials.csv", "score": "area", "sides": sides | both}


@pytest.mark.parametrize("finding", ALL)
def test_the_page_has_the_verdict_of_the_trials(finding: dict[str, Any]) -> None:
    verdict = FINDINGS["verdict"](finding)
    rows = {name.split("](")[0].strip("["): cells for name, cells in table_rows(PAGE).items()}
    assert rows[finding["claim"]][-1] == verdict, "make figures"
    own = section(PAGE, f"## {finding['claim']}")
    assert f"**{verdict[0].upper()}{verdict[1:]}.**" in own
    assert all(FINDINGS["evaluate"](finding, one)[0] == table_rows(own)[one][-1] for one in finding["criteria"])


@pytest.mark.parametrize("finding", ALL)
def test_somebody_wrote_why(finding: dict[str, Any]) -> None:
    """For the verdict of today, and for no verdict that is none."""
    verdict = FINDINGS["verdict"](finding)
    assert verdict == FINDINGS["MISSING"] or finding["why"][verdict].strip(), "docs/findings.yaml: write why"
    assert set(finding["why"]) <= {FINDINGS["HOLDS"], FINDINGS["FAILS"], FINDINGS["UNDECIDED"]}


def test_there_are_thirteen_with_few_words() -> None:
    """What stands between markers is written by people, too."""
    assert len(ALL) >= 13
    written = " ".join(" ".join(one["why"].values()) + one["claim"] for one in FINDINGS["findings"]())
    assert words(PAGE) + words(written) <= LIMIT


@pytest.mark.parametrize(
    ("criterion", "verdict", "value"),
    [
        ("lstm - mamba > 0.3", "holds", "0.500"),
        ("lstm - mamba > 0.48", "undecided", "0.500"),
        ("mamba - lstm > 0.1", "does not hold", "-0.500"),
        ("lstm > 0.85", "holds", "0.900"),
        ("mamba < 0.3", "does not hold", "0.400"),
        ("lstm - s4 > 0.1", "not measured yet", ""),
    ],
)
def test_a_criterion_is_weighed_by_the_spread_over_seeds(
    criterion: str, verdict: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.89, 0.90 and 0.91 against 0.39, 0.40 and 0.41: a standard error of 0.007, and t is 3.4 with three seeds."""
    rows = "lstm,3,100,0.90,0.89,0.91\nmamba,3,200,0.40,0.39,0.41\n"
    assert FINDINGS["evaluate"](example(tmp_path, monkeypatch, rows), criterion) == (verdict, value)


def test_one_of_three_seeds_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "lstm,3,100,0.40,0.39,0.95\nmamba,3,200,0.40,0.39,0.41\n"
    assert FINDINGS["evaluate"](example(tmp_path, monkeypatch, rows), "lstm - mamba > 0")[0] == "undecided"


def test_ranks_are_those_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rising = "".join(f"lstm,1,{2**i},0.{i + 1},0.{i + 1},0.{i + 1}\n" for i in range(8))
    finding = example(tmp_path, monkeypatch, rising)
    criterion = "rank of area by state over both of them > 0"
    assert FINDINGS["evaluate"](finding, criterion) == ("holds", "1.00 over 8 rows")
    falling = "".join(f"lstm,1,{2**i},0.{8 - i},0.{8 - i},0.{8 - i}\n" for i in range(8))
    assert FINDINGS["evaluate"](example(tmp_path, monkeypatch, falling), criterion) == (
        "does not hold",
        "-1.00 over 8 rows",
    )


def test_a_criterion_names_its_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = example(tmp_path, monkeypatch, "lstm,1,100,0.5,0.5,0.5\n")
    with pytest.raises(ValueError, match="example: 'gru > 0.5' is no criterion over lstm, mamba, s4, both of them"):
        FINDINGS["evaluate"](finding, "gru > 0.5")


def test_the_figures_are_drawn_of_the_trials() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "figures" / "findings.py"))
    found, folder = script["dots"](), ROOT / "docs" / "figures" / "findings"
    assert {path.stem for path in folder.glob("*.svg")} == set(found), "make figures"
    for name, dots in found.items():
        assert script["digest"](dots) in (folder / f"{name}.svg").read_text(encoding="utf-8"), "make figures"
