"""The trials of the sweeps: of each group the best one is the entry that docs/results.md and docs/suites.md show."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pandas as pd
import pytest
import yaml

from regbench.results import Result
from regbench.training.options import resolve_training
from regbench.utils import registry
from tests.helpers.documents import ROOT, body_rows, section
from tests.helpers.published import published

PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SWEEPS = ROOT / "sweeps"
SUITES = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")


def trials_of(name: str, *options: str) -> pd.DataFrame:
    """The trials of a sweep. An option that a group does not set is empty."""
    return pd.read_csv(SWEEPS / f"{name}-trials.csv", dtype=dict.fromkeys(options, str)).fillna(
        dict.fromkeys(options, "")
    )


def chosen_of(group: pd.DataFrame) -> dict[str, Any]:
    """The trial that was chosen of a group, which is the best on validation."""
    (chosen,) = group[group.chosen == "yes"].to_dict("records")
    assert chosen["validation_loss"] == group.validation_loss.min()
    return chosen


def rates_of(group: pd.DataFrame) -> list[float]:
    return sorted(group["training.learning_rate"])


@pytest.mark.ci
def test_the_best_of_the_grids_trials_is_the_entry() -> None:
    """Every trial of a group is there, and the chosen one, which has the lowest validation loss, is on the leaderboard."""
    grid = yaml.safe_load((SWEEPS / "board-grid.yaml").read_text())
    trials = trials_of("board-grid", "configuration", "mimetic")
    for (track, architecture, start), group in trials.groupby(["track", "architecture", "mimetic"]):
        heads = grid["options_of"].get(architecture, {}).get("n_heads", [1])
        assert len(group) == len(grid["grid"]["training.learning_rate"]) * len(heads)
        chosen = chosen_of(group)
        of = [one for one in published(str(track)).values() if one.architecture.name == architecture]
        if start:
            of = [one for one in of if str(one.architecture.options["mimetic"]).lower() == start]
        (entry,) = (one for one in of if one.selection.trials == len(group))
        assert entry.training["learning_rate"] == chosen["training.learning_rate"]
        assert len(heads) == 1 or entry.architecture.options["n_heads"] == int(chosen["n_heads"])


@pytest.mark.ci
def test_the_best_of_the_tasks_trials_is_the_entry() -> None:
    """Of each group the lowest validation loss is chosen and on the leaderboard, with the scores of docs/suites.md."""
    trials = trials_of("board-tasks", "short_conv", "negative_eigenvalues")
    text = section(SUITES, "## What the leaderboard has")
    head = next(line for line in text.splitlines() if line.startswith("| entry"))
    tracks = [cell.strip(" `") for cell in head.strip("|").split("|")[2:]]
    assert set(trials.track) == set(tracks)
    page = [row for row in body_rows(text) if len(row) == 2 + len(tracks)]
    for (track, architecture, conv, negative), group in trials.groupby(
        ["track", "architecture", "short_conv", "negative_eigenvalues"]
    ):
        chosen = chosen_of(group)
        ((name, entry),) = of_a_group(str(track), architecture, conv, negative).items()
        heads = group.n_heads.dropna().unique()
        assert entry.selection.trials == len(group) == 3 * max(1, len(heads))
        assert entry.training["learning_rate"] == chosen["training.learning_rate"]
        assert not len(heads) or entry.architecture.options["n_heads"] == chosen["n_heads"]
        tuned = ("learning_rate", "n_heads") if len(heads) else ("learning_rate",)
        (row,) = (row for row in page if row[0] == "+".join(p for p in name.split("+") if not p.startswith(tuned)))
        score = fmean(seed.scores[entry.track.main_score].value for seed in entry.seeds)
        assert row[2 + tracks.index(str(track))] == f"{score:.3f}"
    shown = sum(cell != "—" for row in page for cell in row[2:])
    assert shown == sum(trials.chosen == "yes")


def of_a_group(track: str, architecture: str, conv: str, negative: str) -> dict[str, Result]:
    """The entries that have these options, whatever their rate."""
    return {
        name: one
        for name, one in published(track).items()
        if one.architecture.name == architecture
        and (not conv or one.architecture.options["short_conv"] == int(conv))
        and (not negative or str(one.architecture.options["negative_eigenvalues"]).lower() == negative)
    }


@pytest.mark.ci
def test_the_best_of_the_trials_on_bigram_outputs_is_the_entry() -> None:
    """All three rates of a group were tried. Not every group has an entry yet."""
    file = yaml.safe_load((SWEEPS / "board-outputs.yaml").read_text())
    trials = trials_of("board-outputs", "short_conv", "negative_eigenvalues")
    compared = 0
    for (track, *group_of), group in trials.groupby(["track", "architecture", "short_conv", "negative_eigenvalues"]):
        assert track in file["track"]
        assert group_of[0] in file["grid"]["arch"]
        assert rates_of(group) == [float(rate) for rate in file["grid"]["training.learning_rate"]]
        chosen = chosen_of(group)
        for entry in of_a_group(str(track), *group_of).values():
            compared += 1
            assert entry.selection.trials == 3
            assert entry.training["learning_rate"] == chosen["training.learning_rate"]
    assert compared >= 6


@pytest.mark.ci
@pytest.mark.parametrize("track", ["linear-regression-small-v1", "arithmetic-small-v1"])
def test_the_best_of_the_coefficients_trials_is_the_entry(track: str) -> None:
    """All three rates of an architecture were tried, and no entry that is set by its rate alone is without them."""
    file = yaml.safe_load((SWEEPS / "board-coefficients.yaml").read_text())
    assert track in file["track"]
    trials = trials_of("board-coefficients")
    trials = trials[trials.track == track]
    entries = {
        one.architecture.name: one
        for name, one in published(track).items()
        if one.architecture.name in file["grid"]["arch"]
        and one.selection.trials == 3
        and all(part.startswith("learning_rate") for part in name.split("+")[1:])
    }
    assert set(trials.architecture) == set(entries)
    for architecture, group in trials.groupby("architecture"):
        assert rates_of(group) == [float(rate) for rate in file["grid"]["training.learning_rate"]]
        chosen = chosen_of(group)
        assert entries[str(architecture)].training["learning_rate"] == chosen["training.learning_rate"]


@pytest.mark.ci
def test_the_best_of_the_mediums_trials_is_the_entry() -> None:
    """Both rates of each recipe were tried, the better one is on the leaderboard, and no entry is without its trials."""
    file = yaml.safe_load((SWEEPS / "board-medium.yaml").read_text())
    own = ["architecture", "mimetic", "positions", "ngram_heads"]
    groups = list(trials_of("board-medium", *own[1:]).groupby(own))
    assert len(groups) == len(published("pfa-medium-v1"))
    for (architecture, *recipe), group in groups:
        rates = file["options_of"][architecture]["training.learning_rate"]
        assert rates_of(group) == sorted(float(rate) for rate in rates)
        chosen = chosen_of(group)
        (entry,) = (
            one
            for one in published("pfa-medium-v1").values()
            if one.architecture.name == architecture
            and all(
                not value or str(one.architecture.options[name]).lower().replace(" ", "") == value
                for name, value in zip(own[1:], recipe, strict=True)
            )
        )
        assert entry.selection.trials == len(group)
        assert entry.training["learning_rate"] == chosen["training.learning_rate"]


@pytest.mark.ci
def test_the_table_of_whole_models_is_the_boards_and_the_best_of_their_trials() -> None:
    """Default options but for rates. All rates were tried; where the losses of the others are lost, they are blank."""
    text = section(PAGE, "## Whole models")
    models = next(line for line in text.splitlines() if line.startswith("| track")).strip("| ").split(" | ")[2:-1]
    file = yaml.safe_load((SWEEPS / "board-whole.yaml").read_text())
    assert models == file["grid"]["arch"]
    trials = trials_of("board-whole")
    rows = body_rows(text)
    assert {row[0].strip("`") for row in rows} == set(file["track"])
    tried = 0
    for track, _, *cells in ([row[0].strip("`"), *row[1:]] for row in rows):
        for model, cell in zip(models, cells[:-1], strict=True):
            found = [one for one in published(track).values() if of_default_options(one, model)]
            means = [fmean(seed.scores[one.track.main_score].value for seed in one.seeds) for one in found]
            assert [cell] == ([f"{mean:.3f}" for mean in means] or ["—"]), (track, model)
            group = trials[(trials.track == track) & (trials.architecture == model)]
            tried += len(group)
            if len(group):
                chosen = chosen_of(group)
                assert sorted(group["training.learning_rate"].unique()) == sorted(
                    float(rate) for rate in file["options_of"][model]["training.learning_rate"]
                )
                assert found[0].training["learning_rate"] == chosen["training.learning_rate"]
                assert found[0].selection.trials == len(group)
    assert tried == len(trials)


def of_default_options(result: Result, architecture: str) -> bool:
    """Whether an entry is of this architecture, and differs from its defaults by rates alone."""
    if result.architecture.name != architecture:
        return False
    defaults = registry.load(registry.ARCHITECTURE, architecture).Options().model_dump(mode="json")
    return {**defaults, **result.architecture.options, "inner_rate": 0} == {**defaults, "inner_rate": 0}


def test_the_best_of_the_default_track_is_the_default() -> None:
    """Rate and heads. Of the transformer those of the mimetic start: the other one learns nothing within the trials."""
    trials = pd.read_csv(SWEEPS / "board-grid-trials.csv", dtype={"mimetic": str})
    chosen = trials[(trials.track == "pfa-small-v1") & (trials.chosen == "yes") & (trials.mimetic != "false")]
    assert len(chosen) == chosen.architecture.nunique() > 10
    for row in chosen.to_dict("records"):
        cls = registry.load(registry.ARCHITECTURE, row["architecture"])
        assert resolve_training(cls, {}).learning_rate == row["training.learning_rate"], row
        assert pd.isna(row["n_heads"]) or cls.Options().n_heads == row["n_heads"], row
