"""The configurations at the papers' scale, in `architectures/cgt/configs`, and what their models read."""

from __future__ import annotations

from regbench.config import Config
from regbench.tasks.base import IO, TokenIO
from regbench.tracks import load_track
from tests.helpers.documents import ROOT

CONFIGS = {path.stem: path for path in sorted((ROOT / "architectures" / "cgt" / "configs").glob("*.yaml"))}


def io_of(config: Config) -> IO:
    """What the track's models read. That of texts is told by its parameters, without reading any text."""
    task = load_track(config.track).task
    if config.track.startswith("text-mixture"):
        size, length = task.parameters.vocab_size, task.parameters.length
        return TokenIO(vocab_size=size, separator=size - 1, max_length=length, names=tuple(map(str, range(size))))
    io: IO = task.io
    return io
