"""Every benchmark says its figures in a line of its own; pytest-benchmark's table has room for times alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _say_the_figures(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    benchmark = request.getfixturevalue("benchmark") if "benchmark" in request.fixturenames else None
    yield
    if benchmark is not None and benchmark.extra_info:
        figures = ", ".join(
            f"{name} {value:,}" if isinstance(value, int | float) else f"{name} {value}"
            for name, value in benchmark.extra_info.items()
        )
        with capsys.disabled():
            print(f"\n{request.node.name}: {figures}")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For all forms that are compared, so that a busy machine favours none, and the process's time is the call's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
