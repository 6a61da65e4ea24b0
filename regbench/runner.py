"""One run: track -> instances -> baselines -> training -> predictions -> scores -> result.

The run folder holds `config.yaml`, `result.json`, `report.html`, the pictures, and a folder for each seed with
`metrics.jsonl`, `checkpoint.safetensors`, `predictions.npz`, `scores.json` and `provenance.json`. A folder without `result.json`
can be resumed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import yaml
from rich.console import Console

from regbench.analysis.cost import state_at
from regbench.checks.architecture import SCORABLE, Subject, refuse_trained, trains
from regbench.checks.contract import refuse
from regbench.config import Config, read_run
from regbench.evaluation.baselines import default_baselines, score_baselines
from regbench.evaluation.predictions import StoredPredictions, predict
from regbench.metrics.scores import normalized_scores, score, score_records
from regbench.models.model import Model, ModelPredictor, parameter_count
from regbench.ops.backend import require_use, use_backend
from regbench.report import write_report
from regbench.results import (
    ArchitectureRecord,
    BaselineRecord,
    CheckpointRecord,
    Result,
    SeedRecord,
    Selection,
    read_result,
)
from regbench.tracks import Track, load_track
from regbench.training import provenance
from regbench.training.checkpoint import TRAINED_FILE, Trained, load_tensors, read_trained, save_tensors
from regbench.training.options import resolve_settings
from regbench.training.progress import Reporter
from regbench.training.provenance import describe_code, describe_environment, peak_memory
from regbench.training.terminal import TerminalReporter
from regbench.training.trainer import Trainer, find_device, training_steps
from regbench.utils import registry
from regbench.utils.errors import UserError, explain_validation
from regbench.utils.files import atomic_write, exclusive, explain_full_disk, write_json

if TYPE_CHECKING:
    from regbench.evaluation.given import Kind, Predicts


@dataclass(frozen=True)
class _Plan:
    """A configuration with every name resolved, checked, and nothing trained yet.

    Attributes:
        config: what was asked.
        name: of the architecture in tables.
        subject: the architecture with its options, its device and the training options.
        parts: all that a trained model follows from; see `regbench.training.provenance`.
        model: an untrained model.
        backend: the implementation of each op that runs in scoring.
        training_backend: the same in training; autocast may choose others.
    """

    config: Config
    track: Track
    name: str
    subject: Subject
    parts: Mapping[str, Any]
    model: Model
    backend: dict[str, str]
    training_backend: dict[str, str]


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
        arch: a registered name, `path/to/file.py[:Class]`, or a class. Only the program that has the class can resume its run.
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
    return run_config(config, out, reporter)


@_torch_as_it_was()
def run_config(config: Config, out: str | Path | None = None, reporter: Reporter | None = None) -> Result:
    """Does what a configuration asks for; see `run`.

    Raises:
        UserError: as `run`.
    """
    with _shown(reporter) as reporter:
        plan, folder = _begin(config, out, reporter)
        with explain_full_disk(folder), exclusive(folder):
            _unused(folder)  # another run may have begun there meanwhile
            write_config(folder, config)
            return _execute(plan, folder, reporter)


@contextmanager
def _shown(reporter: Reporter | None) -> Iterator[Reporter]:
    """The reporter, or one that draws on stderr or in the notebook."""
    if reporter is not None:
        yield reporter
        return
    with TerminalReporter(Console(stderr=True)) as drawn:
        yield drawn


def evaluate(
    track: str | Path | Track,
    predictor: Any,
    predicts: Predicts | None = None,
    kind: Kind | None = None,
    *,
    split: Literal["test", "validation"] = "test",
    name: str | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Scores any predictor beside the baselines of a track. Nothing is trained.

    Args:
        track: A loaded track, the name of a built-in one, or the path of a YAML file.
        predictor: A PyTorch module or a callable, from tokens (B, L) int64 to rows (B, L, V) or to an object with `.logits`; or
            an array (N, L, V) with the rows of every instance; or one of regbench's own models or predictors, which need
            neither `predicts` nor `kind`. For a task of vectors the rows are the predicted vectors.
        predicts: "this": row t predicts token t, and was made without it. "next": row t predicts token t + 1. A model of the
            next token is given a separator before the tokens. An array of the next token has no row for the first token,
            which counts as uniform.
        kind: What a row holds: "logits", "log_probabilities" or "probabilities". Left out for a task of vectors.
        split: The instances that are predicted.
        name: The name in tables. By default the name of the class or of the function.
        device: Where a callable finds its tokens. A module finds them where its weights are.
        out: A new folder for `result.json`, the predictions, the pictures and `report.html`. None: nothing is written.
        reporter: Is told what happens. By default as in `run`.

    Returns:
        The result. It has one record in `seeds`, and `evaluation` says how it was made.

    Raises:
        UserError: The predictor sees what it predicts, is shifted by one place, or its rows are not what they are said to be.
    """
    loaded = track if isinstance(track, Track) else load_track(track)
    from regbench.analysis.trained import Trained  # a run of our own training needs none of these
    from regbench.evaluation.any_predictor import evaluate_predictor

    if isinstance(predictor, Trained):
        predictor, name = predictor.model, name or predictor.name
    folder = _unused(out)
    with _shown(reporter) as reporter:
        result, stored = evaluate_predictor(loaded, predictor, predicts, kind, split, name, device, reporter.phase)
    _keep_evaluation(folder, loaded, result, [stored])
    return result


def evaluate_language_model(
    track: str,
    name: str,
    split: Literal["test", "validation"] = "test",
    *,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Scores a causal language model of the Hugging Face Hub, or of a folder, beside the baselines of a track.

    Args:
        track: The name of a built-in track of symbols, or the path of a YAML file.
        name: `hf:NAME` or `hf:FOLDER`.
        split: The instances that are predicted.
        settings: Fields of `regbench.evaluation.language_model.Prompting`, such as `mappings`, `prompt` and `limit`.
        device: "cpu", "cuda", or "auto".
        out: A new folder for `result.json`, the predictions, the pictures and `report.html`. None: nothing is written.
        reporter: Is told what happens. By default as in `run`.

    Returns:
        The result. It has one record in `seeds` for each mapping of symbols to tokens.

    Raises:
        UserError: The model cannot be loaded, or cannot be shown the instances of this track.
    """
    from regbench.evaluation import language_model

    loaded, folder = load_track(track), _unused(out)
    with _shown(reporter) as reporter:
        result, stored = language_model.evaluate_language_model(
            loaded, name, split, dict(settings or {}), device, reporter.phase
        )
    _keep_evaluation(folder, loaded, result, stored)
    return result


def _keep_evaluation(folder: Path | None, track: Track, result: Result, stored: Sequence[StoredPredictions]) -> None:
    """Writes the result, the predictions of each seed, the pictures and the page. None: nothing is written."""
    if folder is not None:
        with explain_full_disk(folder), exclusive(folder):
            for record, predictions in zip(result.seeds, stored, strict=True):
                predictions.save(folder / f"seed-{record.seed}" / "predictions.npz")
            write_report(folder, result, track)
            write_json(folder / "result.json", result.model_dump(mode="json"))


@_torch_as_it_was()
def begin(config: Config, out: str | Path | None = None, reporter: Reporter | None = None) -> Path:
    """Checks a configuration and makes its run folder. Trains nothing; `resume` goes on from there.

    Raises:
        UserError: as `run`.
    """
    folder = _begin(config, out, reporter or Reporter())[1]
    with explain_full_disk(folder), exclusive(folder):
        _unused(folder)
        write_config(folder, config)
    return folder


def write_config(folder: Path, config: Config) -> None:
    """Writes `config.yaml`. From then on the folder holds a run that can be resumed."""
    with atomic_write(folder / "config.yaml") as file:
        yaml.safe_dump(config.model_dump(mode="json"), file, sort_keys=False)


@_torch_as_it_was()
def train_seed(config: Config, seed: int, folder: Path, reporter: Reporter | None = None) -> Trained:
    """Trains one seed in a folder of its own and stops before the test split, which is not even made.

    After an interruption, a second call goes on. `score_seed` goes on from where this stops.

    Raises:
        UserError: as `run`, or the folder holds something else.
    """
    reporter = reporter or Reporter()
    plan = _plan(config, reporter)
    with explain_full_disk(folder), use_backend(config.backend):
        return _train(plan, seed, folder, reporter)[1]


@_torch_as_it_was()
def score_seed(config: Config, seed: int, folder: Path, reporter: Reporter | None = None) -> SeedRecord:
    """Trains one seed in a folder of its own, as far as that is not done, and scores it on the test split.

    The folder is then what `seed-N` is in a run folder.

    Raises:
        UserError: as `run`, or the folder holds something else.
    """
    reporter = reporter or Reporter()
    plan = _plan(config, reporter)
    with explain_full_disk(folder), use_backend(config.backend):
        test = plan.track.instances("test")
        anchors = score_baselines(plan.track, test, lambda b: reporter.phase(f"scoring the baseline {b}"), anchors=True)
        return _seed(plan, seed, anchors, folder, reporter)


@_torch_as_it_was()
def resume(folder: str | Path, reporter: Reporter | None = None) -> Result:
    """Goes on with an interrupted run. Of a finished one it returns the result.

    Raises:
        UserError: no run is there, or what it is made from has changed since.
    """
    folder = Path(folder)
    config = read_run(folder)
    with _shown(reporter) as reporter, explain_full_disk(folder), exclusive(folder):
        if (folder / "result.json").exists():
            return read_result(folder)
        return _execute(_plan(config, reporter), folder, reporter)


def _begin(config: Config, out: str | Path | None, reporter: Reporter) -> tuple[_Plan, Path]:
    """Checks everything before anything is written: what is refused leaves no folder behind."""
    if len(set(config.seeds)) < len(config.seeds):
        raise UserError(f"a seed is given twice: {' '.join(map(str, config.seeds))}")
    folder = _unused(out, f"choose another --out, or go on with --resume {out}")
    plan = _plan(config, reporter)
    return plan, folder or _new_folder(plan)


def _unused(out: str | Path | None, instead: str = "choose another folder") -> Path | None:
    """The folder that the caller chose, which must hold no run. None: none was chosen."""
    if out == "":
        raise UserError("out is empty: it names a new folder")
    folder = None if out is None else Path(out)
    if folder is not None and any((folder / name).exists() for name in ("result.json", "config.yaml")):
        raise UserError(f"{out} holds a run already; {instead}")
    return folder


def _plan(config: Config, reporter: Reporter) -> _Plan:
    """Resolves a configuration and runs every check that needs no training.

    Raises:
        UserError: a name, an option or the budget is wrong, or the architecture or the task breaks its contract.
    """
    track = load_track(config.track)
    name, cls = registry.short_name(config.architecture), registry.load(registry.ARCHITECTURE, config.architecture)
    source = registry.source_digest(cls)  # at once: the file may be edited while it trains
    options, training = resolve_settings(cls, config.settings)
    device = find_device(config.device)
    if track.task_code is not None:  # a task that is not built in
        from regbench.checks.task import examine_task_once

        reporter.phase(f"examining the task {track.task_name}")
        examine_task_once(track)
    lengths = track.instances("train").lengths
    for seed in config.seeds:  # a budget below one batch is refused
        next(training_steps(lengths, training, track.definition.budget.train_tokens, seed))
    subject = Subject(cls, options, track.task.io, device, training)
    with use_backend(config.backend) as backend:
        refuse(subject, SCORABLE, f"architecture '{name}'")
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
    return _Plan(config, track, name, subject, parts, subject.model(), backend, training_backend)


def _new_folder(plan: _Plan) -> Path:
    """Makes a folder that no other run has. Two runs that begin in one second get two folders."""
    base = Path("runs") / plan.track.name / f"{plan.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    with explain_full_disk(base):
        base.parent.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
                folder = base.with_name(f"{base.name}-{number}")


def _execute(plan: _Plan, folder: Path, reporter: Reporter) -> Result:
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
            _train(plan, config.seeds[0], first, reporter)
        baselines = score_baselines(track, test, lambda b: reporter.phase(f"scoring the baseline {b}"))
        seeds = [_seed(plan, seed, baselines, folder / f"seed-{seed}", reporter) for seed in config.seeds]
    state = plan.model.state_bytes()
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
            subject.device, plan.backend, plan.training_backend, subject.training.precision
        ),
        code=describe_code(),
    )
    write_report(folder, result, track)
    write_json(folder / "result.json", result.model_dump(mode="json"))
    for seed in config.seeds:
        for name in ("resume.safetensors", TRAINED_FILE, ".lock"):
            (folder / f"seed-{seed}" / name).unlink(missing_ok=True)
    return result


def _seed(
    plan: _Plan, seed: int, baselines: Mapping[str, BaselineRecord], folder: Path, reporter: Reporter
) -> SeedRecord:
    """Trains and scores one seed. A seed that was finished before an interruption is read from its folder.

    Raises:
        UserError: the finished seed was made from something else, or the trained model sees the future.
    """
    done = folder / "scores.json"
    if done.exists():
        try:
            record = SeedRecord.model_validate_json(done.read_text(encoding="utf-8"))
        except ValueError:
            done.unlink()
        else:
            provenance.check_provenance(folder, plan.parts)
            return record
    model, trained = _train(plan, seed, folder, reporter)
    reporter.phase(f"scoring the test split, seed {seed}")
    record = _score_seed(plan, seed, model, trained, baselines, folder)
    write_json(folder / provenance.FILE, plan.parts)  # first: without it the scores would pass for any run's
    with atomic_write(done) as file:
        file.write(record.model_dump_json(indent=1))
    return record


def _train(plan: _Plan, seed: int, folder: Path, reporter: Reporter) -> tuple[Model, Trained]:
    """Trains one seed and keeps its weights. The weights of a seed that was trained before an interruption are read.

    Raises:
        UserError: the folder holds something else, training diverges, or the trained model sees the future.
    """
    device, model = plan.subject.device, plan.subject.model(seed)
    own = f"{provenance.provenance_digest(plan.parts)}/{seed}"
    trained = read_trained(folder, own)
    if trained is not None:
        model.load_state_dict(load_tensors(folder / "checkpoint.safetensors")[0])
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
        provenance=own,
        device=device,
        task=plan.track.task,
    )
    reporter.phase(f"training, seed {seed}: {parameter_count(model):,} parameters, {len(trainer.plan):,} steps")
    progress = trainer.run(reporter)
    save_tensors(folder / "checkpoint.safetensors", model.state_dict(), {"architecture": plan.config.architecture})
    refuse_trained(plan.subject, model, validation, plan.name)
    trained = Trained(progress, len(trainer.plan), peak_memory(device))
    trained.write(folder, own)
    (folder / "resume.safetensors").unlink(missing_ok=True)
    return model, trained


def _score_seed(
    plan: _Plan, seed: int, model: Model, trained: Trained, baselines: Mapping[str, BaselineRecord], folder: Path
) -> SeedRecord:
    """Predicts the test split, keeps the predictions, and scores them."""
    test, progress = plan.track.instances("test"), trained.progress
    predictions = predict(plan.track.task, ModelPredictor(model, plan.subject.device), test)
    digest = predictions.save(folder / "predictions.npz")
    scores, curves = score_records(score(plan.track.task, test, predictions.batches()))
    known = ("step", "tokens", "validation_loss")
    return SeedRecord(
        seed=seed,
        scores=scores,
        share_of_the_way=normalized_scores(scores, baselines),
        curves=curves,
        training_curve=[
            CheckpointRecord(
                step=int(row["step"]),
                tokens=int(row["tokens"]),
                loss={name: float(value) for name, value in row.items() if name not in known},
                validation_loss=float(row["validation_loss"]),
            )
            for row in progress.curve
        ],
        best_step=progress.best_step,
        steps=trained.steps,
        tokens=progress.tokens,
        seconds=round(progress.seconds, 3),
        tokens_per_second=round(progress.tokens / progress.seconds, 1),
        peak_memory_bytes=max(trained.peak_memory_bytes, peak_memory(plan.subject.device)),
        predictions_sha256=digest,
    )
