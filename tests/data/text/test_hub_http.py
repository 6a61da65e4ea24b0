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

ROOT = Path(__file__).resolve().parents[3]
N = 40

TAKE = """
import json, sys
from regbench.data.text import hub
from regbench.tasks.text_mixture import TextMixture, TextMixtureParameters
from regbench.utils.errors import UserError

hub.SHARD = 10
task = TextMixture(TextMixtureParameters(source=sys.argv[1], max_documents=int(sys.argv[2])))
try:
    print(json.dumps([task.source_name(), [document.text for document in task.corpus.source.documents()]]))
except UserError as error:
    sys.exit(f"refused: {error}")
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


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Hub, str]]:
    hub = Hub({"allenai/c4": c4(), "wikimedia/wikipedia": wikipedia()})
    with serve(hub) as address:
        yield hub, address


def take(served: tuple[Hub, str], cache: Path, source: str, limit: int) -> Any:
    """Name and documents of a source, in a process of its own, as the libraries read the Hub's address when imported."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": served[1],
        "HF_HOME": str(cache / "hf"),
        "REGBENCH_CACHE": str(cache / "regbench"),
    }
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        environment.pop(name, None)
    command = [sys.executable, "-c", TAKE, source, str(limit)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "name", "word"),
    [
        ("c4", "allenai/c4 (en/train, 25 documents)", "page"),
        ("wikipedia", "wikimedia/wikipedia (20231101.en/train, 25 documents)", "article"),
    ],
)
def test_a_preset_streams_its_documents_in_order(
    served: tuple[Hub, str], tmp_path: Path, source: str, name: str, word: str
) -> None:
    """Across two files, none of another language or split; kept, they need no hub the next time."""
    wanted = [name, [f"{word} {i}" for i in range(25)]]
    assert take(served, tmp_path, source, 25) == wanted
    asked = len(served[0].sent)
    assert take((served[0], "http://127.0.0.1:9"), tmp_path, source, 25) == wanted
    assert len(served[0].sent) == asked


def test_a_download_that_failed_goes_on_behind_the_last_whole_file(tmp_path: Path) -> None:
    hub = Hub({"allenai/c4": c4()})
    _, second = (name for name in c4() if name.startswith("en/c4-train"))
    hub.withheld = {second}
    with serve(hub) as address:
        said = take((hub, address), tmp_path, "c4", N)
        assert re.fullmatch(r"refused: dataset 'allenai/c4': .*403.*", said)
        (folder,) = (tmp_path / "regbench" / "text" / "datasets").iterdir()
        kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.jsonl")}
        assert sorted(path.name for path in kept) == ["00000.jsonl", "00001.jsonl"]
        hub.withheld = set()
        _, texts = take((hub, address), tmp_path, "c4", N)
    assert texts == [f"page {i}" for i in range(N)]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert (folder / "commit").read_text().strip() == COMMIT
