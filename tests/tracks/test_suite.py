"""Suites: built-in ones and files of your own, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from regbench.tracks import load_track, track_names
from regbench.tracks.suite import load_suite, suite_names
from regbench.utils.errors import UserError


def test_the_built_in_suites_load_and_say_what_they_are() -> None:
    assert set(suite_names()) == {"quick", "small", "paper", "mad", "reach"}
    for name, summary in suite_names().items():
        suite = load_suite(name)
        assert suite.name == name
        assert summary.endswith(".")
        assert set(suite.tracks) <= set(track_names())


def test_small_has_every_small_track_of_tokens_with_a_truth() -> None:
    small = {name for name in track_names() if "-small-" in name}
    small -= {"bigram-outputs-small-v1", "bigram-outputs-all-small-v1"}  # they show a mechanism, and rank nothing
    fit = {name for name in small if (task := load_track(name).task).knows_truth and task.io.kind == "tokens"}
    assert set(load_suite("small").tracks) == fit
    assert set(load_suite("quick").tracks) <= fit
    assert set(load_suite("mad").tracks) == {name for name in fit if name.startswith("mad-")}
    assert not set(load_suite("paper").tracks) & small


def test_a_suite_of_ones_own_names_tracks_from_its_folder(tmp_path: Path, tiny_file: Path) -> None:
    path = tmp_path / "deep" / "mine.yaml"
    path.parent.mkdir()
    (path.parent / "own.yaml").write_text(tiny_file.read_text())
    path.write_text(yaml.safe_dump({"name": "mine", "tracks": ["pfa-small-v1", "own.yaml"]}))
    suite = load_suite(path)
    assert suite.tracks == ("pfa-small-v1", str(path.parent / "own.yaml"))
    assert load_track(suite.tracks[1]).name == "tiny-v1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"name": "mine", "tracks": ["pfa-smal-v1"]}, "unknown track 'pfa-smal-v1'; did you mean 'pfa-small-v1'"),
        ({"name": "mine", "tracks": ["pfa-small-v1", "pfa-small-v1"]}, "the track pfa-small-v1 is given twice"),
        ({"name": "mine", "tracks": []}, "tracks: tuple should have at least 1 item"),
        ({"name": "mine", "track": ["pfa-small-v1"]}, "did you mean 'tracks'"),
        ({"name": "Mine!", "tracks": ["pfa-small-v1"]}, "name: string should match"),
        ({"name": "mine", "tracks": ["gone.yaml"]}, "cannot read"),
        ({"name": "mine", "tracks": [3]}, "tracks.0"),
        (["pfa-small-v1"], "a suite is a mapping of fields, not list"),
    ],
)
def test_wrong_suites_are_refused_in_one_line(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=message) as said:
        load_suite(str(path))
    assert "\n" not in str(said.value)
    assert "mine.yaml" in str(said.value)


def test_an_unknown_suite_is_refused_with_those_that_are_known() -> None:
    known = r"unknown suite 'zzz' \(give a suite of your own by its YAML file\); known: mad"
    with pytest.raises(UserError, match=known):
        load_suite("zzz")
