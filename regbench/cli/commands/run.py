"""Train an architecture on a track, score it, write a result."""

from __future__ import annotations

import argparse
import shlex
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from regbench.cli.arguments import add_architecture, apart_from_stdout, given_settings
from regbench.cli.lines import print_line, stderr
from regbench.training.terminal import TerminalReporter
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.config import Config
    from regbench.results import Result

DEFAULTS = {"architecture": "mamba", "track": "pfa-small-v1"}

DESCRIPTION = (
    "Trains an architecture on a track, scores it on unseen instances beside the baselines, writes a run folder."
)


def configure(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="take the configuration from a file like a run folder's config.yaml; options given here override it",
    )
    run.add_argument(
        "--arch", metavar="NAME|FILE[:CLASS]", help="a name from `regbench ls`, or your own file (default: mamba)"
    )
    run.add_argument("--suite", metavar="S", help="each track of a suite from `regbench ls suites`, or of a YAML file")
    run.add_argument("--seed", type=int, nargs="+", metavar="N", help="one model is trained for each (default: 0)")
    run.add_argument(
        "--jobs", type=int, metavar="N", help="seeds trained at once, each with its share of the cores (default: 1)"
    )
    add_architecture(run)
    run.add_argument(
        "--trials",
        type=int,
        metavar="N",
        help="configurations tried on validation, with this one; recorded (default: 1)",
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="the run folder (default: a new one under runs/)")
    where.add_argument("--resume", metavar="DIR", help="go on with an interrupted run; its config.yaml says with what")


def main(arguments: argparse.Namespace, console: Console) -> int:
    # Imported here: PyTorch takes seconds to load, and `--help` should not.
    from regbench.cli.live import interrupted
    from regbench.cli.tables import metrics_of_run, result_table
    from regbench.metrics.reach import reach_words
    from regbench.report.table import print_fitting
    from regbench.sweeps.suite import is_suite

    if arguments.suite is not None or (arguments.resume and is_suite(arguments.resume)):
        return _suite(arguments, console)
    # What is going on goes to stderr, so that stdout holds the table alone.
    with TerminalReporter(stderr()) as reporter, apart_from_stdout():
        try:
            result = _train(arguments, reporter)
        except KeyboardInterrupt:
            return interrupted(reporter.folder, arguments.jobs)
    assert reporter.folder is not None
    print_fitting(result_table(result, metrics_of_run(result, reporter.folder)), console)
    seed, few = result.seeds[0], result.training.get("train_instances")
    each, over = ("a seed ", ": of a mean over seeds, else over instances") if len(result.seeds) > 1 else ("", "")
    console.print(
        f"{result.architecture.parameters:,} parameters, {seed.tokens:,} training tokens {each}"
        f"{f'of the first {few:,} instances ' if few else ''}in {seed.seconds:.0f} s "
        f"({seed.tokens_per_second:,.0f} tokens/s, with validation), ± is one standard error{over}",
    )
    if words := reach_words(result):
        learned = max(seed.tokens_to_learn or 0 for seed in result.seeds)
        print_line(f"reach: {words}; learned after {learned:,} tokens", console)
    print_line(f"result and pictures: {reporter.folder}", console)
    print_line(f"the page of this run: {reporter.folder}/report.html", console)
    try:
        _say_what_next(result, reporter.folder, console)
    except UserError as error:  # the run is done and whole
        print_line(f"what comes next is not known: {error}", console)
    return 0


def _train(arguments: argparse.Namespace, reporter: TerminalReporter) -> Result:
    from regbench import runner
    from regbench.cli.live import go_on

    asked = _asked(arguments)
    if arguments.jobs is None and not isinstance(asked, Path):
        return runner.run_config(asked, arguments.out, reporter)
    reporter.folder = asked if isinstance(asked, Path) else runner.begin(asked, arguments.out, reporter)
    return go_on(reporter.folder, arguments.jobs, reporter)


def _say_what_next(result: Result, folder: Path, console: Console) -> None:
    """Prints the rank that the run would have on the leaderboard, the share of the budget it used, and the next command."""
    from regbench.config import read_run
    from regbench.evaluation.baselines import CHANCE
    from regbench.leaderboard.entry import command_of
    from regbench.leaderboard.figures import seeds_needed
    from regbench.leaderboard.standing import FULL, budget_share, percent, standing_of
    from regbench.tracks import load_track
    from regbench.utils import registry

    config = read_run(folder)
    track = load_track(config.track)
    budget, used = track.definition.budget.train_tokens, budget_share(result, track)
    whole, standing = used >= FULL, standing_of(result, track)
    if standing is not None and whole:
        beside = (("above", standing.above[::-1]), ("below", standing.below))
        near = [
            f"{where}: {', '.join(f'{name} {score.value:.3f}' for name, score in some)}"
            for where, some in beside
            if some
        ]
        rank = f"it would be number {standing.rank} beside {standing.entries} entries; nearest {'; '.join(near)}"
        print_line(rank, console)
    share = str(percent(used)) if used >= 0.01 else "less than 1"
    print_line(f"{share} % of the track's budget of {budget:,} training tokens used", console)
    if standing is not None and not whole:
        print_line(f"an entry of less than {100 * FULL:.0f} % of the budget has no rank on the leaderboard", console)
    given = tuple(seed.seed for seed in result.seeds)
    seeds = seeds_needed(given)
    fit = given == seeds and (whole or standing is None)
    if track.takes_entries and not fit:
        shorter = {"training.train_tokens"} | (set() if whole else {"training.epochs"})
        settings = {key: value for key, value in config.settings.items() if key not in shorter}
        changed: dict[str, Any] = {"settings": settings, "seeds": seeds}
        what = f"seeds {', '.join(map(str, seeds))}{'' if whole else ' and the whole budget'}"
        if config.architecture.startswith("class:"):
            changed["architecture"] = f"FILE.py:{registry.short_name(config.architecture)}"
            what += ", and FILE.py with the class"
        command = command_of(config.model_copy(update=changed))
        print_line(f"next, {what}, as an entry needs: {command}", console)
    elif standing is not None:
        print_line(f"next: {shlex.join(['regbench', 'submit', str(folder)])}", console)
    else:
        named = [] if config.track == result.track.name else ["--track", config.track]
        baselines = [name for name in result.baselines if name != CHANCE]  # what it predicts is not kept
        words = ["regbench", "compare", str(folder), *baselines[:2], *named]
        print_line(f"next: {shlex.join(words)}", console)


def _suite(arguments: argparse.Namespace, console: Console) -> int:
    from regbench.cli.live import go_on, interrupted
    from regbench.cli.tables import suite_table
    from regbench.metrics.reach import reach_words
    from regbench.report.table import print_fitting
    from regbench.sweeps import suite
    from regbench.tracks.suite import load_suite

    for name in () if arguments.resume else ("track", "config"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--suite names its tracks: leave out --{name}")
    asked, jobs = _asked(arguments), arguments.jobs
    folder = asked if isinstance(asked, Path) else None
    with TerminalReporter(stderr()) as reporter, apart_from_stdout():
        try:
            if not isinstance(asked, Path):
                folder = suite.begin_suite(load_suite(arguments.suite), asked, arguments.out, reporter)
            assert folder is not None
            done = list(suite.go_on(folder, lambda run: go_on(run, jobs, reporter)))
        except KeyboardInterrupt:
            return interrupted(folder, jobs)
    print_fitting(suite_table(done), console)
    for _, result in done:
        if words := reach_words(result):
            print_line(f"{result.track.name}: reach {words}", console)
    shares = [statistics.fmean(result.normalized) for _, result in done if result.normalized]
    if shares:
        console.print(
            f"mean of the normalized scores: {100 * statistics.fmean(shares):.0f}, over {len(shares)} of {len(done)} tracks",
        )
    print_line(f"a run folder for each track: {folder}", console)
    return 0


def _asked(arguments: argparse.Namespace) -> Config | Path:
    """What begins, or the folder of what goes on."""
    from regbench.sweeps.local import share

    if arguments.resume:
        _refuse_more_than_resume(arguments)
        return Path(arguments.resume)
    config = _config(arguments)
    if arguments.jobs is not None:
        share(arguments.jobs, device=config.device)  # refused before a folder is made
    return config


def _config(arguments: argparse.Namespace) -> Config:
    """The file of --config, where there is one, with what the command line says put in its place; settings one by one."""
    from regbench.config import Config, read_config
    from regbench.utils.errors import explain_validation

    settings = given_settings(arguments)
    base: dict[str, Any] = {**DEFAULTS}
    if arguments.config is not None:
        base = read_config(Path(arguments.config)).model_dump()
    flags = {"architecture": "arch", "seeds": "seed", **{key: key for key in ("track", "backend", "device", "trials")}}
    given = {key: value for key, flag in flags.items() if (value := getattr(arguments, flag)) is not None}
    with explain_validation("run", Config.model_fields):
        return Config(**{**base, **given, "settings": {**base.get("settings", {}), **settings}})


def _refuse_more_than_resume(arguments: argparse.Namespace) -> None:
    """An interrupted run goes on as it began; an option that would be dropped is an error."""
    kept = ("resume", "jobs", "command")
    given = [name for name, value in vars(arguments).items() if name not in kept and value not in (None, [])]
    if given:
        flag = "set" if given[0] == "settings" else given[0].replace("_", "-")
        raise UserError(f"--resume goes on with what the run's config.yaml says: --{flag} cannot change it")
