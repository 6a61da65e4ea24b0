"""What the mixers share whose state is a network that learns from each position: TTT and Titans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Matrices = tuple[Tensor, ...]
"""One for each layer of the network, (B, H, I, O). Where the network has biases they are the last row."""

EPSILON = 1e-6


class Memory(NamedTuple):
    """The state of the network.

    Attributes:
        base: its matrices before the mini-batch, at which gradients are taken; empty where a mini-batch is one position.
        now: its matrices after the last position.
        momentum: S of the last position; empty if there is none.
    """

    base: Matrices
    now: Matrices
    momentum: Matrices


class Network(NamedTuple):
    """f: with a norm f(x) = x + LN(layers(x)), as in Sun et al. 2024, section 2.7, else f(x) = layers(x).

    Attributes:
        act: gives the activation between layers and its slope.
        bias: whether each layer has a bias.
        norm: weight and bias of LN, (H, 1, V) each, or None.
    """

    act: Callable[[Tensor], tuple[Tensor, Tensor]]
    bias: bool
    norm: tuple[Tensor, Tensor] | None

    def given(self, x: Tensor) -> Tensor:
        """The input of a layer, (..., I): with a one where there are biases."""
        return F.pad(x, (0, 1), value=1.0) if self.bias else x

    def out(self, x: Tensor, z: Tensor) -> Tensor:
        """What f gives for x, from the output z of its last layer."""
        if self.norm is None:
            return z
        weight, bias = self.norm
        return x + F.layer_norm(z, z.shape[-1:], eps=EPSILON) * weight + bias

    def gradient(self, base: Matrices, k: Tensor, v: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of 1/2 |f(k) - v|^2 at each position by itself.

        Args:
            base: the matrices.
            k: (B, H, C, K), what f is given.
            v: (B, H, C, V), what it should give.

        Returns:
            For each layer its input a (B, H, C, I) and the gradient of its output g (B, H, C, O): that of its matrix is a^T g.
        """
        inputs: list[Tensor] = []
        slopes: list[Tensor] = []
        z = k
        for W in base:
            if inputs:
                z, slope = self.act(z)
                slopes.append(slope)
            inputs.append(self.given(z))
            z = inputs[-1] @ W
        if self.norm is None:
            g = z - v
        else:
            weight, bias = self.norm
            z = z - z.mean(-1, keepdim=True)
            scale = (z.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
            z = z * scale
            g = weight * (k + weight * z + bias - v)
            g = (g - g.mean(-1, keepdim=True) - z * (g * z).mean(-1, keepdim=True)) * scale
        pairs = [(inputs.pop(), g)]
        for W, slope in zip(base[:0:-1], slopes[::-1], strict=True):
            g = (g @ W[..., : slope.shape[-1], :].mT) * slope
            pairs.append((inputs.pop(), g))
        return pairs[::-1]


class Rates(NamedTuple):
    """How the network learns at each position: theta (B, H, L, 1), and logarithms (B, H, L), at most 0, or None for 0 and none.

    Attributes:
        theta: the size of a step.
        forget: log(1 - alpha), by how much the matrices decay.
        momentum: log eta, by how much the momentum decays.
    """

    theta: Tensor
    forget: Tensor | None = None
    momentum: Tensor | None = None


def learn(
    network: Network, size: int, seen: int, q: Tensor, k: Tensor, v: Tensor, rates: Rates, memory: Memory
) -> tuple[Tensor, Memory]:
    """The network learns to give v for k at each position, and then reads q.

        S_t = eta_t S_{t-1} - theta_t grad 1/2 |f(M_{t'}; k_t) - v_t|^2        t' is the end of the mini-batch before t
        M_t = (1 - alpha_t) M_{t-1} + S_t
        z_t = f(M_t; q_t)

    All positions of a mini-batch are computed at once: what they read of each other goes through (C, C) matrices, as in attention
    (the dual form of Sun et al. 2024, section 2.5; with decays Behrouz et al. 2024, section 3.2).

    Args:
        network: f.
        size: positions of a mini-batch.
        seen: positions so far.
        q: (B, H, L, K).
        k: (B, H, L, K).
        v: (B, H, L, V).
        rates: of each position.
        memory: M and S before them.

    Returns:
        z (B, H, L, V), and the memory after them.
    """
    base, now, momentum = memory
    length, outputs = q.shape[2], []
    ends = [*range((-seen) % size or size, length, size), length]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    # `split`, as a slice of every mini-batch would make the backward pass build a gradient of all positions for each.
    parts = [[None] * len(sizes) if part is None else part.split(sizes, 2) for part in (q, k, v, *rates)]
    for end, q_c, k_c, v_c, theta, *decays in zip(ends, *parts, strict=True):
        pairs = [(a, theta * g) for a, g in network.gradient(base or now, k_c, v_c)]
        form = _position if q_c.shape[2] == 1 else _mini_batch
        z, now, momentum = form(network, q_c, pairs, decays, now, momentum)
        outputs.append(z)
        if base and (seen + end) % size == 0:
            base = now
    return torch.cat(outputs, 2), Memory(base, now, momentum)


def _position(
    network: Network,
    q: Tensor,
    pairs: list[tuple[Tensor, Tensor]],
    decays: list[Tensor | None],
    now: Matrices,
    momentum: Matrices,
) -> tuple[Tensor, Matrices, Matrices]:
    """`_mini_batch` of one position: the recurrence itself."""
    kept, eta = (None if log is None else log.exp()[..., None] for log in decays)
    S = tuple(-(a.mT @ g) for a, g in pairs)
    if eta is not None:
        S = tuple(torch.addcmul(new, eta, old) for new, old in zip(S, momentum, strict=True))
    now = tuple(M + new if kept is None else torch.addcmul(new, kept, M) for M, new in zip(now, S, strict=True))
    z = q
    for layer, M in enumerate(now):
        z = network.given(network.act(z)[0] if layer else z) @ M
    return network.out(q, z), now, S if eta is not None else ()


def _mini_batch(
    network: Network,
    q: Tensor,
    pairs: list[tuple[Tensor, Tensor]],
    decays: list[Tensor | None],
    now: Matrices,
    momentum: Matrices,
) -> tuple[Tensor, Matrices, Matrices]:
    """z, M and S after the C positions of a mini-batch, or of a part of it, whose gradients are known.

    Of the M before them a share `kept` is in M_t, and of the S before them `entered`; of the step at s, `stepped` is in S_t and
    `written` in M_t.
    """
    ones = torch.ones(q.shape[2], q.shape[2], dtype=q.dtype, device=q.device).tril()
    forget, eta = decays
    kept = None if forget is None else forget.cumsum(-1).exp()[..., None]  # (B, H, C, 1)
    written = ones if forget is None else _decay(forget, ones)  # (B, H, C, C)
    if eta is not None:
        stepped, carried = _decay(eta, ones), eta.cumsum(-1).exp()[..., None]
        entered, written = written @ carried, written @ stepped
    z, after, changes = q, [], []
    for layer, (W, (a, g)) in enumerate(zip(now, pairs, strict=True)):
        given = network.given(network.act(z)[0] if layer else z)
        old, change = given @ W, written[..., -1:, :].mT * g
        z = (old if kept is None else kept * old) - (given @ a.mT * written) @ g
        W = (W if kept is None else kept[:, :, -1:] * W) - a.mT @ change
        if eta is not None:
            S = momentum[layer]
            z = z + entered * (given @ S)
            W = W + entered[:, :, -1:] * S
            changes.append(carried[:, :, -1:] * S - a.mT @ (stepped[..., -1:, :].mT * g))
        after.append(W)
    return network.out(q, z), tuple(after), tuple(changes)


def _decay(log: Tensor, ones: Tensor) -> Tensor:
    """What is left at t of what came in at s: exp of the sum of `log` over s < i <= t, (B, H, C) -> (B, H, C, C), 0 for s > t."""
    total = log.cumsum(-1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(ones == 0, float("-inf")).exp()


def gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """GELU in its tanh form, which is x sigmoid(u), and its slope."""
    cubic = 0.044715 * x.square()
    share = (2 * math.sqrt(2 / math.pi) * x * (1 + cubic)).sigmoid()
    return x * share, share + x * share * (1 - share) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * cubic)


def silu(x: Tensor) -> tuple[Tensor, Tensor]:
    """SiLU, and its slope."""
    share = x.sigmoid()
    return x * share, share * (1 + x * (1 - share))
