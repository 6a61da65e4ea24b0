"""The source of strangers: Python that a person can read; what touches generators or files is named."""

from __future__ import annotations

import pytest

from regbench.leaderboard.origin import source_faults, telling_lines
from tests.leaderboard.conftest import MIXER


def test_an_honest_file_passes_and_nothing_in_it_is_listed() -> None:
    assert list(source_faults(MIXER.encode())) == []
    assert telling_lines(MIXER.encode()) == []
    assert list(source_faults(b"# coding: utf8\n" + MIXER.encode())) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff", "it is no text"),
        (b"", "it defines no class"),
        (b"x = 1", "it defines no class"),
        ("class A:  # \u202e hidden".encode(), "line 1 has the character U+202E"),
        ("a\u200b = 1".encode(), "U+200B"),
        ("class A:\n  x = '\u05d0'".encode(), "line 2 has the character U+05D0"),
        (b"class A:\n  x = '\x1b[2J'", "U+001B"),
        (b"class", "it is no Python: SyntaxError"),
        (b"# coding: raw_unicode_escape\nclass A:  # \\u000a  import os", "it names an encoding of its own"),
        (b"# coding: utf-7\nclass A: pass\n# +AAo-import os", "it names an encoding of its own"),
        (b"# coding: nonsense\nclass A: pass", "it names an encoding of its own"),
        (b"-" * 200_000 + b"1", "it is no Python"),
        (b"a." * 100_000 + b"b", "it is no Python"),
    ],
)
def test_what_nobody_can_read(content: bytes, fault: str) -> None:
    (found,) = source_faults(content)
    assert fault in found


def test_what_is_listed_for_the_reader() -> None:
    code = """
from regbench import load_track
import os.path, torch
import regbench.tracks as t
class A:
    def f(self):
        t.instances("test")
        return open("x"), torch.ones(1)
"""
    assert telling_lines(code.encode()) == [
        "line 2: regbench.load_track",
        "line 3: os.path",
        "line 4: regbench.tracks",
        "line 7: instances",
        "line 8: open",
    ]
    assert telling_lines(b"x = np.load('a')\ny = torch.hub") == ["line 1: load", "line 2: hub"]
    assert len(telling_lines(b"open()\n" * 50)) == 21
