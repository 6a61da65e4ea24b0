"""The form of the findings of `regbench adapt`: tables for the terminal, and Markdown, numbers and a picture in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console

from regbench.cli.lines import print_line
from regbench.report.pictures import COLOURS, STYLE, drawing
from regbench.report.table import markdown_table, narrow, narrow_table
from regbench.utils.files import atomic_write, explain_writing, write_rows

_LOOKS = {"full": (COLOURS[0], "o", "-"), "values": (COLOURS[4], "s", "--"), "tint": (COLOURS[2], "^", ":")}
LINES: dict[str, dict[str, Any]] = {
    way: {"color": colour, "marker": marker, "linestyle": dash, "linewidth": 1.5, "markersize": 5}
    for way, (colour, marker, dash) in _LOOKS.items()
}
"""How the line of each way is drawn."""


@dataclass(frozen=True)
class Report:
    """What was found."""

    title: str  # stands above
    rows: Sequence[Mapping[str, str]]  # the cells by heading. The first is "run"
    words: int  # so many columns are words, at the left
    # the columns on the terminal, which is 80 columns wide, without the run: each run has a table
    shown: Sequence[str]
    notes: Sequence[str]  # what the numbers mean
    numbers: Sequence[Sequence[object]]  # the rows of the CSV file, after its headings
    draw: Callable[[str, Path], None]  # draws the picture, with the title above, into a file

    def show(self, file: Path | None, console: Console) -> None:
        """Prints the tables and the notes. If there is a file, FILE.md, it also writes FILE.md, FILE.csv and FILE.png."""
        console.print(self.title, style="bold")
        columns = list(self.rows[0])
        left = len({*columns[: self.words]} & {*self.shown})
        for run in dict.fromkeys(row["run"] for row in self.rows):
            cells = (narrow(row[name] for name in self.shown) for row in self.rows if row["run"] == run)
            console.print(narrow_table(run, [name.replace(" ", "\n") for name in self.shown], left, cells))
        for note in self.notes:
            console.print(note, style="dim")
        if file is None:
            return
        with explain_writing(file.parent):
            with atomic_write(file) as out:
                lines = markdown_table(columns, [list(row.values()) for row in self.rows], self.words)
                out.write("\n".join([f"{self.title}.", "", *lines, "", *self.notes, ""]))
            write_rows(file.with_suffix(".csv"), [str(name) for name in self.numbers[0]], self.numbers[1:])
            self.draw(self.title, file.with_suffix(".png"))
        print_line(f"wrote {file}, {file.with_suffix('.csv').name}, {file.with_suffix('.png').name}", console)


@contextmanager
def picture(rows: int, columns: int, title: str, path: Path, **shared: Any) -> Iterator[Any]:
    """The panels of a picture, (rows, columns), to draw into. Then they get one legend and the title, and are written."""
    size = 1.4 + 3.0 * max(2, columns), 1.4 + 2.5 * rows
    with drawing(path, size, {**STYLE, "axes.titlesize": 10}, 110) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, **shared)
        yield panels
        known: dict[str, Any] = {}
        for axes in panels[:, 0]:
            handles, labels = axes.get_legend_handles_labels()
            known |= dict(zip(labels, handles, strict=True))
        figure.legend(list(known.values()), list(known), loc="outside lower center", ncols=len(known), frameon=False)
        figure.suptitle(fill(title, int(12 * figure.get_figwidth())), x=0.01, ha="left", fontsize=11)


def diverging(gains: dict[float, float] | Any) -> str:
    """The rates at which the gain is not finite, for a note. Empty if there is none."""
    return ", ".join(f"{rate:g}" for rate, gain in gains.items() if gain != gain)
