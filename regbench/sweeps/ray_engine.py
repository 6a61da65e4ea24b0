"""The Ray engine: the same jobs as tasks of Ray Core, its dashboard and usage statistics off.

Where every node sees the sweep's folder, a task works in it, as a local process does. Elsewhere Ray carries the files of a job
there and back, and the current folder with the user's own files.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import socket
import tempfile
import time
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from regbench.sweeps.local import Share
from regbench.sweeps.work import Ended, Event, Job, Note, do
from regbench.training import provenance
from regbench.training.checkpoint import TRAINED_FILE
from regbench.utils import registry, threads
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write

RETRIES = 3
"""How often a job begins again, on another node or process, because its node or process died."""

_REACH = 10.0
"""Seconds in which a cluster must answer."""

_CHECK = 120.0
"""Seconds in which every node must say which code it has."""

_TOKEN = ".ray"
_LAST = (provenance.FILE, TRAINED_FILE, "scores.json", "result.json")
"""The files that say that others are whole. They are written after them."""

Files = dict[str, bytes]


@dataclass
class RayEngine:
    """Jobs as tasks of a Ray cluster.

    Args:
        address: of the cluster. None: what RAY_ADDRESS says, else the one that runs on this machine, else a new one here.
        divided: what each job needs; of its `jobs`, how many are in flight at most, 0 for as many as the cluster can hold.
        home: the sweep's folder.
        shared: whether nodes may look for the folder itself; tests say no.
    """

    address: str | None
    divided: Share
    home: Path
    shared: bool = True
    _running: dict[Any, Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ray = _connect(self.address, _environment(self.divided.threads))
        try:
            _require(self._ray, self.divided)
            (self.home / _TOKEN).write_text(secrets.token_hex(16), encoding="ascii")
            if not self._every_node_sees_the_folder() or not self.shared:
                self.shared = False
                self._ray.shutdown()
                own = {"working_dir": os.getcwd(), "excludes": ["runs", ".git", ".venv"]}
                self._ray = _connect(self.address, {**_environment(self.divided.threads), **own})
        except BaseException:
            self.close()
            raise
        from ray.util.queue import Queue

        self._told = Queue(actor_options={"num_cpus": 0})
        self._task = self._ray.remote(num_cpus=self.divided.threads, num_gpus=self.divided.gpus, max_retries=RETRIES)(
            _work
        )

    def free(self) -> int:
        there = self._ray.cluster_resources()
        most = self.divided.jobs or int(there.get("CPU", 0) // self.divided.threads)
        if self.divided.gpus and not self.divided.jobs:
            most = min(most, int(there.get("GPU", 0) / self.divided.gpus))
        return max(1, most) - len(self._running)

    def submit(self, job: Job) -> None:
        files, cwd = (None, os.getcwd()) if self.shared else (_files(Path(job.folder)), None)
        self._running[self._task.remote(job.plain(), code_here(), cwd, files, self._told)] = job

    def wait(self, seconds: float) -> list[tuple[Job, Event]]:
        if not self._running:
            time.sleep(seconds)
            return []
        done, _ = self._ray.wait(list(self._running), timeout=seconds)
        found: list[tuple[Job, Event]] = []
        with contextlib.suppress(Exception):  # the queue is gone with its node: what remains is how jobs end
            jobs = {job.folder: job for job in self._running.values()}
            notes = self._told.get_nowait_batch(self._told.qsize())
            found += [(jobs[name], Note(*note)) for name, *note in notes if name in jobs]
        for ref in done:
            job = self._running.pop(ref)
            try:
                ended, files = self._ray.get(ref)
                if files is not None:
                    _put(Path(job.folder), files)
            except Exception as error:  # Ray's own, of which there are many: the node or the process died too often
                ended = Ended(f"{type(error).__name__}: {_last_line(error)}")
            found.append((job, ended))
        return found

    def close(self) -> None:
        """Cancels what still runs and leaves the cluster; what is half done can be resumed."""
        for ref in self._running:
            with contextlib.suppress(Exception):
                self._ray.cancel(ref, force=True)
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=5)
        self._running.clear()
        (self.home / _TOKEN).unlink(missing_ok=True)
        self._ray.shutdown()

    def _every_node_sees_the_folder(self) -> bool:
        """Asks every node. One with other code is refused."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        token = (self.home / _TOKEN).read_text(encoding="ascii")
        look = self._ray.remote(num_cpus=0, max_retries=0)(_look)
        there = {
            node["NodeManagerAddress"]: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(str(self.home / _TOKEN))
            for node in self._ray.nodes()
            if node["Alive"]
        }
        seen = True
        for address, ref in there.items():
            try:
                code, text = self._ray.get(ref, timeout=_CHECK)
            except Exception as error:
                raise UserError(f"the node {address} cannot run regbench: {_last_line(error)}") from None
            if code != code_here():
                raise UserError(f"the node {address} has another regbench, Python or PyTorch than this machine")
            seen = seen and text == token
        return seen


def _connect(address: str | None, environment: dict[str, Any]) -> Any:
    """The module `ray`, connected. Its tasks run in the runtime environment that is given."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'regbench[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or None
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": environment}
    try:
        if address not in (None, "auto", "local"):
            _reach(str(address))
        if address != "local":
            with contextlib.suppress(*([ConnectionError] if address is None else [])):
                ray.init(address=address or "auto", **how)
        if not ray.is_initialized():
            ray.init(address="local", num_cpus=threads.cores(), include_dashboard=False, **how)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"the Ray cluster at {address}" if address else "Ray"
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{where} cannot be joined: {reason}; nothing is lost, start the sweep again") from None
    return ray


def _reach(address: str) -> None:
    """Asks whether somebody listens at HOST:PORT; Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("give HOST:PORT, from a machine of the cluster")
    socket.create_connection((host, int(port)), timeout=_REACH).close()


def _require(ray: Any, divided: Share) -> None:
    """Refuses a job that no node has enough for: Ray would wait for such a node for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores, gpus = (max((node.get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU"))
    if cores < divided.threads or gpus < divided.gpus:
        raise UserError(
            f"a run needs {divided.threads} cores and {divided.gpus:g} GPUs of one node, and the nodes of the cluster have at "
            f"most {cores:g} and {gpus:g}"
        )


def _environment(each: int) -> dict[str, Any]:
    import regbench

    home = str(Path(regbench.__file__).resolve().parent.parent)
    told = {"PYTHONPATH": f"{home}{os.pathsep}${{PYTHONPATH}}", **threads.environment(each)}
    if "REGBENCH_CACHE" in os.environ:
        told["REGBENCH_CACHE"] = os.environ["REGBENCH_CACHE"]
    return {"env_vars": told}


@lru_cache(maxsize=1)
def code_here() -> str:
    """A digest of the code that runs on this machine: regbench, its architectures and baselines, Python and PyTorch."""
    code = registry.code_digest(("regbench", "architectures", "baselines"), ".py")
    return f"{platform.python_version()} {metadata.version('torch')} {code}"


def _look(token: str) -> tuple[str, str | None]:
    """Runs on a node: which code it has, and what it reads in a file of the sweep's folder."""
    try:
        return code_here(), Path(token).read_text(encoding="ascii")
    except (OSError, ValueError):
        return code_here(), None


def _work(
    content: dict[str, Any], code: str, cwd: str | None, files: Files | None, told: Any
) -> tuple[Ended, Files | None]:
    """Runs on a node: does a job in the sweep's folder, or with the files of its folder in one of this node's own.

    What is None is not seen from there.
    """
    if code_here() != code:  # a node that joined later was not asked at the start
        return Ended(f"the node {socket.gethostname()} has another regbench, Python or PyTorch"), None
    job = Job.read(content)

    def tell(note: Note) -> None:
        with contextlib.suppress(Exception):  # the queue is gone with its node
            told.put_nowait((job.folder, note.text, note.share))

    if files is None:
        os.chdir(str(cwd))
        return do(job, Path(job.folder), tell), None
    with tempfile.TemporaryDirectory() as folder:
        _put(Path(folder), files)
        return do(job, Path(folder), tell), _files(Path(folder))


def _files(folder: Path) -> Files:
    """The files of a folder, by their paths in it. Hidden ones, the lock and temporary files, are left out."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _put(folder: Path, files: Files) -> None:
    """Writes the files of a folder, and removes those that are no more."""
    for name in sorted(files, key=lambda name: _LAST.index(name) if name in _LAST else -1):
        with atomic_write(folder / name, "wb") as file:
            file.write(files[name])
    for name in _files(folder).keys() - files.keys():
        (folder / name).unlink(missing_ok=True)


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
