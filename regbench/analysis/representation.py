"""What y looks like: how much it varies, what can be read from it, where it moves, which texts it holds alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regbench.analysis.guided import Guided
from regbench.analysis.segments import Segments, windows
from regbench.data import Instances
from regbench.models.model import token_tensor
from regbench.predictor import FloatArray, IntArray

AVERAGED = 4
"""Over so many positions y is averaged before a and b are read from it (2024, section 4.2, "Predicting the task from y")."""


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
    z /= np.sqrt((z[inside] ** 2).sum(-1).mean())
    steps = np.linalg.norm(np.diff(z, axis=1), axis=-1)
    return steps, inside[:, 1:] & (index[:, :-1] >= segments.cut[:, None])


@dataclass(frozen=True)
class LinearFit:
    """How well a linear map of y says what is hidden: on stretches it was not fitted to. In standard deviations of the target.

    names: K targets.  true, said: (T, K), normalised.  error: (K,) mean absolute error.  explained: (K,) R^2.  row: (T,) of
    which instance each stretch is.
    """

    names: list[str]
    true: FloatArray
    said: FloatArray
    error: FloatArray
    explained: FloatArray
    row: IntArray


def hidden_targets(instances: Instances, segments: Segments) -> tuple[list[str], FloatArray] | None:
    """The real numbers behind each stretch that the task's truth tells, (S, K) with their names; None where it tells none.

    A truth of one row for each stretch, as the a and b of `arithmetic`, is taken apart by stretch; another, as the matrix of
    `linear_regression`, belongs to the whole instance.
    """
    for name, values in instances.truth.items():
        if not np.issubdtype(values.dtype, np.floating):
            continue
        if values.ndim == 3 and segments.per_row > 1 and values.shape[1] == segments.per_row:
            chosen = values[segments.row, segments.number]
        else:
            chosen = values.reshape(len(values), -1)[segments.row]
        names = ["a", "b"] if name == "coefficients" else [f"{name}[{k}]" for k in range(chosen.shape[1])]
        return names, chosen.astype(np.float64)
    return None


def linear_fit(y: FloatArray, segments: Segments, names: list[str], targets: FloatArray, seed: int = 0) -> LinearFit:
    """Least squares from y, averaged over 4 positions at a random place behind the cut, to normalised targets (S, K).

    Fitted to the stretches of one half of the instances, measured on the other. 2024, section 4.2; CGT Table 1's last row.
    """
    generator = np.random.default_rng(seed)
    last = np.maximum(segments.end - AVERAGED, segments.cut)
    places = segments.cut + (generator.random(len(segments)) * (last - segments.cut + 1)).astype(np.int64)
    index = np.minimum(places[:, None] + np.arange(AVERAGED), segments.end[:, None] - 1)
    seen = y[segments.row[:, None], index].mean(1)
    seen = np.concatenate([seen, np.ones((len(seen), 1))], axis=1)
    wanted = (targets - targets.mean(0)) / np.maximum(targets.std(0), 1e-12)
    fitted = np.isin(segments.row, generator.permutation(np.unique(segments.row))[::2])
    weights = np.linalg.lstsq(seen[fitted], wanted[fitted], rcond=None)[0]
    true, said = wanted[~fitted], seen[~fitted] @ weights
    left = ((true - said) ** 2).sum(0) / np.maximum(((true - true.mean(0)) ** 2).sum(0), 1e-12)
    return LinearFit(names, true, said, np.abs(true - said).mean(0), 1.0 - left, segments.row[~fitted])


def dot_products(y: FloatArray) -> FloatArray:
    """The mean over instances of n_i . n_j, n = y / |y|: (N, L, d) -> (L, L). CGT Figure 4; 2024, Figure 3."""
    n = y / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-12)
    return np.einsum("bid,bjd->ij", n, n, optimize=True) / len(n)


def tokens_until_moved(y: FloatArray, before: int, boundary: int, end: int) -> int | None:
    """How many tokens of a new context are read until y is past the middle between its old place and its new: (L, d) -> 1, ...

    A context of tokens before..boundary is followed by one of boundary..end. The places are the means of y over the last quarter
    of each; y counts as past the middle where its mean over 4 positions, projected on the line between the places, is. None where
    it never is.
    """
    old = _settled(y[before + 1 : boundary + 1])
    new = _settled(y[boundary + 1 : end])
    along = (y[boundary - AVERAGED + 2 : end] - old) @ (new - old)
    smooth = np.convolve(along, np.full(AVERAGED, 1 / AVERAGED), mode="valid")
    past = np.flatnonzero(smooth > ((new - old) ** 2).sum() / 2)
    return int(past[0]) + 1 if len(past) else None


def _settled(y: FloatArray) -> FloatArray:
    """The mean over the last quarter of some positions, (L, d) -> (d,)."""
    place: FloatArray = y[-max(1, len(y) // 4) :].mean(0)
    return place


def joined(
    instances: Instances, segments: Segments, longest: int, pairs: int
) -> tuple[NDArray[Any], list[int], list[int]]:
    """Texts of two contexts: what is before the cut of one stretch, then another's from its start: (P, L), boundaries, ends.

    For tasks whose instances have one context each. The second text is cut to `longest` tokens in all.
    """
    rows, boundaries, ends = [], [], []
    for i in range(min(pairs, len(segments) // 2)):
        a, b = segments[2 * i : 2 * i + 1], segments[2 * i + 1 : 2 * i + 2]
        first = instances.tokens[a.row[0], a.start[0] : a.cut[0]]
        second = instances.tokens[b.row[0], b.start[0] : b.end[0]][: longest - len(first)]
        if len(second) < 8:
            continue
        rows.append(np.concatenate([first, second]))
        boundaries.append(len(first))
        ends.append(len(rows[-1]))
    width = max(map(len, rows), default=0)
    padded = [np.concatenate([row, np.repeat(row[-1:], width - len(row), axis=0)]) for row in rows]
    return np.array(padded), boundaries, ends


@dataclass(frozen=True)
class Documents:
    """Texts read afresh: the mean of y over each, (T, d), and which topic it is of, (T,)."""

    means: FloatArray
    topics: NDArray[np.int64]

    def same_topic_neighbours(self) -> tuple[float, float]:
        """The share of documents whose nearest other, by the angle between means, is of their topic; and the share by chance."""
        n = self.means / np.maximum(np.linalg.norm(self.means, axis=1, keepdims=True), 1e-12)
        near = n @ n.T
        np.fill_diagonal(near, -np.inf)
        same = self.topics[:, None] == self.topics
        chance = (same.sum(1) - 1) / max(1, len(self.topics) - 1)
        return float(same[np.arange(len(n)), near.argmax(1)].mean()), float(chance.mean())


def documents(model: Guided, instances: Instances, segments: Segments, topics: int = 8, pieces: int = 8) -> Documents:
    """Means of y over texts with topics.

    Where the truth has a whole number for each instance called "topic", an instance is a document; where it has two, (N, 2), the
    two texts of an instance are, each read as if it stood alone, and only those of the most frequent `topics` are taken. Else the
    longest stretches are topics, and pieces of equal length cut from one of them are documents of that topic, each read alone.
    """
    labels: Mapping[str, Any] = instances.truth
    if "topic" in labels and labels["topic"].ndim == 2:
        return _halves(model, instances, segments, np.asarray(labels["topic"], dtype=np.int64), topics)
    if "topic" in labels:
        y = contexts(model, instances.tokens)
        means = [row[: max(1, length)].mean(0) for row, length in zip(y, instances.lengths, strict=True)]
        return Documents(np.array(means), np.asarray(labels["topic"], dtype=np.int64))
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
    return Documents(np.array([y[0, 1:].mean(0) if y.shape[1] > 1 else y[0, 0] for y in texts]), np.array(numbers))


def _halves(
    model: Guided, instances: Instances, segments: Segments, topic: NDArray[np.int64], topics: int
) -> Documents:
    """The two texts of each stretch, before its cut and behind it, that are of one of the most frequent topics (N, 2)."""
    row = np.tile(segments.row, 2)
    begin, end = np.concatenate([segments.start, segments.cut]), np.concatenate([segments.cut, segments.end])
    number = topic[segments.row].T.reshape(-1)
    kinds, counts = np.unique(number, return_counts=True)
    chosen = np.isin(number, kinds[np.argsort(-counts, kind="stable")[:topics]])
    row, begin, end, number = row[chosen], begin[chosen], end[chosen], number[chosen]
    index, inside = windows(begin, end)
    y = contexts(model, instances.tokens[row[:, None], index])  # what is padded is behind the text, and y looks back
    means = (y * inside[..., None]).sum(1) / inside.sum(1)[:, None]
    return Documents(means, number)
