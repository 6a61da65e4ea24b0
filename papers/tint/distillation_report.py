"""The findings of prompt distillation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from papers.tint.adaptation import Outcome
from papers.tint.distillation import Distillation
from papers.tint.report import LINES, Report, picture
from regbench.metrics.metric import METRICS
from regbench.report.table import signed


def report(found: Sequence[Distillation], track: str, split: str, limit: int, queries: int) -> Report:
    others = [METRICS[m].heading for m in found[0].prompted.before if m != "nll"]
    first = ["run", "prompt", "model", "rate", "NLL ↓", "difference"]
    columns = [*first, *others, "KL", "seconds", "operations", "passes"]
    rows = [cells for each in found for cells in _cells(each)]
    grouped = "; windows of one document count as one" if found[0].prompted.problem is not None else ""
    note = (
        "Prompt distillation is a proposal of ours, not of a paper. The model is scored in the text after the prompt, and the "
        "difference is to the model without it. KL is of the teacher from the student on the sampled texts, in nats. Seconds are "
        "per prompt. Operations are those of the first prompt, with every text read whole for each token that is drawn: at most "
        "so many. Passes are these in passes over the prompt. ± is the paired difference's standard error over "
        f"instances{grouped}. Rates are chosen on validation."
    )
    return Report(
        f"{track}, {split} split, at most {limit} instances: prompts distilled on {queries} sampled texts each",
        [dict(zip(columns, row, strict=True)) for row in rows],
        3,
        [*first[1:], "KL", "seconds", "passes"],
        [note],
        [["split", *columns], *([split, *row] for row in rows)],
        partial(_draw, found),
    )


def _cells(each: Distillation) -> Iterator[list[str]]:
    """The model with and without the prompt, and the students."""
    names = [each.run, str(each.place)]
    yield [*names, "prompted", "—", *_scores(each.prompted, "after"), "—", "—", f"{each.pass_operations:.3g}", "1"]
    yield [*names, "unprompted", "—", *_scores(each.prompted, "before"), "—", "—", "0", "0"]
    for row in each.rows:
        cost = f"{row.seconds:.2f}", f"{row.operations:.3g}", f"{row.operations / each.pass_operations:,.0f}"
        model = f"{row.steps} {'step' if row.steps == 1 else 'steps'}"
        yield [*names, model, f"{row.rate:g}", *_scores(row.outcome, "after"), f"{row.divergence:.4f}", *cost]


def _scores(outcome: Outcome, which: str) -> list[str]:
    """The NLL, its difference to that of the model without the prompt, and the other metrics."""
    shown = signed(outcome.score("difference", "nll")) if which == "after" else "—"
    others = [f"{outcome.score(which, m).value:.3f}" for m in outcome.before if m != "nll"]
    return [f"{outcome.score(which, 'nll').value:.3f}", shown, *others]


def _draw(found: Sequence[Distillation], title: str, path: Path) -> None:
    """The NLL after the prompt by the number of steps: a row of panels for each run, a panel for each prompt."""
    runs, places = (list(dict.fromkeys(of)) for of in zip(*((each.run, each.place) for each in found), strict=True))
    with picture(len(runs), len(places), title, path, sharex=True, sharey="row") as panels:
        for each in found:
            axes, steps = panels[runs.index(each.run)][places.index(each.place)], [row.steps for row in each.rows]
            for which, dashes, name in (("before", (6, 3), "unprompted"), ("after", (1, 0), "prompted")):
                nll = each.prompted.score(which, "nll").value
                axes.axhline(nll, color="#000000", linewidth=1, dashes=dashes, label=name)
            students = [row.outcome.score("after", "nll").value for row in each.rows]
            errors = [row.outcome.score("difference", "nll").stderr for row in each.rows]
            axes.errorbar(steps, students, errors, capsize=2, elinewidth=1, label="student", **LINES["full"])
            axes.set_title(f"{each.run}\nprompt of {each.place}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(steps)
            axes.xaxis.set_major_formatter("{x:g}")
        for axes in panels[:, 0]:
            axes.set_ylabel("NLL (nats)")
        for axes in panels[-1]:
            axes.set_xlabel("steps of the student")
