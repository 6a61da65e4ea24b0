"""Ways to forge an entry or a run: every leaf of its JSON, its bytes, its files."""

from __future__ import annotations

import copy
import fnmatch
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regbench.evaluation.predictions import Predictions
from regbench.leaderboard.entry import canonical, digest_of, parse_entry
from regbench.metrics.scores import score, score_records
from regbench.results import BaselineRecord, normalized_scores
from regbench.tracks import Track

Path_ = tuple[str | int, ...]


def leaves(content: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The place of every plain value, and of every empty list or object."""
    if isinstance(content, dict | list) and content:
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*path, key))
    else:
        yield path


def at(content: Any, path: Path_) -> Any:
    for key in path:
        content = content[key]
    return content


def put(content: Any, path: Path_, value: Any) -> Any:
    """A copy with another value in one place."""
    changed = copy.deepcopy(content)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def forgeries(value: Any) -> list[Any]:
    """Other values that one could write in the place of this: plausible ones first, then wild ones."""
    if isinstance(value, bool):
        return [not value, None, 1]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value + 3, -1, 2**62, 10**30, str(value), None, value + 0.5]
    if isinstance(value, float):
        step = 0.1 * max(1.0, abs(value))
        return [
            value + step,
            value - step,
            1.5 * value + 0.01,
            -1.0,
            1e300,
            0.0 if abs(value) > 1e-3 else 1.0,
            str(value),
            None,
        ]
    if isinstance(value, str):
        other = [f"{'0' if value[0] != '0' else '1'}{value[1:]}"] if re.fullmatch("[0-9a-f]{40,64}", value) else []
        return [
            *other,
            value + "0",
            value[:-1] if len(value) > 1 else "xy",
            value.upper() + "A",
            "../" + value,
            "\u202e" + value,
            "plateau",
            7,
            None,
        ]
    if value is None:
        return [1, "x", True, 0.5]
    return [{"x": "y"} if isinstance(value, dict) else [1], {"x": 1}, None, "x"]


def name_of(path: Path_) -> str:
    """ "result.seeds.0.steps" """
    return ".".join(map(str, path))


def kind_of(path: Path_) -> str:
    """The same with * for every index and for the names of metrics, baselines, packages, ...: leaves that are alike."""
    text = re.sub(r"\.\d+(?=\.|$)", ".*", name_of(path))
    for parent in ("scores", "curves", "share_of_the_way", "baselines", "loss", "packages", "group_counts", "sums.*"):
        text = re.sub(rf"(^|\.){re.escape(parent)}\.[^.]+", rf"\1{parent}.*", text)
    return text


def unseen(path: Path_, patterns: Sequence[str]) -> str | None:
    """The first pattern that speaks of this place."""
    return next((pattern for pattern in patterns if fnmatch.fnmatchcase(name_of(path), pattern)), None)


def one_of_each_kind(content: Any) -> list[Path_]:
    """A leaf of every kind, the last there is."""
    return list({kind_of(path): path for path in leaves(content)}.values())


def seal(content: Any) -> dict[str, Any]:
    """With the digest that a careful forger would write."""
    return {**content, "digest": digest_of(content)}


def store(content: Any, folder: Path, *, text: str | None = None) -> Path:
    """Writes a forged entry where it would have to lie, under the name it would have to have; whatever can be known of both."""
    try:
        entry = parse_entry(content, "")
        track, name = entry.track, entry.file_name
    except Exception:
        track, name = "tiny-v1", "forged-00000000.json"
    place = folder / (track if re.fullmatch(r"[\w.-]+", track) else "tiny-v1")
    place.mkdir(parents=True, exist_ok=True)
    path = place / name
    path.write_text(text if text is not None else _text(content), encoding="utf-8", errors="surrogatepass")
    return path


def _text(content: Any) -> str:
    try:
        return canonical(content)
    except ValueError:
        return json.dumps(content)


def claim(run: Path, track: Track, forged: Sequence[Predictions]) -> dict[str, Any]:
    """Makes a run folder claim these predictions, one for each seed, with all figures as a careful forger would write them.

    The validation losses are moved to the loss on the test split. Returns what `result.json` then holds.
    """
    content: dict[str, Any] = json.loads((run / "result.json").read_text())
    anchors = {name: BaselineRecord.model_validate(record) for name, record in content["baselines"].items()}
    test = track.instances("test")
    for seed, predictions in zip(content["seeds"], forged, strict=True):
        folder = run / f"seed-{seed['seed']}"
        seed["predictions_sha256"] = predictions.save(folder / "predictions.npz")
        scores, curves = score_records(score(track.task, test, predictions.batches()))
        best = min(row["validation_loss"] for row in seed["training_curve"])
        shift = scores["nll"].value - best
        for row in seed["training_curve"]:
            row["validation_loss"] += shift
        seed["scores"] = {metric: one.model_dump() for metric, one in scores.items()}
        seed["curves"] = {metric: curve.model_dump() for metric, curve in curves.items()}
        seed["share_of_the_way"] = normalized_scores(scores, anchors)
        (folder / "scores.json").write_text(json.dumps(seed))
        log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for row in log:
            if "validation_loss" in row:
                row["validation_loss"] = next(
                    kept["validation_loss"] for kept in seed["training_curve"] if kept["step"] == row["step"]
                )
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    (run / "result.json").write_text(json.dumps(content))
    return content
