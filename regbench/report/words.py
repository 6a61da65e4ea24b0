"""How people are told of metrics and figures: one set of words for the terminal, the pictures and the pages."""

from __future__ import annotations

from regbench.metrics.metric import METRICS

LOSSES = {"cross_entropy": "cross entropy (nats)"}
"""What a training loss is called where people read it."""


def label(name: str) -> str:
    """The name of a metric or a loss for people. A name without a label is shown with spaces in place of underscores."""
    if name in METRICS:
        return METRICS[name].label
    return LOSSES.get(name, name.replace("_", " "))


def as_text(name: str) -> str:
    """The name of a text token with real white space: "Ġreturn" -> " return". Ċ is a new line, ĉ is a tab."""
    return name.replace("Ġ", " ").replace("Ċ", "\n").replace("ĉ", "\t")


def human_bytes(count: int | None) -> str:
    """A size for people: 1,536 -> "1.5 KiB". None is a state that grows with the context: "grows with L"."""
    if count is None:
        return "grows with L"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def human_seconds(seconds: float) -> str:
    """A duration for people: 8.46 -> "8.5 s", 160 -> "2 min 40 s", 7260 -> "2 h 1 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
