"""Show what the heads of a trained model attend to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import add_instances, add_named
from regbench.cli.lines import print_line
from regbench.report.table import narrow_table, signed
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.analysis.attention import Ablation, Attention
    from regbench.analysis.trained import Trained
    from regbench.data.instances import Instances

DESCRIPTION = (
    "Measures what each head of a trained model attends to: the previous token, what followed the same token (match-1) or the "
    "same 2 or 3 tokens, the same hidden state (ICLL section 5.1, Figure 4). It prints the share of attention in each set, and "
    "writes attention.json, heads.png and a map of one instance for each kind of head in each layer. The weights may be a "
    "stranger's: no file that the folder names is executed unless you name it, too."
)
EXAMPLES = """\
examples:
  regbench attention runs/transformer
  regbench attention runs/transformer --ablate match        what the score is without these heads
  regbench attention runs/transformer --ablate 1.7,2.3 --split test
  regbench attention runs/mine --arch my_mixer.py           a mixer of your own that has weights(x)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a run folder")
    parser.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    add_instances(parser)
    parser.add_argument(
        "--ablate",
        metavar="HEADS",
        help="score the model again, with these heads attending to all of their past alike: LAYER.HEAD, a kind, match, previous; "
        "or several with commas",
    )
    parser.add_argument("--instance", type=int, default=0, metavar="N", help="the instance of the maps (default: 0)")
    parser.add_argument(
        "--range",
        metavar="A:B",
        help="the positions of the maps (default: 50:80, or the last 30 of a shorter instance)",
    )
    parser.add_argument("--out", metavar="DIR", help="where to write (default: DIR/attention, or DIR/attention-seed-N)")
    add_named(parser)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.analysis.attention import ablate, measure
    from regbench.analysis.trained import load_named
    from regbench.utils.files import explain_writing, require_writable, write_json

    if arguments.limit < 2:
        raise UserError(f"--limit {arguments.limit} is too few: two instances or more")
    trained = load_named(
        arguments.folder, arguments.seed, arguments.split, architecture=arguments.arch, track=arguments.track
    )
    instances = trained.track.instances(arguments.split)[: arguments.limit]
    if not 0 <= arguments.instance < len(instances):
        raise UserError(f"there is no instance {arguments.instance} among {len(instances)}")
    begin, end = _range(arguments.range, int(instances.lengths[arguments.instance]))
    name = "attention" if arguments.seed is None else f"attention-seed-{arguments.seed}"
    folder = Path(arguments.out) if arguments.out else trained.folder / name
    require_writable(folder)
    found = measure(trained, instances)
    chosen = found.chosen(arguments.ablate) if arguments.ablate is not None else []
    console.print(_table(trained, found, arguments.split))
    print_line(
        f"share of attention in each set, {found.queries:,} queries at positions from {found.first} on in {found.instances} "
        "instances; uniform: what attention to all of the past alike would have",
        console,
    )
    if found.coefficients:
        console.print("the rows are signed or unnormalised coefficients: shares are of their absolute values")
    for head in found.heads:
        if head.kind.startswith("match") and head.per_key:  # beside the keys that they do not match
            each = ", ".join(f"{name} {share.value:.1f}" for name, share in head.per_key.items())
            print_line(f"{head.name}: attention per key, uniform = 1: {each}", console)
    record = {
        "architecture": trained.architecture,
        "track": trained.track.name,
        "seed": trained.seed,
        "split": arguments.split,
        **to_jsonable_python(found),
    }
    if chosen:
        effect = ablate(trained, instances, chosen)
        record["ablation"] = to_jsonable_python(effect)
        console.print(_ablation_table(effect, arguments.ablate))
    with explain_writing(folder):
        write_json(folder / "attention.json", record)
        maps = _draw(trained, instances, found, folder, arguments.instance, begin, end)
    pictures = f"{maps} map{'s' * (maps != 1)}"
    print_line(f"attention.json, heads.png and {pictures}: {folder}", console)
    return 0


def _range(text: str | None, length: int) -> tuple[int, int]:
    if text is None:
        return (50, 80) if length >= 80 else (max(0, length - 30), length)
    begin, colon, end = text.partition(":")
    if not (colon and begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        raise UserError(f"--range takes two positions, such as 50:80, not '{text}'")
    if int(end) > length:
        raise UserError(f"--range {text} ends after the {length} tokens of the instance")
    return int(begin), int(end)


def _table(trained: Trained, found: Attention, split: str) -> Table:
    """A row for each head, narrow enough for 80 columns."""
    title = f"{trained.architecture} on {trained.track.name}, seed {trained.seed}, {split} split"
    short = {"previous": "prev.", "previous-2": "prev. 2", "separator": "sepa- rator", "only-state": "only state"}
    shown = [name for name in found.sets if name != "first"]
    names = [short.get(name, name.replace("match-", "match ").replace("only-m", "only m")) for name in shown]
    heads = ["head", "kind", *(name.replace(" ", "\n") for name in names)]
    table = narrow_table(title, heads, 2, padding=0, show_edge=False)
    table.add_row("", "uniform", *(_share(found.chance[name]) for name in shown), style="italic")
    for head in found.heads:
        cells = [_share(head.mass[name].value) for name in shown]
        table.add_row(head.name, head.kind, *cells, style=None if head.kind == "mixed" else "bold")
    return table


def _share(value: float) -> str:
    """A share with two decimals and a space before it: " .62"."""
    return f"  {value:.2f}".replace(" 0.", " .")


def _ablation_table(effect: Ablation, wanted: str) -> Table:
    title = f"without {wanted}: {', '.join(effect.heads)}"
    rows = [
        (name, f"{effect.before[name].value:.3f}", f"{effect.after[name].value:.3f}", signed(change))
        for name, change in effect.change.items()
    ]
    return narrow_table(title, ("score", "whole", "without", "change"), 1, rows, pad_edge=True)


def _draw(
    trained: Trained, instances: Instances, found: Attention, folder: Path, number: int, begin: int, end: int
) -> int:
    """Draws the pictures; returns the number of maps."""
    from regbench.analysis.attention import labels, maps, typical
    from regbench.analysis.pictures import plot_heads, plot_map

    title = f"{trained.architecture} on {trained.track.name}: share of each head's attention"
    plot_heads(found, title, folder / "heads.png")
    heads, read = typical(found), labels(trained, instances, number)
    for head, weights, marked in maps(trained, instances, number, heads):
        title = f"head {head.name}, {head.kind}: {trained.architecture}, instance {number}"
        title += "" if marked is None else f"; ringed: the keys of {head.kind}"
        plot_map(weights, marked, read, (begin, end), title, folder / f"map-{head.name}.png")
    return len(heads)
