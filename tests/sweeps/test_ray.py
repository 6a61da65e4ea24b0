"""The Ray engine, by default with what stands for Ray in this process; with the slow tests on real clusters of this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.config import Config
from regbench.sweeps import ray_engine
from regbench.sweeps.local import Share
from regbench.sweeps.ray_engine import RayEngine, connect
from regbench.sweeps.schedule import Counts
from regbench.sweeps.sweep import Sweep
from regbench.sweeps.work import Ended, Job
from regbench.utils.errors import UserError
from tests.helpers.sweeps import AVERAGE, Heard, InProcess, RayHere, cores_free, write_sweep

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


@pytest.mark.parametrize(
    "cluster",
    [pytest.param("pretended", marks=pytest.mark.ci), pytest.param("real", marks=pytest.mark.slow)],
)
def test_the_same_tables_where_nodes_share_no_disk(
    cluster: str, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        return RayEngine(RayHere() if cluster == "pretended" else connect(address, each), each, out.path, shared=False)

    monkeypatch.setattr(Sweep, "_engine", engine)
    heard = Heard()
    assert tables(sweep, tmp_path / "there", heard, on="ray") == here
    assert any(note.text.startswith("training") for note in heard.notes)
    cells = sorted(path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("cells/*/*"))
    assert cells == sorted(
        path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("cells/*/*") if path.name != ".lock"
    )
    assert not (tmp_path / "there" / ".ray").exists()


def test_the_modules_beside_a_file_are_sent_with_it(
    tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an architecture and of a track's task, each beside its own file."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, "own/track-v1.yaml")
    (tmp_path / "average.py").write_text(f"import layers_of_ray\n{AVERAGE}")
    (tmp_path / "layers_of_ray.py").write_text("")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "track-v1.yaml").write_text(tiny_file.read_text().replace("task: pfa", "task: task.py"))
    (tmp_path / "own" / "task.py").write_text(
        "import chains_of_ray\nfrom regbench.tasks import pfa\n\n\nclass Task(pfa.PFA):\n    pass\n"
    )
    (tmp_path / "own" / "chains_of_ray").mkdir()
    (tmp_path / "own" / "chains_of_ray" / "__init__.py").write_text("")
    config = Config(track="own/track-v1.yaml", architecture="average.py")
    assert sorted(ray_engine._own_files(config)) == [
        "average.py",
        "layers_of_ray.py",
        "own/chains_of_ray/__init__.py",
        "own/task.py",
        "own/track-v1.yaml",
    ]


def test_a_text_beside_a_track_is_sent_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the track sees it: from its own folder."""
    monkeypatch.chdir(tmp_path)
    track = {
        "name": "mine-v1",
        "task": "text",
        "parameters": {"source": "texts"},
        "splits": {"train": 8, "validation": 4, "test": 4, "seed": 1},
        "budget": {"train_tokens": 1000},
        "main_score": "nll",
    }
    (tmp_path / "own" / "texts" / "more").mkdir(parents=True)
    for name in ("texts/a.txt", "texts/more/b.md", "texts/picture.png", "other.txt"):
        (tmp_path / "own" / name).write_text("some words")
    (tmp_path / "own" / "mine-v1.yaml").write_text(yaml.safe_dump(track))
    config = Config(track="own/mine-v1.yaml", architecture="lstm")
    assert sorted(ray_engine._own_files(config)) == ["own/mine-v1.yaml", "own/texts/a.txt", "own/texts/more/b.md"]
    track["parameters"] = {"source": "other.txt"}
    (tmp_path / "own" / "mine-v1.yaml").write_text(yaml.safe_dump(track))
    assert sorted(ray_engine._own_files(config)) == ["own/mine-v1.yaml", "own/other.txt"]


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
            UserError, match=rf"no Ray cluster answers at {address} within 10 s .*nothing is lost"
        ) as caught:
            sweep.run(Heard(), out=tmp_path / "out", on="ray", address=address)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / "cells" / "kept").exists()


@pytest.mark.parametrize("address", ["host:port", "host", "ray://host:10001", ":6379"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UserError, match=f"'{address}' is no address of a Ray cluster: give HOST:PORT"):
        connect(address, Share(0, 1))


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'regbench\[ray\]'"):
        connect(None, Share(0, 1))


@dataclass
class FakeRay:
    """A cluster of nodes that have so much."""

    resources: list[dict[str, float]]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.resources]


def test_more_than_the_cluster_has() -> None:
    ray_engine._require(FakeRay([{"CPU": 4.0}, {"CPU": 4.0, "GPU": 2.0}]), Share(0, 4, 1.0))
    with pytest.raises(
        UserError, match="a run of 8 threads asked for, and the largest node of the cluster has 4 cores"
    ):
        ray_engine._require(FakeRay([{"CPU": 4.0}, {"CPU": 2.0}]), Share(0, 8))
    with pytest.raises(UserError, match="a run with 1 GPU asked for, and there are 0 GPUs in the cluster"):
        ray_engine._require(FakeRay([{"CPU": 4.0}]), Share(0, 1, 1.0))


def test_a_node_goes_on_only_with_the_files_that_it_was_sent() -> None:
    """A folder that a process left there is taken up again; not if the sweep has other files by now, such as more seeds."""
    job = Job("finish", "/sweep/runs/a", Config(track="pfa-small-v1", architecture="lstm", seeds=(0,)), None, "lstm")
    sent = {"config.yaml": b"seeds: [0]", "seed-0/scores.json": b"{}"}
    place = ray_engine._place("/sweep", job, sent)
    assert ray_engine._place("/sweep", job, dict(reversed(sent.items()))) == place
    others = [{**sent, "config.yaml": b"seeds: [1]"}, {"config.yaml": sent["config.yaml"]}, {}]
    assert len({place, *(ray_engine._place("/sweep", job, files) for files in others)}) == 4


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
    asked = {"code": "0" * 64, "token": "", "cwd": os.getcwd(), "home": str(tmp_path)}
    message, refused, files = ray_engine._work(job.plain(), None, {}, asked, None)
    assert Ended(message, refused) == Ended(f"the node {socket.gethostname()} has another regbench, Python or PyTorch")
    assert files is None
