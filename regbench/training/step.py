"""One step of training: the optimizer, the precision, and the step itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regbench.data.instances import Instances
from regbench.models.model import Model, token_tensor
from regbench.tasks.base import Task
from regbench.training.options import TrainingOptions
from regbench.training.progress import TAKEN
from regbench.utils.errors import UserError, blaming


def batch_tensors(batch: Instances, device: torch.device) -> tuple[Tensor, ...]:
    """What `Model.losses` takes: tokens (B, L) or vectors (B, L, D_in), which are scored (B, L), and hidden answers if any."""
    shown = token_tensor(batch.tokens, device), torch.from_numpy(batch.scored).to(device)
    return (*shown, token_tensor(batch.answers, device)) if batch.answers is not None else shown


def autocast(device: torch.device, options: TrainingOptions) -> torch.autocast:
    """Autocast to bfloat16 where the training options ask for it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bfloat16")


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch has one thread within."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Gradients = Callable[[Model, tuple[Tensor, ...], TrainingOptions], dict[str, Tensor]]
"""What leaves the gradients of a batch in the parameters, and gives the terms of the loss; see `gradients`."""


def gradients(model: Model, batch: tuple[Tensor, ...], options: TrainingOptions) -> dict[str, Tensor]:
    """Leaves the gradients of a batch in the parameters, in the place of those of the last one.

    Args:
        model: in training mode.
        batch: as `batch_tensors` gives it.
        options: precision.

    Returns:
        The terms of the loss, by name.

    Raises:
        UserError: the model's `losses` gives something else.
    """
    model.zero_grad(set_to_none=True)
    with autocast(batch[1].device, options):
        terms = model.losses(*batch)
    _require_terms(model, terms)
    torch.stack(list(terms.values())).sum().backward()
    return {name: term.detach() for name, term in terms.items()}


def train_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, ...],
    options: TrainingOptions,
    by: Gradients = gradients,
) -> dict[str, Tensor]:
    """Takes one optimizer step. The gradients stay in the parameters.

    Args:
        model: in training mode.
        optimizer: of its parameters.
        batch: as `batch_tensors` gives it.
        options: precision and the largest norm of the gradient.
        by: what computes the gradients.

    Returns:
        The terms of the loss before the step, by name.

    Raises:
        UserError: the model's `losses` gives something else.
    """
    terms = by(model, batch, options)
    with one_thread():  # to wake another takes longer than it saves, and far longer where other programs hold the cores
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clip)
        optimizer.step()
    return terms


def measure(model: Model, task: Task, step: int) -> dict[str, float]:
    """What a model measures of its weights.

    Args:
        model: whose `measured` is called.
        task: the task that it is trained on.
        step: after how many steps, for the message.

    Raises:
        UserError: a figure is NaN or infinite, or the model's own code fails.
    """
    with blaming(f"measuring fails after step {step}:"), torch.no_grad():
        found = {name: float(value) for name, value in model.measured(task).items()}
    for name, value in found.items():
        if not math.isfinite(value):
            raise UserError(f"the model measures {name} as {value} after step {step}")
    return found


def _require_terms(model: Model, terms: Any) -> None:
    who = f"{type(model).__name__}.losses gives"
    if not isinstance(terms, Mapping):
        raise UserError(f"{who} {type(terms).__name__}, not a dictionary of the terms by name")
    for name, term in terms.items():
        if name in TAKEN:
            raise UserError(f"{who} a term '{name}', and the log has another figure of that name: rename the term")
        if not isinstance(term, Tensor) or term.numel() != 1:
            got = f"the shape {tuple(term.shape)}" if isinstance(term, Tensor) else type(term).__name__
            raise UserError(f"{who} for '{name}' {got}, not a tensor of one number")


def make_optimizer(model: Model, options: TrainingOptions) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum. Weight decay acts on matrices, except those that a mixer marks with `no_weight_decay`.

    The fused implementation of AdamW is used where every parameter is real; PyTorch has none for complex ones. Each group of
    parameters has a `share` of the learning rate: 1, or less for a state space's own where `state_space_rate` caps it.

    Raises:
        UserError: `state_space_rate` is given, and the model has no state space.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    capped = [p for p in parameters if _capped(p, options)]
    if options.state_space_rate and not capped:
        raise UserError("training.state_space_rate has no effect: this architecture marks no state-space parameters")
    decayed: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for parameter in (p for p in parameters if not _capped(p, options)):
        decays = parameter.ndim >= 2 and not getattr(parameter, "_no_weight_decay", False)
        (decayed if decays else others).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": options.weight_decay, "share": 1.0},
        {"params": others, "weight_decay": 0.0, "share": 1.0},
    ]
    if options.state_space_rate:
        share = min(1.0, options.state_space_rate / options.learning_rate)
        groups.append({"params": capped, "weight_decay": 0.0, "share": share})
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.learning_rate, momentum=options.momentum)
    real = not any(p.is_complex() for p in parameters)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(options.beta1, options.beta2), fused=real)


def _capped(parameter: Tensor, options: TrainingOptions) -> bool:
    return bool(options.state_space_rate) and getattr(parameter, "_state_space", False)
