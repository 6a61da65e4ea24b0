"""What people look at after a run: the page holds the run's own figures, escapes what is not ours, and works in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regbench
from regbench import cli
from regbench.evaluation.predictions import Predictions
from regbench.metrics.metric import METRICS, score_positions
from regbench.metrics.scores import score
from regbench.report.content import human_bytes, human_growth, human_seconds, score_rows
from regbench.report.instances import MOST_ROWS, Drawn, _shown_tokens, choose, layout
from regbench.report.page import build_report, render_page, track_of, write_report
from regbench.results import Code, Curve, Result, ScoreRecord, read_result
from regbench.tracks import Track
from regbench.utils.errors import UserError
from regbench.utils.files import read_arrays
from tests.conftest import drawing
from tests.helpers.browser import Visit, data_of, needs_chromium, visit
from tests.helpers.typed import AVERAGE, refused

HOSTILE = "</script><script>problems.push('ran')</script><img src=x onerror=problems.push('ran')>\"'&\u2028"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Path:
    """The folder of a run of two seeds."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "average.py").write_text(AVERAGE)
    settings = {"d_model": 8, "training.batch_size": 8, "training.evaluations": 3}
    with drawing():
        regbench.run(str(tiny_file), str(folder / "average.py"), (0, 1), settings=settings, out=folder / "run")
    return folder / "run"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def result(finished: Path) -> Result:
    return read_result(finished)


@pytest.fixture(scope="module")
def models(finished: Path) -> list[Predictions]:
    return [Predictions.from_arrays(read_arrays(finished / f"seed-{seed}" / "predictions.npz")) for seed in (0, 1)]


def reading(models: list[Predictions]) -> list[Callable[[], Predictions]]:
    """As `layout` takes them."""
    return [lambda model=model: model for model in models]


class TestThePage:
    def test_a_run_writes_it_and_the_command_writes_the_same_bytes(
        self, folder: Path, drawn: None, tiny_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [folder / name for name in ("report.html", "score_by_position.png", "training.png")]
        written = [path.read_bytes() for path in paths]
        for path in paths:
            path.unlink()
        assert cli.main(["report", str(folder), "--track", str(tiny_file)]) == 0
        assert capsys.readouterr().out.strip() == str(folder / "report.html")
        assert [path.read_bytes() for path in paths] == written

    def test_it_holds_the_scores_of_the_result(self, finished: Path, result: Result) -> None:
        html = (finished / "report.html").read_text()
        for row in score_rows(result, METRICS):
            for record in row.scores.values():
                assert f'>{record.value:.3f} <span class="err">± {record.stderr:.3f}</span>' in html
        series = {one["name"]: one for one in data_of(html)["series"]}
        assert set(series) == {"average", *result.baselines}
        assert len(series["average"]["curves"]["tvd"]) == 2
        curve = result.baselines["3-gram"].curves["tvd"]
        assert series["3-gram"]["curves"]["tvd"][0][0] == [round(curve.position[0], 1), round(curve.value[0], 4)]
        training = data_of(html)["training"][1]
        assert [p[0] for p in training["points"]] == [p.tokens for p in result.seeds[1].training_curve]

    def test_its_first_line_names_the_neighbours(self, result: Result) -> None:
        scores = {name: record.scores["legal_accuracy"].value for name, record in result.baselines.items()}
        own = result.score("legal_accuracy").value
        below = max((name for name in scores if scores[name] < own), key=scores.__getitem__)
        above = min((name for name in scores if scores[name] > own), key=scores.__getitem__)
        lead = f"legal accuracy (mean of 2 seeds), ahead of {below}, behind {above}"
        assert lead in " ".join(re.sub("<[^>]+>", "", build_report(result)).split())

    def test_it_says_the_best_step_of_each_seed_and_the_state_of_the_code(self, result: Result) -> None:
        page = " ".join(build_report(result).split())
        for seed in result.seeds:
            assert f"seed {seed.seed}: step {seed.best_step:,} of {seed.steps:,}" in page
        for commit, dirty, said in (
            ("c" * 40, False, "cccccccccccc"),
            ("c" * 40, True, "cccccccccccc, changed since"),
            (None, None, "none"),
        ):
            other = result.model_copy(update={"code": Code(commit=commit, dirty=dirty)})
            found = re.search(r">commit</\w+>\s*<\w+[^>]*>([^<]*)<", build_report(other))
            assert found is not None
            assert found[1].strip() == said

    def test_it_needs_nothing_but_itself(self, finished: Path) -> None:
        html = (finished / "report.html").read_text()
        assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|fetch\(|XMLHttp|import\(""", html)
        assert "default-src 'none'" in html

    def test_instances_are_missing_where_the_predictions_are(self, folder: Path, result: Result, tiny: Track) -> None:
        (folder / "seed-1" / "predictions.npz").unlink()
        html = write_report(folder, result, tiny).read_text()
        assert "Not shown: the predictions of seed 1 are not in the run&#39;s folder." in html
        assert data_of(html)["strips"] is None
        with pytest.raises(UserError, match="instance 3 cannot be shown: the predictions of seed 1"):
            write_report(folder, result, tiny, 3)

    def test_the_track_is_the_one_the_run_was_made_on(self, folder: Path, result: Result, tiny_file: Path) -> None:
        found = track_of(result, folder, str(tiny_file))
        assert found is not None
        assert found.definition.digest == result.track.digest
        edited = folder / "edited.yaml"
        edited.write_text(tiny_file.read_text().replace("seed: 3", "seed: 4"))
        with pytest.raises(UserError, match="edited.yaml is not the tiny-v1 that this run was made on"):
            track_of(result, folder, str(edited))
        assert track_of(result, folder) is None
        assert cli.main(["report", str(folder)]) == 0
        assert "the track tiny-v1 that this run was made on is not here" in (folder / "report.html").read_text()

    def test_a_task_of_other_scores_and_of_progress(self, result: Result) -> None:
        """As the tasks of vectors have them: MSE, curves by a progress of their own, a loss of another name."""
        curve = Curve(position=[0.0, 1.0], value=[4.0, 0.5], count=[9, 9], stderr=[0.1, 0.1], axis="examples before")

        def renamed(record: Any) -> Any:
            return record.model_copy(update={"scores": {"mse": record.scores["tvd"]}, "curves": {"mse": curve}})

        seed = renamed(result.seeds[0])
        losses = [point.model_copy(update={"loss": {"mse": 1.0, "other": 9.0}}) for point in seed.training_curve]
        changed = result.model_copy(
            update={
                "seeds": [seed.model_copy(update={"training_curve": losses})],
                "baselines": {name: renamed(record) for name, record in result.baselines.items()},
                "track": result.track.model_copy(update={"main_score": "mse"}),
            }
        )
        data = data_of(build_report(changed))
        assert data["metrics"][0]["label"] == "MSE"
        assert data["metrics"][0]["axis"] == "examples before"
        assert data["series"][0]["curves"] == {"mse": [[[0.0, 4.0], [1.0, 0.5]]]}
        assert data["training"][0]["points"][0][1] == 1.0


class TestTheCommand:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["{run}", "--instance", "24"], "there is no test instance 24: they are numbered 0 to 23"),
            (["{run}", "--instance", "-1"], "there is no test instance -1"),
            (["{run}/nowhere"], "nowhere is not the folder of a run"),
            (["{run}/seed-0"], "seed-0 holds no run: there is no result.json"),
            (["{run}/result.json"], "result.json is not the folder of a run; the run is its folder, {run}"),
        ],
    )
    def test_wrong_input(
        self, finished: Path, tiny_file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = (finished / "report.html").read_bytes()
        words = [word.format(run=finished) for word in arguments]
        refused(capsys, ["report", *words, "--track", str(tiny_file)], message.format(run=finished))
        assert (finished / "report.html").read_bytes() == before

    def test_predictions_that_were_not_scored(
        self, folder: Path, tiny_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        predictions = Predictions.from_arrays(read_arrays(folder / "seed-0" / "predictions.npz"))
        changed = predictions.packed.copy()
        changed[5] = changed[6]
        Predictions(changed, predictions.lengths).save(folder / "seed-0" / "predictions.npz")
        for command in (["report", str(folder)], ["compare", str(folder), "2-gram"], ["errors", str(folder)]):
            assert cli.main([*command, "--track", str(tiny_file)]) == 2
            line = "the stored predictions of seed 0 are not those that result.json scored"
            assert line in capsys.readouterr().err, command

    def test_an_instance_of_ones_choice_comes_first(self, folder: Path, tiny_file: Path) -> None:
        assert cli.main(["report", str(folder), "--instance", "7", "--track", str(tiny_file)]) == 0
        instances = data_of((folder / "report.html").read_text())["strips"]["instances"]
        assert instances[0]["index"] == 7
        others = [why for why in ("the worst", "the median", "the best") if why != instances[0]["why"]]
        assert [one["why"] for one in instances[1:]] == others


class TestInstances:
    def test_worst_median_and_best(self) -> None:
        badness = np.array([0.3, 0.9, 0.1, 0.5, 0.7])
        assert list(choose(badness).items()) == [(1, "the worst"), (3, "the median"), (2, "the best")]
        assert list(choose(badness, 4)) == [4, 1, 3, 2]
        assert choose(badness, 4)[4] == "number 2 from the worst"
        assert next(iter(choose(badness, 3).items())) == (3, "the median")
        assert list(choose(np.array([0.5]))) == [0]
        some = np.array([np.nan, 0.9, 0.1, np.nan, 0.7])  # NaN: nothing counts there
        assert choose(some) == {1: "the worst", 4: "the median", 2: "the best"}
        assert next(iter(choose(some, 3).items())) == (3, "no position counts")

    def test_they_are_chosen_by_the_mean_tvd_of_the_models(self, tiny: Track, models: list[Predictions]) -> None:
        test = tiny.instances("test")
        tables = [score(tiny.task, test, model.batches()) for model in models]
        mean = np.mean([t.sums["tvd"] / t.counts for t in tables], axis=0)
        drawn = layout(tiny.task, test, reading(models))
        assert drawn["metric"] == "tvd"
        assert drawn["instances"][0]["index"] == int(mean.argmax())
        assert drawn["instances"][-1]["index"] == int(mean.argmin())
        assert np.mean(drawn["instances"][0]["scores"]) == pytest.approx(mean.max(), abs=1e-4)

    def test_what_is_drawn_is_what_was_predicted(self, tiny: Track, models: list[Predictions]) -> None:
        drawn = layout(tiny.task, tiny.instances("test"), reading(models), 5)["instances"]
        assert drawn[0]["index"] == 5
        for one in drawn:
            self.check(tiny, models, one)
        assert sum(len(model["illegal"]) for one in drawn for model in one["models"]) > 0

    def check(self, tiny: Track, models: list[Predictions], drawn: dict[str, Any]) -> None:
        test, n = tiny.instances("test"), drawn["index"]
        length = int(test.lengths[n])
        assert drawn["tokens"] == [tiny.task.io.names[v] for v in test.tokens[n, :length]]
        assert drawn["scored"] == test.scored[n, :length].tolist()
        truth = tiny.task.truth(test)[n]
        for model, stored in zip(drawn["models"], models, strict=True):
            predicted = next(stored.batches(len(test)))[n]
            metrics = score_positions(predicted, truth, test.tokens[n])
            for t in range(length):
                if not drawn["scored"][t]:
                    assert drawn["truth"][t] == model["p"][t] == []
                    assert str(t) not in model["illegal"]
                    continue
                np.testing.assert_allclose(np.array(model["p"][t]) / 1000, predicted[t], atol=5.1e-4)
                np.testing.assert_allclose(np.array(drawn["truth"][t]) / 1000, truth[t], atol=5.1e-4)
                assert (str(t) in model["illegal"]) == (metrics["legal_accuracy"][t] == 0)
                assert model["tvd"][t] == pytest.approx(metrics["tvd"][t], abs=5.1e-4)
                assert model["nll"][t] == pytest.approx(metrics["nll"][t], abs=5.1e-4)

    def test_a_large_vocabulary_shows_its_heaviest_tokens(self) -> None:
        rng = np.random.default_rng(0)
        distributions = rng.dirichlet(np.full(400, 0.02), (2, 30))
        sampled = np.array([399] * 20 + [0] * 10)
        shown = _shown_tokens(distributions, sampled)
        assert len(shown) == MOST_ROWS
        assert (np.diff(shown) > 0).all()
        assert {0, 399} <= set(shown.tolist())
        left_out = np.setdiff1d(np.arange(400), shown)
        assert distributions.sum((0, 1))[left_out].max() <= distributions.sum((0, 1))[shown][1:-1].min()
        assert _shown_tokens(distributions[..., :40], np.array([1])).tolist() == list(range(40))


def frame(data: dict[str, Any], title: str = "") -> str:
    """A page with nothing in it but its data and a script."""
    scripts = ["report/assets/chart.js", "report/assets/texts.js"]
    return render_page("report/templates/frame.html", data=data, styles=[], scripts=scripts, title=title)


class TestPieces:
    def test_embedded_data_is_inert_and_whole(self) -> None:
        data = {"a": [HOSTILE, 1.5, None, "<!--"]}
        html = frame(data)
        found = re.search(r'<script type="application/json" id="data">(.*)</script>\n<script>', html)
        assert found is not None
        assert not set("<>&\u2028") & set(found[1])
        assert json.loads(found[1]) == data
        with pytest.raises(ValueError, match="JSON compliant"):
            frame({"a": float("nan")})

    def test_a_page_allows_its_own_scripts_only(self) -> None:
        """A browser runs a script of which the policy has the digest."""
        html = frame({}, title="t <")
        assert "<title>t &lt;</title>" in html
        policy = re.search(r"script-src ([^;\"]*)\">", html)
        assert policy is not None
        scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        assert policy[1].split() == [f"'sha256-{digest}'" for digest in digests]
        assert len(digests) == 2

    @pytest.mark.parametrize(
        ("share", "bar", "shown"), [(0.553, "55%", "55"), (-0.9, "0%", "-90"), (1.2, "100%", "120")]
    )
    def test_bars_stay_in_their_cells(self, share: float, bar: str, shown: str, result: Result) -> None:
        start = next(b.scores["legal_accuracy"].value for b in result.baselines.values() if b.anchor == "start")
        record = ScoreRecord(value=start + share * (1 - start), stderr=0.0)
        seed = result.seeds[0].model_copy(update={"scores": {**result.seeds[0].scores, "legal_accuracy": record}})
        html = build_report(result.model_copy(update={"seeds": [seed]}))
        (row,) = re.findall(r'<tr class="model">(.*?)</tr>', html, flags=re.DOTALL)
        assert f'style="--share:{bar}"><span>{shown}</span>' in row

    def test_figures_for_people(self) -> None:
        assert [human_bytes(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
            "0 B", "1023 B", "1.5 KiB", "3.0 MiB", "5.0 GiB",
        ]  # fmt: skip
        assert human_bytes(None) == "grows with L"
        assert human_growth({"128": 1536, "1024": 12 << 10}) == "1.5 KiB at 128, 12.0 KiB at 1,024"
        assert human_growth({}) == "unknown"
        assert [human_seconds(s) for s in (8.46, 59.96, 160, 7260)] == ["8.5 s", "1 min 0 s", "2 min 40 s", "2 h 1 min"]


_LOOK = """
await frame();
const seen = { lines: all("#position svg path").length, wide: document.documentElement.scrollWidth <= innerWidth };
seen.rows = all("tbody tr").length;
seen.colour = getComputedStyle(document.body).backgroundColor;
seen.metric = one("#position svg text.strong").textContent;
all("#metric input")[2].click();
seen.otherMetric = one("#position svg text.strong").textContent;
one("#position-legend input").click();
seen.fewerLines = all("#position svg path").length;
seen.about = one("#about").textContent;
seen.crosses = all("#strips .illegal").length;
seen.strips = all("#strips .ground").length / all("#strips svg").length;
all("#strip-controls input[type=checkbox]").at(-1).click();
seen.withDifference = all("#strips .ground").length / all("#strips svg").length;
const strip = one("#strips svg");
strip.focus();
strip.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
strip.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
seen.tip = one("#tip").innerText;
document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
seen.tipGone = one("#tip").hidden;
all("#strip-controls input[type=radio]").at(-1).click();
seen.aboutLast = one("#about").textContent;
const box = one("#position svg").getBoundingClientRect();
one("#position svg").dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 60 }));
seen.pointed = one("#tip").innerText;
return seen;
"""


@pytest.fixture(scope="module")
def phone(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """What a narrow, dark window saw."""
    return visit(
        (finished / "report.html").read_text(), _LOOK, tmp_path_factory.mktemp("browser"), width=375, dark=True
    )


@pytest.mark.ci
@needs_chromium
class TestInABrowser:
    def test_it_loads_and_responds_without_an_error(self, phone: Visit) -> None:
        assert phone.problems == []

    def test_tables_and_charts_are_there(self, phone: Visit, result: Result) -> None:
        seen = phone.outcome
        assert seen["rows"] == len(score_rows(result, METRICS))
        assert seen["metric"] == "legal accuracy ↑"
        assert seen["otherMetric"] == "TVD ↓"
        assert seen["lines"] - seen["fewerLines"] == 2  # both seeds
        assert "average" not in seen["pointed"]
        assert "3-gram" in seen["pointed"]

    def test_it_fits_a_phone_and_a_dark_room(self, phone: Visit) -> None:
        assert phone.outcome["wide"]
        assert phone.outcome["colour"] == "rgb(20, 23, 27)"

    def test_strips_show_where_it_errs(self, phone: Visit, finished: Path) -> None:
        seen = phone.outcome
        instance = data_of((finished / "report.html").read_text())["strips"]["instances"][0]
        assert seen["crosses"] == sum(len(model["illegal"]) for model in instance["models"])
        assert seen["strips"] == 3  # the truth and two seeds
        assert seen["withDifference"] == 5
        assert f"Test instance {instance['index']}, the worst of 24 by TVD" in seen["about"]
        assert "the best of 24" in seen["aboutLast"]
        assert f"position 1: {instance['tokens'][1]}" in seen["tip"]
        for model in instance["models"]:
            assert f"{model['tvd'][1]:.3f}" in seen["tip"]
        assert seen["tipGone"]

    def test_hostile_names_and_tokens_stay_text(
        self, result: Result, tiny: Track, models: list[Predictions], tmp_path: Path
    ) -> None:
        architecture = result.architecture.model_copy(update={"name": HOSTILE, "options": {HOSTILE: HOSTILE}})
        baselines = {f"{name} {HOSTILE}": baseline for name, baseline in result.baselines.items()}
        strips = layout(tiny.task, tiny.instances("test"), reading(models))
        for one in strips["instances"]:
            one["tokens"] = [HOSTILE] * len(one["tokens"])
            one["rows"] = [HOSTILE] * len(one["rows"])
        hostile = result.model_copy(update={"architecture": architecture, "baselines": baselines})
        script = """
          one("#strips svg").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
          await frame();
          const names = [one("h1"), one("#position-legend .name"), one("tbody th"), one("#tip b"), ...all("dt")];
          return [names.map((element) => element.textContent), all("img").length, all("script").length];
        """
        seen = visit(build_report(hostile, Drawn(strips)), script, tmp_path)
        assert seen.problems == []
        names, images, scripts = seen.outcome
        assert names[:4] == [f"{HOSTILE} on tiny-v1", HOSTILE, f"oracle {HOSTILE}", f"position 0: {HOSTILE}"]
        assert HOSTILE in names[4:]
        assert (images, scripts) == (0, 5)  # three of the page, two of this test
