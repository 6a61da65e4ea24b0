"""Runs that train: from the arguments or a configuration, which is checked first, to the result."""

from __future__ import annotations

import inspect
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regbench.checks.architecture import SCORABLE, options_round_trip, refuse_trained
from regbench.checks.contract import refuse
from regbench.checks.subject import Subject
from regbench.checks.task import examine_task_once, require_scored
from regbench.checks.training import trains
from regbench.config import Config, make_folder, read_run, require_readable, unused, write_config
from regbench.evaluation.baselines import default_baselines, score_baselines
from regbench.evaluation.predictions import predict
from regbench.metrics.reach import reach_of, tokens_to_learn
from regbench.metrics.scores import score, score_records
from regbench.models.model import Model, ModelPredictor, find_device, parameter_count
from regbench.models.state_size import state_at
from regbench.ops.backend import require_use, use_backend
from regbench.report.page import write_report
from regbench.results import (
    ArchitectureRecord,
    BaselineRecord,
    CheckpointRecord,
    Code,
    Result,
    SeedRecord,
    Selection,
    normalized_scores,
    read_result,
)
from regbench.tracks import Track, load_track, track_file
from regbench.training import provenance
from regbench.training.checkpoint import (
    RESUME_FILE,
    TRAINED_FILE,
    TrainingRecord,
    load_tensors,
    load_weights,
    read_trained,
    save_tensors,
)
from regbench.training.options import resolve_settings
from regbench.training.progress import POINT, SILENT, Reporter
from regbench.training.provenance import (
    CODE_FILE,
    code_of,
    describe_code,
    describe_environment,
    packages_of,
    peak_memory,
)
from regbench.training.terminal import shown
from regbench.training.trainer import Trainer, training_steps
from regbench.utils import registry
from regbench.utils.errors import Unavailable, UserError, explain_validation
from regbench.utils.files import atomic_write, exclusive, explain_writing, remove_leftovers, write_json


@dataclass(frozen=True)
class Plan:
    """A configuration with every name resolved, checked, and nothing trained yet."""

    config: Config
    track: Track
    name: str  # of the architecture in tables
    subject: Subject
    parts: Mapping[str, Any]  # all that a trained model follows from; see `regbench.training.provenance`
    model: Model
    backend: dict[str, str]  # the implementation of each op that runs in scoring
    training_backend: dict[str, str]  # the same in training; autocast may choose others
    code: Code  # the state of the repository, as it was when this was planned

    def made_from(self, seed: int) -> dict[str, Any]:
        """What the model of a seed follows from."""
        return {**self.parts, "seed": seed}


def plan_of(
    config: Config, reporter: Reporter, track: Track | None = None, architecture: type[Any] | None = None
) -> Plan:
    """Resolves a configuration and runs every check that needs no training.

    Track and architecture are given where the caller has them; else they are loaded by their names.
    """
    require_readable(config)  # at once: a run that cannot be read again would be trained for nothing
    track = track or load_track(config.track)
    name = registry.short_name(config.architecture)
    cls = registry.load(registry.ARCHITECTURE, architecture or config.architecture)
    source, code = registry.source_digest(cls), describe_code()  # at once: files may be edited while it trains
    options, training = resolve_settings(cls, config.settings)
    device = find_device(config.device)
    if track.task_code is not None:  # a task that is not built in
        reporter.phase(f"examining the task {track.task_name}")
        examine_task_once(track)
    require_scored(track, "train", "validation")
    lengths = track.instances("train").lengths
    for seed in config.seeds:  # a budget below one batch is refused
        next(training_steps(lengths, training, track.definition.budget.train_tokens, seed))
    subject = Subject(cls, options, track.task.io, device, training, track.task)
    with use_backend(config.backend) as backend:
        refuse(subject, (options_round_trip, *SCORABLE), f"architecture '{name}'")
        require_use(config.backend, backend)
    with use_backend(config.backend) as training_backend:
        refuse(subject, (trains,), f"architecture '{name}'")
    parts = {
        "track": track.definition.digest,
        "source": source,
        "options": options.model_dump(mode="json"),
        "training": training.model_dump(mode="json"),
        "device": device.type,
        "backend": config.backend,
        "text": track.task.source_digest(),
        "task": track.task_code,
    }
    parts = {key: value for key, value in parts.items() if value is not None}
    return Plan(config, track, name, subject, parts, subject.model(), backend, training_backend, code)


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Trainings seed PyTorch, and a resumed one sets its number of threads. The caller gets back what he had."""
    threads = torch.get_num_threads()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


def run(
    track: str | Path | Track = "pfa-small-v1",
    arch: str | Path | type[Any] = "mamba",
    seeds: int | Sequence[int] = (0,),
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
        track: the name of a built-in track, the path of a YAML file, or a loaded track.
        arch: a registered name, `path/to/file.py[:Class]`, or a class. A run of a class is resumed with `resume(arch=...)`.
        seeds: one model is trained for each. A single number is one seed.
        settings: options of the architecture by name, and training options as `training.NAME`.
        backend: the implementation of the ops; see `regbench.ops.backend`.
        device: "cpu", "cuda", or "auto".
        trials: how many configurations were tried on the validation split before this one. The result records it.
        out: the run folder; by default a new one under `runs/`.
        reporter: is told what the run does. By default it is drawn on stderr, or in the notebook; `Reporter()` says nothing.

    Raises:
        UserError: anything in the input is wrong.
    """
    if not isinstance(arch, str | Path | type):
        raise UserError(
            f"an architecture is a name, FILE.py[:Class] or a class, not {type(arch).__name__}; "
            "a trained model is scored by regbench.evaluate"
        )
    if not isinstance(settings, Mapping | None):
        raise UserError(f"settings are a mapping such as {{'d_model': 96}}, not {type(settings).__name__}")
    with explain_validation("run", Config.model_fields):
        config = Config(
            track=track.address if isinstance(track, Track) else str(track),
            architecture=registry.name_of(registry.ARCHITECTURE, arch) if isinstance(arch, type) else str(arch),
            seeds=tuple(seeds) if isinstance(seeds, Iterable) else (seeds,),
            settings=dict(settings or {}),
            backend=backend,
            device=device,
            trials=trials,
        )
    return run_config(
        config,
        out,
        reporter,
        track=track if isinstance(track, Track) and config.track == track.address else None,
        architecture=arch if isinstance(arch, type) else None,
    )


@_torch_as_it_was()
def run_config(
    config: Config,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    *,
    track: Track | None = None,
    architecture: type[Any] | None = None,
) -> Result:
    """Does what a configuration asks for; see `run`. A track or a class that the caller has is not looked for by its name."""
    with shown(reporter) as reporter:
        plan, folder = _begin(config, out, reporter, track, architecture)
        with explain_writing(folder), exclusive(folder):
            unused(folder)  # another run may have begun there meanwhile
            write_config(folder, config)
            return _execute(plan, folder, reporter)


@_torch_as_it_was()
def begin(config: Config, out: str | Path | None = None, reporter: Reporter = SILENT) -> Path:
    """Checks a configuration and makes its run folder. Trains nothing; `resume` goes on from there."""
    folder = _begin(config, out, reporter)[1]
    with explain_writing(folder), exclusive(folder):
        unused(folder)
        write_config(folder, config)
    return folder


@_torch_as_it_was()
def train_seed(config: Config, seed: int, folder: Path, reporter: Reporter = SILENT) -> TrainingRecord:
    """Trains one seed in a folder of its own and stops before the test split, which is not even made.

    After an interruption, a second call goes on. `score_seed` goes on from where this stops.
    """
    plan = plan_of(config, reporter)
    with explain_writing(folder), use_backend(config.backend):
        return train(plan, seed, folder, reporter)[1]


@_torch_as_it_was()
def score_seed(config: Config, seed: int, folder: Path, reporter: Reporter = SILENT) -> SeedRecord:
    """Trains one seed in a folder of its own, as far as that is not done, and scores it on the test split.

    The folder is then what `seed-N` is in a run folder.
    """
    plan = plan_of(config, reporter)
    with explain_writing(folder), use_backend(config.backend):
        test = plan.track.instances("test")
        anchors = score_baselines(plan.track, test, reporter.phase, anchors=True)
        return seed_record(plan, seed, anchors, folder, reporter)


@_torch_as_it_was()
def resume(folder: str | Path, reporter: Reporter | None = None, *, arch: type[Any] | None = None) -> Result:
    """Goes on with an interrupted run. Of a finished one it returns the result.

    Args:
        folder: the run folder.
        reporter: as in `run`.
        arch: the class, where the run was of a class that a program has.

    Raises:
        UserError: no run is there, or what it is made from has changed since.
    """
    folder = Path(folder)
    config = read_run(folder)
    with shown(reporter) as reporter, explain_writing(folder), exclusive(folder):
        if (folder / "result.json").exists():
            return read_result(folder)
        plan = _plan_again(config, folder, reporter, arch)
        remove_leftovers(folder)
        check_begun(plan, folder)
        return _execute(plan, folder, reporter)


def check_seeds(folder: Path) -> None:
    """Checks that the seeds which are begun in a run folder can stand in one result with those that are not."""
    if any(path.is_dir() for path in folder.glob("seed-*")):
        check_begun(_plan_again(read_run(folder), folder, SILENT), folder)


def _plan_again(config: Config, folder: Path, reporter: Reporter, architecture: type[Any] | None = None) -> Plan:
    """The plan of a run that has begun, perhaps in another folder than the current one."""
    for file in (registry.as_file(config.architecture)[0], track_file(config.track)):
        if file is not None and not file.is_absolute() and not file.exists():
            where = "a relative path is seen from the folder where the run began, so go on there"
            raise Unavailable(f"{folder / 'config.yaml'} names {file}, which is not here: {where}")
    return plan_of(config, reporter, architecture=architecture)


def _begin(
    config: Config,
    out: str | Path | None,
    reporter: Reporter,
    track: Track | None = None,
    architecture: type[Any] | None = None,
) -> tuple[Plan, Path]:
    """Checks everything before anything is written: what is refused leaves no folder behind."""
    if len(set(config.seeds)) < len(config.seeds):
        raise UserError(f"a seed is given twice: {' '.join(map(str, config.seeds))}")
    folder = unused(out, f"choose another --out, or go on with --resume {shlex.quote(str(out))}")
    plan = plan_of(config, reporter, track, architecture)
    require_scored(plan.track, "test")
    named = Path("runs") / plan.track.name / f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return plan, folder or make_folder(named)


def _execute(plan: Plan, folder: Path, reporter: Reporter) -> Result:
    """Trains and scores every seed that is not finished, and writes the result, the pictures and the report."""
    reporter.begin(folder)
    track, config, subject = plan.track, plan.config, plan.subject
    with use_backend(config.backend):
        reporter.phase(f"making the instances of {track.name}")
        record, test = track.record(), track.instances("test")
        first = folder / f"seed-{config.seeds[0]}"
        # The first training goes before the baselines, which may take minutes. But baselines that may fail come before it.
        known = [registry.is_built_in(registry.BASELINE, type(b)) for b in default_baselines(track, test)]
        if all(known) and not (first / "scores.json").exists():
            train(plan, config.seeds[0], first, reporter)
        baselines = score_baselines(track, test, reporter.phase)
        seeds = [seed_record(plan, seed, baselines, folder / f"seed-{seed}", reporter) for seed in config.seeds]
    state, folders = plan.model.state_bytes(), [folder / f"seed-{seed}" for seed in config.seeds]
    result = Result(
        track=record,
        architecture=ArchitectureRecord(
            name=plan.name,
            # A module's name, or a file's: without the folders of this machine.
            source=Path(inspect.getfile(subject.cls)).name
            if registry.is_file(config.architecture)
            else subject.cls.__module__,
            source_sha256=plan.parts["source"],
            options=subject.options.model_dump(mode="json"),
            parameters=parameter_count(plan.model),
            state_bytes=state,
            state_at=state_at(plan.model) if state is None else None,
        ),
        training=subject.training.model_dump(mode="json"),
        seeds=seeds,
        baselines=baselines,
        selection=Selection(trials=config.trials),
        environment=describe_environment(
            subject.device, plan.backend, plan.training_backend, subject.training.precision, packages_of(folders)
        ),
        code=code_of(folders, plan.code),
    )
    write_report(folder, result, track)
    write_json(folder / "result.json", result.model_dump(mode="json"))
    for seed in config.seeds:
        for name in (RESUME_FILE, TRAINED_FILE, CODE_FILE, ".lock"):
            (folder / f"seed-{seed}" / name).unlink(missing_ok=True)
    return result


def seed_record(
    plan: Plan, seed: int, baselines: Mapping[str, BaselineRecord], folder: Path, reporter: Reporter
) -> SeedRecord:
    """Trains and scores one seed. A seed that was finished before an interruption is read from its folder."""
    done = folder / "scores.json"
    if done.exists():
        try:
            record = SeedRecord.model_validate_json(done.read_text(encoding="utf-8"))
        except ValueError:
            done.unlink()
        else:
            provenance.check_provenance(folder, plan.made_from(seed))
            reporter.phase(f"seed {seed} is done")
            return record
    model, trained = train(plan, seed, folder, reporter)
    provenance.note_code(folder, plan.code, afresh=False)
    reporter.phase(f"scoring the test split, seed {seed}")
    record = _score(plan, seed, model, trained, baselines, folder)
    with atomic_write(done) as file:
        file.write(record.model_dump_json(indent=1))
    return record


def check_begun(plan: Plan, folder: Path) -> None:
    """Refuses a run folder whose seeds, as far as they have come, were made from something else than the others would be now."""
    for seed in plan.config.seeds:
        of_seed = folder / f"seed-{seed}"
        if any((of_seed / name).exists() for name in ("scores.json", TRAINED_FILE, RESUME_FILE)):
            provenance.check_provenance(of_seed, plan.made_from(seed))


def train(plan: Plan, seed: int, folder: Path, reporter: Reporter) -> tuple[Model, TrainingRecord]:
    """Trains one seed and keeps its weights. The weights of a seed that was trained before an interruption are read."""
    device, model = plan.subject.device, plan.subject.model(seed)
    path, trained = folder / "checkpoint.safetensors", read_trained(folder)
    if trained is not None or (folder / RESUME_FILE).exists():
        provenance.check_provenance(folder, plan.made_from(seed))
    if trained is not None and path.exists():
        load_weights(model, load_tensors(path)[0], str(path))
        return model, trained
    validation = plan.track.instances("validation")
    trainer = Trainer(
        model,
        plan.track.instances("train"),
        validation,
        plan.subject.training,
        budget=plan.track.definition.budget.train_tokens,
        seed=seed,
        folder=folder,
        device=device,
        task=plan.track.task,
    )
    reporter.phase(f"training, seed {seed}: {parameter_count(model):,} parameters, {len(trainer.plan):,} steps")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / provenance.FILE, plan.made_from(seed))
    provenance.note_code(folder, plan.code, afresh=not (folder / RESUME_FILE).exists())
    progress = trainer.run(reporter)
    save_tensors(path, model.state_dict(), {"architecture": plan.config.architecture})
    refuse_trained(plan.subject, model, validation, plan.name)
    trained = TrainingRecord(progress, len(trainer.plan), peak_memory(device))
    trained.write(folder)
    (folder / RESUME_FILE).unlink(missing_ok=True)
    return model, trained


def _score(
    plan: Plan, seed: int, model: Model, trained: TrainingRecord, baselines: Mapping[str, BaselineRecord], folder: Path
) -> SeedRecord:
    """Predicts the test split, keeps the predictions, and scores them."""
    test, progress = plan.track.instances("test"), trained.progress
    predictions = predict(plan.track.task, ModelPredictor(model, plan.subject.device), test)
    digest = predictions.save(folder / "predictions.npz")
    scores, curves = score_records(score(plan.track.task, test, predictions.batches()))
    training_curve = [
        CheckpointRecord(
            step=int(row["step"]),
            tokens=int(row["tokens"]),
            loss={name: float(value) for name, value in row.items() if name not in POINT},
            validation_loss=float(row["validation_loss"]),
        )
        for row in progress.curve
    ]
    return SeedRecord(
        seed=seed,
        scores=scores,
        share_of_the_way=normalized_scores(scores, baselines),
        curves=curves,
        training_curve=training_curve,
        best_step=progress.best_step,
        steps=trained.steps,
        tokens=progress.tokens,
        seconds=round(progress.seconds, 3),
        tokens_per_second=round(progress.tokens / progress.seconds, 1),
        peak_memory_bytes=max(trained.peak_memory_bytes, peak_memory(plan.subject.device)),
        predictions_sha256=digest,
        reach=reach_of(plan.track.task, curves),
        tokens_to_learn=tokens_to_learn(training_curve) if plan.track.task.sizes else None,
    )
