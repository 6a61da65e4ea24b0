"""The findings of prompt distillation: a table for the terminal and for Markdown, a CSV, and a picture by steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from regbench.analysis.adaptation import Outcome
from regbench.analysis.adaptation_report import LINES, picture
from regbench.analysis.distillation import Distillation
from regbench.analysis.tables import markdown_table, narrow, narrow_table, signed
from regbench.metrics.metric import METRICS
from regbench.utils.files import write_rows

HEADS = ("run", "prompt", "model", "rate", "NLL ↓", "difference to unprompted", "KL", "seconds", "operations", "passes")


def columns(found: Sequence[Distillation]) -> list[str]:
    """The headings: those of every table, and one for each metric beside the NLL."""
    others = [m for m in found[0].prompted.before if m != "nll"]
    return [*HEADS[:6], *(METRICS[m].heading for m in others), *HEADS[6:]]


def cells(found: Sequence[Distillation]) -> Iterator[list[str]]:
    """The rows under `columns`: for each run and place the model with and without the prompt, and the students."""
    for each in found:
        first = each.rows[0]
        names = [first.run, str(first.place)]
        yield [*names, "prompted", "—", *_scores(each.prompted, "after"), "—", "—", f"{each.pass_operations:.3g}", "1"]
        yield [*names, "unprompted", "—", *_scores(each.prompted, "before"), "—", "—", "0", "0"]
        for row in each.rows:
            cost = f"{row.seconds:.2f}", f"{row.operations:.3g}", f"{row.operations / each.pass_operations:,.0f}"
            model = f"{row.steps} {'step' if row.steps == 1 else 'steps'}"
            yield [*names, model, f"{row.rate:g}", *_scores(row.outcome, "after"), f"{row.divergence:.4f}", *cost]


def title(track: str, split: str, limit: int, queries: int) -> str:
    """What the table is of."""
    return f"{track}, {split} split, at most {limit} instances: prompts distilled on {queries} sampled texts each"


def notes(found: Sequence[Distillation]) -> list[str]:
    """What the numbers mean."""
    grouped = "; windows of one document count as one" if found and found[0].prompted.problem is not None else ""
    return [
        "Prompt distillation is a proposal of ours, not of a paper. The model is scored in the text after the prompt. KL is "
        "of the teacher from the student on the sampled texts, in nats. Seconds are per prompt. Operations are those of the "
        "first prompt, with every text read whole for each token that is drawn: at most so many. Passes are these in passes "
        f"over the prompt. ± is the paired difference's standard error over instances{grouped}. "
        "Rates are chosen on validation."
    ]


def terminal(found: Sequence[Distillation]) -> Iterator[Table]:
    """A table for each run and place, for a terminal of 80 columns: with one score beside the NLL, and without operations."""
    for each in found:
        heads, (first, *_) = columns([each]), each.rows
        left_out = ("run", "prompt", "operations", *heads[7:-4])
        shown = [number for number, name in enumerate(heads) if name not in left_out]
        names = [heads[number].replace("difference to unprompted", "difference").replace(" ", "\n") for number in shown]
        table = narrow_table(f"{first.run}, prompt of {first.place}", names, 1)
        for row in cells([each]):
            table.add_row(*narrow(row[number] for number in shown))
        yield table


def markdown(found: Sequence[Distillation], heading: str) -> str:
    """As Markdown: the title, the table, the notes."""
    return "\n".join([f"{heading}.", "", *markdown_table(columns(found), cells(found), 3), "", *notes(found), ""])


def write_csv(found: Sequence[Distillation], split: str, path: Path) -> None:
    """The rows of the table, with the split."""
    write_rows(path, ["split", *columns(found)], ([split, *row] for row in cells(found)))


def draw(found: Sequence[Distillation], heading: str, path: Path) -> None:
    """The NLL after the prompt by the number of steps: a row of panels for each run, a panel for each prompt."""
    runs = list(dict.fromkeys(each.rows[0].run for each in found))
    places = list(dict.fromkeys(each.rows[0].place for each in found))
    with picture(len(runs), len(places), heading, path, sharex=True, sharey="row") as panels:
        for each in found:
            run, place, steps = each.rows[0].run, each.rows[0].place, [row.steps for row in each.rows]
            axes = panels[runs.index(run)][places.index(place)]
            for which, dashes, name in (("before", (6, 3), "unprompted"), ("after", (1, 0), "prompted")):
                nll = each.prompted.score(which, "nll").value
                axes.axhline(nll, color="#000000", linewidth=1, dashes=dashes, label=name)
            students = [row.outcome.score("after", "nll").value for row in each.rows]
            errors = [row.outcome.score("difference", "nll").stderr for row in each.rows]
            axes.errorbar(steps, students, errors, capsize=2, elinewidth=1, label="student", **LINES["full"])
            axes.set_title(f"{run}\nprompt of {place}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(steps)
            axes.xaxis.set_major_formatter("{x:g}")
        for axes in panels[:, 0]:
            axes.set_ylabel("NLL (nats)")
        for axes in panels[-1]:
            axes.set_xlabel("steps of the student")


def _scores(outcome: Outcome, which: str) -> list[str]:
    """The NLL, its difference to that of the model without the prompt, and the other metrics."""
    shown = signed(outcome.score("difference", "nll")) if which == "after" else "—"
    others = [f"{outcome.score(which, m).value:.3f}" for m in outcome.before if m != "nll"]
    return [f"{outcome.score(which, 'nll').value:.3f}", shown, *others]
