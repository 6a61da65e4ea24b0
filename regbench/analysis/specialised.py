"""From a trained model and a prompt to a specialised one: what is saved by it, its file, and text generated with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regbench.analysis.cost import stream_bytes, total_flops
from regbench.analysis.guided import guided
from regbench.analysis.trained import Trained
from regbench.models.model import Model, parameter_count
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.training.checkpoint import load_tensors, save_tensors
from regbench.utils import registry
from regbench.utils.errors import UserError

COLDEST = 1e-3
"""Of temperatures above 0: below it, generation is at 0 but for rounding, and far below it divides by nothing."""


@dataclass(frozen=True)
class Cost:
    """What a text costs behind a prompt. flops: a token of the text.  state_bytes: of a stream that has read it."""

    parameters: int
    flops: float
    state_bytes: int


@dataclass(frozen=True)
class Special:
    """A specialised model. with_prompt, alone: what the whole model costs, which reads the prompt too, and what this one does.

    text: over how many tokens that is.  difference: the largest to the frozen model's output there, relative to the largest
    output (at least 1).
    """

    model: Model
    with_prompt: Cost
    alone: Cost
    text: int
    difference: float


@torch.no_grad()
def specialise(trained: Trained, prompt: Tensor) -> Special:
    """The specialised model of a prompt (c,), compared on random text that fills the task's longest sequence.

    Raises:
        UserError: the architecture cannot be specialised, the prompt leaves no room for a text, or its numbers are too large.
    """
    whole, model, io = guided(trained.model, trained.architecture), trained.model, trained.track.task.io
    room = io.max_length - len(prompt)
    if room < 1:
        raise UserError(
            f"a prompt of {len(prompt)} tokens leaves no room for a text: the model reads {io.max_length} tokens at most; "
            f"shorten it to {io.max_length - 1} or fewer"
        )
    special = whole.specialize(prompt)
    if not all(bool(weights.isfinite().all()) for weights in special.state_dict().values()):
        raise UserError("the prompt gives weights that are not finite: its numbers are too large for the model")
    text = _random_text(io, room)
    both = torch.cat([prompt[None], text], dim=1)
    frozen = whole.with_context(text, whole.summary(prompt[None]))
    difference = float((special(text) - frozen).abs().max() / frozen.abs().max().clamp(min=1.0))
    return Special(
        special,
        Cost(parameter_count(model), total_flops(model, both) / room, stream_bytes(model, both)),
        Cost(parameter_count(special), total_flops(special, text) / room, stream_bytes(special, text)),
        room,
        difference,
    )


def share_trained(trained: Trained) -> float:
    """Which share of the validation split's tokens are scored, which are those that a model learns to predict."""
    validation = trained.track.instances("validation")
    return float(validation.scored.sum() / validation.lengths.sum())


def save_specialised(path: Path, special: Special, trained: Trained, prompt: Tensor) -> None:
    """Writes weights, and all that `load_specialised` needs to make the model again, as one safetensors file."""
    io = trained.track.task.io
    notes = {
        "architecture": trained.architecture,
        "options": special.model.options.model_dump_json(),
        "io": json.dumps({"kind": io.kind, **asdict(io)}),
        "track": trained.track.name,
        "prompt": json.dumps(prompt.tolist()),
    }
    save_tensors(path, special.model.state_dict(), notes)


def load_specialised(path: str | Path) -> Model:
    """The model in a file that `regbench specialize` wrote, in evaluation mode.

    Raises:
        UserError: it is no such file, or its architecture is not here.
    """
    tensors, notes = load_tensors(Path(path))
    try:
        fields = json.loads(notes["io"])
        kind = {"tokens": TokenIO, "vectors": VectorIO}[fields.pop("kind")]
        if "names" in fields:
            fields["names"] = tuple(fields["names"])
        io = kind(**fields)
        cls: Any = registry.load(registry.ARCHITECTURE, notes["architecture"]).specialised
        model: Model = cls(cls.Options.model_validate_json(notes["options"]), io)
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise UserError(f"{path} holds no specialised model that this version can read") from None
    return model.eval()


def check_temperature(temperature: float) -> None:
    """Raises:
    UserError: it is neither 0 nor a finite number well above it.
    """
    if temperature != 0.0 and not COLDEST <= temperature < float("inf"):
        raise UserError(
            f"--temperature {temperature:g} is neither 0, the most likely, nor a finite {COLDEST:g} or more"
        )


def check_generation(trained: Trained, tokens: int) -> None:
    """Whether so many tokens can be generated, before anything is done.

    Raises:
        UserError: on a task of vectors, of no tokens, or past the positions that were learned.
    """
    io = trained.track.task.io
    if isinstance(io, VectorIO):
        raise UserError(f"{trained.track.name} is a task of vectors: only tokens are generated")
    if tokens < 1:
        raise UserError(f"--generate {tokens} is not a number of tokens: 1 or more")
    if tokens > io.max_length:
        try:  # nothing but the model knows whether there are positions so far on
            with torch.no_grad():
                trained.model(torch.zeros(1, tokens, dtype=torch.int64))
        except UserError as error:
            raise UserError(f"--generate {tokens} is too many: {error}") from None


@torch.no_grad()
def generate(model: Any, state: Any, separator: int, temperature: float, seed: int) -> Iterator[int]:
    """Tokens drawn one at a time from a stream that has read nothing yet. At temperature 0 always the most likely.

    Raises:
        UserError: when the stream is at the end of the positions that were learned.
    """
    generator = torch.Generator().manual_seed(seed)
    last = torch.tensor([separator])
    while True:
        logits, state = model.step(last, state)
        if temperature == 0.0:
            last = logits.argmax(-1)
        else:
            last = torch.multinomial((logits[0].double() / temperature).softmax(-1), 1, generator=generator)
        yield int(last)


def _random_text(io: IO, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if isinstance(io, VectorIO):
        return torch.randn(1, length, io.d_in, generator=generator)
    return torch.randint(io.vocab_size, (1, length), generator=generator)
