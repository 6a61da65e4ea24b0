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
from regbench.analysis.modes import LOSSES, MODES, Outcomes, read_in_modes
from regbench.analysis.representation import (
    contexts,
    documents,
    dot_products,
    hidden_targets,
    joined,
    linear_fit,
    tokens_until_moved,
    variation,
)
from regbench.analysis.segments import Segments, segments, stretches_to_read
from regbench.analysis.trained import Trained
from regbench.analysis.transplant import transplant
from regbench.analysis.tsne import tsne
from regbench.data import Instances
from regbench.errors import UserError
from regbench.files import atomic_write
from regbench.tasks.task import TokenIO

DISTANCE_BIN = 4
SHORTEST = 8
"""Of two texts, each must have as many tokens for y to be seen going from the one to the other."""


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
    parts = segments(task, instances)
    if not len(parts):
        raise UserError(f"no instance of {trained.track.name} can be cut into a part that shows its context and a rest")
    found = Study(folder)
    found.findings = {
        "track": trained.track.name,
        "architecture": trained.architecture,
        "seed": trained.seed,
        "split": split,
        "instances": len(instances),
        "stretches": len(parts),
        "moving_average_rate": rate,
    }
    announce("reading behind the cuts, with the prompt and without")
    outcomes = read_in_modes(model, task, instances, stretches_to_read(task, instances), rate)
    _scores(found, outcomes)
    _distances(found, outcomes, next(m for m in LOSSES if m in outcomes.values["dynamic"]))
    announce("looking at y")
    y = contexts(model, instances.tokens)
    _variation_and_fit(found, y, instances, parts)
    _products(found, y, instances, parts)
    _transitions(found, model, y, instances, parts)
    announce("placing documents by t-SNE")
    _topics(found, model, instances, parts, task.topic_names)
    if isinstance(task.io, TokenIO):
        announce("transplanting y")
        _transplants(found, model, instances, parts, task.io.names)
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


def _distances(found: Study, outcomes: Outcomes, metric: str) -> None:
    base = "unprompted"
    curves = {m: outcomes.difference(m, base, metric, DISTANCE_BIN) for m in MODES if m != base}
    pictures.plot_by_distance(curves, base, metric, found.folder / "loss_by_distance.png")
    found.findings["loss_by_distance"] = {
        "metric": metric,
        "less_that_of": base,
        "modes": {
            m: dict(zip(("distance", "mean", "stderr"), (part.tolist() for part in curve), strict=True))
            for m, curve in curves.items()
        },
    }
    # Where the frozen y stops helping: 2024, section 4.3, "after roughly 200 tokens".
    distance, mean, error = curves["specialised"]
    ahead = np.flatnonzero(mean < -2 * error)
    after = np.flatnonzero(mean >= 0)
    after = after[after > ahead[0]] if len(ahead) else after[:0]
    caught = float(distance[after[0]]) if len(after) else None
    found.findings["loss_by_distance"]["specialised_is_ahead"] = bool(len(ahead))
    found.findings["loss_by_distance"]["caught_up_after"] = caught
    if not len(ahead):
        words = "the specialised one is nowhere ahead of it by two standard errors"
    else:
        words = "not within the text" if caught is None else f"after {caught:.0f} tokens"
    found.say("the unprompted model catches up", words)


def _variation_and_fit(found: Study, y: Any, instances: Instances, parts: Segments) -> None:
    travelled = variation(y, parts)
    found.findings["variation"] = travelled
    found.say("variation of y behind the cut, a token (CGT Eq. 4)", f"{travelled:.4f}")
    hidden = hidden_targets(instances, parts)
    if hidden is None or len(np.unique(parts.row)) < 4:
        found.findings["linear_fit"] = None
        return
    fit = linear_fit(y, parts, *hidden)
    pictures.plot_linear_fit(fit, found.folder / "linear_fit.png")
    found.findings["linear_fit"] = {
        name: {"error": float(fit.error[k]), "r_squared": float(fit.explained[k])} for k, name in enumerate(fit.names)
    }
    for k, name in enumerate(fit.names[:4]):
        text = f"error {fit.error[k]:.3f} standard deviations, R² {fit.explained[k]:.3f}"
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


def _transitions(found: Study, model: Guided, y: Any, instances: Instances, parts: Segments) -> None:
    """At the contexts of one sequence; where an instance is two texts, at its cut; of one text each, at the joints of two."""
    if "cut" in instances.truth:
        long = parts[np.minimum(parts.cut, parts.end - parts.cut) >= SHORTEST]
        if not len(long):
            found.findings["tokens_until_moved"] = None
            return
        columns = zip(long.row.tolist(), long.cut.tolist(), long.end.tolist(), strict=True)
        moves = [tokens_until_moved(y[row], 0, cut, end) for row, cut, end in columns]
        shown, boundaries = y[long.row[0], : long.end[0]], long.cut[:1].tolist()
        own, what = moves[:1], "one instance"
    elif parts.per_row > 1:
        later = parts[parts.number > 0]
        moves = [
            tokens_until_moved(y[row], before, start, end)
            for row, before, start, end in zip(
                later.row.tolist(), _starts_before(parts, later), later.start.tolist(), later.end.tolist(), strict=True
            )
        ]
        row = int(later.row[0])
        shown, boundaries = y[row, : instances.lengths[row]], later.start[later.row == row].tolist()
        own, what = moves[: len(boundaries)], "one instance"
    else:
        texts, joints, ends = joined(instances, parts, model.io.max_length, pairs=100)
        if not joints:
            found.findings["tokens_until_moved"] = None
            return
        both = contexts(model, texts)
        moves = [tokens_until_moved(each, 0, at, end) for each, at, end in zip(both, joints, ends, strict=True)]
        shown, boundaries, own, what = both[0, : ends[0]], joints[:1], moves[:1], "two texts"
    pictures.plot_context(shown, boundaries, own, found.folder / "context.png", what)
    took = [move for move in moves if move is not None]
    found.findings["tokens_until_moved"] = {
        "changes": len(moves),
        "moved": len(took),
        "median": float(np.median(took)) if took else None,
        "quartiles": np.quantile(took, (0.25, 0.75)).tolist() if took else None,
    }
    middle = f"{np.median(took):.0f} tokens (median of {len(took)} of {len(moves)} changes)" if took else "it does not"
    found.say("y has moved after", middle)


def _starts_before(parts: Segments, later: Segments) -> list[int]:
    """Where the stretch before each of `later` begins: the one above it in its row."""
    start = {
        (row, number): at for row, number, at in zip(*map(list, (parts.row, parts.number, parts.start)), strict=True)
    }
    return [int(start[row, number - 1]) for row, number in zip(later.row, later.number, strict=True)]


def _topics(found: Study, model: Guided, instances: Instances, parts: Segments, names: Sequence[str]) -> None:
    texts = documents(model, instances, parts)
    if len(texts.means) < 4:
        found.findings["topics"] = None
        return
    what = f"{len(texts.means)} texts read on their own"
    pictures.plot_topics(tsne(texts.means), texts.topics, found.folder / "topics.png", what, names)
    same, chance = texts.same_topic_neighbours()
    found.findings["topics"] = {"documents": len(texts.means), "nearest_of_same_topic": same, "by_chance": chance}
    found.say("nearest document is of the same topic", f"{same:.2f} of {len(texts.means)} (by chance {chance:.2f})")


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
