"""Sources: the standard library, and files of every kind, in one order; and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from regbench.data.text.sources import Document, Files, StandardLibrary
from regbench.utils.errors import UserError


def read(source: Files | StandardLibrary) -> list[Document]:
    return list(source.documents())


def test_the_standard_library_is_its_modules_and_its_reference() -> None:
    found = read(StandardLibrary())
    names = [document.name for document in found]
    assert len(set(names)) == len(names) > 500
    by_name = {document.name: document for document in found}
    assert by_name["asyncio/base_events.py"].topic == "asyncio"
    assert by_name["bisect.py"].topic == "bisect"
    assert by_name["bisect.py"].text.startswith('"""Bisection algorithms."""')
    assert "statement" in by_name["pydoc_data/topics/del"].text
    assert by_name["pydoc_data/topics/del"].topic == "pydoc_data"
    assert "pydoc_data/topics.py" not in by_name
    for name in names:
        assert not {"test", "tests", "idle_test", "site-packages"} & set(name.split("/"))
        assert name.split("/")[0].removesuffix(".py") in sys.stdlib_module_names
    modules = [name for name in names if name.endswith(".py")]
    tops = [name.split("/")[0] for name in modules]
    assert tops == sorted(tops)
    assert found == read(StandardLibrary())
    assert StandardLibrary().name.endswith(sys.version.split()[0])


def test_a_library_made_for_the_test(tmp_path: Path) -> None:
    """Tests, others' packages and other files are left out; declared encodings are followed."""
    for name, content in {
        "bisect.py": b"# -*- coding: latin-1 -*-\n# caf\xe9\n",
        "json/decoder.py": b"import re\n",
        "json/tests/case.py": b"import this\n",
        "site-packages/numpy.py": b"no\n",
        "_sysconfigdata_local.py": b"no\n",
        "zlib.so": b"\x00",
        "abc.py": b"# bad: \xff\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = read(StandardLibrary(tmp_path))
    assert [(d.name, d.topic) for d in found] == [
        ("abc.py", "abc"),
        ("bisect.py", "bisect"),
        ("json/decoder.py", "json"),
    ]
    assert "café" in found[1].text
    with pytest.raises(UserError, match="holds no source of the standard library"):
        read(StandardLibrary(tmp_path / "gone"))


def test_a_folder_of_text_has_its_subfolders_as_topics(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.md", "a.txt", ".hidden/x.txt", "b/.y.txt", "c.rst"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}")
    (tmp_path / "empty.txt").write_text(" \n")
    assert read(Files(tmp_path)) == [
        Document("a.txt", "a", "this is a.txt"),
        Document("b/1.md", "b", "this is b/1.md"),
        Document("b/2.txt", "b", "this is b/2.txt"),
    ]
    assert read(Files(tmp_path / "b" / "1.md")) == [Document("1.md", "1", "this is b/1.md")]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_are_documents(tmp_path: Path, kind: str) -> None:
    rows = [{"body": f"text {i}", "about": i % 2, "other": None} for i in range(3)]
    path = tmp_path / f"news.{kind}"
    write_rows(path, rows)
    plain = Files(path, text_field="body")
    assert read(plain) == [Document(f"news.{kind}:{i + 1}", "news", f"text {i}") for i in range(3)]
    assert [d.topic for d in read(Files(tmp_path, "body", "about"))] == ["0", "1", "0"]
    with pytest.raises(UserError, match="has no field 'boddy'; did you mean 'body'"):
        read(Files(path, text_field="boddy"))
    with pytest.raises(UserError, match=r"the field 'other' is NoneType, not text"):
        read(Files(path, text_field="body", topic_field="other"))


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_half_of_a_surrogate_pair_is_no_error_later(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "so \\ud83d far"}\n')
    assert read(Files(tmp_path))[0].text == "so ? far"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', r"a.jsonl:3: broken JSON"),
        ("a.jsonl", b"[1]\n", r"a.jsonl:1: a line must be an object"),
        ("a.jsonl", b'{"txt": "x"}\n', r"a.jsonl:1 has no field 'text'"),
        ("a.jsonl", b'{"text": ["x"]}\n', r"a.jsonl:1: the field 'text' is list, not text"),
        ("a.jsonl", b'{"text": ' + b"[" * 200_000 + b"\n", r"a.jsonl:1: broken JSON"),
        ("a.txt", b"\xff\xfe\x00", r"a.txt is not text in UTF-8"),
        ("a.parquet", b"PAR2 or so", r"a.parquet is not a Parquet file"),
        ("a.pdf", b"%PDF", r"a.pdf: a source of text is .jsonl, .md, .parquet, .txt or a folder of these"),
    ],
)
def test_faults_are_one_line_that_names_the_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(Files(path))
    assert "\n" not in str(caught.value)


def test_names_in_capitals_and_a_mark_at_the_beginning(tmp_path: Path) -> None:
    """As some editors and systems write them."""
    (tmp_path / "A.TXT").write_bytes(b"\xef\xbb\xbftext")
    (tmp_path / "b.JSONL").write_bytes(b'\xef\xbb\xbf{"text": "row"}\n')
    assert [document.text for document in read(Files(tmp_path))] == ["text", "row"]
    assert read(Files(tmp_path / "A.TXT"))[0].text == "text"


def test_nothing_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder: .*gone.txt"):
        read(Files(tmp_path / "gone.txt"))
    with pytest.raises(UserError, match="holds no files of text"):
        read(Files(tmp_path))


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"pyarrow: pip install 'regbench\[text\]'"):
        read(Files(tmp_path))
