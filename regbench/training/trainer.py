"""The one training loop: AdamW or SGD, a schedule, clipping, length-bucketed batches, best checkpoint by validation loss.

Training can be killed at any moment. It goes on from its last checkpoint and ends with the same weights (on the CPU, with the
same number of threads): batches depend on seed and epoch alone, and the states of PyTorch's random generators are in the
checkpoint.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regbench.data.instances import Instances, length_bucketed_batches
from regbench.models.model import Model
from regbench.models.predictor import rows_at_once
from regbench.tasks.base import Task
from regbench.training.checkpoint import RESUME_FILE, course_file, load_tensors, save_tensors
from regbench.training.options import TrainingOptions, evaluation_steps, learning_rate
from regbench.training.parts import gradients_on
from regbench.training.progress import MEASURED, SILENT, Progress, Reporter
from regbench.training.step import Gradients, autocast, batch_tensors, gradients, make_optimizer, measure, train_step
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError, blaming
from regbench.utils.files import atomic_write

TIMED_STEPS = {"cpu": (1, 6), "cuda": (30, 60)}
"""Between these steps a training is timed for the estimate. What is compiled or recorded is so before the first of them."""


def training_steps(
    lengths: IntArray, options: TrainingOptions, budget: int, seed: int
) -> Iterator[tuple[int, IntArray]]:
    """The steps of a training, epoch after epoch, while tokens and epochs stay within the limits.

    Each has its tokens, and the rows of its batch (B,).
    """
    limit, few = options.train_tokens or budget, options.train_instances
    if few is not None and few > len(lengths):
        raise UserError(f"training.train_instances ({few:,}) is above the {len(lengths):,} of the split")
    if limit > budget:
        raise UserError(f"training.train_tokens ({limit:,}) is above the track's budget of {budget:,}")
    used = 0
    epochs = itertools.count() if options.epochs is None else range(options.epochs)
    batches = (_batches(lengths, options, seed, epoch) for epoch in epochs)
    for rows in itertools.chain.from_iterable(batches):
        tokens = int(lengths[rows].sum())
        if used + tokens > limit:
            break
        used += tokens
        yield tokens, rows
    if not used:
        raise UserError(f"{limit:,} training tokens are less than one batch of {options.batch_size} instances")


def _batches(lengths: IntArray, options: TrainingOptions, seed: int, epoch: int) -> Iterator[IntArray]:
    """The rows (B,) of each batch of an epoch."""
    order = np.random.default_rng([seed, epoch])
    return length_bucketed_batches(lengths[: options.train_instances], options.batch_size, order)


class TrainingSteps:
    """The steps of a training: the tokens of all, and the batches of one epoch at a time. A list of all would take gigabytes."""

    def __init__(self, lengths: IntArray, options: TrainingOptions, budget: int, seed: int) -> None:
        """Counts the steps; see `training_steps`, whose errors it raises."""
        self.tokens = np.fromiter((tokens for tokens, _ in training_steps(lengths, options, budget, seed)), np.int64)
        self._lengths, self._options, self._seed = lengths, options, seed
        self._steps_of_an_epoch = math.ceil((options.train_instances or len(lengths)) / options.batch_size)
        self._epoch, self._batches = -1, list[IntArray]()

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, step: int) -> IntArray:
        """(B,): the rows of a step's batch."""
        epoch, place = divmod(step, self._steps_of_an_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, list(_batches(self._lengths, self._options, self._seed, epoch))
        return self._batches[place]


class Trainer:
    """Trains one model under one seed.

    Its folder holds `metrics.jsonl` and, until the run is finished, `resume.safetensors`.
    """

    def __init__(
        self,
        model: Model,
        train: Instances,
        validation: Instances,
        options: TrainingOptions,
        *,
        budget: int,
        seed: int,
        folder: Path,
        device: torch.device,
        task: Task | None = None,
    ) -> None:
        """Plans every step; trains nothing yet. The model is on `device`, and trained in place.

        `validation` is the split that chooses the best weights, `budget` the tokens that the track allows. The seed decides the
        order of instances. Log and checkpoint lie in `folder`. `task` is for `Model.measured`; None: nothing is measured.
        """
        self.model, self.validation, self.options = model, validation, options
        self.train_split = train[: options.train_instances] if options.train_instances else train
        self.folder, self.device, self.task = folder, device, task
        self.plan = TrainingSteps(train.lengths, options, budget, seed)
        self.progress = Progress()
        self.optimizer = make_optimizer(model, options)
        self._gradients: Gradients = gradients
        self.best: dict[str, Tensor] = {}
        self._running: list[Tensor] = []  # the losses since the last row of the log
        self._resume_file = folder / RESUME_FILE

    def run(self, reporter: Reporter = SILENT) -> Progress:
        """Trains to the end of the plan, from the last checkpoint if there is one. The model then has the best weights.

        A resumed training on the CPU has as many threads as it began with.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._resume(reporter)
        with gradients_on(self.device) as self._gradients:
            return self._run(reporter)

    def _run(self, reporter: Reporter) -> Progress:
        total, evaluate_at = len(self.plan), evaluation_steps(len(self.plan), len(self.train_split), self.options)
        every = max(1, total // 200)
        started, offset = time.perf_counter(), self.progress.seconds
        saved, logged = started, (started, self.progress.tokens)
        first = logged
        running, begun = self._running, self.progress.step
        settled, timed = (begun + steps for steps in TIMED_STEPS[self.device.type])
        slower = ""  # why steps are, as it was told
        if begun == 0:
            self._keep()
        self.model.train()
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as log:
            if begun == 0 and (measured := self._measured()):
                log.write(json.dumps({"step": 0, "tokens": 0, **measured}) + "\n")
            while self.progress.step < total:
                terms = self._step()
                running.append(torch.stack(list(terms.values())))
                step, now = self.progress.step, time.perf_counter()
                self.progress.seconds = offset + now - started
                if step == settled:
                    first = (now, self.progress.tokens)
                elif step == timed:
                    rest = int(self.plan.tokens[step:].sum())
                    reporter.estimated(rest * (now - first[0]) / (self.progress.tokens - first[1]))
                if step % every == 0 or step in evaluate_at:
                    if (why := getattr(self._gradients, "refused", "")) not in ("", slower):
                        slower = why
                        reporter.phase(why)
                    means = torch.stack(running).mean(0).tolist()
                    running.clear()
                    if not all(map(math.isfinite, means)):
                        raise self._diverged(f"the loss is {sum(means)}")
                    speed = (self.progress.tokens - logged[1]) / max(now - logged[0], 1e-9)
                    row = {"step": step, "tokens": self.progress.tokens, **dict(zip(terms, means, strict=True))}
                    rate = self._rate(step - 1)
                    if step in evaluate_at:
                        row["validation_loss"] = self._evaluate()
                        self._keep()
                        self.progress.curve.append(row)
                        if self.options.schedule == "plateau":
                            self.progress.note_epoch(row["validation_loss"], self.options)
                    extra = {"learning_rate": rate, "tokens_per_second": round(speed), **self._measured()}
                    log.write(json.dumps({**row, **extra}) + "\n")
                    log.flush()
                    reporter.trained(self.progress, total, sum(means), speed)
                    logged = (time.perf_counter(), self.progress.tokens)
                if step == total or step in evaluate_at or now - saved > self.options.checkpoint_seconds:
                    self.progress.seconds = offset + time.perf_counter() - started
                    self._save()
                    saved = time.perf_counter()
        with blaming(f"the weights of step {self.progress.best_step} do not fit the trained model:"):
            self.model.load_state_dict(self.best)
        return self.progress

    def _measured(self) -> dict[str, float]:
        """What the model measures of its weights, by the names that a row of the log has."""
        found = {} if self.task is None else measure(self.model, self.task, self.progress.step)
        return {f"{MEASURED}{name}": value for name, value in found.items()}

    def _rate(self, step: int) -> float:
        return learning_rate(step, len(self.plan), self.options, self.progress.lowered)

    def _diverged(self, what: str) -> UserError:
        return UserError(
            f"training diverged: {what} at step {self.progress.step} of {len(self.plan)}; "
            f"try a training.learning_rate below {self.options.learning_rate:g}"
        )

    def _step(self) -> dict[str, Tensor]:
        batch = self.train_split[self.plan.rows(self.progress.step)]
        if self.options.loss_on == "all":
            batch = replace(batch, scored=np.arange(batch.tokens.shape[1]) < batch.lengths[:, None])
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * self._rate(self.progress.step)
        with blaming(f"training fails at step {self.progress.step + 1} of {len(self.plan)}:"):
            inputs = batch_tensors(batch, self.device)
            if batch.scored.any():
                terms = train_step(self.model, self.optimizer, inputs, self.options, self._gradients)
            else:  # there is nothing to learn, and a mean over no positions is NaN
                names = self.progress.terms or list(self.model.losses(*inputs))
                terms = {name: torch.zeros((), device=self.device) for name in names}
        self.progress.terms = self.progress.terms or list(terms)
        if list(terms) != self.progress.terms:
            raise UserError(
                f"the terms of the loss were {', '.join(self.progress.terms)}, and at step {self.progress.step + 1} they are "
                f"{', '.join(terms)}: let every step have the same, with 0 for a term that has not begun"
            )
        self.progress.tokens += int(self.plan.tokens[self.progress.step])
        self.progress.step += 1
        return terms

    def _evaluate(self) -> float:
        """The first term of the loss over the validation split. Keeps a copy of the weights if it is the lowest so far."""
        self.model.eval()
        total, count = 0.0, 0
        validating = blaming(f"training fails at the validation split, after step {self.progress.step}:")
        with validating, torch.no_grad(), autocast(self.device, self.options):
            at_once = rows_at_once(self.model.io, self.validation.tokens.shape[1], 64)
            for i in range(0, len(self.validation), at_once):
                batch = self.validation[i : i + at_once]
                scored = int(batch.scored.sum())
                if not scored:
                    continue
                total += float(next(iter(self.model.losses(*batch_tensors(batch, self.device)).values()))) * scored
                count += scored
        self.model.train()
        loss = total / count
        if not math.isfinite(loss):
            raise self._diverged(f"the validation loss is {loss}")
        self.progress.validation_loss = loss
        if loss < self.progress.best_validation_loss:
            self.progress.best_validation_loss, self.progress.best_step = loss, self.progress.step
            self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return loss

    def _keep(self) -> None:
        if self.options.keep_checkpoints:
            save_tensors(self.folder / course_file(self.progress.tokens), self.model.state_dict())

    def _save(self) -> None:
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
        tensors |= {f"running.{i}": loss for i, loss in enumerate(self._running)}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        save_tensors(
            self._resume_file,
            tensors,
            {
                "progress": json.dumps(asdict(self.progress)),
                "threads": str(torch.get_num_threads()),
            },
        )

    def _resume(self, reporter: Reporter) -> None:
        log = self.folder / "metrics.jsonl"
        if not self._resume_file.exists():
            log.unlink(missing_ok=True)
            return
        tensors, notes = load_tensors(self._resume_file)
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "rng": {}, "running": {}}
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            group, _, rest = name.partition(".")
            if group == "optimizer":
                index, _, key = rest.partition(".")
                moments.setdefault(int(index), {})[key] = value
            else:
                groups[group][rest] = value
        self.progress = Progress(**json.loads(notes["progress"]))
        self.model.load_state_dict(groups["model"])
        self.best = groups["best"]
        self._running += (groups["running"][key].to(self.device) for key in sorted(groups["running"], key=int))
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        torch.set_rng_state(groups["rng"]["cpu"])
        if "cuda" in groups["rng"]:
            torch.cuda.set_rng_state(groups["rng"]["cuda"], self.device)
        threads = int(notes.get("threads", torch.get_num_threads()))
        if self.device.type == "cpu" and threads != torch.get_num_threads():  # another number would give another model
            reporter.phase(f"going on with {threads} thread{'s' * (threads > 1)}, as the training began")
            torch.set_num_threads(threads)
        _cut_log(log, self.progress.step)


def _cut_log(path: Path, step: int) -> None:
    """Drops the rows after `step`, and one that a kill left unfinished."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError):
            break
        kept.append(line + "\n")
    with atomic_write(path) as file:
        file.writelines(kept)
