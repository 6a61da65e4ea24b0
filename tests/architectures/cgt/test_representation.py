"""What y looks like, on made-up ys whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from architectures.cgt.analysis.representation import (
    Documents,
    Neighbours,
    contexts,
    documents,
    dot_products,
    tsne,
    variation,
)
from regbench.analysis.segments import Segments, segments
from regbench.tracks import Track
from tests.architectures.cgt.conftest import Counting


def segments_of(rows: int, start: int = 2, cut: int = 6, end: int = 12) -> Segments:
    return Segments(np.arange(rows), *(np.full(rows, at) for at in (start, cut, end)), np.zeros(rows, dtype=np.int64))


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


def test_dot_products() -> None:
    y = np.random.default_rng(0).standard_normal((4, 5, 3))
    found = dot_products(y)
    for i in range(5):
        for j in range(5):
            each = [y[n, i] @ y[n, j] / np.linalg.norm(y[n, i]) / np.linalg.norm(y[n, j]) for n in range(4)]
            assert found[i, j] == pytest.approx(np.mean(each))
    np.testing.assert_allclose(np.diag(found), 1.0)


def test_documents_of_one_context_are_alike_to_a_model_that_counts(tiny: Track) -> None:
    instances = tiny.instances("test")
    found = documents(Counting(tiny.task.io), instances, segments(tiny.task, instances), topics=4, pieces=3)
    assert found.means.shape == (12, tiny.task.io.vocab_size)
    assert found.topics.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    near = found.neighbours()
    assert near is not None
    assert 0.0 <= near.same <= 1.0
    assert near.chance == pytest.approx(2 / 11)
    assert near.documents == 12


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
