"""Fold a prompt into a trained model's weights: an ordinary model, smaller and without the prompt."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regbench.utils.errors import UserError

DESCRIPTION = (
    "Makes an ordinary model of a trained one that keeps a summary of its context: the summary of a prompt is frozen and "
    "folded into the weights, which are written as safetensors. regbench.analysis.specialised.load_specialised reads them."
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
        help="the tokens by their names, a vector a line, or for tasks of text plain text",
    )
    specialize.add_argument("--seed", type=int, metavar="N", help="which of its models (default: the first)")
    specialize.add_argument(
        "--out",
        metavar="FILE",
        help="where to write (default: DIR/specialised.safetensors, with --seed DIR/specialised-seed-N.safetensors)",
    )
    specialize.add_argument("--generate", type=int, metavar="N", help="also print N tokens generated behind the prompt")
    specialize.add_argument(
        "--moving-average",
        type=float,
        metavar="RATE",
        help="generate with the whole model, y moving from the prompt's by this much of each token's own",
    )
    specialize.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="of generation (default: 1; 0: most likely; else 0.001 or more)",
    )


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Writes the file; prints what is saved by it."""
    from regbench.analysis.prompt import Encodes, read_prompt, write_tokens
    from regbench.analysis.specialised import (
        check_generation,
        check_temperature,
        generate,
        save_specialised,
        share_trained,
        specialise,
    )
    from regbench.analysis.trained import load_trained
    from regbench.report.words import human_bytes

    rate = arguments.moving_average
    if rate is not None and not 0.0 < rate <= 1.0:
        raise UserError(f"--moving-average {rate:g} is not above 0 and at most 1")
    if rate is not None and arguments.generate is None:
        raise UserError("--moving-average says how y moves in generated text: give --generate too")
    check_temperature(arguments.temperature)
    trained = load_trained(arguments.folder, arguments.seed)
    io = trained.track.task.io
    if arguments.generate is not None:
        check_generation(trained, arguments.generate)
    coder = trained.track.task if isinstance(trained.track.task, Encodes) else None
    prompt = read_prompt(arguments.prompt, io, coder)
    special = specialise(trained, prompt)
    name = "specialised" if arguments.seed is None else f"specialised-seed-{arguments.seed}"
    path = Path(arguments.out) if arguments.out else trained.folder / f"{name}.safetensors"
    save_specialised(path, special, trained, prompt)

    table = Table(title=f"a prompt of {len(prompt)} tokens, a text of {special.text}", title_justify="left")
    for column in ("", "whole model,\nwith the prompt", "specialised", "saved"):
        table.add_column(column, justify="left" if not column else "right")
    before, after = special.with_prompt, special.alone
    for what, old, new, shown in (
        ("parameters", before.parameters, after.parameters, "{:,.0f}".format),
        ("operations a token of the text", before.flops, after.flops, "{:,.0f}".format),
        ("state of a stream", before.state_bytes, after.state_bytes, lambda n: human_bytes(int(n))),
    ):
        table.add_row(what, shown(old), shown(new), f"{100 * (1 - new / old):.0f} %")
    console.print(table)
    console.print(
        f"largest difference to the frozen model: {special.difference:.1e} of the largest output", highlight=False
    )
    console.print(f"written: {path}", highlight=False, soft_wrap=True)
    if arguments.generate is not None:
        if rate is None:
            source, state = special.model, special.model.init_state(1)  # type: ignore[operator]
        else:
            source = trained.model
            state = source.init_state(1, source.summary(prompt[None]), rate)  # type: ignore[operator]
        share = share_trained(trained)
        if share < 1.0:
            console.print(
                f"{trained.track.name} trains the prediction of {share:.0%} of its tokens only: what is generated in place of "
                "the others is noise",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        tokens = generate(source, state, io.separator, arguments.temperature, trained.seed)
        text = write_tokens(list(itertools.islice(tokens, arguments.generate)), io.names, coder)
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 0
