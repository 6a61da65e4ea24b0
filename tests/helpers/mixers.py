"""The built-in architectures that are mixers on the common backbone, for tests that hold for every one of them."""

from __future__ import annotations

import pytest

from regbench.models.mixer import Mixer
from regbench.utils import registry

MIXERS = [
    name
    for name in registry.entries(registry.ARCHITECTURE)
    if issubclass(registry.load(registry.ARCHITECTURE, name), Mixer)
]
"""Their names."""

SOME_MIXERS = [
    pytest.param(name, marks=() if name in ("lstm", "mamba", "transformer") else pytest.mark.slow) for name in MIXERS
]
"""By default one of each kind, all with the slow tests: for what takes seconds for each."""
