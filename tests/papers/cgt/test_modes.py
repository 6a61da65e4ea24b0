"""The modes of reading a text after a prompt, each against one segment at a time; activation patching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from papers.cgt.modes import (
    MODES,
    Outcomes,
    activation_patching,
    read_in_modes,
)
from papers.cgt.segments import segments
from regbench.analysis.trained import Trained
from regbench.metrics.metric import score_positions
from regbench.tasks.base import Splits
from regbench.tasks.linear_regression import LinearRegression
from regbench.tracks import Track
from tests.papers.cgt.conftest import Counting

RATE = 0.2


def test_every_mode_is_what_it_says(trained: Trained) -> None:
    model: Any = trained.model
    task = trained.track.task
    instances = trained.track.instances("test")[:9]
    parts = segments(task, instances)
    found = read_in_modes(model, task, instances, parts, RATE)
    truth = task.truth(instances)
    for k in range(len(parts)):
        row, cut, end = int(parts.row[k]), int(parts.cut[k]), int(parts.end[k])
        tokens = torch.from_numpy(instances.tokens[row : row + 1, :end].astype(np.int64))
        rest, special = tokens[:, cut:], model.specialize(tokens[0, :cut])
        y, drifting = model.summary(tokens[:, :cut]), []
        now = y
        for computed in model.context(rest).unbind(1):
            now = (1 - RATE) * now + RATE * computed
            drifting.append(now)
        with torch.no_grad():
            outputs: dict[str, Tensor] = {
                "dynamic": model(tokens)[:, cut:],
                "specialised": special(rest),
                "specialised, prompt read": special(tokens)[:, cut:],
                "moving": model.with_context(rest, torch.stack(drifting, dim=1)),
                "unprompted": model(rest),
            }
        for mode in MODES:
            predicted = outputs[mode].double().softmax(-1).numpy()
            expected = score_positions(predicted, truth[row : row + 1, cut:end], rest.numpy())
            for metric, each in expected.items():
                np.testing.assert_allclose(found.values[mode][metric][k, : end - cut], each[0], atol=1e-4)
        assert np.array_equal(found.scored[k, : end - cut], instances.scored[row, cut:end])
        assert not found.scored[k, end - cut :].any()


def test_vectors_are_scored_by_their_errors() -> None:
    task = LinearRegression(LinearRegression.Parameters(d_x=2, d_y=1, n_examples=6))
    instances = task.generate(Splits(train=1, validation=1, test=3, seed=0), "test")

    class Last(torch.nn.Module):
        """Says the first component of y, which is how many vectors have been read."""

        io = task.io

        def context(self, tokens: Tensor) -> Tensor:
            return torch.arange(tokens.shape[1]).float()[None, :, None].expand(len(tokens), -1, 1)

        def with_context(self, tokens: Tensor, y: Tensor) -> Tensor:
            return y if y.ndim == 3 else y[:, None].expand(-1, tokens.shape[1], 1)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.context(tokens)

    shared = replace(instances, truth={**instances.truth, "problem": np.array([0, 1, 1])})
    for some, units in ((instances, [0, 1, 2]), (shared, [0, 1, 1])):
        found = read_in_modes(Last(), task, some, segments(task, some), 0.0)  # type: ignore[arg-type]
        assert found.unit.tolist() == units
    targets = instances.tokens[:, 6:, 2]
    np.testing.assert_allclose(found.values["specialised"]["mse"], (6.0 - targets) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found.values["moving"]["mse"], (6.0 - targets) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found.values["dynamic"]["mse"], (np.arange(6, 12) - targets) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found.values["unprompted"]["mse"], (np.arange(6) - targets) ** 2, rtol=1e-5)


def test_scores_and_differences_by_distance() -> None:
    values = {
        "a": {"nll": np.array([[1.0, 3.0, 5.0], [2.0, 2.0, 9.0]])},
        "b": {"nll": np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])},
    }
    scored = np.array([[True, True, True], [True, True, False]])
    outcomes = Outcomes(values, scored, np.array([0, 0]))
    assert outcomes.score("a", "nll").value == pytest.approx((1 + 3 + 5 + 2 + 2) / 5)
    many = {m: {"nll": np.tile(v["nll"], (50, 1))} for m, v in values.items()}
    outcomes = Outcomes(many, np.tile(scored, (50, 1)), np.arange(100))
    after = np.tile([0.5, 0.5, 2.0], (100, 1))
    distance, mean, error = outcomes.difference("a", "b", "nll", after)
    assert distance.tolist() == [0.5, 2.0]
    np.testing.assert_allclose(mean, [(0 + 2 + 1 + 1) / 4, 4.0])
    assert error[1] == 0.0
    after[:, 2] = np.arange(100) % 5  # fewer than 20 positions at each of the others
    assert outcomes.difference("a", "b", "nll", after)[0].tolist() == [0.5]
    assert outcomes.score("a", "nll").stderr > 0


def test_the_figures_of_one_pair(tiny: Track) -> None:
    instances = tiny.instances("test")
    parts = segments(tiny.task, instances)[:2]
    model = Counting(tiny.task.io)
    found = activation_patching(model, instances, parts)
    prompts = [instances.tokens[r, :c].astype(np.int64) for r, c in zip(parts.row, parts.cut, strict=True)]
    own, donor = (
        torch.log_softmax(5 * model.summary(torch.from_numpy(s)[None])[0].double(), -1).numpy() for s in prompts
    )
    np.testing.assert_allclose(found.rises, donor - own, atol=1e-6)
    assert found.total_variation == pytest.approx(0.5 * np.abs(np.exp(donor) - np.exp(own)).sum(), abs=1e-6)
    both = np.intersect1d(*prompts)
    assert found.by_kind["both texts'"] == pytest.approx((donor - own)[both].mean(), abs=1e-6)
