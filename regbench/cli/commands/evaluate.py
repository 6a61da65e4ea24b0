"""Score a language model of the Hugging Face Hub on a track."""

from __future__ import annotations

import argparse

from rich.console import Console

from regbench.cli.arguments import one_of
from regbench.cli.lines import print_line, stderr
from regbench.utils.errors import UserError

DESCRIPTION = (
    "Scores a causal language model that regbench has not trained, beside the baselines of a track. Each symbol becomes one "
    "token of its vocabulary, drawn at random, once for each mapping. Needs the extra `hf`."
)
EXAMPLES = """\
examples:
  regbench evaluate hf:gpt2 --limit 50                          50 instances of pfa-small-v1, three mappings
  regbench evaluate hf:./my-model --track assoc-recall-small-v1 --mapping 0 1 2 3 4 --out runs/my-model
  regbench evaluate hf:gpt2 --separator " |" --prompt "Strings of one language:" --symbols words

Other models: regbench.evaluate in Python scores any module, function or array.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="hf:NAME|DIR", help="a model of the Hub, or a folder with one")
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
    parser.add_argument("--out", metavar="DIR", help="write the result, the predictions and the page into a new folder")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Prints the scores under each mapping, and what other tokens got."""
    if not arguments.model.startswith("hf:"):
        raise UserError(
            f"a language model is given as hf:NAME or hf:DIR, not '{arguments.model}'; did you mean 'hf:{arguments.model}'?"
        )
    from regbench import runner
    from regbench.cli.tables import print_fitting, result_table
    from regbench.metrics.metric import metrics_of
    from regbench.tracks import load_track
    from regbench.training.terminal import TerminalReporter

    fields = ("symbols", "separator", "prompt", "precision", "revision", "limit")
    settings = {name: getattr(arguments, name) for name in fields if getattr(arguments, name) is not None}
    if arguments.mapping:
        settings["mappings"] = arguments.mapping
    with TerminalReporter(stderr()) as reporter:
        result = runner.evaluate_language_model(
            arguments.track,
            arguments.model,
            arguments.split,
            settings=settings,
            device=arguments.device,
            out=arguments.out,
            reporter=reporter,
        )
    print_fitting(result_table(result, metrics_of(load_track(arguments.track).task)), console)
    values = [seed.scores[result.track.main_score].value for seed in result.seeds]
    assert result.evaluation is not None
    outside = (result.evaluation.outside or {}).values()
    print_line(
        f"{result.architecture.source}, {result.architecture.parameters:,} parameters; {len(values)} mapping"
        f"{'s' * (len(values) != 1)} of symbols to tokens, from {min(values):.3f} to {max(values):.3f}. "
        f"Other tokens had {100 * sum(outside) / len(values):.1f} % of the probability, which is left out.",
        console,
    )
    if arguments.out:
        print_line(f"result and pictures: {arguments.out}", console)
    return 0
