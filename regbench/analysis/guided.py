"""What the analysis asks of a model: that it keeps a summary y of its context, which can be read, replaced and frozen."""

from __future__ import annotations

from typing import Any, Protocol, cast

from torch import Tensor

from regbench.models.model import Model
from regbench.utils import registry
from regbench.utils.errors import UserError


class Guided(Protocol):
    """A model with a summary of its context; an architecture that has these methods can be analysed and specialised."""

    io: Any

    def __call__(self, tokens: Tensor) -> Tensor:
        """(B, L) -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""

    def context(self, tokens: Tensor) -> Tensor:
        """y of every position: [b, t] summarises tokens[b, :t]. (B, L) -> (B, L, d)."""

    def summary(self, prefix: Tensor) -> Tensor:
        """y after the whole of each prefix. (B, c) -> (B, d)."""

    def with_context(self, tokens: Tensor, y: Tensor) -> Tensor:
        """The output with a y that is given, for every position or one that stands still: (B, L), (B, L, d) or (B, d)."""

    def specialize(self, prefix: Tensor) -> Model:
        """An ordinary model for what follows this prompt, (c,)."""


_METHODS = ("context", "summary", "with_context", "specialize")


def is_guided(model: Model | type[Model]) -> bool:
    """Whether a model, or an architecture, keeps a summary of its context."""
    return all(hasattr(model, method) for method in _METHODS)


def guided(model: Model, name: str) -> Guided:
    """The model, if it is one.

    Raises:
        UserError: it keeps no such summary; the line names the registered architectures that do.
    """
    if not is_guided(model):
        missing = next(method for method in _METHODS if not hasattr(model, method))
        raise UserError(
            f"architecture '{name}' keeps no summary of its context: it has no {missing}(); "
            f"these do: {', '.join(_guided_architectures())}"
        )
    return cast(Guided, model)


def _guided_architectures() -> list[str]:
    """Of all that are registered and can be imported."""
    found = []
    for name in registry.entries(registry.ARCHITECTURE):
        try:
            if is_guided(registry.load(registry.ARCHITECTURE, name)):
                found.append(name)
        except UserError:
            continue
    return found
