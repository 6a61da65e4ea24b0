"""What a Python file imports: the files that count as its source. Nothing is run to find them."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Callable
from typing import TypeVar

File = TypeVar("File")


def imported_modules(content: bytes, package: str, root: str) -> set[str]:
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
    return {".".join(own[:depth]) for own in parts if own[0] == root for depth in range(2, len(own) + 1)}


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
