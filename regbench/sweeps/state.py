"""The folder of a sweep is its state: what is there is done, what is not is to do.

sweep.yaml       what was asked for
begun.json       the version of regbench, and the trials of each group, also of those that left the file
cells/<digest>/  a cell: weights, log, `trained.json`; where it is scored `predictions.npz` and `scores.json`;
                 where it failed `failed.json`
runs/<track>/<architecture>-<digest>/   all seeds of a chosen configuration, as `regbench run` would have left them
table.csv, trials.csv, curves.png, curves.csv, best.yaml
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from regbench.config import Config, read_config, write_config
from regbench.results import SeedRecord
from regbench.sweeps.file import SweepFile
from regbench.sweeps.grid import SELECTION_SEED, Cell, Group, Point
from regbench.training import provenance
from regbench.training.checkpoint import TRAINED_FILE, read_trained
from regbench.utils.errors import UserError
from regbench.utils.files import LEFTOVER, atomic_write, exclusive, remove_leftovers, write_json

_SEED_FILES = (
    "metrics.jsonl",
    "checkpoint.safetensors",
    "predictions.npz",
    "scores.json",
    provenance.FILE,
    provenance.CODE_FILE,
)
"""What a seed's folder in a run holds of a cell."""

_PATIENCE = 3.0
"""Seconds that are waited for the processes of a sweep that was killed a moment ago."""


@dataclass(frozen=True)
class Failure:
    label: str
    message: str
    refused: bool
    """Whether the configuration itself is to blame, e.g. because training diverged; else the machine or a fault in the code,
    which another start may not meet again.
    """


@dataclass(frozen=True)
class SweepFolder:
    path: Path

    def held(self) -> AbstractContextManager[None]:
        return exclusive(self.path, patience=_PATIENCE, holder="sweep")

    def require_sweep(self) -> None:
        """Checks that the folder is a sweep's, or empty, or not there."""
        if not self.path.is_dir() or _read_begun(self.path / "begun.json") is not None:
            return
        if any(one.name != ".lock" and not one.match(LEFTOVER) for one in self.path.iterdir()):
            raise UserError(f"{self.path} is not empty, and holds no sweep; choose another --out")

    def begin(self, sweep: SweepFile, groups: Sequence[Group]) -> None:
        """Writes what the folder is for, or compares it with what it was begun for. What a kill left is cleared away."""
        remove_leftovers(self.path)
        version = metadata.version("regbench")
        asked = {group.key: _asked(group) for group in groups}
        path = self.path / "begun.json"
        self.require_sweep()
        then = _read_begun(path)
        if then is not None:
            if then["regbench"] != version:
                raise UserError(
                    f"{self.path} was begun by regbench {then['regbench']}, and this is {version}; choose another --out"
                )
            gone = [before for key, before in then["groups"].items() if key not in asked]
            for group in groups:
                mine = asked[group.key]
                own = {*mine["trials"], *mine["cells"]}
                # With another `select` a group has another key. Its cells may still have been chosen among trials.
                others = [
                    before["trials"]
                    for before in gone
                    if own.intersection((*before["trials"], *before["cells"])) and not own.issuperset(before["trials"])
                ]
                for before in (then["groups"].get(group.key, mine)["trials"], *others):
                    if before != mine["trials"] and any(map(self._is_trained, before)):
                        raise UserError(
                            f"{self.path} was begun with other trials for {group.label}, and they count; choose another --out"
                        )
            for key, before in then["groups"].items():
                mine = asked.setdefault(key, before)
                if not mine["trials"]:  # other settings in `base` give the group other cells: they count, too
                    mine["cells"] = sorted({*before["cells"], *mine["cells"]})
        write_json(path, {"regbench": version, "groups": asked})
        with atomic_write(self.path / "sweep.yaml") as file:
            yaml.safe_dump(sweep.model_dump(mode="json", by_alias=True, exclude_defaults=True), file, sort_keys=False)

    def tried(self, point: Point) -> int:
        """How many configurations of a point's architecture were tried on its track, in all groups. One that failed counts."""
        begun, place = _read_begun(self.path / "begun.json") or {"groups": {}}, [point.track.name, point.name]
        groups = [group for group in begun["groups"].values() if group["of"] == place]
        return len({digest for group in groups for digest in group["trials"] or group["cells"]})

    def _is_trained(self, digest: str) -> bool:
        """Whether a cell counts as a trial: it was trained, or lost."""
        folder = self.path / "cells" / digest
        try:
            refused = bool(json.loads((folder / "failed.json").read_text(encoding="utf-8"))["refused"])
        except (OSError, ValueError, KeyError, TypeError):
            refused = False
        return refused or any((folder / name).exists() for name in (TRAINED_FILE, "scores.json"))

    def cell(self, cell: Cell) -> Path:
        return self.path / "cells" / cell.digest

    def validation_loss(self, cell: Cell) -> float | None:
        """The best validation loss of a trained cell, in nats; None of one that is not trained to the end."""
        trained = read_trained(self.cell(cell))
        return None if trained is None else trained.progress.best_validation_loss

    def scores(self, cell: Cell) -> SeedRecord | None:
        """What a cell has on the test split; None of one that is not scored, or does not say what it was made from."""
        if not (self.cell(cell) / provenance.FILE).exists():
            return None
        try:
            return SeedRecord.model_validate_json((self.cell(cell) / "scores.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def fail(self, folder: str, failure: Failure) -> None:
        write_json(Path(folder) / "failed.json", {"message": failure.message, "refused": failure.refused})

    def run_folder(self, point: Point) -> Path:
        return self.path / "runs" / point.track.name / f"{point.name}-{point.digest[:12]}"

    def is_finished(self, point: Point, config: Config) -> bool:
        folder = self.run_folder(point)
        try:
            return (folder / "result.json").exists() and read_config(folder / "config.yaml") == config
        except UserError:
            return False

    def join(self, cells: Sequence[Cell], config: Config) -> Path:
        """Puts scored cells into a run folder as the seeds of a run, which then is to be resumed; the files are links.

        Of an earlier run of the configuration, with other seeds, what people put there stays, such as analyses.
        """
        files = [(cell, name) for cell in cells for name in self._files(cell)]
        folder, seeds = self.run_folder(cells[0].point), {f"seed-{cell.seed}" for cell in cells}
        (folder / "result.json").unlink(missing_ok=True)
        for earlier in folder.glob("seed-*"):
            if earlier.name not in seeds:
                shutil.rmtree(earlier)
        for cell, name in files:
            _link(self.cell(cell) / name, folder / f"seed-{cell.seed}" / name)
        write_config(folder, config)
        return folder

    def _files(self, cell: Cell) -> list[str]:
        folder = self.cell(cell)
        for name in _SEED_FILES:
            if name != provenance.CODE_FILE and not (folder / name).exists():
                raise UserError(
                    f"{folder} has no {name}: put the file back, or remove that folder, and the seed is trained anew"
                )
        course = (path.relative_to(folder).as_posix() for path in folder.glob("course/*.safetensors"))
        return [*(name for name in _SEED_FILES if (folder / name).exists()), *course]


def _asked(group: Group) -> dict[str, Any]:
    """What `begun.json` says of a group: its track and architecture, the cells that decide, and all that may be chosen."""
    return {
        "of": [group.first.track.name, group.first.name],
        "trials": sorted(cell.digest for cell in group.trials),
        "cells": sorted(Cell(point, SELECTION_SEED).digest for point in group.points),
    }


def _link(source: Path, target: Path) -> None:
    """A second name of a file; where the system has none, a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _read_begun(path: Path) -> dict[str, Any] | None:
    """The content of `begun.json`; None where there is no whole one."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = all({"of", "trials", "cells"} <= group.keys() for group in content["groups"].values())
        return content if whole and "regbench" in content else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
