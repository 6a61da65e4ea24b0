"""The summary y itself: how fast it changes, and how similar it is between positions and between texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from architectures.cgt.slow import SlowModel
from papers.cgt.linear_probe import require_scikit_learn
from papers.cgt.segments import Segments, windows
from regbench.data.instances import Instances
from regbench.models.model import token_tensor
from regbench.utils.arrays import FloatArray

PERPLEXITY = 15.0
"""Of t-SNE."""
SPECTRA = 256
"""A spectrum is a mean over at most this many instances (2024, Fig. 15a)."""
SLOW = 3
"""Harmonics up to this one count as slow."""
SMOOTHED = 8
"""Positions of the moving mean that is taken off for the fast part of y."""
UNUSED = 0.01
"""Nats a token. A component whose divergence is above its minimum by less says nothing."""


@torch.no_grad()
def contexts(model: SlowModel, tokens: NDArray[Any], batch_size: int = 32) -> FloatArray:
    """The summary y at every position, (N, L) -> (N, L, d) float64."""
    parts = [
        model.context(token_tensor(tokens[i : i + batch_size])).double().numpy()
        for i in range(0, len(tokens), batch_size)
    ]
    return np.concatenate(parts)


def variation(y: FloatArray, segments: Segments) -> float:
    """The variation of y after the prompts, per token: the mean of |z_t - z_{t-1}| over cut < t < end (CGT Eq. 4).

    z is y minus its mean over all positions of all segments, divided by the root of its mean squared distance from that mean. The
    text of the paper has lost the formula. It says "the total variation of y" over the last two examples, "normalized across all
    examples". The total variation of a segment is this mean times the number of steps.
    """
    steps, late = step_lengths(y, segments)
    return float(steps[late].mean())


def step_lengths(y: FloatArray, segments: Segments) -> tuple[FloatArray, NDArray[np.bool_]]:
    """|z_t - z_{t-1}| of `variation` for all positions of each segment but its first.

    Returns:
        The lengths of the steps, (S, W), and which of them are after the prompt, (S, W) bool.
    """
    index, inside = windows(segments.start, segments.end)
    own = y[segments.row[:, None], index]
    z = own - own[inside].mean(0)
    z /= np.sqrt((z[inside] ** 2).sum(-1).mean()) or 1.0  # 0 for a constant y
    steps = np.linalg.norm(np.diff(z, axis=1), axis=-1)
    return steps, inside[:, 1:] & (index[:, :-1] >= segments.cut[:, None])


def variation_by_example(y: FloatArray, segments: Segments, progress: NDArray[np.integer]) -> dict[int, float]:
    """The mean of |z_t - z_{t-1}| of `variation` within each example, by the number of examples before it."""
    steps, _ = step_lengths(y, segments)
    index, inside = windows(segments.start, segments.end)
    example = progress[segments.row[:, None], index]
    within = inside[:, 1:] & (example[:, 1:] == example[:, :-1])
    return {int(n): float(steps[within & (example[:, 1:] == n)].mean()) for n in np.unique(example[:, 1:][within])}


def fast_part(y: FloatArray) -> FloatArray:
    """What is left of y without its mean over a position and the 7 before it: (N, L, d) -> (N, L, d)."""
    sums = np.concatenate([np.zeros_like(y[:, :1]), y.cumsum(1)], axis=1)
    end = np.arange(1, y.shape[1] + 1)
    begin = np.maximum(end - SMOOTHED, 0)
    return y - (sums[:, end] - sums[:, begin]) / (end - begin)[:, None]


@dataclass(frozen=True)
class Spectrum:
    """How the power of y is shared among the harmonics of an instance (2024, Fig. 15a)."""

    power: FloatArray  # shares of the harmonics 1 .. L // 2, (K,). Harmonic k has k periods in an instance
    slow: float  # share of the first three
    peak: int  # the harmonic with the largest share
    # share of the multiples of the number of contexts. None: there is one, or they change at other places in other instances
    at_contexts: float | None


def spectrum(y: FloatArray, instances: Instances, segments: Segments) -> Spectrum | str:
    """The spectrum of y, a mean over components and instances, or a line that says why there is none.

    Each component has its mean over the instance taken off. So a constant y has no spectrum. Instances must have one length.
    """
    lengths = instances.lengths[:SPECTRA]
    if not (lengths == lengths[0]).all():
        return "left out: the instances have different lengths"
    own = y[:SPECTRA, : lengths[0]]
    found = (np.abs(np.fft.rfft(own - own.mean(1, keepdims=True), axis=1)) ** 2).mean((0, 2))[1:]
    total = float(found.sum())
    if not total > 1e-12 * float((own**2).sum(1).mean()):
        return "left out: y is constant"
    power = found / total
    contexts_ = segments.per_row
    periodic = contexts_ > 1 and len(set(zip(segments.number, segments.start, strict=True))) == contexts_
    share = float(power[contexts_ - 1 :: contexts_].sum()) if periodic else None
    return Spectrum(power, float(power[:SLOW].sum()), int(power.argmax()) + 1, share)


@dataclass(frozen=True)
class Encoder:
    """The distribution of y in the VAE form."""

    spread: float  # mean standard deviation of y, as a share of the prior's
    divergence: float  # from the prior, in nats a token, summed over components
    least: float  # the smallest that an encoder with independent positions can have (2024, section 3.3)
    unused: float  # share of components whose divergence is above their minimum by less than 0.01 nats a token


@torch.no_grad()
def encoder(model: Any, instances: Instances, batch_size: int = 32) -> Encoder | None:
    """What the encoder of y says. None if y is no sample."""
    encode = getattr(model, "encode", None)
    if encode is None or encode(token_tensor(instances.tokens[:1])) is None:
        return None
    nats: list[Any] = []
    spread = positions = 0.0
    for i in range(0, len(instances), batch_size):
        part = instances[i : i + batch_size]
        lengths = torch.from_numpy(np.asarray(part.lengths, np.int64))
        mean, log_variance = encode(token_tensor(part.tokens))
        nats.append(model.prior.by_component(mean, log_variance, lengths).sum(0).double().numpy())
        real = torch.arange(mean.shape[1]) < lengths[:, None]
        share = (log_variance / 2).exp().mean(-1) / model.prior.deviation[: mean.shape[1]]
        spread += float(share[real].sum())
        positions += int(lengths.sum())
    each = np.sum(nats, axis=0) / positions
    every = torch.from_numpy(np.asarray(instances.lengths, np.int64))
    least = float(model.prior.least(every).sum()) / positions
    return Encoder(spread / positions, float(each.sum()), least * len(each), float((each - least < UNUSED).mean()))


def dot_products(y: FloatArray) -> FloatArray:
    """The mean over instances of n_i . n_j, n = y / |y| (CGT Figure 4; 2024, Figure 3): (N, L, d) -> (L, L)."""
    n = y / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-12)
    return np.einsum("bid,bjd->ij", n, n, optimize=True) / len(n)


@dataclass(frozen=True)
class Neighbours:
    """The text nearest to each text, by the angle between their mean y. Texts of the same document do not count."""

    same: float  # share of texts whose nearest has the same topic
    chance: float  # this share if the nearest text were drawn at random
    documents: int  # number of documents


@dataclass(frozen=True)
class Documents:
    """T texts, each read on its own."""

    means: FloatArray  # the mean of y over each text, (T, d)
    topics: NDArray[np.int64]  # its topic, (T,)
    document: NDArray[np.int64]  # its document, (T,)

    def neighbours(self) -> Neighbours | None:
        """The nearest texts. None if all texts are of one document."""
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


def documents(model: SlowModel, instances: Instances, segments: Segments, topics: int = 8) -> Documents | None:
    """Means of y over texts with topics. None if the truth has no "topic".

    If it has one for each instance, (N,), each instance is a text. If it has several, (N, E), the texts of an instance are read
    on their own, and only the most frequent topics are used. Without a "document" in the truth each text is one.
    """
    if "topic" not in instances.truth:
        return None
    topic = np.asarray(instances.truth["topic"], dtype=np.int64)
    alone = np.arange(topic.size).reshape(topic.shape)
    document = np.asarray(instances.truth.get("document", alone), dtype=np.int64)
    if topic.ndim == 2:
        return _halves(model, instances, segments, topic, document, topics)
    y = contexts(model, instances.tokens)
    means = [row[: max(1, length)].mean(0) for row, length in zip(y, instances.lengths, strict=True)]
    return Documents(np.array(means), topic, document)


def _halves(
    model: SlowModel,
    instances: Instances,
    segments: Segments,
    topic: NDArray[np.int64],
    document: NDArray[np.int64],
    topics: int,
) -> Documents:
    """The texts of each instance, between its cuts, if they are of one of the most frequent topics (N, E)."""
    last = segments[segments.number == segments.per_row - 1]  # its part after the cut is the last text
    row = np.concatenate([segments.row, last.row])
    begin, end = np.concatenate([segments.start, last.cut]), np.concatenate([segments.cut, last.end])
    place = np.concatenate([segments.number, last.number + 1])
    number, source = (each[row, place] for each in (topic, document))
    kinds, counts = np.unique(number, return_counts=True)
    chosen = np.isin(number, kinds[np.argsort(-counts, kind="stable")[:topics]])
    row, begin, end = row[chosen], begin[chosen], end[chosen]
    index, inside = windows(begin, end)
    y = contexts(model, instances.tokens[row[:, None], index])  # padding is after the text, and y is causal
    means = (y * inside[..., None]).sum(1) / inside.sum(1)[:, None]
    return Documents(means, number[chosen], source[chosen])


def tsne(points: FloatArray) -> FloatArray:
    """Points in the plane by t-SNE (van der Maaten and Hinton 2008), the same in every call: (N, d) -> (N, 2).

    The perplexity is 15, or (N - 1) / 3 if that is smaller. N is at least 4.
    """
    require_scikit_learn()
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    places: FloatArray = TSNE(perplexity=perplexity, init="random", method="exact", random_state=0).fit_transform(
        points
    )
    return places
