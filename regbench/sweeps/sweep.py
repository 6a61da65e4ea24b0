"""A whole sweep: from its file to the tables in its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regbench.models.model import find_device
from regbench.sweeps.curves import curves_of, write_curves
from regbench.sweeps.file import SweepFile, read_sweep
from regbench.sweeps.grid import Group, expand
from regbench.sweeps.local import LocalEngine, Share, share
from regbench.sweeps.plot import FILE as PICTURE
from regbench.sweeps.plot import draw_plot, require_columns
from regbench.sweeps.schedule import Schedule, Watcher
from regbench.sweeps.state import Failure, SweepFolder
from regbench.sweeps.tables import Chosen, best_rows, lines_of, rows_of, write_best, write_table, write_trials
from regbench.sweeps.work import Engine
from regbench.utils.errors import UserError
from regbench.utils.files import explain_writing

On = Literal["local", "ray"]


@dataclass(frozen=True)
class Swept:
    folder: Path
    rows: list[Chosen]
    """Each chosen configuration with all its seeds."""
    failures: list[Failure]

    @property
    def best(self) -> list[Chosen]:
        return best_rows(self.rows)


@dataclass(frozen=True)
class Sweep:
    """A sweep file and what it comes to."""

    path: Path
    file: SweepFile
    groups: list[Group]

    @classmethod
    def read(cls, path: str | Path) -> Sweep:
        file = read_sweep(Path(path))
        groups = expand(file)
        if file.plot is not None:
            require_columns(file.plot, groups)
        return cls(Path(path), file, groups)

    @property
    def folder(self) -> Path:
        """Where it goes by default: always the same folder, so that the same command goes on."""
        return Path("runs") / "sweeps" / self.path.stem

    def share(self, jobs: int | None = None, on: On = "local") -> Share:
        """How this machine is divided for it, or what each job needs of a cluster, whatever this machine has."""
        if on == "ray":
            if jobs is not None and jobs < 1:
                raise UserError(f"--jobs {jobs}: at least one run at once is needed")
            gpus = self.file.gpus if self.file.gpus is not None else float(self.file.device.startswith("cuda"))
            return Share(jobs or 0, self.file.threads or 1, gpus)
        return share(jobs, self.file.threads, device=self.file.device, gpus=self.file.gpus)

    def run(
        self,
        watcher: Watcher,
        *,
        out: str | Path | None = None,
        jobs: int | None = None,
        on: On = "local",
        address: str | None = None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> Swept:
        folder = SweepFolder(Path(out if out is not None else self.folder).resolve())
        divided = self.share(jobs, on)
        if on == "local":
            find_device(self.file.device)
        folder.require_sweep()  # first: in a folder of something else no lock is left
        with explain_writing(folder.path), folder.held():
            folder.begin(self.file, self.groups)
            engine = self._engine(folder, divided, on, address)
            announce(_words(divided, on))
            try:
                schedule = Schedule(folder, self.groups, engine, watcher)
                schedule.run()
            finally:
                engine.close()
            rows = rows_of(folder, schedule.finished, self.groups)
            write_table(folder.path / "table.csv", rows, self.groups)
            write_trials(folder.path / "trials.csv", folder, self.groups, schedule.chosen)
            write_curves(folder.path, curves_of(rows, self.groups), rows)
            if self.file.plot is not None:
                draw_plot(folder.path / PICTURE, self.file.plot, lines_of(rows, self.groups))
            write_best(folder, rows)
        return Swept(folder.path, rows, schedule.failures)

    def _engine(self, folder: SweepFolder, divided: Share, on: On, address: str | None) -> Engine:
        if on == "local":
            return LocalEngine(divided, folder.path / "workers.log")
        from regbench.sweeps.ray_engine import RayEngine

        return RayEngine(address, divided, folder.path)


def _words(divided: Share, on: On) -> str:
    each = f"{divided.threads} thread{'s' * (divided.threads > 1)}"
    each += f" and {divided.gpus:g} GPU" if divided.gpus else ""
    if on == "ray":
        return f"on Ray, {each} a run" + (f", {divided.jobs} at once at most" if divided.jobs else "")
    return f"{divided.jobs} run{'s' * (divided.jobs > 1)} at once, {each} each"
