"""Shared by the tests of ops: one process in which Triton interprets, and memory that is poisoned."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from tests.helpers.interpreter import prepare


@pytest.fixture(scope="session")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process of its own, as Triton decides at import whether it interprets. It takes seconds to start."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(os.getpid).result()  # the process starts here, and keeps the variable
        yield pool


@pytest.fixture
def poison() -> Iterator[None]:
    """Deterministic mode fills `torch.empty` with NaN, so a place that is never written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
