"""A stranger's source file: it must be readable Python, and what in it touches generators or files is named for the reader."""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
import unicodedata
from collections.abc import Iterator

_TELLING = {
    *("load_track", "instances", "generate", "truth", "open", "exec", "eval", "compile", "getattr"),
    *("__import__", "__builtins__", "__subclasses__", "__globals__", "import_module"),
    *("load", "load_file", "fromfile", "memmap", "genfromtxt", "loadtxt", "hub", "load_state_dict_from_url"),
}
"""Names by which code reaches the generators, files, or other code."""

_MODULES = {
    *("os", "sys", "io", "pathlib", "subprocess", "socket", "ctypes", "pickle", "importlib", "inspect", "gc"),
    *("builtins", "shutil", "tempfile", "urllib", "http", "requests", "mmap", "runpy", "threading", "multiprocessing"),
    *("regbench.tracks", "regbench.tasks", "regbench.data", "regbench.evaluation", "regbench.leaderboard", "baselines"),
}
_MOST_LISTED = 20


def source_faults(content: bytes) -> Iterator[str]:
    """Why nobody could read a source file, if anything. It is parsed and never run."""
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


def telling_lines(content: bytes) -> list[str]:
    """Where a file that parses touches generators, files or other code: "line 3: open". At most twenty places."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(content)):
        names: list[str] = []
        if isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names]
        line = getattr(node, "lineno", 0)
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        found += [(line, name) for name in names if name in _TELLING or (imports and _tells(name))]
    lines = [f"line {line}: {name}" for line, name in sorted(set(found))]
    return lines[:_MOST_LISTED] + (["and more"] if len(lines) > _MOST_LISTED else [])


def _tells(module: str) -> bool:
    """Whether an import is of such a module, of one inside it, or of such a name."""
    parts = module.split(".")
    return parts[-1] in _TELLING or any(".".join(parts[:i]) in _MODULES for i in range(1, len(parts) + 1))
