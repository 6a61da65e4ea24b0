"""Gradient steps on a prompt: any model as by hand, a simulator as autograd, rates from validation, and what is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from architectures.tint import explicit
from papers.tint import adaptation
from papers.tint.adaptation import Outcome, Place, Plan, Row, _outcomes, adapt_run, beside
from papers.tint.adaptation_report import notes
from papers.tint.angles import measure_angles
from papers.tint.gradient_steps import refusal_of
from regbench import cli, runner
from regbench.analysis.trained import Trained, load
from regbench.data.instances import Instances
from regbench.evaluation.baselines import defaults_of, predict_baseline
from regbench.models.model import token_tensor
from regbench.utils.errors import UserError
from tests.helpers.typed import refused

TINY = {"d_model": 12, "n_layers": 1, "training.train_tokens": 4000, "training.batch_size": 8}


@pytest.fixture(scope="module")
def runs(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TinT, an LSTM, and transformers that TinT does not simulate."""
    folder = tmp_path_factory.mktemp("adapt")
    for name, (architecture, options) in {
        "tint": ("tint", {"n_heads": 3}),
        "lstm": ("lstm", {}),
        "rotary": ("transformer", {"n_heads": 3, "positions": "rotary"}),
        "heads": ("transformer", {"n_heads": 3, "ngram_heads": [1, 2]}),
        "conv": ("transformer", {"n_heads": 3, "short_conv": 3}),
    }.items():
        runner.run(str(tiny_file), architecture, settings=TINY | options, out=folder / name)
    return folder


def by_hand(trained: Trained, cuts: np.ndarray, rate: float, steps: int) -> np.ndarray:
    """NLL (N, L) after plain SGD on each instance by itself."""
    instances = trained.track.instances("test")[: len(cuts)]
    found = np.zeros(instances.tokens.shape)
    for row, cut in enumerate(cuts):
        again = load(trained.folder)
        model = getattr(again.model, "auxiliary", again.model)
        tokens = token_tensor(instances.tokens[row : row + 1, : instances.lengths[row]], torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(tokens)[0, :cut], tokens[0, :cut], reduction="sum").backward()
            optimizer.step()
        with torch.no_grad():
            found[row, : tokens.shape[1]] = F.cross_entropy(model(tokens)[0].double(), tokens[0], reduction="none")
    return found


@pytest.mark.ci
@pytest.mark.parametrize("name", ["lstm", "tint", "rotary", "heads", "conv"])
def test_a_full_step_is_plain_sgd_on_each_instance(runs: Path, name: str) -> None:
    """A TinT by its twin; any model by autograd, a transformer that TinT does not simulate too."""
    trained, place = load(runs / name), Place(share=0.4)
    assert (refusal_of(trained.model) is None) == (name == "tint")
    plan = Plan(("full",), (0.01,), steps=2, limit=3)
    outcome = _outcomes([trained], "test", place, plan, "full", plan.rates)[0.01]
    assert outcome is not None
    lengths = trained.track.instances("test").lengths[:3]
    cuts = np.floor(0.4 * lengths).astype(int)
    np.testing.assert_array_equal(outcome.distance[:, 0], -cuts)
    right = by_hand(trained, cuts, 0.01, 2)
    np.testing.assert_allclose(outcome.after["nll"][outcome.behind], right[outcome.behind], atol=1e-4)
    still = by_hand(trained, cuts, 0.01, 0)
    np.testing.assert_allclose(outcome.before["nll"][outcome.behind], still[outcome.behind], atol=1e-4)
    assert np.abs(right - still)[outcome.behind].max() > 1e-3
    assert not outcome.behind[np.arange(3), cuts - 1].any()


@pytest.mark.ci
def test_the_rate_is_chosen_on_validation(runs: Path) -> None:
    """By the mean gain there; rates that diverge are told and not chosen."""
    trained = load(runs / "tint")
    rows = adapt_run([trained], "tint", Place(tokens=9), Plan(("full", "tint"), (1e-4, 1e-3, 1e300), limit=20), "test")
    for row in rows:
        assert np.isnan(row.gains[1e300])
        assert row.rate == max((1e-4, 1e-3), key=lambda rate: row.gains[rate])
        validation = _outcomes([trained], "validation", row.place, Plan((), (), limit=20), row.way, (row.rate,))[
            row.rate
        ]
        assert validation is not None
        assert -validation.score("difference", "nll").value == pytest.approx(row.gains[row.rate])
    gain = [-row.outcome.score("difference", "nll").value for row in rows]
    assert rows[1].share_of_full == (pytest.approx(gain[1] / gain[0]) if gain[0] > 0 else None)
    with pytest.raises(UserError, match="tint: every rate diverges for full at 9 tokens: give smaller --rates"):
        adapt_run([trained], "tint", Place(tokens=9), Plan(("full",), (1e30, 1e31), limit=8), "test")


def test_a_single_rate_is_taken_without_validation(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, asked = load(runs / "tint"), []
    monkeypatch.setattr(adaptation, "_outcomes", lambda *a: asked.append(a[1]) or _outcomes(*a))
    (row,) = adapt_run([trained], "tint", Place(tokens=9), Plan(("full",), (1e-3,), limit=8), "test")
    assert asked == ["test"]
    assert (row.rate, row.gains) == (1e-3, {})
    assert "validation" not in " ".join(notes([row]))
    (row,) = adapt_run([trained], "tint", Place(tokens=9), Plan(("full",), (1e-3,), limit=8), "validation")
    assert list(row.gains) == [1e-3]


def test_scores_of_an_outcome(runs: Path) -> None:
    trained = load(runs / "tint")
    outcome = _outcomes([trained, trained], "test", Place(share=0.5), Plan((), (), limit=20), "values", (1e-3,))[1e-3]
    assert outcome is not None
    alone = _outcomes([trained], "test", Place(share=0.5), Plan((), (), limit=20), "values", (1e-3,))[1e-3]
    assert alone is not None
    np.testing.assert_allclose(outcome.after["nll"], alone.after["nll"])  # a mean over models
    gap = (outcome.after["nll"] - outcome.before["nll"])[outcome.behind]
    assert outcome.score("difference", "nll").value == pytest.approx(gap.mean())
    at, scores = outcome.by_distance("nll", 4)
    assert len(at) >= 2
    first = outcome.behind & (outcome.distance < 4)
    assert scores[0].value == pytest.approx((outcome.after["nll"] - outcome.before["nll"])[first].mean())
    assert set(outcome.before) == {"nll", "legal_accuracy", "token_accuracy", "tvd"}


def test_distances_that_few_instances_reach_are_left_out(runs: Path) -> None:
    """A mean over one instance would have an error of 0."""
    trained = load(runs / "tint")
    outcome = _outcomes([trained], "test", Place(share=0.5), Plan((), (), limit=20), "values", (1e-3,))[1e-3]
    assert outcome is not None
    longest = np.argsort(outcome.behind.sum(1))[-4:]
    for n, bins in ((4, 1), (3, 0)):
        few = np.isin(np.arange(len(outcome.behind)), longest[-n:])[:, None]
        at, scores = replace(outcome, behind=outcome.behind & few).by_distance("nll", 10**6)
        assert len(at) == len(scores) == bins


def test_errors_of_an_outcome_are_over_problems(runs: Path) -> None:
    """Instances of one problem are added up: each instance twice gives the error of the instances once."""
    trained = load(runs / "tint")
    once = _outcomes([trained], "test", Place(share=0.5), Plan((), (), limit=10), "values", (1e-3,))[1e-3]
    assert once is not None
    assert once.problem is None
    twice = {name: {k: np.repeat(v, 2, axis=0) for k, v in getattr(once, name).items()} for name in ("before", "after")}
    behind, distance = np.repeat(once.behind, 2, axis=0), np.repeat(once.distance, 2, axis=0)
    shared = Outcome(**twice, behind=behind, distance=distance, problem=np.repeat(np.arange(10), 2))
    apart = Outcome(**twice, behind=behind, distance=distance)
    expected = once.score("difference", "nll")
    assert shared.score("difference", "nll").value == pytest.approx(expected.value)
    assert shared.score("difference", "nll").stderr == pytest.approx(expected.stderr)
    assert apart.score("difference", "nll").stderr < 0.75 * expected.stderr


def test_bayes_stands_beside_on_the_same_positions(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores behind the segment, by hand from its predictions; and the cache of baselines is asked first."""
    trained = load(runs / "tint")
    track, instances = trained.track, trained.track.instances("test")
    ((bayes, *_),) = [defaults_of("bayes", track, instances)]
    outcome = _outcomes([trained], "test", Place(share=0.4), Plan((), (), limit=6), "full", (1e-2,))[1e-2]
    assert outcome is not None
    asked = []
    monkeypatch.setattr(adaptation, "predict_baseline", lambda *a: asked.append(a[2]) or predict_baseline(*a))
    (row,) = beside([Row("tint", Place(share=0.4), "full", {}, 1e-2, outcome)], bayes, track, "test")
    assert asked[0].fingerprint == instances.fingerprint
    nll, tvd, truth = [], [], track.task.truth(instances[:6])
    predicted = bayes.predict(instances[:6].tokens)
    for n, t in zip(*np.nonzero(outcome.behind), strict=True):
        nll.append(-np.log(predicted[n, t, instances.tokens[n, t]]))
        tvd.append(0.5 * np.abs(predicted[n, t] - truth[n, t]).sum())
    assert row.outcome.score("reference", "nll").value == pytest.approx(np.mean(nll))
    assert row.outcome.score("reference", "tvd").value == pytest.approx(np.mean(tvd))
    before, after = (outcome.score(which, "nll").value for which in ("before", "after"))
    assert row.outcome.share_of_gap("nll") == pytest.approx((after - before) / (np.mean(nll) - before))
    at, scores = row.outcome.by_distance("nll", 100, "reference")
    assert len(at) == 1
    assert scores[0].value == pytest.approx(np.mean(nll))


@pytest.mark.ci
def test_the_command(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = [str(runs / "tint"), str(runs / "lstm"), "--at", "0.5", "--rates", "1e-3,1e-4", "--limit", "20"]
    assert cli.main(["adapt", *arguments, "--table", str(tmp_path / "t.md")]) == 0
    out, progress = capsys.readouterr()
    steps = ("tint: segment 50 %", "lstm: segment 50 %", "Bayes: the same positions")
    assert progress.splitlines() == [f"done: {step}" for step in steps]
    assert "tiny-v1, test split, at most 20 instances: behind a segment" in out
    table = (tmp_path / "t.md").read_text()
    lines = [line for line in table.splitlines() if line.startswith(("| run", "| tint", "| lstm"))]
    head, *cells = [line.strip("| ").split(" | ") for line in lines]
    assert head[:4] == ["run", "segment", "way", "rate"]
    assert [line[:3] for line in cells] == [
        *(["tint", "50 %", way] for way in ("full", "values", "tint")),
        ["lstm", "50 %", "full"],
    ]
    assert "TVD of gap" in head
    assert "…" not in out
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["split"] for row in rows} == {"validation", "test"}
    whole = [row for row in rows if row["distance"] == "all" and row["split"] == "test" and row["metric"] == "nll"]
    for row, line in zip(whole, cells, strict=True):
        assert float(row["after"]) - float(row["before"]) == pytest.approx(float(row["difference"]), abs=1e-5)
        shown = dict(zip(head, line, strict=True))
        change = shown["NLL difference"].split(" ±")
        assert float(change[0]) == pytest.approx(float(row["difference"]), abs=6e-5)
        assert float(change[1]) == pytest.approx(float(row["stderr"]), abs=6e-5)
        assert float(shown["NLL ↓"]) == pytest.approx(float(row["before"]), abs=6e-4)
        assert float(shown["Bayes NLL"]) == pytest.approx(float(row["reference"]), abs=6e-4)
    assert [row for row in rows if row["distance"] != "all"]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_tint_does_not_simulate_has_the_true_gradient(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --how; and where every rate harms, that is told in the place of the end of the rates."""
    assert cli.main(["adapt", str(runs / "rotary"), "--at", "0.5", "--rates", "0.5,1", "--limit", "8"]) == 0
    out = capsys.readouterr().out
    assert "full" in out
    assert "values" not in out.partition("NLL in nats.")[0]
    assert "rotary: no rate gains on validation, and smaller --rates may, for full at 50 %." in " ".join(out.split())
    assert "the chosen rate is" not in out


def test_where_a_segment_ends() -> None:
    """0.7 times 90 is a little below 63 in floating point."""
    lengths = np.array([90, 170, 10, 3])
    assert Place(share=0.7).cuts(lengths).tolist() == [63, 119, 7, 2]
    assert Place(share=0.1).cuts(lengths).tolist() == [9, 17, 1, 1]
    assert Place(tokens=20).cuts(lengths).tolist() == [20, 20, 10, 3]


def test_angles_are_a_mean_over_instances(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["adapt", str(runs / "tint"), "--at", "0.5", "--angles", "--limit", "8"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "block 1" in line)
    trained, place = load(runs / "tint"), Place(share=0.5)
    instances = trained.track.instances("test")[:8]
    tokens = token_tensor(instances.tokens, torch.device("cpu"))
    counted = torch.arange(tokens.shape[1]) < torch.from_numpy(place.cuts(instances.lengths))[:, None]
    cosine = explicit.angles(trained.model, tokens, counted)["block 1"]["values"].double().numpy()
    assert f"{cosine.mean():.3f} ±{cosine.std(ddof=1) / 8**0.5:.3f}" in line

    monkeypatch.setattr(Instances, "problem", property(lambda self: np.arange(len(self)) // 2))
    over_pairs = measure_angles([trained], "tint", place, "test", 8)[0].measures["values"]
    assert over_pairs.stderr == pytest.approx(cosine.reshape(4, 2).mean(1).std(ddof=1) / 4**0.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tint", "--at", "1.5"], "--at takes shares above 0 and below 1, not '1.5'"),
        (["tint", "--tokens", "1e30"], "tokens leaves nothing behind it: the longest instance has "),
        (["tint", "--tokens", "900"], "a segment of 900 tokens leaves nothing behind it: the longest instance has "),
        (["tint", "--how", "valeus"], "--how knows no 'valeus'; did you mean 'values'?"),
        (["tint", "--how", "distill"], "tint: a model that takes steps of its own while it reads cannot be distilled"),
        (["lstm", "--how", "tint"], "lstm: TinT does not simulate LSTM. Give --how full"),
        (["rotary", "--how", "tint"], "rotary: TinT simulates no rotary positions. Give --how full"),
        (["heads", "--how", "full,values"], "heads: TinT simulates no n-gram heads. Give --how full"),
        (["conv", "--layers", "1"], "conv: TinT simulates no short_conv"),
        (["lstm", "--layers", "1"], "--layers is not for "),
        (["tint", "--layers", "4"], "4 layers cannot change: the model has 1"),
        (["tint", "--rates", "0"], "--rates takes numbers above 0"),
        (
            ["tint", "--rates", "1e30", "--at", "0.5"],
            "tint: the rate 1e+30 diverges on test for full at 50 %: give smaller --rates",
        ),
        (["tint", "--table", "t.txt"], "--table takes the name of a Markdown file, FILE.md, not 't.txt'"),
        (["gone"], "gone holds no run: there is no config.yaml"),
        (["tint", "--angles", "--tokens", "1"], "a segment of one token has no scores to look at: give --tokens 2 or"),
        (["lstm", "--angles"], "lstm: TinT does not simulate LSTM"),
        (["tint", "--angles", "--how", "full"], "--how is not for --angles, which takes no step"),
        (["tint", "--angles", "--rates", "1e-3"], "--rates is not for --angles, which takes no step"),
        (["tint", "--queries", "4"], "--queries is for --how distill: nothing else samples texts"),
        (["tint", "--steps", "inf"], "--steps takes whole numbers above 0, not 'inf'"),
    ],
)
def test_bad_input_is_told_in_one_line(
    runs: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["adapt", str(runs / arguments[0]), *arguments[1:], "--limit", "8"], words)


@pytest.mark.slow
def test_on_text_a_simulated_step_gains(tmp_path: Path) -> None:
    """Claim T1 of docs/papers/tint.md on one seed, with the whole training and the rates of its table: minutes.

    All 300 windows: errors are over their 25 documents, and 60 windows decide nothing.
    """
    runner.run("text-small-v1", "tint", out=tmp_path / "tint")
    trained, gains = load(tmp_path / "tint"), {}
    for ways, rate in ((("values", "tint"), 2e-3), (("full",), 1e-3)):
        rows = adapt_run([trained], "tint", Place(share=0.5), Plan(ways, (rate,), limit=300), "test")
        gains |= {row.way: row.outcome.score("difference", "nll") for row in rows}
    assert -gains["tint"].value > 3 * gains["tint"].stderr
    assert gains["values"].value == pytest.approx(gains["tint"].value, rel=0.02)
    assert 0.3 < gains["tint"].value / gains["full"].value < 1.1
