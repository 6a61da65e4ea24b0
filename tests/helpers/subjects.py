"""Untrained models of an architecture, by its name or class: alone, for the contract's checks, and as if a run gave one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regbench.analysis.trained import Trained
from regbench.checks.subject import Subject
from regbench.models.build import resolve_options
from regbench.tasks.base import IO
from regbench.tracks import Track
from regbench.utils import registry


def subject_of(architecture: str | type[Any], io: IO, **settings: Any) -> Subject:
    cls = registry.load(registry.ARCHITECTURE, architecture) if isinstance(architecture, str) else architecture
    return Subject(cls, resolve_options(cls, settings), io)


def built(architecture: str | type[Any], io: IO, **settings: Any) -> Any:
    """The model of seed 0."""
    return subject_of(architecture, io, **settings).model()


def trained_of(track: Track, architecture: str | type[Any], **settings: Any) -> Trained:
    model = subject_of(architecture, track.task.io, **settings).model(seed=1)
    return Trained(Path("run"), str(architecture), 0, track, model)
