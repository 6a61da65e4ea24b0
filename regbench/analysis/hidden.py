"""Hidden states of any model: what stands in the residual stream after each block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regbench.data.instances import Instances
from regbench.models.backbone import Backbone
from regbench.models.model import Model, token_tensor
from regbench.utils.arrays import IntArray
from regbench.utils.errors import UserError, blaming

BATCH = 32
"""Instances that are read at once."""


def hidden_states(model: Model, tokens: Tensor) -> list[Tensor]:
    """The hidden states (B, L, D) of tokens (B, L) after each block. Those at t have read what comes before token t.

    After a block with n-gram heads behind it, they are those after the heads. Another model than those on the backbone gives its
    own, with `hidden_states(tokens)`.
    """
    own = getattr(model, "hidden_states", None)
    with torch.no_grad():
        if callable(own):
            with blaming(f"{type(model).__name__}.hidden_states raises"):
                states = list(own(tokens))
        elif isinstance(model, Backbone):
            states = _after_blocks(model, tokens)
        else:
            raise UserError(
                f"the hidden states of {type(model).__name__} cannot be read: it has no "
                "hidden_states(tokens) -> a list of (B, L, D)"
            )
    for state in states:
        shape = tuple(getattr(state, "shape", ()))
        if len(shape) != 3 or shape[:2] != tuple(tokens.shape):
            raise UserError(f"{type(model).__name__} has hidden states of the shape {shape}, not (B, L, D)")
    return [state.float() for state in states]


def _after_blocks(model: Backbone, tokens: Tensor) -> list[Tensor]:
    """What each block of the backbone gives, by hooks."""
    found: list[Tensor] = [torch.empty(0)] * len(model.blocks)

    def keep(number: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_: nn.Module, __: Any, out: Tensor) -> None:
            found[number] = out

        return hook

    with contextlib.ExitStack() as stack:
        for number, block in enumerate(model.blocks):
            stack.callback(block.register_forward_hook(keep(number)).remove)
        for place, heads in model.ngram_heads.items():
            stack.callback(heads.register_forward_hook(keep(int(place) - 1)).remove)
        model.eval()(tokens)
    return found


def states_at(model: Model, instances: Instances, row: IntArray, places: Sequence[IntArray]) -> list[list[Tensor]]:
    """The hidden states at some places. No others are kept.

    `row`, (S,), is the instance of each sample; `places` are K times (S,), positions in it. For each of the K places, and each
    layer, it gives (S, D).
    """
    order = np.argsort(row, kind="stable")
    kept: list[list[list[Tensor]]] = [[] for _ in places]
    for start in range(0, len(instances), BATCH):
        mine = order[np.searchsorted(row[order], start) : np.searchsorted(row[order], start + BATCH)]
        if not len(mine):
            continue
        layers = hidden_states(model, token_tensor(instances[start : start + BATCH].tokens))
        for k, place in enumerate(places):
            kept[k].append([layer[row[mine] - start, place[mine]] for layer in layers])
    back = torch.from_numpy(np.argsort(order))
    return [[torch.cat(parts)[back] for parts in zip(*one, strict=True)] for one in kept]
