"""What y looks like, on made-up ys whose answers are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from architectures.cgt import ContextuallyGuided
from papers.cgt.representation import (
    Documents,
    Neighbours,
    contexts,
    documents,
    dot_products,
    encoder,
    fast_part,
    spectrum,
    tsne,
    variation,
    variation_by_example,
)
from papers.cgt.segments import Segments, segments
from regbench.data.instances import Instances
from regbench.tasks.arithmetic import Arithmetic
from regbench.tasks.base import TokenIO
from regbench.tracks import Track
from tests.papers.cgt.conftest import Counting, segments_of


def test_variation_is_how_far_the_normalised_y_travels_after_the_prompt() -> None:
    y = np.random.default_rng(0).standard_normal((5, 14, 3))
    parts = segments_of(5)
    inside = [y[n, t] for n in range(5) for t in range(2, 12)]
    mean = sum(inside) / len(inside)
    scale = (sum(((v - mean) ** 2).sum() for v in inside) / len(inside)) ** 0.5
    steps = [np.linalg.norm((y[n, t] - y[n, t - 1]) / scale) for n in range(5) for t in range(7, 12)]
    assert variation(y, parts) == pytest.approx(np.mean(steps))
    assert variation(100.0 * y + 7.0, parts) == pytest.approx(np.mean(steps))
    still = y.copy()
    still[:, 6:12] = still[:, 6:7]
    assert variation(still, parts) == 0.0
    assert variation(np.ones((5, 14, 3)), parts) == 0.0  # it has no spread


def test_variation_by_example_leaves_out_the_steps_between_examples() -> None:
    y = np.random.default_rng(0).standard_normal((5, 14, 3))
    progress = np.tile(np.repeat([0, 1, 2], [5, 5, 4]), (5, 1))
    found = variation_by_example(y, segments_of(5), progress)
    assert list(found) == [0, 1, 2]
    z = y[:, 2:12] - y[:, 2:12].mean((0, 1))
    z /= np.sqrt((z**2).sum(-1).mean())
    steps = np.linalg.norm(np.diff(z, axis=1), axis=-1)  # step i leads to position i + 3
    assert found[0] == pytest.approx(steps[:, 0:2].mean())
    assert found[1] == pytest.approx(steps[:, 3:7].mean())
    assert found[2] == pytest.approx(steps[:, 8:9].mean())


def made(tokens: int, rows: int = 6, **truth: Any) -> Instances:
    shape = (rows, tokens)
    return Instances.unpadded(np.zeros(shape, np.uint8), np.ones(shape, np.bool_), "made/1", truth)


def test_a_sine_has_all_its_power_at_its_harmonic() -> None:
    t, instances, one = np.arange(48), made(48), segments_of(6)
    y = np.stack([np.sin(2 * np.pi * 4 * t / 48), 3.0 + np.cos(2 * np.pi * 4 * t / 48)], axis=-1)[None].repeat(6, 0)
    found = spectrum(y, instances, one)
    assert not isinstance(found, str)
    assert (found.peak, found.at_contexts, len(found.power)) == (4, None, 24)
    assert found.power[3] == pytest.approx(1.0)
    assert found.slow == pytest.approx(0.0, abs=1e-12)
    slow = spectrum(np.sin(2 * np.pi * 2 * t / 48)[None, :, None].repeat(6, 0) + y, instances, one)
    assert not isinstance(slow, str)
    assert slow.slow == pytest.approx(0.5)  # two components with the added sine and the first ones, all of one size
    # Four contexts in an instance: the multiples of 4.
    four = Segments(
        np.repeat(np.arange(6), 4), *(np.tile([0, 12, 24, 36], 6) + k for k in (0, 6, 12)), np.tile(np.arange(4), 6)
    )
    several = spectrum(y, instances, four)
    assert not isinstance(several, str)
    assert several.at_contexts == pytest.approx(1.0)
    four.start[5] = 13  # contexts that change at other places elsewhere have no harmonic
    assert spectrum(y, instances, four).at_contexts is None  # type: ignore[union-attr]


def test_what_has_no_spectrum_is_left_out() -> None:
    assert spectrum(np.ones((6, 48, 2)), made(48), segments_of(6)) == "left out: y is constant"
    tokens, scored = np.zeros((2, 5), np.uint8), np.array([[True] * 5, [True] * 3 + [False] * 2])
    uneven = Instances(tokens, np.array([5, 3]), scored, "made/1", {})
    assert "different lengths" in str(spectrum(np.zeros((2, 5, 2)), uneven, segments_of(2)))


def test_the_fast_part_is_what_a_moving_mean_leaves() -> None:
    y = np.random.default_rng(0).standard_normal((2, 20, 3))
    found = fast_part(y)
    for t in range(20):
        np.testing.assert_allclose(found[:, t], y[:, t] - y[:, max(0, t - 7) : t + 1].mean(1))
    np.testing.assert_allclose(fast_part(np.full((1, 20, 1), 3.0)), 0.0, atol=1e-12)


def test_the_encoder_is_measured_against_the_least_that_it_can_be(tiny: Track) -> None:
    torch.manual_seed(0)
    settings = {"d_model": 8, "n_heads": 2, "d_y": 4, "y_heads": 2, "n_layers": 2, "y_layer": 1, "beta": 0.1}
    model = ContextuallyGuided(ContextuallyGuided.Options(**settings, gp_scale=2.0), tiny.task.io).eval()
    instances = tiny.instances("validation")[:6]
    found = encoder(model, instances, batch_size=4)
    assert found is not None
    assert found.divergence > found.least > 0
    # A posterior without a mean, and with the variances that are best, is at the minimum: it says nothing.
    length = int(instances.lengths[0])
    alike = instances[np.flatnonzero(instances.lengths == length)]
    wide = torch.zeros(8, 4)
    model.posterior = torch.nn.Linear(4, 8)
    with torch.no_grad():
        model.posterior.weight.copy_(wide)
        model.posterior.bias.copy_(torch.tensor([0.0] * 4 + [2 * math.log(0.5)] * 4))
    still = encoder(model, alike)
    assert still is not None
    assert still.spread == pytest.approx(0.25, rel=1e-5)
    best = -model.prior.precision[length - 1, :length].log()
    rows = torch.full((1,), length)
    least = model.prior.divergence(torch.zeros(1, length, 1), best[None, :, None], rows)
    torch.testing.assert_close(model.prior.least(rows), least)
    assert still.least == pytest.approx(4 * float(least) / length, rel=1e-4)
    # The prior of an estimate has less and less variance, and the spread is measured against that of each position.
    narrow = ContextuallyGuided(ContextuallyGuided.Options(**settings, gp_kernel="estimate"), tiny.task.io).eval()
    torch.nn.init.zeros_(narrow.posterior.weight)  # type: ignore[union-attr]
    torch.nn.init.zeros_(narrow.posterior.bias)  # type: ignore[union-attr]
    deviation = narrow.prior.deviation[:length]
    assert deviation[-1] < 0.8 * deviation[0]
    shares = encoder(narrow, alike)
    assert shares is not None
    assert shares.spread == pytest.approx(float((1 / deviation).mean()), rel=1e-5)
    # Of a white prior the encoder can be the prior itself.
    white = ContextuallyGuided(ContextuallyGuided.Options(**settings, gp_noise=1.0), tiny.task.io).eval()
    assert white.posterior is not None
    torch.nn.init.zeros_(white.posterior.weight)
    with torch.no_grad():
        white.posterior.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0] + [0.0] * 4))  # the last has a mean of 1
    code = encoder(white, instances)
    assert code is not None
    assert (code.unused, code.spread) == (0.75, pytest.approx(1.0))
    assert code.divergence == pytest.approx(0.5, rel=1e-4)
    assert code.least == pytest.approx(0.0, abs=1e-6)
    assert encoder(Counting(tiny.task.io), instances) is None  # type: ignore[arg-type]


def test_each_of_three_texts_is_read_on_its_own() -> None:
    rng = np.random.default_rng(0)
    io = TokenIO(vocab_size=5, separator=4, max_length=24, names=("a", "b", "c", "d", "|"))
    tokens, cuts = (
        rng.integers(0, 4, (6, 24)).astype(np.uint8),
        np.stack([rng.integers(4, 10, 6), rng.integers(13, 20, 6)]),
    )
    topic = np.stack([rng.permutation(3) for _ in range(6)])
    truth = {"cut": cuts[0], "second_cut": cuts[1], "topic": topic, "document": np.arange(18).reshape(6, 3)}
    instances = Instances.unpadded(tokens, np.ones((6, 24), np.bool_), "made/1", truth)
    model: Any = Counting(io)
    found = documents(model, instances, segments(Arithmetic(Arithmetic.Parameters()), instances))
    order = np.argsort(found.document)
    np.testing.assert_array_equal(found.topics[order], topic.ravel())
    means = []
    for row in range(6):
        for part in np.split(tokens[row], cuts[:, row]):
            means.append(contexts(model, part[None])[0].mean(0))
    np.testing.assert_allclose(found.means[order], np.array(means), rtol=1e-5)


def test_dot_products() -> None:
    y = np.random.default_rng(0).standard_normal((4, 5, 3))
    found = dot_products(y)
    for i in range(5):
        for j in range(5):
            each = [y[n, i] @ y[n, j] / np.linalg.norm(y[n, i]) / np.linalg.norm(y[n, j]) for n in range(4)]
            assert found[i, j] == pytest.approx(np.mean(each))
    np.testing.assert_allclose(np.diag(found), 1.0)


def test_without_topics_there_are_no_texts_to_compare(tiny: Track) -> None:
    instances = tiny.instances("test")
    assert documents(Counting(tiny.task.io), instances, segments(tiny.task, instances)) is None


def test_topics_that_the_truth_tells_are_those_of_whole_instances(tiny: Track) -> None:
    instances = tiny.instances("test")[:6]
    object.__setattr__(instances, "truth", {"topic": np.array([0, 0, 1, 1, 2, 2])})
    model = Counting(tiny.task.io)
    found = documents(model, instances, segments(tiny.task, instances))
    assert found.topics.tolist() == [0, 0, 1, 1, 2, 2]
    y = contexts(model, instances.tokens)
    np.testing.assert_allclose(found.means[3], y[3, : instances.lengths[3]].mean(0))


def test_neighbours_of_the_same_topic() -> None:
    means = np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
    each = np.arange(4)
    alike = Documents(means, np.array([0, 0, 1, 1]), each).neighbours()
    assert alike == Neighbours(1.0, pytest.approx(1 / 3), 4)
    crossed = Documents(means, np.array([0, 1, 0, 1]), each).neighbours()
    assert crossed is not None
    assert crossed.same == 0.0


def test_windows_of_one_document_are_no_neighbours() -> None:
    """Each pair of windows is nearest to one another, and of one document: what is left is of the other topic."""
    means = np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0], [-1.0, 0.2]])
    found = Documents(means, np.array([0, 0, 1, 1, 0]), np.array([7, 7, 8, 8, 9])).neighbours()
    assert found is not None
    # Of other documents the first's windows have the second's (topic 1) nearest, the second's the first's (topic 0), and the
    # last text the second's too.
    assert found.same == 0.0
    assert found.chance == pytest.approx((1 / 3 + 1 / 3 + 0 + 0 + 2 / 4) / 5)
    assert found.documents == 3
    assert Documents(means, np.zeros(5, np.int64), np.zeros(5, np.int64)).neighbours() is None


def test_the_truth_tells_which_texts_are_of_one_document(text_track: Track) -> None:
    test = text_track.instances("test")
    parts, model = segments(text_track.task, test), Counting(text_track.task.io)
    document = test.truth["topic"] + 100 * (test.truth["cut"] % 2)[:, None]
    object.__setattr__(test, "truth", {**test.truth, "document": document})
    found = documents(model, test, parts, topics=5)
    assert found.document.tolist() == document.T.ravel().tolist()
    few = documents(model, test, parts, topics=2)
    assert (few.document % 100 == few.topics).all()


def test_contexts_come_in_batches(tiny: Track) -> None:
    model, tokens = Counting(tiny.task.io), tiny.instances("test").tokens
    whole = model.context(torch.from_numpy(tokens.astype(np.int64))).double().numpy()
    np.testing.assert_array_equal(contexts(model, tokens, batch_size=5), whole)


def clusters() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    centres = 10.0 * generator.standard_normal((4, 8))
    topics = np.repeat(np.arange(4), 15)
    return centres[topics] + generator.standard_normal((60, 8)), topics


@pytest.mark.ci
def test_by_t_sne_clusters_stay_together_and_the_picture_is_the_same_again() -> None:
    points, topics = clusters()
    places = tsne(points)
    assert places.shape == (60, 2)
    apart = ((places[:, None] - places) ** 2).sum(-1) + np.diag(np.full(60, np.inf))
    assert (topics[apart.argmin(1)] == topics).all()
    np.testing.assert_array_equal(places, tsne(points))


def test_t_sne_of_few_points_and_of_points_that_coincide() -> None:
    assert np.isfinite(tsne(np.zeros((6, 3)))).all()
    assert np.isfinite(tsne(np.eye(4))).all()
