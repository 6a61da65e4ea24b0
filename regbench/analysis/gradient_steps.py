"""Steps of gradient descent on any model: by autograd, or by the simulator that its architecture names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from regbench.models.model import Model
from regbench.utils.errors import blaming

GRADIENTS = {"full": "full", "values": "values", "tint": "first-order"}
"""By way, the gradient that a simulator is asked for."""


class Simulator(Protocol):
    """The module that an architecture names in `simulator`."""

    def simulate(
        self,
        model: Model,
        tokens: Tensor,
        counted: Tensor,
        *,
        rates: Sequence[float],
        gradient: str,
        steps: int,
        layers: int | None,
    ) -> Iterator[Tensor]:
        """The logits after gradient descent on the counted positions of each sequence.

        Args:
            model: The model.
            tokens: (B, T).
            counted: (B, T) bool.
            rates: Learning rates.
            gradient: "full", "values" or "first-order".
            steps: Steps of gradient descent.
            layers: Only so many blocks at the top change. None: all.

        Yields:
            For each rate (B, T, V). The rate 0 gives the logits of the weights as they are.
        """

    def train(
        self, model: Model, tokens: Tensor, counted: Tensor, *, rate: float, gradient: str, layers: int | None
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        """Gradient descent of one set of weights on all sequences together, for tracks of exemplars.

        Args:
            model: The model.
            tokens: (B, T).
            counted: (B, T) bool.
            rate: Learning rate.
            gradient: "full", "values" or "first-order".
            layers: Only so many blocks at the top change. None: all.

        Yields:
            After 0, 1, 2, ... steps, without end: a function from tokens (N, L) to logits (N, L, V).
        """

    def refusal(self, model: Model) -> str | None:
        """Why it does not simulate a model, in a few words. None if it does. Where it is missing, all models are simulated."""


def simulator_of(model: Model) -> Simulator | None:
    """The simulator that the class of a model, or of its mixer, names itself. None if there is none, or if it refuses the model.

    A name is not inherited: a class derived from the transformer may compute something else.
    """
    named = _named(model)
    return None if named is None or _refusal(named, model) else named


def refusal_of(model: Model) -> str | None:
    """Why a model has no simulator, in a few words. None if it has one."""
    named = _named(model)
    if named is not None:
        return _refusal(named, model)
    classes = [type(part) for part in (model, *_mixers(model))]
    heir = next((c.__name__ for c in classes if getattr(c, "simulator", None) and "simulator" not in vars(c)), None)
    return f"{heir} does not inherit the simulator of its base" if heir else "there is no simulator for it"


def _refusal(simulator: Simulator, model: Model) -> str | None:
    return simulator.refusal(model) if hasattr(simulator, "refusal") else None


def _mixers(model: Model) -> list[object]:
    return [getattr(block, "mixer", None) for block in getattr(model, "blocks", None) or ()]


def _named(model: Model) -> Simulator | None:
    names = {vars(type(mixer)).get("simulator") for mixer in _mixers(model)}
    name = vars(type(model)).get("simulator") or (names.pop() if len(names) == 1 else None)
    if name is None:
        return None
    with blaming(f"the simulator {name} cannot be imported:"):
        return cast(Simulator, importlib.import_module(name))


def logits_after_descent(
    model: Model, tokens: Tensor, counted: Tensor, rates: Sequence[float], steps: int
) -> Iterator[Tensor]:
    """The logits of any model after plain gradient descent on one instance, by autograd.

    Args:
        model: The model.
        tokens: (1, T).
        counted: The positions in the loss, (1, T) bool. They are the first.
        rates: Learning rates of the summed loss.
        steps: Steps of gradient descent.

    Yields:
        For each rate (1, T, V).
    """
    end = int(counted.sum())
    read = tokens[:, :end], counted[:, :end]
    start = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    first = true_gradient(model, start, *read)
    for rate in rates:
        weights = _moved(start, first, rate)
        for _ in range(steps - 1):
            weights = _moved(weights, true_gradient(model, weights, *read), rate)
        with torch.no_grad():
            yield functional_call(model, weights, (tokens,))


def true_gradient(model: Model, weights: Mapping[str, Tensor], tokens: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """The gradient of the summed cross entropy of any model, by autograd, by parameter.

    Args:
        model: The model.
        weights: Its weights by name.
        tokens: (B, T).
        counted: The positions in the loss, (B, T) bool.
    """
    own = {name: w.detach().requires_grad_() for name, w in weights.items()}
    with torch.enable_grad():
        logits = functional_call(model, own, (tokens,))
        loss = F.cross_entropy(logits[counted], tokens[counted], reduction="sum")
    found = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
    return dict(zip(own, found, strict=True))


def train(model: Model, tokens: Tensor, counted: Tensor, rate: float) -> Iterator[Callable[[Tensor], Tensor]]:
    """As `Simulator.train` with the true gradient, for any model, by autograd."""
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    while True:
        yield partial(_logits, model, weights)
        weights = _moved(weights, true_gradient(model, weights, tokens, counted), rate)


def _logits(model: Model, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = functional_call(model, dict(weights), (tokens,))
    return out


def _moved(weights: Mapping[str, Tensor], found: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """The weights after one step."""
    return {name: w - rate * found[name] for name, w in weights.items()}
