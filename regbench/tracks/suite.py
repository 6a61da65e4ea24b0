"""Suites: named lists of tracks, one YAML file each in `suites/`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pydantic

from regbench.tracks.track import first_comments, load_track, track_file
from regbench.utils.errors import UserError, explain_validation, nearest
from regbench.utils.files import read_mapping
from regbench.utils.settings import Strict

_FOLDER = Path(__file__).parent / "suites"


class Suite(Strict):
    """The content of a suite's YAML file."""

    name: str = pydantic.Field(pattern=r"^[a-z0-9-]+$")
    # names of built-in tracks, or paths of YAML files of tracks as seen from the suite's folder. All are different.
    tracks: Annotated[tuple[str, ...], pydantic.Field(strict=False, min_length=1)]


def suite_names() -> dict[str, str]:
    """Every built-in suite, sorted by name, with the first line of its file, a comment."""
    return first_comments(_FOLDER)


def load_suite(name: str | Path) -> Suite:
    """Loads a suite.

    Paths of tracks are as seen from the current folder.
    """
    name = str(name)
    path = Path(name) if name.endswith((".yaml", ".yml")) else _FOLDER / f"{name}.yaml"
    if path.parent == _FOLDER and path.stem not in suite_names():
        hint = nearest(name, suite_names(), " (give a suite of your own by its YAML file)")
        raise UserError(f"unknown suite '{name}'{hint}")
    content = read_mapping(path, "a suite")
    with explain_validation(str(path), Suite.model_fields):
        suite = Suite(**content)
    tracks = tuple(str(path.parent / track) if track_file(track) else track for track in suite.tracks)
    try:
        names = [load_track(track).name for track in tracks]
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    twice = next((track for track in names if names.count(track) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: the track {twice} is given twice")
    return Suite(name=suite.name, tracks=tracks)
