"""The tables of architectures in the pages: `python -m regbench.report.architectures` writes them between their markers.

Everything follows from an architecture's file: the first line of its docstring, `family` and `paper`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tabulate import tabulate

from regbench.utils import registry
from regbench.utils.files import atomic_write

BEGIN, END = "<!-- architectures: generated -->", "<!-- end of what is generated -->"


def pages() -> dict[str, str]:
    """The generated part of each page, by its path in the repository."""
    rows, families = [], dict[str, list[str]]()
    for name, entry in registry.entries(registry.ARCHITECTURE).items():
        cls = registry.load(registry.ARCHITECTURE, name)
        paper = cls.paper
        cited = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else paper.title
        summary = entry.summary.removesuffix(".").replace("|", "\\|")
        rows.append([f"`{name}`", cls.family, f"{paper.authors}, {cited}", paper.year, summary])
        families.setdefault(cls.family, []).append(f"`{name}`")
    head = ["name", "family", "paper", "year", "what it is"]
    return {
        "architectures/README.md": tabulate(rows, headers=head, tablefmt="pipe", disable_numparse=True),
        "README.md": ". ".join(f"*{family}*: {', '.join(names)}" for family, names in sorted(families.items())) + ".",
    }


def filled(text: str, part: str) -> str:
    """A page with this part between its markers."""
    return re.sub(f"(?s){BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{part}\n\n{END}", text)


if __name__ == "__main__":
    for name, part in pages().items():
        text = Path(name).read_text(encoding="utf-8")
        with atomic_write(Path(name)) as file:
            file.write(filled(text, part))
