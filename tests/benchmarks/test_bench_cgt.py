"""What specialising a CGT saves against reading the prompt again: time, operations, parameters, memory of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from architectures.cgt import ContextuallyGuided
from papers.cost import stream_bytes, total_flops
from regbench.config import read_config
from regbench.models.model import parameter_count, shift_in
from regbench.tasks.base import TokenIO
from tests.helpers.documents import ROOT

IO = TokenIO(vocab_size=16, separator=15, max_length=512, names=tuple("0123456789*=+-|#"))
CONFIGS = ROOT / "architectures" / "cgt" / "configs"
PAPER = read_config(CONFIGS / "cgt-arithmetic.yaml").settings
SIZES = {"default": {}, "paper": {key: value for key, value in PAPER.items() if not key.startswith("training.")}}


def best_of(work: Callable[[], object], rounds: int = 5) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("prompt_length", "length"), [(122, 122), (384, 128)])
@torch.no_grad()
def test_specialised_text(benchmark: Any, size: str, prompt_length: int, length: int) -> None:
    """A text behind a prompt, read at once by the whole model with the prompt, and by the specialised one without."""
    torch.manual_seed(0)
    model = ContextuallyGuided(ContextuallyGuided.Options(**SIZES[size]), IO).eval()
    prompt, text = torch.randint(16, (1, prompt_length)), torch.randint(16, (1, length))
    both, special = torch.cat([prompt, text], dim=1), model.specialize(prompt)
    benchmark.pedantic(special, args=(text,), rounds=10, warmup_rounds=2)
    alone = benchmark.stats.stats.min
    benchmark.extra_info.update(
        {
            "ms for the text": round(1e3 * alone, 2),
            "times faster than prompt and text": round(best_of(lambda: model(both)) / alone, 2),
            "times fewer operations": round(total_flops(model, both) / total_flops(special, text), 2),
            "parameters": parameter_count(special),
            "of the whole model's": round(parameter_count(special) / parameter_count(model), 2),
            "ms to specialise": round(1e3 * best_of(lambda: model.specialize(prompt)), 2),
        }
    )


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_specialised_stream(benchmark: Any, size: str) -> None:
    """64 tokens one at a time behind a prompt of 384: a stream that has read the prompt, and one of the specialised model."""
    torch.manual_seed(0)
    model = ContextuallyGuided(ContextuallyGuided.Options(**SIZES[size]), IO).eval()
    prompt, text = torch.randint(16, (1, 384)), torch.randint(16, (1, 64))
    both, special = torch.cat([prompt, text], dim=1), model.specialize(prompt)

    def stream(streaming: Any, tokens: torch.Tensor, state: Any) -> None:
        for token in tokens.unbind(1):
            _, state = streaming.step(token, state)

    times = []
    for _ in range(3):
        state = model.init_state(1)
        for token in shift_in(both, IO.separator)[:, :384].unbind(1):
            _, state = model.step(token, state)
        started = time.perf_counter()
        stream(model, both[:, 383:447], state)
        times.append(time.perf_counter() - started)
    benchmark.pedantic(
        lambda: stream(special, shift_in(text, IO.separator), special.init_state(1)), rounds=5, warmup_rounds=1
    )
    alone = benchmark.stats.stats.min
    kept, saved = stream_bytes(model, both), stream_bytes(special, text)
    benchmark.extra_info.update(
        {
            "us a token": round(1e6 * alone / 64),
            "times faster than after the prompt": round(min(times) / alone, 2),
            "KiB of state": round(saved / 1024),
            "times less state": round(kept / saved, 1),
        }
    )
