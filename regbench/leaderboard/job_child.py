"""What a process of its own runs: it builds a model, loads weights, predicts and writes; see `regbench.leaderboard.job`.

It lies in the job's folder. The regbench that it imports may be that of an earlier commit, in which modules had other names.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

JOB = Path(__file__).resolve().parent


def found(name: str, *modules: str) -> Any:
    """Something of regbench, from the first of the modules that is there."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"regbench.{module}"), name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("regbench"):
                raise
    raise SystemExit(f"this regbench has no {name}")


def main() -> None:
    """Does the job."""
    import numpy as np
    import safetensors.torch
    import torch

    build = found("build", "models.build", "models.backbone")
    predictor_of = found("ModelPredictor", "models.model")
    load, kind_of = (found(name, "utils.registry", "registry") for name in ("load", "ARCHITECTURE"))

    asked = json.loads((JOB / "job.json").read_text())
    kind, name = asked["io"].pop("kind"), asked["architecture"]
    if kind == "tokens":
        asked["io"]["names"] = tuple(asked["io"]["names"])
    io = found("VectorIO" if kind == "vectors" else "TokenIO", "tasks.base", "tasks.task")(**asked["io"])
    cls = load(kind_of, str(JOB / name) if asked["of_a_file"] else name)
    model = build(cls, cls.Options.model_validate_json(json.dumps(asked["options"])), io)
    predictor = predictor_of(model, torch.device("cpu"))
    for seed in range(asked["seeds"]):
        model.load_state_dict(safetensors.torch.load((JOB / f"weights-{seed}.safetensors").read_bytes()))
        for place, at_once in enumerate(asked["at_once"]):
            with np.load(JOB / f"in-{place}.npz") as arrays:
                tokens, lengths = arrays["tokens"], arrays["lengths"]
            kept = np.float32 if kind == "vectors" else np.float16
            packed, end = np.empty((0, 0), kept), 0
            for start in range(0, len(tokens), at_once):
                longest = int(lengths[start : start + at_once].max())
                predicted = predictor.predict(tokens[start : start + at_once, :longest])
                if start == 0:  # all at once: a list of rows and what they are joined to would be twice as much
                    packed = np.empty((int(lengths.sum()), predicted.shape[-1]), kept)
                for row, length in zip(predicted, lengths[start:], strict=False):
                    packed[end : end + length] = row[:length]
                    end += int(length)
            np.savez_compressed(JOB / f"out-{seed}-{place}.npz", packed=packed, lengths=lengths)


if __name__ == "__main__":
    main()
