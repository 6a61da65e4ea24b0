"""Score a language model of the Hugging Face Hub, or a run, on a track."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from regbench.cli.arguments import one_of, refuse_unused
from regbench.cli.lines import print_line, stderr
from regbench.utils.errors import UserError

DESCRIPTION = (
    "Scores a causal language model that regbench has not trained, beside the baselines of a track. Each symbol becomes one "
    "token of its vocabulary, drawn at random, once for each mapping. Needs the extra `hf`. Of a run, one seed is scored on a "
    "track with the same tokens, such as one with other lengths."
)
EXAMPLES = """\
examples:
  regbench evaluate hf:gpt2 --limit 50                          50 instances of pfa-small-v1, three mappings
  regbench evaluate hf:./my-model --track assoc-recall-small-v1 --mapping 0 1 2 3 4 --out runs/my-model
  regbench evaluate hf:gpt2 --separator " |" --prompt "Strings of one language:" --symbols words
  regbench evaluate runs/mine --track shorter-v1.yaml --baselines oracle,3-gram

Other models: regbench.evaluate in Python scores any module, function or array.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="hf:NAME|hf:DIR|DIR", help="a model of the Hub, a folder with one, or a run folder"
    )
    parser.add_argument(
        "--track", default="pfa-small-v1", metavar="T", help="a track of symbols (default: pfa-small-v1)"
    )
    parser.add_argument("--split", type=one_of("test", "validation"), default="test", metavar="S", help="default: test")
    parser.add_argument(
        "--mapping",
        type=int,
        nargs="+",
        metavar="N",
        help="seeds of the draws of tokens for the symbols (default: 0 1 2)",
    )
    parser.add_argument(
        "--symbols",
        type=one_of("auto", "letters", "words"),
        metavar="KIND",
        help="what the tokens are: letters or words behind a space (default: letters where they suffice)",
    )
    parser.add_argument(
        "--separator", metavar="TEXT", help="one token before the symbols and between strings (default: new line)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="a text before all that (default: none)")
    parser.add_argument(
        "--precision", type=one_of("float32", "bfloat16"), metavar="P", help="float32 (default) or bfloat16"
    )
    parser.add_argument("--revision", metavar="R", help="a commit, branch or tag of the Hub (default: the newest)")
    parser.add_argument("--limit", type=int, metavar="N", help="score only the first so many instances")
    parser.add_argument("--device", default="auto", metavar="D", help="cpu, cuda, or auto (default)")
    parser.add_argument(
        "--baselines",
        metavar="B,B",
        help="those beside it, by their names in tables, or none (default: all of the track)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of a run: which of its seeds (default: the first)")
    parser.add_argument("--arch", metavar="FILE", help="FILE.py[:CLASS], if the run is of an architecture of your own")
    parser.add_argument("--out", metavar="DIR", help="write the result, the predictions and the page into a new folder")


def main(arguments: argparse.Namespace, console: Console) -> int:
    of_run = (Path(arguments.model) / "config.yaml").is_file()
    if not arguments.model.startswith("hf:") and not of_run:
        raise UserError(
            f"a language model is given as hf:NAME or hf:DIR, not '{arguments.model}'; did you mean 'hf:{arguments.model}'? "
            "A run is given as its folder"
        )
    from regbench import runner
    from regbench.analysis.trained import load_to_ask
    from regbench.cli.tables import result_table
    from regbench.models.model import find_device
    from regbench.report.table import print_fitting
    from regbench.tracks import load_track
    from regbench.training.terminal import TerminalReporter

    fields = ("symbols", "separator", "prompt", "precision", "revision", "limit")
    settings = {name: getattr(arguments, name) for name in fields if getattr(arguments, name) is not None}
    if arguments.mapping:
        settings["mappings"] = arguments.mapping
    names = arguments.baselines
    baselines = None if names is None else () if names == "none" else [name.strip() for name in names.split(",")]
    with TerminalReporter(stderr()) as reporter:
        shared: dict[str, Any] = {"baselines": baselines, "out": arguments.out, "reporter": reporter}
        if of_run:
            refuse_unused(arguments, (*fields, "mapping"), f"is for a language model, and {arguments.model} is a run")
            trained = load_to_ask(
                arguments.model, arguments.seed, arguments.split, architecture=arguments.arch, track=arguments.track
            )
            trained.model.to(find_device(arguments.device))
            result = runner.evaluate(trained.track, trained, split=arguments.split, **shared)
        else:
            refuse_unused(arguments, ("seed", "arch"), "is for a run")
            result = runner.evaluate_language_model(
                arguments.track, arguments.model, arguments.split, settings=settings, device=arguments.device, **shared
            )
    print_fitting(result_table(result, load_track(arguments.track).metrics), console)
    values = [seed.scores[result.track.main_score].value for seed in result.seeds]
    assert result.evaluation is not None
    if outside := result.evaluation.outside:
        print_line(
            f"{result.architecture.source}, {result.architecture.parameters:,} parameters; {len(values)} mapping"
            f"{'s' * (len(values) != 1)} of symbols to tokens, from {min(values):.3f} to {max(values):.3f}. "
            f"Other tokens had {100 * sum(outside.values()) / len(values):.1f} % of the probability, which is left out.",
            console,
        )
    if arguments.out:
        print_line(f"result and pictures: {arguments.out}", console)
    return 0
