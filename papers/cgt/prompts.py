"""From a prompt to a specialised model: the prompt's file, what the model saves, its own file, and generated text."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import torch
from torch import Tensor

from papers.cost import stream_bytes, total_flops
from regbench.analysis.trained import Trained
from regbench.models.model import Model, parameter_count
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.training.checkpoint import load_tensors, load_weights, save_tensors
from regbench.utils import registry
from regbench.utils.errors import UserError, nearest

COLDEST = 1e-3
"""Lower temperatures are taken as 0, because they give its results, or divide by 0."""
MANY = 64
"""An error message lists all tokens of a task only if there are at most this many."""
_IO: pydantic.TypeAdapter[IO] = pydantic.TypeAdapter(IO)


def read_prompt(path: Path, task: Any) -> Tensor:
    """The prompt in a text file.

    For a task of written text the file is plain text; line breaks at its end do not count. Otherwise it has the names of tokens,
    with white space between them. Names of one character need no white space. For vectors, each line is a vector.

    Returns:
        (c,) int64, or for vectors (c, D_in) float32.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompt {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text.strip():
        raise UserError(f"the prompt {path} is empty: write there what the model is to be specialised to")
    if isinstance(task.io, VectorIO):
        return _vectors(text, task.io, path)
    if hasattr(task, "encode"):
        return torch.from_numpy(np.asarray(task.encode(text.rstrip("\r\n")), dtype=np.int64))
    return _named(text, task.io, path)


def _named(text: str, io: TokenIO, path: Path) -> Tensor:
    """Tokens from their names, (c,) int64."""
    single = all(len(name) == 1 for name in io.names)
    words = [c for c in text if not c.isspace()] if single else text.split()
    number = {name: i for i, name in enumerate(io.names)}
    for place, word in enumerate(words):
        if word not in number:
            known = io.names if len(io.names) <= MANY else difflib.get_close_matches(word, io.names, n=1)
            raise UserError(f"{path}: '{word}', number {place + 1}, is no token of the task{nearest(word, known)}")
    return torch.tensor([number[word] for word in words], dtype=torch.int64)


def write_tokens(tokens: Sequence[int], task: Any) -> str:
    """Tokens in the form that `read_prompt` reads."""
    if hasattr(task, "decode"):
        text: str = task.decode(np.asarray(tokens, dtype=np.int64))
        return text
    names = task.io.names
    return ("" if all(len(name) == 1 for name in names) else " ").join(names[token] for token in tokens)


def _vectors(text: str, io: VectorIO, path: Path) -> Tensor:
    """Vectors from lines of numbers, (c, D_in) float32."""
    rows = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        try:
            row = [float(word) for word in line.replace(",", " ").split()]
        except ValueError:
            raise UserError(f"{path}: vector {number} is not made of numbers") from None
        # The model reads 32 bits, and their largest number is smaller.
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.array(row, dtype=np.float32)).all()
        if len(row) != io.d_in or not finite:
            raise UserError(f"{path}: vector {number} is not {io.d_in} finite numbers of at most 3e38")
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, io.d_in)


@dataclass(frozen=True)
class Cost:
    """What it costs to read a text after a prompt."""

    parameters: int  # of the model
    flops: float  # operations per token of the text
    state_bytes: int  # state of one sequence after the text


@dataclass(frozen=True)
class Specialisation:
    """A specialised model beside the whole model, which reads the prompt too."""

    model: Model  # the specialised model
    with_prompt: Cost  # cost of the whole model
    alone: Cost  # cost of the specialised model
    text: int  # tokens of the text
    difference: float  # largest one to the whole model with a constant y, as a share of the largest output


@torch.no_grad()
def specialise(trained: Trained, prompt: Tensor) -> Specialisation:
    """The model specialised to a prompt (c,), measured on a random text. Both together have the task's largest length."""
    model: Any = trained.model
    if not hasattr(model, "specialize"):
        raise UserError(
            f"'{trained.architecture}' has no weights that y makes, so none can be specialised: train cgt for that"
        )
    io = trained.track.task.io
    room = io.max_length - len(prompt)
    if room < 1:
        raise UserError(
            f"a prompt of {len(prompt)} tokens leaves no room for a text: the model reads {io.max_length} tokens at most; "
            f"shorten it to {io.max_length - 1} or fewer"
        )
    special = model.specialize(prompt)
    if not all(bool(weights.isfinite().all()) for weights in special.state_dict().values()):
        raise UserError("the prompt gives weights that are not finite: its numbers are too large for the model")
    text = _random_text(io, room)
    both = torch.cat([prompt[None], text], dim=1)
    frozen = model.with_context(text, model.summary(prompt[None]))
    difference = float((special(text) - frozen).abs().max() / frozen.abs().max().clamp(min=1.0))
    return Specialisation(
        special,
        Cost(parameter_count(model), total_flops(model, both) / room, stream_bytes(model, both)),
        Cost(parameter_count(special), total_flops(special, text) / room, stream_bytes(special, text)),
        room,
        difference,
    )


def share_trained(trained: Trained) -> float:
    """The share of tokens in the validation split that are scored. A model learns to predict only those."""
    validation = trained.track.instances("validation")
    return float(validation.scored.sum() / validation.lengths.sum())


def save_specialised(path: Path, special: Specialisation, trained: Trained, prompt: Tensor) -> None:
    """Writes one safetensors file with the weights and with all that `load_specialised` needs."""
    io = trained.track.task.io
    notes = {
        "architecture": trained.architecture,
        "options": special.model.options.model_dump_json(),
        "io": _IO.dump_json(io).decode(),
        "track": trained.track.name,
        "prompt": json.dumps(prompt.tolist()),
    }
    save_tensors(path, special.model.state_dict(), notes)


def load_specialised(path: str | Path) -> Model:
    """The model in a file of `regbench specialize`, in evaluation mode.

    Raises:
        UserError: The file is another one, or its architecture is not here.
    """
    tensors, notes = load_tensors(Path(path))
    try:
        io = _IO.validate_json(notes["io"])
        cls: Any = registry.load(registry.ARCHITECTURE, notes["architecture"]).specialised
        model: Model = cls(cls.Options.model_validate_json(notes["options"]), io)
        load_weights(model, tensors, str(path))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise UserError(f"{path} holds no specialised model that this version can read") from None
    return model.eval()


@torch.no_grad()
def generate(
    trained: Trained, special: Any, prompt: Tensor, count: int, rate: float | None, temperature: float
) -> list[int]:
    """Draws tokens one after another. At temperature 0 each is the most likely one.

    Args:
        trained: The whole model.
        special: The specialised one, which generates unless there is a rate.
        prompt: (c,).
        count: How many tokens.
        rate: Of a moving average of y, with which the whole model generates. It starts at the y of the prompt.
        temperature: 0 or above.
    """
    model: Any = special if rate is None else trained.model
    state = model.init_state(1) if rate is None else model.init_state(1, model.summary(prompt[None]), rate)
    generator, drawn = torch.Generator().manual_seed(trained.seed), []
    last = torch.tensor([trained.track.task.io.separator])
    for _ in range(count):
        logits, state = model.step(last, state)
        if temperature < COLDEST:
            last = logits.argmax(-1)
        else:
            last = torch.multinomial((logits[0].double() / temperature).softmax(-1), 1, generator=generator)
        drawn.append(int(last))
    return drawn


def _random_text(io: IO, length: int) -> Tensor:
    """Tokens (1, L), or vectors (1, L, D_in)."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(io, VectorIO):
        return torch.randn(1, length, io.d_in, generator=generator)
    return torch.randint(io.vocab_size, (1, length), generator=generator)
