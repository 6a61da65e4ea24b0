"""The schema of an entry: a configuration, its result, and how each test instance was scored.

An entry is one file, `leaderboard/entries/<track>/<name>-<digits>.json`. It has one canonical form: equal content gives equal
bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import pydantic
import yaml
from numpy.typing import NDArray

from regbench.config import Config
from regbench.metrics.metric import METRICS
from regbench.metrics.scores import Scores
from regbench.metrics.significance import Sample
from regbench.results import Result, ScoreRecord, SeedRecord
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused, of_schema
from regbench.utils.settings import Strict

DIGITS = 7
"""Significant digits of an instance's sum. A mean computed from them is off by at most one part in two million."""

NAME = re.compile(r"[a-z0-9][a-z0-9_]*([+.=-][a-z0-9_]+)*")
LONGEST_NAME = 80
_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))

_Count = Annotated[int, pydantic.Field(ge=0)]
_Sums = list[pydantic.FiniteFloat]


class InstanceScores(Strict):
    """How each of the N test instances was scored, in the order of the test split.

    A metric's mean over an instance is sum / count. Its mean over the split is the ratio of the totals.
    """

    counts: list[_Count]  # (N,), the number of scored positions of each instance
    group_counts: dict[str, list[_Count]]  # by metric the same counts, for the metrics over a group of positions only
    sums: list[dict[str, _Sums]]
    """For each seed, in the result's order: by metric the (N,) sums over those positions, to `DIGITS` digits."""

    @classmethod
    def of(cls, scores: Sequence[Scores]) -> Self:
        return cls(
            counts=scores[0].counts.tolist(),
            group_counts={metric: counts.tolist() for metric, counts in scores[0].group_counts.items()},
            sums=[{m: [rounded(x) for x in sums.tolist()] for m, sums in one.sums.items()} for one in scores],
        )

    @pydantic.field_serializer("sums")
    def _whole_numbers_short(self, sums: list[dict[str, _Sums]]) -> list[dict[str, list[float]]]:
        return [{m: [int(x) if x.is_integer() else x for x in xs] for m, xs in one.items()} for one in sums]

    def counts_of(self, metric: str) -> NDArray[np.int64]:
        """(N,): the number of positions of each instance that count for a metric."""
        return np.array(self.group_counts.get(metric, self.counts), np.int64)

    def mean(self, metric: str) -> NDArray[np.float64]:
        """(N,): a metric's sums, the mean over the seeds."""
        return np.mean(np.array([one[metric] for one in self.sums], np.float64), axis=0)

    def over_seeds(self, metric: str) -> ScoreRecord:
        """The mean of a score over the seeds, with its standard error over instances."""
        return ScoreRecord.of(self.mean(metric), self.counts_of(metric))

    def score(self, seed: int, metric: str) -> ScoreRecord:
        """A score computed from the instances; `seed` is a place in `sums`, counted from 0."""
        return ScoreRecord.of(np.array(self.sums[seed][metric], np.float64), self.counts_of(metric))


class Entry(Strict):
    """One line of the leaderboard: one configuration on one track, over several seeds."""

    schema_version: Literal[2] = 2
    """Entries of version 1 are not read: they held a command in the place of the configuration."""
    name: str = pydantic.Field(pattern=rf"^{NAME.pattern}$", max_length=LONGEST_NAME)
    """The entry's name in tables, e.g. "gla+ngh-1-2-3"."""
    configuration: Config  # what the run was asked, as in `config.yaml`. Files are named without their folders
    result: Result
    instances: InstanceScores
    digest: str = pydantic.Field(pattern="^[0-9a-f]{64}$")  # SHA-256 of all other fields; see `digest_of`

    @classmethod
    def seal(cls, name: str, configuration: Config, result: Result, instances: InstanceScores) -> Self:
        """An entry with its digest."""
        check_name(name)
        draft = cls(name=name, configuration=configuration, result=result, instances=instances, digest="0" * 64)
        return draft.model_copy(update={"digest": digest_of(draft.content())})

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = self.model_dump(mode="json")
        return content

    @property
    def command(self) -> str:
        return command_of(self.configuration)

    @property
    def track(self) -> str:
        return self.result.track.name

    @property
    def configuration_digest(self) -> str:
        """SHA-256 of what was trained; two entries that share it are the same configuration.

        It depends on the track, the architecture's name and source, its options and the training options. It does not depend
        on seeds, machine, backend, commit or the source's digest. So a second run of the same can replace the entry.
        """
        architecture = self.result.architecture
        content = {
            "track": self.track,
            "architecture": [architecture.name, architecture.source],
            "options": architecture.options,
            "training": self.result.training,
        }
        return hashlib.sha256(canonical(content).encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """The name that the entry's file must have. Its digits are a label: files are compared by the whole digest."""
        return f"{self.name}-{self.configuration_digest[:8]}.json"

    @property
    def metrics(self) -> list[str]:
        """The metrics: the track's main score first, then the others in a fixed order."""
        known = list(METRICS)
        main, scores = self.result.track.main_score, self.result.seeds[0].scores
        return sorted(scores, key=lambda m: (m != main, known.index(m) if m in known else len(known), m))


def sample_of(seeds: Sequence[SeedRecord], instances: InstanceScores, metric: str) -> Sample:
    """A score of several seeds as the test of significance takes it."""
    sums = np.array([one[metric] for one in instances.sums], np.float64)
    return Sample.of([seed.scores[metric].value for seed in seeds], sums, instances.counts_of(metric))


def check_name(name: str) -> None:
    """Refuses what cannot be the name of an entry."""
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise UserError(
            f"{name[:80]!a} cannot name an entry: up to {LONGEST_NAME} small letters, digits and _, joined by + - . or ="
            "; give another with --name"
        )


def command_of(configuration: Config) -> str:
    """The command line that asks for a configuration. Defaults are left out."""
    asked = configuration
    words = ["regbench", "run", "--arch", asked.architecture, "--track", asked.track, "--seed", *map(str, asked.seeds)]
    for key, value in sorted(asked.settings.items()):
        # Strings are quoted where YAML would read something else; a scalar alone ends with "...".
        text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
        words += ["--set", f"{key}={text.removesuffix(chr(10)).removesuffix(chr(10) + '...')}"]
    for field in ("trials", "backend", "device"):
        value = getattr(asked, field)
        if value != Config.model_fields[field].default:
            words += [f"--{field}", str(value)]
    return shlex.join(words)


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of an entry's content without its `digest`."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(canonical(rest).encode()).hexdigest()


def canonical(content: Any) -> str:
    """The one way to write `content`: keys sorted (`schema_version` first), ASCII, lists of plain values on one line."""
    return "".join(_lines(content, 0)) + "\n"


def text_of(model: pydantic.BaseModel) -> str:
    """The one way to write a model. In it 1, 1.0 and true differ."""
    return canonical(model.model_dump(mode="json"))


def parse_entry(content: Any, where: str) -> Entry:
    """An entry from plain dictionaries; `where`: the file's name, for messages."""
    if isinstance(content, dict) and content.get("schema_version") not in (2, None):
        raise Refused(f"{where}: schema_version must be 2")
    return of_schema(Entry, content, where)


def _lines(value: Any, depth: int) -> list[str]:
    """Pieces of the text. Members of an object or of a list of objects take a line each; all else is on one line."""
    if isinstance(value, dict) and value:
        keys = sorted(value, key=lambda key: (key != "schema_version", key))
        members = [[_JSON.encode(key), ": ", *_lines(value[key], depth + 1)] for key in keys]
    elif isinstance(value, list) and dict in set(map(type, value)):
        members = [_lines(item, depth + 1) for item in value]
    else:
        return [_JSON.encode(value)]
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    pieces = [opening]
    for i, member in enumerate(members):
        pieces += ["," if i else "", "\n", " " * (depth + 1), *member]
    return [*pieces, "\n", " " * depth, closing]
