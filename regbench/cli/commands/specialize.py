"""Fold a prompt into a trained model's weights: an ordinary, smaller model that needs no prompt."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from regbench.cli.arguments import add_named
from regbench.utils.errors import UserError
from regbench.utils.files import require_writable

DESCRIPTION = (
    "Makes an ordinary model of a trained model with a summary of its context. The summary of a prompt is folded into the "
    "weights, which are written as safetensors."
)
EXAMPLES = """\
examples:
  regbench run --arch cgt --out my-run
  regbench specialize my-run --prompt prompt.txt
  regbench specialize my-run --prompt prompt.txt --generate 40
  regbench specialize my-run --prompt prompt.txt --generate 40 --moving-average 0.01
"""


def configure(specialize: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    specialize.add_argument("folder", metavar="DIR", help="the run folder")
    specialize.add_argument(
        "--prompt",
        required=True,
        metavar="FILE",
        help="names of tokens; for vectors, one a line; for tasks of text, plain text",
    )
    specialize.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    specialize.add_argument(
        "--out",
        metavar="FILE",
        help="where to write (default: DIR/specialised.safetensors, with --seed DIR/specialised-seed-N.safetensors)",
    )
    specialize.add_argument("--generate", type=int, metavar="N", help="also generate N tokens after the prompt")
    specialize.add_argument(
        "--moving-average",
        type=float,
        metavar="RATE",
        help="generate with the whole model; y starts at the prompt's, and follows that of each token by this share",
    )
    specialize.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="of generation (default: 1; 0: always the most likely token)",
    )
    add_named(specialize)


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Calls the analysis that the architecture brings with it."""
    from regbench.analysis.of_architecture import analysis_of
    from regbench.analysis.trained import load_named

    rate = arguments.moving_average
    if rate is not None and not 0.0 < rate <= 1.0:
        raise UserError(f"--moving-average {rate:g} is not above 0 and at most 1")
    for option, value in (("--moving-average", rate), ("--temperature", arguments.temperature)):
        if value is not None and arguments.generate is None:
            raise UserError(f"{option} is for generated text: give --generate too")
    named = {"architecture": arguments.arch, "track": arguments.track}
    trained = load_named(arguments.folder, arguments.seed, "validation", **named, read_track=True)
    name = "specialised" if arguments.seed is None else f"specialised-seed-{arguments.seed}"
    analysis = analysis_of(arguments.arch or trained.architecture)
    file = Path(arguments.out) if arguments.out else trained.folder / f"{name}.safetensors"
    require_writable(file.parent)
    analysis.specialize_run(
        trained,
        Path(arguments.prompt),
        file,
        generate=arguments.generate,
        rate=rate,
        temperature=1.0 if arguments.temperature is None else arguments.temperature,
        console=console,
    )
    return 0
