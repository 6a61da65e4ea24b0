"""Write the page of one run: scores, curves, and where it errs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.utils.errors import UserError

DESCRIPTION = (
    "Writes DIR/report.html: the scores beside the baselines, the curves, and instances with the true and the predicted "
    "distributions of every token. The page needs no network and no server. The curves are drawn as PNG beside it, too."
)


def configure(report: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    report.add_argument("folder", type=Path, metavar="DIR", help="the folder of a finished run")
    report.add_argument(
        "--instance",
        type=int,
        metavar="N",
        help="draw this test instance too, besides the worst, the median and the best",
    )


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Writes the page and says where it is."""
    from regbench.report import track_of, write_report
    from regbench.results import read_result
    from regbench.utils.files import explain_full_disk

    folder: Path = arguments.folder
    if not folder.is_dir():
        raise UserError(f"{folder} is not the folder of a run")
    if not (folder / "result.json").exists() and (folder / "config.yaml").exists():
        raise UserError(f"{folder} holds a run that is not finished; go on with: regbench run --resume {folder}")
    result = read_result(folder)
    track = track_of(folder, result)
    with explain_full_disk(folder):
        path = write_report(folder, result, track, arguments.instance)
    console.print(str(path), highlight=False, soft_wrap=True, markup=False)
    return 0
