"""Every architecture, and every configuration at the papers' scale, trains on a GPU, as far as can be told without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

from regbench.utils import registry
from tests.helpers.documents import ROOT
from tests.helpers.papers_configs import CONFIGS

READS_VALUES = "learned_ngram"
"""It looks at the tokens it was given before it counts them, and pretended ones have no values."""

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="this PyTorch cannot pretend a device",
    ),
]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    done = run("-m", "tests.helpers.fake_device")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_each_trains_a_step(results: dict[str, str]) -> None:
    wrong = {name: said for name, said in results.items() if said}
    assert list(wrong) == [READS_VALUES]
    assert wrong[READS_VALUES].startswith("DataDependentOutputException")


def test_all_architectures_and_configurations_are_among_them(results: dict[str, str]) -> None:
    assert CONFIGS, "no configuration was found"
    assert set(CONFIGS) | set(registry.entries(registry.ARCHITECTURE)) == set(results)


STRAYS = """
import torch
from tests.helpers import fake_device as gpu
import regbench

class Stray(regbench.Mixer):
    def __init__(self, options):
        super().__init__(options)
        self.map = torch.nn.Linear(options.d_model, options.d_model)
        self.scale = torch.ones(options.d_model)

    def forward(self, x):
        return self.map(x) * self.scale

class Placed(Stray):
    def __init__(self, options):
        super().__init__(options)
        del self.scale
        self.register_buffer("scale", torch.ones(options.d_model))

class Forgetful(Placed):
    def forward(self, x):
        return super().forward(x) + torch.arange(x.shape[1])[:, None]

gpu.pretend()
for mixer in (Stray, Placed, Forgetful):
    gpu.registry.load = lambda kind, name: mixer
    try:
        print(gpu.step("a stray", {}, gpu.TOKENS, 2) or "fine")
    except RuntimeError as error:
        print(error)
"""


def test_a_tensor_left_on_the_cpu_is_found(tmp_path: Path) -> None:
    """As `model.to` leaves one that is neither a parameter nor a buffer, and code that forgets `device=` makes one."""
    path = tmp_path / "strays.py"
    path.write_text(STRAYS)
    stray, placed, forgetful = run(str(path)).stdout.splitlines()
    assert "at least two devices" in stray
    assert placed == "fine"
    assert "at least two devices" in forgetful
