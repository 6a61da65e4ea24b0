"""pytest plug-in: the fixture `regbench_score` guards the score of an architecture; `--regbench-update`, `--regbench-tracks`.

Every pytest in an environment with regbench loads this module. So it imports only pytest; the rest is imported by the first
test that uses the fixture.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from regbench.evaluation.regression import Measurement, RegressionOutcome

FOLDER = "regbench_scores"
DEFAULT_TRACK = "pfa-small-v1"
_SAID, _TRACK = "regbench", "regbench track"  # what a test's report carries to the summary, from other processes too


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the two flags."""
    group = parser.getgroup("regbench", "scores of sequence architectures")
    group.addoption(
        "--regbench-update", action="store_true", help="record the scores that tests get as the ones to expect"
    )
    group.addoption(
        "--regbench-tracks", metavar="T,T", help="skip the tests whose scores are on other tracks than these"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuses an empty choice of tracks."""
    if config.getoption("--regbench-tracks") is not None and not _chosen_tracks(config):
        raise pytest.UsageError("--regbench-tracks takes names of tracks, as in pfa-small-v1,pfa-v1")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was recorded, what has improved, and the chosen tracks that no test uses."""
    lines = [f"{test}: {text}" for test, text in _reported(terminalreporter, _SAID)]
    asked = {name for _, name in _reported(terminalreporter, _TRACK)}
    for name in sorted(_chosen_tracks(config) - asked):
        lines.append(f"no test asked for the track {name}; tests ask for: {', '.join(sorted(asked)) or 'none'}")
    if lines:
        terminalreporter.section("regbench")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def regbench_score(request: pytest.FixtureRequest) -> RegbenchScore:
    """Trains an architecture (or takes a finished run) and fails if it scores worse than recorded; see `RegbenchScore`."""
    return RegbenchScore(request)


@dataclass(frozen=True)
class _Asked:
    """One call of the fixture, paths made absolute."""

    arch: str | type | None
    track: str | None
    seeds: Sequence[int] | None
    record_seeds: Sequence[int] | None
    settings: Mapping[str, Any] | None
    metric: str | None
    folder: Path | None
    backend: str | None
    device: str | None
    level: float | None
    name: str | None


class RegbenchScore:
    """Compares a score with its record, once for each call.

    Records lie in `regbench_scores/` beside the test's file, one file a call, and belong under version control.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._seen: set[Path] = set()

    def __call__(
        self,
        arch: str | Path | type | None = None,
        *,
        track: str | Path | None = None,
        seeds: Sequence[int] | None = None,
        record_seeds: Sequence[int] | None = None,
        settings: Mapping[str, Any] | None = None,
        metric: str | None = None,
        folder: str | Path | None = None,
        backend: str | None = None,
        device: str | None = None,
        level: float | None = None,
        name: str | None = None,
    ) -> RegressionOutcome:
        """Fails the test if the score is worse than recorded, beyond the noise that `regbench.metrics.significance` states.

        Args:
            arch: a registered name, `path/to/file.py[:Class]` as seen from the test's folder, or a class.
            track: a built-in track's name (default `pfa-small-v1`), or the path of a YAML file as seen from the test's folder.
            seeds: one model is trained for each (default: 0).
            record_seeds: the seeds to train where the score is recorded, by default `seeds`, or 0, 1 and 2: more of them make a
                better record, and cost only then.
            settings: as for `regbench.run`.
            backend: as for `regbench.run`; "auto" by default.
            device: as for `regbench.run`; "auto" by default.
            metric: the score to compare; by default the track's main score.
            folder: a finished run to compare in place of training; then nothing that says how to train is given.
            level: how often the test may fail with nothing wrong; by default 0.001.
            name: tells two calls of one test apart that share architecture and track.

        Returns:
            The measurement beside its record. Under `--regbench-update` the record is the measurement.
        """
        from regbench.utils.errors import UserError

        here = self._request.path.parent
        asked = _Asked(
            arch=arch if isinstance(arch, type) else _resolved(arch, here, ".py"),
            track=_resolved(track, here, ".yaml", ".yml"),
            seeds=seeds,
            record_seeds=record_seeds,
            settings=settings,
            metric=metric,
            folder=None if folder is None else here / folder,
            backend=backend,
            device=device,
            level=level,
            name=name,
        )
        try:
            return self._compare(asked)
        except UserError as error:
            wrong = str(error)
        pytest.fail(f"regbench: {wrong}", pytrace=False)

    def _compare(self, asked: _Asked) -> RegressionOutcome:
        architecture, track_name = self._subject(asked)
        self._skip_unless_chosen(track_name)

        from regbench.evaluation.regression import (
            UPDATE,
            check_record,
            choose_metric,
            measure,
            plain_settings,
            read_record,
        )
        from regbench.leaderboard.spread import prior_of
        from regbench.metrics.significance import LEVEL, require_level
        from regbench.tracks import load_track
        from regbench.utils.errors import UserError

        track = load_track(track_name)
        metric = choose_metric(track, asked.metric)
        settings = None if asked.folder is not None else plain_settings(asked.settings)
        path = self._record_path(asked.name or f"{architecture}-{track.name}")
        record = None
        # Before anything is trained: what cannot be compared is said at once.
        level = LEVEL if asked.level is None else asked.level
        require_level(level)
        if not self._request.config.getoption("--regbench-update"):
            if not path.exists():
                raise UserError(f"no score is recorded in {path}; record it with {UPDATE}")
            record = read_record(path)
            check_record(record, path, track, architecture, metric, settings)
        folder = asked.folder or self._train(asked, track_name, recording=record is None)
        prior = prior_of(track.definition.digest, track.metrics[metric])
        test = {"metrics": track.metrics, "level": level, "prior": prior}
        return self._judge(record, measure(folder, track, metric, settings), path, folder, test)

    def _subject(self, asked: _Asked) -> tuple[str, str]:
        """The architecture's name and the track; of a finished run those it was on."""
        from regbench.utils.errors import UserError
        from regbench.utils.registry import short_name

        named = asked.arch.__name__ if isinstance(asked.arch, type) else asked.arch and short_name(asked.arch)
        if asked.folder is None:
            if named is None:
                raise UserError("regbench_score needs an architecture, or folder= with a finished run")
            return named, asked.track or DEFAULT_TRACK
        of_training = ("seeds", "record_seeds", "settings", "backend", "device")
        if given := [name for name in of_training if getattr(asked, name) is not None]:
            raise UserError(f"folder= is a run that is done: {', '.join(given)} cannot be given with it")
        from regbench.results import read_result

        result = read_result(asked.folder)
        if named not in (None, result.architecture.name):
            raise UserError(f"{asked.folder} is a run of {result.architecture.name}, not {named}")
        return result.architecture.name, asked.track or result.track.name

    def _skip_unless_chosen(self, track: str) -> None:
        if track.endswith((".yaml", ".yml")):
            from regbench.tracks import load_track

            track = load_track(track).name
        self._report(_TRACK, track)
        chosen = _chosen_tracks(self._request.config)
        if chosen and track not in chosen:
            pytest.skip(f"on the track {track}; --regbench-tracks chose {', '.join(sorted(chosen))}")

    def _record_path(self, label: str) -> Path:
        """The record of this call. Two calls of one test with one record would each undo the other's."""
        from regbench.utils.errors import UserError

        test = self._request.node.nodeid.partition("::")[2].replace("::", ".")
        exact = f"{self._request.path.stem}.{test}.{label}"
        readable = re.sub(r"[^A-Za-z0-9_.=-]+", "-", exact)[:150]
        if readable != exact:  # two names must not become one
            readable += "-" + hashlib.sha256(exact.encode()).hexdigest()[:8]
        path = self._request.path.parent / FOLDER / f"{readable}.json"
        if path in self._seen:
            raise UserError(f"two scores of this test share the record {path.name}; give each a name=")
        self._seen.add(path)
        return path

    def _train(self, asked: _Asked, track: str, recording: bool) -> Path:
        from regbench.runner import run

        assert asked.arch is not None
        asked_for = (asked.record_seeds, asked.seeds, (0, 1, 2)) if recording else (asked.seeds, (0,))
        seeds = next(seeds for seeds in asked_for if seeds is not None)
        temporary: pytest.TempPathFactory = self._request.getfixturevalue("tmp_path_factory")
        folder = temporary.mktemp("regbench") / "run"
        run(
            track,
            asked.arch,
            seeds,
            settings=asked.settings,
            backend=asked.backend or "auto",
            device=asked.device or "auto",
            out=folder,
        )
        return folder

    def _judge(
        self, record: Measurement | None, got: Measurement, path: Path, folder: Path, test: dict[str, Any]
    ) -> RegressionOutcome:
        from regbench.evaluation.regression import UPDATE, RegressionOutcome, write_record
        from regbench.utils.errors import UserError

        if record is None:
            if len(got.seeds) == 1:
                raise UserError("one seed says nothing of the spread over seeds: record two or more, better three")
            outcome = RegressionOutcome.of(got, got, **test)
            write_record(path, got)
            self._report(_SAID, f"recorded {got.metric} {got.sample.mean:.4f} in {path}")
            return outcome
        outcome = RegressionOutcome.of(record, got, **test)
        if outcome.is_worse:
            hint = f"  {'run':10}{folder}\nIf this is meant, record it with {UPDATE}."
            pytest.fail(f"{outcome.explain()}\n{hint}", pytrace=False)
        if outcome.change.better:
            self._report(_SAID, f"{outcome.headline()}; keep it with {UPDATE}")
        return outcome

    def _report(self, key: str, text: str) -> None:
        self._request.node.user_properties.append((key, text))


def _chosen_tracks(config: pytest.Config) -> set[str]:
    return {name.strip() for name in (config.getoption("--regbench-tracks") or "").split(",")} - {""}


def _resolved(name: str | Path | None, folder: Path, *suffixes: str) -> str | None:
    """A file's name as seen from `folder`, made absolute; any other name as it is."""
    if name is None:
        return None
    text = str(name)
    is_file = any(text.endswith(suffix) or f"{suffix}:" in text for suffix in suffixes)
    return str(folder / text) if is_file else text


def _reported(reporter: pytest.TerminalReporter, key: str) -> Iterator[tuple[str, str]]:
    """What tests have said under `key`, with their names. A fixture of theirs that fails has said it before the call."""
    for reports in reporter.stats.values():
        for report in reports:
            when = getattr(report, "when", None)
            if when == "call" or (when == "setup" and not report.passed):
                yield from ((report.nodeid, str(value)) for name, value in report.user_properties if name == key)
