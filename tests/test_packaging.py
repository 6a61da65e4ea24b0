"""What a wheel holds."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
LEFT = (".nbi", ".nbc", ".pyc", ".md")
"""What Numba and Python compiled, and what explains a folder, stay behind."""


@pytest.mark.parametrize("package", ["regbench", "architectures"])
def test_every_data_file_has_a_pattern(package: str) -> None:
    there = {path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix not in (".py", *LEFT)}
    assert there == {path for pattern in DATA[package] for path in (ROOT / package).glob(pattern)}


@pytest.mark.ci
def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="pip would fetch it")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    names = [name for name in tracked if name.startswith(("regbench/", "architectures/", "baselines/", "papers/"))]
    for name in ("pyproject.toml", "README.md", "LICENSE", *names):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    subprocess.run([*build, str(tmp_path / "source")], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    data = [name for name in names if name.partition("/")[0] in DATA and Path(name).suffix not in LEFT]
    assert held == {name for name in names if name.endswith(".py")} | set(data)
