"""A track's instances as Parquet files."""

from __future__ import annotations

import json
from pathlib import Path

from regbench.tasks.base import VectorIO
from regbench.tracks.track import SPLITS, Track
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write, explain_writing


def write_parquet(track: Track, folder: Path) -> list[Path]:
    """Writes the splits of a track as Parquet files, and a card that `datasets.load_dataset(folder)` reads.

    A row is an instance without padding: `tokens`, and `scored` for the positions that count.
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
    with explain_writing(folder):
        for split in SPLITS:
            instances = track.instances(split)
            fingerprints[split] = instances.fingerprint
            kind = pa.list_(pa.float32()) if vectors else pa.from_numpy_dtype(instances.tokens.dtype)
            columns = [("tokens", instances.tokens, kind), ("scored", instances.scored, pa.bool_())]
            columns += [] if instances.answers is None else [("targets", instances.answers, kind)]
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
