"""A transformer on tasks of which four examples are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from regbench import runner
from regbench.analysis.trained import Trained, load

EXAMPLES = {
    "name": "examples-v1",
    "task": "arithmetic",
    "parameters": {"n_tasks": 1, "n_examples": 4, "n_digits": 1},
    "splits": {"train": 16, "validation": 7, "test": 7, "seed": 0},
    "budget": {"train_tokens": 1200},
    "main_score": "last_two_accuracy",
}


@pytest.fixture(scope="session")
def examples_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its run. An example has nine tokens."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "examples-v1.yaml").write_text(yaml.safe_dump(EXAMPLES))
    settings = {"d_model": 8, "n_heads": 2, "n_layers": 3, "training.evaluations": 1}
    runner.run(str(folder / "examples-v1.yaml"), "transformer", settings=settings, out=folder / "run")
    return folder / "run"


@pytest.fixture
def examples(examples_run: Path) -> Trained:
    """The model, far from its start, so that its states differ and the prompt matters."""
    found = load(examples_run)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return found
