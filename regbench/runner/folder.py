"""The folder of a run: a new one, one that holds no run yet, and the configuration in it."""

from __future__ import annotations

import time
from pathlib import Path

from regbench.config import Config, config_text
from regbench.runner.plan import Plan
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_full_disk


def unused(out: str | Path | None, instead: str = "choose another folder") -> Path | None:
    """The folder that the caller chose, which must hold no run. None: none was chosen."""
    if out == "":
        raise UserError("out is empty: it names a new folder")
    folder = None if out is None else Path(out)
    if folder is not None and any((folder / name).exists() for name in ("result.json", "config.yaml")):
        raise UserError(f"{out} holds a run already; {instead}")
    return folder


def new_folder(plan: Plan) -> Path:
    """Makes a folder that no other run has. Two runs that begin in one second get two folders."""
    return make_folder(Path("runs") / plan.track.name / f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}")


def make_folder(base: Path) -> Path:
    """Makes the folder `base`, or where it is there `base-2` and so on."""
    folder, number = base, 1
    with explain_full_disk(base):
        base.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
                folder = base.with_name(f"{base.name}-{number}")


def write_config(folder: Path, config: Config) -> None:
    """Writes `config.yaml`. From then on the folder holds a run that can be resumed."""
    with atomic_write(folder / "config.yaml") as file:
        file.write(config_text(config))
