"""The form of instances: types, shapes and names. It is checked before anything else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbench.data.instances import Instances
from regbench.tasks.base import Task, TokenIO, VectorIO


def ill_formed(task: Task, instances: Any, count: int, split: str) -> str | None:
    """What is wrong with the form of a split, or None: its `io`, its types, its shapes.

    `instances` are what `generate` returned; `count` were asked for.
    """
    if not isinstance(instances, Instances):
        return f"generate returns {type(instances).__name__}, not regbench.Instances"
    if not isinstance(instances.generator, str) or not instances.generator:
        return "its Instances need a generator: a name and a version, as text"
    truths: tuple[Any, Any] = (instances.truth, instances.truth_at)
    if not all(isinstance(truth, Mapping) for truth in truths):
        return "truth and truth_at of its Instances must be dictionaries"
    if (strange := next((key for truth in truths for key in truth if not isinstance(key, str)), None)) is not None:
        return f"the names in truth and truth_at of its Instances must be text, not {strange!r}"
    arrays = arrays_of(instances)
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            kind = "an array of Python objects" if isinstance(array, np.ndarray) else type(array).__name__
            return f"{name} of its Instances must be an array of numbers, not {kind}"
        if not len(array.shape) or len(array) != count:
            return f"{name} of the {split} split has the shape {array.shape}, but {count} instances were asked for"
    return _wrong_io(task.io) or _wrong_shapes(task.io, instances, split)


def arrays_of(instances: Instances) -> dict[str, NDArray[Any]]:
    """Every array of instances, by its name in messages: "tokens", "truth['states']"."""
    return {
        **{name: getattr(instances, name) for name in ("tokens", "lengths", "scored")},
        **({} if instances.answers is None else {"answers": instances.answers}),
        **{f"truth['{name}']": array for name, array in instances.truth.items()},
        **{f"truth_at['{name}']": array for name, array in instances.truth_at.items()},
    }


def _wrong_io(io: Any) -> str | None:
    if not isinstance(io, TokenIO | VectorIO):
        return f"its io is {type(io).__name__}, not a TokenIO or a VectorIO"
    for field in fields(io):
        if field.name not in ("names", "separator", "bottleneck") and not _is_whole(getattr(io, field.name), 1):
            return f"the {field.name} of its io must be a whole number of at least 1, not {getattr(io, field.name)!r}"
    if isinstance(io, VectorIO):
        return f"d_out of its io ({io.d_out}) is larger than d_in ({io.d_in})" if io.d_out > io.d_in else None
    for name in ("separator", "bottleneck"):
        token = getattr(io, name)
        if not (_is_whole(token, 0) and token < io.vocab_size) and (name, token) != ("bottleneck", None):
            return f"the {name} of its io, {token!r}, is no token in [0, {io.vocab_size})"
    if len(io.names) != io.vocab_size or not all(isinstance(name, str) for name in io.names):
        return f"the names of its io must be {io.vocab_size} texts, one for each token; there are {len(io.names)}"
    return None


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


def _wrong_shapes(io: TokenIO | VectorIO, instances: Instances, split: str) -> str | None:
    tokens, lengths, scored = instances.tokens, instances.lengths, instances.scored
    wanted = "(N, L)" if isinstance(io, TokenIO) else f"(N, L, {io.d_in})"
    if tokens.ndim != wanted.count(",") + 1 or (isinstance(io, VectorIO) and tokens.shape[2] != io.d_in):
        return f"tokens of the {split} split has the shape {tokens.shape}, not {wanted}"
    if not (np.issubdtype(tokens.dtype, np.integer) if isinstance(io, TokenIO) else tokens.dtype == np.float32):
        return f"the tokens are {tokens.dtype}, not {'integers' if isinstance(io, TokenIO) else 'float32'}"
    if instances.targets.shape != tokens.shape or instances.targets.dtype != tokens.dtype:
        return "answers must have the shape and the type of the tokens"
    if lengths.shape != tokens.shape[:1] or not np.issubdtype(lengths.dtype, np.integer):
        return f"the lengths must be (N,) integers, not {lengths.shape} of {lengths.dtype}"
    if lengths.min() < 1 or lengths.max() > min(tokens.shape[1], io.max_length):
        bad = int(lengths.min()) if lengths.min() < 1 else int(lengths.max())
        return f"a length is {bad}, but tokens has {tokens.shape[1]} places and io.max_length is {io.max_length}"
    if scored.shape != tokens.shape[:2] or scored.dtype != bool:
        return f"scored must be {tokens.shape[:2]} of bool, not {scored.shape} of {scored.dtype}"
    for name, array in instances.truth_at.items():
        if array.shape[:2] != tokens.shape[:2]:
            return f"truth_at['{name}'] has the shape {array.shape}, which does not begin with {tokens.shape[:2]}"
    return None
