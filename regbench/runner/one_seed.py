"""One seed: trained, checked once more, and scored on the test split. What is finished is read from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from regbench.checks.architecture import refuse_trained
from regbench.evaluation.predictions import predict
from regbench.metrics.reach import reach_of, tokens_to_learn
from regbench.metrics.scores import normalized_scores, score, score_records
from regbench.models.model import Model, ModelPredictor, parameter_count
from regbench.results import BaselineRecord, CheckpointRecord, SeedRecord
from regbench.runner.plan import Plan
from regbench.training import provenance
from regbench.training.checkpoint import (
    RESUME_FILE,
    TrainingRecord,
    load_notes,
    load_tensors,
    load_weights,
    of_another,
    read_trained,
    save_tensors,
)
from regbench.training.progress import POINT, Reporter
from regbench.training.provenance import peak_memory
from regbench.training.trainer import Trainer
from regbench.utils.files import atomic_write, write_json


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
            provenance.check_provenance(folder, plan.parts)
            return record
    model, trained = train(plan, seed, folder, reporter)
    provenance.note_code(folder, plan.code, afresh=False)
    reporter.phase(f"scoring the test split, seed {seed}")
    record = _score(plan, seed, model, trained, baselines, folder)
    write_json(folder / provenance.FILE, plan.parts)  # first: without it the scores would pass for any run's
    with atomic_write(done) as file:
        file.write(record.model_dump_json(indent=1))
    return record


def check_begun(plan: Plan, folder: Path) -> None:
    """Refuses a run folder whose seeds, as far as they have come, were made from something else than the others would be now."""
    for seed in plan.config.seeds:
        of_seed, own = folder / f"seed-{seed}", _own(plan, seed)
        half = of_seed / RESUME_FILE
        if (of_seed / "scores.json").exists():
            provenance.check_provenance(of_seed, plan.parts)
        elif read_trained(of_seed, own) is None and half.exists() and load_notes(half).get("provenance") != own:
            raise of_another(half)


def _own(plan: Plan, seed: int) -> str:
    """By what a seed's checkpoint is known as this run's."""
    return f"{provenance.provenance_digest(plan.parts)}/{seed}"


def train(plan: Plan, seed: int, folder: Path, reporter: Reporter) -> tuple[Model, TrainingRecord]:
    """Trains one seed and keeps its weights. The weights of a seed that was trained before an interruption are read."""
    device, model = plan.subject.device, plan.subject.model(seed)
    own, path = _own(plan, seed), folder / "checkpoint.safetensors"
    trained = read_trained(folder, own)
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
        provenance=own,
        device=device,
        task=plan.track.task,
    )
    reporter.phase(f"training, seed {seed}: {parameter_count(model):,} parameters, {len(trainer.plan):,} steps")
    folder.mkdir(parents=True, exist_ok=True)
    provenance.note_code(folder, plan.code, afresh=not (folder / RESUME_FILE).exists())
    progress = trainer.run(reporter)
    save_tensors(path, model.state_dict(), {"architecture": plan.config.architecture})
    refuse_trained(plan.subject, model, validation, plan.name)
    trained = TrainingRecord(progress, len(trainer.plan), peak_memory(device))
    trained.write(folder, own)
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
