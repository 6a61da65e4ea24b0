"""What a training step on pfa-v1 takes on a GPU: `python -m tests.benchmarks.gpu_steps [NAME ...]`.

At the size of the table in docs/gpu.md, in bfloat16: milliseconds a step, tokens a second, the peak of memory, and what follows
for a training of one seed. Each architecture is timed with the ops of plain PyTorch and with those that "auto" chooses here,
by plain steps and by recorded ones.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from tabulate import tabulate

from regbench.ops.backend import use_backend
from regbench.tracks import load_track
from regbench.training.cuda_graph import GraphedGradients
from regbench.training.options import TrainingOptions
from regbench.training.step import gradients, make_optimizer, train_step
from regbench.utils import registry
from tests.benchmarks.gpu_costs import BACKEND, BATCH, LENGTH, OF_ONE_SIZE, TRACK, model_of

SECONDS = 1.2
"""How long the timed steps of one model take at least."""


def measure(name: str, backend: str, recorded: bool) -> dict[str, Any]:
    """Times training steps of a batch of full length; the first three compile or record, and are left out."""
    torch.cuda.empty_cache()
    model = model_of(name).to("cuda")
    options = TrainingOptions(precision="bfloat16")
    optimizer = make_optimizer(model, options)
    tokens = torch.randint(0, 18, (BATCH, LENGTH), device="cuda")
    given = (tokens, torch.ones(BATCH, LENGTH, dtype=torch.bool, device="cuda"))
    by = GraphedGradients(torch.device("cuda")) if recorded else gradients
    times: list[float] = []
    with use_backend(backend) as record:
        for _ in range(3):
            train_step(model, optimizer, given, options, by)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        while sum(times) < SECONDS or len(times) < 3:
            start = time.perf_counter()
            for _ in range(5):
                train_step(model, optimizer, given, options, by)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    step = statistics.median(times) / 5
    rate = BATCH * LENGTH / step
    budget = load_track(TRACK).definition.budget.train_tokens
    return {
        "architecture": f"`{name}`",
        "ops": ", ".join(sorted(set(record.values()))),
        "steps": "recorded" if recorded else "plain",
        "ms a step": f"{1e3 * step:.1f}",
        "tokens a second": f"{rate:,.0f}",
        "memory (GB)": f"{torch.cuda.max_memory_allocated() / 1e9:.1f}",
        "minutes": f"{budget / rate / 60:.0f}",
    }


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each architecture with the ops of plain PyTorch, then one for each of which "auto" chooses others."""
    plain: dict[str, str] = {}
    for backend, recorded in itertools.product((BACKEND, "auto"), (False, True)):
        for name in names:
            try:
                row = measure(name, backend, recorded)
            except Exception as error:
                row = {"architecture": f"`{name}`", "ops": f"{type(error).__name__}: {str(error)[:200]}"}
            if plain.setdefault(name, row["ops"]) != row["ops"] or backend == BACKEND:
                yield row


def main() -> None:
    print(torch.cuda.get_device_name())
    found = []
    for row in rows(sys.argv[1:] or [n for n in registry.entries(registry.ARCHITECTURE) if n not in OF_ONE_SIZE]):
        print(list(row.values()), flush=True)  # at once: a fault in the next may end the process
        found.append(row)
    print(tabulate(found, headers="keys", tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
