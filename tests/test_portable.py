"""The package imports on systems that lack what only Linux or only Unix has."""

from __future__ import annotations

import subprocess
import sys

import pytest

ELSEWHERE = """
import importlib, os, pkgutil, random, sys

import filelock, matplotlib.pyplot, numba, pandas, rich.progress, tokenizers, torch  # they do without by themselves

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # an import of it now raises ImportError
for name in ("sched_getaffinity", "register_at_fork"):
    delattr(os, name)
import regbench

own = [module.name for module in pkgutil.walk_packages(regbench.__path__, "regbench.")]
optional = ("triton", "flash", "mamba_ssm", "__main__", "triton_kernels")  # implementations that need a GPU's package
for name in own:
    if name.rpartition(".")[2] not in optional:
        importlib.import_module(name)
from regbench.training import provenance
from regbench.utils import threads

assert threads.available() >= 1
assert provenance.peak_memory(torch.device("cpu")) >= 1 << 20
provenance._STATUS = provenance.Path("/nowhere/status")
assert provenance.peak_memory(torch.device("cpu")) == 0
print(len(own))
"""


@pytest.mark.ci
def test_every_module_imports_without_what_one_system_has() -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
