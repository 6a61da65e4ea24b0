"""What a training step on pfa-v1 asks of a GPU, counted on a CPU.

`python -m tests.benchmarks.gpu_costs` prints the counted columns of docs/gpu.md; `gpu_steps` measures the others on a GPU.

Counted are a step's matrix products and its operations; each starts a kernel or more. The ops take the implementations that CUDA
has in plain PyTorch.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regbench.models.build import build, resolve_options
from regbench.models.model import Model, parameter_count
from regbench.ops.backend import use_backend
from regbench.tracks import load_track
from regbench.training.options import TrainingOptions
from regbench.training.step import make_optimizer, train_step
from regbench.utils import registry

TRACK, BATCH, LENGTH = "pfa-v1", 32, 448
SETTINGS: dict[str, Any] = {"d_model": 256, "n_layers": 8}
MORE: dict[str, dict[str, Any]] = {
    "cgt": {"y_layer": 5},
    **{
        name: {"n_heads": 4}
        for name in (
            "based",
            "gated_deltanet2",
            "gated_deltaproduct",
            "gla",
            "hgrn2",
            "kimi_delta_attention",
            "mamba2",
            "mamba3",
            "mesanet",
            "retnet",
            "rwkv6",
            "rwkv7",
        )
    },
}
OF_ONE_SIZE = ("associative_memory", "learned_ngram")
"""Have neither width nor depth."""
BACKEND = (
    "attention=torch,delta_rule=chunked,linear_attention=chunked,ngram_counts=torch,selective_scan=chunked,wkv=chunked"
)


@dataclass(frozen=True)
class Counted:
    """One architecture: parameters, operations of a step, and floating-point operations of a token."""

    parameters: int
    operations: int
    flops: float


class _Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts operations that compute; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def model_of(name: str) -> Model:
    """At the size of the table, in training mode."""
    cls = registry.load(registry.ARCHITECTURE, name)
    settings = {} if name in OF_ONE_SIZE else {**SETTINGS, **MORE.get(name, {})}
    return build(cls, resolve_options(cls, settings), load_track(TRACK).task.io).train()


def count(name: str) -> Counted:
    """Counts one training step of one sequence."""
    model = model_of(name)
    options = TrainingOptions()
    optimizer = make_optimizer(model, options)
    tokens = torch.randint(0, 18, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = (tokens, torch.ones(1, LENGTH, dtype=torch.bool))
    with use_backend(BACKEND), FlopCounterMode(display=False) as flops, _Operations() as operations:
        train_step(model, optimizer, batch, options)
    return Counted(parameter_count(model), operations.count, flops.get_total_flops() / LENGTH)


def row(name: str) -> dict[str, str]:
    """The counted cells of a row of the page."""
    found = count(name)
    known = found.flops > found.parameters  # a token meets every weight; PyTorch does not count the products of an LSTM
    return {
        "architecture": f"`{name}`",
        "parameters": f"{found.parameters:,}",
        "MFLOP a token": f"{found.flops / 1e6:.0f}" if known else "",
        "operations a step": f"{found.operations:,}",
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    rows = [row(name) for name in registry.entries(registry.ARCHITECTURE) if name not in OF_ONE_SIZE]
    print(tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True))
