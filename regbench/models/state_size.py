"""The bytes of a model's recurrent state where it grows: measured, from what the recurrent form holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regbench.models.backbone import StreamState, held_bytes
from regbench.models.model import Model
from regbench.tasks.base import VectorIO

if TYPE_CHECKING:
    from regbench.ops.ngram import NGramState


def state_at(model: Any) -> dict[Literal["128", "1024"], int]:
    """Bytes of state of one sequence in float32 after 128 and after 1,024 tokens, from what the recurrent form holds.

    The state is measured after 8, 16 and 24 random tokens. If both gaps are equal, the state grows by the same number of bytes at
    each token, and the rest follows. A state that grows may stop growing later, as one of a window does. So a model that is not
    built in, or has the option `window`, or whose gaps differ, reads all 1,024 tokens then. The sums of n-gram heads grow with
    the number of different n-grams, and read all, too.

    Takes a model in its evaluation form. Empty where there is no recurrent form. With n-gram heads, without the numbers of tokens
    for which the model has too few learned positions.
    """
    held, sums = _read(model, (8, 16, 24))
    if len(held) < 3:
        return {}
    names: tuple[Literal["128", "1024"], ...] = ("128", "1024")
    even = held[24] - held[16] == held[16] - held[8]
    found = {name: held[8] + (int(name) - 8) * (held[16] - held[8]) // 8 for name in names if even}
    parts = [model, *(getattr(block, "mixer", block) for block in getattr(model, "blocks", None) or ())]
    built_in = all(type(part).__module__.partition(".")[0] in ("regbench", "architectures") for part in parts)
    windowed = any(getattr(getattr(part, "options", None), "window", 0) for part in parts)
    if held[24] > held[8] and (windowed or not built_in or not even):
        later, _ = _read(model, (128, 1024))
        read = {name: later[int(name)] for name in names if int(name) in later}
        if windowed or any(found.get(name) != size for name, size in read.items()):
            found = read
    if not sums:
        return found
    positions = getattr(model, "positions", None)
    last = 1024 if positions is None else positions.num_embeddings
    counted = _sums_at(sums, model, (128, 1024))
    return {name: found[name] + counted[int(name)] for name in found if int(name) <= last}


def _read(model: Any, lengths: tuple[int, ...]) -> tuple[dict[int, int], list[NGramState]]:
    """Bytes of state after so many random tokens without the sums of n-gram heads, and these sums.

    Reading ends early where there is no recurrent form, where a stranger's fails (`regbench check` says why), or where learned
    positions end.
    """
    held: dict[int, int] = {}
    sums: list[NGramState] = []
    with contextlib.suppress(Exception), torch.no_grad():
        state = model.init_state(1)
        for t, token in enumerate(_random_tokens(model, lengths[-1]), 1):
            _, state = model.step(token, state)
            if t in lengths:
                sums = state.ngram_sums() if isinstance(state, StreamState) else []
                held[t] = held_bytes(state) - sum(part.state_bytes() for part in sums)
    return held, sums


def _sums_at(sums: Sequence[NGramState], model: Model, lengths: tuple[int, ...]) -> dict[int, int]:
    """Bytes of such sums after so many random tokens: what the vectors hold does not matter."""
    new = [(type(part)(part.order, part.shift), torch.zeros(1, part.width)) for part in sums]
    found = {}
    for t, token in enumerate(_random_tokens(model, lengths[-1]), 1):
        for part, zeros in new:
            part.step(token.cpu(), zeros)
        if t in lengths:
            found[t] = sum(part.state_bytes() for part, _ in new)
    return found


def _random_tokens(model: Model, count: int) -> Iterator[Tensor]:
    """Random tokens (1,), or vectors (1, D_in), always the same ones."""
    random, place = torch.Generator().manual_seed(0), next(model.parameters()).device
    for _ in range(count):
        if isinstance(model.io, VectorIO):
            yield torch.randn(1, model.io.d_in, generator=random).to(place)
        else:
            yield torch.randint(model.io.vocab_size, (1,), generator=random).to(place)
