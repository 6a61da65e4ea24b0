"""Transformer: against attention with (L, L) weights written out, with n-gram heads beside the softmax heads and without."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from architectures.transformer import Transformer
from regbench.checks.architecture import CONTRACT, compiles
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.models.rotary import rotate
from regbench.ops.backend import use_backend
from regbench.ops.ngram import NGramIndex
from regbench.tasks.base import TokenIO
from tests.helpers.equations import check_equations, made
from tests.helpers.subjects import subject_of
from tests.helpers.tensors import LargestTensor

D, H = 12, 3
HEADS = (1, 3, 1, 2)
build = partial(made, Transformer, d_model=D, n_heads=H)


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens of a small vocabulary, so that n-grams recur, and x."""
    tokens = torch.randint(3, (batch, length), generator=torch.Generator().manual_seed(1))
    return tokens, torch.randn(batch, length, D, dtype=torch.float64, requires_grad=True)


def softmax_weights(q: Tensor, k: Tensor, window: int) -> Tensor:
    """ICLL A.1: (B, L, K) twice -> (B, L, L)."""
    scores = (q @ k.mT / q.shape[-1] ** 0.5).exp().tril()
    scores = scores.triu(1 - window) if window else scores
    return scores / scores.sum(2, keepdim=True)


def ngram_weights(tokens: Tensor, order: int) -> Tensor:
    """A(n) of ICLL Eq. 12, an element at a time: i looks at j + 1 < i wherever the n-grams that end at i and j are equal."""
    weights = torch.zeros(*tokens.shape, tokens.shape[1], dtype=torch.float64)
    for row, x in zip(weights, tokens.tolist(), strict=True):
        for i in range(len(x)):
            follows = [
                j + 1 for j in range(order - 1, i - 1) if x[j - order + 1 : j + 1] == x[max(i - order + 1, 0) : i + 1]
            ]
            for place in follows:
                row[i, place] = 1 / len(follows)
    return weights


def by_the_book(model: Transformer, x: Tensor, tokens: Tensor) -> Tensor:
    """Every head on its own, side by side before W_o (ICLL section 6, footnote 6)."""
    width = D // H
    q, k, v = (x @ weight.T for weight in model.qkv.weight.chunk(3))
    z = []
    for h in range(H):
        mine = slice(h * width, (h + 1) * width)
        q_h, k_h = q[..., mine], k[..., mine]
        if model.rotary:
            q_h, k_h = rotate(q_h[:, None])[:, 0], rotate(k_h[:, None])[:, 0]
        z.append(softmax_weights(q_h, k_h, model.window) @ v[..., mine])
    for number, order in enumerate(model.orders):
        assert model.ngram_values is not None
        own = x @ model.ngram_values.weight[number * width : (number + 1) * width].T
        z.append(ngram_weights(tokens, order) @ own)
    return torch.cat(z, -1) @ model.out.weight.T


@pytest.mark.parametrize("backend", ["auto", "naive"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 5},
        {"extra_ngram_heads": HEADS},
        {"extra_ngram_heads": [2], "positions": "rotary"},
        {"window": 3, "extra_ngram_heads": [2], "positions": "rotary"},
    ],
)
@pytest.mark.parametrize("length", [1, 2, 33])
def test_is_what_the_paper_writes(backend: str, options: dict[str, object], length: int) -> None:
    model = build(**options)
    tokens, _ = inputs(2, length)
    ops = ("attention", "ngram_head") if model.reads_tokens else ("attention",)
    check_equations(
        model,
        lambda x: by_the_book(model, x, tokens),
        length,
        ops=ops,
        backend=backend,
        forward=lambda x: model(x, NGramIndex(tokens)),
    )


@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"ngram_heads": [2], "positions": "rotary", "n_layers": 1}, marks=pytest.mark.ci)],
)
def test_the_contract_holds_with_extra_heads(settings: dict[str, object]) -> None:
    """Under torch.compile once, with n-gram heads of both kinds: tracing them takes seconds."""
    io = TokenIO(vocab_size=5, separator=4, max_length=48, names=("a", "b", "c", "d", "|"))
    subject = subject_of(Transformer, io, d_model=16, extra_ngram_heads=[1, 2], **settings)
    left_out = (overfits,) if settings else (overfits, compiles)
    outcomes = examine(subject, [check for check in CONTRACT if check not in left_out])
    assert {o.check: (o.fault, o.note) for o in outcomes if o.fault or o.note} == {}


def test_no_square_of_weights_is_made() -> None:
    """Forward, backward and the index: nothing is larger than the (L, 3 D) of queries, keys, values. In the naive one it is."""
    model, length = build(torch.float32, extra_ngram_heads=HEADS), 512
    tokens, x = inputs(1, length)
    largest = {}
    for backend in ("auto", "naive"):
        with LargestTensor() as seen, use_backend(backend):
            model(x.float(), NGramIndex(tokens)).sum().backward()
        largest[backend] = seen.bytes
    assert largest["auto"] == 4 * 3 * D * length
    assert largest["naive"] >= 4 * length**2


def test_without_extra_heads_nothing_is_drawn_or_named_for_them() -> None:
    """Scores published without the option are those of today: the same weights from one seed, under the same names."""
    model = build(torch.float32)
    torch.manual_seed(0)
    qkv, out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
    assert not model.reads_tokens
    assert {name: p.tolist() for name, p in model.named_parameters()} == {
        "qkv.weight": qkv.weight.tolist(),
        "out.weight": out.weight.tolist(),
    }


def test_an_extra_head_costs_two_projections() -> None:
    plain, more = (sum(p.numel() for p in build(extra_ngram_heads=heads).parameters()) for heads in ((), HEADS))
    assert more - plain == 2 * len(HEADS) * (D // H) * D
