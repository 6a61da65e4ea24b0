"""The Ray engine: the same jobs as remote tasks. Only Ray Core is used, with its dashboard and usage statistics off.

Where a node sees the sweep's folder, it works in it, as a local process does. Elsewhere the files of a job travel to the node and
what it makes travels back.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import secrets
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from regbench.config import Config
from regbench.data.text.sources import SUFFIXES
from regbench.sweeps.local import Share
from regbench.sweeps.work import Ended, Event, Job, Note, do
from regbench.tasks import _corpus
from regbench.tracks import is_track_file, load_track
from regbench.training import provenance
from regbench.training.checkpoint import TRAINED_FILE
from regbench.utils import registry, threads
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write
from regbench.utils.imports import modules_beside

RETRIES = 3
"""How often a job begins again, on another node or process, because its node or process died."""

_REACH = 10.0
"""Seconds in which a cluster must answer."""

_CHECK = 120.0
"""Seconds in which every node must say which code it has."""

_TOKEN = ".ray"
Files = dict[str, bytes]


def connect(address: str | None, divided: Share) -> Any:
    """Joins the cluster at an address, or the one that runs on this machine, or starts one here. Returns the module `ray`.

    Args:
        address: of the cluster; None: what RAY_ADDRESS says.
        divided: what each job needs.

    Raises:
        UserError: Ray is not installed, the cluster does not answer, or has too little for a single job.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed: pip install 'regbench[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS") or None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address not in (None, "auto", "local"):
        _reach(str(address))
    try:
        if address != "local":
            with contextlib.suppress(*([ConnectionError] if address is None else [])):
                ray.init(address=address or "auto", **quiet)
        if not ray.is_initialized():
            ray.init(address="local", num_cpus=threads.cores(), include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        where = f"the Ray cluster at {address}" if address else "Ray"
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{where} cannot be joined: {reason}; nothing is lost, start the sweep again") from None
    try:
        _require(ray, divided)
    except UserError:
        ray.shutdown()
        raise
    return ray


def _reach(address: str) -> None:
    """Asks whether somebody listens at HOST:PORT; Ray itself would wait for minutes.

    Raises:
        UserError: nobody does, or that is no address.
    """
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or "://" in address:
        raise UserError(f"'{address}' is no address of a Ray cluster: give HOST:PORT, from a machine of the cluster")
    try:
        socket.create_connection((host, port), timeout=_REACH).close()
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
        raise UserError(
            f"no Ray cluster answers at {host}:{port} within {_REACH:g} s ({reason}); nothing is lost, start the sweep again"
        ) from None


def _require(ray: Any, divided: Share) -> None:
    """Asks whether the cluster has enough for one job.

    Raises:
        UserError: it has not.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = max((node.get("CPU", 0) for node in nodes), default=0)
    if most < divided.threads:
        raise UserError(
            f"a run of {divided.threads} threads asked for, and the largest node of the cluster has {most:g} cores"
        )
    gpus = sum(node.get("GPU", 0) for node in nodes)
    if gpus < divided.gpus:
        raise UserError(f"a run with {divided.gpus:g} GPU asked for, and there are {gpus:g} GPUs in the cluster")


@lru_cache(maxsize=1)
def code_here() -> str:
    """A digest of the code that runs on this machine: regbench, its architectures and baselines, Python and PyTorch."""
    digest = hashlib.sha256(f"{platform.python_version()} {metadata.version('torch')}".encode())
    for package in ("regbench", "architectures", "baselines"):
        spec = importlib.util.find_spec(package)
        for folder in sorted(spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(folder).as_posix()}".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass
class RayEngine:
    """Jobs as tasks of a Ray cluster.

    Attributes:
        ray: the module, connected.
        divided: what each job needs; of its `jobs`, how many are in flight at most, 0 for as many as the cluster can hold.
        home: the sweep's folder.
        shared: whether nodes may look for the folder itself; tests say no.
    """

    ray: Any
    divided: Share
    home: Path
    shared: bool = True
    _running: dict[Any, Job] = field(default_factory=dict)
    _token: str = field(default_factory=lambda: secrets.token_hex(16))
    _mailbox: Any = None
    _mail: Any = None
    _task: Any = None

    def __post_init__(self) -> None:
        """Asks every node which code it has.

        Raises:
            UserError: one has another.
        """
        (self.home / _TOKEN).write_text(self._token, encoding="ascii")
        needs: dict[str, Any] = {
            "num_cpus": self.divided.threads,
            "num_gpus": self.divided.gpus,
            "max_retries": RETRIES,
            "runtime_env": {"env_vars": self._environment()},
        }
        self._task = self.ray.remote(**needs)(_work)
        here = self.ray.get_runtime_context().get_node_id()
        self._mailbox = (
            self.ray.remote(num_cpus=0, runtime_env=needs["runtime_env"])(_Mailbox)
            .options(scheduling_strategy=self._on(here, soft=True))
            .remote()
        )
        self._same_code_everywhere(needs["runtime_env"])

    def free(self) -> int:
        """How many jobs could begin at once now; nodes come and go."""
        most = self.divided.jobs
        if not most:
            there = self.ray.cluster_resources()
            most = int(there.get("CPU", 0) // self.divided.threads)
            if self.divided.gpus:
                most = min(most, int(there.get("GPU", 0) / self.divided.gpus))
        return max(1, most) - len(self._running)

    def submit(self, job: Job) -> None:
        """Sends a job to the cluster."""
        files = None if self.shared and not self._remote_nodes() else _files(Path(job.folder))
        asked = {
            "token": self._token if self.shared else "",
            "code": code_here(),
            "cwd": os.getcwd(),
            "home": str(self.home),
        }
        own = {} if files is None else _own_files(job.config)
        self._running[self._task.remote(job.plain(), files, own, asked, self._mailbox)] = job

    def wait(self, seconds: float) -> list[tuple[Job, Event]]:
        """What has happened since the last call; waits so long for something to happen."""
        found: list[tuple[Job, Event]] = []
        if not self._running:
            time.sleep(seconds)
            return found
        done, _ = self.ray.wait(list(self._running), num_returns=1, timeout=seconds)
        done += self.ray.wait(list(self._running), num_returns=len(self._running), timeout=0)[0] if done else []
        found += self._notes()
        for ref in dict.fromkeys(done):
            job = self._running.pop(ref)
            try:
                message, refused, files = self.ray.get(ref)
                if files is not None:
                    _put(Path(job.folder), files)
                found.append((job, Ended(message, refused)))
            except Exception as error:  # Ray's own, of which there are many: the node or the process died too often
                found.append((job, Ended(f"{type(error).__name__}: {_first_line(error)}")))
        return found

    def close(self) -> None:
        """Cancels what still runs and leaves the cluster; what is half done can be resumed."""
        for ref in self._running:
            with contextlib.suppress(Exception):
                self.ray.cancel(ref, force=True)
        if self._running:
            self.ray.wait(list(self._running), num_returns=len(self._running), timeout=5)
        self._running.clear()
        (self.home / _TOKEN).unlink(missing_ok=True)
        self.ray.shutdown()

    def _notes(self) -> list[tuple[Job, Event]]:
        """What running jobs have told."""
        if self._mail is None:
            self._mail = self._mailbox.take.remote()
        if not self.ray.wait([self._mail], timeout=0)[0]:
            return []
        try:
            notes = self.ray.get(self._mail)
        except Exception:  # the mailbox is gone with its node: what remains is how jobs end
            notes = {}
        self._mail = None
        jobs = {job.folder: job for job in self._running.values()}
        return [(jobs[name], Note(*note)) for name, note in notes.items() if name in jobs]

    def _remote_nodes(self) -> bool:
        """Whether some node may not see the folder: any with another address than this one's."""
        here = self.ray.util.get_node_ip_address()
        return any(node["Alive"] and node["NodeManagerAddress"] != here for node in self.ray.nodes())

    def _on(self, node: str, *, soft: bool = False) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=soft)

    def _same_code_everywhere(self, environment: dict[str, Any]) -> None:
        asked = {
            node["NodeManagerAddress"]: self.ray.remote(num_cpus=0, max_retries=0, runtime_env=environment)(_code)
            .options(scheduling_strategy=self._on(node["NodeID"]))
            .remote()
            for node in self.ray.nodes()
            if node["Alive"]
        }
        for address, ref in asked.items():
            try:
                there = self.ray.get(ref, timeout=_CHECK)
            except Exception as error:
                self.close()
                raise UserError(f"the node {address} cannot run regbench: {_first_line(error)}") from None
            if there != code_here():
                self.close()
                raise UserError(f"the node {address} has another regbench, Python or PyTorch than this machine")

    def _environment(self) -> dict[str, str]:
        """What a process on a node is told before it starts."""
        import regbench

        home = str(Path(regbench.__file__).resolve().parent.parent)
        told = {"PYTHONPATH": f"{home}{os.pathsep}${{PYTHONPATH}}", **threads.environment(self.divided.threads)}
        if "REGBENCH_CACHE" in os.environ:
            told["REGBENCH_CACHE"] = os.environ["REGBENCH_CACHE"]
        return told


class _Mailbox:
    """Keeps the last note of each job until the sweep takes them."""

    def __init__(self) -> None:
        self.notes: dict[str, tuple[str, float]] = {}

    def put(self, name: str, text: str, share: float) -> None:
        """Keeps a note."""
        self.notes[name] = (text, share)

    def take(self) -> dict[str, tuple[str, float]]:
        """All notes since the last time."""
        notes, self.notes = self.notes, {}
        return notes


def _code() -> str:
    return code_here()


def _work(
    content: dict[str, Any], files: Files | None, own: Files, asked: dict[str, str], mailbox: Any
) -> tuple[str | None, bool, Files | None]:
    """Runs on a node: does a job in the sweep's folder where it is seen, else in one of this node's own.

    Args:
        content: the job.
        files: those of its folder; None where every node sees them.
        own: files that the configuration names, by their names.
        asked: the sweep's token, its code, and where it was started.
        mailbox: takes notes.

    Returns:
        Why it failed, whether its configuration is to blame, and the files that it left where the sweep does not see them.
    """
    if code_here() != asked["code"]:
        return f"the node {socket.gethostname()} has another regbench, Python or PyTorch", False, None
    job = Job.read(content)

    def tell(note: Note) -> None:
        mailbox.put.remote(job.folder, note.text, note.share)

    if _sees(Path(asked["home"]), asked["token"]):
        os.chdir(asked["cwd"])
        ended = do(job, Path(job.folder), tell)
        return ended.message, ended.refused, None
    place = _place(asked["home"], job, files or {})
    root = Path(tempfile.gettempdir()) / f"regbench-{os.getuid()}" / place
    folder = root / "folder"
    if not folder.exists():  # else a process that died here has left more than it was sent, which was the same
        folder.mkdir(parents=True)
        _put(folder, files or {})
    _put(root / "cwd", own)
    os.chdir(root / "cwd")
    ended = do(job, folder, tell)
    left = _files(folder)
    os.chdir(tempfile.gettempdir())
    shutil.rmtree(root, ignore_errors=True)
    return ended.message, ended.refused, left


def _place(home: str, job: Job, files: Files) -> str:
    """The name of a job's folder on a node. It is another one where the sweep's folder has other files than it had."""
    digest = hashlib.sha256(f"{home} {job.folder} {job.action}".encode())
    for name, content in sorted(files.items()):
        digest.update(f" {name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:32]


def _sees(home: Path, token: str) -> bool:
    """Whether this process sees the sweep's own folder, and not another of the same name."""
    try:
        return bool(token) and (home / _TOKEN).read_text(encoding="ascii") == token
    except (OSError, ValueError):
        return False


def _files(folder: Path) -> Files:
    """The files of a folder, by their paths in it. Hidden ones, the lock and temporary files, are left out."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."] if folder.exists() else []
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _put(folder: Path, files: Files) -> None:
    """Writes the files of a folder, and removes those that are no more. What says that others are whole comes last."""
    last = (provenance.FILE, TRAINED_FILE, "scores.json", "result.json")
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: last.index(name) if name in last else -1):
        with atomic_write(folder / name, "wb") as file:
            file.write(files[name])
    for name in _files(folder).keys() - files.keys():
        (folder / name).unlink(missing_ok=True)


def _own_files(config: Config) -> Files:
    """The files that a configuration names by relative paths: an architecture, a track, its task, its text.

    With an architecture and a task go the modules beside them that they import.
    """
    paths: list[Path] = []
    source, _ = registry.as_file(config.architecture)
    if source is not None:
        paths += _with_modules(source)
    if is_track_file(config.track):
        track = Path(config.track)
        loaded = load_track(config.track)
        task, _ = registry.as_file(loaded.definition.task)
        paths += [track, *(_with_modules(track.parent / task) if task is not None else [])]
        if isinstance(loaded.task, _corpus.Task) and (text := loaded.task.parameters.path) is not None:
            paths += [path for path in (text, *text.rglob("*")) if path.suffix.lower() in SUFFIXES and path.is_file()]
    relative = [path for path in paths if not path.is_absolute() and ".." not in path.parts]
    return {str(path): path.read_bytes() for path in relative}


def _with_modules(source: Path) -> list[Path]:
    """A file, and the modules beside it that it imports."""
    beside = (other.relative_to(source.resolve().parent) for other in modules_beside(source))
    return [source, *(source.parent / other for other in beside)]


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
