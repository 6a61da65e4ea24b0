"""One run: track -> instances -> baselines -> training -> predictions -> scores -> result.

The run folder holds `config.yaml`, `result.json`, `report.html`, the pictures, and a folder for each seed with
`metrics.jsonl`, `checkpoint.safetensors`, `predictions.npz`, `scores.json` and `provenance.json`. A folder without `result.json`
can be resumed.
"""

from regbench.runner.score import evaluate, evaluate_language_model
from regbench.runner.train import begin, check_seeds, resume, run, run_config, score_seed, train_seed

__all__ = [
    "begin",
    "check_seeds",
    "evaluate",
    "evaluate_language_model",
    "resume",
    "run",
    "run_config",
    "score_seed",
    "train_seed",
]
