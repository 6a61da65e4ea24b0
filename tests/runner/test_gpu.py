"""Whole runs on a GPU: they agree with the CPU's, go on after an interruption, and can be looked into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regbench
from regbench.training.progress import Progress, Reporter

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHORT: dict[str, Any] = {"d_model": 16, "n_layers": 2, "training.batch_size": 8, "training.evaluations": 3}


class Interrupting(Reporter):
    """Interrupts a training at its second evaluation."""

    def __init__(self) -> None:
        self.evaluations = 0

    def trained(self, progress: Progress, total_steps: int, loss: float, tokens_per_second: float) -> None:
        self.evaluations += len(progress.curve) > self.evaluations
        if self.evaluations == 2:
            raise KeyboardInterrupt


def nll(result: regbench.Result) -> float:
    return result.seeds[0].scores["nll"].value


@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("transformer", {"ngram_heads": [1, 2]}),
        ("transformer", {"training.precision": "bfloat16"}),
        ("gla", {"ngram_heads": [1]}),
        ("mamba", {}),
        ("lstm", {}),
    ],
)
def test_a_run_scores_as_on_the_cpu(tiny_file: Path, tmp_path: Path, arch: str, more: dict[str, Any]) -> None:
    """Weights start alike, and some tens of steps do not drive rounding errors far apart."""
    found = {
        device: regbench.run(
            str(tiny_file), arch, 0, settings=SHORT | more, device=device, out=tmp_path / device, reporter=Reporter()
        )
        for device in ("cpu", "cuda")
    }
    assert found["cuda"].environment.device == torch.cuda.get_device_name()
    assert found["cuda"].seeds[0].peak_memory_bytes > 0
    assert nll(found["cuda"]) == pytest.approx(nll(found["cpu"]), abs=2e-2)
    if "ngram_heads" in more:
        assert found["cuda"].environment.backend["ngram_head"] == "triton"


def test_an_interrupted_run_goes_on(tiny_file: Path, tmp_path: Path) -> None:
    """From its last checkpoint, with the optimizer and the generators as they were."""
    settings = SHORT | {"training.checkpoint_seconds": 0.0}
    whole = regbench.run(
        str(tiny_file), "transformer", 0, settings=settings, device="cuda", out=tmp_path / "whole", reporter=Reporter()
    )
    with pytest.raises(KeyboardInterrupt):
        regbench.run(
            str(tiny_file),
            "transformer",
            0,
            settings=settings,
            device="cuda",
            out=tmp_path / "cut",
            reporter=Interrupting(),
        )
    assert (tmp_path / "cut" / "seed-0" / "resume.safetensors").exists()
    again = regbench.resume(tmp_path / "cut", Reporter())
    assert again.seeds[0].steps == whole.seeds[0].steps
    assert nll(again) == pytest.approx(nll(whole), abs=1e-3)


def test_a_trained_model_is_looked_into_on_the_cpu(tiny_file: Path, tmp_path: Path) -> None:
    """Weights that a GPU trained are read where there is none; both places predict the same."""
    result = regbench.run(
        str(tiny_file), "gla", 0, settings=SHORT, device="cuda", out=tmp_path / "run", reporter=Reporter()
    )
    trained = regbench.load(tmp_path / "run")
    scored = regbench.evaluate(str(tiny_file), trained)
    assert nll(scored) == pytest.approx(nll(result), abs=1e-4)
