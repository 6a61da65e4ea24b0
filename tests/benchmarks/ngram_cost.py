"""What the n-gram head costs as sequences grow: time and peak memory, forward and backward, index included.

`make plot` measures both on this machine, and writes ngram_cost.csv and its picture ngram_cost.svg into docs/figures; about a
minute of one core. Memory needs Linux, which can be asked for a process's peak.
"""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import process_time
from unittest import mock

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from regbench.ops.ngram import ngram_head
from regbench.utils.files import atomic_write
from tests.helpers.documents import ROOT

BATCH, WIDTH, ORDER, VOCABULARY = 4, 128, 3, 18
LENGTHS = {"cpu": (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768), "naive": (128, 256, 512, 1024, 2048, 4096)}
NAMES = {"cpu": "ours", "naive": "dense (L, L) mask"}
COLOURS = {"cpu": "#0072B2", "naive": "#D55E00"}
FOLDER = ROOT / "docs" / "figures"


@dataclass(frozen=True)
class Cost:
    """One form at one length, at batch BATCH, width WIDTH and order ORDER, float32, one thread."""

    form: str
    length: int
    seconds: float
    peak_bytes: int


def there_and_back(form: str, length: int) -> Callable[[], None]:
    """A call that runs the head and its gradient once, on random tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (BATCH, length), generator=generator)
    hidden, upstream = torch.randn(2, BATCH, length, WIDTH, generator=generator)
    hidden.requires_grad_()

    def call() -> None:
        torch.autograd.grad(ngram_head(tokens, hidden, ORDER, backend=form), hidden, upstream)

    return call


def seconds(form: str, length: int, budget: float = 1.0) -> float:
    """The least processor time of a call within about `budget` seconds, and of at least 5: other programs count in neither."""
    call = there_and_back(form, length)
    call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < budget:
        start = process_time()
        call()
        times.append(process_time() - start)
    return min(times)


def peak_bytes(form: str, length: int) -> int:
    """How far memory rises above what is held before a call: the most of 5, since the kernel counts in lumps of some pages.

    For a process of `gives_memory_back`.
    """
    call = there_and_back(form, length)
    call()  # so that what is kept from then on, such as compiled code, is there already
    most = 0
    for _ in range(5):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status("VmRSS")
        call()
        most = max(most, _status("VmHWM") - before)
    return most


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def measure() -> list[Cost]:
    """Every form at every length, on one thread."""
    points = [(form, length) for form, lengths in LENGTHS.items() for length in lengths]
    with keeps_memory() as process:
        times = [process.submit(seconds, *point).result() for point in points]
    with gives_memory_back() as process:
        peaks = [process.submit(peak_bytes, *point).result() for point in points]
    return [Cost(*point, time, peak) for point, time, peak in zip(points, times, peaks, strict=True)]


def keeps_memory() -> contextlib.AbstractContextManager[ProcessPoolExecutor]:
    """A process to time in: it keeps what it frees, as a training loop's soon does, so that no form waits for the kernel."""
    return _process({"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)})


def gives_memory_back() -> contextlib.AbstractContextManager[ProcessPoolExecutor]:
    """A process to measure memory in: it maps every larger block afresh and gives it back, so that all of a call's shows."""
    return _process({"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0"})


@contextlib.contextmanager
def _process(allocator: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    """One fresh process whose C library allocates as told, and which computes on one thread."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        with mock.patch.dict(os.environ, allocator):
            pool.submit(os.getpid).result()  # it starts here, and keeps the variables
        yield pool


def exponent(lengths: Sequence[int], costs: Sequence[float], shortest: int = 1024) -> float:
    """The p of cost = c L^p that fits best from `shortest` on, where what a call costs in any case has faded."""
    x, y = (np.log([v for v, n in zip(values, lengths, strict=True) if n >= shortest]) for values in (lengths, costs))
    return float(np.polyfit(x, y, 1)[0])


def draw(costs: Sequence[Cost]) -> Figure:
    """Time and memory against L, both axes logarithmic: a power of L is a line, and its slope the power."""
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    figure.suptitle(
        f"n-gram head, forward and backward: B {BATCH}, D {WIDTH}, order {ORDER}, float32, one thread", fontsize=11
    )
    left, right = figure.subplots(1, 2)
    _panel(left, costs, "time, ms", lambda cost: 1e3 * cost.seconds)
    _panel(right, costs, "peak memory, MiB", lambda cost: cost.peak_bytes / 2**20)
    return figure


def _panel(axes: Axes, costs: Sequence[Cost], title: str, value: Callable[[Cost], float]) -> None:
    for form, colour in COLOURS.items():
        lengths, values = zip(*((c.length, value(c)) for c in costs if c.form == form), strict=True)
        axes.plot(lengths, values, "o-", color=colour, markersize=4)
        label = f"{NAMES[form]}\n$L^{{{exponent(lengths, values):.2f}}}$"
        axes.annotate(label, (lengths[-1], values[-1]), (7, 0), textcoords="offset points", color=colour, va="center")
    axes.set(title=title, xlabel="length L", xscale="log", yscale="log")
    axes.margins(y=0.1)
    axes.xaxis.set_major_locator(FixedLocator(LENGTHS["cpu"][::2]))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def write(costs: Sequence[Cost], folder: Path = FOLDER) -> None:
    """The figures and their picture, as ngram_cost.csv and ngram_cost.svg."""
    with atomic_write(folder / "ngram_cost.csv") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Cost)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(cost) | {"seconds": f"{cost.seconds:.3g}"} for cost in costs)
    with atomic_write(folder / "ngram_cost.svg", "wb") as file, rc_context({"svg.hashsalt": "ngram_cost"}):
        draw(costs).savefig(file, format="svg", metadata={"Date": None})


def read(folder: Path = FOLDER) -> list[Cost]:
    """What `write` wrote."""
    with open(folder / "ngram_cost.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [Cost(r["form"], int(r["length"]), float(r["seconds"]), int(r["peak_bytes"])) for r in rows]


def main() -> None:
    """Measures, writes, and says the exponents."""
    costs = measure()
    write(costs)
    for form, name in NAMES.items():
        own = [cost for cost in costs if cost.form == form]
        lengths = [cost.length for cost in own]
        time, memory = (exponent(lengths, v) for v in ([c.seconds for c in own], [c.peak_bytes for c in own]))
        print(f"{name}: time grows as L^{time:.2f}, memory as L^{memory:.2f}, from L = 1024 on")
        for cost in own:
            print(f"  L {cost.length:5}: {1e3 * cost.seconds:9.3f} ms, {cost.peak_bytes / 2**20:8.2f} MiB")


if __name__ == "__main__":
    main()
