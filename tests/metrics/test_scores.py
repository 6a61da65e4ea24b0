"""Metrics against hand-worked examples, errors against a bootstrap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from regbench.data.instances import Instances
from regbench.metrics.metric import (
    METRICS,
    NLL_FLOOR,
    Metric,
    Rows,
    TokenPrediction,
    computed,
    metrics_of,
    metrics_told,
    score_positions,
)
from regbench.metrics.scores import Scores, bin_width, check_distributions, score
from regbench.results import BaselineRecord, ScoreRecord, normalized_scores
from regbench.tasks.base import Parameters, Splits, Task, TokenIO
from regbench.tracks import Track
from regbench.utils import registry
from regbench.utils.errors import UserError


class Halves(Task):
    """Tokens 0 and 1, all certain; the second half of an instance is a group, and progress is in thirds."""

    Parameters = Parameters
    version, main_score = 1, "late_accuracy"
    scores = ("token_accuracy", "late_accuracy")
    group_scores = {"late_accuracy": ("token_accuracy", "late")}  # noqa: RUF012
    progress_label = "thirds"
    io = TokenIO(vocab_size=2, separator=1, max_length=6, names=("0", "1"))

    def generate(self, splits: Splits, split: str) -> Instances:
        tokens = np.random.default_rng(0).integers(0, 2, (splits.size(split), 6)).astype(np.uint8)
        return Instances(tokens, np.full(len(tokens), 6, np.int32), np.arange(6) % 5 != tokens[:, :1], "halves/1")

    def truth(self, instances: Instances) -> np.ndarray:
        return np.eye(2)[instances.tokens]

    def identities(self, instances: Instances) -> list[bytes]:
        return [row.tobytes() for row in instances.tokens]

    def groups(self, instances: Instances) -> dict[str, np.ndarray]:
        return {"late": np.broadcast_to(np.arange(6) >= 3, instances.tokens.shape)}

    def progress(self, instances: Instances) -> np.ndarray:
        return np.broadcast_to(np.arange(6) // 2, instances.tokens.shape)


def test_metrics_of_one_position_by_hand() -> None:
    truth = np.array([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    predicted = np.array([[[0.2, 0.7, 0.1], [0.3, 0.3, 0.4], [1.0, 0.0, 0.0]]])
    tokens = np.array([[0, 0, 2]])
    got = score_positions(predicted, truth, tokens)
    np.testing.assert_array_equal(got["legal_accuracy"], [[1, 0, 0]])  # argmax 1 is legal; 2 is not; 0 is not
    np.testing.assert_array_equal(got["token_accuracy"], [[0, 0, 0]])
    np.testing.assert_allclose(got["tvd"], [[0.3, 0.7, 1.0]])
    np.testing.assert_allclose(got["nll"], [[-np.log(0.2), -np.log(0.3), -np.log(NLL_FLOOR)]])


def test_the_first_of_equal_maxima_counts() -> None:
    got = score_positions(np.array([[[0.5, 0.5]]]), np.array([[[1.0, 0.0]]]), np.array([[1]]))
    assert got["legal_accuracy"].item() == 1
    assert got["token_accuracy"].item() == 0


def test_the_truth_scores_exactly_one_and_zero(tiny: Track) -> None:
    test = tiny.instances("test")
    truth = tiny.task.truth(test)
    truth[~test.scored] = 1 / truth.shape[-1]
    scores = score(tiny.task, test, [truth])
    assert scores["legal_accuracy"].value == 1.0
    assert scores["tvd"].value == 0.0
    assert scores["legal_accuracy"].stderr == 0.0


def test_only_scored_positions_count(tiny: Track) -> None:
    """Any change elsewhere leaves every score as it is; one at a scored position does not."""
    test = tiny.instances("test")
    rng = np.random.default_rng(0)
    predicted = rng.dirichlet(np.ones(tiny.task.io.vocab_size), test.tokens.shape)
    base = score(tiny.task, test, [predicted]).table()
    changed = predicted.copy()
    changed[~test.scored] = np.eye(tiny.task.io.vocab_size)[0]
    assert score(tiny.task, test, [changed]).table() == base
    changed[test.scored] = np.eye(tiny.task.io.vocab_size)[0]
    assert score(tiny.task, test, [changed]).table() != base


def test_standard_error_agrees_with_a_bootstrap_over_instances() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(50, 200, 400)
    quality = rng.normal(0.7, 0.1, 400)
    sums = quality * counts
    scores = Scores({"m": sums}, counts, {"m": np.zeros(1)}, np.zeros(1, int))
    draws = rng.integers(0, 400, (4000, 400))
    bootstrap = (sums[draws].sum(1) / counts[draws].sum(1)).std()
    assert scores["m"].stderr == pytest.approx(bootstrap, rel=0.08)


def test_curve_averages_over_what_is_scored() -> None:
    by_position = np.array([0.0, 2.0, 1.0, 0.0, 3.0, 0.0, 0.0, 0.0])
    counts = np.array([0, 4, 2, 0, 4, 0, 0, 0])
    scores = Scores({"m": np.array([6.0])}, np.array([10]), {"m": by_position}, counts)
    position, value, count = scores.curve("m", 4)
    np.testing.assert_allclose(position, [(4 * 1 + 2 * 2) / 6, 4.0])
    np.testing.assert_allclose(value, [0.5, 0.75])
    np.testing.assert_array_equal(count, [6, 4])


@pytest.mark.parametrize(("length", "width"), [(1, 4), (195, 4), (256, 4), (257, 8), (700, 16), (1024, 16)])
def test_bin_width(length: int, width: int) -> None:
    assert bin_width(length) == width


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda p: p[:, :, :-1], r"have the shape \(2, 3, 3\), not \(2, 3, 4\)"),
        (lambda p: np.where(p > 0.24, np.nan, p), "NaN"),
        (lambda p: p * 1.002, "must sum to 1; one is off by 0.002"),
        (lambda p: p + np.array([0.5, -0.5, 0, 0]), "negative"),
    ],
)
def test_what_is_no_distribution_is_refused(fault: object, message: str) -> None:
    good = np.full((2, 3, 4), 0.25)
    check_distributions(good, (2, 3, 4))
    with pytest.raises(UserError, match=message):
        check_distributions(fault(good), (2, 3, 4))  # type: ignore[operator]


def test_too_few_predictions_are_refused(tiny: Track) -> None:
    test = tiny.instances("test")
    with pytest.raises(UserError, match="0 predictions for 24 instances"):
        score(tiny.task, test, iter(list[Instances]()))  # type: ignore[arg-type]


def test_normalized_scores_need_both_ends() -> None:
    def baseline(value: float, anchor: Literal["start", "end"] | None) -> BaselineRecord:
        record = ScoreRecord(value=value, stderr=0.0)
        return BaselineRecord(scores={"tvd": record}, curves={}, options={}, seconds=0.0, anchor=anchor)

    scores = {"tvd": ScoreRecord(value=0.3, stderr=0.0)}
    ends = {"unigram": baseline(0.6, "start"), "2-gram": baseline(0.5, None), "oracle": baseline(0.0, "end")}
    assert normalized_scores(scores, ends) == {"tvd": pytest.approx(0.5)}
    assert normalized_scores(scores, {**ends, "unigram": baseline(0.0, "start")}) == {"tvd": 0.0}
    for name in ("unigram", "oracle"):
        assert normalized_scores(scores, {n: b for n, b in ends.items() if n != name}) == {}


def test_metrics_of_vectors_by_hand() -> None:
    rows = Rows(np.array([[[0.0, 4.0]]]), np.array([[[1.0, 2.0]]]), truth=np.array([[[1.0, 0.0]]]))
    got = computed(rows)
    np.testing.assert_array_equal(got["mse"], [[2.5]])
    np.testing.assert_array_equal(got["truth_mse"], [[2.0]])


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_a_score_over_a_group_and_the_curve_by_progress(batch: int) -> None:
    """Against the plain means over what is scored, in the group, and at the step."""
    task = Halves(None)
    instances = task.generate(Splits(1, 1, 40, 0), "test")
    predicted = np.random.default_rng(1).dirichlet(np.ones(2), instances.tokens.shape)
    scores = score(task, instances, [predicted[i : i + batch] for i in range(0, 40, batch)])
    right = predicted.argmax(-1) == instances.tokens
    late = instances.scored & (np.arange(6) >= 3)
    assert scores["token_accuracy"].value == pytest.approx(right[instances.scored].mean())
    assert scores["late_accuracy"].value == pytest.approx(right[late].mean())
    np.testing.assert_array_equal(scores.counts_of("late_accuracy"), late.sum(1))
    np.testing.assert_array_equal(scores.counts_of("token_accuracy"), instances.scored.sum(1))
    for metric, mask in (("token_accuracy", instances.scored), ("late_accuracy", late)):
        steps, values, counts = scores.steps[metric].curve()
        at = [mask[:, 2 * k : 2 * k + 2] for k in range(3)]
        assert steps.tolist() == [k for k in range(3) if at[k].any()]
        assert counts.tolist() == [m.sum() for m in at if m.any()]
        for k, value in zip(steps.astype(int), values, strict=True):
            assert value.value == pytest.approx(right[:, 2 * k : 2 * k + 2][at[k]].mean())
    position, value, count = scores.curve("late_accuracy", 4)
    np.testing.assert_array_equal(count, [late[:, :4].sum(), late[:, 4:].sum()])
    np.testing.assert_allclose(value, [right[:, 3][late[:, 3]].mean(), right[:, 4:][late[:, 4:]].mean()])
    assert position[0] == 3


class Far(Halves):
    """Progress from far below 0, over 200 steps."""

    progress_label = "tokens"
    io = TokenIO(vocab_size=2, separator=1, max_length=230, names=("0", "1"))

    def generate(self, splits: Splits, split: str) -> Instances:
        n = splits.size(split)
        rng = np.random.default_rng(0)
        tokens, begin = rng.integers(0, 2, (n, 230)).astype(np.uint8), rng.integers(10, 60, n).astype(np.int32)
        return Instances(tokens, np.full(n, 230, np.int32), rng.random(tokens.shape) < 0.7, "far/1", {"begin": begin})

    def groups(self, instances: Instances) -> dict[str, np.ndarray]:
        return {"late": np.broadcast_to(np.arange(230) >= 100, instances.tokens.shape)}

    def progress(self, instances: Instances) -> np.ndarray:
        return np.arange(230) - instances.truth["begin"][:, None]


def test_steps_below_zero_are_in_no_curve_and_many_steps_are_binned() -> None:
    """Each bin's value is the plain mean over its positions, its step their mean step."""
    task = Far(None)
    instances = task.generate(Splits(1, 1, 30, 0), "test")
    predicted = np.random.default_rng(1).dirichlet(np.ones(2), instances.tokens.shape)
    scores = score(task, instances, [predicted[:11], predicted[11:]])
    right, steps = predicted.argmax(-1) == instances.tokens, task.progress(instances)
    assert scores["token_accuracy"].value == pytest.approx(right[instances.scored].mean())  # below zero still counts
    for metric, mask in (
        ("token_accuracy", instances.scored),
        ("late_accuracy", instances.scored & (np.arange(230) >= 100)),
    ):
        at, values, counts = scores.steps[metric].curve()
        assert len(at) <= 64
        assert counts.sum() == (mask & (steps >= 0)).sum()
        width = bin_width(int(steps.max()) + 1)
        bins = [mask & (steps >= low) & (steps < low + width) for low in range(0, int(steps.max()) + 1, width)]
        bins = [each for each in bins if each.any()]
        np.testing.assert_array_equal(counts, [each.sum() for each in bins])
        np.testing.assert_allclose(at, [steps[each].mean() for each in bins], rtol=1e-12)
        np.testing.assert_allclose([v.value for v in values], [right[each].mean() for each in bins], rtol=1e-12)


class Unknown(Halves):
    """The same, with a truth that is not known."""

    knows_truth = False
    truth = Task.truth


def test_without_truth_the_scores_are_those_that_need_none() -> None:
    task, instances = Unknown(None), Halves(None).generate(Splits(1, 1, 40, 0), "test")
    with pytest.raises(UserError, match="the true distributions are unknown"):
        task.truth(instances)
    predicted = np.random.default_rng(1).dirichlet(np.ones(2), instances.tokens.shape)
    assert score(task, instances, [predicted]).table() == score(Halves(None), instances, [predicted]).table()
    compact = [
        TokenPrediction.of(predicted[:7], instances.tokens[:7]),
        TokenPrediction.of(predicted[7:], instances.tokens[7:]),
    ]
    assert score(task, instances, compact).table() == score(task, instances, [predicted]).table()
    with pytest.raises(UserError, match="must sum to 1"):
        score(task, instances, [predicted * 1.01])
    with pytest.raises(TypeError, match="Halves knows its truth"):
        score(Halves(None), instances, compact)


def test_a_group_score_of_a_task_has_the_direction_and_limits_of_its_metric() -> None:
    found = metrics_of(Halves(None))
    assert list(found) == ["token_accuracy", "late_accuracy"]
    late = found["late_accuracy"]
    assert (late.name, late.label, late.over) == ("late_accuracy", "late accuracy", "token_accuracy")
    assert late.arrow == "↑"
    assert (late.limits, late.log_axis) == ((0.0, 1.0), False)
    assert late.meaning == "token accuracy over the group 'late' alone."
    other = type("Other", (Halves,), {"group_scores": {"late_accuracy": ("nll", "late")}})
    late = metrics_of(other(None))["late_accuracy"]
    assert (late.arrow, late.limits, late.log_axis) == ("↓", METRICS["nll"].limits, True)
    with pytest.raises(UserError, match="unknown score 'late_accuracy'; did you mean"):
        METRICS["late_accuracy"]  # one task's names are not another's


def test_a_task_brings_a_metric_of_its_own() -> None:
    """It is computed where positions are scored, also over a group of them."""
    squares = Metric(
        "squares", "squares", "Sum of squared probabilities.", True, (0, 1), lambda rows: (rows.predicted**2).sum(-1)
    )
    own = {
        "metrics": (squares,),
        "scores": ("squares", "late_squares"),
        "group_scores": {"late_squares": ("squares", "late")},
    }
    task, instances = type("Own", (Halves,), own)(None), Halves(None).generate(Splits(1, 1, 40, 0), "test")
    predicted = np.where(np.arange(6)[:, None] < 3, [0.5, 0.5], [0.8, 0.2]) + np.zeros((len(instances), 1, 1))
    got = score(task, instances, [predicted]).table()
    at = instances.scored.sum(0)
    assert got["squares"].value == pytest.approx((at[:3].sum() * 0.5 + at[3:].sum() * 0.68) / at.sum())
    assert got["late_squares"].value == pytest.approx(0.68)
    assert metrics_of(task)["late_squares"].label == "late squares"
    for metrics, message in (
        ((METRICS["nll"],), "Own: 'nll' is the name of a built-in metric: give it another name"),
        ({"squares": squares}, "its metrics must be a tuple of regbench.Metric, not {'squares'"),
    ):
        with pytest.raises(UserError, match=message):
            metrics_of(type("Own", (Halves,), own | {"metrics": metrics})(None))


def test_scores_of_a_track_that_is_not_here_are_told_by_their_names_and_baselines() -> None:
    names = ("late_accuracy", "tvd", "nll_behind_cut", "z5_area", "brier", "share")
    scores = {name: SimpleNamespace(value=0.5) for name in names}
    oracle = scores | {"brier": SimpleNamespace(value=0.1), "share": SimpleNamespace(value=0.9)}
    baselines = (SimpleNamespace(anchor="start", scores=scores), SimpleNamespace(anchor="end", scores=oracle))
    result: Any = SimpleNamespace(metrics=names, baselines=dict(enumerate(baselines)))
    told = metrics_told(result)
    assert [(metric.name, metric.heading, metric.over) for metric in told.values()] == [
        ("late_accuracy", "late accuracy ↑", "token_accuracy"),
        ("tvd", "TVD ↓", "tvd"),
        ("nll_behind_cut", "nll behind cut ↓", "nll"),
        ("z5_area", "z5 area ↑", "area"),
        ("brier", "brier ↓", "brier"),
        ("share", "share ↑", "share"),
    ]


def test_the_table_of_metrics() -> None:
    assert [name for name, metric in METRICS.items() if not metric.higher_is_better] == [
        "tvd",
        "nll",
        "mse",
        "truth_mse",
    ]
    assert all(metric.name == metric.over == name for name, metric in METRICS.items())
    assert METRICS["nll"].limits[1] == pytest.approx(-np.log(NLL_FLOOR))


@pytest.mark.parametrize("name", registry.entries(registry.TASK))
def test_every_group_score_of_a_built_in_task_is_described(name: str) -> None:
    """And is over the metric that the task says."""
    task = object.__new__(registry.load(registry.TASK, name))  # what its class says; parameters may add group scores
    assert task.scores
    for score_name, metric in metrics_of(task).items():
        over, group = task.metric_and_group(score_name)
        base = METRICS[over]
        assert metric == base if group is None else metric.name == score_name != over
        assert (metric.over, metric.limits, metric.log_axis) == (over, base.limits, base.log_axis)
        assert "over the group" not in metric.meaning


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"scores": ("nll", "acuracy")}, "Named: the score 'acuracy' is no metric or group score; did you mean"),
        ({"scores": ("late_acuracy",)}, "'late_acuracy' is no metric or group score; did you mean 'late_accuracy'"),
        ({"group_scores": {"late_accuracy": ("token_acuracy", "late")}}, "'late_accuracy' is over 'token_acuracy', no"),
        ({"scores": ("nll_behind_cut",)}, "the score 'nll_behind_cut' is no metric or group score"),
        (
            {"scores": ("nll",), "group_scores": {"nll": ("token_accuracy", "late")}},
            "Named: 'nll' is the name of a built-in metric: give it another name",
        ),
    ],
)
def test_a_score_that_nothing_defines_is_refused(extra: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        metrics_of(type("Named", (Halves,), extra)(None))


@pytest.mark.parametrize("extra", [{"scores": ("nll", "tvd")}, {"group_scores": {"late_accuracy": ("tvd", "late")}}])
def test_a_metric_that_needs_the_truth_is_a_mistake_of_the_task(extra: dict[str, object]) -> None:
    task = type("Mistaken", (Unknown,), extra)(None)
    with pytest.raises(
        TypeError, match="^Mistaken asks for 'tvd', which needs the truth, but its knows_truth is False"
    ):
        score(task, task.generate(Splits(1, 1, 4, 0), "test"), [])
