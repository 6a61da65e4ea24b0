"""DeltaNet: linear attention that replaces the value at a key, in the place of adding to it."""

from __future__ import annotations

from architectures._delta_mixer import DeltaMixer
from regbench.models.mixer import Mixer, Paper


class DeltaNet(DeltaMixer, Mixer):
    """The delta rule without decay and without an output gate. Yang et al. 2024, section 2.2; see `DeltaMixer`.

    `negative_eigenvalues` is the change of Grazzi et al. (2024), arXiv 2411.12537.
    """

    family = "delta rule"
    paper = Paper(
        "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        "Yang et al.",
        2024,
        arxiv="2406.06484",
    )
