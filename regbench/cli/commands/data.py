"""Show the statistics and one instance of a track, or write it as Parquet."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.lines import print_line
from regbench.report.table import narrow_table, print_fitting
from regbench.utils.errors import UserError


def configure(data: argparse.ArgumentParser) -> None:
    data.add_argument("track", metavar="TRACK", help="a name from `regbench ls tracks`, or a YAML file")
    what = data.add_mutually_exclusive_group()
    what.add_argument("--fingerprint", action="store_true", help="print only the fingerprints of its splits")
    what.add_argument(
        "--to", metavar="DIR", help="write every split there as Parquet, which `datasets.load_dataset` reads"
    )
    what.add_argument("--instance", type=int, default=0, metavar="N", help="which test instance to draw (default: 0)")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.checks.task import CONTRACT, examine_task
    from regbench.tracks import SPLITS, load_track

    track = load_track(arguments.track)
    splits = {split: track.instances(split) for split in SPLITS}
    examine_task(track)
    if arguments.fingerprint:
        for split, instances in splits.items():
            print(f"{split} {instances.fingerprint}")
        return 0
    if arguments.to is not None:
        from regbench.tracks.parquet import write_parquet

        for path in write_parquet(track, Path(arguments.to)):
            print_line(str(path), console)
        return 0
    test = splits["test"]
    if not 0 <= arguments.instance < len(test):
        raise UserError(f"there is no test instance {arguments.instance}: they are numbered 0 to {len(test) - 1}")
    record = track.freeze()
    table = narrow_table(f"{track.name}: task {track.definition.task}", ["", *SPLITS], 1)
    for name in dict.fromkeys(name for split in SPLITS for name in record["statistics"][split]):
        values = (record["statistics"][split].get(name) for split in SPLITS)  # a split need not have all of them
        table.add_row(name.replace("_", " "), *map(_number, values))
    table.add_row("fingerprint", *(record["fingerprints"][split][:12] for split in SPLITS))
    print_fitting(table, console)
    overlap = ", ".join(f"{pair.replace('/', ' and ')} {count}" for pair, count in record["overlap"].items())
    console.print(f"shared between splits: {overlap}")
    source = track.task.source_name()
    if source is not None:
        print_line(f"text: {source}; with another, fingerprints are others", console)
    console.print(f"budget: {track.definition.budget.train_tokens:,} training tokens")
    console.print(f"the task keeps its contract: {len(CONTRACT)} checks")
    console.print()
    with track.blaming_task():
        shown = track.task.show(test, arguments.instance)
    console.print(shown, soft_wrap=True)
    return 0


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"
