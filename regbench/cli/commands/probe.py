"""Probe the hidden states of trained models for counts, frequencies and states."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import add_named
from regbench.cli.lines import print_line, stderr
from regbench.report.table import narrow_table, small_error
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
    "takes about a minute or two for a run of two layers. The weights may be a stranger's: no file that the folder names is "
    "executed unless you name it, too."
)
EXAMPLES = """\
examples:
  regbench probe runs/transformer
  regbench probe runs/transformer runs/mamba runs/lstm --what frequencies,existence --out probes.png --csv probes.csv
  regbench probe runs/mine --arch my_mixer.py
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="+", metavar="DIR", help="run folders on one track")
    parser.add_argument("--what", default=WHAT, metavar="W,W,...", help=f"what to probe for (default: {WHAT})")
    parser.add_argument("--seed", type=int, metavar="N", help="which model of each run (default: its first)")
    parser.add_argument("--out", metavar="FILE.png", help="draw a picture there")
    parser.add_argument("--csv", metavar="FILE", help="write every reading there, of all layers and controls")
    add_named(parser)


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.analysis.probes import check_probed, chosen_targets, probe
    from regbench.analysis.trained import load_named, run_names
    from regbench.utils.files import explain_writing, require_writable_files

    if arguments.out and not arguments.out.endswith(".png"):
        raise UserError(f"--out takes the name of a PNG picture, not '{arguments.out}'")
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
    with explain_writing(Path(arguments.out or arguments.csv or ".").parent):
        if arguments.out:
            from regbench.analysis.pictures import plot_probes

            plot_probes(found, f"What probes read from hidden states: {tracks[0]}, test split", Path(arguments.out))
            print_line(f"picture: {arguments.out}", console)
        if arguments.csv:
            _write_csv(found, Path(arguments.csv))
            print_line(f"every reading: {arguments.csv}", console)
    return 0


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
