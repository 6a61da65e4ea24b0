"""Checks of a claim against what its run left: its predictions, and what its weights predict now.

A built-in architecture predicts in this process. A stranger's file runs under bubblewrap: it has Python, regbench, tokens and its
weights, but no network, no home and no other file. All that is writable is a small folder in memory. What it predicts comes
through a pipe, so it leaves nothing behind. Where there is no bubblewrap, nothing of a stranger's is run.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pydantic
import safetensors
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from regbench.data.instances import Instances
from regbench.evaluation.baselines import Progress
from regbench.evaluation.predictions import Predictions, expected_arrays
from regbench.leaderboard.claim import Case, Findings, Note, Reference, RunFolder, find_reference
from regbench.leaderboard.entry import InstanceScores
from regbench.leaderboard.figures import apart, rescored
from regbench.leaderboard.origin import is_built_in
from regbench.metrics.scores import score, score_records
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Options
from regbench.models.model import ModelPredictor, manual_seed
from regbench.models.predictor import predict_in_batches, rows_at_once
from regbench.results import SeedRecord
from regbench.tasks.base import IO, VectorIO
from regbench.tracks import Track
from regbench.training.checkpoint import load_model, load_weights
from regbench.training.progress import now_and_then
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused

MEAN_TOLERANCE, LARGEST_TOLERANCE = 1e-3, 0.05
"""Of probabilities, or of vectors in units of their standard deviation. Float16 and other kernels stay far below."""

SCORE_TOLERANCE = 2e-3
"""Between a claimed score and that of what the weights predict now: absolute, of scores above 1 relative."""

NEAREST = 1 / 8
"""How near the weights of two seeds may be to each other, as a share of how far their first weights are apart."""

SECONDS, MEMORY_BYTES, FOLDER_BYTES, LOG_BYTES = 3600, 8 << 30, 1 << 28, 1 << 24
"""What a stranger's code may take. The memory is that of each of its processes."""

_MOST_NUMBERS = 1 << 20
"""Of a checkpoint that are no parameters: buffers. Beside these it may have eight for each parameter."""

_IO: pydantic.TypeAdapter[IO] = pydantic.TypeAdapter(IO)


# --- What a run wrote down. ---


def predictions(case: Case) -> Iterator[str]:
    """Scores, standard errors, curves and instance scores are computed again from the stored predictions."""
    if case.scored is None:
        return
    for seed, one in zip(case.result.seeds, case.scored, strict=True):
        if one.digest != seed.predictions_sha256:
            yield f"seed {seed.seed}: the predictions are not those that were scored: their SHA-256 is {one.digest[:12]}"
        scores, curves = score_records(one.scores)
        yield from (f"seed {seed.seed}: {fault}" for fault in rescored(seed.scores, scores))
        for metric in scores:
            if apart(seed.curves[metric], curves[metric]).max() > 1.5e-6:
                yield f"seed {seed.seed}: the curve of {metric} is not that of the predictions"
    if case.instances is not None:
        own = InstanceScores.of([one.scores for one in case.scored])
        for seed, claimed, sums in zip(case.result.seeds, case.instances.sums, own.sums, strict=True):
            for metric in sums:
                if not np.allclose(claimed[metric], sums[metric], rtol=1.1e-6, atol=1e-12):
                    yield f"seed {seed.seed}: instances: {metric} is not that of the predictions"


# --- What its weights predict. ---


@dataclass(frozen=True)
class Asked:
    """What a model is asked: tokens and their lengths, and nothing else of the instances."""

    instances: Instances
    last: bool = False  # whether only the prediction of the last token of each is wanted

    def rows(self, io: IO, model: Any, progress: Progress = lambda done, total: None) -> NDArray[Any]:
        """(T, V): a row for each token, as stored predictions have them; or for each instance."""
        instances, kind = self.instances, np.float32 if isinstance(io, VectorIO) else np.float16
        at_once, order = rows_at_once(io, instances.tokens.shape[1], 64), np.argsort(instances.lengths, kind="stable")
        batches = predict_in_batches(ModelPredictor(model), instances[order], at_once, progress)
        if not self.last:
            return Predictions.pack(batches, instances, kind, order).packed
        rows = np.empty((len(instances), io.width), kind)
        for i, row in zip(order, (row for batch in batches for row in batch), strict=True):
            rows[i] = row[instances.lengths[i] - 1]
        return rows


@dataclass(frozen=True)
class Answer:
    """What the weights of one seed predict: for all that was asked the rows, in order."""

    rows: list[NDArray[Any]]
    first: NDArray[np.float64]
    """(2, K), how far the weights with which its training began, and those that came of it, are from the first of each seed."""


def repredict(
    run: Path,
    findings: Findings,
    track: Track | None,
    source: bytes | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> None:
    """Predicts again with a run's weights, compares with the stored predictions, and adds what is found.

    `findings` must hold no fault yet: the checks before bound the size of what is built here. `source` is the file of an
    architecture that is not built in: without it nothing is run.
    """
    folder = RunFolder(run)
    if source is None and not is_built_in(folder.result.architecture):
        findings.take("checkpoint", [Note("only the weights of built-in architectures are loaded")])
        return
    try:
        reference = find_reference(folder.result.track.name, track)
        answers = predict_again(folder, source, reference, [Asked(reference.test)], announce)
        for seed, answer in zip(folder.result.seeds, answers, strict=True):
            findings.take("checkpoint", weight_faults(folder, seed, answer, reference))
    except UserError as error:
        findings.take("checkpoint", [str(error)])


def predict_again(
    run: RunFolder,
    source: bytes | None,
    reference: Reference,
    asked: Sequence[Asked],
    announce: Callable[[str], None],
) -> Iterator[Answer]:
    """What the weights of each seed of a run predict; `source`: the file of an architecture that is not built in.

    A checkpoint that is not of this model, and a stranger's code that fails, raise `Refused`.
    """
    record, task = run.result.architecture, reference.track.task
    seeds = [seed.seed for seed in run.result.seeds]
    if not is_built_in(record):
        assert source is not None
        announce("running the stranger's code under bubblewrap")
        yield from predict_isolated(run, source, reference, asked)
        return
    cls = registry.load(registry.ARCHITECTURE, record.name)
    first = _first_weights(cls, resolve_options(cls, record.options), task.io, seeds)
    for i, seed in enumerate(seeds):
        model = load_model(run.folder, f"seed-{seed}/checkpoint.safetensors", record, task.io)
        what = f"asking the weights of seed {seed}, {i + 1} of {len(seeds)}"
        announce(what)
        yield Answer(
            [one.rows(task.io, model, now_and_then(what, announce)) for one in asked], _distances(model, first, i)
        )


def weight_faults(run: RunFolder, seed: SeedRecord, answer: Answer, reference: Reference) -> Iterator[str]:
    """Where what the weights of a seed predict for the test split, which was asked first, is not what was stored.

    Also where they are those of another seed: they are too near to them, or to those with which its training begins.
    """
    again = Predictions(answer.rows[0], reference.test.lengths)
    mean, largest = _distance(again, run.predictions(seed.seed, reference))
    line = f"seed {seed.seed}: predicted again from its weights: {largest:.2g} apart at most, {mean:.2g} on average"
    yield Note(line) if mean <= MEAN_TOLERANCE and largest <= LARGEST_TOLERANCE else line
    scores = score(reference.track.task, reference.test, again.batches())
    for metric, claimed in seed.scores.items():
        real = scores[metric].value
        if not abs(claimed.value - real) <= SCORE_TOLERANCE * max(1.0, abs(real)):
            yield f"seed {seed.seed}: {metric} is {claimed.value:.4f}, and that of the weights {real:.4f}"
    own, (begun, moved) = _tensors(run, seed.seed), answer.first
    mine = [one.seed for one in run.result.seeds].index(seed.seed)
    # To first weights that are not its own the distances of N numbers differ by a share of about 1 / sqrt(N), by chance.
    if moved[mine] > (1 + 5 / math.sqrt(sum(one.numel() for one in own.values()))) * (nearest := moved.min()):
        yield (
            f"the weights of seed {seed.seed} are {moved[mine]:.3g} from those with which it begins, and {nearest:.3g} from "
            f"those of seed {run.result.seeds[int(moved.argmin())].seed}: that is where their training began"
        )
    for i, other in enumerate(run.result.seeds):
        if other.seed < seed.seed and not (near := _norm_of(own, _tensors(run, other.seed))) > NEAREST * begun[i]:
            yield (
                f"the weights of the seeds {other.seed} and {seed.seed} are {near:.3g} apart, and the first ones "
                f"{begun[i]:.3g}: they are not two trainings"
            )


def _distance(again: Predictions, stored: Predictions) -> tuple[float, float]:
    """How far two predictions for the same instances are apart: on average, and at most. Vectors in standard deviations."""
    scale = float(stored.packed.std(dtype=np.float64)) if stored.of_vectors else 1.0
    total, largest, rows = 0.0, 0.0, max(1, (1 << 20) // stored.packed.shape[1])
    for start in range(0, len(stored.packed), rows):
        parts = (one.packed[start : start + rows].astype(np.float64) for one in (again, stored))
        apart = np.abs(next(parts) - next(parts)) / scale
        total, largest = total + float(apart.sum()), max(largest, float(apart.max()))
    return total / stored.packed.size, largest


def _tensors(run: RunFolder, seed: int) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(checkpoint_of(run, seed))
    except safetensors.SafetensorError as error:
        raise Refused(f"seed-{seed}/checkpoint.safetensors: {str(error)[:200]!a}") from None


def _norm_of(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """How far weights are from others, by all tensors of numbers with a fraction. Other tensors raise `Refused`."""
    if {name: each.shape for name, each in one.items()} != {name: each.shape for name, each in other.items()}:
        raise Refused("the checkpoints of two seeds hold other tensors")
    parts = [one[name] - other[name] for name in one if one[name].is_floating_point() or one[name].is_complex()]
    return math.sqrt(sum(float(part.abs().double().square().sum()) for part in parts))


def _first_weights(cls: type[Any], options: Options, io: IO, seeds: Sequence[int]) -> list[dict[str, Tensor]]:
    """The weights with which the training of each seed begins."""
    first = []
    for seed in seeds:
        manual_seed(seed)
        first.append(build(cls, options, io).state_dict())
    return first


def _distances(model: Any, first: Sequence[Mapping[str, Tensor]], i: int) -> NDArray[np.float64]:
    """(2, K), as `Answer.first`, of the model that came of the training of the i-th seed."""
    return np.array([[_norm_of(one, other) for other in first] for one in (first[i], model.state_dict())])


def checkpoint_of(run: RunFolder, seed: int) -> bytes:
    """A checkpoint that holds about as many numbers as the result claims parameters. Far more raise `Refused`."""
    name, parameters = f"seed-{seed}/checkpoint.safetensors", run.result.architecture.parameters
    numbers = sum(run.weights(seed).values())
    if numbers > _MOST_NUMBERS + 8 * parameters:
        raise Refused(f"{name}: {numbers:,} numbers, and a model of {parameters:,} parameters")
    return run.folder.read(name, 8 * numbers + (1 << 20))


# --- A stranger's code. ---


def can_isolate() -> bool:
    """Whether there is a bubblewrap here that may make namespaces."""
    if not all(map(shutil.which, ("bwrap", "prlimit"))):
        return False
    probe = ["bwrap", "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "true"]
    return subprocess.run(probe, capture_output=True, check=False, timeout=60).returncode == 0


def predict_isolated(run: RunFolder, source: bytes, reference: Reference, asked: Sequence[Asked]) -> Iterator[Answer]:
    """What a stranger's file predicts. It is given what `_job` reads, in a folder that it cannot write to."""
    if not can_isolate():
        raise UserError("a stranger's code runs only under bubblewrap: install it (apt install bubblewrap), on Linux")
    record = run.result.architecture
    seeds = [seed.seed for seed in run.result.seeds]
    with tempfile.TemporaryDirectory(prefix="regbench-job-") as name, tempfile.TemporaryFile() as log:
        job = Path(name)
        (job / "stranger.py").write_bytes(source)
        for seed in seeds:
            (job / f"{seed}.safetensors").write_bytes(checkpoint_of(run, seed))
        for i, one in enumerate(asked):
            np.savez(job / f"{i}.npz", tokens=one.instances.tokens, lengths=one.instances.lengths)
        about = {
            "class": registry.as_file(run.configuration.architecture)[1],
            "options": record.options,
            "seeds": seeds,
            "io": _IO.dump_python(reference.track.task.io),
            "last": [one.last for one in asked],
        }
        (job / "about.json").write_text(json.dumps(about))
        process = subprocess.Popen(_command(job), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            for _ in seeds:
                first, rows = _take(process, np.empty((2, len(seeds))), log), []
                for one in asked:
                    like = expected_arrays(reference.track.task, one.instances)["packed"]
                    rows.append(_take(process, like[: len(one.instances)] if one.last else like, log))
                    found = Predictions(rows[-1], one.instances.lengths)
                    if found.fault is not None:
                        raise Refused(f"the stranger's code makes no predictions: {found.fault}")
                yield Answer(rows, first)
        finally:
            timer.cancel()
            process.kill()
            process.wait()


def _take(process: subprocess.Popen[bytes], like: NDArray[Any], log: BinaryIO) -> NDArray[Any]:
    """The next array that a process says, of a known type and shape. If it ends before, this raises `Refused`."""
    assert process.stdout is not None
    found = np.empty(like.shape, like.dtype)
    rest = memoryview(found.view(np.uint8).reshape(-1))  # type: ignore[arg-type]
    while rest and (count := process.stdout.readinto(rest)):  # type: ignore[attr-defined]
        rest = rest[count:]
    if rest:
        process.wait()
        log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
        said = log.read(2000).decode("utf-8", "replace").strip().splitlines() or ["it said no more, and had an hour"]
        said[-1] = "".join(character if character.isprintable() else "?" for character in said[-1])[:300]
        raise Refused(f"the stranger's code failed: {said[-1]}")
    return found


def _command(job: Path) -> list[str]:
    """What runs `_job` under bubblewrap. It sees the system's libraries, this Python, and regbench, and can write to none."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, *map(os.path.realpath, (sys.prefix, sys.base_prefix))))
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    shown = [path for path in ("/usr", "/etc/ld.so.cache", *prefixes, *packages) if os.path.exists(path)]
    words = ["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
    words += ["--die-with-parent", "--new-session", "--clearenv", "--size", str(FOLDER_BYTES), "--tmpfs", "/tmp"]
    for name, value in {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(["/regbench", *packages]),
        "HOME": "/tmp",
        "REGBENCH_CACHE": "/tmp/cache",
        "NUMBA_CACHE_DIR": "/tmp/numba",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }.items():
        words += ["--setenv", name, value]
    for path in ("/bin", "/lib", "/lib64"):
        words += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
    for path in shown:
        words += ["--ro-bind", path, path]
    for package in ("regbench", "architectures"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or [])[:1] if spec else []:
            words += ["--ro-bind", place, f"/regbench/{package}"]
    words += ["--ro-bind", str(job), "/job", "--proc", "/proc", "--dev", "/dev"]
    for place in ("/proc", "/dev", "/"):  # else root may write to /proc/sys, and anyone to /dev/shm
        words += ["--remount-ro", place]
    words += ["--chdir", "/tmp"]
    limits = [f"--as={MEMORY_BYTES}", f"--fsize={LOG_BYTES}", "--core=0"]
    own = "from regbench.leaderboard.against_run import _job; _job()"
    return ["prlimit", *limits, "bwrap", *words, sys.executable, "-P", "-c", own]


def _job() -> None:
    """What runs under bubblewrap: builds the stranger's model, and says what it predicts with the weights of each seed."""
    out, job = os.fdopen(os.dup(1), "wb"), Path("/job")
    os.dup2(2, 1)  # what the stranger prints is no prediction
    about = json.loads((job / "about.json").read_text())
    io, asked = _IO.validate_python(about["io"]), []
    for i, last in enumerate(about["last"]):
        with np.load(job / f"{i}.npz") as arrays:
            tokens = arrays["tokens"]
            asked.append(Asked(Instances(tokens, arrays["lengths"], np.zeros(tokens.shape[:2], bool), ""), last))
    cls = registry.load(registry.ARCHITECTURE, ":".join(filter(None, ("/job/stranger.py", about["class"]))))
    options = cls.Options.model_validate_json(json.dumps(about["options"]))
    first = _first_weights(cls, options, io, about["seeds"])
    for i, seed in enumerate(about["seeds"]):
        model = build(cls, options, io)
        name = f"{seed}.safetensors"
        load_weights(model, safetensors.torch.load((job / name).read_bytes()), name)
        out.write(_distances(model, first, i).tobytes())
        for one in asked:
            out.write(one.rows(io, model).tobytes())
            out.flush()
