"""One training step of every architecture on a GPU that is not there, as a program: what each came to, as JSON.

PyTorch lets Python pretend a device: its tensors have shapes, types and a place, and no values. Everything that a GPU refuses
before it computes is refused here too: tensors of two devices in one operation, a constant that was left on the CPU, a type
that an operation does not take. Kernels themselves do not run, so an op with a kernel takes another implementation here.
Run as `python -m tests.helpers.fake_device`, in a process of its own, as a device can be registered once and stays.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

from regbench.config import OF_TRAINING, parted, read_config
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.ops import backend
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.training.options import resolve_training
from regbench.training.step import make_optimizer, train_step
from regbench.utils import registry
from regbench.utils.errors import UserError
from tests.helpers.papers_configs import CONFIGS, io_of

DEVICE = "fake"
TOKENS = TokenIO(vocab_size=9, separator=8, max_length=16, names=tuple("abcdefgh|"))
KERNELS = ("triton", "flash-attn", "mamba-ssm")
"""Forms that are kernels."""
SMALLER: dict[str, dict[str, Any]] = {
    "cgt": {},
    "fast_slow": {},
    "mesanet": {"n_layers": 1, "cg_steps": 2},
    "hybrid": {},
}
"""Settings of those that do not take a single layer, or take many steps for it."""
NARROW = ("conv1d", "conv2d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
WIDE = (
    "softmax.int",
    "log_softmax.int",
    "layer_norm",
    "cumsum",
    "cumprod",
    "exp",
    "log",
    "sum.dim_IntList",
    "norm.ScalarOpt_dim",
)
"""What autocast does in bfloat16 and in float32 on CUDA, of what models here use."""


class _Module:
    """What stands for `torch.cuda`."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def pretend() -> None:
    """Makes the device, and lets every op take on it the implementations that are PyTorch's own and run on CUDA."""
    backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=_Module())
    for op in backend.known_ops().values():
        for name, one in op.implementations.items():
            if "cuda" in one.devices and name not in KERNELS:
                op.implementations[name] = dataclasses.replace(one, devices=(*one.devices, DEVICE))  # type: ignore[index]


def autocast_as_cuda(library: torch.library.Library) -> None:
    """Gives the device the rules of CUDA's autocast; they hold as long as `library` does."""
    for names, dtype in ((NARROW, torch.bfloat16), (WIDE, torch.float32)):
        for name in names:
            base, _, overload = name.partition(".")
            library.impl(name, _cast(getattr(getattr(torch.ops.aten, base), overload or "default"), dtype))


def _cast(op: Any, dtype: torch.dtype) -> Any:
    here = torch._C.DispatchKeySet(torch._C._parse_dispatch_key("AutocastPrivateUse1"))

    def taken(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(here):
            return op(*map(taken, args), **{name: taken(value) for name, value in kwargs.items()})

    return cast


def move(model: torch.nn.Module) -> None:
    """As `model.to(DEVICE)`, which cannot replace fake parameters: what is no parameter and no buffer stays where it is."""
    moved: dict[Any, Any] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                new = torch.nn.Parameter(parameter.detach().to(DEVICE), parameter.requires_grad)
                new.__dict__.update({k: v for k, v in parameter.__dict__.items() if k not in new.__dict__})  # its marks
                module._parameters[name] = moved.setdefault(parameter, new)
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = None if buffer is None else moved.setdefault(buffer, buffer.to(DEVICE))


def step(architecture: str, settings: dict[str, Any], io: IO, batch_size: int) -> str:
    """ "" where one training step leaves all gradients on the device, else what was wrong."""
    cls = registry.load(registry.ARCHITECTURE, architecture)
    more, own = parted(settings, OF_TRAINING)
    training = resolve_training(cls, more)
    with FakeTensorMode():  # refuses shapes that depend on values, which a recorded step cannot have
        model = build(cls, resolve_options(cls, own), io)
        move(model)
        shape = (batch_size, io.max_length)
        tokens = (
            torch.empty(*shape, io.d_in, device=DEVICE)
            if isinstance(io, VectorIO)
            else torch.empty(shape, dtype=torch.int64, device=DEVICE)
        )
        scored = torch.ones(shape, dtype=torch.bool, device=DEVICE)
        train_step(model, make_optimizer(model, training), (tokens, scored), training)
        lost = [n for n, p in model.named_parameters() if p.grad is None or p.grad.device.type != DEVICE]
    return f"no gradient on the device: {', '.join(lost)}" if lost else ""


def cases() -> dict[str, tuple[str, dict[str, Any], IO, int]]:
    """What is tried: every architecture by autocast, with n-gram heads where it takes them; the papers' configurations.

    One layer is as good as two, and pretending takes a while.
    """
    found: dict[str, tuple[str, dict[str, Any], IO, int]] = {}
    for name in registry.entries(registry.ARCHITECTURE):
        made_of_a_mixer = issubclass(registry.load(registry.ARCHITECTURE, name), Mixer)
        heads: dict[str, Any] = {"ngram_heads": [1, 2]} if made_of_a_mixer else {}
        found[name] = (
            name,
            {"training.precision": "bfloat16", **heads, **SMALLER.get(name, {"n_layers": 1})},
            TOKENS,
            4,
        )
    for name, path in CONFIGS.items():
        config = read_config(path)
        settings = dict(config.settings)
        found[name] = (config.architecture, settings, io_of(config), settings["training.batch_size"])
    return found


def main() -> None:
    pretend()
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    rules = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    autocast_as_cuda(rules)
    results = {}
    for name, case in cases().items():
        try:
            results[name] = step(*case)
        except UserError as error:
            results[name] = f"refused: {error}"
        except Exception as error:
            results[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
