"""What runs inside the isolated process: builds a stranger's model, loads its weights, predicts, and writes `out.npz`.

It imports only what of regbench lies beside it; see `regbench.leaderboard.isolated`.
"""

from __future__ import annotations

import json
from pathlib import Path

JOB = Path("/job")


def main() -> None:
    """Does the job in `/job`."""
    import numpy as np
    import safetensors.torch
    import torch

    from regbench.models.backbone import build
    from regbench.models.model import ModelPredictor
    from regbench.models.predictor import rows_at_once
    from regbench.tasks.base import TokenIO, VectorIO
    from regbench.utils import registry

    asked = json.loads((JOB / "job.json").read_text())
    kind = asked["io"].pop("kind")
    io = (
        VectorIO(**asked["io"])
        if kind == "vectors"
        else TokenIO(**{**asked["io"], "names": tuple(asked["io"]["names"])})
    )
    name = f"{JOB / 'stranger.py'}" + (f":{asked['class']}" if asked["class"] else "")
    cls = registry.load(registry.ARCHITECTURE, name)
    options = cls.Options.model_validate_json(json.dumps(asked["options"]))
    model = build(cls, options, io)
    model.load_state_dict(safetensors.torch.load((JOB / "weights.safetensors").read_bytes()))
    predictor = ModelPredictor(model, torch.device("cpu"))
    with np.load(JOB / "in.npz") as arrays:
        tokens, lengths = arrays["tokens"], arrays["lengths"]
    at_once, rows = rows_at_once(io, tokens.shape[1], 64), []
    for start in range(0, len(tokens), at_once):
        longest = int(lengths[start : start + at_once].max())
        predicted = predictor.predict(tokens[start : start + at_once, :longest])
        kept = np.float32 if kind == "vectors" else np.float16
        rows += [row[:length].astype(kept) for row, length in zip(predicted, lengths[start:], strict=False)]
    np.savez_compressed(JOB / "out.npz", packed=np.concatenate(rows), lengths=lengths)


if __name__ == "__main__":
    main()
