"""regbench: how well do sequence architectures learn in context?

The names below are what scripts and plug-ins use; each is loaded when first touched, so that importing regbench is quick.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import TYPE_CHECKING, Any

from regbench.utils import compiled

if TYPE_CHECKING:
    from regbench.analysis.trained import load as load
    from regbench.data.instances import Instances as Instances
    from regbench.leaderboard.table import entries as entries
    from regbench.metrics.metric import Metric as Metric
    from regbench.models.mixer import Mixer as Mixer
    from regbench.models.mixer import Options as Options
    from regbench.models.mixer import Paper as Paper
    from regbench.models.model import Model as Model
    from regbench.models.model import shift_in as shift_in
    from regbench.models.predictor import Baseline as Baseline
    from regbench.models.predictor import Predictor as Predictor
    from regbench.results import Result as Result
    from regbench.results import read_result as read_result
    from regbench.runner import evaluate as evaluate
    from regbench.runner import resume as resume
    from regbench.runner import run as run
    from regbench.tasks.base import Parameters as Parameters
    from regbench.tasks.base import Splits as Splits
    from regbench.tasks.base import Task as Task
    from regbench.tasks.base import TokenIO as TokenIO
    from regbench.tasks.base import VectorIO as VectorIO
    from regbench.tracks import load_track as load_track
    from regbench.training.progress import Reporter as Reporter
    from regbench.utils.errors import UserError as UserError

_HOMES = {
    "UserError": "regbench.utils.errors",
    "Metric": "regbench.metrics.metric",
    "Mixer": "regbench.models.mixer",
    "Options": "regbench.models.mixer",
    "Paper": "regbench.models.mixer",
    "Model": "regbench.models.model",
    "shift_in": "regbench.models.model",
    "Baseline": "regbench.models.predictor",
    "Predictor": "regbench.models.predictor",
    "Result": "regbench.results",
    "read_result": "regbench.results",
    "evaluate": "regbench.runner",
    "entries": "regbench.leaderboard.table",
    "load": "regbench.analysis.trained",
    "resume": "regbench.runner",
    "run": "regbench.runner",
    "Instances": "regbench.data.instances",
    "Parameters": "regbench.tasks.base",
    "Splits": "regbench.tasks.base",
    "Task": "regbench.tasks.base",
    "TokenIO": "regbench.tasks.base",
    "VectorIO": "regbench.tasks.base",
    "load_track": "regbench.tracks",
    "Reporter": "regbench.training.progress",
}

__all__ = list(_HOMES)

compiled.find_place()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("regbench")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name[0] == "_" or not importlib.util.find_spec(f"regbench.{name}"):
        raise AttributeError(f"module 'regbench' has no attribute '{name}'")
    return importlib.import_module(f"regbench.{name}")  # a room, such as regbench.ops


def __dir__() -> list[str]:
    return sorted(_HOMES)
