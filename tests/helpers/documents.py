"""Where the repository is; what a Markdown page shows: its fenced blocks, and the commands among them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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


def body_rows(text: str) -> list[list[str]]:
    """All cells of every row of the Markdown tables in `text`, heads and rules left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines, "there is no table"
    rules = {i for i, line in enumerate(lines) if set(line) <= set("|-: ")}
    return [
        [cell.strip(" *`") for cell in line.strip("|").split("|")]
        for i, line in enumerate(lines)
        if i not in rules and i + 1 not in rules
    ]


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    assert f"\n{heading}\n" in text, f"there is no heading '{heading}'"
    rest = text.partition(f"\n{heading}\n")[2]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def links(text: str) -> list[str]:
    """The targets of all links and pictures, code left out."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(text: str) -> set[str]:
    """What a link can name behind `#`: each heading in lower case, its spaces as dashes, without other signs."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
