"""A finished run's model, read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regbench import registry
from regbench.checkpoint import load_tensors
from regbench.configuration import Config, read_config
from regbench.errors import UserError
from regbench.models.build import build, resolve_options
from regbench.models.model import Model
from regbench.tracks import Track, load_track


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode and where it comes from. architecture: as it was asked for."""

    folder: Path
    architecture: str
    seed: int
    track: Track
    model: Model


def read_run(folder: Path) -> Config:
    """What a run folder's `config.yaml` says.

    Raises:
        UserError: no run is there, or the file is broken.
    """
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} holds no run: there is no config.yaml")
    return read_config(path)


def load_trained(folder: str | Path, seed: int | None = None) -> Trained:
    """The model of one seed of a run, by default the first, on the CPU.

    Raises:
        UserError: no run is there, it has no such seed, or its weights do not fit the architecture any more.
    """
    folder = Path(folder)
    config = read_run(folder)
    if seed is None:
        seed = config.seeds[0]
    if seed not in config.seeds:
        raise UserError(f"{folder} has no seed {seed}; it has {', '.join(map(str, config.seeds))}")
    path = folder / f"seed-{seed}" / "checkpoint.safetensors"
    if not path.exists():
        raise UserError(f"{folder} has not trained seed {seed} to the end: there is no {path.name}")
    track = load_track(config.track)
    cls = registry.load(registry.ARCHITECTURE, config.architecture)
    own = {k: v for k, v in config.settings.items() if not k.startswith("training.")}
    model = build(cls, resolve_options(cls, own), track.task.io)
    try:
        model.load_state_dict(load_tensors(path)[0])
    except RuntimeError:
        raise UserError(f"the weights in {path} are not those of '{config.architecture}' as it is now") from None
    return Trained(folder, config.architecture, seed, track, model.eval())
