"""What people look at after a run: pictures, and a page that shows where the model errs."""

from regbench.report.content import human_bytes, human_growth
from regbench.report.page import build_report, track_of, write_report
from regbench.report.pictures import plot_scores_by_position, plot_training

__all__ = [
    "build_report",
    "human_bytes",
    "human_growth",
    "plot_scores_by_position",
    "plot_training",
    "track_of",
    "write_report",
]
