"""The guard lets through what is honest, and says in a line what is not. Attacks on it are in test_hostile.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from regbench.cli.arguments import read_settings
from regbench.training.options import resolve_settings
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.files import read_mapping
from regbench.utils.guard import Refused, parse_json, parse_plain_yaml, parse_yaml


@pytest.mark.parametrize("value", [{}, [], 0, -1.5, "ä", None, True, {"a": [1, {"b": [2.5, "x"]}]}, 2**62, 1e-300])
def test_plain_json_passes(value: Any) -> None:
    assert parse_json(json.dumps(value).encode(), "x") == value
    assert type(parse_json(json.dumps(value).encode(), "x")) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "a key is there twice"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "a key is there twice"),
        ("NaN", "NaN or infinity"),
        ("-Infinity", "NaN or infinity"),
        ("1e999", "NaN or infinity"),
        ("9" * 5000, "beyond 64 bits"),
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
    for text in (b"&a [*a]", b"2020-01-01", b"1: 2", b"!!set {a}", b"!!binary aGk=", b"a" * 65537, b".nan", b"'\x07'"):
        with pytest.raises(Refused):
            parse_plain_yaml(text, "x")


# --- What users write themselves: as bounded, but with dates and infinity. ---

NO_VALUES = (
    "2024-13-45",
    "0b_",
    "0x_",
    "!!int ''",
    "!!bool maybe",
    "!!timestamp soon",
    "!!float x",
    "{[]: 1}",
    '"\\UFFFFFFFF"',
)


@pytest.mark.parametrize(
    "text", [*NO_VALUES, "[" * 60_000, "- " * 1000, "? " * 1000, "{", "\x00", "&a [*a]", "a" * 65537]
)
def test_whatever_is_wrong_with_yaml_is_one_line(text: str) -> None:
    with pytest.raises(Refused, match="^x") as caught:
        parse_yaml(text, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0b11", 3), ("1_000", 1000), ("[1, {a: .inf}]", [1, {"a": float("inf")}]), ("no", False), ("1.5", 1.5)],
)
def test_what_is_right_is_as_ever(text: str, value: object) -> None:
    assert parse_yaml(text, "x") == value == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("2e4", 20_000), ("-1.5E+3", -1500), ("1e-3", 1e-3), (".5e1", 5), ("1e300", 1e300), ("'2e4'", "2e4")],
)
def test_numbers_may_have_an_exponent(text: str, value: object) -> None:
    assert parse_yaml(text, "x") == value
    assert type(parse_yaml(text, "x")) is type(value)


def test_a_setting_takes_a_whole_number_in_any_notation() -> None:
    settings = read_settings(["training.train_tokens=2e4", "training.learning_rate=1e-3"])
    _, training = resolve_settings(registry.load(registry.ARCHITECTURE, "lstm"), settings)
    assert (training.train_tokens, training.learning_rate) == (20_000, 0.001)


def test_what_aliases_would_stand_for_is_never_made(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)))
    with pytest.raises(UserError, match=r"c.yaml:2: broken YAML: an alias$"):
        read_mapping(path, "a sweep")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2024-13-45\n", r"c.yaml:2: broken YAML: '2024-13-45' is no valid timestamp$"),
        ("a:\n  - 1\n  - x: 0b_\n", r"c.yaml:3: broken YAML: '0b_' is no valid int$"),
        ("a: 1\nb: {x: 1}\na: 2\n", r"c.yaml:3: broken YAML: 'a' is there twice$"),
        ("[" * 1000, r"c.yaml:1: broken YAML: nested deeper than 12 levels$"),
    ],
)
def test_a_file_of_it_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_mapping(path, "a configuration")
    assert "\n" not in str(caught.value)
