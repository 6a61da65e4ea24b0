"""What the tests of ops compare: tensors by their largest entry, bits over numbers of threads, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Equal shapes, and entries equal to `tolerance` times the largest entry of each tensor."""
    for place, (ours, right) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == right.shape, place
        atol = tolerance * (float(right.detach().abs().max()) if right.numel() else 0.0)
        torch.testing.assert_close(ours, right, rtol=0, atol=atol, msg=lambda m, place=place: f"{place}: {m}")


def gradients(outputs: Iterable[Tensor | None], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs that there are, and the gradient of every input for upstream gradients of all of them."""
    outputs = [output for output in outputs if output is not None]
    generator = torch.Generator().manual_seed(0)
    upstream = [torch.randn(out.shape, dtype=torch.float64, generator=generator).to(out) for out in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs, upstream)]


def bytes_kept(call: Callable[[], object], without: Iterable[Tensor] = ()) -> int:
    """What a call keeps for its backward pass, each storage once, those of some tensors left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in without}
    kept: dict[int, torch.UntypedStorage] = {}  # held, as an address may be used again

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(storage.nbytes() for storage in kept.values())


class LargestTensor(TorchDispatchMode):  # type: ignore[misc]
    """Notes the bytes of the largest tensor that any operation returns."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes = max([self.bytes, *(x.nbytes for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


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
