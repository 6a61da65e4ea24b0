"""Fold a prompt into a trained model's weights: an ordinary, smaller model that needs no prompt."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regbench.cli.arguments import add_named
from regbench.cli.lines import print_line
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
  regbench specialize my-run --prompt prompt.txt --generate 40 --moving-average 0.01
"""


def configure(specialize: argparse.ArgumentParser) -> None:
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
    from papers.cgt import prompts
    from regbench.analysis.trained import load_named
    from regbench.report.content import human_bytes

    rate, count = arguments.moving_average, arguments.generate
    if rate is not None and not 0.0 < rate <= 1.0:
        raise UserError(f"--moving-average {rate:g} is not above 0 and at most 1")
    for option, value in (("--moving-average", rate), ("--temperature", arguments.temperature)):
        if value is not None and count is None:
            raise UserError(f"{option} is for generated text: give --generate too")
    temperature = 1.0 if arguments.temperature is None else arguments.temperature
    if not 0.0 <= temperature < float("inf"):
        raise UserError(f"--temperature {temperature:g} is not 0, the most likely, or a number above it")
    if count is not None and count < 1:
        raise UserError(f"--generate {count} is not a number of tokens: 1 or more")
    named = {"architecture": arguments.arch, "track": arguments.track}
    trained = load_named(arguments.folder, arguments.seed, "validation", **named, read_track=True)
    name = "specialised" if arguments.seed is None else f"specialised-seed-{arguments.seed}"
    file = Path(arguments.out) if arguments.out else trained.folder / f"{name}.safetensors"
    require_writable(file.parent)
    if count is not None and trained.track.task.io.kind == "vectors":
        raise UserError(f"{trained.track.name} is a task of vectors: only tokens are generated")
    tokens = prompts.read_prompt(Path(arguments.prompt), trained.track.task)
    special = prompts.specialise(trained, tokens)
    prompts.save_specialised(file, special, trained, tokens)
    table = Table(title=f"a prompt of {len(tokens)} tokens, a text of {special.text}", title_justify="left")
    for column in ("", "whole model,\nwith the prompt", "specialised", "saved"):
        table.add_column(column, justify="left" if not column else "right")
    before, after = special.with_prompt, special.alone
    for what, old, new, shown in (
        ("parameters", before.parameters, after.parameters, "{:,.0f}".format),
        ("operations per token of the text", before.flops, after.flops, "{:,.0f}".format),
        ("state of a sequence", before.state_bytes, after.state_bytes, lambda n: human_bytes(int(n))),
    ):
        table.add_row(what, shown(old), shown(new), f"{100 * (1 - new / old):.0f} %")
    console.print(table)
    apart = f"{special.difference:.1e} of the largest output"
    console.print(f"largest difference to the whole model with a constant y: {apart}")
    print_line(f"written: {file}", console)
    if count is not None:
        share = prompts.share_trained(trained)
        if share < 1.0:
            only = f"{trained.track.name} trains the prediction of only {share:.0%} of its tokens"
            print_line(f"{only}; the other generated tokens are noise", console)
        drawn = prompts.generate(trained, special.model, tokens, count, rate, temperature)
        text = prompts.write_tokens(drawn, trained.track.task)  # it may have several lines
        console.print(text, soft_wrap=True)
    return 0
