"""The checks that train: two steps that must work, and a batch that must be overfitted."""

from __future__ import annotations

import time

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from regbench.checks.contract import NotApplicable
from regbench.checks.subject import BORDERS, CAUSAL_TOLERANCE, Subject, differ, finite_output, others, sees_future
from regbench.metrics.metric import score_positions
from regbench.models.model import Model, manual_seed
from regbench.tracks import load_track
from regbench.training.checkpoint import packed
from regbench.training.step import autocast, batch_tensors, make_optimizer, measure, train_step
from regbench.utils.errors import UserError, blame

LARGEST_RATE = 1e-2
"""The learning rate of the two steps of `trains` is not above this."""

OVERFIT_STEPS = 400
OVERFIT_RATES = (3e-3, 1e-2)
"""Within so many steps, at one of these learning rates, an architecture must overfit 8 instances."""

OVERFIT_SECONDS = 600.0
"""What would take longer is not asked."""

_TIMED_STEPS = (2, 5)
"""The steps between these say how long all would take. Kernels are compiled in those before."""


def trains(subject: Subject) -> str | None:
    """Two training steps work at the longest length, in the run's precision. Every parameter gets a finite gradient.

    The steps are small, so that a large learning rate is not blamed on the architecture. In training mode, too, no prediction
    may depend on what follows. What the model measures of its weights must be finite.
    """
    model, tokens = subject.moved(), subject.tokens(2, length=None)
    finite_output(model(tokens))
    # The second half repeats the first. In a large vocabulary no n-gram occurs twice by chance, and heads would learn nothing.
    half = tokens.shape[1] // 2
    tokens = torch.cat([tokens[:, :half], tokens[:, : tokens.shape[1] - half]], dim=1)
    if subject.io.bottleneck is not None:  # what stands after it is not read: half of the repetition comes before it
        tokens = torch.where(tokens == subject.io.bottleneck, others(tokens, subject.io), tokens)
        tokens[:, max(0, min(3 * half // 2, tokens.shape[1] - 2))] = subject.io.bottleneck
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
            raise UserError(f"in training it raises {blame(error)}") from error
        if not all(term.isfinite().all() for term in terms.values()):
            return "in training its loss is NaN or infinite"
        fault = _gradient_fault(model)
        if fault:
            return fault
    if subject.task is not None:
        measure(model, subject.task, 2)
    # Leaks are asked last, in training mode: a run records the implementations of the last pass as those of training.
    return _keeps_more_than_weights(subject, model, tokens) or _leaks_in_training(subject)


def _leaks_in_training(subject: Subject) -> str | None:
    """Whether a prediction depends on later tokens in training mode alone, under one state of the random generator.

    Statistics over the positions of a sequence, as in batch normalisation, do this. Predictions that this state does not decide
    are refused, too: the leak could not be seen, and a resumed training would end with other weights.
    """
    model = subject.moved()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def outputs(inputs: Tensor) -> Tensor:
        model.load_state_dict(kept)
        manual_seed(0)  # the same dropout
        if not model.training:
            return model(inputs).float()
        with torch.enable_grad(), autocast(inputs.device, subject.training):  # as in a step
            return model(inputs).detach().float()

    model.train()
    for tokens in (subject.tokens(), subject.tokens(1, length=None)):
        length, before = tokens.shape[1], outputs(tokens)
        if not before.isfinite().all():
            return None
        if differ(before, outputs(tokens), CAUSAL_TOLERANCE):
            return (
                "in training mode the same weights, input and state of PyTorch's random generator give different outputs: draw "
                "from this generator alone, and keep what changes from step to step in a buffer"
            )
        places = {length // 2, *(border for border in BORDERS if border < length)}
        if leak := sees_future(outputs, tokens, subject.io, CAUSAL_TOLERANCE, places):
            model.eval()
            if sees_future(outputs, tokens, subject.io, CAUSAL_TOLERANCE, [leak.token]):
                return None  # `causal` reports it
            return (
                f"in training mode it sees the future: {leak}; batch normalisation over positions does this, layer "
                "normalisation does not"
            )
    return None


def _keeps_more_than_weights(subject: Subject, model: Model, tokens: Tensor) -> str | None:
    """Whether a trained model predicts otherwise than one that is given its weights. A state kept from a batch does this."""
    before = model.eval()(tokens)
    if not before.isfinite().all() or differ(before, model(tokens)):
        return None  # other checks report it
    loaded = subject.model()
    names = loaded.load_state_dict(safetensors.torch.load(packed(model.state_dict())), strict=False)
    odd = [*names.unexpected_keys, *names.missing_keys]
    if odd:
        return f"in training it makes or removes {odd[0]}: make every parameter and buffer in __init__"
    if differ(before, loaded(tokens)):
        return (
            "after two training steps it predicts otherwise than a model with the same weights: "
            "what it keeps from training must be a parameter or a buffer"
        )
    return None


def _gradient_fault(model: Model) -> str | None:
    asked = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    for name, gradient in asked.items():
        if gradient is not None and not gradient.isfinite().all():
            return f"the gradient of {name} is NaN or infinite"
    later = {name for name, p in model.named_parameters() if getattr(p, "_learns_later", False)}
    for name, gradient in asked.items():
        if name not in later and (gradient is None or (gradient == 0).all()):
            hint = (
                "; NumPy and .detach() in the mixer do this"
                if ".mixer_norm." in name
                else "; if only some batches reach it, as an expert, mark it with regbench.models.mixer.learns_later"
            )
            return f"the parameter {name} receives no gradient{hint}"
    return None


def overfits(subject: Subject) -> str | None:
    """Trained on 8 short instances alone, it overfits them (legal accuracy 0.99 in 400 steps), or declares that it cannot."""
    if "tokens" not in getattr(subject.cls, "takes", ("tokens",)):
        raise NotApplicable("is not for tokens, which the instances are made of")
    finite_output(subject.model()(subject.tokens()))
    best = _overfitted_accuracy(subject)
    if not subject.cls.can_overfit(subject.options):
        if best >= 0.99:
            return "it declares that it cannot overfit one batch, but it does"
        raise NotApplicable(f"declares that it cannot; its legal accuracy on 8 instances is {best:.2f}")
    if best >= 0.99:
        return None
    return f"after {OVERFIT_STEPS} steps on 8 instances its legal accuracy on them is {best:.3f}, not 0.99"


def _overfitted_accuracy(subject: Subject) -> float:
    """The legal accuracy that the subject reaches on 8 short instances by training on them alone. Stops at 0.99."""
    track = load_track("pfa-small-v1")
    train = track.instances("train")
    # The shortest: a mixer written as a loop needs the least time for them.
    few = train[np.argsort(train.lengths, kind="stable")[:8]]
    learner = Subject(subject.cls, subject.options, track.task.io, subject.device)
    (tokens, scored, *_), truth = batch_tensors(few, subject.device), track.task.truth(few)
    best = 0.0
    for rate in OVERFIT_RATES:
        model, started = learner.model(), 0.0
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        for step in range(1, OVERFIT_STEPS + 1):
            if step - 1 == _TIMED_STEPS[0]:
                started = time.perf_counter()
            elif step - 1 == _TIMED_STEPS[1]:
                seconds = (time.perf_counter() - started) / (_TIMED_STEPS[1] - _TIMED_STEPS[0])
                expected = seconds * OVERFIT_STEPS * len(OVERFIT_RATES)
                if expected > OVERFIT_SECONDS:
                    raise NotApplicable(
                        f"not asked: a step on 8 short instances takes {seconds:.2g} s, so all would take "
                        f"{expected / 60:.0f} minutes; a loop over positions in Python is the usual cause"
                    )
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
