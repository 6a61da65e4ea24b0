"""Writes the golden curves anew, and measures how far threads, processors and roundings move them: `make golden`.

Each file keeps the settings it was made with, so one that an architecture needs may be written into it by hand.
`python -m tests.golden.regenerate NAME ...` does only those named.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from typing import Any

from regbench.utils.errors import nearest
from regbench.utils.files import atomic_write
from tests.golden.curves import SETTINGS, Curve, distance, names, path_of, tiny_track, train

ROUNDINGS = 3
FACTOR, LEAST = 10, 1e-5
"""The tolerance is so many times the largest deviation measured, for the machines on which it was not, and at least `LEAST`:
some hundred roundings of a float32."""

# What another machine may do otherwise, as far as this one can be told to: the vector instructions of PyTorch's own
# kernels, of the two libraries behind its products, and of Numba's code, and among how many threads sums are split.
LOWEST = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "NUMBA_CPU_NAME": "generic",
}
SLEEPING = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
}  # where other programs hold the cores
MACHINES: dict[str, dict[str, str]] = {
    "again": {},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    **{f"ATEN_CPU_CAPABILITY={level}": {"ATEN_CPU_CAPABILITY": level} for level in ("default", "avx2", "avx512")},
    **{f"{key}={value}": {key: value} for key, value in LOWEST.items() if key != "ATEN_CPU_CAPABILITY"},
    "all of the lowest, 2 threads": {**LOWEST, "OMP_NUM_THREADS": "2"},
}


def machines_of(capability: str) -> dict[str, dict[str, str]]:
    """Those of `MACHINES` that a processor of this capability, as PyTorch names it, can stand for."""
    return {name: of for name, of in MACHINES.items() if not name.endswith("avx512") or capability == "AVX512"}


def settings_of(name: str) -> dict[str, Any]:
    """The settings in the architecture's file, or the common ones where it has none yet."""
    path = path_of(name)
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["settings"] if path.exists() else SETTINGS
    return settings


def curves_here(chosen: list[str], roundings: int) -> dict[str, list[Curve]]:
    """By architecture, the curve in this process, and so many more with the weights moved by a rounding."""
    track = tiny_track()
    return {
        name: [train(track, name, settings_of(name), rounding=seed) for seed in (None, *range(roundings))]
        for name in chosen
    }


def curves_under(environment: dict[str, str], chosen: list[str], roundings: int = 0) -> dict[str, list[Curve]]:
    """The same from a process of its own, with one thread where the environment says nothing else."""
    command = [sys.executable, "-m", "tests.golden.regenerate", f"--print={roundings}", *chosen]
    inherited = {key: value for key, value in os.environ.items() if key not in LOWEST}
    done = subprocess.run(
        command,
        env={**inherited, **SLEEPING, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, list[Curve]] = json.loads(done.stdout)
    return found


def regenerate(chosen: list[str]) -> None:
    """Measures and writes the files of these architectures."""
    import torch

    expected = curves_under({}, chosen, ROUNDINGS)
    deviations: dict[str, dict[str, float]] = {name: {} for name in chosen}
    for machine, environment in machines_of(torch.backends.cpu.get_cpu_capability()).items():
        print(machine, file=sys.stderr)
        for name, curves in curves_under(environment, chosen).items():
            deviations[name][machine] = distance(expected[name][0], curves[0])
    for name, (curve, *rounded) in expected.items():
        deviations[name][f"weights moved by a rounding, {ROUNDINGS} times"] = max(distance(curve, r) for r in rounded)
        write(name, curve, deviations[name])


def write(name: str, curve: Curve, deviations: dict[str, float]) -> None:
    """Writes one file, a field a line, the curve a row a line."""
    import torch

    settings = settings_of(name)
    largest = max(deviations.values())
    tolerance = float(f"{max(LEAST, FACTOR * largest):.1e}")
    rows = ",\n  ".join(json.dumps(row) for row in curve)
    fields = {
        "architecture": name,
        "settings": settings,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}",
        "deviations": {machine: float(f"{deviation:.1e}") for machine, deviation in deviations.items()},
        "tolerance": tolerance,
        "reason": f"relative; {FACTOR} times the largest deviation, {largest:.1e}, and at least {LEAST:g}",
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
    with atomic_write(path_of(name)) as file:
        file.write("{\n" + ",\n".join(lines) + f',\n "curve": [\n  {rows}\n ]\n}}\n')
    print(f"{name}: largest deviation {largest:.1e}, tolerance {tolerance:.1e}", file=sys.stderr)


def main(arguments: list[str]) -> None:
    """Regenerates all, or those named; `--print=N` gives the curves of this process as JSON instead, with N roundings."""
    flags = [argument for argument in arguments if argument.startswith("--print=")]
    chosen = [argument for argument in arguments if argument not in flags] or names()
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        sys.exit(f"unknown architecture '{unknown[0]}'{nearest(unknown[0], names())}")
    if flags:
        json.dump(curves_here(chosen, int(flags[0].removeprefix("--print="))), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ["REGBENCH_CACHE"] = cache
        regenerate(chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
