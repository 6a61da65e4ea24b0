"""What a training on pfa-v1 asks of a GPU, counted on a CPU.

`python -m tests.benchmarks.gpu_costs` prints the table of docs/gpu.md.

Counted are a step's matrix products, its operations (each starts a kernel or more), and the bytes that it keeps for the backward
pass. The ops take the implementations that CUDA has in plain PyTorch. Nothing is timed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regbench.models.build import build, resolve_options
from regbench.models.model import parameter_count
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
            "gated_deltaproduct",
            "gla",
            "kimi_delta_attention",
            "mamba2",
            "mamba3",
            "mesanet",
            "retnet",
            "rwkv7",
        )
    },
}
OF_ONE_SIZE = ("associative_memory", "learned_ngram")
"""Have neither width nor depth."""
BACKEND = (
    "attention=torch,delta_rule=chunked,linear_attention=chunked,ngram_counts=torch,selective_scan=chunked,wkv=chunked"
)
PEAK, SHARE, START = 989e12, 0.1, 5e-6
"""An H100: products a second in bfloat16, the share of them that small matrices reach, and seconds to start a kernel. The
last two are assumed."""


@dataclass(frozen=True)
class Counted:
    """One architecture: parameters, operations of a step, and floating-point operations and kept bytes of a token."""

    parameters: int
    operations: int
    flops: float
    kept: float

    @property
    def gigabytes(self) -> float:
        """Weights, gradients and the two moments of AdamW, and what a batch keeps for the backward pass."""
        return (16 * self.parameters + self.kept * BATCH * LENGTH) / 1e9

    def minutes(self, tokens: int) -> float:
        """The longer one of the time of the matrix products and that of the starts of kernels."""
        steps = tokens / (BATCH * LENGTH)
        return max(tokens * self.flops / (SHARE * PEAK), steps * self.operations * START) / 60


class _Operations(TorchDispatchMode):  # type: ignore[misc]
    """Counts operations that compute; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count(name: str) -> Counted:
    """Counts one training step of one sequence."""
    cls = registry.load(registry.ARCHITECTURE, name)
    settings = {} if name in OF_ONE_SIZE else {**SETTINGS, **MORE.get(name, {})}
    model = build(cls, resolve_options(cls, settings), load_track(TRACK).task.io).train()
    options = TrainingOptions()
    optimizer = make_optimizer(model, options)
    tokens = torch.randint(0, 18, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = (tokens, torch.ones(1, LENGTH, dtype=torch.bool))
    own, kept = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept_by = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with use_backend(BACKEND), FlopCounterMode(display=False) as flops, _Operations() as operations, kept_by:
        train_step(model, optimizer, batch, options)
    return Counted(
        parameter_count(model), operations.count, flops.get_total_flops() / LENGTH, sum(kept.values()) / LENGTH
    )


def row(name: str) -> dict[str, str]:
    """A row of the page."""
    found, tokens = count(name), load_track(TRACK).definition.budget.train_tokens
    known = found.flops > found.parameters  # a token meets every weight; PyTorch does not count the products of an LSTM
    return {
        "architecture": f"`{name}`",
        "parameters": f"{found.parameters:,}",
        "MFLOP a token": f"{found.flops / 1e6:.0f}" if known else "",
        "operations a step": f"{found.operations:,}",
        "memory (GB)": f"{found.gigabytes:.1f}",
        "estimated minutes": f"{found.minutes(tokens):.0f}" if known else "",
    }


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    rows = [row(name) for name in registry.entries(registry.ARCHITECTURE) if name not in OF_ONE_SIZE]
    print(tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True))
