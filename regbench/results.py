"""The result schema: all that is needed to read, compare, plot and repeat a run, in one strict JSON file."""

from __future__ import annotations

import html
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, explain_validation, nearest
from regbench.utils.files import runs_in
from regbench.utils.folder import Folder
from regbench.utils.guard import Refused, parse_json
from regbench.utils.settings import Strict

if TYPE_CHECKING:
    import pandas as pd

RESULT_BYTES = 16 << 20
"""The most bytes of a result that is read."""


def _named_with_version(name: str) -> str:
    if len(name) > 64 or not re.fullmatch("[a-z0-9-]+-v[0-9]+", name):
        raise ValueError(
            "a track's name has small letters, digits and hyphens, 64 at most, and ends as in 'my-task-v1'"
        )
    return name


TrackName = Annotated[str, pydantic.AfterValidator(_named_with_version)]
"""It names files of the leaderboard and a track here, and is never a path."""


class ScoreRecord(Strict):
    """A mean over scored positions and its standard error over instances."""

    value: float
    stderr: float = pydantic.Field(ge=0)

    @classmethod
    def of(cls, sums: FloatArray, counts: NDArray[np.int64]) -> Self:
        """Computes a ratio of sums to counts, with its standard error.

        `sums` and `counts` (N,) are over each instance's positions.
        """
        value = float(sums.sum() / counts.sum())
        n = len(counts)
        if n < 2:
            return cls(value=value, stderr=0.0)
        residual = sums - value * counts
        return cls(value=value, stderr=float(np.sqrt((residual**2).sum() / (n * (n - 1))) / counts.mean()))

    @classmethod
    def over_seeds(cls, records: Sequence[ScoreRecord]) -> ScoreRecord:
        """The mean of the seeds' scores. Its error is their deviation over sqrt(n); of one seed, the error over instances."""
        if len(records) == 1:
            return records[0]
        values = [record.value for record in records]
        return cls(value=statistics.fmean(values), stderr=statistics.stdev(values) / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.stderr:.3f}"


class Curve(Strict):
    """A score by position in the context, in bins."""

    position: list[float]  # the mean position of each bin
    value: list[float]
    count: list[int]  # how many positions the mean is over
    stderr: list[float] | None = None  # of the mean; only where the task has its own measure of progress
    axis: str | None = None  # what `position` counts there


REACHED = 0.9
"""The rescaled accuracy down to which a size counts as reached."""


class Reach(Strict):
    """The largest size up to which the rescaled accuracy stays at `REACHED`, in the unit of the axis."""

    size: float  # between two tested sizes it is interpolated in the logarithm
    bound: Literal["", "<", ">="] = (
        ""  # "<": the smallest size, which is `size`, already fails. ">=": the largest does not
    )

    @classmethod
    def of(cls, sizes: Sequence[float], accuracy: Sequence[float]) -> Reach:
        """The reach of one curve: ascending sizes, and the rescaled accuracy at each."""
        failed = next((i for i, value in enumerate(accuracy) if value < REACHED), None)
        if failed is None:
            return cls(size=sizes[-1], bound=">=")
        if failed == 0:
            return cls(size=sizes[0], bound="<")
        (a, b), (high, low) = sizes[failed - 1 : failed + 1], accuracy[failed - 1 : failed + 1]
        return cls(size=round(float(a * (b / a) ** ((high - REACHED) / (high - low))), 3))

    @property
    def rank(self) -> tuple[float, int]:
        """What orders them: below a size comes before it, and at least a size after it."""
        return self.size, {"<": -1, "": 0, ">=": 1}[self.bound]

    def __str__(self) -> str:
        digits = 0 if self.size >= 10 or self.size == round(self.size) else 1
        return f"{self.bound}{' ' * bool(self.bound)}{self.size:,.{digits}f}"


class TrackRecord(Strict):
    """The track that a result is on."""

    name: TrackName
    version: int
    digest: str
    main_score: str
    fingerprints: dict[str, str]


class ArchitectureRecord(Strict):
    """The architecture of a result."""

    name: str
    source: str  # the file or module of its class
    source_sha256: str
    options: dict[str, Any]
    parameters: int = pydantic.Field(ge=0)  # how many numbers are trained
    state_bytes: int | None  # of recurrent state for one sequence in float32. None where it grows with L or is unknown
    # where `state_bytes` is None, what was measured after 128 and 1,024 tokens. Results of before 2026-11-22 do not have it
    state_at: dict[Literal["128", "1024"], int] | None = None

    @property
    def conv_width(self) -> int:
        """Width of the short convolution: the option `short_conv`, or else the mixer's own `d_conv`. 0: there is none."""
        widths = (self.options.get("short_conv"), self.options.get("d_conv"))
        return next((width for width in widths if isinstance(width, int) and width > 1), 0)

    def state_after(self, tokens: int) -> int | None:
        """Bytes of state of one sequence after so many tokens. One that grows is on the line through its two measurements."""
        if self.state_bytes is not None or not self.state_at or len(self.state_at) < 2:
            return self.state_bytes
        first, last = self.state_at["128"], self.state_at["1024"]
        return first + (last - first) * (tokens - 128) // (1024 - 128)


class CheckpointRecord(Strict):
    """One evaluation on the validation split. Losses are in nats, or squared errors for vectors."""

    step: int
    tokens: int
    loss: dict[str, float]
    validation_loss: float


class SeedRecord(Strict):
    """One trained model.

    Seconds and tokens_per_second are of training with its validation; peak_memory_bytes is of the process, or of the GPU. `reach`
    is by score, and `tokens_to_learn` as in `regbench.metrics.reach`, on a track with an axis of sizes.
    """

    seed: int
    scores: dict[str, ScoreRecord]
    share_of_the_way: dict[str, float]
    curves: dict[str, Curve]
    training_curve: list[CheckpointRecord]
    best_step: int
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    predictions_sha256: str
    reach: dict[str, Reach] | None = None
    tokens_to_learn: int | None = None


class BaselineRecord(Strict):
    """One baseline on the test split. The normalized score `share_of_the_way` is 0 at the anchor "start" and 1 at "end"."""

    scores: dict[str, ScoreRecord]
    curves: dict[str, Curve]
    options: dict[str, Any]
    seconds: float
    anchor: Literal["start", "end"] | None


def normalized_scores(scores: Mapping[str, ScoreRecord], baselines: Mapping[str, BaselineRecord]) -> dict[str, float]:
    """How far every score has come from chance (0) to the oracle (1).

    Chance is what the task says it is. Else it is the unigram model, and on tracks of vectors the predictor that always says
    zero. The result is empty where the baselines lack one of the two.
    """
    start, end = (
        next((baseline.scores for baseline in baselines.values() if baseline.anchor == anchor), None)
        for anchor in ("start", "end")
    )
    if start is None or end is None:
        return {}
    found = {}
    for metric, record in scores.items():
        way = end[metric].value - start[metric].value
        found[metric] = (record.value - start[metric].value) / way + 0.0 if way else 0.0  # + 0.0 makes a zero of -0.0
    return found


class Selection(Strict):
    """How the options were chosen: on which split, and after how many trials."""

    split: Literal["validation"] = "validation"
    trials: int = pydantic.Field(default=1, ge=1)


class Environment(Strict):
    """The machine and the packages."""

    python: str
    platform: str
    processor: str
    device: str
    threads: int
    precision: Literal["float32", "bfloat16"]  # of the products in training; scoring is in float32
    backend: dict[str, str]  # the implementation of each op that ran in scoring
    packages: dict[str, str]
    training_backend: dict[str, str] | None = None  # the same in training, where it differs


class Code(Strict):
    """The state of the repository, or None where there is none."""

    commit: str | None
    dirty: bool | None


class Evaluation(Strict):
    """How predictions were scored that regbench has not trained; see `regbench.evaluate`."""

    given: Literal["model", "module", "predictor", "callable", "array", "language model"]
    predicts: Literal["this", "next"]  # whether row t predicts token t or token t + 1
    kind: Literal["logits", "log_probabilities", "probabilities"] | None  # of the numbers of a row. None for vectors
    split: Literal["validation", "test"]
    # of a language model, by the seed of the mapping: the mean probability that tokens had which are no symbols
    outside: dict[str, float] | None = None
    limit: int | None = pydantic.Field(default=None, ge=1)  # the first so many instances were scored. None: all


class Result(Strict):
    """One entry: an architecture on a track, over one or more seeds.

    The result of `regbench.evaluate` has an `evaluation`, one record in `seeds`, and zeros where a training would stand.
    """

    schema_version: Literal[1] = 1
    track: TrackRecord
    architecture: ArchitectureRecord
    training: dict[str, Any]
    seeds: list[SeedRecord] = pydantic.Field(min_length=1)
    baselines: dict[str, BaselineRecord]
    selection: Selection
    environment: Environment
    code: Code
    evaluation: Evaluation | None = None

    def __repr__(self) -> str:
        scores = ", ".join(f"{m} {self.score(m)}" for m in self.metrics)
        seeds = f", {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"<Result: {self.architecture.name} on {self.track.name}, {self.split} split{seeds}: {scores}>"

    __str__ = __repr__

    def to_frame(self) -> pd.DataFrame:
        """The scores as a table of pandas: a row for each seed, then one for each baseline.

        Columns are `predictor`, `kind` ("seed" or "baseline"), `seed`, and for each metric `METRIC` and `METRIC_stderr`. The
        normalized score by the main score is `normalized`: 0 at chance, 100 at the oracle.
        """
        import pandas as pd  # it loads slowly

        main = self.track.main_score
        named: list[tuple[str, str, int | None, dict[str, ScoreRecord]]]
        named = [(self.architecture.name, "seed", one.seed, one.scores) for one in self.seeds]
        named += [(name, "baseline", None, record.scores) for name, record in self.baselines.items()]
        rows = []
        for name, kind, seed, scores in named:
            row: dict[str, Any] = {"predictor": name, "kind": kind, "seed": seed}
            for metric in self.metrics:
                row |= {metric: scores[metric].value, f"{metric}_stderr": scores[metric].stderr}
            if (share := normalized_scores(scores, self.baselines).get(main)) is not None:
                row["normalized"] = 100 * share
            rows.append(row)
        return pd.DataFrame(rows).astype({"seed": "Int64"})

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        title = html.escape(f"{self.architecture.name} on {self.track.name}, {self.split} split")
        frame = self.to_frame().drop(columns=[f"{metric}_stderr" for metric in self.metrics])
        table: str = frame.to_html(index=False, float_format="{:.3f}".format, na_rep="", border=0)
        return f"<p><b>{title}</b></p>{table}"

    @property
    def split(self) -> str:
        """The split that the scores are of: the test split of every run."""
        return "test" if self.evaluation is None else self.evaluation.split

    @pydantic.model_validator(mode="after")
    def _whole(self) -> Self:
        """Refuses what no table, curve or comparison could be made from."""
        wanted = set(self.seeds[0].scores)
        if self.track.main_score not in wanted:
            raise ValueError(f"the main score {self.track.main_score[:60]!r} is none of the seed's scores")
        if "test" not in self.track.fingerprints:
            raise ValueError("the fingerprint of the test split is missing")
        records: list[SeedRecord | BaselineRecord] = [*self.seeds, *self.baselines.values()]
        for record in records:
            if set(record.scores) != wanted or set(record.curves) != wanted:
                raise ValueError("a seed or a baseline has not exactly the scores and curves of the others")
            if not all(max(abs(score.value), score.stderr) < 1e100 for score in record.scores.values()):
                raise ValueError("a score is beyond measure")
            for curve in record.curves.values():
                columns = {len(column) for column in (curve.position, curve.value, curve.count)}
                if len(columns) != 1 or min(curve.count, default=0) < 1:
                    raise ValueError("a curve is empty, or its columns differ in length")
                if not (
                    min(curve.position) >= 0 and max(curve.position) < 2**31 and max(map(abs, curve.value)) < 1e100
                ):
                    raise ValueError("a curve has a position or a value beyond measure")
        rows = [row.loss.keys() for seed in self.seeds for row in seed.training_curve]
        if any(row != rows[0] or not row for row in rows):
            raise ValueError("a row of a training curve has no loss, or another than the others")
        return self

    @property
    def metrics(self) -> list[str]:
        """The metrics, the track's main score first."""
        return sorted(self.seeds[0].scores, key=lambda metric: metric != self.track.main_score)

    @property
    def tokens(self) -> int:
        """The training tokens of the seed that saw most."""
        return max(seed.tokens for seed in self.seeds)

    @property
    def tokens_per_second(self) -> float:
        """The speed of training, median over seeds."""
        return statistics.median(seed.tokens_per_second for seed in self.seeds)

    @property
    def normalized(self) -> list[float]:
        """The normalized main score of each seed, as a share: 0 at chance, 1 at the oracle. Empty where the track has none."""
        main = self.track.main_score
        return [seed.share_of_the_way[main] for seed in self.seeds if main in seed.share_of_the_way]

    def score(self, metric: str) -> ScoreRecord:
        """The mean over seeds. Its error is their deviation over sqrt(n), or with one seed the error over instances.

        Raises:
            UserError: there is no such score.
        """
        if metric not in self.seeds[0].scores:
            raise UserError(f"no score '{metric}'{nearest(metric, self.metrics)}")
        return ScoreRecord.over_seeds([seed.scores[metric] for seed in self.seeds])


def require_finished(folder: Path) -> None:
    """Checks that a folder holds a result."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}{runs_in(folder)}")
    if (folder / "result.json").exists():
        return
    if (folder / "config.yaml").exists():
        raise UserError(f"{folder} holds a run that is not finished; go on with: {resume_command(folder)}")
    raise UserError(f"{folder} holds no run: there is no result.json{runs_in(folder)}")


def resume_command(folder: Path, *more: str) -> str:
    """The command line that goes on with a run or a suite."""
    return shlex.join(["regbench", "run", "--resume", str(folder), *more])


def read_result(path: str | Path) -> Result:
    """Reads and checks a result file, or the `result.json` of a run folder.

    The file may be a stranger's: it is read within bounds, and no link is followed.

    Raises:
        UserError: no such file, not JSON, or not of the schema.
    """
    path = Path(path)
    if path.is_dir():
        require_finished(path)
        path = path / "result.json"
    try:
        content = parse_json(Folder(path.parent).read(path.name, RESULT_BYTES), path.name)
    except Refused as error:
        raise UserError(f"cannot read {path}{str(error).removeprefix(path.name)}") from None
    with explain_validation(str(path), Result.model_fields):
        return Result.model_validate(content)
