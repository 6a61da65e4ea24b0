"""The shape of the code itself: rooms import only rooms below them, and no file is a junk room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("regbench", "architectures", "baselines")

# From the top. A module belongs to the first prefix that fits it.
ROOMS: tuple[tuple[str, ...], ...] = (
    ("regbench.cli", "regbench.cli.commands", "regbench.__main__", "regbench.cli.tables", "regbench.pytest_plugin"),
    (
        "regbench.config",
        "regbench.runner",
        "regbench.evaluation.regression",
        "regbench.leaderboard",
        "regbench.evaluation.baselines",
        "regbench.evaluation.baseline_predictions",
        "regbench.report.baseline_table",
        "regbench.evaluation.comparison",
        "regbench.report",
        "regbench.analysis",
    ),
    ("regbench.tracks", "regbench.checks.architecture", "regbench.checks.baseline", "architectures"),
    (
        "regbench.tasks",
        "regbench.models",
        "regbench.training.trainer",
        "regbench.metrics.scores",
        "regbench.evaluation.predictions",
        "regbench.metrics.significance",
        "baselines",
    ),
    (
        "regbench.ops",
        "regbench.data.instances",
        "regbench.results",
        "regbench.utils.registry",
        "regbench.models.predictor",
        "regbench.training.checkpoint",
        "regbench.training.provenance",
        "regbench.data.text",
    ),
    ("regbench.utils.files", "regbench.utils.settings", "regbench.utils.threads"),
    ("regbench.utils.errors",),
)
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> int | None:
    """How far below the top a module's room is; None for the package `regbench` itself, which everything may touch."""
    for depth, room in enumerate(ROOMS):
        if any(module == prefix or module.startswith(prefix + ".") for prefix in room):
            return depth
    return None


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports when it runs, with the line; what only the type checker sees is left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [n for n in tree.body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    own = floor(module_name(path))
    for module, line in imports(path):
        other = floor(module)
        if module.split(".")[0] in PACKAGES and own is not None and other is not None:
            assert other >= own, f"{path.name}:{line} imports {module}, a room above its own"


def test_every_module_has_a_room() -> None:
    homeless = [module_name(path) for path in FILES if floor(module_name(path)) is None]
    assert homeless == ["regbench"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_no_file_is_a_junk_room() -> None:
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text(encoding="utf-8").splitlines())) > 450}
    assert long == {}
