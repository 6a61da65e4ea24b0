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
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from regbench.utils.errors import Unavailable, UserError, blame, nearest

File = TypeVar("File")

_CLASS = "class:"
"""Begins the name of a class that has no other name."""

_PLUGIN = "regbench_plugin_"
"""Begins the name of a module that was imported from a file."""


@dataclass(frozen=True)
class Kind:
    """A sort of thing that can be plugged in."""

    noun: str
    plural: str
    """For messages. `regbench.` and this is the group of entry points by which other distributions add theirs."""
    package: str
    bases: tuple[str, ...]  # names of the base classes by which one is recognised


ARCHITECTURE = Kind("architecture", "architectures", "architectures", ("Mixer", "Model"))
BASELINE = Kind("baseline", "baselines", "baselines", ("Baseline",))
TASK = Kind(
    "task", "tasks", "regbench.tasks", ("Task", "CertainTask", "CorpusTask", "DrawnTask", "ReachTask", "DrawnReachTask")
)
KINDS = {kind.plural: kind for kind in (ARCHITECTURE, BASELINE, TASK)}


@dataclass(frozen=True)
class Entry:
    """A registered name."""

    name: str
    source: str  # where it comes from, "architectures/mamba.py" or the distribution
    summary: str
    target: str  # a module, "module:Class" for an entry point, or a file
    only_task: str | None = None  # of a baseline for a single task, the name of that task


def entries(kind: Kind) -> dict[str, Entry]:
    """Every registered name of `kind`, sorted. Imports none of them."""
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


def folders_of(package: str) -> list[Path]:
    """The folders of a package, which is not imported. None where it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in sorted(spec.submodule_search_locations or [])] if spec else []


def code_digest(packages: Iterable[str], *suffixes: str) -> str:
    """SHA-256 of the files of some packages whose names end so."""
    digest = hashlib.sha256()
    for folder in (folder for package in packages for folder in folders_of(package)):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in suffixes):
            digest.update(path.relative_to(folder.parent).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def paper_commands(own: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The modules of the commands beside the benchmark's own, by name, sorted. Imports none of them.

    They are files in `papers/PAPER/commands/`, and the entry points `regbench.commands` of other distributions.
    """
    files = [path for folder in folders_of("papers") for path in sorted(folder.glob("*/commands/[!_]*.py"))]
    named = [(path.stem, f"papers.{path.parts[-3]}.commands.{path.stem}") for path in files]
    named += [(point.name, point.value) for point in importlib.metadata.entry_points(group="regbench.commands")]
    found: dict[str, str] = {}
    for name, module in sorted(named):
        if (other := found.get(name) or own.get(name)) is not None:
            raise UserError(f"command '{name}' is registered twice: by {other} and {module}")
        found[name] = module
    return found


def load(kind: Kind, name: str | type[Any], folder: Path = Path()) -> type[Any]:
    """The class registered as `name`, or found in a file given as `path/to/file.py[:Class]`, as seen from `folder`.

    A class is taken as it is.
    """
    if isinstance(name, type):
        return _checked(kind, name, f"the class {name.__name__}")
    if name.startswith(_CLASS):
        raise UserError(f"'{name}' is a class of the program that ran it: write it to a file, and give its path")
    path, class_name = as_file(name)
    if path is not None:
        path = folder / path
        return _pick(kind, _import_file(path), class_name, str(path))
    known = entries(kind)
    if name not in known:
        if "," in name:
            hint = f"; give one {kind.noun}"
        elif "/" in name or "." in name:
            hint = f"; one of your own is a Python file, and `regbench ls {kind.plural}` lists the others"
        else:
            hint = f"; the file here is {name}.py" if Path(f"{name}.py").is_file() else nearest(name, known)
        raise UserError(f"unknown {kind.noun} '{name}'{hint}")
    module_name, _, attribute = known[name].target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{kind.noun} '{name}' cannot be imported: {blame(error)}") from error
    return _pick(kind, module, attribute or None, known[name].source)


def name_of(kind: Kind, cls: type[Any]) -> str:
    """What a configuration says of a class that a program hands over: its registered name, or "class:NAME"."""
    if is_built_in(kind, cls):
        name = cls.__module__.split(".")[len(kind.package.split("."))]
        if name in entries(kind) and load(kind, name) is cls:
            return name
    return f"{_CLASS}{cls.__name__}"


def as_file(name: str) -> tuple[Path | None, str | None]:
    """The file and the class in a name of the form `path/to/file.py[:Class]`. The file need not exist. None of another name."""
    stem, colon, class_name = name.rpartition(":")
    if colon and stem.endswith(".py"):
        return Path(stem), class_name
    return (Path(name), None) if name.endswith(".py") else (None, None)


def is_file(name: str) -> bool:
    return as_file(name)[0] is not None


def files_in(settings: Mapping[str, Any]) -> list[str]:
    """The Python files that settings name, each alone or in a list with commas, as the mixers of a hybrid."""
    texts = [value for value in settings.values() if isinstance(value, str)]
    return [name for text in texts for name in text.split(",") if is_file(name.strip())]


def short_name(name: str) -> str:
    """The name for tables and folders: the class or the stem of a file, or the registered name itself."""
    path, class_name = as_file(name)
    return class_name or path.stem if path is not None else name.removeprefix(_CLASS)


def is_built_in(kind: Kind, cls: type[Any]) -> bool:
    """Whether a class is one of regbench's own, and not from a file or another distribution."""
    return cls.__module__.startswith(f"{kind.package}.")


def source_digest(cls: type[Any]) -> str:
    """SHA-256 of the files that `source_files` names: of the one file, or of the digests of several files.

    A class of a notebook is in no file. Then it is of the source of its methods and of its plain attributes, and of those of
    the classes that it is derived from. Functions beside the class do not count.
    """
    try:
        inspect.getfile(cls)
    except (TypeError, OSError):
        return hashlib.sha256("\n".join(_source_in_notebook(cls)).encode()).hexdigest()
    return digest_of([path.read_bytes() for path in source_files(cls)])


def digest_of(contents: Sequence[bytes]) -> str:
    """SHA-256 of the content of the one file, or of the digests of several files."""
    digests = [hashlib.sha256(content) for content in contents]
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def _source_in_notebook(cls: type[Any]) -> Iterator[str]:
    """The source of each method of a class and of its bases, and its plain attributes."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("regbench", "torch", "pydantic", "builtins", "abc", "typing"):
            continue
        for name, value in sorted(vars(base).items()):
            function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
            if inspect.isclass(value) and value.__qualname__ == f"{base.__qualname__}.{name}":  # Options
                yield from _source_in_notebook(value)
            elif inspect.isfunction(function):
                try:
                    yield inspect.getsource(function)
                except OSError:
                    raise UserError(
                        f"the source of {base.__name__}.{name} is not known here: write the class to a file"
                    ) from None
            elif not name.startswith("__"):
                with contextlib.suppress(TypeError, ValueError):  # what is not plain has no text of its own
                    yield f"{base.__name__}.{name} = {json.dumps(value)}"


def source_files(cls: type[Any]) -> list[Path]:
    """The file that defines `cls` and those that it imports from its outermost package, sorted; see `sources_of`."""
    return sorted(sources_of(cls.__module__, _loaded))


@lru_cache(maxsize=1024)  # a board asks for the same files with each entry
def imported_modules(content: bytes, package: str, root: str) -> frozenset[str]:
    """Names of the modules inside the package `root` that a file imports, with the inner packages that they are in.

    A name may be no module: `from a.b import c` gives a.b and a.b.c, whatever c is. Relative imports start in `package`.
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
    return frozenset(".".join(own[:depth]) for own in parts if own[0] == root for depth in range(2, len(own) + 1))


def sources_of(module: str, find: Callable[[str], tuple[File, bytes, str] | None]) -> dict[File, bytes]:
    """The files of a module and of the modules that it imports from its outermost package, also indirectly, with their content.

    A module of an inner package brings the `__init__.py` of that package with it. `find` gives the file of a module, its content,
    and the package that it is in; None where there is no such module.
    """
    found: dict[File, bytes] = {}
    waiting, seen = [module], set()
    while waiting:
        name = waiting.pop()
        source = None if name in seen else find(name)
        seen.add(name)
        if source is not None:
            file, content, package = source
            found[file] = content
            waiting += imported_modules(content, package, module.partition(".")[0])
    return found


def _loaded(name: str) -> tuple[Path, bytes, str] | None:
    """The file of a module of this process, its content, and its package."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return None
    return Path(file), Path(file).read_bytes(), module.__package__ or ""


def _built_in(kind: Kind) -> list[Entry]:
    found = []
    for folder in folders_of(kind.package):
        files = {path: path.stem for path in sorted(folder.glob("*.py"))}
        files |= {path: path.parent.name for path in sorted(folder.glob("*/__init__.py"))}
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

    It gives the first line of its docstring, and what its class says as `only_task`; None where no class is on one of `bases`.
    `changed` makes an edited file be parsed again.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return "(does not parse)", None
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        if {ast.unparse(base).rpartition(".")[2] for base in node.bases} & set(bases):
            plain = {ast.unparse(n.targets[0]): n.value for n in node.body if isinstance(n, ast.Assign)}
            typed = {ast.unparse(n.target): n.value for n in node.body if isinstance(n, ast.AnnAssign)}
            task = (plain | typed).get("only_task")
            summary = (ast.get_docstring(tree) or "").partition("\n")[0]
            return summary, str(task.value) if isinstance(task, ast.Constant) else None
    return None


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Unavailable(f"no such file: {path}")
    resolved = path.resolve()
    # A name of its own, so that a stranger's mamba.py hides no built-in; kept in sys.modules for dataclasses and inspect.
    name = f"{_PLUGIN}{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.modules[name] = set(sys.modules), module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be imported: {blame(error)}") from error
    # What lies beside it, in no package, is in no digest: a resumed run would not see that it was edited.
    for other in sys.modules.keys() - before:
        if Path(getattr(sys.modules[other], "__file__", None) or "/").resolve() == resolved.parent / f"{other}.py":
            del sys.modules[name], sys.modules[other]
            raise UserError(f"{path} imports {other}, which lies beside it: put both into one file")
    return module


def _pick(kind: Kind, module: ModuleType, class_name: str | None, where: str) -> type[Any]:
    """The class of `kind` that `module` defines: the one named, or the only one."""
    values = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    fitting = {name: cls for name, cls in values.items() if _has_base(cls.__mro__[1:], kind.bases)}
    own = [cls for cls in fitting.values() if cls.__module__ == module.__name__]
    base = f"regbench.{kind.bases[0]}"
    if class_name is not None:
        if not hasattr(module, class_name):
            raise UserError(f"{where} has no class '{class_name}'{nearest(class_name, fitting)}")
        if class_name not in fitting:
            raise UserError(f"'{class_name}' in {where} is no {kind.noun}: it must subclass {base}")
        return _checked(kind, fitting[class_name], where)
    if not own:
        raise UserError(f"{where} defines no {kind.noun}: it needs a class that subclasses {base}")
    if len(own) > 1:
        names = ", ".join(cls.__name__ for cls in own)
        raise UserError(f"{where} defines several {kind.plural} ({names}): say which, as {where}:{own[0].__name__}")
    return _checked(kind, own[0], where)


def _checked(kind: Kind, cls: type[Any], where: str) -> type[Any]:
    """The class. An architecture has options of regbench, and a paper of regbench or none."""
    if not _has_base(cls.__mro__[1:], kind.bases):
        raise UserError(f"{where} is no {kind.noun}: it must subclass regbench.{kind.bases[0]}")
    options = getattr(cls, "Options", None)
    if kind is ARCHITECTURE and not _has_base(getattr(options, "__mro__", ()), ("Options",)):
        raise UserError(f"Options of {cls.__name__} in {where} must subclass regbench.Options")
    paper = getattr(cls, "paper", None)
    if kind is ARCHITECTURE and paper is not None and not _has_base(type(paper).__mro__, ("Paper",)):
        raise UserError(f"paper of {cls.__name__} in {where} must be a regbench.Paper, not {type(paper).__name__}")
    return cls


def _has_base(classes: Iterable[type], names: tuple[str, ...]) -> bool:
    """Whether one of the classes is a class of regbench with one of the names."""
    return any(base.__name__ in names and base.__module__.startswith("regbench.") for base in classes)
