"""Datasets of the Hub, without the Hub: a stand-in that streams rows, and a local folder through `datasets` itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regbench.data.text.sources import HubDataset
from regbench.utils.errors import UserError

ROWS = [{"text": f"document {i}", "title": f"t{i % 3}"} for i in range(25)]


class Service:
    """What stands for the library and the Hub. It says which rows were streamed, and breaks where it is told to."""

    def __init__(self, rows: list[dict[str, Any]], fault: Exception | None = None) -> None:
        self.rows, self.fault, self.breaks_at = rows, fault, -1
        self.streamed: list[int] = []
        self.asked: list[tuple[Any, ...]] = []

    def load_dataset(self, path: str, name: str | None, *, split: str, revision: Any, streaming: bool) -> Any:
        assert streaming
        self.asked.append((path, name, split, revision))
        if self.fault is not None:
            raise self.fault
        return self.stream()

    def stream(self) -> Iterator[dict[str, Any]]:
        for place, row in enumerate(self.rows):
            if place == self.breaks_at:
                raise ConnectionError("lost the connection\nand more lines")
            self.streamed.append(place)
            yield row


@pytest.fixture
def service(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service(ROWS)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=made.load_dataset))
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


def test_the_documents_of_another_dataset_are_not_taken(service: Service) -> None:
    few, more = HubDataset("x", limit=7), HubDataset("x", limit=9)
    assert (len(read(few)), len(read(more))) == (7, 9)
    few.path.replace(more.path)
    assert len(read(more)) == 9


def test_no_more_is_streamed_than_asked_for(service: Service) -> None:
    assert len(read(HubDataset("x", limit=7))) == 7
    assert service.streamed == list(range(7))
    assert len(read(HubDataset("x", limit=7))) == 7
    assert service.streamed == list(range(7))


def test_of_a_broken_download_nothing_is_kept(service: Service) -> None:
    service.breaks_at = 17
    with pytest.raises(UserError, match=r"dataset 'x': lost the connection and more lines") as caught:
        read(HubDataset("x"))
    assert "\n" not in str(caught.value)
    service.breaks_at = -1
    assert read(HubDataset("x")) == [row["text"] for row in ROWS]
    assert service.streamed == [*range(17), *range(25)]


def test_a_damaged_file_is_streamed_again(service: Service) -> None:
    dataset = HubDataset("x")
    read(dataset)
    dataset.path.write_text(dataset.path.read_text()[:-9])
    assert read(dataset) == [row["text"] for row in ROWS]
    assert service.streamed == [*range(25), *range(25)]


@pytest.mark.parametrize(
    ("dataset", "fault", "message"),
    [
        ("stdlb", OSError("no such dataset"), "no such dataset; did you mean 'stdlib'"),
        ("some/x", ValueError("Bad split: tset.\nAvailable splits: ['train']"), "Bad split: tset. Available splits"),
        ("some/x", TimeoutError(), "TimeoutError$"),
    ],
)
def test_refusals_are_one_line(service: Service, dataset: str, fault: Exception, message: str) -> None:
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


def test_the_library_itself_streams_a_local_folder(tmp_path: Path, own_cache: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    dataset = HubDataset(str(folder), topic_field="title", limit=23)
    whole = list(dataset.documents())
    assert [(d.text, d.topic) for d in whole] == [(row["text"], row["title"]) for row in ROWS[:23]]
    (folder / "train.jsonl").unlink()
    assert list(dataset.documents()) == whole
    with pytest.raises(UserError, match=r"dataset '.*mine': "):
        read(HubDataset(str(folder), split="validation"))
