"""The attention weights of any model, layer by layer; and any model with uniform attention in the place of some heads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regbench.models.backbone import Backbone
from regbench.models.model import Model
from regbench.utils.errors import UserError, blaming


def attention_layers(model: Model, architecture: str) -> dict[str, Any]:
    """The mixers with attention, by the name of their layer. Empty where the model itself gives all layers at once."""
    if callable(getattr(model, "attention_weights", None)):
        return {}
    if isinstance(model, Backbone):
        mixers = {str(i): block.mixer for i, block in enumerate(model.blocks, 1)}
        found = {name: mixer for name, mixer in mixers.items() if callable(getattr(mixer, "weights", None))}
        if found:
            return found
        lacks = f"its mixer {type(mixers['1']).__name__} has no weights(x) -> (B, H, L, L)"
    else:
        lacks = f"{type(model).__name__} has no attention_weights(tokens) -> a list of (B, H, L, L)"
    raise UserError(f"'{architecture}' has no attention to read: {lacks}")


def read_attention(model: Model, tokens: Tensor, layers: dict[str, Any], use: Callable[[str, Tensor], None]) -> None:
    """Hands the attention of each layer to `use`, one layer after the other.

    `tokens` are (B, L). `use` takes the name of a layer and its weights (B, H, L, L).
    """
    batch, length = tokens.shape

    def checked(layer: str, weights: Any) -> None:
        shape = tuple(getattr(weights, "shape", ()))
        if len(shape) != 4 or (shape[0], *shape[2:]) != (batch, length, length):
            raise UserError(f"the weights of layer {layer} have the shape {shape}, not (B, H, L, L)")
        if bool(weights.triu(1).any()):
            raise UserError(f"the weights of layer {layer} look ahead: row t must be zero after t")
        use(layer, weights.float())

    def hook(layer: str) -> Callable[[Any, tuple[Any, ...], Tensor], None]:
        def read(mixer: Any, arguments: tuple[Any, ...], output: Tensor) -> None:
            with blaming(f"{type(mixer).__name__}.weights raises"):
                weights = mixer.weights(*arguments)
            checked(layer, weights)
            if callable(getattr(mixer, "mix", None)):
                _require_forward(mixer, arguments, weights, output)

        return read

    with torch.no_grad(), contextlib.ExitStack() as stack:
        if layers:
            for name, mixer in layers.items():
                stack.callback(mixer.register_forward_hook(hook(name)).remove)
            model.eval()(tokens)
            return
        whole: Any = model.eval()
        with blaming(f"{type(model).__name__}.attention_weights raises"):
            found = list(whole.attention_weights(tokens))
            names = list(whole.attention_names()) if hasattr(whole, "attention_names") else []
        for i, weights in enumerate(found):
            checked(names[i] if len(names) == len(found) else str(i + 1), weights)


def _require_forward(mixer: Any, arguments: tuple[Any, ...], weights: Tensor, output: Tensor) -> None:
    """Checks that a mixer's weights are those of its forward: a derived class may have another forward than its base."""
    with blaming(f"{type(mixer).__name__}.mix raises"):
        mixed = mixer.mix(arguments[0], weights)
    if not torch.allclose(mixed, output, rtol=1e-3, atol=1e-3 * float(output.abs().max())):
        raise UserError(
            f"{type(mixer).__name__}.mix(x, weights(x)) is not its forward(x): these are not its attention weights"
        )


@contextlib.contextmanager
def without_heads(model: Model, architecture: str, heads: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Within the block these heads attend to all of their past alike. The sum of each row's absolute weights stays.

    `heads` are the layer of each, and its number in it from 1.
    """
    layers = attention_layers(model, architecture)
    places = {layer: [number - 1 for of, number in heads if of == layer] for layer in layers}
    asked = [mixer for layer, mixer in layers.items() if places[layer]]
    fixed = next((mixer for mixer in asked if not callable(getattr(mixer, "mix", None))), None)
    if not layers or fixed is not None:
        why = "it is a whole model, and heads of mixers alone can be"
        if layers:
            why = f"{type(fixed).__name__} has no mix(x, weights), its forward with given weights"
        raise UserError(f"the heads of '{architecture}' cannot be ablated: {why}")

    def hook(numbers: list[int]) -> Callable[[Any, tuple[Any, ...], Tensor], Tensor]:
        def mixed(mixer: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
            weights = mixer.weights(*arguments).clone()
            _require_forward(mixer, arguments, weights, output)
            length = weights.shape[-1]
            past = torch.ones(length, length, dtype=weights.dtype).tril()
            uniform = past / past.sum(-1, keepdim=True)
            weights[:, numbers] = weights[:, numbers].abs().sum(-1, keepdim=True) * uniform
            out: Tensor = mixer.mix(arguments[0], weights)
            return out

        return mixed

    with contextlib.ExitStack() as stack:
        for layer, numbers in places.items():
            if numbers:
                stack.callback(layers[layer].register_forward_hook(hook(numbers)).remove)
        yield
