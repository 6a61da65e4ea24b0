"""How many processors there are to use, and how threads wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regbench.utils import threads


def cgroups(folder: Path, own: str, **files: str) -> tuple[Path, Path]:
    """A folder of cgroups and the file that says in which this process is; names have `__` for `/`."""
    for name, text in files.items():
        path = folder / "cgroup" / name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return folder / "cgroup", folder / "own"


def test_a_quota_of_cgroups_version_2(tmp_path: Path) -> None:
    """The least along the way to the root."""
    files = {"a__b__cpu_max": "max 100000\n", "a__cpu_max": "250000 100000\n", "cpu_max": "400000 100000\n"}
    assert threads._quota(*cgroups(tmp_path, "0::/a/b\n", **files)) == 2.5


def test_a_quota_of_cgroups_version_1(tmp_path: Path) -> None:
    files = {"cpu,cpuacct__job__cpu_cfs_quota_us": "150000\n", "cpu,cpuacct__job__cpu_cfs_period_us": "100000\n"}
    own = "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n"
    assert threads._quota(*cgroups(tmp_path, own, **files)) == 1.5


@pytest.mark.parametrize(
    "files", [{}, {"cpu_max": "max 100000\n"}, {"cpu_max": "nonsense\n"}, {"cpu__cpu_cfs_quota_us": "-1\n"}]
)
def test_no_quota(tmp_path: Path, files: dict[str, str]) -> None:
    assert threads._quota(*cgroups(tmp_path, "1:cpu:/\n0::/\n", **files)) is None
    assert threads._quota(tmp_path, tmp_path / "no such file") is None


@pytest.mark.parametrize(("allowed", "quota", "wanted"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 4.0, 2)])
def test_cores(monkeypatch: pytest.MonkeyPatch, allowed: int, quota: float | None, wanted: int) -> None:
    monkeypatch.setattr(threads, "_allowed", lambda: allowed)
    monkeypatch.setattr(threads, "_quota", lambda: quota)
    assert threads.cores() == wanted
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.available() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert threads.available() == wanted


@pytest.mark.ci
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads is set where a quota asks for fewer than PyTorch would take, and nowhere else."""
    for name in (*threads.WAITING, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that what is set below is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setattr(threads, "_allowed", lambda: 8)
    monkeypatch.setattr(threads, "_quota", lambda: None)
    threads.wait_asleep()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert os.environ["GOMP_SPINCOUNT"] == "1000"
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setattr(threads, "_quota", lambda: 3.0)
    threads.wait_asleep()
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.ci
def test_a_process_of_its_own_is_told_before_it_starts() -> None:
    told = threads.environment(2)
    assert told["OMP_NUM_THREADS"] == told["MKL_NUM_THREADS"] == told["NUMBA_NUM_THREADS"] == "2"
    assert threads.WAITING.items() <= told.items()
