"""train an architecture on a track, score it, write a result"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from regbench.commands._progress import Drawing
from regbench.commands._settings import add_settings, read_settings
from regbench.errors import UserError

DESCRIPTION = (
    "Trains an architecture on a track, scores it on unseen instances beside the baselines, writes a run folder."
)


def configure(run: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    run.add_argument(
        "--arch", default="mamba", metavar="NAME|FILE[:CLASS]", help="a name from `regbench ls`, or your own file"
    )
    run.add_argument(
        "--track", default="pfa-small-v1", metavar="T", help="a name from `regbench ls tracks`, or a YAML file"
    )
    run.add_argument(
        "--seed", type=int, nargs="+", default=[0], metavar="N", help="one model is trained for each (default: 0)"
    )
    add_settings(
        run, "an option of the architecture (`regbench ls architectures NAME` lists them), or training.KEY=VALUE"
    )
    run.add_argument("--ngram-heads", metavar="N,N,...", help="put n-gram heads of these orders into the architecture")
    run.add_argument("--ngram-after", metavar="M,...", help="after which blocks, counted from 1 (default: 1)")
    run.add_argument(
        "--backend",
        default="auto",
        metavar="B",
        help="form of the ops: auto (default), naive, cpu, mamba-ssm, ...; or OP=B,OP=B for some of them",
    )
    run.add_argument("--device", default="auto", metavar="D", help="cpu, cuda, or auto (default)")
    run.add_argument(
        "--trials", type=int, default=1, metavar="N", help="configurations tried on validation before this; recorded"
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="the run folder (default: a new one under runs/)")
    where.add_argument("--resume", metavar="DIR", help="go on with an interrupted run; its config.yaml says with what")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Trains and scores."""
    # Imported here: PyTorch takes seconds to load, and `--help` should not.
    from regbench import runner
    from regbench.tables import result_table

    # What is going on goes to stderr, so that stdout holds the table alone.
    with Drawing(Console(stderr=True)) as reporter:
        try:
            if arguments.resume:
                result = runner.resume(arguments.resume, reporter)
            else:
                result = runner.run(
                    arguments.track,
                    arguments.arch,
                    arguments.seed,
                    settings=read_settings(_ngram_settings(arguments) + arguments.settings),
                    backend=arguments.backend,
                    device=arguments.device,
                    trials=arguments.trials,
                    out=arguments.out,
                    reporter=reporter,
                )
        except KeyboardInterrupt:
            folder = reporter.folder
            hint = f"; go on with: regbench run --resume {folder}" if folder else ""
            print(f"regbench: interrupted{hint}", file=sys.stderr)
            return 130
    console.print(result_table(result))
    seed = result.seeds[0]
    console.print(
        f"{result.architecture.parameters:,} parameters, {seed.tokens:,} training tokens in {seed.seconds:.0f} s "
        f"({seed.tokens_per_second:,.0f} tokens/s), ± is one standard error",
        highlight=False,
    )
    if reporter.folder:
        console.print(f"result and pictures: {reporter.folder}", highlight=False, soft_wrap=True)
        console.print(f"the page of this run: {reporter.folder}/report.html", highlight=False, soft_wrap=True)
    return 0


def _ngram_settings(arguments: argparse.Namespace) -> list[str]:
    """--ngram-heads and --ngram-after as what they are short for."""
    if arguments.ngram_after and not arguments.ngram_heads:
        raise UserError("--ngram-after says where --ngram-heads stand: give those too")
    flags = {"ngram_heads": arguments.ngram_heads, "ngram_after": arguments.ngram_after}
    return [f"{key}=[{value}]" for key, value in flags.items() if value]
