"""A training step of an architecture beside its best form in plain PyTorch, in one run: `make bench-peers`.

Linear attention has the masked quadratic form, which is what short contexts cost least by. The transformer has
`nn.TransformerEncoder`, and the LSTM layers of `nn.LSTM` with `nn.LayerNorm` and a residual connection. The others have the
chunked form of their op, or a loop where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn import functional as F

from regbench.models.model import Model
from regbench.ops.backend import Implementation, use_backend
from regbench.ops.linear_attention import OP as LINEAR_ATTENTION
from tests.benchmarks.peak_memory import model_of, step, tokens_of
from tests.benchmarks.step_speed import least_seconds

SHAPES = ((64, 128, 16), (256, 512, 4))
"""Width, length, batch."""

NOISE = {"lstm": 0.03, "gla": 0.03}
"""Where both sides are the same code, PyTorch's LSTM or chunks, a ratio is noise, and what the backbone adds to a short step."""

QUADRATIC = "linear_attention=quadratic"
FORMS = {
    "linear_transformer": QUADRATIC,
    "retnet": QUADRATIC,
    "mamba2": QUADRATIC,
    "mamba3": QUADRATIC,
    "mlstm": QUADRATIC,
    "gla": "linear_attention=chunked",
    "deltanet": "delta_rule=chunked",
    "gated_deltanet": "delta_rule=chunked",
    "kimi_delta_attention": "delta_rule=chunked",
    "rwkv7": "delta_rule=chunked",
    "mamba": "selective_scan=chunked",
    "rwkv": "wkv=chunked",
}
"""The backend that stands for the peer."""


def quadratic(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Every pair of positions is weighted, as in attention (Sun et al. 2023, Eq. 5). It needs no initial state here."""
    assert initial_state is None or not initial_state.any()
    scores, length = q @ k.mT, q.shape[2]
    if log_decay is None:
        scores = scores.tril()
    else:
        each = log_decay[:, None] * torch.arange(1, length + 1) if log_decay.dim() == 1 else log_decay.cumsum(-1)
        apart = each[..., :, None] - each[..., None, :]
        scores = scores * apart.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).exp()
    return scores @ v, torch.zeros(*q.shape[:2], q.shape[3], v.shape[3])


class Plain(nn.Module):
    """PyTorch's own layers between an embedding and a linear map to logits."""

    def __init__(self, model: Model, name: str, width: int, length: int) -> None:
        super().__init__()
        vocabulary = model.io.width
        self.embedding, self.unembed = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        if name == "lstm":
            self.lstms = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(2))
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            return
        heads = model.options.n_heads
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.pad(self.embedding(tokens[:, :-1]), (0, 0, 1, 0))
        if not hasattr(self, "lstms"):
            return self.unembed(self.layers(x + self.positions.weight, self.mask, is_causal=True))
        *norms, last = self.norms
        for norm, lstm in zip(norms, self.lstms, strict=True):
            x = x + lstm(norm(x))[0]
        return self.unembed(last(x))


def steps(name: str, width: int, length: int, batch: int) -> dict[str, Callable[[], object]]:
    """A training step of ours and of the peer, both warm."""
    model, tokens = model_of(name, width, length), tokens_of(batch, length)
    plain = None if name in FORMS else Plain(model, name, width, length)

    def ours() -> None:
        step(model, tokens)

    def theirs() -> None:
        if plain is None:
            with use_backend(FORMS[name]):
                step(model, tokens)
            return
        plain.zero_grad(set_to_none=True)
        F.cross_entropy(plain(tokens).flatten(0, 1), tokens.flatten()).backward()

    calls: dict[str, Callable[[], object]] = {"ours": ours, "theirs": theirs}
    for call in calls.values():
        call()
    return calls


@pytest.mark.usefixtures("one_thread")
def test_no_architecture_is_slower_than_plain_pytorch(
    benchmark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward of two layers in float32, on one thread."""
    own: Any = LINEAR_ATTENTION.implementations
    monkeypatch.setitem(own, "quadratic", Implementation(f"{__name__}:quadratic", ("cpu",)))
    rows: list[tuple[str, ...]] = []
    slower = {}
    for name in ("transformer", "lstm", *FORMS):
        ratios = []
        for shape in SHAPES:
            least = least_seconds(steps(name, *shape), rounds=7)
            ratios.append(least["theirs"] / least["ours"])
            if ratios[-1] < 1 - NOISE.get(name, 0.0):
                slower[f"{name}, width {shape[0]}"] = round(ratios[-1], 2)
        rows.append((name, *(f"{ratio:.2f}" for ratio in ratios)))
    heads = ("architecture", *(f"width {width}, length {length}, batch {batch}" for width, length, batch in SHAPES))
    with capsys.disabled():
        print(
            "\n" + tabulate(rows, heads, tablefmt="github", colalign=("left", "right", "right"), disable_numparse=True)
        )
    benchmark.pedantic(steps("retnet", *SHAPES[0])["ours"], rounds=1)
    assert slower == {}
