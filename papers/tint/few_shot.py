"""Gradient steps on the exemplars of a few-shot problem: how often the label of a query is found, before and after.

One set of weights takes N steps of gradient descent on all exemplars of a problem, and then reads each query. There are three
formats:

single: Every exemplar is a sequence by itself. The loss is a sum over them. A query is read alone.
multi: The exemplars are one sequence, as many of the last as fit the model. A query is read behind them, in context.
zero: There are no exemplars. The weights take steps on the excerpt of a query, each query with weights of its own, and then
    predict the token behind it. As labels that are drawn mean nothing without exemplars, the labels are words: of each document
    the token that most distinguishes it (see `in_words`).

There are two losses: of the label tokens, or of all tokens. Without a step, `single` is the model that has seen no exemplar, and
`multi` is learning in context.

Setting: *Trainable Transformer in Transformer* (Panigrahi, Malladi, Xia, Arora 2023, arXiv:2307.01189), section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from papers.tint.adaptation import Plan, best_rate
from papers.tint.gradient_steps import logits_after, refusal_of, train
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.models.model import Model, token_tensor
from regbench.models.predictor import rows_at_once
from regbench.results import ScoreRecord
from regbench.tasks import _corpus
from regbench.tasks.classification import Classification
from regbench.tracks import Track
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError

FORMATS = ("single", "multi", "zero")
TARGETS = ("label", "all")
PLAIN, CALIBRATED, MEDIAN = "choice_accuracy", "calibrated_accuracy", "median_accuracy"
Predict = Callable[[Tensor], Tensor]
"""Tokens (N, L) to logits (N, L, V)."""


@dataclass(frozen=True)
class FewShotPlan:
    """What is asked."""

    plan: Plan  # ways, rates, layers and the most problems of a split. Its steps are not used
    steps: tuple[int, ...] = (1,)  # after how many steps the queries are read. They increase
    formats: tuple[str, ...] = ("single",)  # of `FORMATS`
    targets: tuple[str, ...] = ("label",)  # of "label" and "all"
    calibrate: bool = False  # whether the calibrated accuracies are computed too

    @property
    def chosen_by(self) -> str:
        """The accuracy that chooses the rate on validation."""
        return MEDIAN if self.calibrate else PLAIN


@dataclass(frozen=True)
class Problem:
    """One problem. E is the number of exemplars, w the tokens of one, Q the number of queries."""

    exemplars: NDArray[np.int64]  # (E, w): an excerpt, the separator and a label each
    queries: NDArray[np.int64]  # (Q, w), of the same form
    labels: NDArray[np.int64]  # (2,) the label tokens
    classes: NDArray[np.int64]  # (Q,) 0 or 1: which label is right


@dataclass(frozen=True)
class FewShotRow:
    """The queries of P problems after some steps, a mean over seeds."""

    run: str  # the name of the run
    format: str  # of `FORMATS`
    exemplars: int  # how many are used
    targets: str  # "label" or "all"; "" without a step
    way: str  # "full", "values" or "tint"; "none" without a step
    steps: int  # how many
    # by rate, the accuracy that chooses, on validation. NaN where the weights diverge. Empty for a single rate
    gains: Mapping[float, float]
    rate: float  # the rate that was chosen; 0 without a step
    values: Mapping[str, FloatArray]  # by metric (P, Q)
    before: Mapping[str, FloatArray]  # the same without a step, in the same format

    def score(self, metric: str) -> ScoreRecord:
        """The mean over queries, with its standard error over problems."""
        return _mean(self.values[metric])

    def difference(self, metric: str) -> ScoreRecord:
        """The mean change against no step in the same format, with its paired standard error over problems."""
        return _mean(self.values[metric] - self.before[metric])


def few_shot_track(track: Track) -> bool:
    """Whether a track is one of exemplars and queries."""
    return isinstance(track.task, Classification)


def on_exemplars(trained: Trained, track: Track) -> Trained:
    """A model to be asked about another track than its own. The test documents of both are the same, so none was trained on."""
    if not few_shot_track(track):
        raise UserError(f"--track takes a track of the task classification, not {track.name} ({track.definition.task})")
    own, other = trained.track.task, track.task
    if trained.track.name == track.name:
        return trained
    if not isinstance(own, _corpus.CorpusTask) or own.source_digest() != other.source_digest():
        raise UserError(
            f"{trained.folder} was trained on {trained.track.name}, whose tokens are not those of {track.name}"
        )
    return replace(trained, track=track)


def adapt_few_shot(
    models: Sequence[Trained],
    name: str,
    asked: FewShotPlan,
    split: str,
    announce: Callable[[str], None] = lambda _: None,
) -> list[FewShotRow]:
    """All formats, losses, ways and numbers of steps of one run.

    Rates are chosen on validation problems, over all seeds. A single rate is taken as it is.
    """
    validation = problems_of(models[0].track, "validation", asked.plan.limit) if asked.plan.chooses(split) else []
    problems = validation if split == "validation" else problems_of(models[0].track, split, asked.plan.limit)
    if asked.calibrate and len(problems[0].queries) < 2:
        raise UserError(f"--calibrate needs two queries or more of each problem: {models[0].track.name} has one")
    rows = []
    for layout in asked.formats:
        used = exemplars_that_fit(models[0], layout)
        before = _values(models, problems, layout, "label", "full", 0.0, (0,), asked)[0]
        still = FewShotRow(name, layout, used, "", "none", 0, {}, 0.0, before, before)
        rows.append(still)
        for targets in ("all",) if layout == "zero" else asked.targets:
            for way in asked.plan.ways:
                announce(f"{name}: format {layout}, loss of {targets}, {way}")
                rows += _adapted(models, validation, problems, replace(still, targets=targets, way=way), asked, split)
    return rows


def _adapted(
    models: Sequence[Trained],
    validation: Sequence[Problem],
    problems: Sequence[Problem],
    still: FewShotRow,
    asked: FewShotPlan,
    split: str,
) -> Iterator[FewShotRow]:
    """The row `still`, which has taken no step, after each number of steps of its loss and way."""
    name, layout, targets, way = still.run, still.format, still.targets, still.way
    rates = asked.plan.rates if asked.plan.chooses(split) else ()
    tried = {rate: _values(models, validation, layout, targets, way, rate, asked.steps, asked) for rate in rates}
    found: dict[float, dict[int, dict[str, FloatArray]]] = tried if split == "validation" else {}
    for steps in asked.steps:
        gains = {}
        for rate, each in tried.items():
            finite = np.isfinite(each[steps]["nll"]).all()
            gains[rate] = float(each[steps][asked.chosen_by].mean()) if finite else float("nan")
        otherwise = f"{name}: every rate diverges for {way} after {steps} step{'s' * (steps > 1)}"
        rate = best_rate(gains, otherwise) if tried else asked.plan.rates[0]
        if rate not in found:
            found[rate] = _values(models, problems, layout, targets, way, rate, asked.steps, asked)
        values = found[rate][steps]
        if not np.isfinite(values["nll"]).all():
            raise UserError(f"{name}: the rate {rate:g} diverges on {split} for {way}: give smaller --rates")
        yield replace(still, steps=steps, gains=gains, rate=rate, values=values)


def problems_of(track: Track, split: str, limit: int) -> list[Problem]:
    """The first problems of a split. A last problem with fewer queries than the others is left out."""
    task, instances = track.task, track.instances(split)
    assert isinstance(task, Classification)
    numbers = instances.truth["problem"]
    rows = [np.flatnonzero(numbers == number) for number in np.unique(numbers)[:limit]]
    return [_problem(task, instances, each) for each in rows if len(each) == len(rows[0])]


def exemplars_that_fit(trained: Trained, layout: str) -> int:
    if layout == "zero":
        return 0
    task, longest = trained.track.task, trained.model.io.max_length
    assert isinstance(task, Classification)
    p, least = task.parameters, 1 if layout == "single" else 2
    if least * p.width > longest:
        raise UserError(
            f"{trained.folder} reads {longest} tokens, but the format {layout} needs {least * p.width}: "
            f"an exemplar of {trained.track.name} has {p.width}"
        )
    return p.n_exemplars if layout == "single" else min(p.n_exemplars, longest // p.width - 1)


def metrics(logits: Tensor, problem: Problem, prior: Tensor | None) -> dict[str, FloatArray]:
    """The metrics of the queries of one problem, (Q,) each.

    Args:
        logits: Of the label of each query, (Q, V).
        problem: The problem.
        prior: Logits of a label without an excerpt before it, (V,). None: no calibrated accuracies.

    Returns:
        nll: Negative log likelihood of the right label among all tokens, in nats.
        label_accuracy: Whether the right label has the largest probability of all tokens.
        choice_accuracy: Whether it has the larger one of both labels.
        calibrated_accuracy: The same with each label's probability divided by that without an excerpt.
        median_accuracy: The same with the two labels' log ratio against its median over the queries of the problem.
    """
    log = logits.double().log_softmax(-1).numpy()
    right = problem.labels[problem.classes]
    ratio = log[:, problem.labels[1]] - log[:, problem.labels[0]]
    found: dict[str, FloatArray] = {
        "nll": -log[np.arange(len(right)), right],
        "label_accuracy": (log.argmax(-1) == right).astype(float),
        PLAIN: _right(ratio, problem),
    }
    if prior is not None:
        alone = prior.double().log_softmax(-1).numpy()
        found[CALIBRATED] = _right(ratio - (alone[problem.labels[1]] - alone[problem.labels[0]]), problem)
        found[MEDIAN] = _right(ratio - np.median(ratio), problem)
    return found


def _right(ratio: FloatArray, problem: Problem) -> FloatArray:
    """1 where the sign of a log ratio (Q,) chooses the right class, else 0."""
    return ((ratio > 0) == (problem.classes == 1)).astype(float)


def _problem(task: Classification, instances: Instances, rows: NDArray[np.int64]) -> Problem:
    """The problem whose queries are in these rows."""
    parts = instances.tokens[rows].astype(np.int64).reshape(len(rows), -1, task.parameters.width)
    truth = instances.truth
    labels, classes = truth["labels"][rows[0]].astype(np.int64), truth["classes"][rows, -1].astype(np.int64)
    return Problem(parts[0, :-1], parts[:, -1], labels, classes)


def _values(
    models: Sequence[Trained],
    problems: Sequence[Problem],
    layout: str,
    targets: str,
    way: str,
    rate: float,
    steps: tuple[int, ...],
    asked: FewShotPlan,
) -> dict[int, dict[str, FloatArray]]:
    """By number of steps and metric (P, Q), a mean over the models."""
    shape = len(problems), len(problems[0].queries)
    sums: dict[int, dict[str, FloatArray]] = {count: {} for count in steps}
    for trained in models:
        used = exemplars_that_fit(trained, layout)
        for number, problem in enumerate(problems):
            if layout == "zero":
                found = {count: _on_queries(trained, problem, way, rate, count, asked) for count in steps}
            else:
                learned = _learn(
                    trained.model.eval(), problem.exemplars[-used:], layout, targets, way, rate, asked.plan
                )
                found = {
                    count: _ask(predict, trained, problem, layout, used, asked.calibrate)
                    for count, predict in enumerate(islice(learned, steps[-1] + 1))
                    if count in sums
                }
            for count, own in found.items():
                for metric, each in own.items():
                    sums[count].setdefault(metric, np.zeros(shape))[number] += each / len(models)
    return sums


def in_words(problem: Problem) -> Problem:
    """The problem with labels that mean something: for each class the token whose share is most above that in the other class.

    The shares are those in the excerpts of the exemplars, which are of other places of the documents than the queries.
    """
    excerpts, first = problem.exemplars[:, :-2], problem.exemplars[:, -1] == problem.labels[0]
    shares = [np.bincount(excerpts[own].ravel(), minlength=excerpts.max() + 1) for own in (first, ~first)]
    one, two = (counts / max(counts.sum(), 1) for counts in shares)
    return replace(problem, labels=np.array([(one - two).argmax(), (two - one).argmax()]))


def _on_queries(
    trained: Trained, problem: Problem, way: str, rate: float, steps: int, asked: FewShotPlan
) -> dict[str, FloatArray]:
    """The metrics of the queries, (Q,) each, after steps on their own excerpts.

    Without an excerpt there is nothing to take a step on. So the calibration is by the weights as they are.
    """
    model = trained.model.eval()
    tokens = token_tensor(np.pad(problem.queries[:, :-2], ((0, 0), (0, 1))))  # any token in the place of the label
    counted = (torch.arange(tokens.shape[1]) < tokens.shape[1] - 1).expand(tokens.shape)
    size, rates = len(tokens) if refusal_of(model) is None else 1, (0.0, rate) if steps else (0.0,)
    with torch.no_grad():
        parts = [
            [
                logits[:, [0, -1]]
                for logits in logits_after(model, own, seen, rates, way, max(steps, 1), asked.plan.layers)
            ]
            for own, seen in zip(tokens.split(size), counted.split(size), strict=True)
        ]
    prior, after = parts[0][0][0, 0], torch.cat([part[-1][:, -1] for part in parts])
    return metrics(after, in_words(problem), prior if asked.calibrate else None)


def _learn(
    model: Model, exemplars: NDArray[np.int64], layout: str, targets: str, way: str, rate: float, plan: Plan
) -> Iterator[Predict]:
    """What the model predicts after 0, 1, 2, ... steps on exemplars (E, w), without end."""
    rows = exemplars if layout == "single" else exemplars.reshape(1, -1)
    tokens = token_tensor(rows)
    width = exemplars.shape[1]
    is_label = torch.arange(tokens.shape[1]) % width == width - 1
    counted = (is_label if targets == "label" else torch.ones_like(is_label)).expand(tokens.shape)
    return train(model, tokens, counted, rate, way, plan.layers)


def _ask(
    predict: Predict, trained: Trained, problem: Problem, layout: str, used: int, calibrate: bool
) -> dict[str, FloatArray]:
    """The metrics of the queries, (Q,) each."""
    before = problem.exemplars[-used:].reshape(1, -1) if layout == "multi" else np.empty((1, 0), np.int64)

    def last(ends: NDArray[np.int64]) -> Tensor:
        """The logits (N, V) of the last token of sequences that end so, (N, w)."""
        rows = np.concatenate([np.repeat(before, len(ends), 0), ends], 1)
        size = rows_at_once(trained.model.io, rows.shape[1], len(rows))
        parts = [token_tensor(rows[i : i + size]) for i in range(0, len(rows), size)]
        with torch.no_grad():
            return torch.cat([predict(part)[:, -1] for part in parts])

    # Without an excerpt: the separator, and any token in the place of the label.
    prior = last(problem.queries[:1, -2:])[0] if calibrate else None
    return metrics(last(problem.queries), problem, prior)


def _mean(values: FloatArray) -> ScoreRecord:
    """The mean of (P, Q), with its standard error over problems."""
    return ScoreRecord.of(values.sum(1), np.full(len(values), values.shape[1], np.int64))
