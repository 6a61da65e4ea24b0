"""All measurements of one trained model with a summary of its context, and their pictures, in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from regbench.analysis import pictures
from regbench.analysis.guided import Guided, guided
from regbench.analysis.linear_fit import LinearFit, fit_hidden
from regbench.analysis.modes import LOSSES, MODES, Outcomes, read_in_modes
from regbench.analysis.representation import contexts, documents, dot_products, variation
from regbench.analysis.segments import Segments, examples_before, segments, stretches_to_read, windows
from regbench.analysis.trained import Trained
from regbench.analysis.transitions import transitions
from regbench.analysis.transplant import transplant
from regbench.analysis.tsne import tsne
from regbench.data.instances import Instances
from regbench.tasks.base import Task, TokenIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write

DISTANCE_BIN = 4
"""So many tokens behind the cut are put together, where progress is not counted in examples."""


@dataclass
class Study:
    """What was measured. findings: as written to `analysis.json`.  lines: the same for people, (what, value)."""

    folder: Path
    findings: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def say(self, what: str, value: str) -> None:
        self.lines.append((what, value))


def study(
    trained: Trained,
    folder: Path,
    *,
    split: str,
    limit: int,
    rate: float,
    announce: Callable[[str], None] = lambda _: None,
) -> Study:
    """Measures everything on the first `limit` instances of a split; writes `analysis.json` and the pictures into `folder`.

    rate: of y as a moving average.

    Raises:
        UserError: the architecture keeps no summary of its context, or no instance can be cut in two.
    """
    model, task = guided(trained.model, trained.architecture), trained.track.task
    instances = trained.track.instances(split)[:limit]
    parts, read = segments(task, instances), stretches_to_read(task, instances)
    if not len(parts):
        raise UserError(f"no instance of {trained.track.name} can be cut into a part that shows its context and a rest")
    found = Study(folder)
    found.findings = {
        "track": trained.track.name,
        "architecture": trained.architecture,
        "seed": trained.seed,
        "split": split,
        "instances": len(instances),
        "stretches": len(read),
        "moving_average_rate": rate,
    }
    announce("reading behind the cuts, with the prompt and without")
    outcomes = read_in_modes(model, task, instances, read, rate)
    _scores(found, outcomes)
    _distances(found, outcomes, task, instances, read)
    announce("looking at y")
    y = contexts(model, instances.tokens)
    _variation_and_fit(found, y, instances, read)
    _products(found, y, instances, parts)
    _transitions(found, model, y, instances, read)
    announce("placing documents by t-SNE")
    _topics(found, model, instances, parts, task.topic_names)
    if isinstance(task.io, TokenIO):
        announce("transplanting y")
        _transplants(found, model, instances, read, task.io.names)
    with atomic_write(folder / "analysis.json") as file:
        json.dump(found.findings, file, indent=1, allow_nan=False)
    return found


def _scores(found: Study, outcomes: Outcomes) -> None:
    table: dict[str, Any] = {}
    for mode in MODES:
        scores = {metric: outcomes.score(mode, metric) for metric in outcomes.values[mode]}
        table[mode] = {m: {"value": s.value, "stderr": s.stderr} for m, s in scores.items()}
        found.say(mode, "  ".join(f"{m} {s.value:.3f} ± {s.stderr:.3f}" for m, s in scores.items()))
    found.findings["behind_the_cut"] = table


def _distances(found: Study, outcomes: Outcomes, task: Task, instances: Instances, read: Segments) -> None:
    metric, base = next(m for m in LOSSES if m in outcomes.values["dynamic"]), "unprompted"
    behind, unit = distance_behind(task, instances, read)
    curves = {m: outcomes.difference(m, base, metric, behind) for m in MODES if m != base}
    pictures.plot_by_distance(curves, base, metric, unit, found.folder / "loss_by_distance.png")
    # Where the frozen y stops helping: 2024, section 4.3, "after roughly 200 tokens".
    distance, mean, error = curves["specialised"]
    ahead = bool((mean < -2 * error).any())
    caught = caught_up_after(distance, mean, error)
    found.findings["loss_by_distance"] = {
        "metric": metric,
        "less_that_of": base,
        "counted_in": unit,
        "modes": {
            m: dict(zip(("distance", "mean", "stderr"), (part.tolist() for part in curve), strict=True))
            for m, curve in curves.items()
        },
        "specialised_is_ahead": ahead,
        "caught_up_after": caught,
    }
    if not len(distance):
        words = "too few instances to tell"
    elif not ahead:
        words = "the specialised one is nowhere ahead of it by two standard errors"
    else:
        words = "not within the text" if caught is None else f"after {caught:g} {unit}"
    found.say("the unprompted model catches up", words)


def distance_behind(task: Task, instances: Instances, read: Segments) -> tuple[FloatArray, str]:
    """How far behind its cut each position of a stretch is, (S, W), and in what that is counted.

    Where the task counts examples: how many are read between the cut and a position's own. Else tokens, as the middle of a bin.
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
    """The first distance from which on the base model is nowhere behind by more than its error; (K,) each, in order.

    mean: a mode's loss less that of the base.  None: the mode is nowhere ahead by two errors, or to the end.
    """
    if not (mean < -2 * error).any():
        return None
    after = int(np.flatnonzero(mean < -error)[-1]) + 1
    return float(distance[after]) if after < len(distance) else None


def _variation_and_fit(found: Study, y: Any, instances: Instances, read: Segments) -> None:
    travelled = variation(y, read)
    found.findings["variation"] = travelled
    found.say("variation of y behind the cut, a token (CGT Eq. 4)", f"{travelled:.4f}")
    fit = fit_hidden(y, instances, read)
    found.findings["linear_fit"] = None
    if isinstance(fit, str):
        found.say("linear fit from y", fit)
    if not isinstance(fit, LinearFit):
        return
    pictures.plot_linear_fit(fit, found.folder / "linear_fit.png")
    found.findings["linear_fit"] = {
        "stretches": len(fit.row),
        "fitted_to": fit.fitted,
        "targets": {
            name: {"error": float(fit.error[k]), "r_squared": float(fit.explained[k])}
            for k, name in enumerate(fit.names)
        },
    }
    for k, name in enumerate(fit.names[:4]):
        text = f"error {fit.error[k]:.3f} standard deviations, R² {fit.explained[k]:.3f} ({len(fit.row)} stretches)"
        found.say(f"linear fit of {name} from y", text)


def _products(found: Study, y: Any, instances: Instances, parts: Segments) -> None:
    """Over all instances where their contexts begin at the same places, else of the first; there the own cut is marked."""
    if "cut" in instances.truth:
        row, at = int(parts.row[0]), int(parts.cut[0])
        shown = y[row : row + 1, : instances.lengths[row]]
        pictures.plot_dot_products(dot_products(shown), [at], found.folder / "dot_products.png", "one instance")
        return
    first = parts[parts.row == parts.row[0]]
    aligned = all(np.array_equal(parts.start[parts.row == row], first.start) for row in np.unique(parts.row))
    aligned = aligned and bool((instances.lengths == instances.lengths[0]).all())
    length = int(instances.lengths[parts.row[0]])
    shown = y[:, :length] if aligned else y[parts.row[:1], :length]
    what = f"mean over {len(shown)} instances" if aligned else "one instance"
    pictures.plot_dot_products(dot_products(shown), first.start[1:].tolist(), found.folder / "dot_products.png", what)


def _transitions(found: Study, model: Guided, y: Any, instances: Instances, read: Segments) -> None:
    seen = transitions(model, y, instances, read)
    if seen is None:
        found.findings["tokens_until_moved"] = None
        return
    pictures.plot_context(seen.shown, seen.boundaries, seen.moved, found.folder / "context.png", seen.what)
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
    share = f"{len(took) / changes:.0%} of {changes} changes of context"
    far = f"farther than in 95 % of {len(seen.controls)} places inside one context"
    found.say("y moves at", f"{share} ({far})")
    found.say("how far (median, in the spread of y)", f"{distance:.2f} at a change, {control:.2f} inside one context")
    if took:
        found.say("y has moved after", f"{np.median(took):.0f} tokens (median of the {len(took)} that it moved at)")


def _topics(found: Study, model: Guided, instances: Instances, parts: Segments, names: Sequence[str]) -> None:
    texts = documents(model, instances, parts)
    near = texts.neighbours() if len(texts.means) >= 4 else None
    if near is None:
        found.findings["topics"] = None
        return
    count = len(texts.means)
    pictures.plot_topics(
        tsne(texts.means), texts.topics, found.folder / "topics.png", f"{count} texts read on their own", names
    )
    found.findings["topics"] = {
        "texts": count,
        "documents": near.documents,
        "nearest_of_same_topic": near.same,
        "by_chance": near.chance,
    }
    words = f"{near.same:.2f} of {count} texts of {near.documents} documents (by chance {near.chance:.2f})"
    found.say("nearest text of another document is of the same topic", words)


def _transplants(found: Study, model: Guided, instances: Instances, parts: Segments, names: tuple[str, ...]) -> None:
    effect = transplant(model, instances, parts)
    pictures.plot_transplant(effect.rises, names, found.folder / "transplant.png")
    top = np.argsort(-effect.rises, kind="stable")[:10]
    found.findings["transplant"] = {
        "pairs": effect.pairs,
        "total_variation": effect.total_variation,
        "rise_by_kind_of_token": effect.by_kind,
        "most_raised": {names[i]: float(effect.rises[i]) for i in top},
    }
    kinds = ", ".join(f"{kind} {rise:+.2f}" for kind, rise in effect.by_kind.items())
    found.say("log probability with another's y, tokens of", f"{kinds} (nats; TVD {effect.total_variation:.2f})")
