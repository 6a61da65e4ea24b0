"""One run: a track, an architecture, some seeds -> trained models, scores beside the baselines, one result.

The run folder holds `config.yaml` and `result.json`, `report.html`, the pictures, and a folder for each seed with
`metrics.jsonl`, `checkpoint.safetensors`, `predictions.npz` and `scores.json`. A folder without `result.json` can be resumed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pydantic
import torch
import yaml

from regbench import registry
from regbench.checkpoint import save_tensors
from regbench.configuration import Config, read_config
from regbench.contract import Subject, preflight
from regbench.data import Instances
from regbench.errors import UserError, describe_validation, nearest
from regbench.evaluation import score_baselines, score_records
from regbench.files import atomic_write, exclusive, explain_full_disk
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Options
from regbench.models.model import Model, ModelPredictor, parameter_count
from regbench.ops.backend import require_use, use_backend
from regbench.predictions import keep
from regbench.report import plot_scores_by_position, plot_training, write_report
from regbench.results import (
    ArchitectureRecord,
    BaselineRecord,
    CheckpointRecord,
    Result,
    SeedRecord,
    Selection,
    TrackRecord,
    describe_code,
    describe_environment,
    read_result,
    write_result,
)
from regbench.scoring import score, share_of_the_way
from regbench.tracks import SPLITS, Track, load_track
from regbench.training import Progress, Trainer, TrainingOptions


class Reporter(Protocol):
    """Is told what a run is doing; the command line draws it, a script may ignore it."""

    def phase(self, text: str) -> None: ...

    def trained(self, progress: Progress, total_steps: int, loss: float, tokens_per_second: float) -> None: ...


class Silent:
    """A reporter that says nothing."""

    def phase(self, text: str) -> None:
        pass

    def trained(self, progress: Progress, total_steps: int, loss: float, tokens_per_second: float) -> None:
        pass


@dataclass(frozen=True)
class _Plan:
    """A configuration made definite: everything resolved, nothing started."""

    config: Config
    track: Track
    cls: type[Any]
    options: Options
    training: TrainingOptions
    device: torch.device

    @property
    def identity(self) -> str:
        """Decides whether a checkpoint belongs to this run: track, source, options, training, device, backend."""
        content = {
            "track": self.track.definition.digest,
            "source": registry.source_digest(self.cls),
            "options": self.options.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "device": self.device.type,
            "backend": self.config.backend,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def run(
    track: str = "pfa-small-v1",
    arch: str = "mamba",
    seeds: Sequence[int] = (0,),
    *,
    settings: Mapping[str, Any] | None = None,
    backend: str = "auto",
    device: str = "auto",
    trials: int = 1,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Trains `arch` on `track` once for each seed, scores it on the test split beside the baselines, and writes a run folder.

    Args:
        track: a built-in track's name, or the path of a YAML file.
        arch: a registered name, or `path/to/file.py[:Class]`.
        settings: options of the architecture by name, and of training as `training.NAME`.
        backend: which form of the ops to use; see `regbench.ops.backend`.
        device: "cpu", "cuda", or "auto".
        trials: how many configurations were tried on the validation split before this one; recorded.
        out: the run folder; by default a new one under `runs/`.

    Raises:
        UserError: anything in the input is wrong.
    """
    try:
        config = Config(
            track=track,
            architecture=arch,
            seeds=tuple(seeds),
            settings=dict(settings or {}),
            backend=backend,
            device=device,
            trials=trials,
        )
    except pydantic.ValidationError as error:
        raise UserError(describe_validation(error, "run", Config.model_fields)) from None
    if len(set(config.seeds)) < len(config.seeds):
        raise UserError(f"a seed is given twice: {' '.join(map(str, config.seeds))}")
    plan = _plan(config)
    folder = Path(out) if out is not None else _new_folder(plan)
    if (folder / "result.json").exists() or (folder / "config.yaml").exists():
        raise UserError(f"{folder} holds a run already; choose another --out, or go on with --resume {folder}")
    probe = _probe(plan)  # before anything is written: a refused architecture leaves no folder behind
    with explain_full_disk(folder), exclusive(folder):
        with atomic_write(folder / "config.yaml") as file:
            yaml.safe_dump(config.model_dump(mode="json"), file, sort_keys=False)
        return _execute(plan, probe, folder, reporter or Silent())


def resume(folder: str | Path, reporter: Reporter | None = None) -> Result:
    """Goes on with an interrupted run; of a finished one it returns the result.

    Raises:
        UserError: no run is there, or what it needs has changed since.
    """
    folder = Path(folder)
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} holds no run: there is no config.yaml")
    config = read_config(path)
    with explain_full_disk(folder), exclusive(folder):
        if (folder / "result.json").exists():
            return read_result(folder)
        plan = _plan(config)
        return _execute(plan, _probe(plan), folder, reporter or Silent())


def _plan(config: Config) -> _Plan:
    track = load_track(config.track)
    cls = registry.load(registry.ARCHITECTURE, config.architecture)
    own = {k: v for k, v in config.settings.items() if not k.startswith("training.")}
    options = resolve_options(cls, own)
    training = {k.removeprefix("training."): v for k, v in config.settings.items() if k.startswith("training.")}
    try:
        training_options = TrainingOptions(**{**cls.training_defaults, **training})
    except pydantic.ValidationError as error:
        raise UserError(describe_validation(error, "training option", TrainingOptions.model_fields)) from None
    return _Plan(config, track, cls, options, training_options, _device(config.device))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}'{nearest(name, ['auto', 'cpu', 'cuda'])}") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported; known: auto, cpu, cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' is not available: this PyTorch sees no GPU; use --device cpu")
    return device


def _new_folder(plan: _Plan) -> Path:
    name = registry.short_name(plan.config.architecture)
    base = Path("runs") / plan.track.name / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _execute(plan: _Plan, probed: tuple[Model, dict[str, str]], folder: Path, reporter: Reporter) -> Result:
    name = registry.short_name(plan.config.architecture)
    reporter.phase(f"run folder {folder}")
    probe, ran = probed
    with use_backend(plan.config.backend):
        reporter.phase(f"making the instances of {plan.track.name}")
        splits = {split: plan.track.instances(split) for split in SPLITS}
        baselines = score_baselines(plan.track, splits["test"], lambda b: reporter.phase(f"scoring the baseline {b}"))
        records = [
            _seed(plan, seed, splits, baselines, folder / f"seed-{seed}", reporter) for seed in plan.config.seeds
        ]
    result = Result(
        track=TrackRecord(
            name=plan.track.name,
            version=plan.track.version,
            digest=plan.track.definition.digest,
            main_score=plan.track.definition.main_score,
            fingerprints={split: instances.fingerprint for split, instances in splits.items()},
        ),
        architecture=ArchitectureRecord(
            name=name,
            source=_source(plan.cls),
            source_sha256=registry.source_digest(plan.cls),
            options=plan.options.model_dump(mode="json"),
            parameters=parameter_count(probe),
            state_bytes=probe.state_bytes(),
        ),
        training=plan.training.model_dump(mode="json"),
        seeds=records,
        baselines=baselines,
        selection=Selection(trials=plan.config.trials),
        environment=describe_environment(plan.device, ran),
        code=describe_code(),
    )
    plot_scores_by_position(result, folder / "score_by_position.png")
    plot_training(result, folder / "training.png")
    write_report(folder, result, plan.track)
    write_result(folder / "result.json", result)
    for seed in plan.config.seeds:
        (folder / f"seed-{seed}" / "resume.safetensors").unlink(missing_ok=True)
    return result


def _probe(plan: _Plan) -> tuple[Model, dict[str, str]]:
    """An untrained model that has passed the preflight checks, and which form of each op ran in them."""
    with use_backend(plan.config.backend) as ran:
        subject = Subject(plan.cls, plan.options, plan.track.task.io, plan.device)
        preflight(subject, registry.short_name(plan.config.architecture))
        require_use(plan.config.backend, ran)
        return subject.model(), ran


def _seed(
    plan: _Plan,
    seed: int,
    splits: Mapping[str, Instances],
    baselines: Mapping[str, BaselineRecord],
    folder: Path,
    reporter: Reporter,
) -> SeedRecord:
    """Trains and scores one seed; of one that was done before the interruption, reads what it left."""
    done = folder / "scores.json"
    if done.exists():
        try:
            return SeedRecord.model_validate_json(done.read_text(encoding="utf-8"))
        except ValueError:
            done.unlink()
    torch.manual_seed(seed)
    model = build(plan.cls, plan.options, plan.track.task.io).to(plan.device)
    trainer = Trainer(
        model,
        splits["train"],
        splits["validation"],
        plan.training,
        budget=plan.track.definition.budget.train_tokens,
        seed=seed,
        folder=folder,
        identity=f"{plan.identity}/{seed}",
        device=plan.device,
    )
    reporter.phase(f"training, seed {seed}: {parameter_count(model):,} parameters, {len(trainer.plan):,} steps")
    progress = trainer.run(reporter)
    save_tensors(folder / "checkpoint.safetensors", model.state_dict(), {"architecture": plan.config.architecture})
    reporter.phase(f"scoring the test split, seed {seed}")
    record = _score_seed(plan, seed, model, splits["test"], baselines, folder, progress, len(trainer.plan))
    with atomic_write(done) as file:
        file.write(record.model_dump_json(indent=1))
    return record


def _score_seed(
    plan: _Plan,
    seed: int,
    model: Model,
    test: Instances,
    baselines: Mapping[str, BaselineRecord],
    folder: Path,
    progress: Progress,
    steps: int,
) -> SeedRecord:
    predictions = keep(plan.track.task, ModelPredictor(model, plan.device), test)
    digest = predictions.save(folder / "predictions.npz")
    scores, curves = score_records(score(plan.track.task, test, predictions.batches()))
    start = next((b for b in baselines.values() if b.anchor == "start"), None)
    end = next((b for b in baselines.values() if b.anchor == "end"), None)
    share = {}
    if start is not None and end is not None:
        for metric, record in scores.items():
            share[metric] = share_of_the_way(record.value, start.scores[metric].value, end.scores[metric].value)
    return SeedRecord(
        seed=seed,
        scores=scores,
        share_of_the_way=share,
        curves=curves,
        training_curve=[_checkpoint(row) for row in progress.curve],
        best_step=progress.best_step,
        steps=steps,
        tokens=progress.tokens,
        seconds=round(progress.seconds, 3),
        tokens_per_second=round(progress.tokens / progress.seconds, 1),
        peak_memory_bytes=_peak_memory(plan.device),
        predictions_sha256=digest,
    )


def _checkpoint(row: Mapping[str, float]) -> CheckpointRecord:
    known = ("step", "tokens", "validation_loss")
    return CheckpointRecord(
        step=int(row["step"]),
        tokens=int(row["tokens"]),
        loss={k: float(v) for k, v in row.items() if k not in known},
        validation_loss=float(row["validation_loss"]),
    )


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _source(cls: type[Any]) -> str:
    """Where an architecture is from, without the reader's folders: a module's name, or a file's."""
    path = Path(inspect.getfile(cls))
    return cls.__module__ if not cls.__module__.startswith("regbench_plugin_") else path.name
