"""Steps of gradient descent on any model: by TinT's explicit twin where it knows the model, else by autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from architectures.tint import TinT, explicit
from architectures.transformer import Transformer
from regbench.models.backbone import Backbone
from regbench.models.model import Model

WAYS: dict[str, explicit.Gradient] = {"full": "full", "values": "values", "tint": "first-order"}
"""By way, the gradient that the twin is asked for."""


def refusal_of(model: Model) -> str | None:
    """Why TinT's twin does not know a model, in a few words. None if it does.

    It knows no class that is derived from the transformer or from TinT, because that may compute something else.
    """
    parts = [model] if type(model) is not Backbone else [block.mixer for block in model.blocks]
    strange = [type(part).__name__ for part in parts if type(part) not in (Transformer, TinT)]
    return f"TinT does not simulate {strange[0]}" if strange else explicit.refusal(model)


def logits_after(
    model: Model, tokens: Tensor, counted: Tensor, rates: Sequence[float], way: str, steps: int, layers: int | None
) -> Iterator[Tensor]:
    """The logits after gradient descent on the counted positions of each sequence, each with weights of its own.

    Args:
        model: The model. If TinT's twin does not know it, the way is "full", and B is 1.
        tokens: (B, T).
        counted: The positions in the loss, (B, T) bool. They are the first.
        rates: Learning rates of the summed loss. The rate 0 gives the logits of the weights as they are.
        way: Of `WAYS`.
        steps: Steps of gradient descent.
        layers: Only so many blocks at the top change. None: all.

    Yields:
        For each rate (B, T, V).
    """
    if refusal_of(model) is None:
        yield from explicit.simulate(
            model, tokens, counted, rates=rates, gradient=WAYS[way], steps=steps, layers=layers
        )
        return
    end = int(counted.sum())
    read = tokens[:, :end], counted[:, :end]
    start = _weights(model)
    first = true_gradient(model, start, *read)
    for rate in rates:
        weights = explicit.moved(start, first, rate)
        for _ in range(steps - 1):
            weights = explicit.moved(weights, true_gradient(model, weights, *read), rate)
        yield _logits(model, weights, tokens)


def train(
    model: Model, tokens: Tensor, counted: Tensor, rate: float, way: str, layers: int | None
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Gradient descent of one set of weights on all sequences together; arguments as of `logits_after`.

    Yields:
        After 0, 1, 2, ... steps, without end: a function from tokens (N, L) to logits (N, L, V).
    """
    if refusal_of(model) is None:
        yield from explicit.train(model, tokens, counted, rate=rate, gradient=WAYS[way], layers=layers)
    weights = _weights(model)
    while True:
        yield partial(_logits, model, weights)
        weights = explicit.moved(weights, true_gradient(model, weights, tokens, counted), rate)


def true_gradient(model: Model, weights: Mapping[str, Tensor], tokens: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """The gradient of the summed cross entropy of any model, by autograd, by parameter."""
    own = {name: w.detach().requires_grad_() for name, w in weights.items()}
    with torch.enable_grad():
        logits = functional_call(model, own, (tokens,))
        loss = F.cross_entropy(logits[counted], tokens[counted], reduction="sum")
    found = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
    return dict(zip(own, found, strict=True))


def _weights(model: Model) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _logits(model: Model, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    out: Tensor = functional_call(model, dict(weights), (tokens,))
    return out
