"""What a wheel holds beside Python files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
NONE = (".py", ".pyc", ".nbi", ".nbc", ".md")
"""Modules are found without a pattern. What Numba compiled and what explains a folder stay behind."""


@pytest.mark.parametrize("package", ["regbench", "architectures"])
def test_every_data_file_is_in_the_wheel(package: str) -> None:
    there = {path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix not in NONE}
    assert there == {path for pattern in DATA[package] for path in (ROOT / package).glob(pattern)}
