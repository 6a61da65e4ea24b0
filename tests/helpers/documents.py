"""What a Markdown page shows: its fenced blocks, and the commands among them."""

from __future__ import annotations

import re


def blocks(text: str) -> list[tuple[str, str]]:
    """Every fenced block, as its language and its content."""
    return re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[str]:
    """Every line of the `sh` blocks without its comment, in order."""
    lines = [line for kind, block in blocks(text) if kind == "sh" for line in block.splitlines()]
    return [line.partition(" # ")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def table_rows(text: str) -> dict[str, list[str]]:
    """Rows of the Markdown tables in `text`, by their first cell."""
    rows = [
        [cell.strip(" *`") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in rows}
