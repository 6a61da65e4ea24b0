"""What every architecture must satisfy, each line a function that says what is wrong or nothing.

`regbench run` asks the first lines of a stranger's file before it spends minutes on it; `regbench check` asks all of them, and
the tests ask them of every built-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from regbench.errors import UserError
from regbench.models.build import build
from regbench.models.mixer import Options
from regbench.models.model import Model, shift_in
from regbench.registry import blame
from regbench.scoring import score_positions
from regbench.tasks.task import IO, VectorIO
from regbench.tracks import load_track

TOLERANCE = 1e-5
"""Rounding allowed before two outputs count as different, relative to the largest logit (at least 1): fused kernels sum in
another order when a shape differs. A real fault moves logits by far more."""

STREAM_TOLERANCE = 1e-4
"""The same between the parallel and the recurrent form, which compute different sums, in float32."""

LEARNING_STEPS = 400
LEARNING_RATES = (3e-3, 1e-2)
"""Within so many steps, at one of these rates, an architecture must know 8 instances by heart."""


class NotApplicable(Exception):
    """A line of the contract that this architecture states it has no part in."""


@dataclass(frozen=True)
class Subject:
    """An architecture with options, for a task's tokens or vectors: what the contract is asked of."""

    cls: type[Any]
    options: Options
    io: IO
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def model(self, seed: int = 0) -> Model:
        """A model in evaluation mode, its weights drawn under `seed`."""
        torch.manual_seed(seed)
        return build(self.cls, self.options, self.io).to(self.device).eval()

    def tokens(self, batch: int = 3, length: int = 32) -> Tensor:
        """Random tokens (B, L), the separator among them; of a task of vectors (B, L, D_in), Gaussian."""
        generator = torch.Generator().manual_seed(0)
        shape = (batch, min(length, self.io.max_length))
        if isinstance(self.io, VectorIO):
            return torch.randn(*shape, self.io.d_in, generator=generator).to(self.device)
        return torch.randint(self.io.vocab_size, shape, generator=generator).to(self.device)

    @property
    def width(self) -> int:
        """Of an output at one position: V, or of vectors D_out."""
        return self.io.d_out if isinstance(self.io, VectorIO) else self.io.vocab_size

    def other(self, tokens: Tensor) -> Tensor:
        """Tokens or vectors that differ from these in every place."""
        return tokens + 1.0 if isinstance(self.io, VectorIO) else (tokens + 1) % self.io.vocab_size


Check = Callable[[Subject], str | None]


def shape(subject: Subject) -> str | None:
    """Logits are (B, L, V), at length 1 too."""
    model, tokens = subject.model(), subject.tokens()
    for part in (tokens, tokens[:, :1]):
        wanted, got = (*part.shape[:2], subject.width), tuple(model(part).shape)
        if got != wanted:
            return f"it returns the shape {got}, not {wanted}"
    return None


def finite(subject: Subject) -> str | None:
    """No NaN or infinity, also at length 1, with all tokens equal, and at the longest length of the task."""
    model, tokens = subject.model(), subject.tokens()
    longest = subject.tokens(1, subject.io.max_length)
    cases = {
        f"length {tokens.shape[1]}": tokens,
        "length 1": tokens[:, :1],
        "all tokens equal": torch.zeros_like(tokens),
        f"the longest length, {longest.shape[1]}": longest,
    }
    for name, case in cases.items():
        if not torch.isfinite(model(case)).all():
            return f"it returns NaN or infinity at {name}"
    return None


def causal(subject: Subject) -> str | None:
    """Changing token t changes no logits at or before t: those of position t predict token t itself."""
    model, tokens = subject.model(), subject.tokens()
    before, length = model(tokens), tokens.shape[1]
    for t in sorted({0, 1, length // 2, length - 1} & set(range(length))):
        changed = tokens.clone()
        changed[:, t] = subject.other(changed[:, t])
        after = model(changed)
        if _differ(before[:, : t + 1], after[:, : t + 1]):
            first = int((after - before)[:, : t + 1].abs().amax(dim=(0, 2)).argmax())
            return f"it sees the future: changing token {t} changes the prediction of token {first}"
    return None


def batch_independent(subject: Subject) -> str | None:
    """A sequence is predicted the same whatever shares its batch."""
    model, tokens = subject.model(), subject.tokens()
    if _differ(model(tokens)[:1], model(tokens[:1])):
        return "a sequence's prediction depends on the others in its batch"
    return None


def gradients(subject: Subject) -> str | None:
    """Every parameter receives a finite gradient from the loss."""
    model, tokens = subject.model(), subject.tokens()
    scored = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    with torch.enable_grad():
        torch.stack(list(model.losses(tokens, scored).values())).sum().backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None or (parameter.grad == 0).all():
            return f"the parameter {name} receives no gradient"
        if not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name} is NaN or infinite"
    return None


def deterministic(subject: Subject) -> str | None:
    """One seed gives one model, another seed another; the same input gives the same output to the bit."""
    tokens = subject.tokens()
    first, again, other = (subject.model(seed)(tokens) for seed in (0, 0, 1))
    if not torch.equal(first, again):
        return "two models made under one seed differ"
    model = subject.model()
    if not torch.equal(model(tokens), model(tokens)):
        return "the same input gives different outputs"
    return None if not torch.equal(first, other) else "models made under different seeds are the same"


def streams(subject: Subject) -> str | None:
    """The recurrent form, one token at a time, gives what the parallel form gives."""
    model, tokens = subject.model(), subject.tokens()
    if not hasattr(model, "step"):
        raise NotApplicable("has no recurrent form")
    try:
        state = model.init_state(len(tokens))  # type: ignore[operator]
    except UserError:
        raise NotApplicable("has no recurrent form") from None
    whole, inputs = model(tokens), shift_in(tokens, subject.io.separator)
    for t in range(tokens.shape[1]):
        logits, state = model.step(inputs[:, t], state)  # type: ignore[operator]
        if _differ(whole[:, t], logits, STREAM_TOLERANCE):
            return f"its recurrent form leaves the parallel one at position {t}"
    return None


def saves(subject: Subject) -> str | None:
    """Its weights go through safetensors, and a model that loads them gives the same outputs to the bit."""
    model, tokens = subject.model(), subject.tokens()
    stored = safetensors.torch.save({k: v.contiguous().clone() for k, v in model.state_dict().items()})
    loaded = subject.model(seed=1)
    loaded.load_state_dict(safetensors.torch.load(stored))
    return (
        None
        if torch.equal(model(tokens), loaded(tokens))
        else "a model loaded from its saved weights predicts otherwise"
    )


def options_round_trip(subject: Subject) -> str | None:
    """Its options survive being written as JSON and read back."""
    again = type(subject.options).model_validate_json(subject.options.model_dump_json())
    return None if again == subject.options else f"its options come back from JSON as {again}"


def compiles(subject: Subject) -> str | None:
    """It works under torch.compile (traced, not lowered, so that no compiler is needed), or states `compiles = False`."""
    if not getattr(subject.cls, "compiles", True):
        raise NotApplicable("states that it does not")
    model, tokens = subject.model(), subject.tokens()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    return "under torch.compile it predicts otherwise" if _differ(model(tokens), compiled(tokens)) else None


def learns(subject: Subject) -> str | None:
    """It learns 8 short instances by heart: legal accuracy 0.99 within 400 steps; or states that it cannot, and does not."""
    best = _known_by_heart(subject)
    known = best >= 0.99
    if not subject.cls.memorises(subject.options):
        if known:
            return "it states that it cannot learn instances by heart, but it does"
        raise NotApplicable(f"states that it cannot; its legal accuracy on 8 instances is {best:.2f}")
    if known:
        return None
    return f"after {LEARNING_STEPS} steps on 8 instances its legal accuracy on them is {best:.2f}, not 0.99"


def _known_by_heart(subject: Subject) -> float:
    """The legal accuracy on 8 short instances that the subject reaches by training on nothing else; no more than it needs."""
    track = load_track("pfa-small-v1")
    train = track.instances("train")
    few = train[
        np.argsort(train.lengths, kind="stable")[:8]
    ]  # the shortest: the least time for a mixer written as a loop
    learner = Subject(subject.cls, subject.options, track.task.io, subject.device)
    tokens = torch.from_numpy(few.tokens.astype(np.int64)).to(subject.device)
    scored, truth = torch.from_numpy(few.scored).to(subject.device), track.task.truth(few)
    best = 0.0
    for rate in LEARNING_RATES:
        model = learner.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        for step in range(1, LEARNING_STEPS + 1):
            with torch.enable_grad():
                loss = torch.stack(list(model.train().losses(tokens, scored).values())).sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 25 == 0:
                predicted = model.eval()(tokens).softmax(-1).double().cpu().numpy()
                legal = score_positions(predicted, truth, few.tokens)["legal_accuracy"]
                best = max(best, float(legal[few.scored].mean()))
                if best >= 0.99:
                    return best
    return best


PREFLIGHT: tuple[Check, ...] = (shape, finite, causal)
CONTRACT: tuple[Check, ...] = (
    *PREFLIGHT,
    batch_independent,
    gradients,
    deterministic,
    streams,
    saves,
    options_round_trip,
    compiles,
    learns,
)


@dataclass(frozen=True)
class Outcome:
    """What one line of the contract found: a fault, or a note where it does not apply; neither where it holds."""

    check: str
    fault: str | None = None
    note: str | None = None


def examine(subject: Subject, checks: Iterable[Check] = CONTRACT) -> Iterable[Outcome]:
    """Asks each check in turn. An exception from the architecture's own code is a fault of that line."""
    for check in checks:
        try:
            with torch.no_grad():
                yield Outcome(check.__name__, check(subject))
        except NotApplicable as reason:
            yield Outcome(check.__name__, note=str(reason))
        except UserError as error:
            yield Outcome(check.__name__, str(error))
        except Exception as error:
            yield Outcome(check.__name__, f"it raises {blame(error)}")


def preflight(subject: Subject, name: str) -> None:
    """Refuses an architecture that cannot give a meaningful score.

    Raises:
        UserError: with the first of shape, finite, causal that does not hold.
    """
    for outcome in examine(subject, PREFLIGHT):
        if outcome.fault:
            raise UserError(f"architecture '{name}' cannot be scored: {outcome.fault}")


def _differ(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> bool:
    return bool((a - b).abs().max() > tolerance * a.abs().max().clamp(min=1.0))
