"""The analysis that an architecture brings with it: the module that its class names in `analysis`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from rich.console import Console

from regbench.analysis.trained import Trained
from regbench.utils import registry
from regbench.utils.errors import UserError, blaming


class Analysis(Protocol):
    """The functions of the module that an architecture names in `analysis`. They print their findings."""

    def analyze_run(
        self,
        trained: Trained,
        folder: Path,
        *,
        split: str,
        limit: int,
        rate: float,
        console: Console,
        against: Trained | None = None,
    ) -> None:
        """Everything about one model (`regbench analyze DIR`).

        Args:
            trained: The model.
            folder: For `analysis.json` and pictures.
            split: The split to read.
            limit: How many of its instances.
            rate: Of a moving average over the model's summaries.
            console: Where to print.
            against: Another model, which reads the text without the prompt. It is given only where it was asked for.
        """

    def compare_runs(
        self,
        folders: Sequence[str],
        *,
        split: str,
        limit: int,
        cuts: Sequence[int],
        file: Path | None,
        console: Console,
        plot_by: str | None = None,
        track: str | None = None,
    ) -> None:
        """A table of several runs on one track (`regbench analyze DIR DIR ...`).

        Args:
            folders: The run folders. Some may be of architectures without an analysis.
            split: The split to read.
            limit: How many of its instances.
            cuts: After how many examples each segment is cut. Empty: where the task has its cut.
            file: A Markdown file for the table.
            console: Where to print.
            plot_by: An option: a picture of the scores by its values lies beside the table.
            track: The YAML file, if the runs are on a track whose task is a file.
        """

    def specialize_run(
        self,
        trained: Trained,
        prompt: Path,
        file: Path,
        *,
        generate: int | None,
        rate: float | None,
        temperature: float,
        console: Console,
    ) -> None:
        """A model specialised to a prompt (`regbench specialize DIR`).

        Args:
            trained: The model.
            prompt: A text file.
            file: For the weights of the specialised model.
            generate: How many tokens to generate. None: none.
            rate: Of a moving average over the model's summaries while it generates. None: specialised.
            temperature: Of generation.
            console: Where to print.
        """


def analysis_of(*architectures: str) -> Analysis:
    """The analysis of the first of these architectures that has one.

    Raises:
        UserError: None of them has one (the message names the registered architectures that have), or it cannot be imported.
    """
    for name in architectures:
        module = _analysis_module(name)
        if module is not None:
            with blaming(f"the analysis of '{name}', {module}, cannot be imported:"):
                return cast(Analysis, importlib.import_module(module))
    known = []
    for name in registry.entries(registry.ARCHITECTURE):
        try:
            if _analysis_module(name) is not None:
                known.append(name)
        except UserError:  # it cannot be imported
            continue
    raise UserError(f"architecture '{architectures[0]}' has no analysis of its own; these have: {', '.join(known)}")


def _analysis_module(name: str) -> str | None:
    """The module that an architecture names in `analysis`."""
    module: str | None = getattr(registry.load(registry.ARCHITECTURE, name), "analysis", None)
    return module
