"""The Ray engine, on real clusters of this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from regbench.sweeps import ray_engine
from regbench.sweeps.local import Share
from regbench.sweeps.ray_engine import RayEngine
from regbench.sweeps.schedule import Counts
from regbench.sweeps.sweep import Sweep
from regbench.sweeps.work import Ended, Job
from regbench.utils.errors import UserError
from tests.helpers.sweeps import Heard, InProcess, cores_free, write_sweep

TABLES = ("table.csv", "trials.csv", "best.yaml", "begun.json", "sweep.yaml")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No cluster that someone has here is joined, and none is left."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    ray.shutdown()


def tables(sweep: Sweep, out: Path, watcher: Heard | None = None, **how: Any) -> list[bytes]:
    done = sweep.run(watcher or Heard(), out=out, **how)
    assert done.failures == []
    return [(out / name).read_bytes() for name in TABLES]


@pytest.mark.ci
def test_the_same_tables_where_nodes_share_no_disk(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task works in a folder of its node, and what it makes comes back; what was begun elsewhere goes on."""
    grid = {"arch": ["average.py"], "training.learning_rate": [1e-3, 1e-2]}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "track-v1.yaml").write_text(tiny_file.read_text())
    sweep = Sweep.read(write_sweep(tmp_path, "track-v1.yaml", grid=grid, seeds=[0]))
    with monkeypatch.context() as patch:
        patch.setattr(Sweep, "_engine", lambda *_: InProcess())
        here = tables(sweep, tmp_path / "here")

    def engine(_: Sweep, out: Any, each: Share, on: str, address: str | None) -> RayEngine:
        return RayEngine(address, each, out.path, shared=False)

    monkeypatch.setattr(Sweep, "_engine", engine)
    heard = Heard()
    assert tables(sweep, tmp_path / "there", heard, on="ray") == here
    assert any(note.text.startswith("training") for note in heard.notes)
    cells = sorted(path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("cells/*/*"))
    assert cells == sorted(
        path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("cells/*/*") if path.name != ".lock"
    )
    assert not (tmp_path / "there" / ".ray").exists()


def test_hidden_files_are_not_sent(tmp_path: Path) -> None:
    """Nor are they removed where files come back."""
    names = [".lock", ".resume.safetensors.abcd1234.part", "metrics.jsonl"]
    for name in names:
        (tmp_path / name).write_text("here")
    assert ray_engine._files(tmp_path) == {"metrics.jsonl": b"here"}
    ray_engine._put(tmp_path, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == names[:2]


def test_nobody_answers(tmp_path: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in one line with the time that was waited, and what was done before is still there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens here
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sweep = Sweep.read(write_sweep(tmp_path, tiny_file))
        (tmp_path / "out" / "cells" / "kept").mkdir(parents=True)
        (tmp_path / "out" / "begun.json").write_text('{"regbench": "0.1.0", "groups": {}}')
        monkeypatch.setattr("regbench.sweeps.state.metadata.version", lambda _: "0.1.0")
        with pytest.raises(
            UserError, match=rf"the Ray cluster at {address} cannot be joined: .*nothing is lost"
        ) as caught:
            sweep.run(Heard(), out=tmp_path / "out", on="ray", address=address)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / "cells" / "kept").exists()


@pytest.mark.parametrize("address", ["host:port", "host", ":6379"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UserError, match=f"the Ray cluster at {address} cannot be joined: give HOST:PORT"):
        ray_engine._connect(address, {})


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'regbench\[ray\]'"):
        ray_engine._connect(None, {})


@dataclass
class FakeRay:
    """A cluster of nodes that have so much."""

    resources: list[dict[str, float]]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.resources]


@pytest.mark.parametrize("needed", [Share(0, 8), Share(0, 1, 3.0)])
def test_more_than_the_cluster_has(needed: Share) -> None:
    cluster = FakeRay([{"CPU": 4.0}, {"CPU": 4.0, "GPU": 2.0}])
    ray_engine._require(cluster, Share(0, 4, 1.0))
    with pytest.raises(UserError, match=r"a run needs .* and the nodes of the cluster have at most 4 and 2"):
        ray_engine._require(cluster, needed)


def test_code_is_told_by_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = ray_engine.code_here.__wrapped__()
    assert here == ray_engine.code_here.__wrapped__()
    monkeypatch.setattr(ray_engine.platform, "python_version", lambda: "3.0.0")
    assert ray_engine.code_here.__wrapped__() != here


@pytest.mark.slow
@pytest.mark.skipif(not cores_free(2), reason="needs two cores")
def test_a_node_that_is_killed_in_mid_sweep(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes of one core each; one is killed while it trains. Every cell is done, and the tables are the local engine's."""
    import ray
    from ray.cluster_utils import Cluster

    base = {
        "d_model": 8,
        "training.batch_size": 1,
        "training.train_tokens": 6000,
        "training.evaluations": 60,
        "training.checkpoint_seconds": 0.0,
    }
    sweep = Sweep.read(write_sweep(tmp_path, tiny_file, base=base))
    here = tables(sweep, tmp_path / "here", jobs=1)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    killed = []

    class Killing(Heard):
        def started(self, job: Job, counts: Counts) -> None:
            super().started(job, counts)
            self.since = time.monotonic()

        def ticked(self, counts: Counts) -> None:
            super().ticked(counts)
            running = list((tmp_path / "there").glob("cells/*/resume.safetensors"))
            if not killed and counts.done >= 2 and len(running) >= 2:
                killed.append(counts.done)
                cluster.remove_node(node, allow_graceful=False)

    try:
        heard = Killing()
        there = tables(sweep, tmp_path / "there", heard, on="ray", address=cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed
    assert there == here


@pytest.mark.slow
def test_a_node_with_other_code_is_refused(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is trained: the digest of this machine is made up, and the node has the real one."""
    monkeypatch.setattr(ray_engine, "code_here", lambda: "0" * 64)
    sweep = Sweep.read(write_sweep(tmp_path, tiny_file))
    with pytest.raises(UserError, match="has another regbench, Python or PyTorch than this machine"):
        sweep.run(Heard(), out=tmp_path / "out", on="ray")
    assert not (tmp_path / "out" / "cells").exists()


def test_what_says_that_a_cell_is_whole_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order in which the files came: a kill in between must not leave scores without what they were made from."""
    names = ["scores.json", "trained.json", "provenance.json", "course/1.safetensors", "metrics.jsonl", "code.json"]
    written: list[str] = []
    real = ray_engine.atomic_write

    def noting(path: Path, mode: str) -> Any:
        written.append(path.relative_to(tmp_path).as_posix())
        path.parent.mkdir(exist_ok=True)
        return real(path, mode)

    monkeypatch.setattr(ray_engine, "atomic_write", noting)
    ray_engine._put(tmp_path, dict.fromkeys(names, b""))
    assert written[3:] == ["provenance.json", "trained.json", "scores.json"]


def test_a_task_refuses_other_code(tmp_path: Path, tiny_file: Path) -> None:
    """A node that joined later was not asked at the start."""
    sweep = Sweep.read(write_sweep(tmp_path, tiny_file))
    cell = sweep.groups[0].trials[0]
    job = Job("train", str(tmp_path / "cell"), cell.point.config((0,)), 0, "cell")
    there = ray_engine._work(job.plain(), "0" * 64, str(tmp_path), None, None)
    assert there == (Ended(f"the node {socket.gethostname()} has another regbench, Python or PyTorch"), None)
