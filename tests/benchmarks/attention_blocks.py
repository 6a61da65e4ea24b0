"""Which division of the work is the fastest for our attention kernels on this GPU: `python -m tests.benchmarks.attention_blocks`.

Prints a line for each kernel, type and width: the fastest candidates, with their times, and the division of today. The tables in
`regbench/ops/attention/triton.py` follow from it. Candidates that do not fit the GPU are left out. Every candidate's output is
held to that of today's division.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regbench.ops.attention import attention
from regbench.ops.attention import triton as ours

BATCH, HEADS, LENGTH = 4, 8, 2048
WIDTHS = (64, 128)
KERNELS = ("forward", "queries", "keys")
ROUNDING = {torch.bfloat16: 2e-2, torch.float32: 1e-4}

# Rows owned, rows visited at a time, warps, stages; then with each of the caps on a thread's registers.
HALF = [
    (64, 32, 4, 2),
    (64, 32, 4, 3),
    (64, 64, 4, 2),
    (64, 64, 4, 3),
    (128, 32, 8, 2),
    (128, 64, 8, 2),
    (128, 64, 8, 3),
]
SINGLE = [(32, 16, 4, 2), (32, 16, 8, 2), (64, 32, 8, 2), (64, 16, 8, 2), (32, 32, 4, 2)]
REGISTERS = (128, 255)


@dataclass(frozen=True)
class Case:
    """A kernel on tensors of one type and width, divided in one way."""

    kernel: str
    dtype: torch.dtype
    width: int
    blocks: ours.Blocks


def cases() -> Iterator[Case]:
    """All candidates, today's division first."""
    for kernel, dtype, width in itertools.product(KERNELS, ROUNDING, WIDTHS):
        now = ours.blocks(kernel, width, width, dtype)
        yield Case(kernel, dtype, width, now)
        for (owned, visited, warps, stages), registers in itertools.product(
            HALF if dtype == torch.bfloat16 else SINGLE, REGISTERS
        ):
            m, n = (visited, owned) if kernel == "keys" else (owned, visited)
            found = ours.Blocks(m, n, owned, warps, stages, registers)
            if found != now:
                yield Case(kernel, dtype, width, found)


def prepared(case: Case) -> tuple[Callable[[], None], list[Tensor]]:
    """A call of the kernel, and the tensors that it writes."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (4, BATCH, HEADS, LENGTH, case.width)
    q, k, v, dout = torch.randn(shape, dtype=case.dtype, device="cuda", generator=generator)
    out, dq, dk, dv = (torch.full_like(q, torch.nan) for _ in range(4))
    logsum, delta = torch.full((2, *q.shape[:3]), torch.nan, device="cuda")
    fixed = {name: ours.blocks(name, case.width, case.width, case.dtype) for name in KERNELS}

    def launch(kernel: str, blocks: ours.Blocks) -> None:
        if kernel == "forward":
            ours._launch(ours.forward_kernel, blocks, (q, k, v, out), logsum)
        elif kernel == "queries":
            ours._launch(ours.queries_kernel, blocks, (q, k, v, out, dout, dq), logsum, delta)
        else:
            ours._launch(ours.keys_kernel, blocks, (q, k, v, dout, dk, dv), logsum, delta)

    for kernel in KERNELS[: KERNELS.index(case.kernel)]:  # what the kernel reads is written by those before it
        launch(kernel, fixed[kernel])
    written = {"forward": [out], "queries": [dq], "keys": [dk, dv]}[case.kernel]
    return lambda: launch(case.kernel, case.blocks), written


def compile_one(case: Case) -> None:
    """Compiles a candidate into Triton's cache."""
    try:
        prepared(case)[0]()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{case}: {str(error).splitlines()[0]}", file=sys.stderr)


def timed(case: Case, expected: list[Tensor] | None) -> tuple[float, list[Tensor]] | None:
    """Milliseconds, and what was written; None where the candidate does not fit, or writes something else than expected."""
    from triton.testing import do_bench

    call, written = prepared(case)
    try:
        call()
        torch.cuda.synchronize()
    except Exception:
        return None
    for found, right in zip(written, expected or written, strict=True):
        if not float((found - right).abs().max()) <= ROUNDING[case.dtype] * float(right.abs().max()):
            print(f"{case} is wrong", file=sys.stderr)
            return None
    return float(do_bench(call, warmup=5, rep=30, return_mode="median")), written


def main() -> None:
    every = list(cases())
    workers = max(1, (os.cpu_count() or 1) - 2)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(compile_one, every, chunksize=4)
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in every:
        groups.setdefault((case.kernel, case.dtype, case.width), []).append(case)
    print(torch.cuda.get_device_name())
    for (kernel, dtype, width), candidates in groups.items():
        times: dict[Case, float] = {}
        expected = None
        for case in candidates:
            found = timed(case, expected)
            if found is not None:
                times[case] = found[0]
                expected = expected or [x.clone() for x in found[1]]
        now = times.get(candidates[0], float("nan"))
        print(f"{kernel} {dtype} {width}: today {_said(candidates[0].blocks)} {now:.4f} ms of {len(times)}")
        for case, milliseconds in sorted(times.items(), key=lambda pair: pair[1])[:4]:
            print(f"    {_said(case.blocks)} {milliseconds:.4f} ms")
    for dtype, width in itertools.product(ROUNDING, WIDTHS):
        forward, backward = fused(dtype, width)
        print(f"PyTorch's {dtype} {width}: forward {forward:.4f} ms, backward {backward:.4f} ms")


def fused(dtype: torch.dtype, width: int) -> tuple[float, float]:
    """Milliseconds of PyTorch's fused attention on the same sizes: forward, backward."""
    from triton.testing import do_bench

    q, k, v, dout = torch.randn(4, BATCH, HEADS, LENGTH, width, dtype=dtype, device="cuda")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*leaves, backend="torch")
    return (
        float(do_bench(lambda: attention(*leaves, backend="torch"), return_mode="median")),
        float(do_bench(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True), return_mode="median")),
    )


def _said(blocks: ours.Blocks) -> str:
    visited = blocks.m + blocks.n - blocks.owned
    return f"({blocks.owned}, {visited}, {blocks.warps}, {blocks.stages}, {blocks.registers})"


if __name__ == "__main__":
    main()
