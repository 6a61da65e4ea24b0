"""One architecture on every track of a suite: what `regbench run --suite` does. Each track has a run folder of its own.

The suite's folder holds `suite.yaml`, which tells the order of the tracks, and the run folders. What is interrupted goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from regbench import runner
from regbench.config import Config, make_folder
from regbench.results import Result
from regbench.tracks import load_track
from regbench.tracks.suite import Suite
from regbench.training.progress import Reporter
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, exclusive, explain_writing, read_mapping

FILE = "suite.yaml"
"""The file that makes a folder a suite's folder."""


def begin_suite(suite: Suite, config: Config, out: str | Path | None, reporter: Reporter) -> Path:
    """Checks the configuration on every track and makes all run folders. Trains nothing; `go_on` does.

    Its track is replaced by each of the suite's. Without `out` the folder is a new one under `runs/suites/`.
    """
    if "?" in config.track:
        raise UserError("a suite has tracks of its own: settings task.NAME are of a single track")
    stamp = f"{suite.name}-{registry.short_name(config.architecture)}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path(out) if out is not None else make_folder(Path("runs") / "suites" / stamp)
    _require_empty(folder)
    was_there = out is not None and folder.exists()
    with explain_writing(folder), exclusive(folder):
        _require_empty(folder)  # another run may have begun there meanwhile
        try:
            names = {load_track(track).name: track for track in suite.tracks}
            for name, track in names.items():
                runner.begin(config.model_copy(update={"track": track}), folder / name, reporter)
            with atomic_write(folder / FILE) as file:
                yaml.safe_dump({"name": suite.name, "tracks": list(names)}, file, sort_keys=False)
        except BaseException:
            for path in folder.iterdir() if was_there else [folder]:
                shutil.rmtree(path, ignore_errors=True)
            if out is None:
                with contextlib.suppress(OSError):  # where there is something else
                    for parent in (folder.parent, folder.parent.parent):
                        parent.rmdir()
            raise
    return folder


def _require_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(path.name != ".lock" for path in folder.iterdir())):
        hint = (
            f", or go on with --resume {folder}" if is_suite(folder) else ""
        )  # a kill may leave it without its record
        raise UserError(f"{folder} is not empty; choose another --out{hint}")


def is_suite(folder: str | Path) -> bool:
    return (Path(folder) / FILE).is_file()


def go_on(folder: Path, train: Callable[[Path], Result]) -> Iterator[tuple[Path, Result]]:
    try:
        suite = Suite(**read_mapping(folder / FILE, "a suite"))
    except ValueError:
        raise UserError(f"{folder / FILE} is not the record of a suite") from None
    for name in suite.tracks:
        yield folder / name, train(folder / name)
