"""What is kept of a training: tensors as safetensors, and the record of a seed whose test split is still unread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from regbench.models.build import build, build_without_memory, resolve_options
from regbench.models.mixer import Options
from regbench.models.model import Model
from regbench.results import ArchitectureRecord
from regbench.tasks.base import IO
from regbench.training.progress import Progress
from regbench.utils import registry
from regbench.utils.errors import Unavailable, UserError
from regbench.utils.files import atomic_write
from regbench.utils.folder import TENSOR_HEADER_BYTES, Folder
from regbench.utils.guard import Refused


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str] | None = None) -> None:
    """Writes `tensors` and `notes` to `path`, replacing what was there in one step."""
    payload = packed(tensors, notes)
    with atomic_write(path, "wb") as file:
        file.write(payload)


def packed(tensors: dict[str, Tensor], notes: dict[str, str] | None = None) -> bytes:
    try:
        # A copy each: safetensors refuses tensors that share memory, as tied weights do.
        return safetensors.torch.save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, notes)
    except KeyError as unknown:
        name, kind = next((k, v.dtype) for k, v in tensors.items() if v.dtype == unknown.args[0])
        dtype = str(kind).removeprefix("torch.")
        raise UserError(f"{name} is {dtype}, which a safetensors file cannot hold; take float32 or complex64") from None


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def load_notes(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (OSError, safetensors.SafetensorError) as error:
        raise Unavailable(f"cannot read the checkpoint {path}: {str(error).splitlines()[0]}") from error


def course_file(tokens: int) -> str:
    """The path in a seed's folder of the weights that were kept after so many training tokens."""
    return f"course/{tokens:015d}.safetensors"


def load_model(folder: Folder, name: str, record: ArchitectureRecord, io: IO) -> Model:
    """Builds the model that a result describes, with weights from a folder that may be a stranger's.

    Sizes are compared before anything is built or read, so that no file can claim memory.
    """
    cls = registry.load(registry.ARCHITECTURE, record.name)
    options = resolve_options(cls, record.options)
    sizes = folder.tensor_sizes(name)
    if not fits(sizes, cls, options, io):
        raise Refused(f"{name}: not the weights of this architecture with these options")
    content = folder.read(name, 8 * sum(sizes.values()) + TENSOR_HEADER_BYTES)
    model = build(cls, options, io)
    try:
        load_weights(model, safetensors.torch.load(content), name)
    except (RuntimeError, safetensors.SafetensorError):
        raise Refused(f"{name}: not the weights of this architecture with these options") from None
    return model


def load_weights(model: Model, tensors: dict[str, Tensor], name: str) -> None:
    """Puts the tensors of a file into a model. PyTorch alone would convert other types without a word.

    Refused, if they are of other types than the model's, or a weight is NaN or infinite. A RuntimeError, if they are of other
    names or shapes.
    """
    own, weights = model.state_dict(), dict(model.named_parameters())
    for key, tensor in tensors.items():
        if key in own and tensor.dtype != own[key].dtype:
            raise Refused(f"{name}: {key} is {tensor.dtype}, and the model's is {own[key].dtype}".replace("torch.", ""))
        if key in weights and not tensor.isfinite().all():
            raise Refused(f"{name}: {key} holds NaN or infinity")
    model.load_state_dict(tensors)


def fits(sizes: dict[str, int], cls: type[Any], options: Options, io: IO) -> bool:
    """Whether the tensors of a file have the sizes of a model's. Nothing of either is in memory."""
    model = build_without_memory(cls, options, io)
    return sizes == {key: tensor.numel() for key, tensor in model.state_dict().items()}


RESUME_FILE = "resume.safetensors"
"""Lies in a seed's folder while it trains: the last checkpoint, from which it goes on."""

TRAINED_FILE = "trained.json"
"""Lies in a trained seed's folder until the whole run is finished."""


@dataclass(frozen=True)
class TrainingRecord:
    """What training left, apart from the weights."""

    progress: Progress  # where training ended, with its validation losses
    steps: int
    peak_memory_bytes: int  # of the process that trained it, or of its GPU

    def write(self, folder: Path) -> None:
        with atomic_write(folder / TRAINED_FILE) as file:
            json.dump(asdict(self), file)


def read_trained(folder: Path) -> TrainingRecord | None:
    """What the file in a seed's folder says; None where there is no whole one."""
    try:
        content = json.loads((folder / TRAINED_FILE).read_text(encoding="utf-8"))
        return TrainingRecord(Progress(**content["progress"]), int(content["steps"]), int(content["peak_memory_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
