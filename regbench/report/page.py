"""The page of one run, `report.html`: scores beside the baselines, how it learned, and where in an instance it errs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from regbench.evaluation.baselines import lineup
from regbench.evaluation.predictions import BriefPredictions, KeptPredictions, Predictions, read_kept
from regbench.models.predictor import Baseline
from regbench.report import strips, texts
from regbench.report.content import (
    Row,
    about_normalized,
    axis,
    baseline_series,
    by_what,
    main_loss,
    metric_words,
    points,
    score_rows,
)
from regbench.report.html import render_page
from regbench.report.words import human_bytes, label
from regbench.results import Result
from regbench.tasks.base import TokenIO
from regbench.tracks import Track, load_track
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


def write_report(folder: Path, result: Result, track: Track | None, instance: int | None = None) -> Path:
    """Writes `report.html` into a run's folder and returns its path.

    Instances are drawn where `track` is given and the folder still has its predictions; the page says so where they are not.

    Raises:
        UserError: there is no test instance `instance`, it cannot be drawn, or predictions are not those that were scored.
    """
    drawn = _instances(folder, result, track, instance)
    if instance is not None and drawn.why_not:
        raise UserError(f"instance {instance} cannot be shown: {drawn.why_not}")
    path = folder / "report.html"
    with atomic_write(path) as file:
        file.write(build_report(result, drawn))
    return path


def track_of(folder: Path, result: Result) -> Track | None:
    """The track that a run was made on: built in, or the file that `config.yaml` names; None where it is not what it was."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        config = None
    asked = config.get("track") if isinstance(config, dict) else None
    for name in (result.track.name, asked):
        try:
            track = load_track(str(name))
        except UserError:
            continue
        if track.definition.digest == result.track.digest:
            return track
    return None


@dataclass(frozen=True)
class Drawn:
    """Test instances as the page draws them.

    Attributes:
        strips: `instances.strips`, where the task knows its truth.
        texts: `instances.texts`, where it does not.
        why_not: why there is neither.
    """

    strips: Mapping[str, Any] | None = None
    texts: Mapping[str, Any] | None = None
    why_not: str = ""


def build_report(result: Result, drawn: Drawn = Drawn()) -> str:
    """The page as HTML. The same arguments give the same bytes."""
    main, loss = result.track.main_score, main_loss(result)
    rows = score_rows(result)
    anchors: dict[str | None, str] = {baseline.anchor: name for name, baseline in result.baselines.items()}
    return render_page(
        "report/templates/report.html",
        styles=["report/assets/base.css", "report/assets/report.css"],
        scripts=[f"report/assets/{name}.js" for name in ("chart", "strips", "texts", "report")],
        data={
            "metrics": [metric_words(metric, axis(result, metric)) for metric in result.metrics],
            "loss": label(loss),
            "series": _series(result, rows),
            "training": [
                {
                    "seed": seed.seed,
                    "points": [
                        (p.tokens, round(p.loss[loss], 4), round(p.validation_loss, 4)) for p in seed.training_curve
                    ],
                }
                for seed in result.seeds
            ],
            "strips": drawn.strips and {**drawn.strips, **_model_names(result)},
            "texts": drawn.texts and {**drawn.texts, **_model_names(result)},
        },
        title=f"{result.architecture.name} on {result.track.name}",
        result=result,
        score=result.score(main),
        standing=_standing(result, rows),
        rows=rows,
        about_normalized=about_normalized(main, anchors) if rows[0].normalized is not None else "",
        by_what=by_what(result),
        by_tokens=result.seeds[0].curves[main].axis is None,
        why_not=drawn.why_not,
        provenance=_provenance(result),
    )


def _standing(result: Result, rows: Sequence[Row]) -> str:
    """What the score is, and which predictors are next to it."""
    ranked = [row for row in rows if row.kind != "seed"]
    place = next(i for i, row in enumerate(ranked) if row.kind == "model")
    what = label(result.track.main_score)
    what += f" (median of {len(result.seeds)} seeds)" if len(result.seeds) > 1 else ""
    what += f", ahead of {ranked[place + 1].name}" if place + 1 < len(ranked) else ""
    return what + (f", behind {ranked[place - 1].name}" if place > 0 else "")


def _model_names(result: Result) -> dict[str, list[str]]:
    """How the trained models are called: in full, and where there is little room."""
    name = result.architecture.name
    if len(result.seeds) == 1:
        return {"names": [name], "short": [name]}
    short = [f"seed {seed.seed}" for seed in result.seeds]
    return {"names": [f"{name}, {one}" for one in short], "short": short}


def _series(result: Result, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The model first, one line a seed. Then the baselines, best first. The uniform one is hidden at first."""
    model = {
        "name": result.architecture.name,
        "colour": 0,
        "width": 2.6,
        "shown": True,
        "curves": {m: [points(seed.curves[m]) for seed in result.seeds] for m in result.metrics},
    }
    curves = {row.name: result.baselines[row.name].curves for row in rows if row.kind == "baseline"}
    return [model, *({**one, "shown": one["name"] != "uniform"} for one in baseline_series(curves))]


def _provenance(result: Result) -> dict[str, dict[str, str]]:
    """What the run was made from and with: by heading, names and values."""
    a, e, code = result.architecture, result.environment, result.code
    backends = {"backend": e.backend, "backend in training": e.training_backend}
    tables: dict[str, dict[str, Any]] = {
        "Architecture": {"name": a.name, "source": a.source, "SHA-256": a.source_sha256[:16], **a.options},
        "Training": result.training | {"tokens": " ".join(f"{seed.tokens:,}" for seed in result.seeds)},
        "Selection": {"split": result.selection.split, "trials": result.selection.trials},
        "Track": {
            "name": result.track.name,
            "digest": result.track.digest[:16],
            **{f"{split} split": digest[:16] for split, digest in result.track.fingerprints.items()},
        },
        "Environment": {
            "device": e.device,
            "processor": e.processor,
            "threads": e.threads,
            "precision": e.precision,
            "peak memory": human_bytes(max(seed.peak_memory_bytes for seed in result.seeds)),
            **{
                name: ", ".join(f"{op}: {implementation}" for op, implementation in used.items()) or "plain PyTorch"
                for name, used in backends.items()
                if used is not None
            },
            "packages": ", ".join(f"{package} {version}" for package, version in e.packages.items()),
            "Python": f"{e.python} on {e.platform}",
            "commit": f"{code.commit[:12]}{', changed since' * bool(code.dirty)}" if code.commit else "none",
        },
    }
    return {
        heading: {k: v if isinstance(v, str) else json.dumps(v, allow_nan=False) for k, v in facts.items()}
        for heading, facts in tables.items()
    }


def _instances(folder: Path, result: Result, track: Track | None, instance: int | None) -> Drawn:
    """What the page draws of the test split, or why it draws nothing."""
    if track is None:
        return Drawn(why_not=f"the track {result.track.name} that this run was made on is not here")
    if not isinstance(track.task.io, TokenIO):
        return Drawn(why_not="the task is not one of tokens")
    models: list[KeptPredictions] = []
    test = track.instances("test")
    if test.fingerprint != result.track.fingerprints["test"]:
        return Drawn(
            why_not=f"the test instances of {track.name} are others now: what makes them has changed since this run"
        )
    for seed in result.seeds:
        path = folder / f"seed-{seed.seed}" / "predictions.npz"
        if not path.exists():
            return Drawn(why_not=f"the predictions of seed {seed.seed} are not in the run's folder")
        predictions = read_kept(path, track.task)
        strips.check_predictions(predictions, result, seed.seed, test, track.task.io.vocab_size)
        models.append(predictions)
    whole = [model for model in models if isinstance(model, Predictions)]
    if whole:
        return Drawn(strips=strips.layout(track.task, test, whole, instance))
    brief = [model for model in models if isinstance(model, BriefPredictions)]
    return Drawn(texts=texts.layout(track.task, test, brief, _best_baseline(result, track), instance))


def _best_baseline(result: Result, track: Track) -> Baseline | None:
    """The baseline with the best main score, to lay beside the model."""
    ranked = [row.name for row in score_rows(result) if row.kind == "baseline"]
    there = {baseline.name: baseline for baseline in lineup(track, track.instances("test"))}
    return next((there[name] for name in ranked if name in there), None)
