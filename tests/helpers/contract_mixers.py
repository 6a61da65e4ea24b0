"""A mixer that keeps the contract, ways to change a line of it, and mixers that take more than a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regbench.checks.architecture import CONTRACT, compiles
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.models.mixer import Mixer
from regbench.tasks.base import TokenIO
from tests.helpers.subjects import subject_of

IO = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))

CHEAP = tuple(check for check in CONTRACT if check is not overfits)
UNCOMPILED = tuple(check for check in CHEAP if check is not compiles)


def faults(cls: type[Mixer], checks: object = CHEAP, **options: object) -> dict[str, str]:
    """By check what is wrong with a mixer."""
    subject = subject_of(cls, IO, **{"d_model": 16, **options})
    return {o.check: o.fault for o in examine(subject, checks) if o.fault}  # type: ignore[arg-type]


class Good(Mixer):
    def __init__(self, options: object) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self.linear = nn.Linear(self.options.d_model, self.options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.linear(x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None])
        return mixed


def ahead(x: Tensor) -> Tensor:
    """What follows each position; zeros behind the last."""
    return nn.functional.pad(x, (0, 0, 0, 1))[:, 1:]


def mixed(change: Callable[[Any, Tensor, Tensor], Tensor], of: type[Good] = Good) -> type[Mixer]:
    """A mixer whose output is made of itself, of what the good one gives, and of x."""
    return type("Broken", (of,), {"forward": lambda self, x: change(self, of.forward(self, x), x)})


class Gated(Good):
    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.gate = nn.Parameter(torch.zeros(1))


class PeeksFarIn(Good):
    def forward(self, x: Tensor) -> Tensor:
        far = torch.arange(x.shape[1], device=x.device)[:, None] >= 32
        return super().forward(x) + far * ahead(x)


class PeeksAtBorders(Good):
    """The last row of each chunk reads the first row of the next."""

    chunk = 16

    def forward(self, x: Tensor) -> Tensor:
        last = (torch.arange(x.shape[1], device=x.device)[:, None] + 1) % self.chunk == 0
        return super().forward(x) + last * ahead(x)


class BeginsSilent(Good):
    """Its last map begins at zero, as many do: what is before it has no gradient at the first step, and has one later."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.out = nn.Linear(self.options.d_model, self.options.d_model)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(super().forward(x))
        return mixed


class KeepsItsGraph(Good):
    """In training, from one step to the next."""

    before: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        mixed = super().forward(x) + (self.before if self.training else 0.0)
        if self.training:
            self.before = mixed.mean()
        return mixed


class KeepsABatch(Good):
    """What it saw last in training is added to a batch of the same size."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        mixed = super().forward(x)
        if self.last is not None and self.last.shape == mixed[:, -1:].shape:
            mixed = mixed + self.last
        if self.training:
            self.last = mixed[:, -1:].detach()
        return mixed


class MakesABufferInTraining(Good):
    def forward(self, x: Tensor) -> Tensor:
        mixed = super().forward(x)
        if self.training and not hasattr(self, "mean"):
            self.register_buffer("mean", mixed.mean().detach())
        return mixed


class Complex(Good):
    """A complex parameter, which the fused AdamW does not take."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.turn = nn.Parameter(torch.randn(self.options.d_model, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.turn * super().forward(x)).real + self.turn.imag


class Remembers(Good):
    """The mean of all it ever saw."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.seen: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.mean((0, 1)).detach()
        return super().forward(x) + self.seen


class CountsItsCalls(Good):
    """Its noise fades with a number that is no buffer."""

    calls: Tensor

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.calls = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            x = x + torch.randn_like(x) / self.calls
        return super().forward(x)


class CountsInABuffer(CountsItsCalls):
    """As it should."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        del self.calls
        self.register_buffer("calls", torch.zeros(()))


class StreamsOtherwise(Good):
    def init_state(self, batch: int, device: object = None, dtype: object = None) -> None:
        return None

    def step(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        return self.linear(x), None


class Streams(Good):
    """The mean so far, with a recurrent form: a sum of D numbers, and the count in 8 bytes."""

    def init_state(
        self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        D = self.options.d_model
        return {"sum": torch.zeros(batch, D, device=device, dtype=dtype), "n": torch.zeros(batch, 1, dtype=torch.int64)}

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        state = {"sum": state["sum"] + x, "n": state["n"] + 1}
        return self.linear(state["sum"] / state["n"]), state

    @classmethod
    def state_bytes(cls, options: object) -> int:
        return 4 * options.d_model + 8  # type: ignore[attr-defined]


State = dict[str, Tensor]


def streamed(change: Callable[[Tensor, State, Tensor, State], tuple[Tensor, State]]) -> type[Mixer]:
    """A mixer whose step is made of x, of the state before, and of the output and state that would be right."""
    return type("Broken", (Streams,), {"step": lambda self, x, state: change(x, state, *Streams.step(self, x, state))})


class GoesOn(Streams):
    """The state of its second stream is that of the first, changed in place."""

    def init_state(
        self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        if not hasattr(self, "state"):
            self.state = super().init_state(batch, device, dtype)
        return self.state

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        y, after = super().step(x, state)
        for name, tensor in after.items():
            state[name].copy_(tensor)
        return y, state


class FillsAWindow(Good):
    """The sum of the last 64 positions, kept as they come: after 36 tokens not all of the state that it claims is there."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.cumsum(1)
        return self.linear(total - nn.functional.pad(total, (0, 0, 64, 0))[:, : x.shape[1]])

    def init_state(
        self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        return []

    def step(self, x: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        state = [*state, x][-64:]
        return self.linear(torch.stack(state).sum(0)), state

    @classmethod
    def state_bytes(cls, options: object) -> int:
        return 64 * 4 * options.d_model  # type: ignore[attr-defined]


class Forgets(Good):
    """Keeps a part of itself out of its weights."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        self.scale = torch.randn(self.options.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class BornOfChance(Good):
    """Its weights come from elsewhere than the seed."""

    def __init__(self, options: object) -> None:
        super().__init__(options)
        nn.init.normal_(self.linear.weight, generator=torch.Generator().manual_seed(time.perf_counter_ns()))


class Unteachable(Good):
    """Sees nothing: the last norm's input is the same everywhere, but every parameter has a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 + 0 * x + 1e-3 * super().forward(x).mean(2, keepdim=True)
