"""One run: a track, an architecture, some seeds -> trained models, scores beside the baselines, one result.

The run folder holds `config.yaml` and `result.json`, `report.html`, the pictures, and a folder for each seed with
`metrics.jsonl`, `checkpoint.safetensors`, `predictions.npz` and `scores.json`. A folder without `result.json` can be resumed.
"""

from __future__ import annotations

import inspect
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pydantic
import torch
import yaml

from regbench.checks.architecture import SCORABLE, Subject, preflight, refuse_trained, trains
from regbench.checks.task import examine_task_once
from regbench.config import Config, read_config
from regbench.data.instances import Instances
from regbench.evaluation.baselines import score_baselines, score_records
from regbench.evaluation.predictions import keep
from regbench.metrics.scores import HIGHER_IS_BETTER, score, share_of_the_way
from regbench.models.build import build, resolve_options, split_settings
from regbench.models.mixer import Options
from regbench.models.model import Model, ModelPredictor, parameter_count, token_tensor
from regbench.ops.backend import require_use, use_backend
from regbench.report import write_pictures, write_report
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
from regbench.tracks import SPLITS, Track, load_track
from regbench.training import provenance as identity
from regbench.training import trained as trained_state
from regbench.training.checkpoint import load_tensors, save_tensors
from regbench.training.trained import Trained, read_trained
from regbench.training.trainer import Progress, Trainer, TrainingOptions, find_device, next_steps, resolve_training
from regbench.utils import registry
from regbench.utils.errors import UserError, describe_validation
from regbench.utils.files import atomic_write, exclusive, explain_full_disk


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
    """A configuration made definite: everything resolved, nothing started. source: the digest of the architecture's code."""

    config: Config
    track: Track
    cls: type[Any]
    source: str
    options: Options
    training: TrainingOptions
    device: torch.device

    @property
    def name(self) -> str:
        """How the architecture is called in tables."""
        return registry.short_name(self.config.architecture)

    @property
    def subject(self) -> Subject:
        """What the contract is asked of."""
        return Subject(self.cls, self.options, self.track.task.io, self.device, self.training)

    @cached_property
    def parts(self) -> dict[str, Any]:
        """All that a trained model and its scores follow from; see `regbench.training.provenance`."""
        parts = {
            "track": self.track.definition.digest,
            "source": self.source,
            "options": self.options.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "device": self.device.type,
            "backend": self.config.backend,
        }
        more = {"text": self.track.task.source_digest(), "task": self.track.task_code}
        return parts | {name: digest for name, digest in more.items() if digest is not None}


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
    reporter = reporter or Silent()
    plan, probe, folder = _begin(config, out, reporter)
    with explain_full_disk(folder), exclusive(folder):
        write_config(folder, config)
        return _execute(plan, probe, folder, reporter)


def begin(config: Config, out: str | Path | None = None, reporter: Reporter | None = None) -> Path:
    """Checks a configuration and makes its run folder, in which nothing is trained yet; see `score_seed` and `resume`.

    Raises:
        UserError: as `run`.
    """
    folder = _begin(config, out, reporter or Silent())[2]
    with explain_full_disk(folder), exclusive(folder):
        write_config(folder, config)
    return folder


def write_config(folder: Path, config: Config) -> None:
    """Writes `config.yaml`: from then on the folder is a run that can be resumed."""
    with atomic_write(folder / "config.yaml") as file:
        yaml.safe_dump(config.model_dump(mode="json"), file, sort_keys=False)


def train_seed(config: Config, seed: int, folder: Path, reporter: Reporter | None = None) -> Trained:
    """Trains one seed in a folder of its own and stops before the test split, which is not made, far less read.

    Called again on the same folder it goes on after an interruption; `score_seed` goes on from where it stops.

    Raises:
        UserError: as `run`, or the folder holds something else.
    """
    reporter = reporter or Silent()
    plan = _plan(config)
    _examine(plan, reporter)
    _probe(plan)
    with explain_full_disk(folder), use_backend(config.backend):
        return _train(plan, seed, plan.track.instances, folder, reporter)[1]


def score_seed(config: Config, seed: int, folder: Path, reporter: Reporter | None = None) -> SeedRecord:
    """Trains one seed in a folder of its own, as far as that is not done, and scores it on the test split.

    The folder is then what `seed-N` is in a run folder.

    Raises:
        UserError: as `run`, or the folder holds something else.
    """
    reporter = reporter or Silent()
    plan = _plan(config)
    _examine(plan, reporter)
    if read_trained(folder) is None:
        _probe(plan)
    with explain_full_disk(folder), use_backend(config.backend):
        test = plan.track.instances("test")
        anchors = score_baselines(plan.track, test, lambda b: reporter.phase(f"scoring the baseline {b}"), anchors=True)
        return _seed(plan, seed, plan.track.instances, anchors, folder, reporter)


def resume(folder: str | Path, reporter: Reporter | None = None) -> Result:
    """Goes on with an interrupted run; of a finished one it returns the result.

    Raises:
        UserError: no run is there, or what it is made from has changed since.
    """
    folder = Path(folder)
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} holds no run: there is no config.yaml")
    config = read_config(path)
    with explain_full_disk(folder), exclusive(folder):
        if (folder / "result.json").exists():
            result = read_result(folder)
            if not set(result.metrics) <= set(HIGHER_IS_BETTER):
                load_track(config.track)  # its task says which way scores of its own are better
            return result
        plan = _plan(config)
        _examine(plan, reporter or Silent())
        return _execute(plan, _probe(plan), folder, reporter or Silent())


def _begin(config: Config, out: str | Path | None, reporter: Reporter) -> tuple[_Plan, _Probe, Path]:
    """Checks everything before anything is written: what is refused leaves no folder behind."""
    if len(set(config.seeds)) < len(config.seeds):
        raise UserError(f"a seed is given twice: {' '.join(map(str, config.seeds))}")
    plan = _plan(config)
    folder = Path(out) if out is not None else _new_folder(plan)
    if (folder / "result.json").exists() or (folder / "config.yaml").exists():
        raise UserError(f"{folder} holds a run already; choose another --out, or go on with --resume {folder}")
    _examine(plan, reporter)
    lengths, budget = plan.track.instances("train").lengths, plan.track.definition.budget.train_tokens
    for seed in config.seeds:
        next(next_steps(lengths, plan.training, budget, seed))
    return plan, _probe(plan), folder


def _plan(config: Config) -> _Plan:
    track = load_track(config.track)
    cls = registry.load(registry.ARCHITECTURE, config.architecture)
    source = registry.source_digest(cls)  # at once: the file may be edited while it trains
    own, training = split_settings(config.settings)
    options, training_options = resolve_options(cls, own), resolve_training(cls, training)
    return _Plan(config, track, cls, source, options, training_options, find_device(config.device))


def _examine(plan: _Plan, reporter: Reporter) -> None:
    if plan.track.task_code is not None:
        reporter.phase(f"examining the task {plan.track.task_name}")
    examine_task_once(plan.track)


def _new_folder(plan: _Plan) -> Path:
    base = Path("runs") / plan.track.name / f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def _execute(plan: _Plan, probe: _Probe, folder: Path, reporter: Reporter) -> Result:
    reporter.phase(f"run folder {folder}")
    with use_backend(plan.config.backend):
        reporter.phase(f"making the instances of {plan.track.name}")
        splits = {split: plan.track.instances(split) for split in SPLITS}
        baselines = score_baselines(plan.track, splits["test"], lambda b: reporter.phase(f"scoring the baseline {b}"))
        records = [
            _seed(plan, seed, splits.__getitem__, baselines, folder / f"seed-{seed}", reporter)
            for seed in plan.config.seeds
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
            name=plan.name,
            source=_source(plan.cls),
            source_sha256=plan.source,
            options=plan.options.model_dump(mode="json"),
            parameters=parameter_count(probe.model),
            state_bytes=probe.model.state_bytes(),
        ),
        training=plan.training.model_dump(mode="json"),
        seeds=records,
        baselines=baselines,
        selection=Selection(trials=plan.config.trials),
        environment=describe_environment(plan.device, probe.scored, probe.trained, plan.training.precision),
        code=describe_code(),
    )
    write_pictures(folder, result)
    write_report(folder, result, plan.track)
    write_result(folder / "result.json", result)
    for seed in plan.config.seeds:
        for name in ("resume.safetensors", trained_state.FILE, identity.FILE, ".lock"):
            (folder / f"seed-{seed}" / name).unlink(missing_ok=True)
    return result


@dataclass(frozen=True)
class _Probe:
    """An untrained model that has passed the preflight checks, and which form of each op ran in scoring and in training."""

    model: Model
    scored: dict[str, str]
    trained: dict[str, str]


def _probe(plan: _Plan) -> _Probe:
    """Asks the preflight checks; what autocast makes of the types may choose other forms in training, so they are asked apart."""
    with use_backend(plan.config.backend) as scored:
        preflight(plan.subject, plan.name, SCORABLE)
        require_use(plan.config.backend, scored)
    with use_backend(plan.config.backend) as trained:
        preflight(plan.subject, plan.name, (trains,))
    return _Probe(plan.subject.model(), scored, trained)


def _train(
    plan: _Plan, seed: int, split: Callable[[str], Instances], folder: Path, reporter: Reporter
) -> tuple[Model, Trained]:
    """Trains one seed and keeps its weights; of one that was trained before the interruption, reads them.

    Args:
        plan: what to train.
        seed: of the weights and the batches.
        split: makes the instances of a split; asked for "train" and "validation" alone.
        folder: the seed's.
        reporter: is told how it goes.
    """
    torch.manual_seed(seed)
    model = build(plan.cls, plan.options, plan.track.task.io).to(plan.device)
    own = f"{identity.identity_of(plan.parts)}/{seed}"
    trained = read_trained(folder, own)
    if trained is not None:
        model.load_state_dict(load_tensors(folder / "checkpoint.safetensors")[0])
        return model.eval(), trained
    validation = split("validation")
    trainer = Trainer(
        model,
        split("train"),
        validation,
        plan.training,
        budget=plan.track.definition.budget.train_tokens,
        seed=seed,
        folder=folder,
        identity=own,
        device=plan.device,
    )
    reporter.phase(f"training, seed {seed}: {parameter_count(model):,} parameters, {len(trainer.plan):,} steps")
    progress = trainer.run(reporter)
    save_tensors(folder / "checkpoint.safetensors", model.state_dict(), {"architecture": plan.config.architecture})
    longest = int(validation.lengths.argmax())
    tokens = validation.tokens[longest : longest + 1, : validation.lengths[longest]]
    refuse_trained(plan.subject, model, token_tensor(tokens, plan.device), plan.name)
    trained = Trained(progress, len(trainer.plan), _peak_memory(plan.device))
    trained.write(folder, own)
    (folder / "resume.safetensors").unlink(missing_ok=True)
    return model, trained


def _seed(
    plan: _Plan,
    seed: int,
    split: Callable[[str], Instances],
    baselines: Mapping[str, BaselineRecord],
    folder: Path,
    reporter: Reporter,
) -> SeedRecord:
    """Trains and scores one seed; of one that was done before the interruption, reads what it left.

    Raises:
        UserError: what it left was made from something else.
    """
    done = folder / "scores.json"
    if done.exists():
        try:
            record = SeedRecord.model_validate_json(done.read_text(encoding="utf-8"))
        except ValueError:
            done.unlink()
        else:
            identity.check_identity(folder, plan.parts)
            return record
    model, trained = _train(plan, seed, split, folder, reporter)
    reporter.phase(f"scoring the test split, seed {seed}")
    record = _score_seed(plan, seed, model, split("test"), baselines, folder, trained)
    identity.write_identity(folder, plan.parts)
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
    trained: Trained,
) -> SeedRecord:
    progress = trained.progress
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
        steps=trained.steps,
        tokens=progress.tokens,
        seconds=round(progress.seconds, 3),
        tokens_per_second=round(progress.tokens / progress.seconds, 1),
        peak_memory_bytes=max(trained.peak_memory_bytes, _peak_memory(plan.device)),
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
