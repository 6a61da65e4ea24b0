"""c4 and wikipedia as the Hub lays them out, streamed by `datasets` itself over HTTP from a hub of our own."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.data.text.local_hub import COMMIT, Hub, serve

pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.ci

ROOT = Path(__file__).resolve().parents[3]
N = 40

TAKE = """
import json, sys
from regbench.data.text import hub
from regbench.tasks.text_mixture import TextMixture, TextMixtureParameters
from regbench.utils.errors import UserError

hub.SHARD = 10
taken = {}
for parameters in json.loads(sys.argv[1]):
    task = TextMixture(TextMixtureParameters(**parameters))
    try:
        texts = [document.text for document in task.corpus.source.documents()]
        taken[parameters["source"]] = [task.source_name(), texts]
    except UserError as error:
        taken[parameters["source"]] = f"refused: {error}"
print(json.dumps(taken))
"""


def c4() -> dict[str, bytes]:
    """Compressed JSON lines in 1,024 files and a card that says which are which; two files here."""
    rows = [json.dumps({"text": f"page {i}", "timestamp": "2019-04-25T12:57:54Z", "url": f"u/{i}"}) for i in range(N)]
    card = "configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/c4-train.*.json.gz\n"
    card += "  - split: validation\n    path: en/c4-validation.*.json.gz\n"
    parts = {0: rows[: N // 2], 1: rows[N // 2 :]}
    files = {f"en/c4-train.{k:05d}-of-01024.json.gz": gzip.compress("\n".join(p).encode()) for k, p in parts.items()}
    files["en/c4-validation.00000-of-00008.json.gz"] = gzip.compress(
        b'{"text": "held out", "timestamp": "", "url": ""}'
    )
    files["realnewslike/c4-train.00000-of-00512.json.gz"] = gzip.compress(
        b'{"text": "news", "timestamp": "", "url": ""}'
    )
    return {"README.md": f"---\n{card}---\n".encode(), **files}


def wikipedia() -> dict[str, bytes]:
    """Parquet in 41 files, a folder for each language and dump; two of each here."""
    import pyarrow.parquet as pq

    def part(word: str, numbers: range) -> bytes:
        columns = {"id": "", "url": "", "title": "", "text": f"{word} "}
        table = pa.table({name: [f"{start}{i}" for i in numbers] for name, start in columns.items()})
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        return buffer.getvalue()

    card = "".join(
        f"- config_name: 20231101.{language}\n  data_files:\n  - split: train\n    path: 20231101.{language}/train-*\n"
        for language in ("de", "en")
    )
    return {
        "README.md": f"---\nconfigs:\n{card}---\n".encode(),
        "20231101.de/train-00000-of-00020.parquet": part("Artikel", range(3)),
        "20231101.en/train-00000-of-00041.parquet": part("article", range(N // 2)),
        "20231101.en/train-00001-of-00041.parquet": part("article", range(N // 2, N)),
    }


def take(address: str, cache: Path, *sources: dict[str, Any]) -> dict[str, Any]:
    """Name and documents of sources, in another process, as the libraries read the Hub's address when imported."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": address,
        "HF_HOME": str(cache / "hf"),
        "REGBENCH_CACHE": str(cache / "regbench"),
    }
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        environment.pop(name, None)
    command = [sys.executable, "-c", TAKE, json.dumps(sources)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken: dict[str, Any] = json.loads(done.stdout)
    return taken


PRESETS = [{"source": name, "max_documents": 25} for name in ("c4", "wikipedia")]
BROKEN = {"source": "some/pages", "config": "en", "max_documents": N}
SECOND = "en/c4-train.00001-of-01024.json.gz"


@pytest.fixture(scope="module")
def hub() -> Hub:
    hub = Hub({"allenai/c4": c4(), "wikimedia/wikipedia": wikipedia(), "some/pages": c4()})
    hub.withheld = {("some/pages", SECOND)}
    return hub


@pytest.fixture(scope="module")
def address(hub: Hub) -> Iterator[str]:
    with serve(hub) as address:
        yield address


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def first(address: str, cache: Path) -> dict[str, Any]:
    """Taken while a file of one dataset is withheld."""
    return take(address, cache, *PRESETS, BROKEN)


@pytest.fixture(scope="module")
def kept(first: dict[str, Any], cache: Path) -> dict[Path, int]:
    """The documents that the broken download left, with their times."""
    found = {path: path.stat().st_mtime_ns for path in (cache / "regbench" / "text" / "datasets").glob("*/*.jsonl")}
    return {path: time for path, time in found.items() if '"some/pages"' in path.read_text()}


@pytest.fixture(scope="module")
def second(hub: Hub, address: str, kept: dict[Path, int], cache: Path) -> dict[str, Any]:
    """Taken again when nothing is withheld; the presets' repositories are gone."""
    hub.withheld = set()
    del hub.repositories["allenai/c4"], hub.repositories["wikimedia/wikipedia"]
    return take(address, cache, *PRESETS, BROKEN)


@pytest.mark.parametrize(
    ("source", "name", "word"),
    [
        ("c4", "allenai/c4 (en/train, 25 documents)", "page"),
        ("wikipedia", "wikimedia/wikipedia (20231101.en/train, 25 documents)", "article"),
    ],
)
def test_a_preset_streams_its_documents_in_order(
    first: dict[str, Any], second: dict[str, Any], source: str, name: str, word: str
) -> None:
    """Across two files, none of another language or split; kept, they need no hub the next time."""
    assert first[source] == second[source] == [name, [f"{word} {i}" for i in range(25)]]


def test_a_download_that_failed_goes_on_behind_the_last_whole_file(
    hub: Hub, first: dict[str, Any], kept: dict[Path, int], second: dict[str, Any]
) -> None:
    assert re.fullmatch(r"refused: dataset 'some/pages': .*403.*", first["some/pages"])
    assert sorted(path.name for path in kept) == ["00000.jsonl", "00001.jsonl"]
    _, texts = second["some/pages"]
    assert texts == [f"page {i}" for i in range(N)]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    (folder,) = {path.parent for path in kept}
    assert (folder / "commit").read_text().strip() == COMMIT
