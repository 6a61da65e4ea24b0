"""The explicit twin of TinT: gradient descent on a transformer, one set of weights for each sequence, written out by hand.

The model is the one of `architectures/transformer.py` on the common backbone, with learned positions. Its weights are a
dictionary, with the names of its state dictionary. A tensor has its own shape, or (B, ...) where every sequence has weights of
its own. Autograd is not used, so this works in inference mode and under `torch.compile`.

There are three gradients of the summed cross entropy:

full: The true gradient of all parameters.
values: No gradient flows through attention scores. Only TinT's set of parameters learns (see `learns`).
first-order: As `values`. Layer norm and GELU are differentiated by a finite difference of step epsilon.

Paper: *Trainable Transformer in Transformer* (Panigrahi, Malladi, Xia, Arora 2023, arXiv:2307.01189), Appendices C to G.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from architectures.transformer import Transformer
from regbench.models.backbone import Backbone
from regbench.models.heads import join_heads, split_heads
from regbench.models.model import Model, shift_in
from regbench.utils.errors import UserError

Gradient = Literal["full", "values", "first-order"]
Weights = Mapping[str, Tensor]
"""Weights by name, each of its own shape or (B, ...)."""

NORM_EPSILON = 1e-5
"""The number that layer norm adds to the variance."""
_A = 2 * math.sqrt(2 / math.pi)
_B = 0.044715 * _A

HARD = 0.1
"""A head is hard where one key has all of its attention but this."""


@dataclass(frozen=True)
class Plan:
    """How the weights are changed.

    Attributes:
        rate: Learning rate of the summed loss.
        steps: Steps of gradient descent, N.
        gradient: Which gradient.
        layers: Only so many blocks at the top change, and the last norm. None: all blocks, and with "full" also the embeddings
            and the head.
        epsilon: Step of the finite differences of "first-order".
    """

    rate: float
    steps: int = 1
    gradient: Gradient = "first-order"
    layers: int | None = None
    epsilon: float = 1e-2


@dataclass(frozen=True)
class BlockTrace:
    """What the backward pass of a block needs. T is the number of positions, h of heads, M of units.

    Attributes:
        h: Input, (B, T, d).
        z1: Normalised input of the attention, (B, T, d).
        q: Queries, (B, h, T, d/h).
        k: Keys, (B, h, T, d/h).
        v: Values, (B, h, T, d/h).
        scores: Attention weights after the softmax, (B, h, T, T).
        y: Output of the heads, (B, T, d).
        middle: Input of the MLP's norm, (B, T, d).
        z2: Normalised input of the MLP, (B, T, d).
        u: Input of the activation, (B, T, M).
        a: Output of the activation, (B, T, M).
    """

    h: Tensor
    z1: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    y: Tensor
    middle: Tensor
    z2: Tensor
    u: Tensor
    a: Tensor


@dataclass(frozen=True)
class Trace:
    """One forward pass.

    Attributes:
        blocks: What each block keeps.
        last: Input of the last norm, (B, T, d).
        x: Output of the last norm, (B, T, d).
        logits: (B, T, V).
    """

    blocks: list[BlockTrace]
    last: Tensor
    x: Tensor
    logits: Tensor


def auxiliary_of(model: Model) -> tuple[dict[str, Tensor], int]:
    """The weights of a transformer, and its number of heads.

    Args:
        model: A transformer on the backbone, or a model whose `auxiliary` is one.

    Raises:
        UserError: See `refusal`.
    """
    if (why := refusal(model)) is not None:
        raise UserError(why)
    inner: Any = getattr(model, "auxiliary", model)
    return {name: tensor.detach() for name, tensor in inner.state_dict().items()}, inner.blocks[0].mixer.n_heads


def refusal(model: Model) -> str | None:
    """Why TinT does not simulate a model. None if it does. `regbench adapt` asks it."""
    inner: Any = getattr(model, "auxiliary", model)
    if type(inner).forward is not Backbone.forward:
        return f"TinT simulates the transformer on the common backbone, not {type(inner).__name__}"
    mixers = [block.mixer for block in inner.blocks]
    for mixer in mixers:
        if type(mixer).forward is not Transformer.forward:
            return f"TinT simulates the transformer, not {type(mixer).__name__}"
    if any(mixer.rotary for mixer in mixers):
        return "TinT simulates no rotary positions"
    if inner.positions is None:
        return "TinT simulates learned positions"
    if any(mixer.window for mixer in mixers):
        return "TinT simulates no window"
    if any(mixer.orders for mixer in mixers) or inner.ngram_heads:
        return "TinT simulates no n-gram heads"
    if len({mixer.n_heads for mixer in mixers}) > 1:
        return "TinT simulates the same number of heads in every block"
    if inner.options.short_conv:
        return "TinT simulates no short_conv"
    if inner.bottleneck is not None:
        return "TinT simulates no bottleneck"
    return None


def simulate(
    model: Model,
    tokens: Tensor,
    counted: Tensor,
    *,
    rates: Sequence[float],
    gradient: Gradient,
    steps: int = 1,
    layers: int | None = None,
) -> Iterator[Tensor]:
    """The logits after gradient descent on some positions of each sequence. `regbench adapt` calls it.

    The gradient of the first step is computed once for all rates. The step of the finite differences is the option of a TinT
    model, and 0.01 of a transformer.

    Args:
        model: A transformer, or a TinT model.
        tokens: (B, T).
        counted: Positions that are in the loss, (B, T) bool.
        rates: Learning rates of the summed loss.
        gradient: Which gradient.
        steps: Steps of gradient descent.
        layers: Only so many blocks at the top change. None: all.

    Yields:
        For each rate (B, T, V).

    Raises:
        UserError: The model cannot be simulated, or has fewer blocks than `layers`.
    """
    weights, heads, plan = _begin(model, gradient, layers)
    inputs = shift_in(tokens, model.io.separator)
    first = gradients(weights, inputs, tokens, counted, heads, plan)
    for rate in rates:
        rest = replace(plan, rate=rate, steps=steps - 1)
        changed = descend(moved(weights, first, rate), inputs, tokens, counted, heads, rest)
        yield forward(changed, inputs, heads).logits


def train(
    model: Model, tokens: Tensor, counted: Tensor, *, rate: float, gradient: Gradient, layers: int | None = None
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Gradient descent of one set of weights on all sequences together. `regbench adapt` calls it on tracks of exemplars.

    Args:
        model: A transformer, or a TinT model.
        tokens: (B, T).
        counted: Positions that are in the loss, (B, T) bool.
        rate: Learning rate of the loss, a sum over all sequences.
        gradient: Which gradient.
        layers: Only so many blocks at the top change. None: all.

    Yields:
        After 0, 1, 2, ... steps, without end: what the weights predict, a function from tokens (N, L) to logits (N, L, V).

    Raises:
        UserError: The model cannot be simulated, or has fewer blocks than `layers`.
    """
    start, heads, plan = _begin(model, gradient, layers)
    weights: Weights = start
    inputs = shift_in(tokens, model.io.separator)
    while True:
        yield partial(_logits, weights, heads, model.io.separator)
        each = gradients(weights, inputs, tokens, counted, heads, plan)
        weights = moved(weights, {name: found.sum(0) for name, found in each.items()}, rate)


def angles(model: Model, tokens: Tensor, counted: Tensor) -> dict[str, dict[str, Tensor]]:
    """How far TinT's gradient is from the true one. `regbench adapt --angles` calls it.

    Args:
        model: A transformer, or a TinT model.
        tokens: (B, T).
        counted: Positions that are in the loss, (B, T) bool.

    Returns:
        By part of the model ("block 1", ..., "last norm") and measure, (B,) each. "values" and "tint" are the cosine of that
        gradient with the full one, over the parameters that both change. "hard" is the share of heads and counted positions at
        which one key has 0.9 of the attention or more (the paper's 0.1-hard heads, D.5).

    Raises:
        UserError: The model cannot be simulated.
    """
    weights, heads, plan = _begin(model, "first-order", None)
    full = replace(plan, gradient="full")
    inputs = shift_in(tokens, model.io.separator)
    true = gradients(weights, inputs, tokens, counted, heads, full)
    found: dict[str, dict[str, Tensor]] = {}
    cheaper: dict[str, Gradient] = {"values": "values", "tint": "first-order"}
    for way, gradient in cheaper.items():
        own = gradients(weights, inputs, tokens, counted, heads, replace(full, gradient=gradient))
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, one in own.items():
            rows = (
                slice(-one.shape[-2] // 3, None) if name.endswith("qkv.weight") else slice(None)
            )  # those of the values
            part = f"block {int(name.split('.')[1]) + 1}" if name.startswith("blocks.") else "last norm"
            pairs.setdefault(part, []).append((one[:, rows].flatten(1), true[name][:, rows].flatten(1)))
        for part in sorted(pairs):
            one, other = (torch.cat(both, dim=1) for both in zip(*pairs[part], strict=True))
            found.setdefault(part, {})[way] = F.cosine_similarity(one, other, dim=1)
    for i, trace in enumerate(forward(weights, inputs, heads).blocks):
        sure = (trace.scores.amax(-1) >= 1 - HARD)[..., 1:] & counted[
            :, None, 1:
        ]  # the first position has one key alone
        found[f"block {i + 1}"]["hard"] = sure.sum((1, 2)) / (heads * counted[:, 1:].sum(1))
    return found


def _begin(model: Model, gradient: Gradient, layers: int | None) -> tuple[dict[str, Tensor], int, Plan]:
    """The weights of a model, its heads, and a plan without a rate.

    Finite differences divide rounding by epsilon. So their weights are float64.
    """
    weights, heads = auxiliary_of(model)
    if gradient == "first-order":
        weights = {name: weight.double() for name, weight in weights.items()}
    if layers is not None and not 1 <= layers <= n_blocks(weights):
        raise UserError(f"{layers} layers cannot change: the model has {n_blocks(weights)}")
    epsilon = getattr(model.options, "epsilon", Plan.epsilon)
    return weights, heads, Plan(0.0, 1, gradient, layers, epsilon)


def _logits(weights: Weights, heads: int, separator: int, tokens: Tensor) -> Tensor:
    """(N, L) -> (N, L, V)."""
    return forward(weights, shift_in(tokens, separator), heads).logits


def moved(weights: Weights, found: Weights, rate: float) -> dict[str, Tensor]:
    """The weights after one step: W - rate G where there is a gradient."""
    return {name: w - rate * found[name] if name in found else w for name, w in weights.items()}


def n_blocks(weights: Weights) -> int:
    """The number of blocks that the weights are of."""
    return sum(name.endswith("mixer.qkv.weight") for name in weights)


def learns(name: str, plan: Plan, blocks: int) -> bool:
    """Whether a parameter changes. TinT's set: biases of norms, values and output of attention, and the MLP.

    The rows of queries and keys in `mixer.qkv.weight` change with the gradient "full" only.

    Args:
        name: Of the parameter.
        plan: The plan.
        blocks: Number of blocks.
    """
    if name.startswith("blocks."):
        inside = int(name.split(".")[1]) >= blocks - (blocks if plan.layers is None else plan.layers)
        return inside and (plan.gradient == "full" or not name.endswith("norm.weight"))
    if name == "norm.bias":
        return True
    return plan.gradient == "full" and (plan.layers is None or name == "norm.weight")


def descend(weights: Weights, inputs: Tensor, tokens: Tensor, counted: Tensor, heads: int, plan: Plan) -> Weights:
    """The weights after N steps, each W - rate G, with G the gradient of the sum over counted positions.

    Args:
        weights: Weights before.
        inputs: Input tokens, (B, T).
        tokens: Targets, (B, T).
        counted: Positions that are in the loss, (B, T) bool.
        heads: Heads of the attention.
        plan: The plan.

    Returns:
        Those that learn have the shape (B, ...). The others are as they were.
    """
    for _ in range(plan.steps):
        weights = moved(weights, gradients(weights, inputs, tokens, counted, heads, plan), plan.rate)
    return weights


def forward(weights: Weights, inputs: Tensor, heads: int) -> Trace:
    """The forward pass. Inputs (B, T) begin with the separator."""
    table = weights["embedding.weight"]
    rows = torch.arange(len(inputs), device=inputs.device)[:, None]
    h = table[inputs] if table.ndim == 2 else table[rows, inputs]
    h = h + weights["positions.weight"][..., : inputs.shape[1], :]
    blocks = []
    for i in range(n_blocks(weights)):
        trace, h = _block({k.split(".", 2)[2]: w for k, w in weights.items() if k.startswith(f"blocks.{i}.")}, h, heads)
        blocks.append(trace)
    x = _norm(h, weights["norm.weight"], weights["norm.bias"])
    return Trace(blocks, h, x, x @ weights["unembed.weight"].mT)


def gradients(
    weights: Weights, inputs: Tensor, tokens: Tensor, counted: Tensor, heads: int, plan: Plan
) -> dict[str, Tensor]:
    """The gradient of the summed cross entropy, by parameter that learns, (B, ...) each.

    Args:
        weights: Weights.
        inputs: Input tokens, (B, T).
        tokens: Targets, (B, T).
        counted: Positions that are in the loss, (B, T) bool.
        heads: Heads of the attention.
        plan: The plan; its rate is not used.
    """
    trace = forward(weights, inputs, heads)
    error = (trace.logits.softmax(-1) - F.one_hot(tokens, trace.logits.shape[-1])) * counted[..., None]
    found = {"unembed.weight": error.mT @ trace.x}
    g, gamma, beta = norm_backward(error @ weights["unembed.weight"], trace.last, weights["norm.weight"], plan)
    found |= {"norm.weight": gamma, "norm.bias": beta}
    blocks = n_blocks(weights)
    for i in reversed(range(blocks)):
        if not learns(f"blocks.{i}.mixer.out.weight", plan, blocks):
            break
        own = {k.split(".", 2)[2]: w for k, w in weights.items() if k.startswith(f"blocks.{i}.")}
        g, part = _block_backward(own, trace.blocks[i], g, plan)
        found |= {f"blocks.{i}.{name}": gradient for name, gradient in part.items()}
    if learns("embedding.weight", plan, blocks):
        positions = weights["positions.weight"]
        found["positions.weight"] = F.pad(g, (0, 0, 0, positions.shape[-2] - g.shape[1]))
        index = inputs[..., None].expand_as(g)
        empty = g.new_zeros(len(g), *weights["embedding.weight"].shape[-2:])
        found["embedding.weight"] = empty.scatter_add(1, index, g)
    return {name: gradient for name, gradient in found.items() if learns(name, plan, blocks)}


def normalised(x: Tensor) -> Tensor:
    """f(x) = (x - mean) / sqrt(var + e) over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON)


def norm_backward(g: Tensor, x: Tensor, gamma: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """The way back through gamma f(x) + beta.

    Args:
        g: Gradient of its output, (B, T, d).
        x: Its input, (B, T, d).
        gamma: Its weight, (d,) or (B, d).
        plan: The plan; its gradient and epsilon are used.

    Returns:
        The gradients of x (B, T, d), gamma (B, d) and beta (B, d).
    """
    out, w = normalised(x), gamma.unsqueeze(-2) * g
    if plan.gradient == "first-order":
        back = (normalised(x + plan.epsilon * w) - out) / plan.epsilon
    else:
        deviation = (x.var(-1, correction=0, keepdim=True) + NORM_EPSILON).sqrt()
        back = (w - w.mean(-1, keepdim=True) - out * (w * out).mean(-1, keepdim=True)) / deviation
    return back, (g * out).sum(1), g.sum(1)


def activation(u: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return F.gelu(u, approximate="tanh")


def activation_backward(g: Tensor, u: Tensor, plan: Plan) -> Tensor:
    """The way back through GELU: its slope at u times g, or a finite difference."""
    if plan.gradient == "first-order":
        return (activation(u + plan.epsilon * g) - activation(u)) / plan.epsilon
    share = torch.sigmoid(u * (_A + _B * u * u))
    return g * share * (1 + u * (1 - share) * (_A + 3 * _B * u * u))


def _norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return gamma.unsqueeze(-2) * normalised(x) + beta.unsqueeze(-2)


def _block(w: Weights, h: Tensor, heads: int) -> tuple[BlockTrace, Tensor]:
    """One block: (B, T, d) -> what its backward pass needs, and its output (B, T, d)."""
    z1 = _norm(h, w["mixer_norm.weight"], w["mixer_norm.bias"])
    q, k, v = (split_heads(part, heads) for part in (z1 @ w["mixer.qkv.weight"].mT).chunk(3, dim=-1))
    length = h.shape[1]
    future = torch.ones(length, length, dtype=torch.bool, device=h.device).triu(1)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(future, -torch.inf).softmax(-1)
    y = join_heads(scores @ v)
    middle = h + y @ w["mixer.out.weight"].mT
    z2 = _norm(middle, w["feed_forward_norm.weight"], w["feed_forward_norm.bias"])
    u = z2 @ w["feed_forward.up.weight"].mT + w["feed_forward.up.bias"].unsqueeze(-2)
    a = activation(u)
    out = middle + a @ w["feed_forward.down.weight"].mT + w["feed_forward.down.bias"].unsqueeze(-2)
    return BlockTrace(h, z1, q, k, v, scores, y, middle, z2, u, a), out


def _block_backward(w: Weights, trace: BlockTrace, g: Tensor, plan: Plan) -> tuple[Tensor, dict[str, Tensor]]:
    """The way back through a block: the gradient of its input, (B, T, d), and those of its parameters."""
    found = {"feed_forward.down.weight": g.mT @ trace.a, "feed_forward.down.bias": g.sum(1)}
    g_u = activation_backward(g @ w["feed_forward.down.weight"], trace.u, plan)
    found |= {"feed_forward.up.weight": g_u.mT @ trace.z2, "feed_forward.up.bias": g_u.sum(1)}
    back, gamma, beta = norm_backward(
        g_u @ w["feed_forward.up.weight"], trace.middle, w["feed_forward_norm.weight"], plan
    )
    found |= {"feed_forward_norm.weight": gamma, "feed_forward_norm.bias": beta}
    g = g + back
    found["mixer.out.weight"] = g.mT @ trace.y
    g_y = split_heads(g @ w["mixer.out.weight"], trace.q.shape[1])
    g_v = trace.scores.mT @ g_y
    if plan.gradient == "full":
        g_scores = g_y @ trace.v.mT
        g_scores = trace.scores * (g_scores - (g_scores * trace.scores).sum(-1, keepdim=True))
        scale = 1 / math.sqrt(trace.q.shape[-1])
        g_heads = torch.cat(
            [join_heads(part) for part in (g_scores @ trace.k * scale, g_scores.mT @ trace.q * scale, g_v)], -1
        )
        found["mixer.qkv.weight"] = g_heads.mT @ trace.z1
        g_z1 = g_heads @ w["mixer.qkv.weight"]
    else:
        joined = join_heads(g_v)
        values = joined.mT @ trace.z1
        found["mixer.qkv.weight"] = F.pad(values, (0, 0, 2 * values.shape[-2], 0))
        g_z1 = joined @ w["mixer.qkv.weight"].chunk(3, dim=-2)[2]
    back, gamma, beta = norm_backward(g_z1, trace.h, w["mixer_norm.weight"], plan)
    return g + back, found | {"mixer_norm.weight": gamma, "mixer_norm.bias": beta}
