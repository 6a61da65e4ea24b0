"""Measure what the summaries of trained models know about their context."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import add_instances, refuse_unused
from regbench.cli.lines import print_line, stderr, tell, under_way
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_writing, require_writable, write_json

if TYPE_CHECKING:
    from papers.cgt.table import RunTable
    from regbench.analysis.trained import Trained

DESCRIPTION = (
    "Measures a trained model with a summary y of its context: its scores with a prompt and specialised to it, how fast y "
    "changes, linear probes of y, activation patching of y. It writes analysis.json and pictures. For several runs on one track, "
    "or with --table or --cuts, it makes a table with a row for each run, over all seeds. In a table, models without y have base "
    "scores."
)
EXAMPLES = """\
examples:
  regbench analyze runs/cgt
  regbench analyze runs/transformer runs/cgt-plain runs/cgt --table table.md
  regbench analyze runs/transformer runs/cgt --cuts 2,4,8 --table figure-4.md
  regbench analyze runs/cgt --against runs/transformer
  regbench analyze runs/transformer --task-vectors
"""


def configure(analyze: argparse.ArgumentParser) -> None:
    analyze.add_argument("folder", nargs="+", metavar="DIR", help="a run folder; several: a table")
    analyze.add_argument(
        "--table",
        metavar="FILE.md",
        help="write the table there, with FILE.json and FILE.png",
    )
    analyze.add_argument(
        "--cuts",
        metavar="N,N,...",
        help="in the table, freeze y after these numbers of examples, one after another (default: half of the examples)",
    )
    add_instances(analyze)
    one = analyze.add_argument_group("one run")
    one.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    one.add_argument("--rate", type=float, metavar="G", help="of the moving average of y (default: 1/300)")
    one.add_argument(
        "--against",
        metavar="DIR",
        help="compare with the first model of this run, which reads the texts without prompts",
    )
    one.add_argument(
        "--track",
        metavar="TRACK",
        help="read another track than the run's, with the same tokens and no longer instances; or the YAML file of "
        "the run's own, if its task is a file",
    )
    one.add_argument("--arch", metavar="FILE", help="FILE.py[:CLASS], if the run is of an architecture of your own")
    one.add_argument(
        "--task-vectors",
        action="store_true",
        help="measure task vectors instead, of any model with blocks: one activation of the prompt is put into the text",
    )
    one.add_argument("--out", metavar="DIR", help="where to write (default: DIR/analysis, or DIR/analysis-seed-N)")


def main(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.limit < 4:
        raise UserError(f"--limit {arguments.limit} is too few: four instances or more")
    if len(arguments.folder) == 1 and arguments.table is arguments.cuts is None:
        return _one(arguments, console)
    alone = ("seed", "rate", "out", "against", "arch", "task_vectors")
    refuse_unused(arguments, alone, "is for one run without --table and --cuts; a table is over all seeds")
    return _several(arguments, console)


def _one(arguments: argparse.Namespace, console: Console) -> int:
    from papers.cgt.modes import has_summary
    from papers.cgt.study import study
    from regbench.analysis.trained import load_to_ask

    rate = 1 / 300 if arguments.rate is None else arguments.rate
    if not 0.0 <= rate <= 1.0:
        raise UserError(f"--rate {rate:g} is not between 0 and 1")
    named = {"architecture": arguments.arch, "track": arguments.track}
    trained = load_to_ask(arguments.folder[0], arguments.seed, arguments.split, **named)
    name = "analysis" if arguments.seed is None else f"analysis-seed-{arguments.seed}"
    folder = Path(arguments.out) if arguments.out else trained.folder / name
    title = f"{trained.architecture} on {trained.track.name}, seed {trained.seed}, {arguments.split}"
    if arguments.task_vectors:
        refuse_unused(arguments, ("rate", "against"), "is not for --task-vectors")
        require_writable(folder)
        return _task_vectors(trained, folder, title, arguments, console)
    if not has_summary(trained.model):
        raise UserError(
            f"'{trained.architecture}' has no summary of its context to analyze: cgt and fast_slow have one"
        )
    other = None if arguments.against is None else _other(trained, arguments)
    require_writable(folder)
    found = study(
        trained, folder, split=arguments.split, limit=arguments.limit, rate=rate, against=other, announce=tell
    )
    _print(title, "after the prompt", "", found.lines, console)
    print_line(f"pictures and analysis.json: {folder}", console)
    return 0


def _print(title: str, first: str, second: str, rows: dict[str, str], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for head in (first, second):
        table.add_column(head)
    for row in rows.items():
        table.add_row(*row)
    console.print(table)


def _other(trained: Trained, arguments: argparse.Namespace) -> Trained:
    """The first model of the run to compare with, on the same track."""
    from regbench.analysis.trained import load_to_ask

    other = load_to_ask(arguments.against, None, arguments.split, architecture=None, track=arguments.track)
    if other.track.definition.digest != trained.track.definition.digest:
        raise UserError(f"{arguments.against} is on {other.track.name}, and {trained.folder} on {trained.track.name}")
    return other


def _task_vectors(trained: Trained, folder: Path, title: str, arguments: argparse.Namespace, console: Console) -> int:
    """What one activation from the end of the prompt does for the text."""
    from papers.cgt.task_vectors import task_vectors
    from regbench.metrics.metric import METRICS

    with under_way(stderr()) as step:
        step("measuring task vectors")
        found = task_vectors(trained, arguments.split, arguments.limit)
    rows = {"the prompt and the text": str(found.prompted)}
    for place, score in found.task_vector.items():
        rows[f"the text, with a vector at the {place} (block {found.block[place]})"] = str(score)
    rows["the text"] = str(found.unprompted)
    _print(title, "what is read", METRICS[found.metric].label, rows, console)
    content = {
        "track": trained.track.name,
        "architecture": trained.architecture,
        "seed": trained.seed,
        "split": arguments.split,
        **to_jsonable_python(found),
    }
    path = folder / "task_vectors.json"
    write_json(path, content)
    print_line(f"written: {path}", console)
    return 0


def _several(arguments: argparse.Namespace, console: Console) -> int:
    from papers.cgt import table_forms
    from papers.cgt.table import tabulate
    from regbench.analysis.trained import own_track

    file = Path(arguments.table) if arguments.table is not None else None
    if file is not None and file.suffix != ".md":
        raise UserError(f"--table takes the name of a Markdown file, FILE.md, not '{file}'")
    cuts, track = _cuts(arguments.cuts), arguments.track
    if track is not None and any(own_track(folder, track) is None for folder in arguments.folder):
        raise UserError("--track names another track for one run without --table and --cuts, not for a table")
    found = tabulate(
        arguments.folder, split=arguments.split, limit=arguments.limit, cuts=cuts, announce=tell, track=track
    )
    console.print(table_forms.terminal(found))
    print_line(table_forms.notes(found), console)
    if file is not None:
        _write(found, file, console)
    return 0


def _write(found: RunTable, path: Path, console: Console) -> None:
    """Writes the Markdown, the JSON and, on tracks of examples, a picture."""
    from papers.cgt import table_forms
    from papers.cgt.pictures import plot_examples

    written = [path, path.with_suffix(".json")]
    with explain_writing(path.parent):
        with atomic_write(path) as file:
            file.write(table_forms.markdown(found))
        write_json(written[1], table_forms.as_json(found))
        if any(row.by_example for row in found.rows):
            written.append(path.with_suffix(".png"))
            plot_examples(found, written[-1])
    print_line(f"written: {', '.join(map(str, written))}", console)


def _cuts(text: str | None) -> list[int]:
    """The numbers of a list such as "2,4,8"."""
    try:
        return [int(part) for part in text.split(",")] if text is not None else []
    except ValueError:
        raise UserError(f"--cuts takes whole numbers with commas between them, such as 2,4,8, not '{text}'") from None
