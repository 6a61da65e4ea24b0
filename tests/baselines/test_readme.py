"""baselines/README.md keeps its word: its tables are what was measured, by the code that is there; its example runs."""

from __future__ import annotations

import doctest
import re

import pytest

from baselines.ngram import NGram
from baselines.oracle import Oracle
from baselines.uniform import Uniform
from regbench.evaluation.baselines import default_baselines
from regbench.metrics.scores import score
from regbench.models.predictor import predict_in_batches
from regbench.report.baseline_table import markdown, numbers_of, read_table
from regbench.tracks import load_track
from regbench.utils import registry
from tests.benchmarks import bayes_quality
from tests.helpers.documents import ROOT

PAGE = ROOT / "baselines" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
TABLE = read_table(numbers_of(PAGE))
TRACKS = ("pfa-small-v1", "pfa-v1", "pfa-reference-v1")
CHEAP = (Uniform, NGram, Oracle)


def printed(track: str, name: str) -> list[str]:
    """The cells of one row of one track's table."""
    part = TEXT.partition(f"### {track}\n")[2].partition("###")[0]
    (row,) = (line for line in part.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_page_shows_the_numbers() -> None:
    assert list(TABLE.tracks) == list(TRACKS)
    assert markdown(TABLE) in TEXT


@pytest.mark.parametrize("name", TRACKS)
def test_the_numbers_are_of_this_code_these_options_and_this_split(name: str) -> None:
    """Where this fails, `make baselines` measures anew what has changed, and takes the rest from the cache."""
    track = load_track(name)
    test, measured = track.instances("test"), TABLE.tracks[name]
    assert (measured.split, measured.instances) == (test.fingerprint, 500)
    there = {baseline.name: baseline for baseline in default_baselines(track, test)}
    assert set(measured.rows) == set(there)
    for row_name, row in measured.rows.items():
        baseline = there[row_name]
        assert row.options == {k: list(v) if isinstance(v, tuple) else v for k, v in baseline.options.items()}
        assert row.version == baseline.version, f"{row_name} has a new version since it was measured"


def recompute(track_name: str, kinds: tuple[type, ...] | None) -> None:
    track = load_track(track_name)
    test = track.instances("test")
    for baseline in default_baselines(track, test):
        if kinds is None or isinstance(baseline, kinds):
            scores = score(track.task, test, predict_in_batches(baseline, test))
            cells = [f"{scores[m].value:.3f} ± {scores[m].stderr:.3f}" for m in TABLE.tracks[track_name].metrics]
            assert printed(track_name, baseline.name)[1:5] == cells


def test_the_cheap_rows_are_reproduced_to_the_last_digit() -> None:
    recompute("pfa-small-v1", CHEAP)


@pytest.mark.parametrize("name", [name for name in TRACKS if name != "pfa-small-v1"])
def test_a_row_of_the_larger_tracks_is_reproduced(name: str) -> None:
    track = load_track(name)
    test, io = track.instances("test"), track.task.io
    scores = score(track.task, test, predict_in_batches(NGram(3, io.vocab_size, io.separator), test))
    assert printed(name, "3-gram")[3] == f"{scores['tvd'].value:.3f} ± {scores['tvd'].stderr:.3f}"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKS)
def test_every_row_is_reproduced_to_the_last_digit(name: str) -> None:
    """Up to eight minutes of a core a track."""
    recompute(name, None)


@pytest.mark.parametrize("name", TRACKS)
def test_bayes_wins_by_more_than_three_standard_errors(name: str) -> None:
    track = TABLE.tracks[name]
    assert track.best == "Bayes"
    for row_name, row in track.rows.items():
        if row_name == "Bayes":
            continue
        for metric in ("tvd", "nll"):
            assert metric in track.losses
            gap = row.difference[metric]
            assert gap.value == pytest.approx(
                row.scores[metric].value - track.rows["Bayes"].scores[metric].value, abs=1e-9
            )
            assert (gap.value < 0) if row_name == "oracle" else (gap.value > 3 * gap.stderr)


def test_every_baseline_and_option_is_named() -> None:
    for name in registry.entries(registry.BASELINE):
        assert f"| `{name}.py` |" in TEXT
    track = load_track("pfa-small-v1")
    for baseline in default_baselines(track, track.instances("test")):
        (row,) = (line for line in TEXT.splitlines() if re.match(rf"\| `\w+\.py` \|[^|]*\b{baseline.name}\b", line))
        names = [*baseline.options] if baseline.name != "Bayes" else ["prior", *[*baseline.options][3:]]
        assert all(f"`{name}`" in row for name in names)


def test_the_example_gives_what_it_says() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    parsed = doctest.DocTestParser().get_doctest(example, {}, "README", str(PAGE), 0)
    assert len(parsed.examples) >= 6
    assert doctest.DocTestRunner().run(parsed).failed == 0


# --- What time buys Bayes. ---


def test_the_picture_and_the_table_of_settings_are_of_the_same_numbers() -> None:
    points = bayes_quality.read()
    assert bayes_quality.table(points) in TEXT
    settings = [(p.hypotheses, p.moves) for p in points]
    assert settings == [(h, m) for h, moves in bayes_quality.SETTINGS.items() for m in moves]
    figure = bayes_quality.draw(points, bayes_quality.best_ngram())
    drawn = {tuple(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert all(tuple(p.tvd for p in points if p.hypotheses == h) in drawn for h in bayes_quality.SETTINGS)
    track = load_track(bayes_quality.TRACK)
    (bayes,) = (b for b in default_baselines(track, track.instances("validation")) if b.name == "Bayes")
    assert (bayes.options["hypotheses"], bayes.options["moves"]) == bayes_quality.DEFAULT


@pytest.mark.ci
def test_a_setting_is_reproduced() -> None:
    (promised,) = (p for p in bayes_quality.read() if (p.hypotheses, p.moves) == (25, 0))
    track = load_track(bayes_quality.TRACK)
    few = track.instances("validation")[: bayes_quality.INSTANCES]
    (default,) = (b for b in default_baselines(track, few) if b.name == "Bayes")
    found = type(default)(default.prior, default.vocab_size, default.separator, 25, 0)  # type: ignore[attr-defined, call-arg]
    scores = score(track.task, few, predict_in_batches(found, few))
    assert scores["tvd"].value == pytest.approx(promised.tvd, abs=1e-6)
    assert scores["nll"].value == pytest.approx(promised.nll, abs=1e-6)


def test_quality_reaches_a_plateau() -> None:
    """The first moves are worth much; three times the default's moves, or four times its hypotheses, hardly anything."""
    points = {(p.hypotheses, p.moves): p for p in bayes_quality.read()}
    for metric in ("tvd", "nll"):
        first = getattr(points[100, 0], metric) - getattr(points[100, 3], metric)
        for further in ((100, 108), (400, 36)):
            assert abs(getattr(points[further], f"{metric}_change")) < first / 5
    more_moves, more_hypotheses, fewer = points[100, 108], points[400, 36], points[25, 108]
    assert f"lower the TVD by {-more_moves.tvd_change:.3f} and {-more_hypotheses.tvd_change:.3f}." in TEXT
    assert points[400, 0].nll > bayes_quality.best_ngram()["nll"].value
    assert abs(fewer.tvd - more_moves.tvd) < more_moves.tvd_stderr
    assert fewer.seconds < 0.3 * min(more_moves.seconds, more_hypotheses.seconds)
