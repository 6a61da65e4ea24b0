"""Scores side by side: paired differences from the first, their errors, and whether chance explains them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console

import regbench
from baselines.ngram import NGram
from regbench import cli
from regbench.cli.commands.run import _say_what_next
from regbench.config import Config, write_config
from regbench.evaluation.any_predictor import _name_of
from regbench.evaluation.baselines import default_baselines, predict_baseline, score_stored
from regbench.evaluation.comparison import score_table
from regbench.evaluation.find_predictors import KnownScores, find_predictors
from regbench.evaluation.measured_baselines import difference
from regbench.leaderboard.standing import Entries, standing_of
from regbench.leaderboard.store import stored_in, without_evidence
from regbench.metrics.metric import METRICS
from regbench.metrics.significance import Prior, Sample, default_prior, seed_error
from regbench.results import read_result
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from tests.conftest import TINY
from tests.helpers.published import ENTRIES, published


def test_baselines_differ_by_instances_alone(tiny: Track, tiny_file: Path) -> None:
    rows = score_table(find_predictors(["2-gram", "unigram", "oracle"], str(tiny_file)))
    assert [row.name for row in rows] == ["oracle", "2-gram", "unigram"]
    test = tiny.instances("test")
    kept = {b.name: b for b in default_baselines(tiny, test)}
    one, other = (
        score_stored(tiny, test, predict_baseline(kept[name], tiny, test).stored) for name in ("2-gram", "unigram")
    )
    difference = other.sums["legal_accuracy"] - one.sums["legal_accuracy"]
    residual = difference - difference.sum() / one.counts.sum() * one.counts
    n = len(residual)
    error = np.sqrt((residual**2).sum() / (n * (n - 1))) / one.counts.mean()
    change = rows[2].change
    assert change is not None
    assert change.change == pytest.approx(difference.sum() / one.counts.sum(), abs=1e-12)
    assert change.noise == pytest.approx(error)
    assert change.seeds == 0.0
    assert change.level == 0.025, "0.05, two-sided"
    assert (rows[0].verdict, rows[1].verdict, rows[1].change) == ("better", "", None)
    assert all(row.seeds == 0 for row in rows)


def test_the_best_is_first_where_lower_is_better(tmp_path: Path) -> None:
    path = tmp_path / "by-tvd-v1.yaml"
    path.write_text(yaml.safe_dump(TINY | {"name": "by-tvd-v1", "main_score": "tvd"}))
    rows = score_table(find_predictors(["2-gram", "unigram", "oracle"], str(path)))
    assert [(row.name, row.verdict) for row in rows] == [("oracle", "better"), ("2-gram", ""), ("unigram", "worse")]


def test_a_run_is_compared_with_the_noise_of_its_seeds(tiny: Track, tiny_file: Path, run_folder: Path) -> None:
    rows = {row.name: row for row in score_table(find_predictors(["2-gram", str(run_folder)], str(tiny_file)))}
    result, change = read_result(run_folder), rows["cgt"].change
    assert change is not None
    assert rows["cgt"].seeds == 2
    for metric, record in rows["cgt"].scores.items():
        assert record.value == pytest.approx(result.score(metric).value, abs=1e-12)
        assert record.stderr == pytest.approx(result.score(metric).stderr, abs=1e-12)
    assert change.change == pytest.approx(
        result.score("legal_accuracy").value - result.baselines["2-gram"].scores["legal_accuracy"].value, abs=1e-12
    )
    values = [seed.scores["legal_accuracy"].value for seed in result.seeds]
    prior, n = default_prior(METRICS["legal_accuracy"]), len(tiny.instances("test"))
    assert change.seeds == pytest.approx(seed_error([values], prior, n, same=False)[0]), "a baseline has no seeds"
    back = {row.name: row for row in score_table(find_predictors([str(run_folder), "2-gram"], str(tiny_file)))}
    assert back["2-gram"].change is not None
    assert back["2-gram"].change.p == pytest.approx(change.p), "the order of the names decides nothing"
    twice = {
        row.name: row for row in score_table(find_predictors([f"a={run_folder}", f"b={run_folder}"], str(tiny_file)))
    }
    assert twice["b"].change is not None
    error, _ = seed_error([values, values], prior, n, same=False)
    assert twice["b"].change.seeds == pytest.approx(error), "both have seeds there"
    assert (twice["b"].verdict, twice["b"].change.p) == ("tied", 1.0)


def test_a_model_from_elsewhere_counts_as_it_is(tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    learner = NGram(3, tiny.task.io.vocab_size, tiny.task.io.separator)
    regbench.evaluate(tiny, learner, out=tmp_path / "mine", name="mine")
    regbench.evaluate(tiny, learner, out=tmp_path / "other", name="other", split="validation")
    rows = score_table(find_predictors(["2-gram", str(tmp_path / "mine")], str(tiny_file)))
    (mine,) = (row for row in rows if row.name == "mine")
    assert mine.seeds == 0
    assert mine.change is not None
    assert mine.change.seeds == 0.0
    with pytest.raises(UserError, match="is of the validation split"):
        find_predictors(["2-gram", str(tmp_path / "other")], str(tiny_file))


class OneEntry:
    """A board with one entry, whose name has a "="."""

    known = KnownScores("lstm=wide", {}, Sample([0.5], np.zeros(24)))

    def names(self, track: Track) -> list[str]:
        return [self.known.name]

    def scores(self, name: str, track: Track) -> KnownScores | None:
        return self.known if name == self.known.name else None

    def track_of(self, file: str) -> None:
        return None

    def prior(self, track: Track) -> Prior:
        return default_prior(METRICS["legal_accuracy"])


def test_the_name_of_an_entry_may_have_an_equals_sign(tiny_file: Path) -> None:
    assert find_predictors(["2-gram", "lstm=wide"], str(tiny_file), OneEntry()).names == ["2-gram", "lstm=wide"]
    assert find_predictors(["2-gram", "mine=lstm=wide"], str(tiny_file), OneEntry()).names == ["2-gram", "mine"]


def test_entries_of_the_board(tmp_path: Path) -> None:
    found = find_predictors(["2-gram", "mamba", "rwkv"], "pfa-small-v1", Entries())
    rows = {row.name: row for row in score_table(found)}
    entries = published("pfa-small-v1")
    for name in ("mamba", "rwkv"):
        assert rows[name].scores["tvd"].value == pytest.approx(entries[name].score("tvd").value)
        assert rows[name].seeds == 3
        assert rows[name].result == entries[name]
    (path,) = (one.path for one in stored_in(ENTRIES / "pfa-small-v1") if one.path.name.startswith("lstm-"))
    assert find_predictors(["2-gram", str(path)], "pfa-small-v1", Entries()).names[1] == "lstm"
    (other,) = (one.path for one in stored_in(ENTRIES / "bigram-small-v1") if one.path.name.startswith("lstm-"))
    assert find_predictors(["unigram", str(other)], None, Entries()).track.name == "bigram-small-v1"
    with pytest.raises(UserError, match=r"unknown predictor 'mmaba'; did you mean 'mamba'\?"):
        find_predictors(["2-gram", "mmaba"], "pfa-small-v1", Entries())
    with pytest.raises(
        UserError, match="is an entry of pfa-small-v1, not of assoc-recall-small-v1; give --track pfa-small-v1"
    ):
        find_predictors(["2-gram", str(path)], "assoc-recall-small-v1", Entries())
    evidence = path.with_name(f"{path.stem}.evidence.json")
    with pytest.raises(
        UserError, match=f"{evidence.name} says what stands behind an entry; the entry is .*{path.name}"
    ):
        find_predictors(["2-gram", str(evidence)], "pfa-small-v1", Entries())
    given = [
        "2-gram",
        *(str(one) for one in sorted(path.parent.glob(f"{path.stem}*.json"))),
    ]  # as a shell writes it out
    assert given[1:] == [str(evidence), str(path)]
    assert without_evidence(given) == ["2-gram", str(path)]
    assert without_evidence(given[:2]) == given[:2]
    broken = tmp_path / "pfa-small-v1" / path.name
    broken.parent.mkdir()
    broken.write_text(path.read_text().replace('"seed": 0', '"seed": 7', 1))
    with pytest.raises(UserError, match="is no whole entry: the digest is not that of the content"):
        find_predictors(["2-gram", str(broken)], "pfa-small-v1", Entries())


def test_what_each_was_trained_with_stands_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that budgets differ, and that some seeds learn and some do not."""
    monkeypatch.setenv("COLUMNS", "200")
    track, names = "pfa-small-v1", ["mamba", "mamba+train_tokens-1000000", "2-gram"]
    assert cli.main(["compare", *names, "--track", track]) == 0
    out = capsys.readouterr().out
    assert re.search(r"mamba .*66,816\s+19\.0 KiB\s+7,9\d\d,\d{3}\s+100 %", out)
    assert "budgets differ: mamba used 100 %, mamba+train_tokens-1000000 used 12 %" in out
    assert "learns in" not in out
    selective = "mad-selective-copying-small-v1"
    assert cli.main(["compare", "rwkv", "retnet", "--track", selective]) == 0
    out = capsys.readouterr().out
    assert re.search(r"retnet .*2 of 3\n", out)
    assert "budgets differ" not in out


def test_a_published_model_carries_its_own_name() -> None:
    assert _name_of(SimpleNamespace(name_or_path="someone/small-model")) == "small-model"
    assert _name_of(SimpleNamespace(name="mine", name_or_path="")) == "mine"
    assert _name_of(SimpleNamespace(name_or_path="")) == "SimpleNamespace"


@pytest.mark.ci
def test_the_rank_that_a_result_would_have() -> None:
    track = load_track("pfa-medium-v1")
    entries = published("pfa-medium-v1")
    budget = track.definition.budget.train_tokens  # an entry of less than nine tenths of it is not ranked
    entries = {name: e for name, e in entries.items() if max(seed.tokens for seed in e.seeds) >= 0.9 * budget}
    order = sorted(entries, key=lambda name: -entries[name].score("legal_accuracy").value)
    for place in (0, 5, len(order) - 1):
        standing = standing_of(entries[order[place]], track)
        assert standing is not None
        assert (standing.rank, standing.entries) == (place + 1, len(order))
        assert [name for name, _ in standing.above] == order[max(0, place - 3) : place]
        assert [name for name, _ in standing.below] == order[place : place + 3]


@pytest.mark.ci
def test_an_entry_that_cannot_be_read_has_no_rank_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one with the marks of an unfinished merge."""
    folder = tmp_path / "leaderboard" / "entries" / "pfa-small-v1"
    folder.mkdir(parents=True)
    (tmp_path / "leaderboard" / "RULES.md").write_text("")
    for stored in stored_in(ENTRIES / "pfa-small-v1"):
        if stored.entry.name in ("lstm", "mamba"):
            (folder / stored.path.name).write_bytes(stored.path.read_bytes())
    (folder / "gla-12345678.json").write_text("<<<<<<< HEAD")
    monkeypatch.chdir(tmp_path)
    standing = standing_of(published("pfa-small-v1")["lstm"], load_track("pfa-small-v1"))
    assert standing is not None
    assert (standing.rank, standing.entries) == (2, 2)


@pytest.mark.ci
def test_a_run_ends_with_its_rank_its_budget_and_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_file: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"d_model": 8, "training.train_tokens": 20_000}
    config = Config(track="pfa-small-v1", architecture="lstm", seeds=(0,), settings=settings)
    write_config(tmp_path, config)
    lstm = published("pfa-small-v1")["lstm"]
    few = [lstm.seeds[0].model_copy(update={"tokens": 20_000})]
    _say_what_next(lstm.model_copy(update={"seeds": few}), tmp_path, Console())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "less than 1 % of the track's budget of 8,000,000 training tokens used"
    assert lines[1] == "an entry of less than 90 % of the budget has no rank on the leaderboard"
    command = "regbench run --arch lstm --track pfa-small-v1 --seed 0 1 2 --set d_model=8"
    assert lines[2:] == [f"next, seeds 0, 1, 2 and the whole budget, as an entry needs: {command}"]
    _say_what_next(lstm.model_copy(update={"seeds": lstm.seeds[:1]}), tmp_path, Console())
    assert capsys.readouterr().out.splitlines()[-1] == f"next, seeds 0, 1, 2, as an entry needs: {command}"
    _say_what_next(lstm, tmp_path, Console())
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"it would be number \d+ beside \d+ entries; nearest above: \S+ 0\.\d{3}, .*; below: ", lines[0])
    assert lines[1:] == [
        "100 % of the track's budget of 8,000,000 training tokens used",
        f"next: regbench submit {tmp_path}",
    ]
    write_config(tmp_path, config.model_copy(update={"track": "pfa-small-v1?n_symbols=9"}))
    other = lstm.track.model_copy(update={"name": "pfa-small-n-symbols-9-v1"})
    _say_what_next(lstm.model_copy(update={"seeds": few, "track": other}), tmp_path, Console())
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"next: regbench compare {tmp_path} "), "a changed track has no board, and so no entries"
    small = ["--set", "d_model=8", "--set", "training.train_tokens=1000", "--seed", "0", "1", "2"]
    assert cli.main(["run", "--arch", "lstm", *small, "--out", "runs/b", "--track", str(tiny_file)]) == 0
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert re.fullmatch(r"1\d % of the track's budget of 6,000 training tokens used", lines[0])
    assert lines[1].startswith("next: regbench compare runs/b ")
    assert cli.main(lines[1].removeprefix("next: regbench ").split()) == 0


@pytest.mark.ci
def test_a_run_with_other_parameters_of_the_task_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that it prints, and by those that are given its folder alone. Chance has no predictions to compare."""
    monkeypatch.chdir(tmp_path)
    run = "run --arch lstm --track recall-reach-v1?beyond=[96] --out runs/a --set task.n_keys=200"
    assert cli.main([*run.split(), "--set", "d_model=8", "--set", "training.train_tokens=20000"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "next: regbench compare runs/a oracle --track 'recall-reach-v1?beyond=[96]&n_keys=200'"
    for command in (
        shlex.split(last)[2:],
        ["compare", "runs/a", "oracle"],
        ["errors", "runs/a", "oracle"],
        ["report", "runs/a"],
    ):
        assert cli.main(command) == 0
    assert "is not here" not in Path("runs/a/report.html").read_text()


def test_of_an_area_sizes_count_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The noise of two baselines is that of their paired difference, as `regbench baselines` has it."""
    track = load_track("automata-reach-v1")
    test = track.instances("test")
    kept = {b.name: b for b in default_baselines(track, test)}
    one, other = (
        score_stored(track, test, predict_baseline(kept[name], track, test).stored) for name in ("2-gram", "unigram")
    )
    row = next(row for row in score_table(find_predictors(["2-gram", "unigram"], track.name)) if row.change)
    assert row.change is not None
    assert row.change.noise == pytest.approx(difference(one, other)["area"].stderr)
    assert row.change.noise > 0.001


def test_runs_are_listed_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["ls", "runs"]) == 0
    assert capsys.readouterr().out == "no runs yet: `regbench run` makes them under runs/\n"
    for name in ("one", "two", "cut", "bad"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file in ("result.json", "config.yaml"):
            shutil.copy(run_folder / file, tmp_path / "runs" / name / file)
    (tmp_path / "runs" / "cut" / "result.json").unlink()
    (tmp_path / "runs" / "bad" / "result.json").write_text("{")
    shutil.copytree(tmp_path / "runs" / "one", tmp_path / "runs" / "deep" / "below" / "three")
    assert cli.main(["ls", "runs"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in out if ", in runs" in line] == ["tiny-v1, in runs", "cannot be read, in runs"]
    lines = {line.split()[0]: line for line in map(str.strip, out) if line}
    value = read_result(run_folder).score("legal_accuracy").value
    for name in ("one", "two", "deep/below/three"):
        assert re.search(rf"cgt\s+2\s+legal accuracy {value:.3f}\s+-?\d+", lines[name])
    assert "not finished" in lines["cut"]
    assert list(lines).index("bad") > list(lines).index("cannot")
    assert cli.main(["ls", "runs", "gone"]) == 2
    assert "there is no folder gone" in capsys.readouterr().err


def test_entries_of_a_reach_track_say_their_reach(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ENTRIES.parent.parent)
    assert cli.main(["compare", "lstm", "oracle", "--track", "recall-reach-v1"]) == 0
    assert "\nlstm: reach < 2 pairs\n" in capsys.readouterr().out


def test_training_options_and_tracks_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("pfa-small-v1", "linear-regression-small-v1")
    monkeypatch.setattr(
        "regbench.tracks.track_names", lambda: dict.fromkeys(names, "")
    )  # texts would be read for seconds
    assert cli.main(["ls", "training"]) == 0
    assert "learning_rate" in capsys.readouterr().out
    assert cli.main(["ls", "tracks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    (small,) = (line.split() for line in lines if line.startswith("pfa-small-v1"))
    count = len(stored_in(ENTRIES / "pfa-small-v1"))
    assert small[:7] == ["pfa-small-v1", "251", "9", "5,000", "8.0", "M", str(count)]
    assert int(small[7]) >= 1
