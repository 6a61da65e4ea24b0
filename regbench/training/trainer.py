"""The one training loop: AdamW, a schedule, clipping, length-bucketed batches, best checkpoint by validation loss.

It can be killed at any moment and goes on from its last checkpoint to the same final weights (on the CPU, with the same number
of threads): batches depend on seed and epoch alone, and the generator's state is part of the checkpoint.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pydantic
import torch
from torch import Tensor

from regbench.data.instances import Instances, length_bucketed_batches
from regbench.metrics.scores import rows_at_once
from regbench.models.model import Model, token_tensor
from regbench.training.checkpoint import load_tensors, save_tensors
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError, describe_validation, nearest
from regbench.utils.registry import blaming
from regbench.utils.settings import Settings


class TrainingOptions(Settings):
    """How a model is trained. Set by `--set training.KEY=VALUE`; an architecture may carry defaults of its own."""

    train_tokens: int | None = pydantic.Field(
        default=None, ge=1, description="real tokens to see; None: the track's budget"
    )
    epochs: int | None = pydantic.Field(
        default=None,
        ge=1,
        description="passes over the training split, within those tokens; None: until they are spent",
    )
    train_instances: int | None = pydantic.Field(
        default=None, ge=1, description="only the first so many of the training split are seen; None: all"
    )
    batch_size: int = pydantic.Field(default=16, ge=1, description="instances in a batch")
    learning_rate: float = pydantic.Field(default=5e-3, gt=0)
    schedule: Literal["cosine", "plateau"] = pydantic.Field(
        default="cosine", description="the rate falls along half a cosine, or whenever validation no longer improves"
    )
    final_learning_rate: float = pydantic.Field(
        default=0.1, ge=0, le=1, description="cosine: share of the rate left at the end"
    )
    plateau_patience: int = pydantic.Field(
        default=5, ge=0, description="plateau: epochs without a better validation loss that are waited"
    )
    plateau_factor: float = pydantic.Field(
        default=0.5, gt=0, lt=1, description="plateau: what the rate is then multiplied by"
    )
    plateau_learning_rate: float = pydantic.Field(default=1e-5, ge=0, description="plateau: the rate falls no lower")
    warmup: float = pydantic.Field(default=0.1, ge=0, lt=1, description="share of the steps over which the rate rises")
    weight_decay: float = pydantic.Field(default=0.05, ge=0, description="on matrices only")
    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1)
    beta2: float = pydantic.Field(default=0.99, ge=0, lt=1)
    gradient_clip: float = pydantic.Field(default=1.0, gt=0, description="largest norm of the gradient")
    evaluations: int = pydantic.Field(
        default=10, ge=1, description="times the validation split is scored, evenly spaced; with plateau: every epoch"
    )
    precision: Literal["float32", "bfloat16"] = pydantic.Field(
        default="float32", description="bfloat16: products in that, by autocast; weights and scoring stay float32"
    )
    checkpoint_seconds: float = pydantic.Field(default=15.0, ge=0, description="at most so much work is lost by a kill")


def resolve_training(cls: type[Any], settings: Mapping[str, Any]) -> TrainingOptions:
    """How an architecture is trained: `settings` over its own defaults, over the common ones.

    Raises:
        UserError: an unknown key (the nearest known one is named) or a value of the wrong type.
    """
    try:
        return TrainingOptions(**{**cls.training_defaults, **settings})
    except pydantic.ValidationError as error:
        raise UserError(describe_validation(error, "training option", TrainingOptions.model_fields)) from None


def find_device(name: str) -> torch.device:
    """What "cpu", "cuda", "cuda:1" or "auto" stands for.

    Raises:
        UserError: there is no such device here.
    """
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


@dataclass
class Progress:
    """Where training stands: all of it is in every checkpoint.

    lowered: how often a plateau has lowered the rate; plateau_epochs, how long the validation loss has not been better than
    plateau_loss.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_step: int = 0
    best_validation_loss: float = math.inf
    validation_loss: float = math.inf
    lowered: int = 0
    plateau_loss: float = math.inf
    plateau_epochs: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)


class Watcher(Protocol):
    """Is told how training goes, e.g. to draw a progress bar."""

    def trained(self, progress: Progress, total_steps: int, loss: float, tokens_per_second: float) -> None: ...


def training_steps(lengths: IntArray, options: TrainingOptions, budget: int, seed: int) -> list[tuple[int, IntArray]]:
    """The whole plan: each step's tokens and rows, epoch after epoch while the tokens (and epochs) stay within the limits.

    Raises:
        UserError: more tokens or instances are asked for than the track has, or not even one batch fits.
    """
    return list(next_steps(lengths, options, budget, seed))


def next_steps(lengths: IntArray, options: TrainingOptions, budget: int, seed: int) -> Iterator[tuple[int, IntArray]]:
    """The same, step by step: whoever takes the first knows that there is one.

    Raises:
        UserError: as `training_steps`, when the first is taken.
    """
    limit, few = options.train_tokens or budget, options.train_instances
    if few is not None and few > len(lengths):
        raise UserError(f"training.train_instances ({few:,}) is more than the {len(lengths):,} of the training split")
    if limit > budget:
        raise UserError(f"training.train_tokens ({limit:,}) is above the track's budget of {budget:,}")
    used = 0
    for rows in _batches(lengths[:few], options, seed):
        tokens = int(lengths[rows].sum())
        if used + tokens > limit:
            break
        used += tokens
        yield tokens, rows
    if not used:
        raise UserError(f"{limit:,} training tokens are less than one batch of {options.batch_size} instances")


def learning_rate(step: int, total: int, options: TrainingOptions, lowered: int = 0) -> float:
    """The rate of step 0..total-1: linear warm-up, then half a cosine down to the final share, or what plateaus have left.

    lowered: how many plateaus there were.
    """
    warmup = options.warmup * total
    if step + 1 <= warmup:
        return options.learning_rate * (step + 1) / warmup
    if options.schedule == "plateau":
        least = min(options.plateau_learning_rate, options.learning_rate)
        return max(least, options.learning_rate * options.plateau_factor**lowered)
    share = (step - warmup) / max(1.0, total - warmup)
    cosine = 0.5 * (1.0 + math.cos(math.pi * share))
    return options.learning_rate * (options.final_learning_rate + (1.0 - options.final_learning_rate) * cosine)


def watch_plateau(progress: Progress, loss: float, options: TrainingOptions) -> None:
    """Takes note of an epoch's validation loss: the rate is lowered after more than `plateau_patience` without a better one.

    Better means by one part in 10,000; as `torch.optim.lr_scheduler.ReduceLROnPlateau` has it.
    """
    if loss < progress.plateau_loss * (1.0 - 1e-4):
        progress.plateau_loss, progress.plateau_epochs = loss, 0
        return
    progress.plateau_epochs += 1
    if progress.plateau_epochs > options.plateau_patience:
        progress.lowered, progress.plateau_epochs = progress.lowered + 1, 0


class Trainer:
    """Trains one model on one seed, in a folder that holds `metrics.jsonl` and, until it is done, `resume.safetensors`."""

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
        identity: str,
        device: torch.device,
    ) -> None:
        self.model, self.validation, self.options = model, validation, options
        self.folder, self.identity, self.device = folder, identity, device
        self.plan = training_steps(train.lengths, options, budget, seed)
        self.train_split = train[: options.train_instances] if options.train_instances else train
        self.progress = Progress()
        self.optimizer = make_optimizer(model, options)
        self.best: dict[str, Tensor] = {}
        self._resume_file = folder / "resume.safetensors"

    def run(self, watcher: Watcher | None = None) -> Progress:
        """Trains to the end of the plan, from the last checkpoint if there is one, and leaves the best weights in the model.

        Raises:
            UserError: the loss becomes NaN or infinite, or the checkpoint is of another configuration.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._resume()
        total = len(self.plan)
        evaluate_at = self._evaluations(total)
        every = max(1, total // 200)
        started, offset = time.perf_counter(), self.progress.seconds
        saved, logged = started, (started, self.progress.tokens)
        running: list[Tensor] = []
        self.model.train()
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as log:
            while self.progress.step < total:
                terms = self._step(total)
                running.append(torch.stack(list(terms.values())))
                step, now = self.progress.step, time.perf_counter()
                self.progress.seconds = offset + now - started
                if step % every == 0 or step in evaluate_at:
                    means = torch.stack(running).mean(0).tolist()
                    running.clear()
                    if not all(map(math.isfinite, means)):
                        raise UserError(
                            f"training diverged: the loss is {sum(means)} at step {step} of {total}; "
                            f"try a training.learning_rate below {self.options.learning_rate:g}"
                        )
                    speed = (self.progress.tokens - logged[1]) / max(now - logged[0], 1e-9)
                    row = {"step": step, "tokens": self.progress.tokens, **dict(zip(terms, means, strict=True))}
                    rate = learning_rate(step - 1, total, self.options, self.progress.lowered)
                    if step in evaluate_at:
                        row["validation_loss"] = self._evaluate()
                        self.progress.curve.append(row)
                        if self.options.schedule == "plateau":
                            watch_plateau(self.progress, row["validation_loss"], self.options)
                    log.write(json.dumps({**row, "learning_rate": rate, "tokens_per_second": round(speed)}) + "\n")
                    log.flush()
                    if watcher is not None:
                        watcher.trained(self.progress, total, sum(means), speed)
                    logged = (time.perf_counter(), self.progress.tokens)
                if step == total or step in evaluate_at or now - saved > self.options.checkpoint_seconds:
                    self._save()
                    saved = time.perf_counter()
        self.model.load_state_dict(self.best)
        return self.progress

    def _evaluations(self, total: int) -> set[int]:
        """The steps after which the validation split is scored; the last is always one."""
        if self.options.schedule == "plateau":
            epoch = math.ceil(len(self.train_split) / self.options.batch_size)
            return {*range(epoch, total, epoch), total}
        times = self.options.evaluations
        return {round(total * (i + 1) / times) for i in range(times)} | {total}

    def _step(self, total: int) -> dict[str, Tensor]:
        tokens, rows = self.plan[self.progress.step]
        batch = self.train_split[rows]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.progress.step, total, self.options, self.progress.lowered)
        with blaming(f"training fails at step {self.progress.step + 1} of {total}:"):
            terms = train_step(self.model, self.optimizer, _tensors(batch, self.device), self.options)
        self.progress.step += 1
        self.progress.tokens += tokens
        return terms

    def _evaluate(self) -> float:
        """The first term of the loss over the scored positions of the validation split; keeps the weights if it is the best."""
        self.model.eval()
        total, count = 0.0, 0
        validating = blaming(f"training fails at the validation split, after step {self.progress.step}:")
        with validating, torch.no_grad(), autocast(self.device, self.options):
            at_once = rows_at_once(self.model.io, self.validation.tokens.shape[1], 64)
            for i in range(0, len(self.validation), at_once):
                batch = self.validation[i : i + at_once]
                scored = int(batch.scored.sum())
                total += float(next(iter(self.model.losses(*_tensors(batch, self.device)).values()))) * scored
                count += scored
        self.model.train()
        loss = total / count
        self.progress.validation_loss = loss
        if loss < self.progress.best_validation_loss:
            self.progress.best_validation_loss, self.progress.best_step = loss, self.progress.step
            self.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return loss

    def _save(self) -> None:
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.device)
        save_tensors(
            self._resume_file, tensors, {"identity": self.identity, "progress": json.dumps(asdict(self.progress))}
        )

    def _resume(self) -> None:
        log = self.folder / "metrics.jsonl"
        if not self._resume_file.exists():
            log.unlink(missing_ok=True)
            return
        tensors, notes = load_tensors(self._resume_file)
        if notes.get("identity") != self.identity:
            raise UserError(f"{self._resume_file} is the checkpoint of another configuration; choose another --out")
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "rng": {}}
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
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        torch.set_rng_state(groups["rng"]["cpu"])
        if "cuda" in groups["rng"]:
            torch.cuda.set_rng_state(groups["rng"]["cuda"], self.device)
        _cut_log(log, self.progress.step)


def _batches(lengths: IntArray, options: TrainingOptions, seed: int) -> Iterator[IntArray]:
    for epoch in itertools.count() if options.epochs is None else range(options.epochs):
        yield from length_bucketed_batches(lengths, options.batch_size, np.random.default_rng([seed, epoch]))


def _tensors(batch: Instances, device: torch.device) -> tuple[Tensor, Tensor]:
    return token_tensor(batch.tokens, device), torch.from_numpy(batch.scored).to(device)


def autocast(device: torch.device, options: TrainingOptions) -> torch.autocast:
    """The precision that a model is trained in."""
    return torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bfloat16")


def train_step(
    model: Model, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], options: TrainingOptions
) -> dict[str, Tensor]:
    """One step on tokens (B, L) and which of them are scored (B, L); the terms of the loss before it. Gradients are left."""
    with autocast(batch[1].device, options):
        terms = model.losses(*batch)
    optimizer.zero_grad(set_to_none=True)
    torch.stack(list(terms.values())).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clip)
    optimizer.step()
    return {name: term.detach() for name, term in terms.items()}


def make_optimizer(model: Model, options: TrainingOptions) -> torch.optim.AdamW:
    """AdamW; weight decay falls on matrices, save those a mixer marks with `_no_weight_decay`.

    It is fused where every parameter is real: for complex ones PyTorch has no such form.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    decays = [p.ndim >= 2 and not getattr(p, "_no_weight_decay", False) for p in parameters]
    groups: list[dict[str, Any]] = [
        {"params": [p for p, d in zip(parameters, decays, strict=True) if d], "weight_decay": options.weight_decay},
        {"params": [p for p, d in zip(parameters, decays, strict=True) if not d], "weight_decay": 0.0},
    ]
    real = not any(p.is_complex() for p in parameters)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(options.beta1, options.beta2), fused=real)


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
    path.write_text("".join(kept), encoding="utf-8")
