"""Checks on where an entry comes from: the architecture and its source, the command, the code and the machine."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pydantic
import torch
from torch.nn.modules.module import register_module_module_registration_hook

from regbench.leaderboard.case import Case, Check, Note
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Options
from regbench.models.model import parameter_count
from regbench.results import ArchitectureRecord
from regbench.training.options import TrainingOptions
from regbench.utils import registry
from regbench.utils.errors import UserError, describe_validation

_MOST_PARTS = 10_000
_LARGEST_OPTION = 65_536
_COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,60}")
_PACKAGE = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
_WORD = re.compile("[A-Za-z0-9_][A-Za-z0-9_-]{0,60}")
_ROOT = Path(__file__).resolve().parents[2]


def recipe(case: Case) -> Iterator[str]:
    """The command names the track, the architecture, the seeds and the trials of the result, and runs where that ran."""
    asked, result = case.recipe, case.result
    for what, given, claimed in (
        ("the track", asked.track, result.track.name),
        ("the architecture", asked.architecture_name, result.architecture.name),
        ("the seeds", list(asked.seeds), [seed.seed for seed in result.seeds]),
        ("the trials", asked.trials, result.selection.trials),
    ):
        if given != claimed:
            yield f"{what} of the command are not those of the result: {str(given)[:80]!r} and {str(claimed)[:80]!r}"
    on_cpu = result.environment.device == "cpu"
    if asked.device != "auto" and (asked.device == "cpu") != on_cpu:
        yield f"the command asks for the device {asked.device!r}, and the result is of {result.environment.device!r}"
    if asked.backend != "auto" and set(result.environment.backend.values()) - {asked.backend}:
        yield f"the command asks for the backend {asked.backend!r}, and another ran"


def source(case: Case) -> Iterator[str]:
    """The source is this repository's, now or at the commit; or it is one file, kept beside the entry."""
    record = case.result.architecture
    if is_built_in(record):
        if case.source is not None:
            yield f"{record.source} is part of regbench, and a file is kept for it"
        if record.source_sha256 == _digest_now(record.name):
            return
        commit = case.result.code.commit
        then = None if commit is None else source_digest_at(commit, record.source)
        if then is None:
            yield Note(f"{record.source} has changed since, and commit {commit} is not here to compare with")
        elif then != record.source_sha256:
            yield f"{record.source} is {record.source_sha256[:12]!r}, but {then[:12]!r} at commit {commit}"
        else:
            yield Note(f"{record.source} has changed since commit {str(commit)[:12]}, by which this entry was made")
    elif record.source != case.recipe.architecture.partition(":")[0] or not record.source.endswith(".py"):
        yield f"{record.source[:80]!r} is neither an architecture of regbench nor the file that the command names"
    elif case.source is None:
        yield f"the file {record.source[:80]!r} is not kept beside the entry"
    elif hashlib.sha256(case.source).hexdigest() != record.source_sha256:
        yield f"the file {record.source[:80]!r} is not the one that was run"


def architecture(case: Case) -> Iterator[str]:
    """Options are what the command sets; of a built-in architecture, unless changed since, all options and sizes are compared."""
    record = case.result.architecture
    faults = list(_implausible(record.options))
    if record.parameters >= 2**48 or (record.state_bytes or 0) >= 2**48 or (record.state_bytes or 0) < 0:
        faults.append("parameters or state size are beyond all measure")
    yield from faults
    if faults:
        return
    if not is_built_in(record):
        yield from _given(case)
        return
    if record.source_sha256 != _digest_now(record.name):
        return
    cls = _load(record.name)
    try:
        yield from _options(case, cls)
        given = {k: v for k, v in record.options.items() if k in cls.Options.model_fields}
        counted = _counts(case, cls, cls.Options.model_validate_json(json.dumps(given)))
    except pydantic.ValidationError as error:
        yield describe_validation(error, "option", cls.Options.model_fields)
    except UserError as error:
        yield str(error)
    else:
        for what, claimed, real in zip(
            ("parameters", "bytes of state"), (record.parameters, record.state_bytes), counted, strict=True
        ):
            if claimed != real:
                yield f"{claimed} {what}, and these options give {real}"


def code(case: Case) -> Iterator[str]:
    """The code was committed."""
    commit, dirty = case.result.code.commit, case.result.code.dirty
    if commit is not None and not _COMMIT.fullmatch(commit):
        yield f"{commit[:80]!r} is no commit"
    if dirty or (commit is None) != (dirty is None):
        yield "the code had changes that were not committed"
    if commit is None:
        yield Note("made by an installed regbench: which commit it was is not known")


def environment(case: Case) -> Iterator[str]:
    """The record of the machine has the form it must have."""
    machine = case.result.environment
    versions = {**machine.packages, "python": machine.python}
    if not all(_VERSION.fullmatch(version) for version in versions.values()):
        yield "a version that is none"
    if not {"regbench", "torch", "numpy"} <= set(versions) or not all(map(_PACKAGE.fullmatch, versions)):
        yield "packages must name regbench, torch and numpy"
    if machine.threads < 1:
        yield f"{machine.threads} threads"
    forms = [*machine.backend.items(), *(machine.training_backend or {}).items()]
    if not all(_WORD.fullmatch(word) for pair in forms for word in pair):
        yield "backend must say which form of which op ran"
    if not all(text.strip() and len(text) <= 200 for text in (machine.platform, machine.processor, machine.device)):
        yield "platform, processor or device is empty or long"


CHECKS: tuple[Check, ...] = (recipe, source, architecture, code, environment)


def is_built_in(record: ArchitectureRecord) -> bool:
    """Whether an architecture claims to be one of this repository's, and there is one of that name."""
    known = registered().get(record.name)
    folder = registry.ARCHITECTURE.package
    return (
        known is not None
        and record.source == known.target == f"{folder}.{record.name}"
        and known.source == f"{folder}/{record.name}.py"
    )


@lru_cache(maxsize=1)
def registered() -> dict[str, registry.Entry]:
    """Every registered architecture, by name."""
    return registry.entries(registry.ARCHITECTURE)


@lru_cache(maxsize=64)
def _digest_now(name: str) -> str:
    return registry.source_digest(_load(name))


@lru_cache(maxsize=64)
def _load(name: str) -> type[Any]:
    return registry.load(registry.ARCHITECTURE, name)


def source_digest_at(commit: str, module: str) -> str | None:
    """What `registry.source_digest` would say of a module at a commit; None where git, the commit or the file is not here."""
    if not _COMMIT.fullmatch(commit):
        return None
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        content = _at(commit, name.replace(".", "/") + ".py")
        if content is None:
            if name == module:
                return None
            continue
        found[name] = content
        try:
            imports = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.ImportFrom)]
        except (SyntaxError, ValueError, RecursionError):
            return None
        package = module.partition(".")[0]
        for node in imports:
            if (node.module or "").partition(".")[0] == package:
                waiting += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    digests = [hashlib.sha256(found[name]) for name in sorted(found)]
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def _at(commit: str, path: str) -> bytes | None:
    """A file of this repository at a commit; nothing is fetched for it."""
    command = ["git", "-C", str(_ROOT), "cat-file", "blob", f"{commit}:{path}"]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _implausible(value: Any) -> Iterator[str]:
    """Options no model could be built from in bounded time."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item
            if len(item) > 64:
                yield f"an option with {len(item):,} members"
        elif isinstance(item, int | float) and abs(item) > _LARGEST_OPTION:
            yield f"an option of {item:g}"


def _options(case: Case, cls: type[Any]) -> Iterator[str]:
    """Where options or training options are not what the command sets over the defaults.

    Of an option that the result does not have, because it is newer, the default must hold.
    """
    resolved = resolve_options(cls, case.recipe.own_settings).model_dump(mode="json")
    training = TrainingOptions(**{**cls.training_defaults, **case.recipe.training_settings}).model_dump(mode="json")
    for given, wanted, model in (
        (case.result.architecture.options, resolved, cls.Options),
        (case.result.training, training, TrainingOptions),
    ):
        default = model(**(cls.training_defaults if model is TrainingOptions else {})).model_dump(mode="json")
        for key in sorted({*given, *wanted}):
            if key not in wanted:
                yield f"there is no option '{key[:60]}'"
            elif not _same(given.get(key, default[key]), wanted[key]):
                yield f"{key} is {str(given.get(key))[:60]}, and the command gives {str(wanted[key])[:60]}"


def _given(case: Case) -> Iterator[str]:
    """Where a result does not have what the command sets; all that can be said of an architecture that is not loaded."""
    for given, asked in (
        (case.result.architecture.options, case.recipe.own_settings),
        (case.result.training, case.recipe.training_settings),
    ):
        for key, value in asked.items():
            if given.get(key) != value:
                yield f"{key} is {str(given.get(key))[:60]}, and the command sets {str(value)[:60]}"


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _counts(case: Case, cls: type[Any], options: Options) -> tuple[int, int | None]:
    """Parameters and bytes of state of a model without memory of its own.

    Raises:
        UserError: it cannot be built, or only from very many parts.
    """
    parts = 0

    def count(*_: Any) -> None:
        nonlocal parts
        parts += 1
        if parts > _MOST_PARTS:
            raise UserError(f"a model of more than {_MOST_PARTS:,} modules")

    hook = register_module_module_registration_hook(count)
    try:
        with torch.device("meta"):
            model = build(cls, options, case.reference.track.task.io)
        return parameter_count(model), model.state_bytes()
    finally:
        hook.remove()
