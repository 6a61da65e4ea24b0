"""List architectures, baselines, tasks, tracks, suites, runs and training options."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regbench.cli.arguments import apart_from_stdout, one_of
from regbench.cli.lines import print_line
from regbench.report.table import narrow_table, print_fitting
from regbench.utils import registry
from regbench.utils.errors import UserError
from regbench.utils.files import cache_root, keep_text, kept_text

UNREADABLE = "cannot be read"
"""Stands in the place of the track of a run that cannot be read."""


def configure(listing: argparse.ArgumentParser) -> None:
    listing.add_argument(
        "kind",
        nargs="?",
        type=one_of(*registry.KINDS, "tracks", "suites", "runs", "training"),
        metavar="KIND",
        help=f"{', '.join(registry.KINDS)}, tracks, suites, runs (those under runs/), or training (its options)",
    )
    listing.add_argument(
        "name", nargs="?", help="with `architectures`: show the options of this one; with `runs`: look in this folder"
    )


def main(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.kind == "runs":
        return _list_runs(Path(arguments.name or "runs"), console)
    if arguments.name is not None:
        if arguments.kind != "architectures":
            raise UserError("a NAME goes with `regbench ls architectures` and `regbench ls runs` only")
        return _describe_architecture(arguments.name, console)
    if arguments.kind == "architectures":
        return _compare_architectures(console)
    if arguments.kind == "training":
        from regbench.training.options import TrainingOptions

        console.print(_options_table("training options, for --set training.OPTION=VALUE", _fields(TrainingOptions)))
        return 0
    if arguments.kind == "tracks":
        return _compare_tracks(console)
    for plural in [arguments.kind] if arguments.kind else [*registry.KINDS, "tracks", "suites"]:
        table = Table(title=plural, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        if plural in ("tracks", "suites"):
            from regbench.tracks import track_names
            from regbench.tracks.suite import suite_names

            for name, summary in (track_names() if plural == "tracks" else suite_names()).items():
                table.add_row(Text(name, "bold"), summary)
        else:
            for entry in registry.entries(registry.KINDS[plural]).values():
                table.add_row(Text(entry.name, "bold"), entry.summary or entry.source)
        console.print(table)
        console.print()
    return 0


def _compare_architectures(console: Console) -> int:
    """Paper, parameters and state of every architecture at its default options, for the tokens of pfa-small-v1."""
    heads = ("", "family", "paper", "year", "parameters", "state")
    table = narrow_table("architectures, at their default options", heads, 3, box=None, padding=(0, 2, 0, 0))
    own, others = _own_and_others()
    rows = {**_kept("architectures", own, lambda: _facts(own)), **(_facts(others) if others else {})}
    for name in sorted(rows):
        table.add_row(Text(name, "bold"), *rows[name])
    print_fitting(table, console)
    console.print("state: of one sequence in float32; where it grows, after 128 and after 1,024 tokens")
    return 0


def _own_and_others() -> tuple[list[str], list[str]]:
    """The names of the built-in architectures, and of those of other distributions, whose files may change unseen."""
    found = registry.entries(registry.ARCHITECTURE).values()
    own = [one.name for one in found if one.source.startswith(f"{registry.ARCHITECTURE.package}/")]
    return own, [one.name for one in found if one.name not in own]


def _facts(names: Sequence[str]) -> dict[str, list[str]]:
    """By name the family, the paper, the year, the parameters and the state of an architecture."""
    from regbench.models.build import build, resolve_options
    from regbench.models.model import parameter_count
    from regbench.models.state_size import state_at
    from regbench.report.content import human_bytes, human_growth
    from regbench.tracks import load_track

    found, task_io = {}, load_track("pfa-small-v1").task.io
    for name in names:
        cls = registry.load(registry.ARCHITECTURE, name)
        model = build(cls, resolve_options(cls, {}), task_io)
        paper = (cls.paper.authors, str(cls.paper.year)) if cls.paper else ("", "")
        held = model.state_bytes()
        state = human_growth(state_at(model.eval())) if held is None else human_bytes(held)
        found[name] = [cls.family, *paper, f"{parameter_count(model):,}", state]
    return found


def _kept(kind: str, key: Sequence[str], make: Callable[[], Any]) -> Any:
    """What `make` gives, which is plain: from the cache if it was made by the same code. To make it takes seconds."""
    code = registry.code_digest(("regbench", registry.ARCHITECTURE.package), ".py", ".yaml", ".csv")
    digest = hashlib.sha256("\n".join([kind, *key, code]).encode()).hexdigest()
    path = cache_root() / "listed" / f"{digest}.json"
    with contextlib.suppress(OSError, ValueError):
        return json.loads(kept_text(path))
    made = make()
    keep_text(path, json.dumps(made))
    return made


def _describe_architecture(name: str, console: Console) -> int:
    with apart_from_stdout():
        known = name in _own_and_others()[0]
        paper, options, defaults = _kept("options", [name], lambda: _options(name)) if known else _options(name)
    if paper:
        console.print(paper)
    console.print(_options_table(f"options of {registry.short_name(name)}, for --set", options))
    if defaults:
        print_line(f"its own training defaults: {defaults}", console)
    console.print("`regbench ls training` lists all training options")
    return 0


def _options(name: str) -> list[Any]:
    cls, paper = registry.load(registry.ARCHITECTURE, name), ""
    if cls.paper is not None:
        link = f", arXiv:{cls.paper.arxiv}" if cls.paper.arxiv else ""
        paper = f"{cls.paper.authors} ({cls.paper.year}). {cls.paper.title}{link}"
    defaults = " ".join(f"training.{key}={value}" for key, value in cls.training_defaults.items())
    return [paper, _fields(cls.Options), defaults]


def _fields(options: type[pydantic.BaseModel]) -> list[list[str]]:
    rows = []
    for key, field in options.model_fields.items():
        default = "required" if field.is_required() else repr(_as_set(field.get_default(call_default_factory=True)))
        rows.append([key, _type_name(field.annotation), default, field.description or ""])
    return rows


def _options_table(title: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("option", "type", "default", "meaning"):
        table.add_column(column, no_wrap=column == "option")
    for row in rows:
        table.add_row(*row)
    return table


def _compare_tracks(console: Console) -> int:
    """The length, vocabulary and budget of every track, how many entries it has, and how long they trained."""
    from regbench.leaderboard.store import board_files
    from regbench.tracks import track_names

    heads = ("", "longest", "tokens", "instances", "budget", "entries", "minutes")
    table = narrow_table("tracks", heads, 1, box=None)
    for name, row in _kept("tracks", board_files(), lambda: {one: _sizes(one) for one in track_names()}).items():
        table.add_row(Text(name, "bold"), *row)
    print_fitting(table, console)
    console.print(
        "longest: the greatest length that an instance can have; tokens: in the vocabulary, or "
        "-d: numbers in a vector; instances: of the training split; budget: tokens; "
        "minutes: of training one seed, the median over entries. `regbench ls` says what each track is.",
    )
    return 0


def _sizes(name: str) -> list[str]:
    """The longest instance, tokens, training instances and budget of a track, its entries, and the minutes that they trained."""
    from regbench.leaderboard.standing import Entries
    from regbench.tracks import load_track

    track, entries = load_track(name), Entries()
    definition, (longest, width), seconds = track.definition, track.task.extent(), entries.seconds(track)
    millions = definition.budget.train_tokens / 1e6
    budget = f"{millions:,.{0 if millions >= 100 else 1}f} M"
    trained = f"{seconds / 60:.0f}" if seconds else ""
    return [f"{longest:,}", width, f"{definition.splits.train:,}", budget, str(len(entries.names(track))), trained]


def _list_runs(folder: Path, console: Console) -> int:
    """A table for each track: the runs below a folder, newest first, with their main score or that they are not finished."""
    if not folder.is_dir() and folder == Path("runs"):
        console.print("no runs yet: `regbench run` makes them under runs/")
        return 0
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; runs are under runs/, or say where: regbench ls runs DIR")
    found = {path.parent for name in ("result.json", "config.yaml") for path in folder.rglob(name)}
    tables: dict[str, list[tuple[Path, list[str]]]] = {}
    for run in sorted(found, key=lambda path: (-path.stat().st_mtime, str(path))):
        track, cells = _run_cells(run)
        tables.setdefault(track, []).append((run, cells))
    for number, (track, rows) in enumerate(sorted(tables.items(), key=lambda item: item[0] == UNREADABLE)):
        if number:
            console.print()
        inside = Path(os.path.commonpath([run.parent for run, _ in rows]))
        console.print(Text.assemble((track, "bold"), f", in {inside}"), soft_wrap=True)
        shown = [[str(run.relative_to(inside)), *cells] for run, cells in rows]
        heads = ("folder", "architecture", "seeds", "main score", "normalized")
        table = narrow_table(None, heads, 2, shown, fold=2, box=None, padding=(0, 2, 0, 0))
        console.print(table)
    if not found:
        print_line(f"no runs in {folder}", console)
    return 0


def _run_cells(run: Path) -> tuple[str, list[str]]:
    from regbench.config import read_run
    from regbench.report.content import label
    from regbench.results import read_result

    try:
        if not (run / "result.json").exists():
            config = read_run(run)
            architecture = registry.short_name(config.architecture)
            # A run of a track file names the file until it has a result, which names the track.
            return Path(config.track).name.removesuffix(".yaml"), [architecture, str(len(config.seeds)), "not finished"]
        result = read_result(run)
    except UserError:
        return UNREADABLE, []
    main = result.track.main_score
    normalized = f"{100 * statistics.fmean(result.normalized):.0f}" if result.normalized else ""
    score = f"{label(main, result.track.name)} {result.score(main).value:.3f}"
    return result.track.name, [result.architecture.name, str(len(result.seeds)), score, normalized]


def _as_set(value: Any) -> Any:
    """A value as `--set` takes it: of an enumeration its own value, of a dataclass or a model its fields."""
    structured = is_dataclass(value) or isinstance(value, Enum | pydantic.BaseModel)
    return to_jsonable_python(value) if structured else value


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
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(repr(member.value) for member in annotation)
    if origin is not None:
        return f"{_type_name(origin)}[{', '.join(map(_type_name, arguments))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")
