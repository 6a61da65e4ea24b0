"""What an sdist and a wheel hold, and that this suffices: beside nothing but what the wheel declares, the commands run."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement

from tests.conftest import TINY
from tests.helpers.documents import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, DATA = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]["package-data"]
LEFT = (".nbi", ".nbc", ".pyc", ".md")
"""What Numba and Python compiled, and what explains a folder, stay behind."""


@pytest.mark.parametrize("package", ["regbench", "architectures"])
def test_every_data_file_has_a_pattern(package: str) -> None:
    there = {path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix not in (".py", *LEFT)}
    assert there == {path for pattern in DATA[package] for path in (ROOT / package).glob(pattern)}


def tracked() -> list[str]:
    """The files of a commit of this checkout as it is."""
    return subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def packaged() -> set[str]:
    """The modules and the data files of the packages."""
    inside = [name for name in tracked() if name.startswith(("regbench/", "architectures/", "baselines/", "papers/"))]
    data = {name for name in inside if name.partition("/")[0] in DATA and Path(name).suffix not in LEFT}
    return data | {name for name in inside if name.endswith(".py")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of this checkout, and the wheel that is made from the sdist."""
    pytest.importorskip("setuptools", reason="pip would fetch it")
    folder = tmp_path_factory.mktemp("built")
    for name in tracked():
        if (ROOT / name).is_file() and not name.startswith(("leaderboard/", "docs/")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "source", check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    subprocess.run([*wheel, str(sdist)], check=True)
    return folder


@pytest.mark.ci
def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == packaged()
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    own = {
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "MANIFEST.in",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
        "setup.cfg",
    }
    assert {name for name in names if ".egg-info/" not in name} == packaged() | own


def needed(asked: list[str]) -> set[str]:
    """The names of the distributions that requirements ask for on this machine, and of those that these ask for."""
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(line), "") for line in asked]
    while todo:
        one, extra = todo.pop()
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            new = {(one.name, own) for own in ("", *one.extras)} - seen
            seen |= new
            todo += [(Requirement(line), own) for name, own in new for line in metadata.requires(name) or ()]
    return {name for name, _ in seen}


@pytest.fixture(scope="module")
def bare(built: Path) -> Path:
    """The `bin` of a virtual environment that holds the wheel, and links to what it declares."""
    subprocess.run([sys.executable, "-m", "venv", str(built / "venv")], check=True)
    (wheel,) = built.glob("*.whl")
    pip = [str(built / "venv" / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", str(wheel)], check=True, env={})
    (site,) = (built / "venv").glob("lib/python*/site-packages")
    for name in needed(PROJECT["dependencies"]):
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    subprocess.run([*pip, "check"], check=True, env={})
    return built / "venv" / "bin"


@pytest.mark.ci
def test_installed_with_what_it_declares_the_commands_run(bare: Path, tmp_path: Path) -> None:
    """In an empty folder, by a user who has no checkout."""
    (tmp_path / "board").mkdir()
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))

    def said(command: str) -> str:
        env = {"PATH": f"{bare}:{os.environ['PATH']}", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    assert said("regbench --version").split() == ["regbench", PROJECT["version"]]
    assert "transformer" in said("regbench ls")
    run = "regbench run --arch lstm --track tiny.yaml --out runs/tiny --set d_model=8 --set training.train_tokens=2000"
    assert "lstm" in said(run)
    assert "3-gram" in said("regbench compare runs/tiny 3-gram --track tiny.yaml")
    assert "README.md" in said("regbench leaderboard --board board && ls board")
    assert "better" in said("regbench compare lstm mamba")
    assert "lstm" in said("python -c 'import regbench; print(set(regbench.entries().architecture))'")
