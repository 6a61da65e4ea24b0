"""What the tests of ops compare: tensors by their largest entry, and bits over numbers of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Equal shapes, and entries equal to `tolerance` times the largest entry of each tensor."""
    for place, (ours, right) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == right.shape, place
        atol = tolerance * (float(right.detach().abs().max()) if right.numel() else 0.0)
        torch.testing.assert_close(ours, right, rtol=0, atol=atol, msg=lambda m, place=place: f"{place}: {m}")


def assert_same_bits_for_any_threads(call: Callable[[], Sequence[Tensor]], threads: Iterable[int]) -> None:
    """The same tensors to the bit with each number of threads; and the kernels leave that number alone."""
    before, results = torch.get_num_threads(), []
    try:
        for number in threads:
            torch.set_num_threads(number)
            results.append(call())
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
