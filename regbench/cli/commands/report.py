"""Write the page of one run: scores, curves, and where it errs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.lines import print_line
from regbench.utils.errors import UserError

DESCRIPTION = (
    "Writes DIR/report.html: the scores beside the baselines, the curves, and instances with the true and the predicted "
    "distributions of every token. The page needs no network and no server. The curves are drawn as PNG beside it, too. "
    "The folder may be a stranger's: nothing in it is executed."
)


def configure(report: argparse.ArgumentParser) -> None:
    report.add_argument("folder", metavar="DIR", help="the folder of a finished run")
    report.add_argument(
        "--instance",
        type=int,
        metavar="N",
        help="draw this test instance too, besides the worst, the median and the best",
    )
    report.add_argument("--track", metavar="FILE", help="the YAML file of a track of your own, if the run is on one")


def main(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.report.page import track_of, write_report
    from regbench.results import read_result
    from regbench.utils.files import explain_writing, runs_in

    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not the folder of a run{runs_in(folder)}")
    result = read_result(folder)
    track = track_of(result, folder, arguments.track)
    with explain_writing(folder):
        path = write_report(folder, result, track, arguments.instance)
    print_line(str(path), console)
    return 0
