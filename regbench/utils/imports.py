"""What a Python file imports: the files that count as its source. Nothing is run to find them."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

File = TypeVar("File")

_OWN = ("regbench", "architectures", "baselines")
"""Packages that are no part of a file's source, also where the file lies beside them."""


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


def sources_of(module: str, find: Callable[[str], tuple[File, bytes, str] | None]) -> dict[File, bytes]:
    """The files of a module and of the modules that it imports from its outermost package, also indirectly, with their content.

    A module of an inner package brings the `__init__.py` of that package with it.

    Args:
        module: The module's name.
        find: Gives the file of a module, its content, and the package that it is in. None where there is no such module.

    Raises:
        SyntaxError: One of the files does not parse.
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


def modules_beside(path: Path) -> list[Path]:
    """The files beside `path` that it imports, also indirectly, sorted. Of a package these are all files of Python.

    An installed module of the same name comes first, so that what lies beside is then not what is imported.

    Raises:
        SyntaxError: One of the files does not parse.
    """
    path = path.resolve()
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for name in outermost_imports(waiting.pop()):
            files = files_of(path.parent, name)
            if name not in sys.modules or loaded_from(name, path.parent):
                waiting += [file for file in files if file not in found]
                found.update(files)
    return sorted(found - {path})


def forget_modules_beside(path: Path) -> None:
    """Makes the next import of these files read them again: they may have changed since."""
    with contextlib.suppress(SyntaxError):  # the import itself will say so
        for file in modules_beside(path):
            parts = file.relative_to(path.resolve().parent).with_suffix("").parts
            for depth in range(1, len(parts) + 1):
                sys.modules.pop(".".join(parts[:depth]), None)


def files_of(folder: Path, name: str) -> list[Path]:
    """The files of the module or package `name` in a folder, in Python's order of preference. [] if there is none."""
    package, module = folder / name, folder / f"{name}.py"
    if name in _OWN:
        return []
    if module.is_file() and not (package / "__init__.py").is_file():
        return [module]
    return sorted(package.rglob("*.py")) if package.is_dir() else []


def outermost_imports(path: Path) -> set[str]:
    """The outermost names of the modules that a file imports, apart from relative ones.

    Raises:
        SyntaxError: The file does not parse.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def loaded_from(name: str, folder: Path) -> bool:
    """Whether the module or package `name` of this process is the one in a folder."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is not None:
        return Path(file).resolve() in files_of(folder, name)
    # A package without __init__.py has no file.
    return folder / name in (Path(place).resolve() for place in getattr(module, "__path__", ()))
