"""Without a place to write, compiled code is kept in a folder that goes with the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import regbench


def test_numba_has_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    package = tmp_path / "regbench"
    shutil.copytree(Path(regbench.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()  # so not even the superuser can write into it
    environment = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    code = "import os, regbench.data.rng; print(regbench.__file__, os.environ['NUMBA_CACHE_DIR'])"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env={**environment, "HOME": "/proc/nowhere", "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file, place = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert not Path(place).exists()
