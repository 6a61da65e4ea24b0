"""What docs/ says of tracks, ops, speed and rooms is what is there."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
import yaml

from regbench.ops.backend import known_ops
from regbench.tracks import load_track, track_names
from regbench.training.provenance import WORDS
from regbench.utils import registry
from tests.benchmarks import gpu_costs, ngram_cost
from tests.helpers.documents import ROOT, body_rows, section


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_track_is_listed_with_its_definition() -> None:
    rows = {row[0]: row[1:] for row in body_rows(page("tracks.md").partition("## Reach")[0])}
    assert set(rows) == set(track_names())
    for name, (task, sizes, tokens, main_score) in rows.items():
        made = load_track(name).definition
        splits = f"{made.splits.train:,}, {made.splits.validation:,}, {made.splits.test:,}"
        assert (task, sizes, tokens, main_score) == (
            made.task,
            splits,
            f"{made.budget.train_tokens:,}",
            made.main_score,
        )


def test_every_main_score_is_listed_with_its_name_on_the_board() -> None:
    rows = {row[0]: row[1] for row in body_rows(section(page("tracks.md"), "## Main scores"))}
    assert set(rows) == {load_track(name).definition.main_score for name in track_names()}
    for track in map(load_track, track_names()):
        main = track.definition.main_score
        assert rows[main] == track.metrics[main].heading


OPS = section(page("gpu.md"), "## Implementations of the ops")


@pytest.mark.ci
def test_costs_at_the_papers_scale_are_counted() -> None:
    """Of every architecture that has a width, and again for the fastest one to count."""
    rows = {row[0]: row for row in body_rows(section(page("gpu.md"), "## The paper's scale"))}
    assert list(rows) == [name for name in registry.entries(registry.ARCHITECTURE) if name not in gpu_costs.OF_ONE_SIZE]
    counted = [cell.strip("`") for cell in gpu_costs.row("transformer").values()]
    assert rows["transformer"][: len(counted)] == counted
    budget = load_track(gpu_costs.TRACK).definition.budget.train_tokens
    for name, (*_, rate, _memory, minutes) in rows.items():  # the minutes of a seed follow from the rate
        if rate:
            assert int(minutes) == round(budget / int(rate.replace(",", "")) / 60), name


def test_every_op_is_listed_with_its_implementations() -> None:
    rows = {row[0]: re.findall(r"[\w-]+", row[2]) for row in body_rows(OPS)}
    ops = {name: op.implementations for name, op in known_ops().items()}
    own = {n for n, found in ops.items() if all(one.target.startswith("regbench.ops.") for one in found.values())}
    assert rows == {name: list(ops[name]) for name in own}


def test_the_exponents_are_those_that_were_measured() -> None:
    text = page("speed.md")
    for form in ngram_cost.LENGTHS:
        own = [cost for cost in ngram_cost.read() if cost.form == form]
        for costs in ([cost.seconds for cost in own], [cost.peak_bytes for cost in own]):
            assert f"L^{ngram_cost.exponent([cost.length for cost in own], costs):.2f}" in text


class TestDesign:
    PAGE = page("design.md")

    def test_its_layers_are_the_ones_that_are_held(self) -> None:
        tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
        (layers,) = (c["layers"] for c in tools["importlinter"]["contracts"] if c["type"] == "layers")
        shown = [" | ".join(re.findall(r"\w+", row[0])) for row in body_rows(section(self.PAGE, "## Rooms and layers"))]
        assert shown == layers

    @pytest.mark.parametrize("row", body_rows(section(PAGE, "## The walk of one run")), ids=lambda row: row[0])
    def test_each_step_of_the_walk_is_where_it_says(self, row: list[str]) -> None:
        places = re.findall(r"`?(\w+)` in `([\w/.]+)`?", row[2])
        assert places
        for name, file in places:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            kinds = (ast.FunctionDef, ast.ClassDef)
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}, f"no {name} in {file}"

    def test_files_that_it_names_are_there(self) -> None:
        for file in re.findall(r"`(regbench/[\w/]+\.py)`", self.PAGE):
            assert (ROOT / file).is_file(), file

    def test_provenance_has_the_parts_that_are_kept(self) -> None:
        (row,) = (row for row in body_rows(self.PAGE) if row[0] == "provenance")
        for part in ("track", "source", "options", "training", "device", "backend"):
            assert part in row[1]
            assert part in WORDS


def test_the_citation_is_whole() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["authors"] == project["authors"]
    (paper,) = citation["references"]
    assert paper["title"] == "In-Context Language Learning: Architectures and Algorithms"
    assert paper["url"] == project["urls"]["Paper"]


def test_the_changelog_is_of_releases_and_says_what_the_first_can_do_in_few_lines() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\n## [{project['version']}]\n" in text
    first = text[text.index("## [0.1.0]") :]
    assert len(first.splitlines()) <= 40
    commands = {path.stem for path in ROOT.glob("*/*/commands/*.py")}
    assert set(re.findall(r"`(?:regbench )?([a-z]+)`", first)) <= commands
