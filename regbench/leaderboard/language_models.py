"""Language models on the board: scored untrained by `regbench evaluate hf:NAME`, in a table of their own below a track's entries.

They have no rank: they were trained elsewhere, on other data. Their files lie in `language-models/TRACK/`.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from regbench.evaluation.predictions import read_predictions
from regbench.leaderboard.case import Findings
from regbench.leaderboard.entry import canonical, check_name, digest_of
from regbench.leaderboard.figures import rescored
from regbench.leaderboard.reference import find_reference
from regbench.leaderboard.store import members_of
from regbench.metrics.metric import METRICS
from regbench.metrics.scores import normalized_scores, score, score_records
from regbench.results import RESULT_BYTES, BaselineRecord, Result, read_result
from regbench.tracks import track_names
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, exclusive, explain_full_disk
from regbench.utils.folder import Folder
from regbench.utils.guard import of_schema, parse_json

if TYPE_CHECKING:
    from regbench.leaderboard.submit import Submission

FOLDER = "language-models"
ABOUT = (
    "These language models were scored as they were given, and have no rank: they were trained elsewhere, on other data. Each "
    "symbol is a token of their vocabulary, drawn at random. ± is the standard error over the draws; of one draw, over instances."
)
"""Explains the table, on the page and in the tables."""


@dataclass(frozen=True)
class LanguageModelEntry:
    """A language model on a track.

    Attributes:
        name: The name in tables.
        result: What `regbench evaluate` gave, without its baselines: the board has its own.
    """

    name: str
    result: Result

    @property
    def outside(self) -> float:
        """The mean probability that tokens had which are no symbols."""
        assert self.result.evaluation is not None
        assert self.result.evaluation.outside is not None
        return statistics.fmean(self.result.evaluation.outside.values())

    @property
    def command(self) -> str:
        """The command that scores it again."""
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


def submit_language_model(run: Path, result: Result, board: Path, *, name: str | None, replace: bool) -> Submission:
    """Checks the folder of `regbench evaluate hf:NAME --out DIR`, and writes its file on the board.

    Args:
        run: The folder. Its scores are computed again from its predictions.
        result: Its result.
        board: The leaderboard's folder.
        name: The name in tables, or None for that of the model.
        replace: Whether it takes the place of a file of the same name.

    Raises:
        UserError: The name is not allowed, the track has no entries, or a file of this name is there.
    """
    from regbench.leaderboard.submit import Submission  # who reads the board needs none of its imports

    name = result.architecture.name.lower() if name is None else name
    check_name(name)
    findings = Findings()
    findings.take("result", _faults(result))
    findings.take("scores", _rescored(run, result))
    if findings.faults:
        return Submission(findings)
    if not any((board / "entries" / result.track.name).glob("*.json")):
        raise UserError(f"{result.track.name} has no entries: a language model stands below those of its track")
    path = board / FOLDER / result.track.name / f"{name}.json"
    kept = {"name": name, "result": result.model_copy(update={"baselines": {}}).model_dump(mode="json")}
    with explain_full_disk(board), exclusive(board, patience=math.inf):
        before = [path] if path.exists() else []
        if before and not replace:
            raise UserError(f"{path} is there: --replace puts this result in its place, --name gives it another name")
        with atomic_write(path) as file:
            file.write(canonical({**kept, "digest": digest_of(kept)}))
    return Submission(findings, path, before)


def read_language_models(
    board: Path, retired: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> tuple[dict[tuple[str, str], list[LanguageModelEntry]], list[str]]:
    """The language models of a board by the name and the digest of their track, best first, and a line for each fault.

    Args:
        board: The leaderboard's folder.
        retired: By the name of a track the digests of its definitions that are gone. Models on these are kept as they are.

    Raises:
        UserError: Something lies in the folder that is neither a folder of a track nor a file in it, such as a link.
    """
    found: dict[tuple[str, str], list[LanguageModelEntry]] = {}
    faults = []
    folders = members_of(board / FOLDER, folders=True)
    for path in (file for folder in folders for file in members_of(folder, folders=False) if file.suffix == ".json"):
        try:
            entry = _read(path)
            track = entry.result.track
            gone = track.digest in retired.get(track.name, ())
            wrong = [] if gone else list(_faults(entry.result))
        except UserError as error:
            wrong = [str(error)]
        if wrong:
            faults += [f"{path.name}: {fault}" for fault in wrong]
        else:
            found.setdefault((entry.result.track.name, entry.result.track.digest), []).append(entry)
    for entries in found.values():
        track = entries[0].result.track
        gone = track.digest in retired.get(track.name, ())
        known = METRICS if gone else find_reference(track.name).track.metrics
        main, sign = track.main_score, known[track.main_score].sign
        entries.sort(key=lambda one: (-sign * one.result.score(main).value, one.name))
    return found, faults


def _read(path: Path) -> LanguageModelEntry:
    """Reads a file of the board, within bounds.

    Raises:
        UserError: It is not in the form in which such files are written.
    """
    content = parse_json(Folder(path.parent).read(path.name, RESULT_BYTES), path.name)
    if not isinstance(content, dict) or set(content) != {"name", "result", "digest"}:
        raise UserError("it must hold a name, a result and a digest")
    result = of_schema(Result, content["result"], path.name)
    if not isinstance(content["name"], str) or path.stem != content["name"] or path.parent.name != result.track.name:
        raise UserError("the file must be called NAME.json, and lie in a folder called like its track")
    check_name(content["name"])
    if content["digest"] != digest_of(content):
        raise UserError("the digest is not that of the content: the file was changed after it was written")
    return LanguageModelEntry(content["name"], result)


def _faults(result: Result) -> Iterator[str]:
    """What is wrong with a result that should be of a language model on a track of today."""
    evaluation = result.evaluation
    if evaluation is None or evaluation.given != "language model" or evaluation.outside is None:
        yield "it is no result of `regbench evaluate hf:NAME`"
        return
    if evaluation.split != "test":
        yield f"it is of the {evaluation.split} split; the board is of the test split"
    if result.track.name not in track_names():
        yield f"{result.track.name} is no built-in track"
        return
    reference = find_reference(result.track.name)
    if result.track != reference.record:
        yield f"it is on another definition of {result.track.name}, or on other instances"
        return
    if set(result.metrics) != set(reference.metrics):
        yield f"it has not exactly the scores of {result.track.name}"
        return
    if evaluation.limit is not None and evaluation.limit > len(reference.test):
        yield f"it is of {evaluation.limit:,} instances, more than the test split has"
    for name in ("separator", "prompt"):
        if not _is_text(result.architecture.options.get(name, '""')):
            yield f"the {name} is no text in JSON"
    mappings = [str(seed.seed) for seed in result.seeds]
    if sorted(mappings) != sorted(set(mappings)) or set(evaluation.outside) != set(mappings):
        yield "a mapping is there twice, or has no probability of other tokens"
    if not all(0 <= share <= 1 for share in evaluation.outside.values()):
        yield "the probability of other tokens is not between 0 and 1"
    for seed in result.seeds:
        for metric, record in seed.scores.items():
            lowest, highest = reference.track.metrics[metric].limits
            if not lowest <= record.value <= highest:
                yield f"mapping {seed.seed}: {metric} is {record.value:g}, outside {lowest:g} to {highest:g}"


def _is_text(option: Any) -> bool:
    """Whether an option is a string in JSON that can be shown, apart from new lines and tabs."""
    try:
        text = json.loads(option)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(text, str) and text.translate({ord(space): None for space in "\n\r\t"}).isprintable()


def _rescored(run: Path, result: Result) -> Iterator[str]:
    """Compares the scores with those that follow from the stored predictions, where these are of a track of today."""
    if result.evaluation is None or result.track.name not in track_names():
        return
    reference = find_reference(result.track.name)
    if result.track != reference.record or set(result.metrics) != set(reference.metrics):
        return
    task, instances = reference.track.task, reference.track.instances(result.evaluation.split)
    if result.evaluation.limit is not None:
        instances = instances[: result.evaluation.limit]
    for seed in result.seeds:
        try:
            found = read_predictions(run, seed.seed, task, instances)
        except UserError as error:
            yield str(error)
            continue
        real = score_records(score(task, instances, found.batches()))[0]
        yield from (f"mapping {seed.seed}: {fault}" for fault in rescored(seed.scores, real))
