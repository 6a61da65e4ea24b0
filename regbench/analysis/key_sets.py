"""Sets of positions that a head may attend to, such as what followed the same token before, and what a head is called by them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from regbench.data.instances import Instances
from regbench.ops.ngram.naive import ngram_matches
from regbench.results import ScoreRecord

KINDS = ("self", "previous", "previous-2", "first", "separator", "same", "match-1", "match-2", "match-3", "state")
"""The sets that name a head. `match-n` is what an n-gram head of order n attends to (ICLL Eq. 12)."""
CONTRASTS = ("only-m", "only-state")
"""only-m: match-1 without match-2. only-state: state without match-1."""
NESTED = ("match-3", "match-2", "match-1")
"""Each of these sets is a part of the next."""
FAMILIES = {"match": NESTED, "previous": ("previous", "previous-2")}
"""What `--ablate` calls several kinds by."""

LEAST_EXCESS = 0.3
"""A head whose largest excess is below this is "mixed"."""
NEARLY_ALL = 0.9
"""Of nested sets a head is named by the smallest with at least this share of the largest one's mass."""

FIRST_POSITION = 40
"""Positions before it are left out: little has been seen there. Where sequences are short, half of the mean length."""


def first_position(instances: Instances) -> int:
    """The first position that is looked at."""
    return min(FIRST_POSITION, int(np.mean(instances.lengths)) // 2)


def key_sets(inputs: Tensor, separator: int, states: Tensor | None) -> dict[str, Tensor]:
    """The keys of each set for each query, by set (B, L, L) bool.

    `inputs` (B, L) are a separator and then every token but the last; `states` (B, L) the hidden state that token t was drawn in,
    -1 where there is none, or None for a task without states.

    Row t of `match-n` has the j < t where the n tokens before j are the n last tokens read at t. Row t of `state` has the j whose
    token was drawn in the state that token t is drawn in. Row t of `same` has the earlier occurrences of the token read at t.
    """
    batch, length = inputs.shape
    place = torch.arange(length)
    query, key = place[:, None], place[None, :]
    shared = {
        "self": key == query,
        "previous": key == query - 1,
        "previous-2": key == query - 2,
        "first": (key == 0).expand(length, length),
    }
    sets = {name: keys.expand(batch, length, length) for name, keys in shared.items()}
    last = torch.where(inputs == separator, place, -1).cummax(1).values
    sets["separator"] = key == last[:, :, None]
    sets["same"] = (inputs[:, :, None] == inputs[:, None, :]) & (key < query)
    sets |= {f"match-{n}": ngram_matches(inputs, n) for n in (1, 2, 3)}
    sets["only-m"] = sets["match-1"] & ~sets["match-2"]
    if states is not None:
        drawn_in = torch.cat([torch.full((batch, 1), -2), states[:, :-1]], dim=1)  # of the token that is read at j
        sets["state"] = (states[:, :, None] == drawn_in[:, None, :]) & (key <= query)
        sets["only-state"] = sets["state"] & ~sets["match-1"]
    return sets


def kind_of(mass: Mapping[str, ScoreRecord], excess: Mapping[str, float]) -> str:
    """The kind of a head: the set with the largest excess, or "mixed" if none is large.

    By set, `mass` is the share of the head's attention, and `excess` (mass - chance) / (1 - chance).
    """
    named = [name for name in KINDS if name in excess]
    best = max(named, key=lambda name: excess[name])
    if excess[best] < LEAST_EXCESS:
        return "mixed"
    if best not in NESTED:
        return best
    inside = NESTED[: NESTED.index(best) + 1]
    return next(name for name in inside if name in mass and mass[name].value >= NEARLY_ALL * mass[best].value)


def hidden_states_of(instances: Instances) -> Tensor | None:
    """The task's states before each token, (B, L) int64, -1 where there is none. None: the task has no states."""
    states = instances.truth_at.get("state")
    if states is None or states.ndim != 2 or not np.issubdtype(states.dtype, np.integer):
        return None
    return torch.from_numpy(states.astype(np.int64))
