"""How people are told of metrics and figures: one set of words for the terminal, the pictures and the pages."""

from __future__ import annotations

from regbench.metrics.scores import NLL_FLOOR, higher_is_better

LABELS = {
    "legal_accuracy": "legal accuracy",
    "token_accuracy": "token accuracy",
    "last_two_accuracy": "accuracy, last two",
    "final_accuracy": "accuracy, last value",
    "in_context_accuracy": "accuracy in context",
    "tvd": "TVD",
    "global_tvd": "TVD, global",
    "nll": "nats",
    "nll_behind_cut": "nats behind the cut",
    "mse": "MSE",
    "truth_mse": "MSE to truth",
    "cross_entropy": "cross entropy (nats)",
}
"""How a metric or a loss is called where people read it."""

MEANINGS = {
    "legal_accuracy": "Share of scored positions whose most likely symbol is one that the language allows (ICLL Eq. 10).",
    "token_accuracy": "Share of scored positions whose most likely symbol is the one that was sampled.",
    "last_two_accuracy": "Token accuracy in the answers of the last two examples of each task (CGT Table 1).",
    "final_accuracy": "Token accuracy of the last value alone, behind the query (ICLL Figure 3a).",
    "in_context_accuracy": "Token accuracy of the outputs of triggers that have occurred before (Bietti et al. 2023).",
    "tvd": "Total variation distance: half the L1 distance between the predicted and the true distribution (ICLL Eq. 11).",
    "global_tvd": "The same TVD over what comes from the global transitions: how well training has taught them.",
    "nll": f"Negative log likelihood of the sampled symbol, in nats; probabilities are raised to {NLL_FLOOR:g} first.",
    "nll_behind_cut": "The same nats over the second text alone, behind the cut.",
    "mse": "Mean squared difference, over components, from the vector that was sampled.",
    "truth_mse": "Mean squared difference, over components, from the true mean.",
}
"""What a metric is, in one sentence."""

LIMITS = {metric: (0.0, 1.0) for metric in LABELS if metric.endswith(("accuracy", "tvd"))}
"""The range a metric can have, where it has two ends."""


def label(metric: str) -> str:
    """A metric's name for people; of one without a label, its own with spaces."""
    return LABELS.get(metric, metric.replace("_", " "))


def arrow(metric: str) -> str:
    """Which way is better: "↑" or "↓"."""
    return "↑" if higher_is_better(metric) else "↓"


def better(metric: str) -> str:
    """Which way is better, in words."""
    return "higher is better" if higher_is_better(metric) else "lower is better"


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
