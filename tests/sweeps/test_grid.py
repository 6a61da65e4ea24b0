"""From a sweep file to groups, points and cells, and what their folders are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.sweeps.file import SweepFile
from regbench.sweeps.grid import Group, expand, shown
from regbench.sweeps.sweep import Sweep
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.documents import ROOT
from tests.helpers.typed import AVERAGE

RATES = {"training.learning_rate": [1e-3, 5e-3]}
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))


def groups_of(track: Path | str | list[str], **changes: Any) -> list[Group]:
    content: dict[str, Any] = {
        "track": track if isinstance(track, list) else str(track),
        "grid": {"arch": ["lstm", "transformer"], "n_layers": [1, 2], "training.learning_rate": [1e-3, 5e-3]},
        "options_of": {"transformer": {"n_heads": [1, 4]}},
        "select": {"over": ["training.learning_rate", "n_heads"]},
        "seeds": [0, 1, 2],
    }
    return expand(SweepFile(**{k: v for k, v in (content | changes).items() if v is not None}))


def points_of(track: Path | str | list[str], select: dict[str, Any] | None = None, **grid: Any) -> list[Group]:
    """Groups of the LSTM where it is the only architecture."""
    return groups_of(track, grid={"arch": ["lstm"], **grid}, options_of={}, select=select)


def test_what_a_grid_comes_to(tiny_file: Path) -> None:
    groups = groups_of(tiny_file)
    assert [group.label for group in groups] == [
        "lstm n_layers=1",
        "lstm n_layers=2",
        "transformer n_layers=1",
        "transformer n_layers=2",
    ]
    assert [len(group.trials) for group in groups] == [2, 2, 4, 4]
    assert [cell.label for cell in groups[2].trials][:2] == [
        "transformer n_layers=1 learning_rate=0.001 n_heads=1 seed 0",
        "transformer n_layers=1 learning_rate=0.001 n_heads=4 seed 0",
    ]
    digests = [cell.digest for group in groups for cell in group.trials]
    assert len(set(digests)) == 12
    assert all(len(digest) == 32 for digest in digests)
    assert digests == [cell.digest for group in groups_of(tiny_file) for cell in group.trials]


def test_without_select_every_point_stands_alone(tiny_file: Path) -> None:
    groups = groups_of(tiny_file, select=None)
    assert len(groups) == 12
    assert not any(group.trials for group in groups)


def test_one_point_has_nothing_to_choose(tiny_file: Path) -> None:
    for select in (None, {"over": ["training.learning_rate"]}):
        (group,) = points_of(tiny_file, select, **{"training.learning_rate": [1e-3]})
        assert group.trials == ()


def test_points_that_come_to_the_same_are_one(tiny_file: Path) -> None:
    """The default width, said or not, as a number or as text; they count as one trial."""
    (group,) = points_of(tiny_file, {"over": ["d_model"]}, d_model=[64, "64", 32])
    assert len(group.trials) == 2
    (said,), (unsaid,) = points_of(tiny_file, d_model=[64]), points_of(tiny_file)
    assert said.first.digest == unsaid.first.digest == group.points[0].digest
    budgets = {"training.train_tokens": [None, 6000, 3000]}
    assert len(points_of(tiny_file, **budgets)) == 2, "nothing chosen, the whole budget twice"


def test_trials_may_be_trained_otherwise(tiny_file: Path) -> None:
    over = ["training.learning_rate"]
    (group,) = points_of(tiny_file, {"over": over, "with": {"training.train_tokens": 3000}}, **RATES)
    assert [cell.point.settings["training.train_tokens"] for cell in group.trials] == [3000, 3000]
    assert "training.train_tokens" not in group.points[0].settings
    assert group.trials[0].point.digest != group.points[0].digest
    # The whole budget, said or not, is one configuration: its trial is a seed of what is chosen.
    (group,) = points_of(tiny_file, {"over": over, "with": {"training.train_tokens": 6000}}, **RATES)
    assert group.trials[0].point.digest == group.points[0].digest


def test_the_first_so_many_instances(tiny_file: Path) -> None:
    groups = points_of(tiny_file, train_instances=[20, 60])
    assert [group.first.training.train_instances for group in groups] == [20, 60]
    assert groups[0].first.config((0,)).settings == {"training.train_instances": 20}


def test_an_edited_source_or_track_is_another_cell(tmp_path: Path) -> None:
    """What was trained with the old one is not taken for the new one's. Nor are its trials counted for the new one."""
    source, track = tmp_path / "average.py", tmp_path / "tiny-v1.yaml"
    source.write_text(AVERAGE)
    track.write_text(yaml.safe_dump(TINY))

    def digests() -> tuple[str, str]:
        (group,) = points_of(track, arch=[str(source)])
        return group.first.digest, group.key

    first = digests()
    source.write_text(AVERAGE + "# edited\n")
    edited = digests()
    track.write_text(yaml.safe_dump(TINY | {"splits": TINY["splits"] | {"seed": 4}}))  # type: ignore[operator]
    for found in zip(first, edited, digests(), strict=True):
        assert len(set(found)) == 3


def test_another_text_is_another_cell(tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials on the text of before are none on the text of now."""
    found = []
    for text in (None, "a" * 64, "b" * 64):
        monkeypatch.setattr("regbench.tasks.base.Task.source_digest", lambda _, text=text: text)
        found.append(groups_of(tiny_file)[0])
    assert len({group.trials[0].digest for group in found}) == 3
    assert len({group.key for group in found}) == 3


def test_another_backend_or_device_is_another_cell(tiny_file: Path) -> None:
    one: dict[str, Any] = {"grid": {"arch": ["lstm"]}, "options_of": {}, "select": None}
    changes = ({}, {"backend": "naive"}, {"device": "cpu"})
    assert len({groups_of(tiny_file, **one, **change)[0].first.digest for change in changes}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"track": "pfa-smal-v1"}, "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'?"),
        ({"grid": {"arch": ["lstm"]}, "backend": "nonsense"}, "nonsense"),
        ({"grid": {"arch": ["manba"]}}, "unknown architecture 'manba'; did you mean 'mamba'?"),
        (
            {"grid": {"arch": ["lstm"], "n_layer": [1]}},
            "lstm: option: unknown key 'n_layer'; did you mean 'n_layers'?; what one architecture alone knows stands under",
        ),
        ({"grid": {"arch": ["lstm"], "training.rate": [1]}}, "lstm: training option: unknown key 'rate'"),
        ({"grid": {"arch": ["lstm"], "n_layers": [0]}}, "lstm: option: n_layers: input should be greater than"),
        (
            {"grid": {"arch": ["lstm"], "train_instances": [61]}},
            "train_instances (61) is above the 60 of the split",
        ),
        ({"grid": {"arch": ["lstm"], "training.train_tokens": [7000]}}, "(7,000) is above the track's budget of 6,000"),
        ({"grid": {"arch": ["lstm", "lstm.py"]}}, "no such file: lstm.py"),
    ],
)
def test_wrong_input(tiny_file: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        groups_of(**({"track": tiny_file, "options_of": {}, "select": None} | changes))
    assert message in str(caught.value)


def test_two_tracks_of_one_name(tiny_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(tiny_file.read_text())
    with pytest.raises(UserError, match=r"tiny-v1\.yaml and .*other\.yaml are both called 'tiny-v1'"):
        points_of([str(tiny_file), str(other)])


def test_two_architectures_of_one_name(tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "lstm.py").write_text(AVERAGE)
    with pytest.raises(UserError, match=r"lstm and .*lstm.py are both called 'lstm'"):
        points_of(tiny_file, arch=["lstm", str(tmp_path / "lstm.py")])


@pytest.mark.parametrize("value", [1, 0.1, 0.0025, 1e-5, 1 / 3, "none", True, [1, 2], []])
def test_values_are_told_apart_as_they_are_shown(value: Any) -> None:
    text = shown(value)
    assert "\n" not in text
    if isinstance(value, float):
        assert float(text) == value


# How many trials and seeds the published files come to; the comments in them say why.
COUNTS = {
    "icll-table-2": (2160, 60),
    "mesanet-table-7": (1050, 9),
    "laptop": (24, 36),
    "icll-figure-3": (0, 105),
    "board-grid": (324, 189),
    "short-conv": (0, 21),
    "board-medium": (34, 51),
    "board-tasks": (576, 528),
    "board-coefficients": (120, 120),
    "board-whole": (165, 165),
    "board-outputs": (132, 132),
    "language-models": (32, 48),
    "board-reach": (1155, 630),
    "board-recall": (231, 126),
    "recall-state": (100, 50),
    "state-groups": (6, 21),
    "state-turns": (12, 18),
    "induction-length": (0, 6),
    "flip-flop": (0, 6),
    "recall-width": (0, 12),
    "hybrid-recall": (0, 9),
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem == "laptop" else pytest.mark.ci) for path in SWEEPS],
)
def test_the_files_in_the_repository(path: Path) -> None:
    """Every architecture takes its settings, every track its budget; each has a first line that says what it is."""
    sweep = Sweep.read(path)
    trials = [cell for group in sweep.groups for cell in group.trials]
    assert (len(trials), sum(len(group.seeds) for group in sweep.groups)) == COUNTS[path.stem]
    assert len({cell.digest for cell in trials}) == len(trials)
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_no_file_is_forgotten() -> None:
    assert {path.stem for path in SWEEPS} == set(COUNTS)
