"""A track's data for a training loop of your own."""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader

from regbench import cli
from regbench.data.instances import Instances
from regbench.models.model import shift_in
from regbench.tracks import Track, load_track
from regbench.tracks.parquet import write_parquet
from regbench.utils.errors import UserError
from tests.helpers.typed import refused


@pytest.fixture(params=["tokens", "vectors"])
def track(request: pytest.FixtureRequest, tiny: Track, tmp_path: Path) -> Track:
    if request.param == "tokens":
        return tiny
    definition = load_track("linear-regression-small-v1").definition.model_dump()
    small = {"name": "vectors-v1", "splits": {"train": 30, "validation": 5, "test": 6, "seed": 0}}
    (tmp_path / "vectors-v1.yaml").write_text(yaml.safe_dump({**definition, **small}))
    return load_track(str(tmp_path / "vectors-v1.yaml"))


def test_a_data_set_has_every_instance_without_padding(tiny: Track) -> None:
    data, train = tiny.dataset("train"), tiny.instances("train")
    assert len(data) == len(train)
    for i in (0, 7, -1):
        assert data[i]["tokens"].tolist() == train.tokens[i, : train.lengths[i]].tolist()
        assert data[i]["scored"].tolist() == train.scored[i, : train.lengths[i]].tolist()


def test_batches_are_those_of_training(track: Track) -> None:
    data, train = track.dataset("train"), track.instances("train")
    batch = next(iter(DataLoader(data, batch_size=5, collate_fn=data.collate)))
    few = train[:5]
    separator = track.task.io.separator
    inside = torch.arange(few.tokens.shape[1]) < batch["lengths"][:, None]
    assert batch["lengths"].tolist() == few.lengths.tolist()
    np.testing.assert_array_equal(batch["tokens"][inside], few.tokens[inside.numpy()])
    assert (batch["tokens"][~inside] == separator).all()
    assert torch.equal(batch["inputs"], shift_in(batch["tokens"], separator))
    assert batch["scored"].tolist() == few.scored.tolist()
    assert not batch["scored"][~inside].any()


def test_instances_go_into_a_loader_as_they_are(tiny: Track) -> None:
    train = tiny.instances("train")
    batch = next(iter(DataLoader(train, batch_size=4)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(batch["tokens"], train.tokens[:4])
    assert batch["tokens"].dtype == torch.int64
    assert batch["length"].tolist() == train.lengths[:4].tolist()
    assert len(list(train)) == len(train)  # type: ignore[call-overload]
    with pytest.raises(IndexError):
        train[len(train)]


def test_parquet_files_are_the_instances(track: Track, tmp_path: Path) -> None:
    write_parquet(track, tmp_path / "data")
    read = datasets.load_dataset(str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"))
    card = (tmp_path / "data" / "README.md").read_text(encoding="utf-8")
    for split in ("train", "validation", "test"):
        whole = track.instances(split)
        assert len(read[split]) == len(whole)
        tokens, scored = whole.tokens.copy(), np.zeros_like(whole.scored)
        for i, row in enumerate(read[split]):
            assert len(row["tokens"]) == whole.lengths[i]
            tokens[i, : whole.lengths[i]] = row["tokens"]
            scored[i, : whole.lengths[i]] = row["scored"]
        again = Instances(tokens, whole.lengths, scored, whole.generator)
        assert again.fingerprint == whole.fingerprint
        assert f"| {split} | `{whole.fingerprint}` |" in card


def test_the_command_writes_them(tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    assert cli.main(["data", str(tiny_file), "--to", str(folder)]) == 0
    files = ["train.parquet", "validation.parquet", "test.parquet", "README.md"]
    assert capsys.readouterr().out.splitlines() == [str(folder / name) for name in files]
    refused(capsys, ["data", str(tiny_file), "--to", str(folder)], f"{folder} is not empty; choose a new folder\n")
    (tmp_path / "file").touch()
    refused(capsys, ["data", str(tiny_file), "--to", str(tmp_path / "file")], "file")


def test_a_missing_package_is_named(tiny: Track, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'regbench\[text\]'"):
        write_parquet(tiny, tmp_path / "data")
