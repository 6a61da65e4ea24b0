"""What becomes of predictions when a text is read with the y of another (CGT D.3, "Token probabilities")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from regbench.analysis.guided import Guided
from regbench.analysis.segments import Segments
from regbench.data.instances import Instances
from regbench.models.model import token_tensor
from regbench.utils.arrays import FloatArray

KINDS = ("the donor's alone", "both texts'", "its own alone", "neither text's")


@dataclass(frozen=True)
class Transplant:
    """By how much the logarithm of a token's probability rises, on average, when y comes from a donor's text.

    by_kind: the mean over tokens that only the donor's shown text has, that both have, only the receiver's, neither.
    rises: (V,) the mean over pairs and positions.  total_variation: between the distributions with either y.
    """

    by_kind: dict[str, float]
    rises: FloatArray
    total_variation: float
    pairs: int


@torch.no_grad()
def transplant(model: Guided, instances: Instances, segments: Segments, pairs: int = 200) -> Transplant:
    """Pairs each stretch with the next one of another instance, up to `pairs`; both y stand still, taken at the cuts.

    The text is what is behind the receiver's cut; only scored positions count. For tasks of tokens.
    """
    size = model.io.vocab_size
    sums, counts = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    rises, distances = [], []
    last = len(segments) - segments.per_row
    for k in range(0, min(pairs, max(0, last))):
        own, donor = segments[k : k + 1], segments[k + segments.per_row : k + segments.per_row + 1]
        shown = [instances.tokens[s.row[0], s.start[0] : s.cut[0]] for s in (own, donor)]
        y = [_summary(model, instances, s) for s in (own, donor)]
        rest = instances.tokens[own.row[0], own.cut[0] : own.end[0]]
        scored = instances.scored[own.row[0], own.cut[0] : own.end[0]]
        if not scored.any():
            continue
        text = token_tensor(rest[None], torch.device("cpu"))
        before, after = (model.with_context(text, each)[0].double().log_softmax(-1).numpy()[scored] for each in y)
        rise = (after - before).mean(0)
        rises.append(rise)
        distances.append(0.5 * np.abs(np.exp(after) - np.exp(before)).sum(-1).mean())
        has = [np.isin(np.arange(size), part) for part in shown]
        for number, kind in enumerate((~has[0] & has[1], has[0] & has[1], has[0] & ~has[1], ~has[0] & ~has[1])):
            sums[number] += rise[kind].sum()
            counts[number] += kind.sum()
    by_kind = {kind: float(s / c) for kind, s, c in zip(KINDS, sums, counts, strict=True) if c}
    mean = np.mean(rises, axis=0) if rises else np.zeros(size)
    return Transplant(by_kind, mean, float(np.mean(distances)) if distances else 0.0, len(rises))


def _summary(model: Guided, instances: Instances, segment: Segments) -> torch.Tensor:
    """y at the cut, with all of the sequence before it read: (1, d)."""
    prefix = instances.tokens[segment.row[0], : segment.cut[0]]
    return model.summary(token_tensor(prefix[None], torch.device("cpu")))
