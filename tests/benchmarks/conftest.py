"""Every benchmark says its figures in a line of its own; pytest-benchmark's table has room for times alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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
