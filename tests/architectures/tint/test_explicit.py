"""The explicit gradients: equal to autograd, line by line; and how far finite differences and stopped scores are from it."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.mamba import Mamba
from architectures.tint.explicit import (
    NORM_EPSILON,
    BlockTrace,
    Plan,
    _block_backward,
    activation,
    activation_backward,
    angles,
    auxiliary_of,
    descend,
    forward,
    gradients,
    learns,
    norm_backward,
    simulate,
    train,
)
from architectures.transformer import Transformer
from papers.tint.gradient_steps import refusal_of
from regbench.models.backbone import Backbone
from regbench.models.build import build, resolve_options
from regbench.models.model import shift_in
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.architectures.tint.conftest import IO, close, text, tint

COUNTED = torch.zeros(3, 20, dtype=torch.bool)
COUNTED[0, :8] = COUNTED[1] = COUNTED[2, 5:12] = True
"""The positions of three segments; that of the last begins later."""


def by_autograd(row: int, stopped: bool) -> dict[str, Tensor]:
    """The gradient of one sequence by autograd; with `stopped`, none flows through the scores."""
    model = tint()
    tokens, inputs = (part[row : row + 1] for part in text())
    weights = {name: w.detach().clone().requires_grad_() for name, w in model.auxiliary.named_parameters()}
    softmax = torch.Tensor.softmax

    def detached(x: Tensor, dim: int) -> Tensor:
        out = softmax(x, dim)
        return out.detach() if stopped and x.ndim == 4 else out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "softmax", detached)
        logits = forward(weights, inputs, 3).logits
    counted = COUNTED[row : row + 1]
    each = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
    found = torch.autograd.grad((each * counted).sum(), list(weights.values()), materialize_grads=True)
    return dict(zip(weights, found, strict=True))


def ours(gradient: Any, **options: Any) -> dict[str, Tensor]:
    weights, heads = auxiliary_of(tint())
    tokens, inputs = text()
    return gradients(weights, inputs, tokens, COUNTED, heads, Plan(1.0, gradient=gradient, **options))


@pytest.mark.parametrize("gradient", ["full", "values"])
def test_gradients_are_those_of_autograd(gradient: str) -> None:
    """Of each sequence by itself, for every parameter that learns; of values, the rows of queries and keys stay."""
    found = ours(gradient)
    assert set(found) == {
        n for n, _ in tint().auxiliary.named_parameters() if learns(n, Plan(1.0, gradient=gradient), 2)
    }  # type: ignore[arg-type]
    for row in range(3):
        right = by_autograd(row, gradient == "values")
        for name, each in found.items():
            wanted = right[name]
            if gradient == "values" and name.endswith("qkv.weight"):
                assert each[row, :24].abs().max() == 0.0
                wanted = torch.cat([torch.zeros(24, 12), wanted[24:]])
            close(each[row], wanted, 1e-12)


def test_the_set_that_learns() -> None:
    assert set(ours("values", layers=1)) == {
        "norm.bias",
        *(
            f"blocks.1.{name}"
            for name in ("mixer_norm.bias", "feed_forward_norm.bias", "mixer.qkv.weight", "mixer.out.weight")
        ),
        *(f"blocks.1.feed_forward.{name}" for name in ("up.weight", "up.bias", "down.weight", "down.bias")),
    }
    assert set(ours("full")) == {name for name, _ in tint().auxiliary.named_parameters()}
    assert set(ours("full", layers=2)) == {n for n in ours("full") if n.startswith(("blocks.", "norm."))}
    top = ours("full", layers=1)
    assert {name.split(".")[1] for name in top if name.startswith("blocks")} == {"1"}
    assert not {"embedding.weight", "positions.weight", "unembed.weight"} & set(top)


def test_a_full_step_is_one_of_sgd() -> None:
    """Two steps, each of the changed weights."""
    model = tint()
    weights, heads = auxiliary_of(model)
    tokens, inputs = (part[1:2] for part in text())
    counted = COUNTED[1:2]
    changed = descend(weights, inputs, tokens, counted, heads, Plan(0.02, 2, "full"))
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    optimizer = torch.optim.SGD(model.auxiliary.parameters(), lr=0.02)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model.auxiliary(tokens)[counted], tokens[counted], reduction="sum").backward()
        optimizer.step()
    for name, parameter in model.auxiliary.named_parameters():
        close(changed[name][0], parameter, 1e-12)
        assert not torch.equal(parameter, weights[name])


def norm_error(x: Tensor, w: Tensor, epsilon: float) -> Tensor:
    """Of the finite difference of the norm in direction w, by row."""
    one, unit = Plan(1.0, gradient="values"), torch.ones(x.shape[-1], dtype=x.dtype)
    exact, _, _ = norm_backward(w.double()[None], x.double()[None], unit.double(), one)
    found, _, _ = norm_backward(w[None], x[None], unit, Plan(1.0, epsilon=epsilon))
    return (found - exact)[0].norm(dim=-1)


def test_finite_differences_are_first_order_and_round_in_float32() -> None:
    """The error halves with epsilon in float64. In float32 it is smallest near 1e-2 (the U of the spec's table)."""
    generator = torch.Generator().manual_seed(2)
    x, w = torch.randn(200, 64, generator=generator), 0.1 * torch.randn(200, 64, generator=generator)

    def gelu_error(u: Tensor, g: Tensor, epsilon: float) -> Tensor:
        exact = activation_backward(g.double(), u.double(), Plan(1.0, gradient="values"))
        return (activation_backward(g, u, Plan(1.0, epsilon=epsilon)) - exact).norm(dim=-1)

    for error in (norm_error, gelu_error):
        sizes = [float(error(x, w, 1e-2 / 2**halvings).mean()) for halvings in range(11)]  # to 1e-5
        assert all(after / before == pytest.approx(0.5, abs=0.02) for before, after in pairwise(sizes))
        single = [float(error(x.float(), w.float(), epsilon).mean()) for epsilon in (1e-2, 1e-6)]
        assert single[1] > 100 * single[0]


def test_the_bound_of_the_activation_holds_and_is_tight() -> None:
    """|error| <= eps / 2 max|act''| g^2; GELU's second derivative is 2 phi(0) at 0."""
    generator = torch.Generator().manual_seed(3)
    u, g = 2 * torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)
    bound = 0.398943
    for epsilon in (1e-1, 1e-3):
        exact = activation_backward(g, u, Plan(1.0, gradient="values"))
        error = (activation_backward(g, u, Plan(1.0, epsilon=epsilon)) - exact).abs()
        assert (error <= bound * epsilon * g**2 + 1e-12 / epsilon).all()
    at, step = torch.zeros(1), torch.ones(1)
    error = (activation(at + 1e-4 * step) - activation(at)) / 1e-4 - 0.5
    assert float(error) == pytest.approx(bound * 1e-4, rel=1e-2)


def test_the_bound_of_the_norm_holds_and_is_tight() -> None:
    """|error| <= eps |w|^2 / (sqrt(3 d) r), r the smallest variance on the way; reached at squared cosine 1/3."""
    d, epsilon = 16, 1e-2
    generator = torch.Generator().manual_seed(4)
    x, w = torch.randn(1000, d, generator=generator), torch.randn(1000, d, generator=generator)
    steps = torch.linspace(0, epsilon, 50)[:, None, None]
    smallest = ((x + steps * w).var(-1, correction=0) + NORM_EPSILON).min(0).values
    assert (norm_error(x, w, epsilon) <= epsilon * w.square().sum(-1) / (math.sqrt(3 * d) * smallest)).all()
    centred = x - x.mean(-1, keepdim=True)
    side = w - w.mean(-1, keepdim=True)
    side = side - centred * (side * centred).sum(-1, keepdim=True) / centred.square().sum(-1, keepdim=True)
    worst = F.normalize(centred, dim=-1) * 3**-0.5 + F.normalize(side, dim=-1) * (2 / 3) ** 0.5
    variance = x.var(-1, correction=0)
    reached = norm_error(x, worst, 1e-5) / (1e-5 / (math.sqrt(3 * d) * (variance + NORM_EPSILON)))
    assert float(reached.max()) == pytest.approx(1.0, abs=0.01)


def test_angles_are_those_of_autograds_gradients() -> None:
    """Of stopped scores against the true gradient, over what both change; and a head is hard as counted by hand."""
    model, (tokens, inputs) = tint(), text()
    found = angles(model, tokens, COUNTED)
    assert list(found) == ["block 1", "block 2", "last norm"]
    weights, heads = auxiliary_of(model)
    trace = forward(weights, inputs, heads)
    for row in range(len(tokens)):
        stopped, true = by_autograd(row, stopped=True), by_autograd(row, stopped=False)
        for i, part in enumerate(("block 1", "block 2")):
            both: list[list[Tensor]] = [[], []]
            for name, one in stopped.items():
                if name.startswith(f"blocks.{i}.") and not name.endswith("norm.weight"):
                    first = 2 * len(one) // 3 if name.endswith("qkv.weight") else 0
                    both[0].append(one[first:].flatten())
                    both[1].append(true[name][first:].flatten())
            cosine = F.cosine_similarity(torch.cat(both[0]), torch.cat(both[1]), dim=0)
            assert float(found[part]["values"][row]) == pytest.approx(float(cosine), abs=1e-6)
            places = [t for t in range(1, 20) if COUNTED[row, t]]
            hard = [float(trace.blocks[i].scores[row, h, t].max()) >= 0.9 for h in range(heads) for t in places]
            assert float(found[part]["hard"][row]) == pytest.approx(sum(hard) / len(hard))
    assert found["last norm"]["values"].tolist() == pytest.approx([1.0] * 3)
    assert 0.5 < float(found["block 1"]["values"].min()) < 0.9999


def test_hard_heads_lose_little_without_scores() -> None:
    """A head that gives one position at least 1 - e: what `values` leaves out has the bound of TinT D.5, and falls linearly in e.

    With b = 4 e max|v| |g_y| / sqrt(d) the gradient of q is at most b max|k|, and those of all k at most the sum of b |q|. To
    the block's input they go through Q, K and the norm, which divides by sqrt(var).
    """
    generator = torch.Generator().manual_seed(5)
    n = 12  # positions, and the width of the one head

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weights = {"mixer.out.weight": torch.eye(n), "mixer.qkv.weight": random(3 * n, n)}
    weights |= {f"{name}_norm.weight": torch.ones(n) for name in ("mixer", "feed_forward")}
    weights |= {"feed_forward.up.weight": torch.zeros(8, n), "feed_forward.down.weight": torch.zeros(n, 8)}
    weights = {name: w if w.ndim == 1 else w[None] for name, w in weights.items()}
    h, q, k, v, g, z1 = random(1, n, n), random(n, n), random(n, n), random(n, n), random(1, n, n), torch.eye(n)[None]
    favourite = torch.eye(n)[torch.randint(n, (n,), generator=generator)]
    norms = [weights["mixer.qkv.weight"][0, part : part + n].svd().S.max() for part in (0, n)]
    sizes = []
    for e in (1e-1, 1e-2, 1e-3, 1e-4):
        scores = (favourite * math.log((1 - e) * (n - 1) / e)).softmax(-1)
        assert float((scores * favourite).sum(-1).min()) == pytest.approx(1 - e)
        heads = (part[None, None] for part in (q, k, v, scores))
        trace = BlockTrace(h, z1, *heads, (scores @ v)[None], h, z1, torch.zeros(1, n, 8), torch.zeros(1, n, 8))
        back, found = _block_backward(weights, trace, g, Plan(1.0, gradient="full"))
        less, left = _block_backward(weights, trace, g, Plan(1.0, gradient="values"))
        of_q, of_k = (found["mixer.qkv.weight"] - left["mixer.qkv.weight"])[0].mT.chunk(3, -1)[:2]  # z1 is the identity
        b = 4 * e * v.norm(dim=-1).max() * g[0].norm(dim=-1) / math.sqrt(n)
        assert (of_q.norm(dim=-1) <= b * k.norm(dim=-1).max()).all()
        assert of_k.norm(dim=-1).sum() <= (b * q.norm(dim=-1)).sum()
        deviation = (h[0].var(-1, correction=0) + NORM_EPSILON).sqrt()
        missing = (back - less)[0].norm(dim=-1)
        assert (
            missing <= (norms[0] * b * k.norm(dim=-1).max() + norms[1] * (b * q.norm(dim=-1)).sum()) / deviation
        ).all()
        sizes.append(float(missing.mean()))
    steps = [after / before for before, after in pairwise(sizes)]
    assert steps == [pytest.approx(0.1, rel=tolerance) for tolerance in (0.1, 0.01, 0.001)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"positions": "rotary", "n_heads": 3}, "rotary positions"),
        ({"positions": "none"}, "learned positions"),
        ({"window": 3}, "no window"),
        ({"ngram_heads": [1]}, "n-gram heads"),
        ({"short_conv": 2}, "short_conv"),
    ],
)
def test_what_cannot_be_simulated(options: dict[str, Any], words: str) -> None:
    own = {"d_model": 12, "n_heads": 3, **options}
    model = build(Transformer, resolve_options(Transformer, own), IO)
    tokens, _ = text()
    with pytest.raises(UserError, match=words):
        list(simulate(model, tokens, COUNTED, rates=[0.1], gradient="values"))


def test_finite_differences_of_a_float32_model_are_not_rounded_by_float32() -> None:
    model, (tokens, inputs) = tint().auxiliary, text()
    weights, heads = auxiliary_of(model)
    exact = forward(descend(weights, inputs, tokens, COUNTED, heads, Plan(0.1, 2)), inputs, heads).logits
    single = {name: weight.float() for name, weight in weights.items()}
    rounded = forward(descend(single, inputs, tokens, COUNTED, heads, Plan(0.1, 2)), inputs, heads).logits
    (found,) = simulate(model.float(), tokens, COUNTED, rates=[0.1], gradient="first-order", steps=2)
    assert (found - exact).abs().max() < (rounded - exact).abs().max() / 10


def test_simulate_takes_a_transformer_and_its_twin_in_tint() -> None:
    model = tint()
    tokens, _ = text()
    plain, inside = (
        list(simulate(one, tokens, COUNTED, rates=[0.0, 0.01], gradient="first-order", steps=2))
        for one in (model.auxiliary, model)
    )
    weights, heads = auxiliary_of(model)
    right = descend(weights, shift_in(tokens, IO.separator), tokens, COUNTED, heads, Plan(0.01, 2))
    for found in (plain, inside):
        close(found[0], model.auxiliary(tokens), 1e-12)
        close(found[1], forward(right, shift_in(tokens, IO.separator), heads).logits, 1e-12)
    with pytest.raises(UserError, match="3 layers cannot change: the model has 2"):
        list(simulate(model, tokens, COUNTED, rates=[0.01], gradient="values", layers=3))


def test_one_set_of_weights_trains_on_all_sequences() -> None:
    """The second step is of the changed weights; its predictions are for sequences of any number and length."""
    model = tint()
    tokens, _ = text()
    after = list(islice(train(model, tokens, COUNTED, rate=0.01, gradient="full"), 3))
    still = model.auxiliary(tokens[:1, :7])
    close(after[0](tokens[:1, :7]), still, 1e-12)
    optimizer = torch.optim.SGD(model.auxiliary.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model.auxiliary(tokens)[COUNTED], tokens[COUNTED], reduction="sum").backward()
        optimizer.step()
    changed = model.auxiliary(tokens[:1, :7])
    close(after[2](tokens[:1, :7]), changed, 1e-11)
    assert float((changed - still).detach().abs().max()) > 1e-3
    with pytest.raises(UserError, match="3 layers cannot change: the model has 2"):
        next(train(model, tokens, COUNTED, rate=0.01, gradient="values", layers=3))


class _OwnAttention(Transformer):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class _OwnBackbone(Backbone):
    def forward(self, tokens: Tensor) -> Tensor:
        return 2 * super().forward(tokens)


def _mixed(second: Any) -> Backbone:
    """Two blocks: a transformer's, and another."""
    kinds = iter([Transformer, second])
    options = resolve_options(Transformer, {"d_model": 12, "n_heads": 3})
    return Backbone(lambda given: next(kinds)(given), options, IO)


def _rotary(options: Any) -> Transformer:
    return Transformer(options.model_copy(update={"positions": "rotary"}))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: _mixed(lambda options: Mamba(resolve_options(Mamba, {"d_model": 12}))),
            "TinT does not simulate Mamba",
        ),
        (lambda: _mixed(_rotary), "TinT simulates no rotary positions"),
        (lambda: _mixed(_OwnAttention), "TinT does not simulate _OwnAttention"),
        (
            lambda: _OwnBackbone(Transformer, resolve_options(Transformer, {"d_model": 12, "n_heads": 3}), IO),
            "TinT does not simulate _OwnBackbone",
        ),
        (
            lambda: build(
                Transformer, resolve_options(Transformer, {}), load_track("mad-compression-small-v1").task.io
            ),
            "TinT simulates no bottleneck",
        ),
    ],
)
def test_what_is_not_simulated(make: Any, why: str) -> None:
    """Its twin would be another model."""
    model = make().eval()
    assert refusal_of(model) == why
