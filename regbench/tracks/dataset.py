"""A track's instances for a training loop of your own: as a PyTorch data set, and as Parquet files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from regbench.data.instances import Instances
from regbench.models.model import shift_in, token_tensor
from regbench.tasks.base import VectorIO
from regbench.tracks.track import SPLITS, Track
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_full_disk


class Item(TypedDict):
    """One instance: tokens and targets (L,) int64, or vectors (L, D) float32; and which positions count, (L,) bool."""

    tokens: Tensor
    targets: Tensor
    scored: Tensor


class Batch(TypedDict):
    """Instances padded to the longest of them. A model that maps `inputs` to logits (B, L, V) predicts `targets`.

    Attributes:
        inputs: (B, L) int64, a separator and then every token but the last; of vectors (B, L, D).
        tokens: (B, L) int64, padded with the separator.
        targets: (B, L) int64, the tokens, or what stands in the place of blanks.
        scored: (B, L) bool, the positions that count. Padding does not.
        lengths: (B,) int64.
    """

    inputs: Tensor
    tokens: Tensor
    targets: Tensor
    scored: Tensor
    lengths: Tensor


class InstanceDataset(Dataset[Item]):
    """The instances of a split for a `DataLoader`: give it `collate_fn=dataset.collate`.

    Args:
        instances: The split.
        separator: The token, or the value of a vector's components, that begins inputs and pads.
    """

    def __init__(self, instances: Instances, separator: float) -> None:
        self.instances, self.separator = instances, separator

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> Item:
        item = self.instances[index]
        length = item["length"]
        return {
            "tokens": token_tensor(item["tokens"][:length]),
            "targets": token_tensor(item["targets"][:length]),
            "scored": torch.from_numpy(item["scored"][:length].copy()),
        }

    def collate(self, items: Sequence[Item]) -> Batch:
        """Puts instances into a batch. Padding is the separator, and does not count."""
        tokens, targets = (
            pad_sequence([item[name] for item in items], batch_first=True, padding_value=self.separator)
            for name in ("tokens", "targets")
        )
        return {
            "inputs": shift_in(tokens, self.separator),
            "tokens": tokens,
            "targets": targets,
            "scored": pad_sequence([item["scored"] for item in items], batch_first=True),
            "lengths": torch.tensor([len(item["tokens"]) for item in items]),
        }


def write_parquet(track: Track, folder: Path) -> list[Path]:
    """Writes the splits of a track as Parquet files, and a card that `datasets.load_dataset(folder)` reads.

    A row is an instance without padding: `tokens`, `scored` for the positions that count, and `targets` where a task does not
    show what is to be predicted.

    Returns:
        The files.

    Raises:
        UserError: The folder holds data already, pyarrow is not installed, or writing fails.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError("Parquet files need the package pyarrow: pip install 'regbench[text]'") from None
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose a new folder")
    io = track.task.io
    vectors = isinstance(io, VectorIO)
    written, fingerprints = [], {}
    with explain_full_disk(folder):
        for split in SPLITS:
            instances = track.instances(split)
            fingerprints[split] = instances.fingerprint
            kind = pa.list_(pa.float32()) if vectors else pa.from_numpy_dtype(instances.tokens.dtype)
            columns = [("tokens", instances.tokens, kind), ("scored", instances.scored, pa.bool_())]
            columns += [("targets", instances.targets, kind)] if instances.answers is not None else []
            table = pa.table(
                {
                    name: pa.array(
                        [
                            list(row[:length]) if row.ndim == 2 else row[:length]
                            for row, length in zip(array, instances.lengths, strict=True)
                        ],
                        pa.list_(of),
                    )
                    for name, array, of in columns
                }
            )
            with atomic_write(folder / f"{split}.parquet", "wb") as file:
                pq.write_table(table, file)
            written.append(folder / f"{split}.parquet")
        with atomic_write(folder / "README.md") as file:
            file.write(_card(track, fingerprints))
    return [*written, folder / "README.md"]


def _card(track: Track, fingerprints: dict[str, str]) -> str:
    """The card: where the splits are, and what they are."""
    io = track.task.io
    about = (
        f"vectors of {io.d_in} components; the last {io.d_out} are predicted"
        if isinstance(io, VectorIO)
        else f"tokens from 0 to {io.vocab_size - 1}; the separator is {io.separator}"
    )
    files = "".join(f"  - split: {split}\n    path: {split}.parquet\n" for split in SPLITS)
    prints = "".join(f"| {split} | `{digest}` |\n" for split, digest in fingerprints.items())
    return (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n# {track.name}\n\n"
        f"Instances of the regbench track {track.name}: {about}.\n\n"
        "A row is an instance: `tokens`, and `scored` for the positions that count. Row t of a prediction is of token t, "
        "given the tokens before it.\n\n"
        f"| split | fingerprint |\n| --- | --- |\n{prints}\n"
        f"```json\n{json.dumps(track.definition.model_dump(mode='json'), indent=1)}\n```\n"
    )
