"""pytest plug-in: the fixture `regbench_score` guards the score of an architecture; `--regbench-update`, `--regbench-tracks`.

Every pytest in an environment with regbench loads this module. So it imports only pytest; the rest is imported by the first
test that uses the fixture.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from regbench.evaluation.regression import RegressionOutcome

FOLDER = "regbench_scores"
DEFAULT_TRACK = "pfa-small-v1"
_SAID = "regbench"  # what a test's report carries to the summary, from other processes too


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the two flags."""
    group = parser.getgroup("regbench", "scores of sequence architectures")
    group.addoption(
        "--regbench-update", action="store_true", help="record the scores that tests get as the ones to expect"
    )
    group.addoption("--regbench-tracks", metavar="T,T", help="skip the tests whose scores are on other tracks")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what was recorded, and what has improved."""
    passed = terminalreporter.stats.get("passed", [])
    said = [(report.nodeid, text) for report in passed for name, text in report.user_properties if name == _SAID]
    if said:
        terminalreporter.section("regbench")
    for test, text in said:
        terminalreporter.line(f"{test}: {text}")


@pytest.fixture
def regbench_score(request: pytest.FixtureRequest) -> RegbenchScore:
    """Trains an architecture (or takes a finished run) and fails if it scores worse than recorded; see `RegbenchScore`."""
    return RegbenchScore(request)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """What is wrong with the input fails the test, in one line."""
    from regbench.utils.errors import UserError

    try:
        yield
    except UserError as error:
        raise pytest.fail.Exception(f"regbench: {error}", pytrace=False) from None


class RegbenchScore:
    """Compares a score with its record, once for each call.

    Records lie in `regbench_scores/` beside the test's file, one file a call, and belong under version control.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._seen: set[Path] = set()

    @_failing()
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
        from regbench.evaluation import regression
        from regbench.leaderboard.spread import prior_of
        from regbench.metrics.significance import LEVEL, require_level
        from regbench.results import read_result
        from regbench.tracks import load_track, track_file
        from regbench.utils.errors import UserError
        from regbench.utils.registry import is_file, short_name

        here = self._request.path.parent
        if not isinstance(arch, type | None):
            arch = str(here / arch if is_file(str(arch)) else arch)
        track_name = None if track is None else str(here / track if track_file(str(track)) else track)
        asked = {
            "seeds": seeds,
            "record_seeds": record_seeds,
            "settings": settings,
            "backend": backend,
            "device": device,
        }
        training: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
        named = arch.__name__ if isinstance(arch, type) else arch and short_name(arch)
        if folder is not None:
            if training:
                raise UserError(f"folder= is a run that is done: {', '.join(training)} cannot be given with it")
            folder = here / folder
            result = read_result(folder)
            if named not in (None, result.architecture.name):
                raise UserError(f"{folder} is a run of {result.architecture.name}, not {named}")
            named, track_name = result.architecture.name, track_name or result.track.name
        if named is None:
            raise UserError("regbench_score needs an architecture, or folder= with a finished run")
        loaded = load_track(track_name or DEFAULT_TRACK)
        chosen = self._request.config.getoption("--regbench-tracks")
        if chosen is not None and loaded.name not in map(str.strip, chosen.split(",")):
            pytest.skip(f"on the track {loaded.name}, and --regbench-tracks chose {chosen}")
        metric = regression.choose_metric(loaded, metric)
        settings = regression.plain_settings(training.get("settings")) if folder is None else None
        path = self._record_path(name or f"{named}-{loaded.name}")
        # Before anything is trained: what cannot be compared is said at once.
        level = LEVEL if level is None else level
        require_level(level)
        record = None
        if not self._request.config.getoption("--regbench-update"):
            if not path.exists():
                raise UserError(f"no score is recorded in {path}; record it with {regression.UPDATE}")
            record = regression.read_record(path)
            regression.check_record(record, path, loaded, named, metric, settings)
        if folder is None:
            folder = self._train(track_name or DEFAULT_TRACK, arch, recording=record is None, **training)
        got = regression.measure(folder, loaded, metric, settings)
        if record is None and len(got.seeds) == 1:
            raise UserError("one seed says nothing of the spread over seeds: record two or more, better three")
        prior = prior_of(loaded.definition.digest, loaded.metrics[metric])
        outcome = regression.RegressionOutcome.of(record or got, got, loaded.metrics, level, prior)
        if record is None:
            regression.write_record(path, got)
            fails = f"a score that is worse by more than {outcome.change.allowed:.4f} fails"
            self._report(f"recorded {got.metric} {got.sample.mean:.4f} in {path}; {fails}")
        elif outcome.is_worse:
            hint = f"  {'run':10}{folder}\nIf this is meant, record it with {regression.UPDATE}."
            pytest.fail(f"{outcome.explain()}\n{hint}", pytrace=False)
        elif outcome.change.better:
            self._report(f"{outcome.headline()}; keep it with {regression.UPDATE}")
        return outcome

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

    def _train(
        self,
        track: str,
        arch: Any,
        *,
        recording: bool,
        seeds: Sequence[int] | None = None,
        record_seeds: Sequence[int] | None = None,
        **training: Any,
    ) -> Path:
        from regbench.runner import run

        of_record = next(some for some in (record_seeds, seeds, (0, 1, 2)) if some is not None)
        folder: Path = self._request.getfixturevalue("tmp_path_factory").mktemp("regbench") / "run"
        run(track, arch, of_record if recording else (0,) if seeds is None else seeds, **training, out=folder)
        return folder

    def _report(self, text: str) -> None:
        self._request.node.user_properties.append((_SAID, text))
