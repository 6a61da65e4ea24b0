"""A configuration with every name resolved and every check made that needs no training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regbench.checks.architecture import SCORABLE, options_round_trip
from regbench.checks.contract import refuse
from regbench.checks.subject import Subject
from regbench.checks.task import examine_task_once, require_scored
from regbench.checks.training import trains
from regbench.config import Config, require_readable
from regbench.models.model import Model, find_device
from regbench.ops.backend import require_use, use_backend
from regbench.results import Code
from regbench.tracks import Track, load_track
from regbench.training.options import resolve_settings
from regbench.training.progress import Reporter
from regbench.training.provenance import describe_code
from regbench.training.trainer import training_steps
from regbench.utils import registry


@dataclass(frozen=True)
class Plan:
    """A configuration with every name resolved, checked, and nothing trained yet.

    Attributes:
        name: of the architecture in tables.
        parts: all that a trained model follows from; see `regbench.training.provenance`.
        backend: the implementation of each op that runs in scoring.
        training_backend: the same in training; autocast may choose others.
        code: the state of the repository, as it was when this was planned.
    """

    config: Config
    track: Track
    name: str
    subject: Subject
    parts: Mapping[str, Any]
    model: Model
    backend: dict[str, str]
    training_backend: dict[str, str]
    code: Code


def plan_of(
    config: Config, reporter: Reporter, track: Track | None = None, architecture: type[Any] | None = None
) -> Plan:
    """Resolves a configuration and runs every check that needs no training.

    Track and architecture are given where the caller has them; else they are loaded by their names.
    """
    require_readable(config)  # at once: a run that cannot be read again would be trained for nothing
    track = track or load_track(config.track)
    name = registry.short_name(config.architecture)
    cls = registry.load(registry.ARCHITECTURE, architecture or config.architecture)
    source, code = registry.source_digest(cls), describe_code()  # at once: files may be edited while it trains
    options, training = resolve_settings(cls, config.settings)
    device = find_device(config.device)
    if track.task_code is not None:  # a task that is not built in
        reporter.phase(f"examining the task {track.task_name}")
        examine_task_once(track)
    require_scored(track, "train", "validation")
    lengths = track.instances("train").lengths
    for seed in config.seeds:  # a budget below one batch is refused
        next(training_steps(lengths, training, track.definition.budget.train_tokens, seed))
    subject = Subject(cls, options, track.task.io, device, training, track.task)
    with use_backend(config.backend) as backend:
        refuse(subject, (options_round_trip, *SCORABLE), f"architecture '{name}'")
        require_use(config.backend, backend)
    with use_backend(config.backend) as training_backend:
        refuse(subject, (trains,), f"architecture '{name}'")
    parts = {
        "track": track.definition.digest,
        "source": source,
        "options": options.model_dump(mode="json"),
        "training": training.model_dump(mode="json"),
        "device": device.type,
        "backend": config.backend,
        "text": track.task.source_digest(),
        "task": track.task_code,
    }
    parts = {key: value for key, value in parts.items() if value is not None}
    return Plan(config, track, name, subject, parts, subject.model(), backend, training_backend, code)
