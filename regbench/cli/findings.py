"""Findings on the terminal, as the commands about the leaderboard share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from regbench.leaderboard.case import Findings


def print_findings(findings: Findings, console: Console, prefix: str = "") -> None:
    """Prints a line for each fault and each note. What they quote is shown as it is, never as markup.

    Args:
        findings: What was found.
        console: The terminal.
        prefix: What each line begins with.
    """
    for fault in findings.faults:
        console.print(f"{prefix}{fault}", markup=False, highlight=False, soft_wrap=True)
    for note in findings.notes:
        console.print(f"{prefix}note: {note}", markup=False, highlight=False, soft_wrap=True)
