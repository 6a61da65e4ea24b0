"""The command `regbench`: parses, calls, prints.

Exit codes: 0 done; 1 a check said no; 2 the input was wrong, said in one line; 130 interrupted, and can be resumed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from regbench import registry
from regbench.errors import UserError, nearest

_EXAMPLES = """\
examples:
  regbench run                                    train Mamba on pfa-small-v1 and score it (minutes on two cores)
  regbench run --arch transformer --seed 0 1 2    three seeds
  regbench run --arch my_mixer.py --set d_model=96 --set training.learning_rate=1e-3
  regbench data pfa-small-v1                      what the instances look like
  regbench ls                                     what there is
"""


_CHECK = "Asks an architecture every line of the contract. Exit code 1 where a line does not hold."


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, with the nearest known command."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice: " in message and "choose from" in message:
            given = message.split("invalid choice: ")[1].split(" (")[0].strip("'\"")
            known = message.split("choose from ")[1].rstrip(")").replace("'", "").split(", ")
            message = f"unknown choice '{given}'{nearest(given, known)}"
        raise UserError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    console = Console()
    try:
        parsed = _parser().parse_args(arguments)
        code: int = parsed.command(parsed, console)
    except UserError as error:
        print(f"regbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("regbench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # e.g. `regbench ls | head`
        sys.stderr.close()
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="regbench",
        description="How well do sequence architectures learn in context? Train one, score it against a known truth.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)

    run = commands.add_parser(
        "run",
        help="train an architecture on a track, score it, write a result",
        description="Trains an architecture on a track, scores it on unseen instances beside the baselines, writes a run folder.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "--arch", default="mamba", metavar="NAME|FILE[:CLASS]", help="a name from `regbench ls`, or your own file"
    )
    run.add_argument(
        "--track", default="pfa-small-v1", metavar="T", help="a name from `regbench ls tracks`, or a YAML file"
    )
    run.add_argument(
        "--seed", type=int, nargs="+", default=[0], metavar="N", help="one model is trained for each (default: 0)"
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="KEY=VALUE",
        help="an option of the architecture (`regbench ls architectures NAME` lists them), or training.KEY=VALUE",
    )
    run.add_argument("--ngram-heads", metavar="N,N,...", help="put n-gram heads of these orders into the architecture")
    run.add_argument("--ngram-after", metavar="M,...", help="after which blocks, counted from 1 (default: 1)")
    run.add_argument(
        "--backend", default="auto", metavar="B", help="form of the ops: auto, naive, cpu, torch, ... (default: auto)"
    )
    run.add_argument("--device", default="auto", metavar="D", help="cpu, cuda, or auto (default)")
    run.add_argument(
        "--trials", type=int, default=1, metavar="N", help="configurations tried on validation before this; recorded"
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="the run folder (default: a new one under runs/)")
    where.add_argument("--resume", metavar="DIR", help="go on with an interrupted run; its config.yaml says with what")
    run.set_defaults(command=_run)

    listing = commands.add_parser("ls", help="list architectures, baselines, tasks and tracks")
    listing.add_argument("kind", nargs="?", choices=[*registry.KINDS, "tracks"], metavar="KIND", help="only these")
    listing.add_argument("name", nargs="?", help="with `architectures`: show the options of this one")
    listing.set_defaults(command=_ls)

    check = commands.add_parser("check", help="ask an architecture every line of the contract", description=_CHECK)
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument("--arch", metavar="NAME|FILE[:CLASS]", help="a name from `regbench ls`, or your own file")
    which.add_argument("--all", action="store_true", help="every registered architecture")
    check.add_argument(
        "--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="an option of it"
    )
    check.set_defaults(command=_check)

    data = commands.add_parser("data", help="show the statistics and one instance of a track")
    data.add_argument("track", metavar="TRACK", help="a name from `regbench ls tracks`, or a YAML file")
    data.add_argument("--fingerprint", action="store_true", help="print only the fingerprints of its splits")
    data.add_argument("--instance", type=int, default=0, metavar="N", help="which test instance to draw (default: 0)")
    data.set_defaults(command=_data)
    return parser


def _ngram_settings(arguments: argparse.Namespace) -> list[str]:
    """--ngram-heads and --ngram-after as what they are short for."""
    if arguments.ngram_after and not arguments.ngram_heads:
        raise UserError("--ngram-after says where --ngram-heads stand: give those too")
    flags = {"ngram_heads": arguments.ngram_heads, "ngram_after": arguments.ngram_after}
    return [f"{key}=[{value}]" for key, value in flags.items() if value]


def _settings(pairs: Sequence[str]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes KEY=VALUE, not '{pair}'")
        if key in settings:
            raise UserError(f"--set gives '{key}' twice")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[key] = value
    return settings


def _run(arguments: argparse.Namespace, console: Console) -> int:
    # Imported here: PyTorch takes seconds to load, and `--help` should not.
    from regbench import runner
    from regbench.tables import result_table

    # What is going on goes to stderr, so that stdout holds the table alone.
    with _Drawing(Console(stderr=True)) as reporter:
        try:
            if arguments.resume:
                result = runner.resume(arguments.resume, reporter)
            else:
                result = runner.run(
                    arguments.track,
                    arguments.arch,
                    arguments.seed,
                    settings=_settings(_ngram_settings(arguments) + arguments.settings),
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
    return 0


class _Drawing:
    """Draws phases as lines and training as a bar; where the output is no terminal, as a line now and then."""

    def __init__(self, console: Console) -> None:
        self.folder: str | None = None
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._printed = 0

    def __enter__(self) -> _Drawing:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._task is not None:
            self._bar.stop()
            self._bar.remove_task(self._task)
            self._task = None
        self._printed = 0

    def phase(self, text: str) -> None:
        if text.startswith("run folder "):
            self.folder = text.removeprefix("run folder ")
        self._clear()
        self._console.print(text, highlight=False, soft_wrap=True)

    def trained(self, progress: object, total_steps: int, loss: float, tokens_per_second: float) -> None:
        from regbench.training import Progress as Trained

        assert isinstance(progress, Trained)
        validation = f"validation {progress.validation_loss:.3f}  " if progress.curve else ""
        facts = f"loss {loss:.3f}  {validation}{tokens_per_second:,.0f} tokens/s"
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("training", total=total_steps, facts=facts)
        self._bar.update(self._task, completed=progress.step, facts=facts)
        tenth = 10 * progress.step // total_steps
        if not self._console.is_terminal and tenth > self._printed:
            self._printed = tenth
            self._console.print(f"  {10 * tenth:3d} %  {facts}", highlight=False)


def _ls(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.name is not None:
        if arguments.kind != "architectures":
            raise UserError("a NAME goes with `regbench ls architectures` only")
        return _describe_architecture(arguments.name, console)
    if arguments.kind == "architectures":
        return _compare_architectures(console)
    for plural in [arguments.kind] if arguments.kind else [*registry.KINDS, "tracks"]:
        table = Table(title=plural, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        if plural == "tracks":
            from regbench.tracks import track_names

            for name, summary in track_names().items():
                table.add_row(f"[bold]{name}[/]", summary)
        else:
            for entry in registry.entries(registry.KINDS[plural]).values():
                table.add_row(f"[bold]{entry.name}[/]", entry.summary or entry.source)
        console.print(table, highlight=False)
        console.print()
    return 0


def _compare_architectures(console: Console) -> int:
    """Paper, parameters and state of every architecture at its default options, for the tokens of pfa-small-v1."""
    from regbench.models.build import build, resolve_options
    from regbench.models.model import parameter_count
    from regbench.tables import human_bytes
    from regbench.tracks import load_track

    task_io = load_track("pfa-small-v1").task.io
    table = Table(title="architectures, at their default options", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column, justify in (
        ("", "left"),
        ("paper", "left"),
        ("year", "right"),
        ("parameters", "right"),
        ("state", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name in registry.entries(registry.ARCHITECTURE):
        cls = registry.load(registry.ARCHITECTURE, name)
        model = build(cls, resolve_options(cls, {}), task_io)
        paper = (cls.paper.authors, str(cls.paper.year)) if cls.paper else ("", "")
        table.add_row(f"[bold]{name}[/]", *paper, f"{parameter_count(model):,}", human_bytes(model.state_bytes()))
    console.print(table, highlight=False)
    return 0


def _describe_architecture(name: str, console: Console) -> int:
    cls = registry.load(registry.ARCHITECTURE, name)
    if cls.paper is not None:
        link = f", arXiv:{cls.paper.arxiv}" if cls.paper.arxiv else ""
        console.print(f"{cls.paper.authors} ({cls.paper.year}). {cls.paper.title}{link}", highlight=False)
    table = Table(title=f"options of {registry.short_name(name)}, for --set", title_justify="left")
    for column in ("option", "type", "default", "meaning"):
        table.add_column(column)
    for key, field in cls.Options.model_fields.items():
        kind = getattr(field.annotation, "__name__", None) if isinstance(field.annotation, type) else None
        kind = kind or str(field.annotation).replace("typing.", "")
        table.add_row(key, kind, repr(field.default), field.description or "")
    console.print(table, highlight=False)
    return 0


def _check(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.contract import CONTRACT, Subject, examine
    from regbench.models.build import resolve_options
    from regbench.tracks import load_track

    names = list(registry.entries(registry.ARCHITECTURE)) if arguments.all else [arguments.arch]
    task_io = load_track("pfa-small-v1").task.io
    meaning = {check.__name__: (check.__doc__ or "").partition("\n")[0] for check in CONTRACT}
    faults = 0
    for name in names:
        cls = registry.load(registry.ARCHITECTURE, name)
        subject = Subject(cls, resolve_options(cls, _settings(arguments.settings)), task_io)
        console.print(f"[bold]{registry.short_name(name)}[/]")
        for outcome in examine(subject):
            faults += outcome.fault is not None
            mark = "[red]FAILS[/]" if outcome.fault else "  —  " if outcome.note else "[green]holds[/]"
            text = outcome.fault or outcome.note or meaning[outcome.check]
            console.print(f"  {mark}  {outcome.check:18} {escape(text)}", highlight=False, soft_wrap=True)
    console.print(f"{len(names)} examined, {faults} lines of the contract broken", highlight=False)
    return 1 if faults else 0


def _data(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.tracks import SPLITS, load_track

    track = load_track(arguments.track)
    splits = {split: track.instances(split) for split in SPLITS}
    if arguments.fingerprint:
        for split, instances in splits.items():
            print(f"{split} {instances.fingerprint}")
        return 0
    test = splits["test"]
    if not 0 <= arguments.instance < len(test):
        raise UserError(f"there is no test instance {arguments.instance}: they are numbered 0 to {len(test) - 1}")
    record = track.freeze()
    table = Table(title=f"{track.name}: task {track.definition.task}", title_justify="left")
    table.add_column("")
    for split in SPLITS:
        table.add_column(split, justify="right")
    for name in record["statistics"]["train"]:
        values = (record["statistics"][split][name] for split in SPLITS)
        table.add_row(name.replace("_", " "), *(f"{v:,.0f}" if float(v).is_integer() else f"{v:,.3f}" for v in values))
    table.add_row("fingerprint", *(record["fingerprints"][split][:12] for split in SPLITS))
    console.print(table, highlight=False)
    overlap = ", ".join(f"{pair.replace('/', ' and ')} {count}" for pair, count in record["overlap"].items())
    console.print(f"shared between splits: {overlap}", highlight=False)
    console.print(f"budget: {track.definition.budget.train_tokens:,} training tokens", highlight=False)
    console.print()
    console.print(track.task.show(test, arguments.instance))
    return 0
