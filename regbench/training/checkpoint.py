"""Tensors on disk as safetensors, written whole or not at all. Nothing here can execute what it reads."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


def save_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str] | None = None) -> None:
    """Writes `tensors` and `notes` to `path`, replacing what was there in one step."""
    # A copy each: safetensors refuses tensors that share memory, as tied weights do.
    payload = safetensors.torch.save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, notes)
    with atomic_write(path, "wb") as file:
        file.write(payload)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a file.

    Raises:
        UserError: it cannot be read or is not a whole safetensors file.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"cannot read the checkpoint {path}: {str(error).splitlines()[0]}") from None
