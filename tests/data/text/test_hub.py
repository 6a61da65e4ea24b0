"""Datasets of the Hub, without the Hub: a stand-in that streams rows, and a local folder through `datasets` itself."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbench.data.text import hub
from regbench.data.text.hub import HubDataset
from regbench.utils.errors import UserError

ROWS = [{"text": f"document {i}", "title": f"t{i % 3}"} for i in range(25)]


class Stream:
    """Rows from `first` on; says how far it was read, and breaks where it is told to."""

    def __init__(self, service: Service, first: int = 0) -> None:
        self.service, self.first = service, first

    def skip(self, n: int) -> Stream:
        return Stream(self.service, self.first + n)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for place in range(self.first, len(self.service.rows)):
            if place == self.service.breaks_at:
                raise ConnectionError("lost the connection\nand more lines")
            self.service.streamed.append(place)
            yield self.service.rows[place]


class Service:
    """What stands for the library and the Hub."""

    def __init__(self, rows: list[dict[str, Any]], fault: Exception | None = None) -> None:
        self.rows, self.fault, self.breaks_at, self.newest = rows, fault, -1, "first"
        self.streamed: list[int] = []
        self.asked: list[tuple[Any, ...]] = []

    def load_dataset(self, path: str, name: str | None, *, split: str, revision: Any, streaming: bool) -> Stream:
        assert streaming
        self.asked.append((path, name, split, revision))
        if self.fault is not None:
            raise self.fault
        return Stream(self)


@pytest.fixture
def service(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service(ROWS)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=made.load_dataset))
    monkeypatch.setattr(hub, "_look_up", lambda dataset, revision: revision or made.newest)
    monkeypatch.setattr(hub, "SHARD", 10)
    return made


def read(dataset: HubDataset) -> list[str]:
    return [document.text for document in dataset.documents()]


def test_a_dataset_is_streamed_once_and_then_read(service: Service) -> None:
    dataset = HubDataset("someone/news", "en", "validation", "abc")
    assert read(dataset) == [row["text"] for row in ROWS]
    assert service.asked == [("someone/news", "en", "validation", "abc")]
    assert read(dataset) == [row["text"] for row in ROWS]
    assert service.streamed == list(range(25))
    assert {document.topic for document in dataset.documents()} == {"someone/news"}
    named = HubDataset("someone/news", topic_field="title")
    assert [document.topic for document in named.documents()] == [row["title"] for row in ROWS]
    assert named.name == "someone/news (train, 100,000 documents)"


def test_no_more_is_streamed_than_asked_for_and_more_goes_on_from_there(service: Service) -> None:
    assert len(read(HubDataset("x", limit=7))) == 7
    assert service.streamed == list(range(10))
    assert len(read(HubDataset("x", limit=10))) == 10
    assert service.streamed == list(range(10))
    assert len(read(HubDataset("x", limit=12))) == 12
    assert service.streamed == list(range(20))
    assert len(read(HubDataset("x"))) == 25
    assert service.streamed == list(range(25))


def test_a_broken_download_goes_on_behind_the_last_whole_file(service: Service) -> None:
    service.breaks_at = 17
    with pytest.raises(
        UserError, match=r"dataset 'x': .* here, and the Hugging Face Hub cannot be reached \(lost"
    ) as caught:
        read(HubDataset("x"))
    assert "\n" not in str(caught.value)
    service.breaks_at = -1
    assert read(HubDataset("x")) == [row["text"] for row in ROWS]
    assert service.streamed == [*range(17), *range(10, 25)]


def test_it_stays_with_the_commit_it_began_with(service: Service) -> None:
    """Or a download that goes on would have documents of two versions, some of them twice."""
    service.breaks_at = 17
    with pytest.raises(UserError):
        read(HubDataset("x"))
    service.breaks_at, service.newest = -1, "second"
    read(HubDataset("x"))
    read(HubDataset("y"))
    assert [(path, revision) for path, _, _, revision in service.asked] == [("x", "first")] * 2 + [("y", "second")]


def test_a_damaged_file_is_streamed_again(service: Service) -> None:
    dataset = HubDataset("x")
    read(dataset)
    path = dataset.folder / "00001.jsonl"
    path.write_text(path.read_text().replace("document 14", "document 41"))
    assert read(dataset) == [row["text"] for row in ROWS]
    assert service.streamed == [*range(25), *range(10, 25)]


def test_without_a_cache_it_is_streamed_every_time(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REGBENCH_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        assert read(HubDataset("x")) == [row["text"] for row in ROWS]
    assert service.streamed == [*range(25), *range(25)]


def error(name: str, message: str = "", base: type[Exception] = Exception) -> Exception:
    """An exception as the libraries name theirs, which differ by version in what they derive from."""
    return type(name, (base,), {})(message)


@pytest.mark.parametrize(
    ("dataset", "fault", "message"),
    [
        (
            "stdlb",
            error("DatasetNotFoundError"),
            "no dataset of that name on the Hugging Face Hub, and no .* here; did you mean 'stdlib'",
        ),
        (
            "some/x",
            error("RepositoryNotFoundError", "404\nwith lines"),
            "no dataset of that name on .* Hub, and no file or folder here$",
        ),
        ("some/x", error("HFValidationError"), "no dataset of that name"),
        ("some/x", error("GatedRepoError", base=error("RepositoryNotFoundError").__class__), "only on request"),
        ("some/x", error("RevisionNotFoundError"), "it has no revision 'r'"),
        ("c4x", error("ConnectError", "Name not known", ConnectionError), "cannot be reached .*stdlib or local"),
        ("some/x", ValueError("BuilderConfig 'e' not found. Available: ['en']"), r"config 'e': .*Available: \['en'\]"),
        ("some/x", ValueError("Bad split: tset. Available splits: ['train']"), "Bad split: tset"),
    ],
)
def test_refusals_are_one_line_that_says_what_to_do(
    service: Service, dataset: str, fault: Exception, message: str
) -> None:
    service.fault = fault
    with pytest.raises(UserError, match=message) as caught:
        read(HubDataset(dataset, config="e", revision="r"))
    assert str(caught.value).startswith(f"dataset '{dataset}': ")
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused(service: Service) -> None:
    with pytest.raises(UserError, match="x, document 0 has no field 'txt'; did you mean 'text'"):
        read(HubDataset("x", text_field="txt"))
    service.rows = [{"text": " "}] * 3
    with pytest.raises(UserError, match=r"blank \(train, 100,000 documents\) holds no text"):
        read(HubDataset("blank"))
    service.rows = []
    with pytest.raises(UserError, match="holds no text"):
        read(HubDataset("nothing"))


def test_without_the_package_it_says_what_to_install(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"allenai/c4 needs the package datasets: pip install 'regbench\[text\]'"):
        read(HubDataset("allenai/c4"))


def test_no_network_is_said_at_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before `datasets`, which goes on trying for half a minute, is asked at all."""
    pytest.importorskip("huggingface_hub")
    made = Service(ROWS)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=made.load_dataset))

    fault = type("ConnectError", (type("NetworkError", (OSError,), {}),), {})("Name or service not known")
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: (_ for _ in ()).throw(fault))
    with pytest.raises(UserError, match="cannot be reached .*Name or service not known"):
        read(HubDataset("allenai/c4", "en"))
    assert made.asked == []


def test_the_library_itself_streams_a_local_folder(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "SHARD", 10)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    dataset = HubDataset(str(folder), topic_field="title", limit=23)
    partly = list(itertools.islice(dataset.documents(), 12))
    whole = list(dataset.documents())
    assert partly == whole[:12]
    assert [(d.text, d.topic) for d in whole] == [(row["text"], row["title"]) for row in ROWS[:23]]
    (folder / "train.jsonl").unlink()
    assert list(dataset.documents()) == whole
    with pytest.raises(UserError, match=r"dataset '.*mine': "):
        read(HubDataset(str(folder), split="validation"))


def test_a_wrong_split_of_a_real_folder_is_refused(tmp_path: Path, own_cache: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with pytest.raises(UserError, match="Bad split: tset") as caught:
        read(HubDataset(str(tmp_path), split="tset"))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="config 'zz': .*not found"):
        read(HubDataset(str(tmp_path), config="zz"))
