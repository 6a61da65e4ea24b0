"""The page of one run, `report.html`: scores beside the baselines, how it learned, and where in an instance it errs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from regbench.metrics.metric import Metric, Metrics, metrics_told
from regbench.report.content import (
    ResultRow,
    about_normalized,
    axis,
    baseline_series,
    human_bytes,
    human_seconds,
    human_state,
    label,
    main_loss,
    metric_words,
    points,
    score_rows,
)
from regbench.report.instances import Drawn, draw_instances
from regbench.report.pictures import plot_scores_by_position, plot_training
from regbench.results import Result
from regbench.tracks import Track, load_track, track_of_run
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


def write_report(folder: Path, result: Result, track: Track | None, instance: int | None = None) -> Path:
    """Writes `report.html` and the pictures, `score_by_position.png` and `training.png`, into a run's folder.

    Without the predictions, or without the track, the page draws no instances and says why. `instance` is drawn beside the worst,
    the median and the best.
    """
    drawn = draw_instances(folder, result, track, instance)
    if instance is not None and drawn.why_not:
        raise UserError(f"instance {instance} cannot be shown: {drawn.why_not}")
    metrics = metrics_told(result) if track is None else track.metrics
    trained = None if track is None else track.task.trained
    plot_scores_by_position(result, folder / "score_by_position.png", metrics, trained)
    if result.evaluation is None:
        plot_training(result, folder / "training.png")
    path = folder / "report.html"
    with atomic_write(path) as file:
        file.write(build_report(result, drawn, metrics, trained))
    return path


def track_of(result: Result, folder: Path, own: str | None = None) -> Track | None:
    """The track that the run of a folder was made on, or `own`, the YAML file of yours.

    None where it is not here, or has changed since.

    Nothing that the run's folder names is loaded: the file of a track can run code.
    """
    address = own or track_of_run(folder, result.track.name)
    if address is None:
        return None
    track = load_track(address)
    if track.definition.digest == result.track.digest:
        return track
    if own is not None:
        raise UserError(f"{own} is not the {result.track.name} that this run was made on")
    return None


def build_report(
    result: Result, drawn: Drawn | None = None, metrics: Metrics | None = None, trained: int | None = None
) -> str:
    """The page as HTML. The same arguments give the same bytes.

    `metrics` are those of its track, where it is here. `trained` is the largest size in training, on a track with an axis of
    sizes: curves shade the sizes up to it.
    """
    drawn, metrics = drawn or Drawn(), metrics or metrics_told(result)
    main, loss = result.track.main_score, main_loss(result)
    rows = score_rows(result, metrics)
    anchors: dict[str | None, str] = {baseline.anchor: name for name, baseline in result.baselines.items()}
    curves = {
        seed.seed: [(p.tokens, round(p.loss[loss], 4), round(p.validation_loss, 4)) for p in seed.training_curve]
        for seed in result.seeds
    }
    return render_page(
        "report/templates/report.html",
        styles=["report/assets/base.css", "report/assets/report.css"],
        scripts=[f"report/assets/{name}.js" for name in ("chart", "strips", "texts", "report")],
        data={
            "metrics": [metric_words(metrics[m], axis(result, m), trained) for m in result.metrics],
            "loss": label(loss),
            "split": result.split.capitalize(),
            "series": _series(result, rows),
            "training": [{"seed": seed, "points": points} for seed, points in curves.items()],
            "strips": drawn.strips and {**drawn.strips, **_model_names(result)},
            "texts": drawn.texts and {**drawn.texts, **_model_names(result)},
        },
        title=f"{result.architecture.name} on {result.track.name}",
        result=result,
        score=result.score(main),
        standing=_standing(result, rows, metrics[main]),
        rows=rows,
        about_normalized=about_normalized(metrics[main], anchors) if rows[0].normalized is not None else "",
        by_what=axis(result, main, unit=False),
        by_tokens=result.seeds[0].curves[main].axis is None,
        why_not=drawn.why_not,
        provenance=_provenance(result),
    )


def _standing(result: Result, rows: Sequence[ResultRow], main: Metric) -> str:
    ranked = [row for row in rows if row.kind != "seed"]
    place = next(i for i, row in enumerate(ranked) if row.kind == "model")
    what = main.label
    what += f" (mean of {len(result.seeds)} seeds)" if len(result.seeds) > 1 else ""
    what += f", ahead of {ranked[place + 1].name}" if place + 1 < len(ranked) else ""
    return what + (f", behind {ranked[place - 1].name}" if place > 0 else "")


def _model_names(result: Result) -> dict[str, list[str]]:
    """How the trained models are called: in full, and where there is little room."""
    name = result.architecture.name
    if len(result.seeds) == 1:
        return {"names": [name], "short": [name]}
    short = [f"seed {seed.seed}" for seed in result.seeds]
    return {"names": [f"{name}, {one}" for one in short], "short": short}


def _series(result: Result, rows: Sequence[ResultRow]) -> list[dict[str, Any]]:
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
    made: dict[str, dict[str, Any]] = {
        "Training": result.training | {"tokens": " ".join(f"{seed.tokens:,}" for seed in result.seeds)},
        "Selection": {"split": result.selection.split, "trials": result.selection.trials},
    }
    if result.evaluation is not None:
        made = {"Evaluation": result.evaluation.model_dump()}
    memory = max(seed.peak_memory_bytes for seed in result.seeds)
    backends = {"backend": e.backend, "backend in training": e.training_backend}
    tables: dict[str, dict[str, Any]] = {
        "Architecture": {"name": a.name, "source": a.source, "SHA-256": a.source_sha256[:16], **a.options},
        **made,
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
            **({"peak memory": human_bytes(memory)} if memory else {}),  # 0: it was not measured
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


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FunctionLoader(lambda name: _asset(name)),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"human_bytes": human_bytes, "human_seconds": human_seconds, "human_state": human_state}
# The digest of a script as a content security policy has it.
_ENVIRONMENT.globals["sha256"] = lambda code: base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


def render_page(
    template: str, *, data: Mapping[str, Any], styles: Sequence[str], scripts: Sequence[str], **values: Any
) -> str:
    """Renders a whole page. The same arguments give the same bytes.

    All files are named by their paths in the package regbench. The template extends `report/templates/frame.html`, and shows
    `values`. The scripts run in one scope, in this order, and find `data` as JSON in the element `data`.
    """
    style, script = Markup("".join(map(_asset, styles))), Markup("\n" + "".join(map(_asset, scripts)))
    return _ENVIRONMENT.get_template(template).render(values, data=data, style=style, script=script)


def _asset(path: str) -> str:
    return resources.files("regbench").joinpath(path).read_text(encoding="utf-8")
