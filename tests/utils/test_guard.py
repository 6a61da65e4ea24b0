"""The guard lets through what is honest, and says in a line what is not. Attacks on it are in test_hostile.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regbench.utils.guard import Refused, parse_json, parse_plain_yaml


@pytest.mark.parametrize("value", [{}, [], 0, -1.5, "ä", None, True, {"a": [1, {"b": [2.5, "x"]}]}, 2**62, 1e-300])
def test_plain_json_passes(value: Any) -> None:
    assert parse_json(json.dumps(value).encode(), "x") == value
    assert type(parse_json(json.dumps(value).encode(), "x")) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "a key is there twice"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "a key is there twice"),
        ("NaN", "NaN is no number"),
        ("-Infinity", "-Infinity is no number"),
        ("1e999", "NaN or infinity"),
        ("9" * 41, "a number of 41 digits"),
        ("9223372036854775808", "beyond 64 bits"),
        ("[" * 14 + "]" * 14, "nested deeper than 12"),
        ('"' + "x" * 2001 + '"', "a string of 2,001 characters"),
        ('"\\u001b[2J"', "not printable: '\\\\x1b\\[2J'"),
        ('{"\\u202e": 1}', "not printable"),
        ('"\\ud800"', "not printable"),
        ("{", "x:1: not JSON"),
        ("\n\n{]", "x:3: not JSON"),
    ],
)
def test_what_is_not_plain_is_refused(text: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        parse_json(text.encode("utf-8", "surrogatepass"), "x")
    assert str(caught.value).isprintable()


def test_yaml_is_as_plain() -> None:
    assert parse_plain_yaml(b"a: [1, 2.5]\nb: {c: auto, d: null}\n", "x") == {
        "a": [1, 2.5],
        "b": {"c": "auto", "d": None},
    }
    for text in (b"&a [*a]", b"2020-01-01", b"1: 2", b"!!set {a}", b"!!binary aGk=", b"a" * 8193, b".nan", b"'\x07'"):
        with pytest.raises(Refused):
            parse_plain_yaml(text, "x")
