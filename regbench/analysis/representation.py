"""What y looks like: how much it varies, how alike it is between positions, which texts it holds alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regbench.analysis.guided import Guided
from regbench.analysis.segments import Segments, windows
from regbench.data.instances import Instances
from regbench.models.model import token_tensor
from regbench.utils.arrays import FloatArray


@torch.no_grad()
def contexts(model: Guided, tokens: NDArray[Any], batch_size: int = 32) -> FloatArray:
    """y of every position, (N, L) -> (N, L, d) float64."""
    parts = [
        model.context(token_tensor(tokens[i : i + batch_size], torch.device("cpu"))).double().numpy()
        for i in range(0, len(tokens), batch_size)
    ]
    return np.concatenate(parts)


def variation(y: FloatArray, segments: Segments) -> float:
    """How far y travels behind the cut, a token: (N, L, d) -> the mean of |z_t - z_{t-1}| over cut < t < end. CGT Eq. 4.

    z is y with its mean over all positions of all stretches taken away, divided by the root of its mean squared distance from
    it. The formula is missing from the paper's text; what is around it says "the total variation of y" over the last two
    examples, "normalized across all examples". The sum over a stretch is this times the number of its steps.
    """
    steps, late = travelled(y, segments)
    return float(steps[late].mean())


def travelled(y: FloatArray, segments: Segments) -> tuple[FloatArray, NDArray[np.bool_]]:
    """|z_t - z_{t-1}| of `variation`, (S, W), for the positions of each stretch but its first; which are behind the cut."""
    index, inside = windows(segments.start, segments.end)
    own = y[segments.row[:, None], index]
    z = own - own[inside].mean(0)
    z /= np.sqrt((z[inside] ** 2).sum(-1).mean()) or 1.0  # a y that stands still has no spread
    steps = np.linalg.norm(np.diff(z, axis=1), axis=-1)
    return steps, inside[:, 1:] & (index[:, :-1] >= segments.cut[:, None])


def dot_products(y: FloatArray) -> FloatArray:
    """The mean over instances of n_i . n_j, n = y / |y|: (N, L, d) -> (L, L). CGT Figure 4; 2024, Figure 3."""
    n = y / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-12)
    return np.einsum("bid,bjd->ij", n, n, optimize=True) / len(n)


@dataclass(frozen=True)
class Neighbours:
    """Whether the text nearest to each, by the angle between means of y, is of its topic; those of its own document do not count.

    same: the share of texts for which it is.  chance: that share if any other text were as near.  documents: that there are.
    """

    same: float
    chance: float
    documents: int


@dataclass(frozen=True)
class Documents:
    """Texts read afresh: the mean of y over each, (T, d), which topic it is of, (T,), and a window of which document, (T,)."""

    means: FloatArray
    topics: NDArray[np.int64]
    document: NDArray[np.int64]

    def neighbours(self) -> Neighbours | None:
        """Of the texts that have texts of other documents beside them; None where there is no such text."""
        others = self.document[:, None] != self.document
        has = others.any(1)
        if not has.any():
            return None
        n = self.means / np.maximum(np.linalg.norm(self.means, axis=1, keepdims=True), 1e-12)
        nearest = np.where(others, n @ n.T, -np.inf).argmax(1)
        same = self.topics[:, None] == self.topics
        chance = (same & others).sum(1)[has] / others.sum(1)[has]
        found = same[np.arange(len(n)), nearest][has]
        return Neighbours(float(found.mean()), float(chance.mean()), len(np.unique(self.document)))


def documents(model: Guided, instances: Instances, segments: Segments, topics: int = 8, pieces: int = 8) -> Documents:
    """Means of y over texts with topics.

    Where the truth has a whole number for each instance called "topic", an instance is a document; where it has two, (N, 2), the
    two texts of an instance are, each read as if it stood alone, and only those of the most frequent `topics` are taken. Else the
    longest stretches are topics, and pieces of equal length cut from one of them are documents of that topic, each read alone.
    A truth called "document", of the same shape, tells which texts are of one document; else each is of its own.
    """
    labels: Mapping[str, Any] = instances.truth
    if "topic" in labels:
        topic = np.asarray(labels["topic"], dtype=np.int64)
        document = np.asarray(labels.get("document", np.arange(topic.size).reshape(topic.shape)), dtype=np.int64)
        if topic.ndim == 2:
            return _halves(model, instances, segments, topic, document, topics)
        y = contexts(model, instances.tokens)
        means = [row[: max(1, length)].mean(0) for row, length in zip(y, instances.lengths, strict=True)]
        return Documents(np.array(means), topic, document)
    chosen = np.argsort(segments.start - segments.end, kind="stable")[:topics]
    texts, numbers = [], []
    for number, k in enumerate(np.sort(chosen)):
        length = max(1, int(segments.end[k] - segments.start[k]) // pieces)
        for i in range(pieces):
            begin = int(segments.start[k]) + i * length
            texts.append(
                contexts(model, instances.tokens[segments.row[k] : segments.row[k] + 1, begin : begin + length])
            )
            numbers.append(number)
    means = [y[0, 1:].mean(0) if y.shape[1] > 1 else y[0, 0] for y in texts]
    return Documents(np.array(means), np.array(numbers), np.arange(len(texts)))


def _halves(
    model: Guided,
    instances: Instances,
    segments: Segments,
    topic: NDArray[np.int64],
    document: NDArray[np.int64],
    topics: int,
) -> Documents:
    """The two texts of each stretch, before its cut and behind it, that are of one of the most frequent topics (N, 2)."""
    row = np.tile(segments.row, 2)
    begin, end = np.concatenate([segments.start, segments.cut]), np.concatenate([segments.cut, segments.end])
    number, source = (each[segments.row].T.reshape(-1) for each in (topic, document))
    kinds, counts = np.unique(number, return_counts=True)
    chosen = np.isin(number, kinds[np.argsort(-counts, kind="stable")[:topics]])
    row, begin, end = row[chosen], begin[chosen], end[chosen]
    index, inside = windows(begin, end)
    y = contexts(model, instances.tokens[row[:, None], index])  # what is padded is behind the text, and y looks back
    means = (y * inside[..., None]).sum(1) / inside.sum(1)[:, None]
    return Documents(means, number[chosen], source[chosen])
