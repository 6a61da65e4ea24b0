"""What every architecture must satisfy, each line a function that says what is wrong or nothing.

`regbench run` asks the first lines of a stranger's file before it spends minutes on it; the tests ask all of every built-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from regbench.errors import UserError
from regbench.models.model import Model
from regbench.registry import blame

CAUSAL_TOLERANCE = 1e-5
"""Rounding allowed before a change counts as seen, relative to the largest logit: fused kernels sum in another order when a
length differs. A real leak moves logits by far more."""

Check = Callable[[Model, Tensor], str | None]


def sample_tokens(model: Model, batch: int = 3, length: int = 32) -> Tensor:
    """Random tokens (B, L) such as the model's task makes, the separator among them."""
    generator = torch.Generator().manual_seed(0)
    length = min(length, model.io.max_length)
    return torch.randint(model.io.vocab_size, (batch, length), generator=generator)


def shape(model: Model, tokens: Tensor) -> str | None:
    """Logits are (B, L, V), at length 1 too."""
    for part in (tokens, tokens[:, :1]):
        wanted = (*part.shape, model.io.vocab_size)
        got = tuple(model(part).shape)
        if got != wanted:
            return f"it returns the shape {got}, not {wanted}"
    return None


def finite(model: Model, tokens: Tensor) -> str | None:
    """No NaN or infinity, also at length 1, with all tokens equal, and at the longest length of the task."""
    longest = tokens[:1].repeat(1, 1 + model.io.max_length // tokens.shape[1])[:, : model.io.max_length]
    cases = {
        f"length {tokens.shape[1]}": tokens,
        "length 1": tokens[:, :1],
        "all tokens equal": torch.zeros_like(tokens),
        f"the longest length, {model.io.max_length}": longest,
    }
    for name, case in cases.items():
        if not torch.isfinite(model(case)).all():
            return f"it returns NaN or infinity at {name}"
    return None


def causal(model: Model, tokens: Tensor) -> str | None:
    """Changing token t changes no logits at or before t: those of position t predict token t itself."""
    before = model(tokens)
    for t in {0, 1, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(tokens.shape[1])):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % model.io.vocab_size
        moved = (model(changed)[:, : t + 1] - before[:, : t + 1]).abs().amax(dim=(0, 2))
        if moved.max() > CAUSAL_TOLERANCE * before.abs().max().clamp(min=1.0):
            return f"it sees the future: changing token {t} changes the prediction of token {int(moved.argmax())}"
    return None


def batch_independent(model: Model, tokens: Tensor) -> str | None:
    """A sequence is predicted the same whatever shares its batch."""
    together, alone = model(tokens)[:1], model(tokens[:1])
    if (together - alone).abs().max() > CAUSAL_TOLERANCE * together.abs().max().clamp(min=1.0):
        return "a sequence's prediction depends on the others in its batch"
    return None


def gradients(model: Model, tokens: Tensor) -> str | None:
    """Every parameter receives a finite gradient from the loss."""
    model.zero_grad()
    with torch.enable_grad():
        torch.stack(list(model.losses(tokens, torch.ones_like(tokens, dtype=torch.bool)).values())).sum().backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or (parameter.grad == 0).all():
            return f"the parameter {name} receives no gradient"
        if not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name} is NaN or infinite"
    return None


PREFLIGHT: tuple[Check, ...] = (shape, finite, causal)
CONTRACT: tuple[Check, ...] = (*PREFLIGHT, batch_independent, gradients)


def violations(model: Model, tokens: Tensor, checks: Iterable[Check] = CONTRACT) -> dict[str, str]:
    """The checks that fail, by name, with what was wrong. Each is asked in evaluation mode; an exception fails its check."""
    found = {}
    was_training = model.training
    model.eval()
    for check in checks:
        try:
            with torch.no_grad():
                fault = check(model, tokens)
        except UserError as error:
            fault = str(error)
        except Exception as error:
            fault = f"it raises {blame(error)}"
        if fault:
            found[check.__name__] = fault
    model.zero_grad()
    model.train(was_training)
    return found


def preflight(model: Model, name: str, device: torch.device) -> None:
    """Refuses an architecture that cannot give a meaningful score.

    Raises:
        UserError: with the first of shape, finite, causal that does not hold.
    """
    for fault in violations(model, sample_tokens(model).to(device), PREFLIGHT).values():
        raise UserError(f"architecture '{name}' cannot be scored: {fault}")
