"""List architectures, baselines, tasks, tracks and suites."""

from __future__ import annotations

import argparse
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from regbench.cli.arguments import apart_from_stdout, one_of
from regbench.utils import registry
from regbench.utils.errors import UserError


def configure(listing: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    listing.add_argument(
        "kind", nargs="?", type=one_of(*registry.KINDS, "tracks", "suites"), metavar="KIND", help="only these"
    )
    listing.add_argument("name", nargs="?", help="with `architectures`: show the options of this one")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the lists asked for."""
    if arguments.name is not None:
        if arguments.kind != "architectures":
            raise UserError("a NAME goes with `regbench ls architectures` only")
        return _describe_architecture(arguments.name, console)
    if arguments.kind == "architectures":
        return _compare_architectures(console)
    for plural in [arguments.kind] if arguments.kind else [*registry.KINDS, "tracks", "suites"]:
        table = Table(title=plural, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        if plural in ("tracks", "suites"):
            from regbench.tracks import track_names
            from regbench.tracks.suite import suite_names

            for name, summary in (track_names() if plural == "tracks" else suite_names()).items():
                table.add_row(f"[bold]{name}[/]", summary)
        else:
            for entry in registry.entries(registry.KINDS[plural]).values():
                table.add_row(f"[bold]{entry.name}[/]", entry.summary or entry.source)
        console.print(table, highlight=False)
        console.print()
    return 0


def _compare_architectures(console: Console) -> int:
    """Paper, parameters and state of every architecture at its default options, for the tokens of pfa-small-v1."""
    from regbench.models.backbone import build, resolve_options
    from regbench.models.model import parameter_count
    from regbench.report import human_bytes
    from regbench.tracks import load_track

    task_io = load_track("pfa-small-v1").task.io
    table = Table(title="architectures, at their default options", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column, justify in (
        ("", "left"),
        ("paper", "left"),
        ("year", "right"),
        ("parameters", "right"),
        ("state", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name in registry.entries(registry.ARCHITECTURE):
        cls = registry.load(registry.ARCHITECTURE, name)
        model = build(cls, resolve_options(cls, {}), task_io)
        paper = (cls.paper.authors, str(cls.paper.year)) if cls.paper else ("", "")
        table.add_row(f"[bold]{name}[/]", *paper, f"{parameter_count(model):,}", human_bytes(model.state_bytes()))
    console.print(table, highlight=False)
    return 0


def _describe_architecture(name: str, console: Console) -> int:
    with apart_from_stdout():
        cls = registry.load(registry.ARCHITECTURE, name)
    if cls.paper is not None:
        link = f", arXiv:{cls.paper.arxiv}" if cls.paper.arxiv else ""
        console.print(f"{cls.paper.authors} ({cls.paper.year}). {cls.paper.title}{link}", highlight=False)
    table = Table(title=f"options of {registry.short_name(name)}, for --set", title_justify="left")
    for column in ("option", "type", "default", "meaning"):
        table.add_column(column)
    for key, field in cls.Options.model_fields.items():
        default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
        table.add_row(key, *(escape(text) for text in (_type_name(field.annotation), default, field.description or "")))
    console.print(table, highlight=False)
    return 0


def _type_name(annotation: Any) -> str:
    """A type as people write it: `tuple[int, ...]`, whatever else the field says of its values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Ellipsis:
        return "..."
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_type_name, arguments))
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if annotation is NoneType:
        return "None"
    if origin is not None:
        return f"{_type_name(origin)}[{', '.join(map(_type_name, arguments))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")
