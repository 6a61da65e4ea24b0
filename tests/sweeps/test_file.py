"""The sweep file: what it may say, and how it is told what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.sweeps.file import SweepFile, read_sweep, settings_of
from regbench.utils.errors import UserError
from tests.helpers.documents import ROOT

GOOD: dict[str, Any] = {
    "track": "pfa-small-v1",
    "grid": {"arch": ["transformer", "mamba"], "n_layers": [2, 4], "training.learning_rate": [1e-3, 5e-3]},
    "select": {"over": ["training.learning_rate"]},
}


def read(tmp_path: Path, content: Any) -> SweepFile:
    path = tmp_path / "sweep.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return read_sweep(path)


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    """YAML takes 1e-3 for text."""
    sweep = read(tmp_path, "track: t\nbase: {x: 1e-3, name: 1e}\ngrid: {arch: [a], rate: [1e-3, 2.5e-3, -1E+2]}\n")
    assert sweep.grid["rate"] == [0.001, 0.0025, -100.0]
    assert sweep.base == {"x": 0.001, "name": "1e"}


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    example = text.split("```yaml\n")[1].split("```")[0]
    sweep = read(tmp_path, example)
    assert sweep.select is not None
    assert sweep.architectures


def test_axes_of_one_architecture_stand_in_the_place_of_common_ones() -> None:
    sweep = SweepFile(
        track="t",
        grid={"arch": ["a", "b"], "width": [1, 2], "rate": [3]},
        options_of={"a": {"width, heads": [[1, 1], [2, 4]]}, "b": {"heads": [8]}},
    )
    assert sweep.axes_of("a") == {"rate": [3], "width, heads": [[1, 1], [2, 4]]}
    assert sweep.axes_of("b") == {"width": [1, 2], "rate": [3], "heads": [8]}


def test_an_axis_may_set_several_settings() -> None:
    assert settings_of("a, train_instances", [1, 2]) == {"a": 1, "training.train_instances": 2}
    with pytest.raises(UserError, match="a list of 2, one for each name, not 3"):
        settings_of("a, b", 3)


def test_what_is_selected_over_is_found_by_any_of_its_names() -> None:
    over = {"over": ["rate", "train_instances"]}
    sweep = SweepFile(track="t", grid={"arch": ["a"], "rate, least": [[1, 1]]}, select=over)  # type: ignore[arg-type]
    assert sweep.is_selected("rate, least")
    assert sweep.is_selected("training.train_instances")
    assert not sweep.is_selected("least")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gird": {}}, "unknown key 'gird'; did you mean 'grid'?"),
        ({"select": {"ovre": ["n_layers"]}}, "unknown key 'select.ovre'; did you mean 'over'?"),
        (
            {"select": {"over": ["training.learning_rate"], "with": {"training.learning_rate": 1e-3}}},
            "select.with sets 'training.learning_rate', which is selected over: every trial would be the same",
        ),
        ({"select": {"over": []}}, "select.over: list should have at least 1 item"),
        ({"select": {"by": "test", "over": ["n_layers"]}}, "select.by: input should be 'validation'"),
        ({"select": {"over": ["n_layer"]}}, "select.over: 'n_layer' is no axis of the grid; did you mean 'n_layers'?"),
        ({"select": {"over": ["arch"]}}, "select.over: 'arch' is no axis of the grid"),
        ({"grid": {"arch": ["mamba"], "n_layers": []}}, "the axis grid.n_layers is empty"),
        ({"grid": {"arch": ["mamba"], "n_layers": 2}}, "grid.n_layers: input should be a valid list"),
        ({"grid": {"arch": ["mamba"], "n_layers": [2, 2]}}, "the axis grid.n_layers has the value 2 twice"),
        (
            {"base": {"n_layers": 1}, "grid": {"arch": ["mamba"], "n_layers, n_heads": [[2, 1]]}},
            "'n_layers' stands in base and in",
        ),
        (
            {"grid": {"arch": ["mamba"], "train_instances": [5, 10], "training.train_instances": [15]}},
            "the axes of mamba set 'training.train_instances' twice: leave one out",
        ),
        (
            {"grid": {"arch": ["mamba"], "n_layers": [1, 2, 3], "n_layers, d_model": [[1, 8], [2, 16]]}},
            "the axes of mamba set 'n_layers' twice",
        ),
        (
            {"base": {"train_instances": 5, "training.train_instances": 10}},
            "base set 'training.train_instances' twice: leave one out",
        ),
        ({"grid": {"n_layers": [2]}}, "grid has no 'arch'"),
        ({"grid": {"arch": [], "n_layers": [2]}}, "the axis grid.arch is empty"),
        ({"grid": {"arch": [3]}, "select": None}, "grid.arch: 3 names no architecture"),
        ({"grid": {"arch": [None]}, "select": None}, "grid.arch: None names no architecture"),
        (
            {"grid": {"arch": ["gla"], "d_k": [None, None]}, "select": None},
            "the axis grid.d_k has the value None twice",
        ),
        ({"options_of": {"mambo": {"d_state": [8]}}}, "options_of.mambo: not in grid.arch; did you mean 'mamba'?"),
        ({"options_of": {"mamba": {"d_state": []}}}, "the axis options_of.mamba.d_state is empty"),
        ({"seeds": [0, 0]}, "a seed is given twice"),
        ({"seeds": []}, "seeds: list should have at least 1 item"),
        ({"seeds": [-1]}, "seeds.0: input should be greater than or equal to 0"),
        ({"track": ["a-v1", "a-v1"]}, "a track is given twice"),
        ({"track": []}, "no track is given"),
        ({"threads": 0}, "threads: input should be greater than or equal to 1"),
        ({"gpus": 2}, "gpus: input should be less than or equal to 1"),
    ],
)
def test_wrong_input(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    content = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(UserError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value)
    assert "sweep.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("track: [", "sweep.yaml:1: broken YAML"),
        ("3", "a sweep is a mapping of fields"),
        ("grid: {}", "'track' is missing"),
        ("base: &b {x: *b}", "sweep.yaml:1: broken YAML: an alias"),
    ],
)
def test_no_sweep_at_all(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read .*nothing.yaml: No such file"):
        read_sweep(tmp_path / "nothing.yaml")
