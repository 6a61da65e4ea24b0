"""What a training step of an architecture takes of memory at its peak: `python -m tests.benchmarks.peak_memory NAME`.

In a process of its own, where nothing else has touched memory. Prints one JSON object, bytes by "BATCHxLENGTH". Needs Linux,
which can be asked for a process's highest mark and told to forget it.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regbench.models.build import build, resolve_options
from regbench.models.model import Model
from regbench.ops.backend import use_backend
from regbench.tasks.base import TokenIO
from regbench.utils import registry

WIDTH, LAYERS, VOCABULARY, LONGEST = 128, 2, 19, 1600
SIZES = ((8, 400), (8, 1600), (32, 400))
"""Batch and length."""


def model_of(name: str, width: int = WIDTH, longest: int = LONGEST) -> Model:
    """Two layers, with the architecture's own defaults else."""
    torch.manual_seed(0)
    cls = registry.load(registry.ARCHITECTURE, name)
    io = TokenIO(VOCABULARY, VOCABULARY - 1, longest, tuple("abcdefghijklmnopqr|"))
    return build(cls, resolve_options(cls, {"d_model": width, "n_layers": LAYERS}), io)


def tokens_of(batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


def step(model: Model, tokens: Tensor) -> None:
    """Forward and backward; every token is scored."""
    model.zero_grad(set_to_none=True)
    (loss,) = model.losses(tokens, torch.ones_like(tokens, dtype=torch.bool)).values()
    loss.backward()


@dataclass(frozen=True)
class Peaks:
    """Bytes over those of the process before, by (batch, length)."""

    bytes: dict[tuple[int, int], int]

    @property
    def exponent(self) -> float:
        """p where bytes grow as L^p, from a length to four times it."""
        short, long, _ = (self.bytes[size] for size in SIZES)
        return math.log(long / short, 4)


def measure(name: str, backend: str = "auto") -> Peaks:
    """In a new process, with one thread."""
    command = [sys.executable, "-m", "tests.benchmarks.peak_memory", name, backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Peaks({tuple(map(int, size.split("x"))): peak for size, peak in json.loads(done.stdout).items()})  # type: ignore[misc]


def _bytes(mark: str) -> int:
    """VmRSS, what the process holds, or VmHWM, the most that it has held."""
    (kilobytes,) = re.findall(rf"{mark}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


def main() -> None:
    name, backend = sys.argv[1:3]
    torch.set_num_threads(1)
    model = model_of(name)
    peaks = {}
    with use_backend(backend):
        step(model, tokens_of(1, 33))  # loads what is compiled
        ctypes.CDLL(None).malloc_trim(0)  # glibc gives back what was freed, else it would serve the first step unseen
        before = _bytes("VmRSS")
        for batch, length in SIZES:
            Path("/proc/self/clear_refs").write_text("5")  # forgets the highest mark
            step(model, tokens_of(batch, length))
            peaks[f"{batch}x{length}"] = _bytes("VmHWM") - before
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
