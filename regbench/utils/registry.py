"""Names to objects: files in the built-in folders, entry points of other distributions, and `path/to/file.py[:Class]`.

A built-in is a file, `architectures/mamba.py`, or a package, `architectures/cgt/`, whose `__init__.py` defines the class.
Listing reads file names and metadata and imports nothing; an object is imported when it is asked for.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from regbench.utils.errors import UserError, blame, nearest


@dataclass(frozen=True)
class Kind:
    """A sort of thing that can be plugged in.

    Attributes:
        noun: for messages.
        plural: for messages. `regbench.` and this is the group of entry points by which other distributions add theirs.
        package: the folder of the built-in ones.
        bases: names of the base classes by which one is recognised.
    """

    noun: str
    plural: str
    package: str
    bases: tuple[str, ...]


ARCHITECTURE = Kind("architecture", "architectures", "architectures", ("Mixer", "Model"))
BASELINE = Kind("baseline", "baselines", "baselines", ("Baseline",))
TASK = Kind("task", "tasks", "regbench.tasks", ("Task",))
KINDS = {kind.plural: kind for kind in (ARCHITECTURE, BASELINE, TASK)}


@dataclass(frozen=True)
class Entry:
    """A registered name.

    Attributes:
        name: as people type it.
        source: where it comes from, "architectures/mamba.py" or the distribution.
        summary: the first line of its docstring.
        target: a module, "module:Class" for an entry point, or a file.
        only_task: of a baseline for a single task, the name of that task.
    """

    name: str
    source: str
    summary: str
    target: str
    only_task: str | None = None


def entries(kind: Kind) -> dict[str, Entry]:
    """Every registered name of `kind`, sorted. Imports none of them.

    Raises:
        UserError: one name is registered twice.
    """
    points = importlib.metadata.entry_points(group=f"regbench.{kind.plural}")
    plugged_in = [
        Entry(p.name, f"the distribution {p.dist.name if p.dist else '?'} ({p.value})", "", p.value)
        for p in sorted(points, key=lambda p: (p.name, p.value))
    ]
    found: dict[str, Entry] = {}
    for entry in (*_built_in(kind), *plugged_in):
        if entry.name in found:
            raise UserError(
                f"{kind.noun} '{entry.name}' is registered twice: by {found[entry.name].source} and {entry.source}"
            )
        found[entry.name] = entry
    return dict(sorted(found.items()))


def load(kind: Kind, name: str, folder: Path = Path()) -> type[Any]:
    """The class registered as `name`, or found in a file given as `path/to/file.py[:Class]`, as seen from `folder`.

    Raises:
        UserError: no such name or file, the file does not import, or it does not hold exactly one such class.
    """
    path, class_name = _as_file(name)
    if path is not None:
        path = folder / path
        return _pick(kind, _import_file(path), class_name, str(path))
    known = entries(kind)
    if name not in known:
        raise UserError(f"unknown {kind.noun} '{name}'{nearest(name, known)}")
    module_name, _, attribute = known[name].target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{kind.noun} '{name}' cannot be imported: {blame(error)}") from error
    return _pick(kind, module, attribute or None, known[name].source)


def is_file(name: str) -> bool:
    """Whether `name` has the form `path/to/file.py[:Class]`. The file need not exist."""
    return _as_file(name)[0] is not None


def short_name(name: str) -> str:
    """The name for tables and folders: the class or the stem of a file, or the registered name itself."""
    path, class_name = _as_file(name)
    return class_name or path.stem if path is not None else name


def is_built_in(kind: Kind, cls: type[Any]) -> bool:
    """Whether a class is one of regbench's own, and not from a file or another distribution."""
    return cls.__module__.startswith(f"{kind.package}.")


def source_digest(cls: type[Any]) -> str:
    """SHA-256 of the files that `source_files` names: of the one file, or of the digests of several files."""
    digests = [hashlib.sha256(path.read_bytes()) for path in source_files(cls)]
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def source_files(cls: type[Any]) -> list[Path]:
    """The file that defines `cls` and the files of the same outermost package that it imports, also indirectly, sorted.

    A module of an inner package brings the `__init__.py` of that package with it.
    """
    root = cls.__module__.partition(".")[0]
    found: set[Path] = set()
    waiting = [(Path(inspect.getfile(cls)), sys.modules[cls.__module__].__package__ or "")]
    while waiting:
        path, package = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in imported_modules(path.read_bytes(), package, root):
            imported = sys.modules.get(name)
            file = getattr(imported, "__file__", None)
            if imported is not None and file is not None:
                waiting.append((Path(file), imported.__package__ or ""))
    return sorted(found)


def imported_modules(content: bytes, package: str, root: str) -> set[str]:
    """Names of the modules inside the package `root` that a file imports, with the inner packages that they are in.

    A name may be no module: `from a.b import c` gives a.b and a.b.c, whatever c is.

    Args:
        content: The file.
        package: The package that it is in. Relative imports start there.
        root: An outermost package.

    Raises:
        SyntaxError: The file does not parse.
    """
    names = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # relative to nothing: such a line has not run
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names += [f"{base}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return {".".join(own[:depth]) for own in parts if own[0] == root for depth in range(2, len(own) + 1)}


def _built_in(kind: Kind) -> list[Entry]:
    spec = importlib.util.find_spec(kind.package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = []
    for folder in folders:
        files = {path: path.stem for path in sorted(Path(folder).glob("*.py"))}
        files |= {path: path.parent.name for path in sorted(Path(folder).glob("*/__init__.py"))}
        for path, name in files.items():
            if name.startswith("_"):
                continue
            glance = _glance(path, path.stat().st_mtime_ns, kind.bases)
            if glance is not None:
                where = Path(*kind.package.split("."), path.relative_to(folder)).as_posix()
                found.append(Entry(name, where, glance[0], f"{kind.package}.{name}", glance[1]))
    return found


@lru_cache(maxsize=256)
def _glance(path: Path, changed: int, bases: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Parses a file without importing it.

    Args:
        path: of the file.
        changed: when it was changed, so that an edited file is parsed again.
        bases: names of the base classes.

    Returns:
        The first line of its docstring, and what its class says as `only_task = "..."`. None where no class is on one of `bases`.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return "(does not parse)", None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and {ast.unparse(base).rpartition(".")[2] for base in node.bases} & set(
            bases
        ):
            texts = {ast.unparse(n.targets[0]): n.value for n in node.body if isinstance(n, ast.Assign)}
            task = texts.get("only_task")
            summary = (ast.get_docstring(tree) or "").partition("\n")[0]
            return summary, str(task.value) if isinstance(task, ast.Constant) else None
    return None


def _as_file(name: str) -> tuple[Path | None, str | None]:
    stem, colon, class_name = name.rpartition(":")
    if colon and stem.endswith(".py"):
        return Path(stem), class_name
    return (Path(name), None) if name.endswith(".py") else (None, None)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    resolved = path.resolve()
    # A name of its own, so that a stranger's mamba.py hides no built-in; kept in sys.modules for dataclasses and inspect.
    name = f"regbench_plugin_{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be imported: {blame(error)}") from error
    return module


def _pick(kind: Kind, module: ModuleType, class_name: str | None, where: str) -> type[Any]:
    """The class of `kind` that `module` defines: the one named, or the only one. An architecture has options of regbench."""
    values = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    fitting = {name: cls for name, cls in values.items() if _has_base(cls.__mro__[1:], kind.bases)}
    own = [cls for cls in fitting.values() if cls.__module__ == module.__name__]
    base = f"regbench.{kind.bases[0]}"
    if class_name is not None and not hasattr(module, class_name):
        raise UserError(f"{where} has no class '{class_name}'{nearest(class_name, fitting)}")
    if class_name is not None and class_name not in fitting:
        raise UserError(f"'{class_name}' in {where} is no {kind.noun}: it must subclass {base}")
    if class_name is None and not own:
        raise UserError(f"{where} defines no {kind.noun}: it needs a class that subclasses {base}")
    if class_name is None and len(own) > 1:
        names = ", ".join(cls.__name__ for cls in own)
        raise UserError(f"{where} defines several {kind.plural} ({names}): say which, as {where}:{own[0].__name__}")
    cls: type[Any] = own[0] if class_name is None else fitting[class_name]
    options = getattr(cls, "Options", None)
    if kind is ARCHITECTURE and not _has_base(getattr(options, "__mro__", ()), ("Options",)):
        raise UserError(f"Options of {cls.__name__} in {where} must subclass regbench.Options")
    return cls


def _has_base(classes: Iterable[type], names: tuple[str, ...]) -> bool:
    """Whether one of the classes is a class of regbench with one of the names."""
    return any(base.__name__ in names and base.__module__.startswith("regbench.") for base in classes)
