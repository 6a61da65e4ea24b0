"""Probe the hidden states of trained models for counts, frequencies and states."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from regbench.analysis.tables import narrow_table
from regbench.cli.arguments import add_named
from regbench.cli.lines import print_line, stderr
from regbench.cli.tables import small_error
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.analysis.probes import Reading
    from regbench.results import ScoreRecord

WHAT = "counts,frequencies,existence,state"
DESCRIPTION = (
    "Trains small MLPs and linear maps to read numbers from a model's hidden states: how often, how frequently and whether a "
    "symbol has followed the last n - 1 tokens, and whether two places have the same state (ICLL section 5.2, Figure 5). Probes "
    "are trained on the training split. The layer is chosen on the validation split. Readings are of the test split. Beside them "
    "stand controls: a constant, the last three tokens, the untrained model, another instance's state, the true counts. It "
    "takes about a minute or two for a run of two layers. `--what recall` probes weights instead: what the memories of "
    "associative_memory recall over training, and in which order they are learned. The weights may be a stranger's: no file that "
    "the folder names is executed unless you name it, too."
)
EXAMPLES = """\
examples:
  regbench probe runs/transformer
  regbench probe runs/transformer runs/mamba runs/lstm --what frequencies,existence --out probes.png --csv probes.csv
  regbench probe runs/mine --arch my_mixer.py
  regbench probe runs/am --what recall --expect o2,k2,k1 --out am.png    exit code 1 if the order is another
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="+", metavar="DIR", help="run folders on one track")
    parser.add_argument(
        "--what", default=WHAT, metavar="W,W,...", help=f"what to probe for (default: {WHAT}), or recall"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="which model of each run (default: its first)")
    parser.add_argument("--out", metavar="FILE.png", help="draw a picture there")
    parser.add_argument("--csv", metavar="FILE", help="write every reading there, of all layers and controls")
    parser.add_argument(
        "--expect", metavar="M,M,...", help="with recall: exit code 1 if memories are learned in another order"
    )
    add_named(parser)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.analysis.probes import check_probed, chosen_targets, probe
    from regbench.analysis.trained import load_named, run_names
    from regbench.utils.files import explain_full_disk, require_writable_files

    if arguments.out and not arguments.out.endswith(".png"):
        raise UserError(f"--out takes the name of a PNG picture, not '{arguments.out}'")
    if "recall" in map(str.strip, arguments.what.split(",")):
        return _show_recall(arguments, console)
    if arguments.expect:
        raise UserError("--expect is the order in which memories are learned: it goes with --what recall")
    targets = chosen_targets(arguments.what)
    if arguments.arch and len(arguments.folder) > 1:
        raise UserError("--arch is for one run: probe the run of your own architecture alone")
    runs = [
        load_named(folder, arguments.seed, "validation", architecture=arguments.arch, track=arguments.track)
        for folder in arguments.folder
    ]
    tracks = list(dict.fromkeys(run.track.name for run in runs))
    if len(tracks) > 1:
        raise UserError(f"the runs are on several tracks: {', '.join(tracks)}")
    for run in runs:
        check_probed(run, targets)
    require_writable_files(arguments.out, arguments.csv)
    names = run_names(arguments.folder)
    progress, found = stderr(), {}
    for name, run in zip(names, runs, strict=True):

        def announce(text: str, name: str = name) -> None:
            print_line(f"{name}: {text}", progress)

        found[name] = probe(run, targets, announce=announce)
        console.print(_table(f"{name}: {run.architecture} on {tracks[0]}, seed {run.seed}", found[name]))
    console.print(
        "relative error (less is better) of counts and frequencies, accuracy (more is better) of the rest, on the test split.\n"
        "trained: an MLP on the layer that is best on validation; linear: a linear map; untrained: before training;\n"
        "constant, tokens (the last 3), shuffled (another instance's state): without the state; ceiling: on the true counts",
        soft_wrap=True,
    )
    with explain_full_disk(Path(arguments.out or arguments.csv or ".").parent):
        if arguments.out:
            from regbench.analysis.pictures import plot_probes

            plot_probes(found, f"What probes read from hidden states: {tracks[0]}, test split", Path(arguments.out))
            print_line(f"picture: {arguments.out}", console)
        if arguments.csv:
            _write_csv(found, Path(arguments.csv))
            print_line(f"every reading: {arguments.csv}", console)
    return 0


def _show_recall(arguments: argparse.Namespace, console: Console) -> int:
    """What memories recall at the end of training, and when they were learned, from the logs of runs."""
    from regbench.analysis.recall import CHANCE, RECALL, in_order, learned_at, plot_recall, read_measured, write_csv
    from regbench.utils.files import explain_full_disk

    if arguments.what != "recall":
        raise UserError("--what recall is read from the log of a training: give it alone")
    if arguments.seed is not None or arguments.arch or arguments.track:
        raise UserError("--what recall shows every seed, and loads no weights: leave out --seed, --arch and --track")
    found = [one for folder in arguments.folder for one in read_measured(folder)]
    expected = arguments.expect.split(",") if arguments.expect else []
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for place, head in enumerate(("run", "seed", "memory", "recall", "chance", "half learned at step")):
        table.add_column(head, justify="right" if place > 2 or place == 1 else "left", no_wrap=True)
    right = True
    for one in found:
        right = right and (not expected or in_order(one, expected))
        for memory in one.memories():
            chance, step = one.figures.get(CHANCE + memory), learned_at(one, memory)
            last = f"{one.figures[RECALL + memory][-1]:.3f}"
            cells = (f"{chance[0]:.3f}" if chance else "", "never" if step is None else f"{step:,}")
            table.add_row(one.run.name, str(one.seed), memory, last, *cells)
    console.print(table)
    with explain_full_disk(Path(arguments.out or arguments.csv or ".").parent):
        if arguments.out:
            plot_recall(found, Path(arguments.out))
            print_line(f"picture: {arguments.out}", console)
        if arguments.csv:
            write_csv(found, Path(arguments.csv))
            print_line(f"every figure: {arguments.csv}", console)
    if expected:
        order = " before ".join(expected)
        console.print(f"{order}: {'yes' if right else 'not in every seed'}")
    return 0 if right else 1


def _table(title: str, readings: Sequence[Reading]) -> Table:
    """A row for each target, narrow enough for 80 columns."""
    controls = ("un-\ntrained", "con-\nstant", "tokens", "shuf-\nfled", "ceil-\ning")
    heads = ("target", "trained", "layer", "linear", *controls)
    table = narrow_table(title, heads, 1, padding=0, pad_edge=True, show_edge=False)
    for one in readings:
        others = (one.untrained, one.constant, one.tokens, one.shuffled, one.ceiling)
        table.add_row(
            one.target,
            f"{one.trained.value:.3f} {small_error(one.trained.stderr)}",
            str(one.layer),
            f" {one.linear.value:.3f}",
            *(f" {record.value:.3f}" for record in others),
        )
    return table


def _write_csv(found: Mapping[str, Sequence[Reading]], path: Path) -> None:
    """Writes a row for each run, target and source; of the model and the untrained model one for each layer."""
    from regbench.utils.files import write_rows

    rows = []
    for run, readings in found.items():
        for one in readings:
            of: list[tuple[str, int | str, bool, ScoreRecord]] = [
                *(("trained", i, i == one.layer, record) for i, record in enumerate(one.layers, 1)),
                *(
                    ("untrained", i, i == one.untrained_layer, record)
                    for i, record in enumerate(one.untrained_layers, 1)
                ),
                ("linear", one.linear_layer, True, one.linear),
                ("shuffled", one.layer, True, one.shuffled),
                ("tokens", "", True, one.tokens),
                ("constant", "", True, one.constant),
                ("ceiling", "", True, one.ceiling),
            ]
            for source, layer, best, record in of:
                numbers = [f"{record.value:.6f}", f"{record.stderr:.6f}"]
                rows.append([run, one.target, one.metric, source, layer, int(best), *numbers])
    write_rows(path, ["run", "target", "metric", "source", "layer", "best", "value", "stderr"], rows)
