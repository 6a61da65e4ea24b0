"""All measurements of one trained model, written with their pictures into a folder (`regbench analyze DIR`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from papers.cgt import pictures
from papers.cgt.linear_probe import LinearProbe, probe_hidden, require_scikit_learn
from papers.cgt.modes import (
    MODES,
    ContextModel,
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
    """What was measured.

    Attributes:
        folder: For pictures and `analysis.json`.
        findings: The content of `analysis.json`.
        lines: The same for the terminal, (what, value).
    """

    folder: Path
    findings: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def add_line(self, what: str, value: str) -> None:
        """Adds a line for the terminal."""
        self.lines.append((what, value))


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
    """Measures everything and writes `analysis.json` and the pictures.

    Args:
        trained: A model with a summary of its context.
        folder: For the files.
        split: The split to read.
        limit: How many of its instances.
        rate: Of the moving average of y.
        against: Another model on the same track, which reads the texts alone, to compare with.
        announce: Is told what comes next.

    Raises:
        UserError: No instance can be cut in two, the other model is of another track, or scikit-learn is not installed.
    """
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
    }
    announce("scoring the texts, with their prompts and without")
    outcomes = read_in_modes(model, task, instances, read, rate)
    _scores(found, outcomes)
    _distances(found, outcomes, task, instances, read)
    if against is not None:
        announce(f"scoring {against.folder.name}, which reads the texts alone")
        _against(found, outcomes, against, instances, read, rate)
    announce("measuring y")
    y = contexts(model, instances.tokens)
    _variation_and_probe(found, y, task, instances, read)
    _spectrum(found, model, y, instances, parts)
    _products(found, y, instances, parts)
    _transitions(found, model, y, instances, read)
    announce("placing texts by t-SNE")
    _topics(found, model, instances, parts, task.topic_names)
    if isinstance(task.io, TokenIO):
        announce("patching y")
        _patching(found, model, instances, read, task.io.names)
    write_json(folder / "analysis.json", found.findings)
    return found


def _scores(found: Study, outcomes: Outcomes) -> None:
    table: dict[str, Any] = {}
    for mode in MODES:
        scores = {metric: outcomes.score(mode, metric) for metric in outcomes.values[mode]}
        table[mode] = {m: {"value": s.value, "stderr": s.stderr} for m, s in scores.items()}
        found.add_line(mode, "  ".join(f"{m} {s}" for m, s in scores.items()))
    found.findings["after_the_prompt"] = table


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
    found.add_line("the unprompted model catches up with the specialised one", words)


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
    found.add_line(f"specialised, less {name} with the text alone", words)


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
    """The first distance after which the mode is nowhere significantly ahead of the other model.

    Args:
        distance: In ascending order, (K,).
        mean: The mode's loss minus that of the other model, (K,).
        error: Standard errors, (K,).

    Returns:
        None if the mode is nowhere ahead, or if it is still ahead at the end.
    """
    ahead = np.flatnonzero(mean < -_errors_at(len(mean)) * error)
    if not len(ahead):
        return None
    after = int(ahead[-1]) + 1
    return float(distance[after]) if after < len(distance) else None


def _errors_at(count: int) -> float:
    """The standard errors that chance exceeds at one of `count` distances with probability `CHANCE`: 2.0 for 1, 3.4 for 64."""
    return NormalDist().inv_cdf(1 - CHANCE / max(count, 1))


def _variation_and_probe(found: Study, y: Any, task: Task, instances: Instances, read: Segments) -> None:
    found.findings["variation"] = variation(y, read)
    found.add_line("variation of y, per token (CGT Eq. 4)", f"{found.findings['variation']:.4f}")
    progress = examples_before(task, instances)
    found.findings["variation_by_example"] = None
    if progress is not None:
        by_example = variation_by_example(y, read, progress)
        found.findings["variation_by_example"] = {str(n): value for n, value in by_example.items()}
        found.add_line("within each example", "  ".join(f"{value:.3f}" for value in by_example.values()))
    probe = probe_hidden(y, instances, read)
    found.findings["linear_probe"] = None
    if isinstance(probe, str):
        found.add_line("linear probe of y", probe)
    if not isinstance(probe, LinearProbe):
        return
    pictures.plot_linear_probe(probe, found.folder / "linear_probe.png")
    found.findings["linear_probe"] = {
        "segments": len(probe.row),
        "fitted_to": probe.fitted,
        "targets": {
            name: {"error": float(probe.error[k]), "r_squared": float(probe.r_squared[k])}
            for k, name in enumerate(probe.names)
        },
    }
    fast = probe_hidden(fast_part(y), instances, read)
    assert isinstance(fast, LinearProbe)
    for k, name in enumerate(probe.names):
        found.findings["linear_probe"]["targets"][name]["fast_part_error"] = float(fast.error[k])
    for k, name in enumerate(probe.names[:4]):
        text = f"error {probe.error[k]:.3f} standard deviations, R² {probe.r_squared[k]:.3f}"
        found.add_line(f"linear probe of y for {name}", f"{text} ({len(probe.row)} segments)")
    errors = "  ".join(f"{name} {error:.3f}" for name, error in zip(fast.names[:4], fast.error, strict=False))
    found.add_line("fit, fast part: y without its mean over 8 tokens", f"error {errors}")


def _spectrum(found: Study, model: ContextModel, y: Any, instances: Instances, parts: Segments) -> None:
    seen = spectrum(y, instances, parts)
    found.findings["spectrum"] = None
    if isinstance(seen, str):
        found.add_line("spectrum of y", seen)
    else:
        pictures.plot_spectrum(seen.power, found.folder / "spectrum.png")
        found.findings["spectrum"] = {
            "power": seen.power.tolist(),
            "up_to_3": seen.slow,
            "peak": seen.peak,
            "at_multiples_of_contexts": seen.at_contexts,
        }
        text = f"{seen.slow:.2f} of the power up to harmonic 3, most at harmonic {seen.peak}"
        if seen.at_contexts is not None:
            text += f", {seen.at_contexts:.2f} at multiples of {parts.per_row}, the contexts of an instance"
        found.add_line("spectrum of y", text)
    code = encoder(model, instances)
    found.findings["encoder"] = None
    if code is not None:
        found.findings["encoder"] = asdict(code)
        text = f"divergence {code.divergence:.3f} nats a token (least possible {code.least:.3f})"
        text += f", spread {code.spread:.2f} of the prior's, {code.unused:.0%} of the components unused"
        found.add_line("encoder of y", text)


def _products(found: Study, y: Any, instances: Instances, parts: Segments) -> None:
    """The mean over all instances if their contexts begin at the same positions, else the first instance."""
    if "cut" in instances.truth:
        row = int(parts.row[0])
        at = parts.cut[parts.row == row].tolist()
        shown = y[row : row + 1, : instances.lengths[row]]
        pictures.plot_dot_products(dot_products(shown), at, found.folder / "dot_products.png", "one instance")
        return
    first = parts[parts.row == parts.row[0]]
    aligned = all(np.array_equal(parts.start[parts.row == row], first.start) for row in np.unique(parts.row))
    aligned = aligned and bool((instances.lengths == instances.lengths[0]).all())
    length = int(instances.lengths[parts.row[0]])
    shown = y[:, :length] if aligned else y[parts.row[:1], :length]
    what = f"mean over {len(shown)} instances" if aligned else "one instance"
    pictures.plot_dot_products(dot_products(shown), first.start[1:].tolist(), found.folder / "dot_products.png", what)


def _transitions(found: Study, model: ContextModel, y: Any, instances: Instances, read: Segments) -> None:
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
    far = f"farther than at 95 % of {len(seen.controls)} places inside one context"
    found.add_line("y moves at", f"{share} ({far})")
    places = f"{distance:.2f} at a change, {control:.2f} inside one context"
    found.add_line("how far (median, in the spread of y)", places)
    if took:
        found.add_line("y has moved after", f"{np.median(took):.0f} tokens (median of {len(took)} changes)")


def _topics(found: Study, model: ContextModel, instances: Instances, parts: Segments, names: Sequence[str]) -> None:
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
    found.add_line("nearest text of another document has the same topic", words)


def _patching(found: Study, model: ContextModel, instances: Instances, parts: Segments, names: tuple[str, ...]) -> None:
    effect = activation_patching(model, instances, parts)
    pictures.plot_patching(effect.rises, names, found.folder / "activation_patching.png")
    top = np.argsort(-effect.rises, kind="stable")[:10]
    found.findings["activation_patching"] = {
        "pairs": effect.pairs,
        "total_variation": effect.total_variation,
        "rise_by_kind_of_token": effect.by_kind,
        "most_raised": {names[i]: float(effect.rises[i]) for i in top},
    }
    kinds = ", ".join(f"{kind} {rise:+.2f}" for kind, rise in effect.by_kind.items())
    words = f"{kinds} (nats; TVD {effect.total_variation:.2f})"
    found.add_line("activation patching: change of log probability, tokens of", words)
