"""The entry schema: a result, how each test instance was scored, and the command that makes it again, in one strict file.

An entry is kept as `leaderboard/entries/<track>/<name>-<configuration>.json`, in one canonical form: what says the same has the
same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.leaderboard.guard import Refused, describe_schema
from regbench.metrics.metric import METRICS
from regbench.metrics.scores import Score, Scores
from regbench.results import Result
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write
from regbench.utils.settings import Strict

DIGITS = 7
"""Significant digits of an instance's sum: a mean computed again from them is off by at most one part in two million."""

NAME = re.compile(r"[a-z0-9][a-z0-9_]*([+.=-][a-z0-9_]+)*")
LONGEST_NAME = 80

_Count = Annotated[int, pydantic.Field(ge=0)]
_Sums = list[Annotated[float, pydantic.Field(ge=0)]]


class InstanceScores(Strict):
    """How each of the N test instances was scored, in the test split's order.

    counts: (N,) scored positions of each.  group_counts: the same by metric, for those that are over a group of positions only.
    sums: for each seed, in the result's order, by metric the (N,) sums over those positions, to `DIGITS` digits.
    A metric's mean over an instance is sum / count; over the split it is the ratio of the totals.
    """

    counts: list[_Count]
    group_counts: dict[str, list[_Count]]
    sums: list[dict[str, _Sums]]

    @classmethod
    def of(cls, scores: Sequence[Scores]) -> Self:
        """From the scores of every seed."""
        return cls(
            counts=scores[0].counts.tolist(),
            group_counts={metric: counts.tolist() for metric, counts in scores[0].group_counts.items()},
            sums=[{m: [rounded(x) for x in sums.tolist()] for m, sums in one.sums.items()} for one in scores],
        )

    @pydantic.field_serializer("sums")
    def _whole_numbers_short(self, sums: list[dict[str, _Sums]]) -> list[dict[str, list[float]]]:
        return [{m: [int(x) if x.is_integer() else x for x in xs] for m, xs in one.items()} for one in sums]

    def counts_of(self, metric: str) -> NDArray[np.int64]:
        """(N,): over how many positions of each instance a metric is."""
        return np.array(self.group_counts.get(metric, self.counts), np.int64)

    def total(self, metric: str) -> NDArray[np.float64]:
        """(N,): a metric's sums, added up over the seeds."""
        return np.sum([one[metric] for one in self.sums], axis=0, dtype=np.float64)

    def score(self, seed: int, metric: str) -> Score:
        """The score of the seed-th seed (counted from 0), computed again from its instances."""
        return Score.of(np.array(self.sums[seed][metric], np.float64), self.counts_of(metric))


class Entry(Strict):
    """One line of the board: one configuration on one track, over several seeds.

    name: how it is called in tables, e.g. "gla+ngh-1-2-3".  command: what makes it again.  result: everything the run recorded;
    scores, curves by position and the baselines are there.  digest: SHA-256 of all the rest, see `digest_of`.
    """

    schema_version: Literal[1] = 1
    name: str = pydantic.Field(pattern=rf"^{NAME.pattern}$", max_length=LONGEST_NAME)
    command: str
    result: Result
    instances: InstanceScores
    digest: str = pydantic.Field(pattern="^[0-9a-f]{64}$")

    @classmethod
    def seal(cls, name: str, command: str, result: Result, instances: InstanceScores) -> Self:
        """An entry with its digest.

        Raises:
            UserError: the name is no name.
        """
        check_name(name)
        draft = cls(name=name, command=command, result=result, instances=instances, digest="0" * 64)
        return draft.model_copy(update={"digest": digest_of(draft.content())})

    def content(self) -> dict[str, Any]:
        """As plain dictionaries, lists, strings and numbers."""
        content: dict[str, Any] = self.model_dump(mode="json")
        return content

    @property
    def track(self) -> str:
        return self.result.track.name

    @property
    def configuration(self) -> str:
        """Eight hexadecimal digits that two entries share if what was trained is the same.

        Of the track, the architecture's name and where it is from, its options and those of training. Seeds, machine, backend,
        commit and the source's digest are not part: who runs the same again replaces the entry.
        """
        architecture = self.result.architecture
        content = {
            "track": self.track,
            "architecture": [architecture.name, architecture.source],
            "options": architecture.options,
            "training": self.result.training,
        }
        return hashlib.sha256(canonical(content).encode()).hexdigest()[:8]

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.configuration}.json"

    @property
    def metrics(self) -> list[str]:
        """The metrics, the track's main score first, the others in the order in which they are always shown."""
        known = list(METRICS)
        main, scores = self.result.track.main_score, self.result.seeds[0].scores
        return sorted(scores, key=lambda m: (m != main, known.index(m) if m in known else len(known), m))


def check_name(name: str) -> None:
    """Raises:
    UserError: an entry cannot be called so.
    """
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise UserError(
            f"{name[:80]!a} cannot name an entry: up to {LONGEST_NAME} small letters, digits and _, joined by + - . or ="
            "; give another with --name"
        )


def rounded(value: float) -> float:
    """`value` to `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of an entry's content without its `digest`."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(canonical(rest).encode()).hexdigest()


def canonical(content: Any) -> str:
    """The one way to write `content`: keys sorted (`schema_version` first), ASCII, lists of plain values on one line."""
    return "".join(_lines(content, 0)) + "\n"


def write_entry(folder: Path, entry: Entry) -> Path:
    """Writes the file, whole or not at all, and returns its path."""
    path = folder / entry.file_name
    with atomic_write(path) as file:
        file.write(canonical(entry.content()))
    return path


def parse_entry(content: Any, where: str) -> Entry:
    """An entry from plain dictionaries.

    Raises:
        Refused: it is not of the schema.
    """
    if isinstance(content, dict) and content.get("schema_version") not in (1, None):
        raise Refused(f"{where}: schema_version must be 1, the only one that this version reads")
    try:
        return Entry.model_validate(content)
    except pydantic.ValidationError as error:
        raise describe_schema(error, where, Entry.model_fields) from None


def _lines(value: Any, depth: int) -> list[str]:
    """Pieces of the text: an object or a list of objects takes a line for each member, all else is on one line."""
    if isinstance(value, dict) and value:
        keys = sorted(value, key=lambda key: (key != "schema_version", key))
        members = [[json.dumps(key), ": ", *_lines(value[key], depth + 1)] for key in keys]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        members = [_lines(item, depth + 1) for item in value]
    else:
        return [json.dumps(value, allow_nan=False, separators=(",", ":"))]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    pieces = [opening]
    for i, member in enumerate(members):
        pieces += ["," if i else "", "\n", " " * (depth + 1), *member]
    return [*pieces, "\n", " " * depth, closing]
