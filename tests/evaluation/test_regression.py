"""Records of scores, their comparison, and where two runs part; on measurements made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regbench
from regbench.evaluation.regression import (
    Measurement,
    RegressionOutcome,
    SeedMeasurement,
    measure,
    plain_settings,
    read_record,
    write_record,
)
from regbench.metrics.significance import Prior
from regbench.tracks import Track
from regbench.utils.errors import UserError


def made(tiny: Track, score: float = 0.8, **changes: Any) -> Measurement:
    """Three seeds around `score` on the tiny track's 24 test instances."""
    test = tiny.instances("test")
    counts = test.scored.sum(1)
    fields: dict[str, Any] = {
        "track": tiny.name,
        "track_digest": tiny.definition.digest,
        "test_fingerprint": test.fingerprint,
        "architecture": "average",
        "source_sha256": "0" * 64,
        "settings": {"d_model": 8},
        "metric": "legal_accuracy",
        "seeds": [
            SeedMeasurement(
                seed=i,
                score=score + 0.002 * (i - 1),
                training=[(10, 2.0, 2.1), (20, 1.5, 1.6), (30, 1.2, 1.3)],
                by_position=[score, score],
            )
            for i in range(3)
        ],
        "position": [1.5, 5.5],
        "position_count": [40, 60],
        "instances": (score * counts).tolist(),
        "counts": counts.tolist(),
        "environment": {"torch": "2.13.0", "processor": "A"},
    }
    return Measurement(**{**fields, **changes})


def with_seeds(measurement: Measurement, **changes: Any) -> Measurement:
    return measurement.model_copy(update={"seeds": [s.model_copy(update=changes) for s in measurement.seeds]})


def test_a_record_reads_back_as_written(tiny: Track, tmp_path: Path) -> None:
    record = made(tiny)
    write_record(tmp_path / "folder" / "record.json", record)
    assert read_record(tmp_path / "folder" / "record.json") == record
    text = (tmp_path / "folder" / "record.json").read_text()
    assert len(text.splitlines()) == len(Measurement.model_fields) + 2, "a field a line"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*No such file"),
        ("{", "record.json: Invalid JSON"),
        ('{"schema_version": 2}', "record.json: schema_version: input should be 1"),
        (b"\xff\xfe", "not a text file"),
    ],
)
def test_a_broken_record_is_said_in_one_line(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_an_unknown_field_is_named(tiny: Track, tmp_path: Path) -> None:
    content = made(tiny).model_dump(mode="json")
    content["metrik"] = "tvd"
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="unknown key 'metrik'; did you mean 'metric'"):
        read_record(tmp_path / "r.json")


def test_settings_are_kept_as_json_keeps_them() -> None:
    assert plain_settings({"ngram_heads": (1, 2)}) == {"ngram_heads": [1, 2]}
    assert plain_settings({"training.learning_rate": np.float32(0.5), "d_model": np.int64(8)}) == {
        "training.learning_rate": 0.5,
        "d_model": 8,
    }
    assert plain_settings(None) == {}
    with pytest.raises(UserError, match="settings cannot be recorded"):
        plain_settings({"device": object()})
    with pytest.raises(UserError, match="settings cannot be recorded"):
        plain_settings({"dropout": float("nan")})


def test_measuring_where_there_is_no_run(tiny: Track, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no run: there is no result\.json"):
        measure(tmp_path, tiny, "tvd", None)


def test_measuring_what_is_not_of_the_test_split(tiny: Track, tiny_file: Path, tmp_path: Path) -> None:
    rows = np.full((*tiny.instances("validation").scored.shape, tiny.task.io.width), 1.0 / tiny.task.io.width)
    folder, words = tmp_path / "evaluated", {"predicts": "this", "kind": "probabilities", "split": "validation"}
    regbench.evaluate(str(tiny_file), rows, **words, out=folder)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is of the validation split"):
        measure(folder, tiny, "tvd", None)


@pytest.mark.parametrize(("score", "verdict"), [(0.7, "worse"), (0.795, "the same"), (0.9, "better")])
def test_verdicts(tiny: Track, score: float, verdict: str) -> None:
    outcome = RegressionOutcome.of(made(tiny), made(tiny, score))
    assert outcome.verdict == verdict
    assert f"expected 0.8000, got {score:.4f}, {verdict}" in outcome.headline()


@pytest.mark.parametrize("collapsed", [1, 2])
def test_a_seed_that_collapses_does_not_excuse_itself(tiny: Track, collapsed: int) -> None:
    got = made(tiny)
    seeds = [seed.model_copy(update={"score": 0.1}) if seed.seed < collapsed else seed for seed in got.seeds]
    outcome = RegressionOutcome.of(made(tiny), got.model_copy(update={"seeds": seeds}))
    assert not outcome.change.worse, "by the mean alone it would"
    assert outcome.is_worse
    assert outcome.verdict == "worse"
    assert "-0.7000 from the recorded mean; -0.0" in outcome.explain()


def test_of_a_distance_more_is_worse(tiny: Track) -> None:
    assert RegressionOutcome.of(made(tiny, 0.3, metric="tvd"), made(tiny, 0.4, metric="tvd")).verdict == "worse"


def test_a_level_and_a_prior_of_ones_own(tiny: Track) -> None:
    pair = made(tiny), made(tiny, 0.7)
    wide = Prior(logit=True, spread=0.6, freedom=8)
    assert RegressionOutcome.of(*pair, prior=wide).verdict == "the same"
    assert RegressionOutcome.of(*pair, level=1e-9).verdict == "the same"


class TestWhereTheyPart:
    def test_the_first_evaluation_apart(self, tiny: Track) -> None:
        later = with_seeds(made(tiny), training=[(10, 2.0, 2.1), (20, 1.5, 1.7), (30, 1.2, 1.9)])
        text = RegressionOutcome.of(made(tiny), later).training()
        assert text.startswith(
            "the validation loss is first apart at evaluation 2 of 3, step 20: expected 1.6000, got 1.7000, noise 0.00"
        )

    def test_the_training_loss_may_part_first(self, tiny: Track) -> None:
        later = with_seeds(made(tiny), training=[(10, 2.5, 2.1), (20, 1.5, 1.7), (30, 1.2, 1.9)])
        assert (
            "the training loss is first apart at evaluation 1 of 3, step 10"
            in RegressionOutcome.of(made(tiny), later).training()
        )

    def test_less_than_the_noise_is_not_apart(self, tiny: Track) -> None:
        near = with_seeds(made(tiny), training=[(10, 2.001, 2.101), (20, 1.5, 1.601), (30, 1.2, 1.301)])
        assert RegressionOutcome.of(made(tiny), near).training() == (
            "no loss is apart by more than the noise; the last validation loss: expected 1.3000, got 1.3010"
        )

    def test_seeds_that_spread_allow_more(self, tiny: Track) -> None:
        """The same distance of the means, once with seeds that agree and once with seeds that do not."""

        def spread(by: float, loss: float) -> Measurement:
            seeds = [
                s.model_copy(update={"training": [(10, loss, loss + by * (s.seed - 1))]}) for s in made(tiny).seeds
            ]
            return made(tiny, seeds=seeds)

        assert (
            "first apart at evaluation 1 of 1, step 10"
            in RegressionOutcome.of(spread(0.0, 2.0), spread(0.0, 2.1)).training()
        )
        assert "no loss is apart" in RegressionOutcome.of(spread(0.2, 2.0), spread(0.2, 2.0 + 1e-3)).training()
        wide = RegressionOutcome.of(spread(0.2, 2.0), spread(0.2, 2.1)).training()
        assert "the training loss is first apart" in wide, "the training losses do not spread"

    def test_nothing_was_trained(self, tiny: Track) -> None:
        assert RegressionOutcome.of(made(tiny), with_seeds(made(tiny), training=[])).training() == "nothing was trained"

    def test_seeds_are_evaluated_at_steps_of_their_own(self, tiny: Track) -> None:
        """A seed's batches are its own, and so is the step at which its tokens are half spent."""
        seeds = [
            s.model_copy(update={"training": [(10 + s.seed, 2.0, 2.1), (20 + s.seed, 1.5, 1.9)]})
            for s in made(tiny).seeds
        ]
        text = RegressionOutcome.of(made(tiny), made(tiny, seeds=seeds)).training()
        assert "first apart at evaluation 2 of 2, step 21: expected 1.6000, got 1.9000" in text

    def test_the_first_bin_apart(self, tiny: Track) -> None:
        later = with_seeds(made(tiny), by_position=[0.8, 0.6])
        assert (
            RegressionOutcome.of(made(tiny), later)
            .positions()
            .startswith(
                "the score is first apart around position 5.5 (bin 2 of 2): expected 0.8000, got 0.6000, noise 0.0"
            )
        )
        assert (
            RegressionOutcome.of(made(tiny), made(tiny)).positions()
            == "no bin by itself is apart by more than chance explains with so few seeds"
        )

    def test_a_bin_has_more_noise_of_instances_than_the_whole(self, tiny: Track) -> None:
        """Instances that move by chance: the few positions of a bin may move further than all of them."""
        rng = np.random.default_rng(0)
        counts = tiny.instances("test").scored.sum(1)
        moved = made(tiny, instances=((0.8 + rng.normal(0, 0.2, len(counts))) * counts).tolist())
        by_position = [0.6, 0.8]  # as far as the noise of the whole would not reach
        assert (
            "(bin 1 of 2)"
            in RegressionOutcome.of(made(tiny), with_seeds(made(tiny), by_position=by_position)).positions()
        )
        assert "no bin" in RegressionOutcome.of(made(tiny), with_seeds(moved, by_position=by_position)).positions()

    def test_other_bins(self, tiny: Track) -> None:
        assert (
            RegressionOutcome.of(made(tiny), made(tiny, position=[1.0, 5.5])).positions()
            == "the bins are others than recorded"
        )

    def test_what_else_changed(self, tiny: Track) -> None:
        now = made(tiny, source_sha256="1" * 64, environment={"torch": "2.14.0", "processor": "A", "numba": "0.60"})
        assert RegressionOutcome.of(made(tiny), now).changed() == [
            "the architecture's source",
            "numba from absent to 0.60",
            "torch from 2.13.0 to 2.14.0",
        ]
