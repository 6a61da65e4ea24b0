"""All measurements of one trained model, written with their pictures into a folder (`regbench analyze DIR`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from architectures.cgt.slow import SlowModel
from papers.cgt import pictures
from papers.cgt.linear_probe import LinearProbe, probe_hidden, require_scikit_learn
from papers.cgt.modes import (
    MODES,
    Outcomes,
    activation_patching,
    read_in_modes,
)
from papers.cgt.representation import (
    contexts,
    documents,
    dot_products,
    encoder,
    fast_part,
    spectrum,
    tsne,
    variation,
    variation_by_example,
)
from papers.cgt.segments import Segments, examples_before, segments, single_context_segments, windows
from papers.cgt.transitions import transitions
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.tasks.base import Task, TokenIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.files import write_json

CHANCE = 0.0228
"""The probability that chance puts one figure 2 standard errors below 0."""

FIRST = 8
"""Tokens after the cut over which two models are compared."""
DISTANCE_BIN = 4
"""Tokens of one bin of the distance from the cut, if the task counts no examples."""


@dataclass
class Study:
    """What was measured."""

    folder: Path  # for pictures and `analysis.json`
    findings: dict[str, Any] = field(default_factory=dict)  # the content of `analysis.json`
    lines: dict[str, str] = field(default_factory=dict)  # the same for the terminal


def study(
    trained: Trained,
    folder: Path,
    *,
    split: str,
    limit: int,
    rate: float,
    against: Trained | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> Study:
    """Measures everything and writes `analysis.json` and the pictures."""
    require_scikit_learn()
    model: Any = trained.model
    task = trained.track.task
    instances = trained.track.instances(split)[:limit]
    parts, read = segments(task, instances), single_context_segments(task, instances)
    if not len(parts):
        raise UserError(f"no instance of {trained.track.name} can be cut into a prompt and a text")
    found = Study(folder)
    found.findings = {
        "track": trained.track.name,
        "trained_on": trained.trained_on or trained.track.name,
        "architecture": trained.architecture,
        "seed": trained.seed,
        "split": split,
        "instances": len(instances),
        "segments": len(read),
        "moving_average_rate": rate,
        **dict.fromkeys(
            ("variation_by_example", "linear_probe", "spectrum", "encoder", "tokens_until_moved", "topics")
        ),
    }
    announce("scoring the texts, with their prompts and without")
    outcomes = read_in_modes(model, task, instances, read, rate)
    found.findings["after_the_prompt"] = table = {}
    for mode in MODES:
        scores = {metric: outcomes.score(mode, metric) for metric in outcomes.values[mode]}
        table[mode] = {m: {"value": s.value, "stderr": s.stderr} for m, s in scores.items()}
        found.lines[mode] = "  ".join(f"{m} {s}" for m, s in scores.items())
    _distances(found, outcomes, task, instances, read)
    if against is not None:
        announce(f"scoring {against.folder.name}, which reads the texts alone")
        _against(found, outcomes, against, instances, read, rate)
    announce("measuring y")
    y = contexts(model, instances.tokens)
    _variation_and_probe(found, y, task, instances, read)
    _spectrum(found, model, y, instances, parts)
    _products(found, y, instances, parts)
    _transitions(found, y, instances, read)
    announce("placing texts by t-SNE")
    _topics(found, model, instances, parts, task.topic_names)
    if isinstance(task.io, TokenIO):
        announce("patching y")
        _patching(found, model, instances, read, task.io.names)
    write_json(folder / "analysis.json", found.findings)
    return found


def _distances(found: Study, outcomes: Outcomes, task: Task, instances: Instances, read: Segments) -> None:
    metric, base = outcomes.loss, "unprompted"
    after, unit = distance_from_cut(task, instances, read)
    curves = {m: outcomes.difference(m, base, metric, after) for m in MODES if m != base}
    pictures.plot_by_distance(curves, base, metric, unit, found.folder / "loss_by_distance.png")
    # Where the constant y stops helping: 2024, section 4.3, "after roughly 200 tokens".
    distance, mean, error = curves["specialised"]
    ahead = bool((mean < -_errors_at(len(mean)) * error).any())
    caught = caught_up_after(distance, mean, error)
    found.findings["loss_by_distance"] = {
        "metric": metric,
        "less_that_of": base,
        "counted_in": unit,
        "modes": _as_json(curves),
        "specialised_is_ahead": ahead,
        "caught_up_after": caught,
    }
    if not len(distance):
        words = "too few instances to tell"
    elif not ahead:
        words = f"the specialised model is never ahead by {_errors_at(len(mean)):.1f} standard errors"
    else:
        words = "not within the texts" if caught is None else f"after {caught:g} {unit}"
    found.lines["the unprompted model catches up with the specialised one"] = words


def _against(
    found: Study, outcomes: Outcomes, other: Trained, instances: Instances, read: Segments, rate: float
) -> None:
    """The model's loss in each mode minus that of another model without the prompt, token by token (2024, Figure 12a)."""
    task, name = other.track.task, other.folder.name
    model: Any = other.model
    alone = read_in_modes(model, task, instances, read, rate, modes=("unprompted",))
    both = Outcomes({**outcomes.values, "other": alone.values["unprompted"]}, outcomes.scored, outcomes.unit)
    metric = both.loss
    after, unit = distance_from_cut(task, instances, read)
    curves = {mode: both.difference(mode, "other", metric, after) for mode in MODES}
    pictures.plot_by_distance(curves, name, metric, unit, found.folder / "against.png")
    first = both.first_tokens("specialised", "other", metric, FIRST)
    caught = caught_up_after(*curves["specialised"])
    found.findings["against"] = {
        "run": str(other.folder),
        "architecture": other.architecture,
        "seed": other.seed,
        "metric": metric,
        "counted_in": unit,
        "modes": _as_json(curves),
        f"specialised_in_first_{FIRST}_tokens": None if first is None else first.model_dump(),
        "caught_up_after": caught,
    }
    words = "no token is scored" if first is None else f"{first.value:+.3f} ± {first.stderr:.3f} {metric}"
    words += f" in the first {FIRST} tokens"
    if caught is not None:
        words += f"; it catches up after {caught:g} {unit}"
    found.lines[f"specialised, less {name} with the text alone"] = words


def _as_json(curves: Mapping[str, tuple[FloatArray, FloatArray, FloatArray]]) -> dict[str, dict[str, list[float]]]:
    """By mode the distances, the means and their standard errors."""
    names = ("distance", "mean", "stderr")
    return {mode: dict(zip(names, (part.tolist() for part in curve), strict=True)) for mode, curve in curves.items()}


def distance_from_cut(task: Task, instances: Instances, read: Segments) -> tuple[FloatArray, str]:
    """The distance of each position from the cut of its segment, (S, W), and its unit.

    If the task counts examples: the number of examples between the cut and that of the position. Otherwise tokens, as the middle
    of a bin.
    """
    index, inside = windows(read.cut, read.end)
    before = examples_before(task, instances)
    if before is not None:
        return (before[read.row[:, None], index] - before[read.row, read.cut][:, None]).astype(np.float64), "examples"
    place = np.arange(index.shape[1])
    begin = place // DISTANCE_BIN * DISTANCE_BIN
    middle = (begin + np.minimum(begin + DISTANCE_BIN, index.shape[1]) - 1) / 2
    return np.broadcast_to(middle, inside.shape), "tokens"


def caught_up_after(distance: FloatArray, mean: FloatArray, error: FloatArray) -> float | None:
    """The first of K ascending distances after which the mode is nowhere significantly ahead of the other model.

    `mean` is its loss minus that of the other model. None if the mode is nowhere ahead, or if it is still ahead at the end.
    """
    ahead = np.flatnonzero(mean < -_errors_at(len(mean)) * error)
    if not len(ahead):
        return None
    after = int(ahead[-1]) + 1
    return float(distance[after]) if after < len(distance) else None


def _errors_at(count: int) -> float:
    """The standard errors that chance exceeds at one of `count` distances with probability `CHANCE`: 2.0 for 1, 3.4 for 64."""
    return NormalDist().inv_cdf(1 - CHANCE / max(count, 1))


def _variation_and_probe(found: Study, y: FloatArray, task: Task, instances: Instances, read: Segments) -> None:
    found.findings["variation"] = variation(y, read)
    found.lines["variation of y, per token (CGT Eq. 4)"] = f"{found.findings['variation']:.4f}"
    progress = examples_before(task, instances)
    if progress is not None:
        by_example = variation_by_example(y, read, progress)
        found.findings["variation_by_example"] = {str(n): value for n, value in by_example.items()}
        found.lines["within each example"] = "  ".join(f"{value:.3f}" for value in by_example.values())
    probe, fast = (probe_hidden(part, instances, read) for part in (y, fast_part(y)))
    if isinstance(probe, str):
        found.lines["linear probe of y"] = probe
    if not isinstance(probe, LinearProbe) or not isinstance(fast, LinearProbe):
        return
    pictures.plot_linear_probe(probe, found.folder / "linear_probe.png")
    figures = zip(probe.error.tolist(), probe.r_squared.tolist(), fast.error.tolist(), strict=True)
    names = ("error", "r_squared", "fast_part_error")
    targets = {name: dict(zip(names, own, strict=True)) for name, own in zip(probe.names, figures, strict=True)}
    found.findings["linear_probe"] = {"segments": len(probe.row), "fitted_to": probe.fitted, "targets": targets}
    shown = dict(list(targets.items())[:4])
    for name, own in shown.items():
        text = f"error {own['error']:.3f} standard deviations, R² {own['r_squared']:.3f} ({len(probe.row)} segments)"
        found.lines[f"linear probe of y for {name}"] = text
    errors = "  ".join(f"{name} {own['fast_part_error']:.3f}" for name, own in shown.items())
    found.lines["fit, fast part: y without its mean over 8 tokens"] = f"error {errors}"


def _spectrum(found: Study, model: SlowModel, y: FloatArray, instances: Instances, parts: Segments) -> None:
    seen = spectrum(y, instances, parts)
    if isinstance(seen, str):
        found.lines["spectrum of y"] = seen
    else:
        found.findings["spectrum"] = {
            "power": seen.power.tolist(),
            "up_to_3": seen.slow,
            "peak": seen.peak,
            "at_multiples_of_contexts": seen.at_contexts,
        }
        text = f"{seen.slow:.2f} of the power up to harmonic 3, most at harmonic {seen.peak}"
        if seen.at_contexts is not None:
            text += f", {seen.at_contexts:.2f} at multiples of {parts.per_row}, the contexts of an instance"
        found.lines["spectrum of y"] = text
    code = encoder(model, instances)
    if code is not None:
        found.findings["encoder"] = asdict(code)
        text = f"divergence {code.divergence:.3f} nats a token (least possible {code.least:.3f})"
        text += f", spread {code.spread:.2f} of the prior's, {code.unused:.0%} of the components unused"
        found.lines["encoder of y"] = text


def _products(found: Study, y: FloatArray, instances: Instances, parts: Segments) -> None:
    """The mean over all instances if their contexts begin at the same positions, else the first instance."""
    rows = [parts[parts.row == row] for row in np.unique(parts.row)]
    alike = all(np.array_equal(own.start, rows[0].start) for own in rows) and "cut" not in instances.truth
    lengths = instances.lengths[[int(own.row[0]) for own in rows]]
    shown = y[:, : lengths[0]] if alike and (lengths == lengths[0]).all() else y[parts.row[:1], : lengths[0]]
    what = f"mean over {len(shown)} instances" if len(shown) > 1 else "one instance"
    begins = rows[0].cut if "cut" in instances.truth else rows[0].start[1:]
    pictures.plot_dot_products(dot_products(shown), begins.tolist(), found.folder / "dot_products.png", what)


def _transitions(found: Study, y: FloatArray, instances: Instances, read: Segments) -> None:
    seen = transitions(y, instances, read)
    if seen is None:
        return
    moved = seen.moved[: len(seen.boundaries)]
    pictures.plot_context(seen.shown, seen.boundaries, moved, found.folder / "context.png")
    took, changes = seen.tokens(), len(seen.changes)
    distance, control = (float(np.median([m.distance for m in moves])) for moves in (seen.changes, seen.controls))
    found.findings["tokens_until_moved"] = {
        "changes": changes,
        "controls": len(seen.controls),
        "moved": len(took),
        "share_moved": len(took) / changes,
        "median": float(np.median(took)) if took else None,
        "quartiles": np.quantile(took, (0.25, 0.75)).tolist() if took else None,
        "distance": {"changes": distance, "controls": control, "far": seen.far},
    }
    far = f"farther than at 95 % of {len(seen.controls)} places inside one context"
    found.lines["y moves at"] = f"{len(took) / changes:.0%} of {changes} changes of context ({far})"
    places = f"{distance:.2f} at a change, {control:.2f} inside one context"
    found.lines["how far (median, in the spread of y)"] = places
    if took:
        found.lines["y has moved after"] = f"{np.median(took):.0f} tokens (median of {len(took)} changes)"


def _topics(found: Study, model: SlowModel, instances: Instances, parts: Segments, names: Sequence[str]) -> None:
    texts = documents(model, instances, parts)
    near = texts.neighbours() if texts is not None and len(texts.means) >= 4 else None
    if texts is None or near is None:
        return
    count, path = len(texts.means), found.folder / "topics.png"
    pictures.plot_topics(tsne(texts.means), texts.topics, path, f"{count} texts read on their own", names)
    found.findings["topics"] = {
        "texts": count,
        "documents": near.documents,
        "nearest_of_same_topic": near.same,
        "by_chance": near.chance,
    }
    words = f"{near.same:.2f} of {count} texts of {near.documents} documents (by chance {near.chance:.2f})"
    found.lines["nearest text of another document has the same topic"] = words


def _patching(found: Study, model: SlowModel, instances: Instances, parts: Segments, names: tuple[str, ...]) -> None:
    effect = activation_patching(model, instances, parts)
    order = np.argsort(-effect.rises, kind="stable")
    ends = {"most_raised": order[:10], "most_lowered": order[:-11:-1]}
    found.findings["activation_patching"] = {
        "pairs": effect.pairs,
        "total_variation": effect.total_variation,
        "rise_by_kind_of_token": effect.by_kind,
        **{what: {names[i]: float(effect.rises[i]) for i in tokens} for what, tokens in ends.items()},
    }
    kinds = ", ".join(f"{kind} {rise:+.2f}" for kind, rise in effect.by_kind.items())
    words = f"{kinds} (nats; TVD {effect.total_variation:.2f})"
    found.lines["activation patching: change of log probability, tokens of"] = words
