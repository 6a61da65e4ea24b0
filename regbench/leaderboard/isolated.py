"""A stranger's architecture in a process of its own: it sees tokens and its weights, and nothing else of this machine.

The process runs in user, mount, network and process namespaces of its own (`unshare` of util-linux). Its root holds the system's
libraries and Python, read-only, and one folder with the job. There is no network, no home directory, no cache, no track and no
generator. It has no capabilities (`setpriv` of util-linux): with those of the namespace it could leave its root, or mount.
Processor time is limited, and the memory that each process has for itself. The process has a keyring of its own: in that of the
login it could leave a message for the next one. Where the system has no such namespaces, nothing is run.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regbench.data.instances import Instances
from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.job import CHILD, SECONDS, Job, predict_apart
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

MEMORY_BYTES = 8 << 30
_FILE_BYTES = 4 << 30

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
"""The number of the system call `keyctl`, by processor."""
_JOIN_SESSION_KEYRING = 1

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", *_DEVICES)
_SHARED = ("config.py", "results.py", "__init__.py", "data", "metrics", "models", "ops", "utils", "training")
"""What of regbench a model is built with. Of the tasks it gets the contract alone, and of the data no text."""

_ENTER = """\
set -e
root=$1; job=$2; shift 2
mount -t tmpfs -o size=64m none "$root"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")"; : > "$root$1"; fi
  mount --rbind "$1" "$root$1"
  mount -o remount,bind,ro "$root$1" 2>/dev/null || mount -o remount,bind,ro,nosuid,nodev "$root$1"
  shift
done
shift
while [ "$1" != -- ]; do mount -t tmpfs -o ro,size=4k none "$root$1"; shift; done
shift
mkdir -p "$root/proc" "$root/job" "$root/tmp"
mount -t proc -o ro none "$root/proc"
mount --bind "$job" "$root/job"
exec chroot "$root" setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
"""Arguments: the new root, the job's folder, what is shown --, what is hidden --, the command."""


def available() -> bool:
    """Whether this system lets a process have namespaces of its own."""
    if (
        sys.platform != "linux"
        or platform.machine() not in _KEYCTL
        or not all(map(shutil.which, ("unshare", "setpriv")))
    ):
        return False
    probe = [*_unshare(), "sh", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode == 0


def predict_isolated(
    job: Job, weights: Sequence[bytes], asked: Sequence[Instances], announce: Callable[[str], None]
) -> Iterator[Predictions]:
    """What a stranger's architecture predicts: for each seed all that it is asked.

    Args:
        job: The architecture.
        weights: The checkpoint of each seed.
        asked: What the model of each seed is asked. It gets their tokens and lengths alone.
        announce: Called with a line before something that takes long.

    Raises:
        UserError: The system has no namespaces, the process failed or went beyond its limits, or it left no predictions.
    """
    if not available():
        raise UserError(
            "this system cannot isolate a process (unshare with user namespaces, setpriv): a stranger's code is not run"
        )
    announce("running the stranger's code in a process of its own")
    try:
        yield from predict_apart(
            job,
            weights,
            asked,
            who="the stranger's code",
            command=_command,
            environment=_environment(),
            limit=_limit,
        )
    except Refused as error:
        raise UserError(str(error)) from None


def _add_library(folder: Path) -> None:
    """Writes what of regbench the process sees, and the architectures."""
    package = Path(__file__).resolve().parents[1]
    ignore = shutil.ignore_patterns("__pycache__", "text")
    for part in _SHARED:
        source, target = package / part, folder / "lib" / "regbench" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignore)
        else:
            shutil.copy(source, target)
    tasks = folder / "lib" / "regbench" / "tasks"
    tasks.mkdir()
    (tasks / "__init__.py").touch()
    shutil.copy(package / "tasks" / "base.py", tasks)
    found = importlib.util.find_spec("architectures")
    for place in found.submodule_search_locations or [] if found else []:
        shutil.copytree(place, folder / "lib" / "architectures", ignore=ignore)


def _command(folder: Path) -> list[str]:
    """The command that runs the job in a folder behind a root of its own. It makes the root, and adds the library."""
    root = folder.with_name("root")
    root.mkdir()
    _add_library(folder)
    shown = [path for path in (*_SYSTEM, *_prefixes(), *_packages()) if os.path.exists(path)]
    shown = [p for p in shown if not any(p != q and p.startswith(f"{q}/") for q in shown)]
    hidden = []
    for name in ("regbench", "baselines", "architectures"):
        spec = importlib.util.find_spec(name)
        hidden += [p for p in (spec.submodule_search_locations or [] if spec else []) if _inside(p, shown)]
    enter = ["sh", "-c", _ENTER, "enter", str(root), str(folder), *shown, "--", *hidden, "--"]
    return [*_unshare(), *enter, sys.executable, f"/job/{CHILD}"]


def _prefixes() -> list[str]:
    """The folders of this Python."""
    own = (sys.prefix, sys.base_prefix)
    return sorted({str(Path(path).resolve()) for path in own} | {*own})


def _packages() -> list[str]:
    """Folders of installed packages outside of those, as `pip install --user` has them. The process has another home."""
    named = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return [path for path in named if not _inside(path, _prefixes())]


def _inside(path: str, folders: list[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _unshare() -> list[str]:
    kinds = "--user --map-root-user --mount --net --ipc --uts --pid"
    return ["unshare", *kinds.split(), "--fork", "--kill-child"]


def _environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": os.pathsep.join(["/job/lib", *_packages()]),
        "HOME": "/tmp",
        "REGBENCH_CACHE": "/tmp/cache",
        "NUMBA_CACHE_DIR": "/tmp/numba",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _limit() -> None:
    """What the process may take, and a new keyring. A system without keyrings, or that forbids them, has nothing to leave."""
    import resource  # Unix alone has it

    system = ctypes.CDLL(None, use_errno=True)
    joined = system.syscall(_KEYCTL[platform.machine()], _JOIN_SESSION_KEYRING, None)
    if joined < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        raise OSError(ctypes.get_errno(), "no keyring of its own")
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
