"""The terms of CGT's loss, each against a loop that is obviously what the papers say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.cgt import ContextuallyGuided
from architectures.cgt.losses import (
    augment,
    continuity,
    diversity,
    draw_windows,
    moments,
    moments_by_position,
    real_positions,
)
from regbench.tasks.base import TokenIO, VectorIO

IO = TokenIO(vocab_size=5, separator=4, max_length=40, names=("a", "b", "c", "d", "|"))
TINY = {"d_model": 8, "d_y": 4, "n_heads": 2, "y_heads": 2, "templates": 3, "rank": 2}
LENGTHS = (9, 6, 7)


def example() -> tuple[Tensor, Tensor]:
    """y (3, 9, 4), and where rows of the lengths 9, 6, 7 are real."""
    y = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return y, torch.arange(9) < torch.tensor(LENGTHS)[:, None]


def make(**settings: Any) -> ContextuallyGuided:
    torch.manual_seed(0)
    return ContextuallyGuided(ContextuallyGuided.Options(**{**TINY, **settings}), IO)


def batch(size: int = 4, length: int = 30) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(5, (size, length), generator=torch.Generator().manual_seed(1))
    scored = (tokens != 4) & (torch.arange(length) < length - 3 * torch.arange(size)[:, None])
    return tokens, scored


def test_a_row_is_real_up_to_its_last_scored_position() -> None:
    scored = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    assert real_positions(scored).sum(1).tolist() == [4, 1, 5, 0]
    assert real_positions(scored)[0].tolist() == [True] * 4 + [False]


WEIGHTS = {"uniform": lambda s: 1, "linear": lambda s: s, "quadratic": lambda s: s * (s + 1)}


@pytest.mark.parametrize("profile", WEIGHTS)
def test_continuity(profile: Any) -> None:
    y, real = example()
    total = weights = 0.0
    for row, length in zip(y, LENGTHS, strict=True):
        for t in range(2, length):  # y_0 has seen nothing
            now, before = row[t] / row[t].norm(), row[t - 1] / row[t - 1].norm()
            total += WEIGHTS[profile](t - 1) * float((now - before) @ (now - before))
            weights += WEIGHTS[profile](t - 1)
    assert float(continuity(y, real, profile)) == pytest.approx(total / weights, rel=1e-6)


@pytest.mark.parametrize("profile", WEIGHTS)
def test_diversity(profile: Any) -> None:
    y, real = example()
    total = weights = 0.0
    for t in range(1, 9):
        for a in range(3):
            for b in range(3):
                if a != b and t < LENGTHS[a] and t < LENGTHS[b]:
                    dot = float((y[a, t] / y[a, t].norm()) @ (y[b, t] / y[b, t].norm()))
                    total += WEIGHTS[profile](t) * dot**2
                    weights += WEIGHTS[profile](t)
    assert float(diversity(y, real, profile)) == pytest.approx(total / weights, rel=1e-6)


def test_one_instance_or_one_token_gives_no_diversity_and_no_continuity() -> None:
    y = torch.randn(1, 1, 4)
    assert float(diversity(y, torch.ones(1, 1, dtype=torch.bool))) == 0.0
    assert float(continuity(y, torch.ones(1, 1, dtype=torch.bool))) == 0.0


def test_moments() -> None:
    y, _ = example()
    rows, length, d = y.shape
    covariance = torch.exp(-((torch.arange(9.0)[:, None] - torch.arange(9.0)) ** 2) / 8).double()
    mean = torch.stack([y[:, s].sum(0) / rows for s in range(length)])
    expected = sum(float(mean[s] @ mean[s]) for s in range(length)) / length
    for s in range(length):
        for t in range(length):
            for i in range(d):
                for j in range(d):
                    found = sum(float((y[b, s, i] - mean[s, i]) * (y[b, t, j] - mean[t, j])) for b in range(rows))
                    wanted = float(covariance[s, t]) * (i == j)
                    expected += (found / rows - wanted) ** 2 / length**2
    assert float(moments(y, covariance)) == pytest.approx(expected, rel=1e-9)


def test_moments_by_position() -> None:
    y, _ = example()
    expected, variance = 0.0, torch.linspace(0.2, 1.0, 9, dtype=torch.float64)
    for s in range(9):
        at = y[:, s]
        mean = at.mean(0)
        spread = sum(torch.outer(row - mean, row - mean) for row in at) / 3
        expected += float(mean @ mean + ((spread - variance[s] * torch.eye(4, dtype=torch.float64)) ** 2).sum())
    assert float(moments_by_position(y, variance)) == pytest.approx(expected / 9, rel=1e-9)


@pytest.mark.parametrize("form", ["sequence", "positions"])
def test_a_prior_that_is_not_stationary_is_met_at_its_own_positions(form: str) -> None:
    """Samples of the prior itself are near zero, those of its neighbours' positions are not."""
    model = make(w_p=1.0, gp_kernel="estimate", gp_share=0.1, gp_noise=0.01, moments=form)
    length = len(model.covariance)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    factor = torch.linalg.cholesky(model.covariance.double()).float()  # type: ignore[operator]
    drawn = factor @ torch.randn(4000, length, 3, generator=generator)
    real = torch.ones(4000, length, dtype=torch.bool)
    early = torch.cat([drawn[:, :1], drawn[:, :-1]], 1)
    assert model._moments(drawn, real) < 0.2 * model._moments(early, real)


@pytest.mark.parametrize(("horizon", "context"), [(None, 0), (5, 0), (5, 3), (100, 2)])
def test_windows_lie_where_they_may(horizon: int | None, context: int) -> None:
    _, scored = batch(64, 30)
    scored[:, -1] |= torch.arange(64) % 2 == 0
    real = real_positions(scored)
    lengths = real.sum(1).tolist()
    torch.manual_seed(0)
    starts: set[int] = set()
    for _ in range(20):
        windows = draw_windows(scored, real, horizon=horizon, context=context, latest=0.75)
        for b in range(64):
            start, n = int(windows.index[b, 0]), lengths[b]
            starts.add(start)
            last = max(0, min(int(0.75 * n) - context, n - 1 - context))
            assert 0 <= start <= last
            assert int(windows.cut[b]) == min(start + context, 29)
            end = 30 if horizon is None else min(30, start + context + horizon)
            wanted = [t for t in range(start + context, end) if scored[b, t]]
            assert windows.index[b][windows.scored[b]].tolist() == wanted
    assert {0, 5, 10} <= starts
    assert max(starts) == int(0.75 * 30) - context  # the longest row's last


@pytest.mark.parametrize("freeze", ["prefix", "context", "tail", "never"])
def test_which_y_a_window_is_read_with(freeze: Any) -> None:
    _, scored = batch()
    torch.manual_seed(0)
    windows = draw_windows(scored, real_positions(scored), horizon=6, context=3, latest=0.75)
    y = torch.randn(4, 30, 2)
    got = windows.frozen(y, freeze).expand(4, 9, 2)
    for b in range(4):
        start = int(windows.index[b, 0])
        for k in range(9):
            t = start + k
            at = {"prefix": start, "context": start + 3, "tail": min(t, start + 3), "never": min(t, 29)}[freeze]
            assert torch.equal(got[b, k], y[b, at])


@pytest.mark.parametrize(("context", "freeze"), [(0, "prefix"), (4, "context"), (4, "tail"), (4, "never")])
def test_the_auxiliary_loss_is_that_of_the_specialised_model(context: int, freeze: Any) -> None:
    """Row by row: y of the whole sequence, frozen as asked; x reads the window afresh."""
    settings: dict[str, Any] = {"aux_context": context, "aux_y": freeze, "aux_horizon": 7, "aux_share": 0.25}
    model, (tokens, scored) = make(**settings).eval(), batch()
    torch.manual_seed(5)
    windows = draw_windows(scored, real_positions(scored), horizon=7, context=context, latest=0.75)
    total, count = 0.0, 0
    for b in range(4):
        start = int(windows.index[b, 0])
        cut = start + context
        end = min(30, cut + 7)
        text, y = tokens[b : b + 1, start:end], model.context(tokens[b : b + 1])[0]
        if freeze == "prefix":
            out = model.specialize(tokens[b, :start])(text) if start else model.with_context(text, y[start][None])
        elif freeze == "context":
            out = model.specialize(tokens[b, :cut])(text)
        else:
            used = [y[t if freeze == "never" else min(t, cut)] for t in range(start, end)]
            out = model.with_context(text, torch.stack(used)[None])
        chosen = scored[b, start:end] & (torch.arange(end - start) >= context)
        total += F.cross_entropy(out[0][chosen], text[0][chosen], reduction="sum").item()
        count += int(chosen.sum())
    torch.manual_seed(5)
    terms = model.losses(tokens, scored)
    assert terms["auxiliary"].item() == pytest.approx(0.25 / 0.75 * total / count, rel=1e-5)
    expected = F.cross_entropy(model(tokens)[scored], tokens[scored])
    torch.testing.assert_close(terms["cross_entropy"], expected)


def test_the_terms_have_their_weights() -> None:
    """All of them over 1 - alpha, so that the first is the cross entropy itself (Eq. 3)."""
    tokens, scored = batch()
    model = make(w_c=0.5, w_d=0.25, aux_share=0.2, w_p=0.125).eval()
    terms = model.losses(tokens, scored)
    assert list(terms) == ["cross_entropy", "auxiliary", "continuity", "diversity", "moments"]
    y, real = model.context(tokens), real_positions(scored)
    torch.testing.assert_close(terms["continuity"], 0.5 / 0.8 * continuity(y, real))
    torch.testing.assert_close(terms["diversity"], 0.25 / 0.8 * diversity(y, real))
    shortest = int(real.sum(1).min())
    inner = slice(1, shortest)  # the first position is left out, of y and of its covariance
    expected = 0.125 / 0.8 * moments(y[:, inner], model.covariance[inner, inner])  # type: ignore[index]
    torch.testing.assert_close(terms["moments"], expected)


def test_in_the_vae_form_slowness_and_difference_are_those_of_the_mean() -> None:
    """Of the sample they would count the noise that it is drawn with."""
    tokens, scored = batch()
    model = make(beta=0.1, w_c=0.5, w_d=0.25, aux_share=0.2).train()
    terms = model.losses(tokens, scored)
    mean = model.eval().context(tokens)  # in evaluation y is the mean; there is no dropout
    torch.testing.assert_close(terms["continuity"], 0.5 / 0.8 * continuity(mean, real_positions(scored)))
    torch.testing.assert_close(terms["diversity"], 0.25 / 0.8 * diversity(mean, real_positions(scored)))


def test_without_gradients_there_is_nothing_but_the_prediction_and_nothing_is_drawn() -> None:
    model, (tokens, scored) = make(beta=0.1, w_p=0.1).eval(), batch()
    before = torch.get_rng_state()
    with torch.no_grad():
        assert list(model.losses(tokens, scored)) == ["cross_entropy"]
    assert torch.equal(before, torch.get_rng_state())


def test_rows_with_nothing_scored_do_no_harm() -> None:
    model, (tokens, scored) = make(w_p=0.1, beta=0.1, aux_context=35), batch()
    scored[0] = False
    terms = model.losses(tokens, scored)
    assert all(torch.isfinite(term) for term in terms.values())
    assert terms["auxiliary"].item() == 0.0  # no row has a token after so much context


def test_the_loss_of_vectors_is_the_mean_square_of_their_last_components() -> None:
    torch.manual_seed(0)
    io = VectorIO(d_in=3, d_out=2, max_length=10)
    model = ContextuallyGuided(ContextuallyGuided.Options(**TINY), io).eval()
    tokens, scored = torch.randn(2, 10, 3), torch.arange(10).expand(2, 10) % 2 == 1
    terms = model.losses(tokens, scored)
    torch.testing.assert_close(terms["mse"], F.mse_loss(model(tokens)[scored], tokens[..., 1:][scored]))
    assert list(terms) == ["mse", "auxiliary", "continuity", "diversity"]


def test_augmentation_is_a_late_moving_average() -> None:
    y = torch.randn(200, 12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    got = augment(y, smooth=3, shift=2)
    seen = set()
    for b in range(200):
        fits = []
        for width in (1, 2, 3):
            for late in (0, 1, 2):
                rows = []
                for t in range(12):
                    end = max(0, t - late)
                    begin = max(0, end - width + 1)
                    rows.append(y[b, begin : end + 1].mean(0))
                if torch.allclose(torch.stack(rows), got[b]):
                    fits.append((width, late))
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 9


def test_augmentations_stand_where_they_are_asked_for_and_only_in_training() -> None:
    tokens, scored = batch()
    plain, auxiliary, both = (
        make(**s) for s in ({}, {"y_smooth": 4, "y_shift": 3}, {"y_smooth": 4, "y_shift": 3, "y_augment": "both"})
    )

    def terms(model: ContextuallyGuided, training: bool) -> dict[str, float]:
        torch.manual_seed(0)
        return {k: float(v) for k, v in model.train(training).losses(tokens, scored).items()}

    assert terms(plain, False) == terms(auxiliary, False) == terms(both, False)
    assert terms(auxiliary, True)["cross_entropy"] == terms(plain, True)["cross_entropy"]
    assert terms(both, True)["cross_entropy"] != terms(plain, True)["cross_entropy"]
    assert terms(auxiliary, True)["auxiliary"] != terms(plain, True)["auxiliary"]
