"""The analysis of models with a summary y of their context: what `regbench analyze` and `regbench specialize` call for CGT."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from architectures.cgt.analysis import prompts, table_forms
from architectures.cgt.analysis.by_option import ByOption, by_option, option_values, plot_by_option
from architectures.cgt.analysis.pictures import plot_examples
from architectures.cgt.analysis.prompts import load_specialised as load_specialised
from architectures.cgt.analysis.study import study
from architectures.cgt.analysis.table import RunTable, tabulate
from regbench.analysis.trained import Trained
from regbench.report.content import human_bytes
from regbench.tasks.base import TokenIO
from regbench.utils.files import atomic_write, explain_full_disk, write_json


def analyze_run(
    trained: Trained,
    folder: Path,
    *,
    split: str,
    limit: int,
    rate: float,
    console: Console,
    against: Trained | None = None,
) -> None:
    """Prints the findings about one model, a line each; see `regbench.analysis.of_architecture.Analysis`."""
    found = study(trained, folder, split=split, limit=limit, rate=rate, against=against, announce=_announce)
    title = f"{trained.architecture} on {trained.track.name}, seed {trained.seed}, {split}"
    table = Table(title=title, title_justify="left")
    table.add_column("after the prompt")
    table.add_column("")
    for what, value in found.lines:
        table.add_row(what, value)
    console.print(table)
    _say(f"pictures and analysis.json: {folder}", console)


def compare_runs(
    folders: Sequence[str],
    *,
    split: str,
    limit: int,
    cuts: Sequence[int],
    file: Path | None,
    console: Console,
    plot_by: str | None = None,
    track: str | None = None,
) -> None:
    """Prints and writes the table of several runs; see `regbench.analysis.of_architecture.Analysis`."""
    values = option_values(folders, plot_by) if plot_by is not None else []
    found = tabulate(folders, split=split, limit=limit, cuts=cuts, announce=_announce, track=track)
    by = by_option(found, plot_by, values) if plot_by is not None else None
    written = _write(found, by, file) if file is not None else []
    console.print(table_forms.terminal(found, console.width))
    _say(table_forms.notes(found), console)
    for line in by.lines() if by is not None else []:
        _say(line, console)
    if written:
        _say(f"written: {', '.join(map(str, written))}", console)


def specialize_run(
    trained: Trained,
    prompt: Path,
    file: Path,
    *,
    generate: int | None,
    rate: float | None,
    temperature: float,
    console: Console,
) -> None:
    """Writes the specialised model, and prints what it saves; see `regbench.analysis.of_architecture.Analysis`."""
    io, task = trained.track.task.io, trained.track.task
    prompts.check_temperature(temperature)
    if generate is not None:
        prompts.check_generation(trained, generate)
    coder = task if isinstance(task, prompts.Encodes) else None
    tokens = prompts.read_prompt(prompt, io, coder)
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
    difference = (
        f"largest difference to the whole model with a constant y: {special.difference:.1e} of the largest output"
    )
    console.print(difference, highlight=False)
    _say(f"written: {file}", console)
    if generate is None or not isinstance(io, TokenIO):
        return
    model: Any = special.model if rate is None else trained.model
    state = model.init_state(1) if rate is None else model.init_state(1, model.summary(tokens[None]), rate)
    share = prompts.share_trained(trained)
    if share < 1.0:
        only = f"{trained.track.name} trains the prediction of only {share:.0%} of its tokens"
        _say(f"{only}; the other generated tokens are noise", console)
    drawn = prompts.generate(model, state, io.separator, temperature, trained.seed)
    _say(prompts.write_tokens(list(itertools.islice(drawn, generate)), io.names, coder), console)


def _say(text: str, console: Console) -> None:
    """Prints text as it is, however long."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _announce(text: str) -> None:
    """Says on stderr what comes next."""
    _say(text, Console(stderr=True))


def _write(found: RunTable, by: ByOption | None, path: Path) -> list[Path]:
    """Writes the Markdown, the JSON and the pictures: on tracks of examples one of these, one of an option. Returns the files."""
    written, more = [path, path.with_suffix(".json")], {} if by is None else {"by_option": by.plain()}
    with explain_full_disk(path.parent):
        with atomic_write(path) as file:
            file.write("\n".join([table_forms.markdown(found), *(f"- {line}" for line in (by.lines() if by else []))]))
        write_json(written[1], {**table_forms.as_json(found), **more})
        if by is not None:
            written.append(path.with_name(f"{path.stem}-{by.option}.png"))
            plot_by_option(by, f"{found.track}, {found.split} split, {found.instances} instances", written[-1])
        if any(row.by_example for row in found.rows):
            written.append(path.with_suffix(".png"))
            plot_examples(found, written[-1])
    return written
