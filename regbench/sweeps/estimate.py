"""What a sweep would cost on this machine, from a few timed training steps of each architecture."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from regbench.data.instances import Instances
from regbench.models.build import build, build_without_memory
from regbench.models.model import find_device, manual_seed, parameter_count
from regbench.ops.backend import use_backend
from regbench.sweeps.grid import SELECTION_SEED, Group, Point
from regbench.training.options import evaluation_steps
from regbench.training.parts import gradients_on
from regbench.training.step import batch_tensors, make_optimizer, train_step
from regbench.training.trainer import TIMED_STEPS, training_steps
from regbench.utils.arrays import IntArray

_SECONDS = 2.0
"""For which steps of one size are timed, after the first."""

_FEWEST = 3
"""How many steps are timed at least."""

_LONGEST_STEP = 4.0
"""Seconds that a step may be expected to take in order to be timed."""


@dataclass(frozen=True)
class Cost:
    track: str
    architecture: str
    trials: int
    """Cells that are tried, on validation alone."""
    seeds: int
    cells: int
    """The trials, and what is trained for the test split beside them."""
    parameters: tuple[int, int]
    """Of the smallest and of the largest model."""
    tokens: int
    seconds: float
    """Of all cells, one after another."""


def estimate(groups: Sequence[Group], threads: int, announce: Callable[[str], None]) -> list[Cost]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        places = dict.fromkeys((group.first.track.name, group.first.name) for group in groups)
        return [_cost([g for g in groups if (g.first.track.name, g.first.name) == place], announce) for place in places]
    finally:
        torch.set_num_threads(before)


def _cost(groups: Sequence[Group], announce: Callable[[str], None]) -> Cost:
    first = groups[0].first
    train, validation = first.track.instances("train"), first.track.instances("validation")
    sizes: dict[str, int] = {}
    examples: dict[int, Point] = {}
    for group in groups:
        for point in (*group.points, *(cell.point for cell in group.trials)):  # trials may have options of their own
            options = point.options.model_dump_json()
            if options not in sizes:
                sizes[options] = _parameters(point)
            examples.setdefault(sizes[options], point)
    announce(f"timing {first.name} on {first.track.name}")
    measured = _measure(examples, train)

    def seconds(point: Point) -> tuple[int, float]:
        """Tokens and seconds of one cell: scoring the validation split costs a third of training on it."""
        tokens = point.train_tokens
        scored = validation.n_tokens * evaluations_of(point, train.lengths) / 3
        return tokens, (tokens + scored) * _interpolate(measured, sizes[point.options.model_dump_json()])

    trials = [seconds(cell.point) for group in groups for cell in group.trials]
    finals: list[tuple[int, float]] = []
    for group in groups:
        each = [seconds(point) for point in group.points]
        # Which point is chosen is not known: their mean.
        mean = sum(t for t, _ in each) // len(each), sum(s for _, s in each) / len(each)
        finals += [mean] * group.further
    return Cost(
        first.track.name,
        first.name,
        len(trials),
        len(groups[0].seeds),
        len(trials) + len(finals),
        (min(examples), max(examples)),
        sum(tokens for tokens, _ in trials + finals),
        sum(spent for _, spent in trials + finals),
    )


def evaluations_of(point: Point, lengths: IntArray) -> int:
    """How often one cell scores the validation split, to within an epoch's last batches."""
    seen = lengths[: point.training.train_instances]
    total = math.ceil(math.ceil(len(seen) / point.training.batch_size) * point.train_tokens / int(seen.sum()))
    return len(evaluation_steps(total, len(seen), point.training))


def _measure(examples: dict[int, Point], train: Instances) -> list[tuple[int, float]]:
    """Parameters and seconds a token of the smallest model, and of the largest whose steps are short enough to be timed."""
    smallest = min(examples)
    step, token = _time(examples[smallest], train)
    found = [(smallest, token)]
    larger = [size for size in examples if size > smallest and step * size / smallest <= _LONGEST_STEP]
    if larger:
        found.append((max(larger), _time(examples[max(larger)], train)[1]))
    return found


def _time(point: Point, train: Instances) -> tuple[float, float]:
    """Seconds of a training step, and a token."""
    device = find_device(point.content["device"])
    manual_seed(0)
    plan = training_steps(train.lengths, point.training, point.track.definition.budget.train_tokens, SELECTION_SEED)
    with use_backend(point.content["backend"]), gradients_on(device) as gradients:
        model = build(point.cls, point.options, point.track.task.io).to(device).train()
        optimizer = make_optimizer(model, point.training)
        settled = TIMED_STEPS[device.type][0]
        steps, tokens, started = 0, 0, 0.0
        enough = itertools.islice(itertools.cycle(plan), settled + _FEWEST)  # a plan of fewer steps begins again
        for step, (count, rows) in enumerate(itertools.chain(enough, plan), 1):
            train_step(model, optimizer, batch_tensors(train[rows], device), point.training, gradients)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if started:
                steps, tokens = steps + 1, tokens + count
                if steps >= _FEWEST and time.perf_counter() - started > _SECONDS:
                    break
            elif step >= settled:
                started = time.perf_counter()
        spent = time.perf_counter() - started
    return spent / steps, spent / tokens


def _parameters(point: Point) -> int:
    """The parameters of a model, which is built without memory where its code allows it."""
    try:
        return parameter_count(build_without_memory(point.cls, point.options, point.track.task.io))
    except Exception:
        return parameter_count(build(point.cls, point.options, point.track.task.io))


def _interpolate(measured: Sequence[tuple[int, float]], size: int) -> float:
    """Seconds a token of a model of so many parameters: between what was timed by powers, beyond it in proportion."""
    (small, low), (large, high) = measured[0], measured[-1]
    if size <= small:
        return low
    if size >= large:
        return high * size / large
    return low * math.exp(math.log(high / low) * math.log(size / small) / math.log(large / small))
