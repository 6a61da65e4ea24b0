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
from regbench.metrics.metric import METRICS, Metrics
from regbench.models.predictor import Baseline
from regbench.report import strips, texts
from regbench.report.cells import about_way, baseline_series, head, metric_words, score_cell, way_cell
from regbench.report.curves import axis, by_what, main_loss, points
from regbench.report.html import asset, page, text
from regbench.report.rows import Row, score_rows
from regbench.report.words import human_bytes, human_seconds, label
from regbench.results import Result, SeedRecord
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
    if instance is not None and drawn.nothing:
        raise UserError(f"instance {instance} cannot be shown: {drawn.why_not}")
    path = folder / "report.html"
    with atomic_write(path) as file:
        file.write(build_report(result, drawn, METRICS if track is None else track.metrics))
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
    """Instances as the page draws them: `strips.layout` where the task knows its truth, else `texts.layout`, or why not."""

    strips: Mapping[str, Any] | None = None
    texts: Mapping[str, Any] | None = None
    why_not: str = ""

    @property
    def nothing(self) -> bool:
        return self.strips is None and self.texts is None

    @property
    def section(self) -> str:
        """Its frame in the page."""
        if self.nothing:
            return f"<h2>Instances</h2>\n<p class=soft>Not shown: {text(self.why_not)}.</p>"
        return _TEXTS if self.strips is None else _STRIPS


def build_report(result: Result, drawn: Drawn = Drawn(), metrics: Metrics = METRICS) -> str:
    """The page as HTML; the same arguments give the same bytes."""
    name, track = text(result.architecture.name), text(result.track.name)
    sections = [
        f"<header>\n<h1>{name} on {track}</h1>\n{_lead(result, metrics)}\n</header>",
        f"<h2>Scores on the test split</h2>\n{score_table(result, metrics)}",
        _position(result),
        _LEARNING.format(about=text(_about_learning(result))),
        drawn.section,
        f"<h2>How it was made</h2>\n{_provenance(result)}",
    ]
    body = f"<main>\n{''.join(sections)}\n</main>\n<footer>regbench, result schema {result.schema_version}</footer>"
    data = {
        "metrics": [metric_words(metrics[name], axis(result, name)) for name in result.metrics],
        "loss": label(main_loss(result)),
        "series": _series(result, metrics),
        "training": [_training(seed, main_loss(result)) for seed in result.seeds],
        "strips": None if drawn.strips is None else {**drawn.strips, **_model_names(result)},
        "texts": None if drawn.texts is None else {**drawn.texts, **_model_names(result)},
    }
    styles = [asset(__package__, name) for name in ("base.css", "report.css")]
    scripts = [asset(__package__, name) for name in ("chart.js", "strips.js", "texts.js", "report.js")]
    return page(f"{result.architecture.name} on {result.track.name}", body, data, styles, scripts)


def _position(result: Result) -> str:
    """The curves. Where they are by tokens of the context it is known which way they ought to go."""
    by_tokens = result.seeds[0].curves[result.track.main_score].axis is None
    about = "A predictor that learns in context gets better as the prompt grows."
    return _POSITION.format(by=text(by_what(result)), about=f'<p class="soft">{about}</p>\n' if by_tokens else "")


def score_table(result: Result, metrics: Metrics = METRICS) -> str:
    """The model among the baselines, best first."""
    main, several = result.track.main_score, len(result.seeds) > 1
    heads = [
        head(f"{metrics[m].label} {metrics[m].arrow}", metric_words(metrics[m])["meaning"]) for m in result.metrics
    ]
    rows_found = score_rows(result, metrics)
    way = any(row.way is not None for row in rows_found)
    if way:
        heads.append(head("way to oracle", about_way(main, {b.anchor: name for name, b in result.baselines.items()})))
    rows = "\n".join(_score_row(row, result.metrics, way) for row in rows_found)
    note = " The model's row is the median over its seeds, ± their standard deviation / √n." * several
    return (
        f'<div class="scroll"><table>\n<thead><tr><th scope="col">predictor</th>{"".join(heads)}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>\n"
        f'<p class="soft">± is one standard error over instances.{note}</p>'
    )


def _score_row(row: Row, metrics: Sequence[str], way: bool) -> str:
    cells = "".join(score_cell(row.scores[metric]) for metric in metrics) + (way_cell(row.way) if way else "")
    return f'<tr class="{row.kind}"><th scope="row">{text(row.name)}</th>{cells}</tr>'


def _lead(result: Result, metrics: Metrics) -> str:
    """What came out, in two sentences."""
    main, seeds = result.track.main_score, result.seeds
    score = result.score(main)
    rows = [row for row in score_rows(result, metrics) if row.kind != "seed"]
    place = next(i for i, row in enumerate(rows) if row.kind == "model")
    what = f"{label(main)} (median of {len(seeds)} seeds)" if len(seeds) > 1 else label(main)
    what += f", ahead of {rows[place + 1].name}" if place + 1 < len(rows) else ""
    what += f", behind {rows[place - 1].name}" if place > 0 else ""
    seconds, speed = seeds[0].seconds, seeds[0].tokens_per_second
    return (
        f'<p class="lead"><b>{score.value:.3f} ± {score.stderr:.3f}</b> {text(what)}.<br>\n'
        f"{result.architecture.parameters:,} parameters, state: {text(human_bytes(result.architecture.state_bytes))}; "
        f"{seeds[0].tokens:,} training tokens{' a seed' * (len(seeds) > 1)} in {human_seconds(seconds)} "
        f"({speed:,.0f} tokens/s).</p>"
    )


def _model_names(result: Result) -> dict[str, list[str]]:
    """How the trained models are called: in full, and where there is little room."""
    name = result.architecture.name
    if len(result.seeds) == 1:
        return {"names": [name], "short": [name]}
    short = [f"seed {seed.seed}" for seed in result.seeds]
    return {"names": [f"{name}, {one}" for one in short], "short": short}


def _series(result: Result, known: Metrics) -> list[dict[str, Any]]:
    """The model first, one line a seed, then the baselines, best first; uniform is there and not shown."""
    metrics = result.metrics
    model = {
        "name": result.architecture.name,
        "colour": 0,
        "width": 2.6,
        "shown": True,
        "curves": {m: [points(seed.curves[m]) for seed in result.seeds] for m in metrics},
    }
    ranked = [row.name for row in score_rows(result, known) if row.kind == "baseline"]
    baselines = baseline_series({name: result.baselines[name].curves for name in ranked})
    return [model, *({**one, "shown": one["name"] != "uniform"} for one in baselines)]


def _training(seed: SeedRecord, loss: str) -> dict[str, Any]:
    curve = [(p.tokens, round(p.loss[loss], 4), round(p.validation_loss, 4)) for p in seed.training_curve]
    return {"seed": seed.seed, "points": curve}


def _about_learning(result: Result) -> str:
    each = [f"seed {s.seed}: step {s.best_step:,} of {s.steps:,}" for s in result.seeds]
    return f"Scored are the weights of least validation loss ({'; '.join(each)})."


def _provenance(result: Result) -> str:
    a, e = result.architecture, result.environment
    commit = f"{result.code.commit[:12]}{', changed since' * bool(result.code.dirty)}" if result.code.commit else "none"
    memory = max(seed.peak_memory_bytes for seed in result.seeds)
    tables = {
        "Architecture": {"name": a.name, "source": a.source, "SHA-256": a.source_sha256[:16], **a.options},
        "Training": result.training | {"tokens": " ".join(f"{s.tokens:,}" for s in result.seeds)},
        "Selection": {"split": result.selection.split, "trials": result.selection.trials},
        "Track": {
            "name": result.track.name,
            "digest": result.track.digest[:16],
            **{f"{split} split": f[:16] for split, f in result.track.fingerprints.items()},
        },
        "Environment": {
            "device": e.device,
            "processor": e.processor,
            "threads": e.threads,
            "precision": e.precision,
            "peak memory": human_bytes(memory),
            "backend": _forms(e.backend),
            **({} if e.training_backend is None else {"backend in training": _forms(e.training_backend)}),
            "packages": ", ".join(f"{package} {version}" for package, version in e.packages.items()),
            "Python": f"{e.python} on {e.platform}",
            "commit": commit,
        },
    }
    lists = (f'<div class="keep"><h3>{heading}</h3>{_definitions(rows)}</div>' for heading, rows in tables.items())
    return f'<div class="pair">\n{"".join(lists)}\n</div>'


def _forms(backend: Mapping[str, str]) -> str:
    return ", ".join(f"{op}: {form}" for op, form in backend.items()) or "plain PyTorch"


def _definitions(rows: Mapping[str, Any]) -> str:
    shown = {k: v if isinstance(v, str) else json.dumps(v, allow_nan=False) for k, v in rows.items()}
    return "<dl>" + "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in shown.items()) + "</dl>"


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
    ranked = [row.name for row in score_rows(result, track.metrics) if row.kind == "baseline"]
    there = {baseline.name: baseline for baseline in lineup(track, track.instances("test"))}
    return next((there[name] for name in ranked if name in there), None)


_POSITION = """\
<section class="keep">
<h2>Score by {by}</h2>
{about}<div class="controls needs-js" id="metric"></div>
<figure class="needs-js" style="margin:0"><div class="chart" id="position"></div>
<ul class="legend" id="position-legend"></ul></figure>
</section>
"""
_LEARNING = """\
<section class="keep">
<h2>Learning</h2>
<p class="soft">{about}</p>
<div class="chart needs-js" id="training"></div>
</section>
"""
_STRIPS = """\
<section>
<h2>Where it errs</h2>
<p class="soft" id="about"></p>
<div class="controls needs-js" id="strip-controls"></div>
<ul class="key needs-js">
<li id="scale-mass">probability 0 to 1</li>
<li id="scale-more">more than the truth gives</li>
<li id="scale-less">less</li>
<li><svg width="13" height="13" aria-hidden="true"><rect x="1" y="1" width="11" height="11" fill="none" \
stroke="var(--ink)"/></svg> what was sampled</li>
<li><svg width="13" height="13" aria-hidden="true"><rect x="1.5" y="1.5" width="10" height="10" fill="none" stroke="var(--c0)" \
stroke-width="2"/></svg> the most likely symbol, where the truth rules it out (×)</li>
</ul>
<div class="needs-js" id="strips"></div>
</section>
"""
_TEXTS = """\
<section>
<h2>Where it errs</h2>
<p class="soft" id="about"></p>
<div class="controls needs-js" id="text-controls"></div>
<ul class="key needs-js">
<li id="scale-nats">0 to 12 nats and above, or so many more than the baseline</li>
<li id="scale-fewer">fewer than the baseline</li>
<li>⏎ a line ends</li>
</ul>
<div class="needs-js" id="texts"></div>
</section>
"""
