"""Predictions a batch at a time, so that they fit into memory."""

from __future__ import annotations

from collections.abc import Iterable

from regbench.data.instances import Instances
from regbench.models.predictor import Predictor
from regbench.tasks.base import IO, VectorIO
from regbench.utils.arrays import FloatArray

BATCH_BYTES = 128 << 20
"""The most memory that the predictions for one batch may take. Two batches exist at once: one is scored, the next is made."""


def rows_at_once(io: IO, length: int, most: int) -> int:
    """How many instances are predicted at once, so that a batch stays under `BATCH_BYTES`.

    Args:
        io: What goes in and out of a predictor.
        length: Tokens of the longest instance.
        most: The most instances that are wanted.

    Returns:
        A number between 1 and `most`. Predictions are counted in float64: (B, L, V), or (B, L, D_out) for vectors.
    """
    width = io.d_out if isinstance(io, VectorIO) else io.vocab_size
    return max(1, min(most, BATCH_BYTES // max(1, 8 * length * width)))


def predict_in_batches(predictor: Predictor, instances: Instances, batch_size: int = 64) -> Iterable[FloatArray]:
    """Predicts the instances, a batch at a time. Each batch is cut to its longest instance."""
    for start in range(0, len(instances), batch_size):
        yield predictor.predict(instances[start : start + batch_size].tokens)
