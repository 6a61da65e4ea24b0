"""A track's instances for a training loop of your own, as a PyTorch data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from regbench.data.instances import Instances
from regbench.models.model import shift_in, token_tensor

Item = dict[str, Tensor]
"""One instance: "tokens" and "targets" (L,) int64, or vectors (L, D) float32; and "scored", which positions count, (L,) bool."""


class Batch(TypedDict):
    """Instances padded to the longest of them. A model that maps `inputs` to logits (B, L, V) predicts `targets`."""

    inputs: Tensor  # (B, L) int64, a separator and then every token but the last; of vectors (B, L, D)
    tokens: Tensor  # (B, L) int64, padded with the separator
    targets: Tensor  # (B, L) int64, the tokens, or what stands in the place of blanks
    scored: Tensor  # (B, L) bool, the positions that count. Padding does not.
    lengths: Tensor  # (B,) int64


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
