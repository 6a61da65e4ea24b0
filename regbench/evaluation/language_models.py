"""Language models on the board: scored untrained by `regbench evaluate hf:NAME`, in a table of their own below a track's entries.

They have no rank: they were trained elsewhere, on other data. Their files lie in `language-models/TRACK/` and hold the result,
without its baselines.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from regbench.evaluation.predictions import read_predictions
from regbench.metrics.scores import score
from regbench.results import RESULT_BYTES, BaselineRecord, Result, normalized_scores, read_result
from regbench.tracks import Track, load_track, track_names
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write
from regbench.utils.folder import Folder
from regbench.utils.guard import of_schema, parse_json

FOLDER = "language-models"
ABOUT = (
    "These language models were scored as they were given, and have no rank: they were trained elsewhere, on other data. Each "
    "symbol is a token of their vocabulary, drawn at random. ± is the standard error over the draws; of one draw, over instances."
)
"""Explains the table, on the page and in the tables."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.+=-]{0,79}")


@dataclass(frozen=True)
class LanguageModelEntry:
    """A language model on a track: its name in tables, and what `regbench evaluate` gave."""

    name: str
    result: Result

    @property
    def outside(self) -> float:
        assert self.result.evaluation is not None
        assert self.result.evaluation.outside is not None
        return statistics.fmean(self.result.evaluation.outside.values())

    @property
    def command(self) -> str:
        options, evaluation = self.result.architecture.options, self.result.evaluation
        assert evaluation is not None
        words = ["regbench", "evaluate", f"hf:{options.get('model', self.result.architecture.name)}"]
        words += ["--track", self.result.track.name, "--mapping", *(str(seed.seed) for seed in self.result.seeds)]
        for name, default in (("symbols", "auto"), ("precision", "float32"), ("revision", None)):
            if options.get(name) not in (None, default):
                words += [f"--{name}", str(options[name])]
        for name, text in (("separator", json.dumps("\n")), ("prompt", json.dumps(""))):
            if options.get(name, text) != text:
                words += [f"--{name}", json.loads(options[name])]
        if evaluation.limit is not None:
            words += ["--limit", str(evaluation.limit)]
        return shlex.join(words)

    def normalized(self, baselines: Mapping[str, BaselineRecord]) -> float | None:
        """The normalized score by the main score. None of a part of the instances: the baselines are of all."""
        assert self.result.evaluation is not None
        if self.result.evaluation.limit is not None:
            return None
        main = self.result.track.main_score
        return normalized_scores({main: self.result.score(main)}, baselines).get(main)


def language_model_result(run: Path) -> Result | None:
    """The result of `regbench evaluate hf:NAME` in a folder. None if it holds something else, or nothing that can be read."""
    try:
        result = read_result(run)
    except UserError:
        return None
    return result if result.evaluation is not None and result.evaluation.given == "language model" else None


def submit_language_model(run: Path, result: Result, board: Path, *, name: str | None, replace: bool) -> Path:
    """Computes the scores in the folder of `regbench evaluate hf:NAME --out DIR` again, and writes a file on the board."""
    name = result.architecture.name.lower() if name is None else name
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!a} cannot name a language model: up to 80 small letters, digits and _ . + = -")
    for fault in (*_faults(result), *_rescored(run, result)):
        raise UserError(f"{run}: {fault}")
    if not any((board / "entries" / result.track.name).glob("*.json")):
        raise UserError(f"{result.track.name} has no entries: a language model stands below those of its track")
    path = board / FOLDER / result.track.name / f"{name}.json"
    if path.exists() and not replace:
        raise UserError(f"{path} is there: --replace puts this result in its place, --name gives it another name")
    with atomic_write(path) as file:
        kept = result.model_copy(update={"baselines": {}}).model_dump(mode="json")
        file.write(json.dumps(kept, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return path


def read_language_models(board: Path) -> tuple[dict[tuple[str, str], list[LanguageModelEntry]], list[str]]:
    """The language models of a board by the name and the digest of their track, best first, and a line for each fault."""
    found: dict[tuple[str, str], list[LanguageModelEntry]] = {}
    faults = []
    for path in sorted((board / FOLDER).glob("*/*.json")):
        try:
            content = parse_json(
                Folder(board / FOLDER).read(f"{path.parent.name}/{path.name}", RESULT_BYTES), path.name
            )
            result = of_schema(Result, content, path.name)
            wrong = list(_faults(result))
            if result.track.name != path.parent.name or not _NAME.fullmatch(path.stem):
                wrong.append("the file must be called NAME.json, and lie in a folder called like its track")
        except UserError as error:
            wrong = [str(error)]
        faults += [f"{path.name}: {fault}" for fault in wrong]
        if not wrong:
            found.setdefault((result.track.name, result.track.digest), []).append(LanguageModelEntry(path.stem, result))
    for models in found.values():
        main = models[0].result.track.main_score
        sign = load_track(models[0].result.track.name).metrics[main].sign
        models.sort(key=lambda one: (-sign * one.result.score(main).value, one.name))
    return found, faults


def _faults(result: Result) -> Iterator[str]:
    """What is wrong with a result that should be of a language model on a track of today."""
    evaluation = result.evaluation
    if evaluation is None or evaluation.given != "language model" or evaluation.outside is None:
        yield "it is no result of `regbench evaluate hf:NAME`"
        return
    if evaluation.split != "test":
        yield f"it is of the {evaluation.split} split; the board is of the test split"
    track = load_track(result.track.name) if result.track.name in track_names() else None
    if track is None or result.track != track.record() or set(result.metrics) != set(track.task.scores):
        yield f"it is not on {result.track.name} as it is built in here, or has other scores"


def _rescored(run: Path, result: Result) -> Iterator[str]:
    track: Track = load_track(result.track.name)
    assert result.evaluation is not None
    instances = track.instances("test")[: result.evaluation.limit]
    for seed in result.seeds:
        stored = read_predictions(run, seed.seed, track.task, instances)
        for metric, real in score(track.task, instances, stored.batches()).table().items():
            given = seed.scores[metric]
            if max(abs(given.value - real.value), abs(given.stderr - real.stderr)) > 1e-9 * max(1.0, abs(real.value)):
                yield f"mapping {seed.seed}: {metric} is {given.value:.7g}, and the predictions give {real.value:.7g}"
