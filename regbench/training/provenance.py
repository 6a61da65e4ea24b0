"""What a trained model was made from, and the machine, packages and code of a result.

The parts are kept beside the scores of a seed, so that one result never joins models of two makings.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from regbench.results import Code, Environment
from regbench.utils.errors import Unavailable
from regbench.utils.files import write_json

FILE = "provenance.json"
"""Lies in a seed's folder since its training began."""

CODE_FILE = "code.json"
"""Lies in a seed's folder until the whole run is finished: by which code and packages it was trained and scored."""

Parts = Mapping[str, Any]
"""What a model and its scores follow from, by the keys of `WORDS`. regbench's own code is not among them: `Code` records it."""

WORDS = {
    "track": "the track",
    "source": "the architecture's code",
    "options": "the options",
    "training": "the training options",
    "device": "the device",
    "backend": "the backend",
    "text": "the text that the track is cut from",
    "task": "the task's code",
    "seed": "the seed",
}
"""How messages call each part."""


def check_provenance(folder: Path, parts: Parts) -> None:
    """Compares what a seed, as far as it has come, was made from with what the run would be made from now."""
    path = folder / FILE
    if not path.exists():
        raise Unavailable(f"{folder} has begun, but has no {FILE}, which says from what: begin anew with another --out")
    try:
        then = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        then = None
    now = json.loads(json.dumps(parts))  # tuples become lists, as in the file
    if then == now:
        return
    changed = [word for key, word in WORDS.items() if isinstance(then, dict) and then.get(key) != now.get(key)]
    raise Unavailable(
        f"{folder} has begun before {' and '.join(changed) or 'something'} changed, and one result cannot hold both: "
        "undo the change, or begin anew with another --out"
    )


_PACKAGES = ("regbench", "torch", "numpy", "numba", "triton", "flash-attn", "mamba-ssm")
_FOLDER = Path(__file__).resolve().parents[1]
_STATUS = Path("/proc/self/status")
"""Only Linux has it."""


def describe_environment(
    device: torch.device,
    backend: dict[str, str],
    training_backend: dict[str, str],
    precision: Literal["float32", "bfloat16"],
    packages: Mapping[str, str] | None = None,
) -> Environment:
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        precision=precision,
        backend=dict(sorted(backend.items())),
        packages=dict(versions() if packages is None else packages),
        training_backend=dict(sorted(training_backend.items())) if training_backend != backend else None,
    )


def versions() -> dict[str, str]:
    """The versions of the packages that decide scores, by name."""
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found | {"numpy": np.__version__}


def describe_machine() -> str:
    return f"{platform.system()} {platform.machine()}, {_processor()}"


def describe_code() -> Code:
    """The commit of regbench's own source, and whether its packages differ from it. None where it is no repository.

    A Python file that was never added is a difference, too: the commit does not have it.
    """
    found = []
    try:
        # An environment may lie inside some other repository: the first call asks whether this file is tracked.
        for call in (
            ["ls-files", "--", __file__],
            ["rev-parse", "HEAD"],
            ["status", "--porcelain", "-uall", "--", *_own_packages()],
        ):
            found.append(_git(call))
            if not found[0]:
                return Code(commit=None, dirty=None)
    except (OSError, subprocess.SubprocessError):
        return Code(commit=None, dirty=None)
    changed = [line for line in found[2].splitlines() if not line.startswith("??") or line.endswith((".py", '.py"'))]
    return Code(commit=found[1], dirty=bool(changed))


def note_code(folder: Path, code: Code, *, afresh: bool) -> None:
    """Adds to a seed's folder that this state of the repository, and the packages of this process, have worked on it.

    `afresh`: nothing is kept of what others did before.
    """
    noted, now = [] if afresh else _noted(folder), (code, versions())
    if now not in noted:
        rows = [{"code": one.model_dump(mode="json"), "packages": packages} for one, packages in (*noted, now)]
        write_json(folder / CODE_FILE, rows)


def code_of(folders: Iterable[Path], now: Code) -> Code:
    """The one state of the repository that has made all seeds. If there were several, it counts as changed: dirty."""
    states = [code for folder in folders for code, _ in _noted(folder)] or [now]
    same = all(_same_code(states[0], other) for other in (*states[1:], now))
    return states[0] if same else Code(commit=now.commit, dirty=True if now.commit else None)


def packages_of(folders: Iterable[Path]) -> dict[str, str]:
    """The packages that have made all seeds. If versions differed, all are named: "2.11.0 and 2.13.0"."""
    now = versions()
    states = [packages for folder in folders for _, packages in _noted(folder)] or [now]
    names = dict.fromkeys(name for packages in states for name in packages)
    return {name: " and ".join(dict.fromkeys(packages.get(name, "none") for packages in states)) for name in names}


def _noted(folder: Path) -> list[tuple[Code, dict[str, str]]]:
    """What has worked on a seed, in order."""
    try:
        rows = json.loads((folder / CODE_FILE).read_text(encoding="utf-8"))
        return [(Code(**row["code"]), row["packages"]) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _same_code(one: Code, other: Code) -> bool:
    """Whether two states have the same packages: the same commit, or two between which only other files changed."""
    if one == other:
        return True
    if one.dirty or other.dirty or one.commit is None or other.commit is None:
        return False
    try:
        _git(["diff", "--quiet", one.commit, other.commit, "--", *_own_packages()])
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _own_packages() -> list[str]:
    """What decides scores. A file of leaderboard/ or docs/ does not."""
    return [str(_FOLDER.parent / name) for name in ("regbench", "architectures", "baselines")]


def _git(arguments: Sequence[str]) -> str:
    """What git says of the repository that this file is in."""
    command = ["git", "-C", str(_FOLDER), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def peak_memory(device: torch.device) -> int:
    """The most memory so far, in bytes: of the GPU, or of this process. 0 where the system does not tell it (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # On Linux the other figure begins with that of the parent process.
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = _STATUS.read_text(encoding="ascii", errors="replace")
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.processor() or 'unknown'}, {os.cpu_count()} cores"
