"""Checks on where an entry comes from: its configuration, the architecture and its source, the code and the machine."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pydantic

from regbench.config import Config
from regbench.leaderboard import history
from regbench.leaderboard.case import Case, Check, Note
from regbench.leaderboard.entry import canonical, command_of
from regbench.leaderboard.stranger import source_faults, telling_lines
from regbench.models.build import build, build_without_memory, split_settings
from regbench.models.mixer import Options
from regbench.models.model import parameter_count
from regbench.models.state_size import state_at
from regbench.report.content import human_growth
from regbench.results import ArchitectureRecord, Result
from regbench.training.options import TrainingOptions, resolve_settings
from regbench.utils import registry
from regbench.utils.errors import UserError, describe_validation

_MOST_PARAMETERS = 10**8
"""Of a model that is built to measure its state."""

_LARGEST_OPTION = 65_536
_MOST_MEMBERS = 64


def configuration(case: Case) -> Iterator[str]:
    """The configuration names the track, architecture, seeds and trials of the result, and a backend and device that ran.

    With the run, `config.yaml` says the same.
    """
    asked, result = case.configuration, case.result
    for what, given, claimed in (
        ("the track", asked.track, result.track.name),
        ("the architecture", registry.short_name(asked.architecture), result.architecture.name),
        ("the seeds", list(asked.seeds), [seed.seed for seed in result.seeds]),
        ("the trials", asked.trials, result.selection.trials),
    ):
        if given != claimed:
            yield f"{what} are not those of the result: {str(given)[:80]!r} and {str(claimed)[:80]!r}"
    machine = result.environment
    kind = "cpu" if machine.device == "cpu" else "cuda"
    if asked.device != "auto" and asked.device.partition(":")[0] != kind:
        yield f"it asks for the device {asked.device[:80]!r}, and the result is of {machine.device!r}"
    for part in asked.backend.split(","):
        op, _, wanted = (text.strip() for text in part.rpartition("="))
        records = (machine.backend, machine.training_backend or {})
        ran = {form for record in records for name, form in record.items() if op in ("", name)}
        if wanted != "auto" and ran != {wanted}:
            yield f"it asks for the backend {part[:80]!r}, and {', '.join(sorted(ran)) or 'no op'} ran"
    if case.run is not None and _text(case.run.configuration) != _text(asked):
        yield f"config.yaml asks for: {command_of(case.run.configuration)[:400]}"


def source(case: Case) -> Iterator[str]:
    """The source is this repository's, now or at the commit, asked for by its name; or it is one file, kept beside the entry."""
    record = case.result.architecture
    if is_built_in(record):
        if case.configuration.architecture != record.name:  # a file of the same name would be run in its place
            yield f"it asks for {case.configuration.architecture[:80]!r}, and the result is of {record.source}"
        if case.source is not None:
            yield f"{record.source} is part of regbench, and a file is kept for it"
        commit = str(case.result.code.commit)
        if is_todays(record, commit):
            return
        if reason := history.missing(case.result.code.commit):
            yield f"{record.source} is not today's, and {reason}"
        elif (files := history.source_at(commit, record.source)) is None:
            yield f"{record.source} is not today's, and commit {commit[:12]} has no such file"
        elif (then := registry.digest_of(files)) != record.source_sha256:
            yield f"{record.source} is {record.source_sha256[:12]!r}, but {then[:12]!r} at commit {commit}"
        else:
            yield Note(f"{record.source} has changed since commit {commit[:12]}, by which this entry was made")
    elif record.source != case.configuration.architecture.partition(":")[0] or not record.source.endswith(".py"):
        yield f"{record.source[:80]!r} is neither an architecture of regbench nor the file that the configuration names"
    elif case.source is None:
        yield f"the file {record.source[:80]!r} is not kept beside the entry; that of a run is named with --source FILE"
    elif hashlib.sha256(case.source).hexdigest() != record.source_sha256:
        yield f"the file {record.source[:80]!r} is not the one that was run"
    elif faults := list(source_faults(case.source)):
        yield from (f"the file {record.source[:80]!r}: {fault}" for fault in faults)
    elif telling := telling_lines(case.source):
        yield Note(f"read these lines of {record.source[:80]!r} before you trust it: {', '.join(telling)}")


def architecture(case: Case) -> Iterator[str]:
    """Options are what the configuration sets. Of a built-in architecture all options, parameters and state size are compared."""
    record = case.result.architecture
    settings = case.configuration.settings
    faults = [*_implausible(record.options), *_implausible(split_settings(settings)[0])]
    if len(settings) > _MOST_MEMBERS:
        faults.append(f"{len(settings):,} settings")
    states = (record.state_bytes or 0, *(record.state_at or {}).values())
    if record.parameters >= 2**48 or not all(0 <= state < 2**48 for state in states):
        faults.append("parameters or state size are beyond all measure")
    if is_built_in(record):
        named = registry.files_in({**settings, **record.options})
        faults += [f"it takes the file {file[:60]}: put your mixers and the hybrid into one file" for file in named[:1]]
    faults = faults or list(_given(case))
    if faults:
        yield from faults
    elif is_built_in(record):  # nothing that came with an entry is loaded
        yield from _against_class(case)


def code(case: Case) -> Iterator[str]:
    """The code was committed."""
    commit, dirty = case.result.code.commit, case.result.code.dirty
    if commit is not None and not history.COMMIT.fullmatch(commit):
        yield f"{commit[:80]!r} is no commit"
    if dirty or (commit is None) != (dirty is None):
        yield "the code had changes that were not committed"
    if commit is None:
        yield Note("made by an installed regbench: which commit it was is not known")


def environment(case: Case) -> Iterator[str]:
    """The machine and its packages are named."""
    machine = case.result.environment
    if not {"regbench", "torch", "numpy"} <= machine.packages.keys():
        yield "packages must name regbench, torch and numpy"
    if machine.threads < 1:
        yield f"{machine.threads} threads"
    named = (machine.platform, machine.processor, machine.device, machine.python, *machine.packages.values())
    if not all(text.strip() and len(text) <= 200 for text in named):
        yield "platform, processor, device or a version is empty or long"


CHECKS: tuple[Check, ...] = (configuration, source, architecture, code, environment)


def is_built_in(record: ArchitectureRecord) -> bool:
    """Whether an architecture claims to be one of this repository's, and there is one of that name."""
    known = registered().get(record.name)
    folder = registry.ARCHITECTURE.package
    return (
        known is not None
        and record.source == known.target == f"{folder}.{record.name}"
        and known.source in (f"{folder}/{record.name}.py", f"{folder}/{record.name}/__init__.py")
    )


def is_todays(record: ArchitectureRecord, commit: str | None) -> bool:
    """Whether the source of a built-in architecture is that of today, but for comments and docstrings.

    Args:
        record: The architecture.
        commit: The commit that it was run from.
    """
    if record.source_sha256 == _digest_now(record.name):
        return True
    then = history.source_at(commit, record.source)
    return (
        then is not None and registry.digest_of(then) == record.source_sha256 and _code(then) == _code_now(record.name)
    )


@lru_cache(maxsize=1)
def registered() -> dict[str, registry.Entry]:
    """Every registered architecture, by name."""
    return registry.entries(registry.ARCHITECTURE)


@lru_cache(maxsize=64)
def _digest_now(name: str) -> str:
    return registry.source_digest(_load(name))


@lru_cache(maxsize=64)
def _code_now(name: str) -> list[str]:
    return _code(tuple(path.read_bytes() for path in registry.source_files(_load(name))))


@lru_cache(maxsize=256)
def _code(files: tuple[bytes, ...]) -> list[str]:
    """The code of each file, without comments and docstrings."""
    trees = [ast.parse(content) for content in files]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return [ast.dump(tree) for tree in trees]


def _is_text(line: ast.AST) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


@lru_cache(maxsize=64)
def _load(name: str) -> type[Any]:
    return registry.load(registry.ARCHITECTURE, name)


def _defaults(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a built-in architecture and of its training where nothing is set."""
    cls = _load(name)
    return cls.Options().model_dump(mode="json"), TrainingOptions(**cls.training_defaults).model_dump(mode="json")


def same_configuration(a: Result, b: Result) -> bool:
    """Whether two results are of one configuration: of the same track and architecture, with the same options.

    A result does not have options that are newer. Of a built-in architecture these have their defaults. Of a stranger's they are
    not known, and only the options that both have are compared.
    """
    first, second = a.architecture, b.architecture
    if (a.track.name, first.name, first.source) != (b.track.name, second.name, second.source):
        return False
    pairs = ((first.options, second.options), (a.training, b.training))
    if is_built_in(first):
        defaults = _defaults(first.name)
        return all(
            canonical({**default, **x}) == canonical({**default, **y})
            for default, (x, y) in zip(defaults, pairs, strict=True)
        )
    return all(canonical(x[key]) == canonical(y[key]) for x, y in pairs for key in x.keys() & y.keys())


def _implausible(value: Any) -> Iterator[str]:
    """Options no model could be built from in bounded time."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item
            if len(item) > _MOST_MEMBERS:
                yield f"an option with {len(item):,} members"
        elif isinstance(item, int | float) and abs(item) > _LARGEST_OPTION:
            yield f"an option of {item:g}"


def _against_class(case: Case) -> Iterator[str]:
    """How options, parameters and state size differ from what today's class gives."""
    record = case.result.architecture
    cls = _load(record.name)
    try:
        yield from _options(case, cls)
        more = cls.Options.model_config.get("extra") == "allow"  # the options of a hybrid's parts
        given = {k: v for k, v in record.options.items() if more or k in cls.Options.model_fields}
        options = cls.Options.model_validate_json(json.dumps(given))
        counted = _counts(case, cls, options)
    except pydantic.ValidationError as error:
        yield describe_validation(error, "option", cls.Options.model_fields)
    except UserError as error:
        yield str(error)
    else:
        claims = (record.parameters, record.state_bytes)
        for what, claimed, real in zip(("parameters", "bytes of state"), claims, counted, strict=True):
            if claimed != real:
                yield f"{claimed} {what}, and these options give {real}"
        if record.state_at is not None and counted == claims and record.parameters < _MOST_PARAMETERS:
            measured = state_at(build(cls, options, case.reference.track.task.io).eval())
            if measured != record.state_at:
                yield f"a state of {human_growth(record.state_at)} tokens, and these options give {human_growth(measured)}"


def _options(case: Case, cls: type[Any]) -> Iterator[str]:
    """Where options or training options are not what the configuration sets over the defaults.

    The result does not have options that are newer. Of these the default must hold.
    """
    options, training = (made.model_dump(mode="json") for made in resolve_settings(cls, case.configuration.settings))
    for given, wanted, default in zip(
        (case.result.architecture.options, case.result.training),
        (options, training),
        _defaults(case.result.architecture.name),
        strict=True,
    ):
        for key in sorted({*given, *wanted}):
            if key not in wanted:
                yield f"there is no option '{key[:60]}'"
            elif not _same(given.get(key, default.get(key)), wanted[key]):
                yield f"{key} is {str(given.get(key))[:60]}, and the configuration gives {str(wanted[key])[:60]}"


def _given(case: Case) -> Iterator[str]:
    """Where the result has not what the configuration sets."""
    own, of_training = split_settings(case.configuration.settings)
    for given, asked in ((case.result.architecture.options, own), (case.result.training, of_training)):
        for key, value in asked.items():
            there = given.get(key)
            if key not in given or not _gives(value, there):
                yield f"{key[:60]} is {str(there)[:60]}, and the configuration sets {str(value)[:60]}"


def _gives(value: Any, recorded: Any) -> bool:
    """Whether a setting gives the recorded option: it is equal, or the same number as text, as in "1e-3"."""
    if isinstance(value, list) and isinstance(recorded, list):
        return len(value) == len(recorded) and all(map(_gives, value, recorded))
    if isinstance(value, str) and isinstance(recorded, int | float):
        try:
            value = float(value)
        except ValueError:
            return False
    return isinstance(value, bool) == isinstance(recorded, bool) and bool(value == recorded)


def _same(a: Any, b: Any) -> bool:
    """Whether two plain values are equal and of the same type."""
    return type(a) is type(b) and bool(a == b)


def _text(asked: Config) -> str:
    """A configuration as text: 1, 1.0 and true differ."""
    return canonical(asked.model_dump(mode="json"))


def _counts(case: Case, cls: type[Any], options: Options) -> tuple[int, int | None]:
    """Parameters and bytes of state of a model that is built without memory.

    Raises:
        UserError: The model cannot be built, or has very many parts.
    """
    model = build_without_memory(cls, options, case.reference.track.task.io)
    return parameter_count(model), model.state_bytes()
