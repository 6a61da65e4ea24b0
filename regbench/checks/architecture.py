"""The contract of architectures. Each check is a function that returns what is wrong, or None.

`regbench run` runs `SCORABLE` and `trains` before it trains. `regbench check` runs all of `CONTRACT`, and the tests run it on
every built-in architecture.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from regbench.checks.contract import Check, NotApplicable
from regbench.data.instances import Instances
from regbench.metrics.metric import score_positions
from regbench.models.backbone import build, held_bytes
from regbench.models.mixer import Options
from regbench.models.model import CPU, Model, manual_seed, shift_in, token_tensor
from regbench.tasks.base import IO, VectorIO
from regbench.tracks import load_track
from regbench.training.options import TrainingOptions
from regbench.training.trainer import autocast, batch_tensors, make_optimizer, train_step
from regbench.utils.errors import UserError, blame

TOLERANCE = 1e-5
"""Two outputs are equal within this rounding, relative to the largest logit (at least 1).

Fused kernels sum in another order when a shape differs. A real fault moves logits by far more.
"""

STREAM_TOLERANCE = 1e-4
"""The same between the parallel and the recurrent form in float32: they sum in different orders."""

CAUSAL_TOLERANCE = 1e-4
"""The same between two inputs that differ later on. A convolution by FFT spreads its rounding over all positions.

Hyena has the most of the built-in architectures: 1.4e-5 on weights moved by `STEPS`.
"""

TRAINED_TOLERANCE = 1e-3
"""The same for a trained model, where a wrong refusal costs the most. A leak this small moves no score. Hyena has 1.4e-6."""

STEPS = (0.1, 0.01, 0.0)
"""The standard deviations of the noise that moves weights from their start. The first that keeps the output finite is used."""

LARGEST_RATE = 1e-2
"""The learning rate of the two steps of `trains` is not above this."""

OVERFIT_STEPS = 400
OVERFIT_RATES = (3e-3, 1e-2)
"""Within so many steps, at one of these learning rates, an architecture must overfit 8 instances."""

OVERFIT_SECONDS = 600.0
"""What would take longer is not asked."""

_TIMED_STEPS = (2, 5)
"""The steps between these say how long all would take. Kernels are compiled in those before."""


@dataclass(frozen=True)
class Subject:
    """What the checks take: an architecture with its options, for the tokens or vectors of a task.

    Attributes:
        cls: the architecture.
        options: of the architecture.
        io: of the task.
        device: where the models are made.
        training: how the run will train it.
    """

    cls: type[Any]
    options: Options
    io: IO
    device: torch.device = CPU
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def model(self, seed: int = 0) -> Model:
        """A model in evaluation mode, its weights drawn under `seed`."""
        manual_seed(seed)
        return build(self.cls, self.options, self.io).to(self.device).eval()

    def moved(self) -> Model:
        """A model whose trainable weights are moved away from their start by noise, as training moves them.

        A branch that a zero weight shuts at the start is then open.
        """
        for step in STEPS:
            model, generator = self.model(), torch.Generator().manual_seed(1)
            for parameter in model.parameters():
                kind = parameter.dtype if parameter.is_complex() else torch.float32
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator, dtype=kind)
                    parameter.data += step * noise.to(parameter)
            if model(self.tokens(1, length=None)).isfinite().all():
                break
        return model

    def tokens(self, batch: int = 3, length: int | None = 32) -> Tensor:
        """Random tokens (B, L), the separator among them; for a task of vectors, Gaussian vectors (B, L, D_in).

        Args:
            batch: B.
            length: the most positions; None: the longest length of the task.
        """
        generator = torch.Generator().manual_seed(0)
        shape = (batch, min(length or self.io.max_length, self.io.max_length))
        if isinstance(self.io, VectorIO):
            return torch.randn(*shape, self.io.d_in, generator=generator).to(self.device)
        tokens = torch.randint(self.io.vocab_size, shape, generator=generator)
        if self.io.bottleneck is not None:  # most positions are after it, as in the task's instances
            tokens[:, shape[1] // 4] = self.io.bottleneck
        return tokens.to(self.device)


def shape(subject: Subject) -> str | None:
    """Logits are (B, L, V), at length 1 too."""
    model, tokens = subject.model(), subject.tokens()
    for part in (tokens, tokens[:, :1]):
        wanted, out = (*part.shape[:2], subject.io.width), model(part)
        if not isinstance(out, Tensor):
            hint = "; take its first, with [0]" if isinstance(out, tuple | list) and out else ""
            return f"it returns {type(out).__name__}, not a tensor {wanted}{hint}"
        if out.shape != wanted:
            return f"it returns the shape {tuple(out.shape)}, not {wanted}"
    return None


def finite(subject: Subject) -> str | None:
    """No NaN or infinity, also at length 1, with all tokens equal, and at the longest length of the task."""
    model, tokens = subject.model(), subject.tokens()
    longest = subject.tokens(1, length=None)
    cases = {
        f"length {tokens.shape[1]}": tokens,
        "length 1": tokens[:, :1],
        "all tokens equal": torch.zeros_like(tokens),
        f"the longest length, {longest.shape[1]}": longest,
    }
    for name, case in cases.items():
        if not model(case).isfinite().all():
            return f"it returns NaN or infinity at {name}"
    return None


def causal(subject: Subject) -> str | None:
    """Changing token t changes no logits at or before t: those of position t predict token t itself."""
    model = subject.moved()
    for tokens in (subject.tokens(), subject.tokens(1, length=None)):
        length = tokens.shape[1]
        _finite(model(tokens))
        fault = _sees_future(subject, model, tokens, (0, 1, length // 2, 3 * length // 4, length - 2), CAUSAL_TOLERANCE)
        if fault:
            return fault
    return None


def refuse_trained(subject: Subject, model: Model, instances: Instances, name: str) -> None:
    """Refuses a trained model that sees the future. Training can open a leak that the untrained weights had shut.

    Args:
        subject: what the model was built from.
        model: the trained model.
        instances: of the task. The longest is asked for.
        name: of the architecture, for the message.

    Raises:
        UserError: changing one of 32 tokens, spread evenly, changes a prediction at or before it.
    """
    longest = int(instances.lengths.argmax())
    tokens = token_tensor(instances[longest : longest + 1].tokens, subject.device)
    places = np.linspace(0, tokens.shape[1] - 1, 32).round().astype(int).tolist()
    with torch.no_grad():
        fault = _sees_future(subject, model.eval(), tokens, places, TRAINED_TOLERANCE)
    if fault:
        raise UserError(f"architecture '{name}' cannot be scored: once trained, {fault}")


def _sees_future(subject: Subject, model: Model, tokens: Tensor, places: Iterable[int], tolerance: float) -> str | None:
    before = model(tokens)
    if not before.isfinite().all():
        return None  # `finite` reports it
    if _differ(before, model(tokens), tolerance):
        return "the same input gives different outputs: it is random, or keeps something from one call to the next"
    for t in sorted(set(places) & set(range(tokens.shape[1]))):
        changed = tokens.clone()
        changed[:, t] = _others(changed[:, t], subject.io)
        after = model(changed)
        if _differ(before[:, : t + 1], after[:, : t + 1], tolerance):
            first = int((after - before)[:, : t + 1].abs().amax(dim=(0, 2)).argmax())
            itself = t == 0 or not _differ(before[:, :t], after[:, :t], tolerance)
            shifts_itself = itself and issubclass(subject.cls, Model)  # the backbone shifts for a mixer
            hint = "; shift its inputs: regbench.shift_in(tokens, io.separator)" if shifts_itself else ""
            return f"it sees the future: changing token {t} changes the prediction of token {first}{hint}"
    return None


def _others(tokens: Tensor, io: IO) -> Tensor:
    """Tokens or vectors of which each differs from the given one."""
    return tokens + 1 if isinstance(io, VectorIO) else (tokens + 1) % io.vocab_size


def trains(subject: Subject) -> str | None:
    """Two training steps work at the longest length, in the run's precision. Every parameter gets a finite gradient.

    The steps are small, so that a large learning rate is not blamed on the architecture. In training mode, too, no prediction
    may depend on what follows.
    """
    model, tokens = subject.moved(), subject.tokens(2, length=None)
    _finite(model(tokens))
    # The second half repeats the first. In a large vocabulary no n-gram occurs twice by chance, and heads would learn nothing.
    half = tokens.shape[1] // 2
    tokens = torch.cat([tokens[:, :half], tokens[:, : tokens.shape[1] - half]], dim=1)
    model.train()
    batch = tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    small = min(subject.training.learning_rate, LARGEST_RATE)
    training = subject.training.model_copy(update={"learning_rate": small})
    optimizer = make_optimizer(model, training)
    for _ in range(2):
        try:
            with torch.enable_grad():
                terms = train_step(model, optimizer, batch, training)
        except UserError:
            raise
        except Exception as error:
            return f"in training it raises {blame(error)}"
        if not all(term.isfinite().all() for term in terms.values()):
            return "in training its loss is NaN or infinite"
        fault = _gradient_fault(model)
        if fault:
            return fault
    return _leaks_in_training(subject)


def _leaks_in_training(subject: Subject) -> str | None:
    """Whether a prediction depends on later tokens in training mode alone, under one state of the random generator.

    Statistics over the positions of a sequence, as in batch normalisation, do this.
    """
    model, tokens = subject.moved(), subject.tokens()
    half = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, half:] = _others(tokens[:, half:], subject.io)

    def differ(one: Tensor, other: Tensor) -> bool:
        outputs = []
        for inputs in (one, other):
            manual_seed(0)  # the same dropout
            with autocast(tokens.device, subject.training) if model.training else nullcontext():
                outputs.append(model(inputs)[:, : half + 1].float())
        return bool(outputs[0].isfinite().all()) and _differ(outputs[0], outputs[1], CAUSAL_TOLERANCE)

    if differ(tokens, changed):
        return None  # `causal` reports it
    model.train()
    if differ(tokens, tokens) or not differ(tokens, changed):  # what is random is reported by `deterministic`
        return None
    return (
        f"in training mode it sees the future: changing the tokens from {half} on changes predictions up to {half}; "
        "batch normalisation over positions does this, layer normalisation does not"
    )


def _gradient_fault(model: Model) -> str | None:
    asked = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    for name, gradient in asked.items():
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name} is NaN or infinite"
    later = {name for name, p in model.named_parameters() if getattr(p, "_learns_later", False)}
    for name, gradient in asked.items():
        if name not in later and (gradient is None or (gradient == 0).all()):
            hint = "; NumPy and .detach() in the mixer do this" if ".mixer_norm." in name else ""
            return f"the parameter {name} receives no gradient{hint}"
    return None


def batch_independent(subject: Subject) -> str | None:
    """A sequence is predicted the same whatever shares its batch."""
    model, tokens = subject.moved(), subject.tokens()
    if _differ(_finite(model(tokens))[:1], model(tokens[:1])):
        return "a sequence's prediction depends on the others in its batch"
    return None


def state_size(subject: Subject) -> str | None:
    """`state_bytes` is a whole number of bytes, or None. `streams` compares it with the real state."""
    claimed = subject.model().state_bytes()
    if claimed is None or (type(claimed) is int and claimed >= 0):
        return None
    return f"its state_bytes gives {claimed!r} ({type(claimed).__name__}), not a whole number of bytes, or None"


def deterministic(subject: Subject) -> str | None:
    """One seed gives one model, another seed another model. The same input gives the same output to the bit."""
    tokens = subject.tokens()
    first, again, other = (_finite(subject.model(seed)(tokens)) for seed in (0, 0, 1))
    if not torch.equal(first, again):
        return "two models made under one seed differ"
    model = subject.model()
    if not torch.equal(model(tokens), model(tokens)):
        return "the same input gives different outputs"
    return None if not torch.equal(first, other) else "models made under different seeds are the same"


def streams(subject: Subject) -> str | None:
    """The recurrent form predicts the same as the parallel form, and its state has the size that `state_bytes` says."""
    model, tokens = subject.moved(), subject.tokens(2, length=None)
    claimed = model.state_bytes()
    trust = "" if claimed is None else f"; its {claimed} bytes of state cannot be checked"
    if not hasattr(model, "step"):
        raise NotApplicable(f"has no recurrent form{trust}")
    try:
        state = model.init_state(len(tokens))  # type: ignore[operator]
    except UserError:
        raise NotApplicable(f"has no recurrent form{trust}") from None
    whole, inputs, held = _finite(model(tokens)), shift_in(tokens, subject.io.separator), [0]
    for t in range(tokens.shape[1]):
        logits, state = model.step(inputs[:, t], state)  # type: ignore[operator]
        if _differ(whole[:, t], logits, STREAM_TOLERANCE):
            return f"its recurrent form differs from its parallel form at position {t}"
        held.append(held_bytes(state) // len(tokens))
    grows = held[-1] != held[len(held) // 2]  # e.g. a window that is not full yet, which may end at what is claimed
    if claimed is not None and (held[-1] > claimed or (held[-1] < claimed and not grows)):
        return f"it claims {claimed} bytes of state for a sequence, and after {tokens.shape[1]} tokens holds {held[-1]}"
    return None


def saves(subject: Subject) -> str | None:
    """Its weights can be saved as safetensors. A model that loads them gives the same outputs to the bit."""
    model, tokens = subject.model(), subject.tokens()
    stored = safetensors.torch.save({k: v.contiguous().clone() for k, v in model.state_dict().items()})
    loaded = subject.model(seed=1)
    loaded.load_state_dict(safetensors.torch.load(stored))
    if torch.equal(_finite(model(tokens)), loaded(tokens)):
        return None
    return "a model loaded from its saved weights predicts otherwise"


def options_round_trip(subject: Subject) -> str | None:
    """Its options survive being written as JSON and read back."""
    again = type(subject.options).model_validate_json(subject.options.model_dump_json())
    return None if again == subject.options else f"its options come back from JSON as {again}"


def compiles(subject: Subject) -> str | None:
    """It works under torch.compile, or declares `compiles = False`. It is traced and not lowered: no compiler is needed."""
    if not subject.cls.compiles:
        raise NotApplicable("declares that it does not")
    model, tokens = subject.model(), subject.tokens()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    return "under torch.compile it predicts otherwise" if _differ(_finite(model(tokens)), compiled(tokens)) else None


def overfits(subject: Subject) -> str | None:
    """Trained on 8 short instances alone, it overfits them (legal accuracy 0.99 in 400 steps), or declares that it cannot."""
    if "tokens" not in getattr(subject.cls, "takes", ("tokens",)):
        raise NotApplicable("is not for tokens, which the instances are made of")
    _finite(subject.model()(subject.tokens()))
    best = _overfitted_accuracy(subject)
    if not subject.cls.can_overfit(subject.options):
        if best >= 0.99:
            return "it declares that it cannot overfit one batch, but it does"
        raise NotApplicable(f"declares that it cannot; its legal accuracy on 8 instances is {best:.2f}")
    if best >= 0.99:
        return None
    return f"after {OVERFIT_STEPS} steps on 8 instances its legal accuracy on them is {best:.3f}, not 0.99"


def _refuse_to_wait(seconds: float) -> None:
    """Ends the check where its steps, of so many seconds each, would take too long.

    Raises:
        NotApplicable: They would.
    """
    expected = seconds * OVERFIT_STEPS * len(OVERFIT_RATES)
    if expected > OVERFIT_SECONDS:
        raise NotApplicable(
            f"not asked: a step on 8 short instances takes {seconds:.2g} s, so all would take {expected / 60:.0f} minutes; "
            "a loop over positions in Python is the usual cause"
        )


def _overfitted_accuracy(subject: Subject) -> float:
    """The legal accuracy that the subject reaches on 8 short instances by training on them alone. Stops at 0.99."""
    track = load_track("pfa-small-v1")
    train = track.instances("train")
    few = train[
        np.argsort(train.lengths, kind="stable")[:8]
    ]  # a mixer written as a loop needs the least time for these
    learner = Subject(subject.cls, subject.options, track.task.io, subject.device)
    (tokens, scored), truth = batch_tensors(few, subject.device), track.task.truth(few)
    best = 0.0
    for rate in OVERFIT_RATES:
        model, started = learner.model(), 0.0
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        for step in range(1, OVERFIT_STEPS + 1):
            if step - 1 == _TIMED_STEPS[0]:
                started = time.perf_counter()
            elif step - 1 == _TIMED_STEPS[1]:
                _refuse_to_wait((time.perf_counter() - started) / (_TIMED_STEPS[1] - _TIMED_STEPS[0]))
            for group in optimizer.param_groups:  # it falls: else the last few percent come and go with rounding
                group["lr"] = rate * (1 - (step - 1) / OVERFIT_STEPS)
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


SCORABLE: tuple[Check, ...] = (shape, finite, state_size, causal)
"""What a score needs. Run in float32, in which models are scored."""
CONTRACT: tuple[Check, ...] = (
    *SCORABLE,
    trains,
    batch_independent,
    deterministic,
    streams,
    saves,
    options_round_trip,
    compiles,
    overfits,
)
"""Every check, in this order."""


def _finite(output: Tensor) -> Tensor:
    """The same output. A check that compares outputs says nothing of NaN: `finite` reports it.

    Raises:
        NotApplicable: it holds NaN or infinity.
    """
    if not output.isfinite().all():
        raise NotApplicable("not asked: it returns NaN or infinity")
    return output


def _differ(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether they differ by more than the tolerance, or one is NaN."""
    return a.shape != b.shape or not bool((a - b).abs().max() <= tolerance * a.abs().max().clamp(min=1.0))
