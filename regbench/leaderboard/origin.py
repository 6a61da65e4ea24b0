"""Checks on where an entry comes from: its name, its configuration, the architecture and its source, the code and the machine."""

from __future__ import annotations

import ast
import codecs
import difflib
import functools
import hashlib
import io
import json
import os
import re
import subprocess
import tokenize
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import pydantic

from regbench.config import OF_TRAINING, Config, parted
from regbench.leaderboard.claim import Case, Check, Note
from regbench.leaderboard.entry import LONGEST_NAME, canonical, command_of, text_of
from regbench.leaderboard.store import ROOT
from regbench.models.build import build, build_without_memory
from regbench.models.model import parameter_count
from regbench.models.state_size import state_at
from regbench.results import ArchitectureRecord, Result
from regbench.training.options import TrainingOptions, resolve_settings
from regbench.utils import registry
from regbench.utils.errors import UserError, describe_validation

_COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")
_MOST_PARAMETERS = 10**8
"""Of a model that is built to measure its state."""
_LARGEST_OPTION = 65_536
_MOST_MEMBERS = 64
_LOOK_ALIKE = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"))
_LONG, _NEAR = 5, 0.85
"""Letters from which on a name that shares so much with another is taken for the same."""


# --- The checks. ---


def configuration(case: Case) -> Iterator[str]:
    """The configuration names the track, architecture, seeds and trials of the result. With a run, so does its `config.yaml`."""
    asked, result = case.configuration, case.result
    for what, given, claimed in (
        ("the track", asked.track, result.track.name),
        ("the architecture", registry.short_name(asked.architecture), result.architecture.name),
        ("the seeds", list(asked.seeds), [seed.seed for seed in result.seeds]),
        ("the trials", asked.trials, result.selection.trials),
    ):
        if given != claimed:
            yield f"{what} are not those of the result: {str(given)[:80]!r} and {str(claimed)[:80]!r}"
    if case.run is not None and text_of(case.run.configuration) != text_of(asked):
        yield f"config.yaml asks for: {command_of(case.run.configuration)[:400]}"


def source(case: Case) -> Iterator[str]:
    """The source is this repository's, now or at the commit, asked for by its name; or it is one file, kept beside the entry."""
    record, commit = case.result.architecture, case.result.code.commit
    if is_built_in(record):
        if case.configuration.architecture != record.name:  # a file of the same name would be run in its place
            yield f"it asks for {case.configuration.architecture[:80]!r}, and the result is of {record.source}"
        if case.source is not None:
            yield f"{record.source} is part of regbench, and a file is kept for it"
        if record.source_sha256 == registry.source_digest(_load(record.name)):
            return
        then = digest_at(commit, record.source)
        if then != record.source_sha256:
            elsewhere = "not in the history here (in a shallow checkout: `git fetch --unshallow`)"
            was = repr(then[:12]) if then else elsewhere
            yield f"{record.source} is not today's, and at commit {str(commit)[:12]!a} it was {was}"
        else:
            yield Note(f"{record.source} has changed since commit {str(commit)[:12]}, by which this entry was made")
    elif record.source != case.configuration.architecture.partition(":")[0] or not record.source.endswith(".py"):
        yield f"{record.source[:80]!r} is neither an architecture of regbench nor the file that the configuration names"
    elif case.source is None:
        yield f"the file {record.source[:80]!r} is not kept beside the entry; that of a run is named with --source FILE"
    elif hashlib.sha256(case.source).hexdigest() != record.source_sha256:
        yield f"the file {record.source[:80]!r} is not the one that was run"
    else:
        yield from (f"the file {record.source[:80]!r}: {fault}" for fault in unreadable(case.source))


def architecture(case: Case) -> Iterator[str]:
    """Of a built-in architecture options, parameters and state size follow from the configuration."""
    record = case.result.architecture
    settings = case.configuration.settings
    faults = [*_implausible(record.options), *_implausible(parted(settings, OF_TRAINING)[1])]
    if len(settings) > _MOST_MEMBERS:
        faults.append(f"{len(settings):,} settings")
    states = (record.state_bytes or 0, *(record.state_at or {}).values())
    if record.parameters >= 2**48 or not all(0 <= state < 2**48 for state in states):
        faults.append("parameters or state size are beyond all measure")
    if is_built_in(record):
        named = registry.files_in({**settings, **record.options})
        faults += [f"it takes the file {file[:60]}: put your mixers and the hybrid into one file" for file in named[:1]]
    yield from faults
    if not faults and is_built_in(record):  # nothing that came with an entry is loaded
        yield from _against_class(case)


def code(case: Case) -> Iterator[str]:
    """The code was committed."""
    commit, dirty = case.result.code.commit, case.result.code.dirty
    if commit is not None and not _COMMIT.fullmatch(commit):
        yield f"{commit[:80]!r} is no commit"
    if dirty or (commit is None) != (dirty is None):
        yield "the code had changes that were not committed"
    if commit is None:
        yield Note("made by an installed regbench: which commit it was is not known")


CHECKS: tuple[Check, ...] = (configuration, source, architecture, code)


# --- The source. ---


def is_built_in(record: ArchitectureRecord) -> bool:
    """Whether an architecture claims to be one of this repository's, and there is one of that name."""
    known, folder = registered().get(record.name), registry.ARCHITECTURE.package
    return (
        known is not None
        and record.source == known.target == f"{folder}.{record.name}"
        and known.source in (f"{folder}/{record.name}.py", f"{folder}/{record.name}/__init__.py")
    )


@functools.cache
def digest_at(commit: str | None, module: str) -> str | None:
    """The digest that a module had at a commit of the history here. None where git, the commit or its file is not here."""
    if (
        commit is None
        or not _COMMIT.fullmatch(commit)
        or git(ROOT, "merge-base", "--is-ancestor", commit, "HEAD") is None
    ):
        return None

    def find(name: str) -> tuple[PurePosixPath, bytes, str] | None:
        stem = name.replace(".", "/")
        for path, package in ((f"{stem}.py", name.rpartition(".")[0]), (f"{stem}/__init__.py", name)):
            if (content := git(ROOT, "cat-file", "blob", f"{commit}:{path}")) is not None:
                return PurePosixPath(path), content, package
        return None

    try:
        found = registry.sources_of(module, find)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return registry.digest_of([found[path] for path in sorted(found)]) if found else None


@functools.cache  # entries of one day share their commits, and architectures their modules
def git(folder: Path, *words: str) -> bytes | None:
    """What git prints in a folder, or None where it fails, takes long or is not installed. It fetches nothing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            timeout=20,
            env={**os.environ, "GIT_NO_LAZY_FETCH": "1"},
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout


def unreadable(content: bytes) -> Iterator[str]:
    """Why nobody could read a stranger's file as it is run, if anything. It is parsed and never run."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        yield "it is no text"
        return
    for number, line in enumerate(text.splitlines(), 1):
        for character in line:
            hidden = not character.isprintable() and character != "\t"
            if hidden or unicodedata.bidirectional(character) in ("R", "AL"):
                yield f"line {number} has the character U+{ord(character):04X}, which is not shown or runs from right to left"
                return
    try:
        encoding = codecs.lookup(tokenize.detect_encoding(io.BytesIO(content).readline)[0]).name
    except SyntaxError:
        encoding = "unknown"
    if encoding != "utf-8":  # in another a comment can be code
        yield "it names an encoding of its own: only UTF-8 is read as it is run"
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield f"it is no Python: {type(error).__name__}"
        return
    if not any(isinstance(node, ast.ClassDef) for node in tree.body):
        yield "it defines no class"


@lru_cache(maxsize=1)
def registered() -> dict[str, registry.Entry]:
    return registry.entries(registry.ARCHITECTURE)


@lru_cache(maxsize=64)
def _load(name: str) -> type[Any]:
    return registry.load(registry.ARCHITECTURE, name)


# --- Options. ---


def _defaults(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
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
        return all(canonical({**d, **x}) == canonical({**d, **y}) for d, (x, y) in zip(defaults, pairs, strict=True))
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
    record, task_io = case.result.architecture, case.reference.track.task.io
    cls = _load(record.name)
    try:
        yield from _options(case, cls)
        more = cls.Options.model_config.get("extra") == "allow"  # the options of a hybrid's parts
        given = {k: v for k, v in record.options.items() if more or k in cls.Options.model_fields}
        options = cls.Options.model_validate_json(json.dumps(given))
        model = build_without_memory(cls, options, task_io)
        counted = parameter_count(model), model.state_bytes()
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
            measured = state_at(build(cls, options, task_io).eval())
            if measured != record.state_at:
                yield f"a state by tokens of {record.state_at}, and these options give {measured}"


def _options(case: Case, cls: type[Any]) -> Iterator[str]:
    """Where options or training options are not what the configuration sets over the defaults.

    The result does not have options that are newer. Of these the default must hold.
    """
    record = case.result.architecture
    made = [one.model_dump(mode="json") for one in resolve_settings(cls, case.configuration.settings)]
    for given, wanted, default in zip(
        (record.options, case.result.training), made, _defaults(record.name), strict=True
    ):
        for key in sorted({*given, *wanted}):
            if key not in wanted:
                yield f"there is no option '{key[:60]}'"
            elif canonical(given.get(key, default.get(key))) != canonical(wanted[key]):  # 1, 1.0 and true differ
                yield f"{key} is {str(given.get(key))[:60]}, and the configuration gives {str(wanted[key])[:60]}"


# --- The name. ---


def default_name(configuration: Config, result: Result) -> str:
    """The architecture's name and the settings that are not its defaults.

    An example is "gla+ngh-1-2-3+mimetic": `ngh` is `ngram_heads`, and a setting without a value is true. A name that would be too
    long ends with digits of its digest.
    """
    parts = [_slug(result.architecture.name)]
    for key, value in set_otherwise(configuration, result.architecture).items():
        part = "ngh" if key == "ngram_heads" else _slug(key.removeprefix("training."))
        parts.append(part if value is True else f"{part}-{_slug(json.dumps(value))}")
    name = "+".join(parts)
    if len(name) <= LONGEST_NAME:
        return name
    digits = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9].rstrip('+.=-')}-{digits}"


def set_otherwise(configuration: Config, architecture: ArchitectureRecord) -> dict[str, Any]:
    """The settings that are not today's defaults of the architecture; all of one that is not built in."""
    defaults: dict[str, Any] = {}
    if is_built_in(architecture):
        own, training = _defaults(architecture.name)
        defaults = own | {f"training.{key}": value for key, value in training.items()}
    settings = configuration.settings.items()
    return {k: v for k, v in settings if k not in defaults or json.dumps(defaults[k]) != json.dumps(v)}


def name_faults(name: str, result: Result) -> Iterator[str]:
    """What is wrong with an entry's name.

    An entry of a built-in architecture is called by the architecture's name and what distinguishes it. No other entry is, and
    none is called as a baseline is, or so that it looks like one of these: "rnamba", "mam-ba" and "mabma" look like "mamba".
    """
    own = result.architecture.name
    if is_built_in(result.architecture):
        if name != own and not (name.startswith(own) and name[len(own)] in "+-.="):
            yield f"{name!r} must be {own!r}, or begin with it and one of + - . ="
        return
    pieces = re.split("[+.=_-]", name)
    begins = {_as_read("".join(pieces[:n])) for n in range(1, len(pieces) + 1)}
    for other in (*registered(), *registry.entries(registry.BASELINE), *result.baselines):
        wanted = _as_read(other)
        swapped = any(sorted(begin) == sorted(wanted) for begin in begins)
        near = len(wanted) >= _LONG and (swapped or difflib.get_close_matches(wanted, begins, 1, _NEAR))
        if wanted in begins or near:
            yield f"{name!r} is called as {other[:60]!r} is, or nearly: give another with --name"
            return


def _as_read(name: str) -> str:
    text = re.sub("[^a-z0-9]", "", name.lower())
    for written, read in _LOOK_ALIKE:
        text = text.replace(written, read)
    return text


def _slug(text: str) -> str:
    """`text` in small letters, digits and _, joined by what a name may have between them."""
    words = re.split(r"[^a-z0-9_.]+", text.lower())
    return "-".join(word.strip(".") for word in words if word.strip("."))
