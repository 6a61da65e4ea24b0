"""Text that someone else wrote, as plain values: JSON and YAML within bounds of size and depth. Nothing is executed."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import pydantic
import yaml

from regbench.utils.errors import UserError, escaped, explain_validation

_Model = TypeVar("_Model", bound=pydantic.BaseModel)

DEEPEST = 12
"""The most levels of nesting."""
LONGEST_STRING = 2000
"""The most characters of a string."""
LARGEST_INTEGER = 2**63
YAML_BYTES = 1 << 16


class Refused(UserError):
    """Raised where a file is not what it must be. The message is one line."""


def parse_json(content: bytes, name: str) -> Any:
    """A JSON file as plain dictionaries, lists, strings and numbers."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(f"{name}: not a text file") from None
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _without_twins(pairs, name))
    except RecursionError:
        raise Refused(f"{name}: nested deeper than {DEEPEST} levels") from None
    except json.JSONDecodeError as error:
        raise Refused(f"{name}:{error.lineno}: not JSON: {error.msg}") from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise Refused(f"{name}: a number beyond 64 bits") from None
    check_plain(value, name)
    return value


def parse_yaml(content: str | bytes, name: str) -> Any:
    """A YAML file. Aliases are not allowed, nor a key twice, and size and depth have bounds."""
    if len(content) > YAML_BYTES:
        raise Refused(f"{name}: larger than it can need to be")
    try:
        return yaml.load(content if isinstance(content, str) else content.decode("utf-8"), _Loader)
    except UnicodeDecodeError:
        raise Refused(f"{name}: not a text file") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, AttributeError, LookupError) as error:
        reason, line = "a value that cannot be read", ""
        if isinstance(error, yaml.MarkedYAMLError):
            reason = escaped(str(error.problem)[:80])
            line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Refused(f"{name}{line}: broken YAML: {reason}") from None


def parse_plain_yaml(content: bytes, name: str) -> Any:
    """A YAML file as plain dictionaries, lists, strings and numbers."""
    value = parse_yaml(content, name)
    check_plain(value, name)
    return value


def check_plain(value: Any, name: str) -> None:
    """Refuses what is beyond the bounds of this module."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > DEEPEST:
            raise Refused(f"{name}: nested deeper than {DEEPEST} levels")
        if isinstance(item, str):
            _check_string(item, name)
        elif isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise Refused(f"{name}: a key is no string")
                _check_string(key, name)
            waiting += [(member, depth + 1) for member in item.values()]
        elif isinstance(item, list) and set(map(type, item)) != {float}:
            waiting += [(member, depth + 1) for member in item]
        elif isinstance(item, list | float):  # nearly all of a large file is lists of such numbers
            if not all(map(math.isfinite, item if isinstance(item, list) else [item])):
                raise Refused(f"{name}: NaN or infinity")
        elif isinstance(item, int):
            if abs(item) >= LARGEST_INTEGER:
                raise Refused(f"{name}: a number beyond 64 bits")
        elif item is not None:
            raise Refused(f"{name}: a value of the type {type(item).__name__}")


def of_schema(model: type[_Model], content: Any, name: str) -> _Model:
    """What a file holds, as a model."""
    with explain_validation(name, model.model_fields, Refused):
        return model.model_validate(content)


class _Loader(yaml.SafeLoader):  # not the faster one in C: deep nesting ends the process there
    """PyYAML's loader, without aliases: a few lines of them stand for gigabytes, or for a list that holds itself.

    It tells the line of a value that only looks like one of its type ("2024-13-45"), and of a key twice. "2e4" is a number, as in
    YAML 1.2.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias", mark)
        self.depth += 1
        if self.depth > DEEPEST + 1:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {DEEPEST} levels", mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in found:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key.value[:40]}' is there twice", key.start_mark
                )
            found.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            shown = f"'{node.value[:40]}'" if isinstance(node.value, str) else "what is there"
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown} is no valid {kind}", node.start_mark
            ) from None
        # From 1e16 on Python writes every float with an exponent: there it stays a float.
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e16
        return int(value) if whole and _EXPONENT.fullmatch(node.value) else value


_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _without_twins(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Refused(f"{name}: a key is there twice")
    return found


def _check_string(text: str, name: str) -> None:
    if len(text) > LONGEST_STRING:
        raise Refused(f"{name}: a string of {len(text):,} characters")
    if not text.isprintable():
        first = next(i for i, c in enumerate(text) if not c.isprintable())
        raise Refused(f"{name}: a string with characters that are not printable: {text[max(0, first - 40) :][:60]!a}")
