"""The numerical studies: each oracle at small N, and the command that runs them."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from papers.memory import gradient_memory as gradients
from papers.memory import memory_capacity as capacity
from papers.memory import zipf_memory as zipf
from papers.memory.picture import draw
from papers.memory.study import (
    Curve,
    Expectation,
    Options,
    Panel,
    Study,
    StudyRows,
    between,
    near_oracle,
    run_study,
)
from regbench import cli
from regbench.utils.errors import UserError
from tests.helpers.typed import refused

N, M = 50, 5
P = zipf.frequencies(N)


# --- Zipf. ---


def test_the_error_is_that_of_the_memory_written_out() -> None:
    """W as a sum over tokens, and one argmax a token."""
    rng = np.random.default_rng(0)
    u, v = rng.standard_normal((N, 16)) / 4, rng.standard_normal((M, 16)) / 4
    q = np.random.default_rng(1).random(N)
    W = sum(q[z] * np.outer(v[z % M], u[z]) for z in range(N))
    wrong = [z for z in range(N) if np.argmax([v[y] @ W @ u[z] for y in range(M)]) != z % M]
    assert 0 < len(wrong) < N
    assert zipf.error(u, v, q, P) == pytest.approx(sum(P[z] for z in wrong))


def test_an_unlimited_memory_has_the_error_of_its_oracle() -> None:
    """Orthonormal embeddings, so nothing interferes. Ties, of tokens that were not seen, are broken at random."""
    rng, found = np.random.default_rng(0), []
    both = np.eye(N + M)
    for _ in range(200):
        counts = rng.multinomial(20, P)
        found.append(
            zipf.error(both[:N], both[N:], zipf.of_samples("counts", counts, 64), P, 1e-9 * rng.random((N, M)))
        )
    assert near_oracle("", np.array(found), zipf.unseen_error(P, 20, M)).holds
    assert zipf.unseen_error(P, 0, M) == pytest.approx(0.8)
    assert not near_oracle("", np.array(found), 1.2 * zipf.unseen_error(P, 20, M)).holds


def test_schemes_store_what_they_say() -> None:
    counts = np.array([9, 0, 3, 1, 5])
    assert zipf.of_samples("counts", counts, 24).tolist() == [0.5, 0, 3 / 18, 1 / 18, 5 / 18]
    assert zipf.of_samples("seen", counts, 24).tolist() == [1, 0, 1, 1, 1]
    assert zipf.of_samples("most seen d/12", counts, 24).tolist() == [1, 0, 0, 0, 1]
    assert zipf.of_samples("most seen d/12", counts, 60).tolist() == [1, 0, 1, 1, 1]  # what was not seen is not stored
    assert zipf.scheme("most frequent d/8", P, 24).sum() == 3
    assert (zipf.scheme("q = 1", P, 24) == 1).all()


def test_a_step_of_training_is_the_gradient_with_the_norm() -> None:
    """One step from the same random numbers, by automatic differentiation."""
    import torch

    for norm in (False, True):
        rng = np.random.default_rng(3)
        u, v, W = (rng.standard_normal((k, 8)) * 8**-0.5 for k in (N, M, 8))
        batch = rng.choice(N, 32, p=P)
        weights = torch.from_numpy(W).float().requires_grad_()
        hidden = torch.from_numpy(u[batch]).float() @ weights.T
        if norm:
            hidden = hidden / (hidden.pow(2).sum(1, keepdim=True) + 1e-6).sqrt()
        logits = hidden @ torch.from_numpy(v).float().T
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch % M)).backward()
        W = W - 5.0 * weights.grad.numpy()  # type: ignore[union-attr]
        expected = P[((u @ W.T) @ v.T).argmax(1) != np.arange(N) % M].sum()
        found = zipf.train(np.random.default_rng(3), 8, 5.0, (32, "SGD", norm), samples=32, n_tokens=N)
        assert found == pytest.approx(expected)


# --- Gradients. ---


def test_the_lemma_one_step_and_noise_are_exact() -> None:
    options = Options()
    for one in (
        gradients.lemma(options, n=20, d=16),
        gradients.one_step(options, n=20),
        *gradients.noisy(options, n=10, times=5, d=256),
    ):
        assert one.holds, one


def test_sequences_have_one_trigger_and_its_output() -> None:
    tokens, outputs = (x.numpy() for x in gradients.sequences(np.random.default_rng(0), 500))
    assert tokens.shape == (500, gradients.LENGTH)
    places = set()
    for row, output in zip(tokens.tolist(), outputs.tolist(), strict=True):
        first = row.index(row[-1])
        places.add(first)
        assert row.count(row[-1]) == 2
        assert row[first + 1] == output != row[-1]
    assert places == set(range(gradients.LENGTH - 2))


@pytest.mark.parametrize("relu", [False, True])
def test_a_joint_step_on_two_factors_is_the_sum_of_the_lemma(relu: bool) -> None:
    """The scores of both gradients written out, at a size where some inputs are wrong."""
    n, d, rank, rng = 12, 16, 6, np.random.default_rng(3)
    u, v = (rng.standard_normal((n, d)) * d**-0.5 for _ in range(2))
    U, V = rng.standard_normal((d, rank)) * rank**-0.5, rng.standard_normal((rank, d)) * d**-0.5
    hidden = [V @ x for x in u]
    open_ = [(h > 0) * 1.0 if relu else np.ones(rank) for h in hidden]
    gU, gV = np.zeros_like(U), np.zeros_like(V)
    for z in range(n):
        xi = np.array([v[k] @ U @ (open_[z] * hidden[z]) for k in range(n)])
        guess = np.exp(xi) / np.exp(xi).sum()
        for k in range(n):
            gU += (guess[k] - (k == z)) / n * np.outer(v[k], open_[z] * hidden[z])
            gV += (guess[k] - (k == z)) / n * np.outer(open_[z] * (U.T @ v[k]), u[z])
    U, V = U - n * gU, V - n * gV
    after = [np.maximum(V @ x, 0) if relu else V @ x for x in u]
    right = [int(np.argmax([v[k] @ U @ h for k in range(n)])) == z for z, h in enumerate(after)]
    found = gradients.product_step(np.random.default_rng(3), rank, relu, d, n)
    assert 0 < sum(right) < n
    assert found == pytest.approx(sum(right) / n)


def test_three_steps_from_the_top_down_and_no_other_order() -> None:
    recall, accuracy = gradients.three_steps(np.random.default_rng(0), 256, True)
    assert recall[:2] == (1.0, 1.0)
    assert recall[2] > 0.85
    assert accuracy > 0.85
    for order in (("o2", "k1", "k2"), ("k1", "k2", "o2")):
        assert gradients.three_steps(np.random.default_rng(0), 64, True, order, count=1024)[1] < 0.3


# --- Capacity. ---


def test_lookups_are_the_sums_of_their_definition() -> None:
    n, d = 12, 6
    rng = np.random.default_rng(5)
    u, v, f = rng.standard_normal((n, d)) * d**-0.5, rng.standard_normal((n, d)) * d**-0.5, rng.permutation(n)
    wrong = dict.fromkeys(capacity.LOOKUPS, 0)
    for z in range(n):
        alike = [float(u[other] @ u[z]) for other in range(n)]
        total = sum(np.exp(10 * a) for a in alike)
        weights = {
            "linear": alike,
            "MLP, b = 0.3": [max(a - 0.3, 0) for a in alike],
            "MLP, b = 0.5": [max(a - 0.5, 0) for a in alike],
            "attention, beta = 10": [np.exp(10 * a) / total for a in alike],
            "nearest": [float(other == z) for other in range(n)],
        }
        for name, w in weights.items():
            y = sum(w[other] * v[f[other]] for other in range(n))
            wrong[name] += int(np.argmax([v[k] @ y for k in range(n)]) != f[z])
    found = capacity.errors(np.random.default_rng(5), n, d)
    assert found == {name: count / n for name, count in wrong.items()}
    assert len(set(found.values())) > 2


def test_the_least_width_is_where_the_error_crosses_the_limit() -> None:
    options = Options(draws=4)
    width = capacity.least_width(options, 100, "linear", 8.0)

    def mean(d: int) -> float:
        return float(np.mean([capacity.errors(options.rng(s), 100, d, ("linear",))["linear"] for s in range(4)]))

    assert mean(round(width * 0.8)) > capacity.LIMIT > mean(round(width * 1.25))
    assert capacity.least_width(options, 100, "linear", 300.0) == pytest.approx(width, rel=0.25)


# --- The command. ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zipf-memor"], "unknown study 'zipf-memor'; did you mean 'zipf-memory'"),
        (["zipf-memory", "--draws", "1"], "--draws takes a number of 2 or more"),
        (["gradient-memory", "--optimizers"], "--optimizers is for zipf-memory: gradient-memory trains no memories"),
        (["--check"], "--check goes with a study: gradient-memory"),
        (["zipf-memory", "--draw", "x"], "argument --draws: invalid int value"),
        (["zipf-memory", "--out", "/dev/null/x"], "cannot write /dev/null/x"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["study", *arguments], message)


def small(holds: bool) -> Study:
    curves = [Curve("one", [1, 2, 4], [0.5, 0.2, 0.1]), Curve("oracle", [1, 2, 4], [0.4, 0.2, 0.1], True)]
    return Study(
        (StudyRows("numbers", ("width", "error"), [(1, "0.5"), (2, "0.2")]),),
        (Panel("a panel", "width", "error", curves),),
        (Expectation("something", "1", "1", True), Expectation("another", "2", "3", holds)),
    )


def test_the_command_writes_tables_and_a_picture_and_says_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for holds in (True, False):
        monkeypatch.setattr(zipf, "run", lambda options, holds=holds: small(holds))
        assert cli.main(["study", "zipf-memory", "--check", "--out", str(tmp_path / "out")]) == (0 if holds else 1)
        assert cli.main(["study", "zipf-memory"]) == 0
    assert "2 checked, 1 do not hold" in capsys.readouterr().out
    with open(tmp_path / "out" / "zipf-memory-1.csv", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["width", "error"], ["1", "0.5"], ["2", "0.2"]]
    assert (tmp_path / "out" / "zipf-memory.png").read_bytes()[:4] == b"\x89PNG"


def test_expectations_hold_where_they_should() -> None:
    assert [between("", x, 1.0, 2.0).holds for x in (0.9, 1.0, 2.0, 2.1)] == [False, True, True, False]
    with pytest.raises(UserError, match="did you mean 'memory-capacity'"):
        run_study("memory-capacit")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gradient-memory", "memory-capacity", "zipf-memory"])
def test_everything_that_a_study_expects_holds(name: str, tmp_path: Path) -> None:
    study = run_study(name)
    assert [one for one in study.expectations if not one.holds] == []
    assert len(study.expectations) > 4
    for panel in study.panels:
        for curve in panel.curves:
            assert len(curve.x) == len(curve.y)
            assert all(a < b for a, b in pairwise(curve.x))
    draw(study, name, tmp_path / "study.png")
