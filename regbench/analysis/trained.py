"""A finished run's model, read back from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from regbench.config import Config, read_config
from regbench.models.build import build, resolve_options
from regbench.models.model import Model
from regbench.results import read_result
from regbench.tracks import Track, load_track
from regbench.training.checkpoint import load_tensors
from regbench.training.provenance import FILE
from regbench.utils import registry
from regbench.utils.errors import UserError


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


def load_trained(folder: str | Path, seed: int | None = None, split: str = "validation") -> Trained:
    """The model of one seed of a run, by default the first, on the CPU. split: which is to be read.

    Raises:
        UserError: no run is there, it has no such seed, its weights do not fit the architecture any more, or it is of another
            track than that of this name now is, or of other instances of that split: as when its text has changed.
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
    if (folder / "result.json").exists():
        _check_track(folder, track, split)
    else:
        _check_identity(path.parent, track)
    cls = registry.load(registry.ARCHITECTURE, config.architecture)
    own = {k: v for k, v in config.settings.items() if not k.startswith("training.")}
    model = build(cls, resolve_options(cls, own), track.task.io)
    tensors, notes = load_tensors(path)
    owner = notes.get("architecture", config.architecture)
    if owner != config.architecture:
        raise UserError(f"the weights in {path} are those of '{owner}', not of '{config.architecture}'")
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise UserError(f"the weights in {path} are not those of '{config.architecture}' as it is now") from None
    return Trained(folder, config.architecture, seed, track, model.eval())


def _check_track(folder: Path, track: Track, split: str) -> None:
    """Whether a finished run is of today's track, and of today's instances of a split."""
    record = read_result(folder).track
    if record.name != track.name:
        raise UserError(
            f"{folder} is of another track: its result is on {record.name}, its config.yaml asks for {track.name}"
        )
    if record.digest != track.definition.digest:
        raise UserError(
            f"{folder} is of another track: {track.name} was changed since (digest {record.digest[:12]}, now "
            f"{track.definition.digest[:12]})"
        )
    if record.fingerprints[split] != (now := track.instances(split).fingerprint):
        raise UserError(
            f"{folder} is of other {split} instances of {track.name}: its text or what makes them has changed since "
            f"(fingerprint {record.fingerprints[split][:12]}, now {now[:12]})"
        )


def _check_identity(folder: Path, track: Track) -> None:
    """Whether a seed of an unfinished run is of today's track and text, where it says of what it is; older ones do not."""
    try:
        parts = json.loads((folder / FILE).read_text(encoding="utf-8"))
        digest, text = parts["track"], parts.get("text")
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{folder / FILE} does not say of what this seed was made") from None
    if digest != track.definition.digest:
        raise UserError(f"{folder} is of another track: {track.name} was changed since")
    if text != track.task.source_digest():
        raise UserError(f"{folder} is of other text: that of {track.name} has changed since")
