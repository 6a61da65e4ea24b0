"""Files of mixers as people write them, and what a command says."""

from __future__ import annotations

import pytest

from regbench import cli

AVERAGE = """
import torch
import regbench


class Average(regbench.Mixer):
    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
"""
PLUGIN = "import regbench\nclass Same(regbench.Mixer):\n    def forward(self, x):\n        return x\n"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()  # what was said before
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """Asserts that a command says one line on stderr with this message, and has the exit code 2."""
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("regbench: ")
    assert err.count("\n") == 1
