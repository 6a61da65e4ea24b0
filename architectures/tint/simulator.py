"""The constructed simulator: it holds the auxiliary's weights in prefix tokens, reads the text, and changes them.

A step is a forward pass and a backward pass. In the forward pass each module keeps what its backward pass needs. The backward
pass goes through the modules in reverse. Both read the prefix tokens of before the step. The logits come from another forward
pass. There are three modules beside the linear one:

Finite difference: (f(x + eps w) - f(x)) / eps, with f the norm of each slot or GELU. Two dimension-wise maps stand around f.
Attention: softmax attention with the queries, keys and values in slots 0, 1 and 2. The backward pass computes the scores again
    and uses them transposed. A standard attention cannot transpose, so this module is none.
Loss: the label of position t is the input of position t + 1. A linear attention with scores 1 for (t, t + 1) fetches it.

The MLP is four modules of d units. The bias of its second matrix is in the first of the four only. Masks are exact: 0 or 1.

Paper: sections 3.2 to 3.4 and Appendices C to H.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.tint.explicit import NORM_EPSILON, Weights, activation, n_blocks
from architectures.tint.layout import Layout, dimensionwise
from architectures.tint.linear import LinearModule

PARTS = 4
"""Modules of d units that the MLP is made of."""


@dataclass(frozen=True)
class Memory:
    """The auxiliary in the simulator.

    Attributes:
        prefixes: Prefix tokens (B, K, D), by block and module: "0.up.2" is the third part of the first MLP's first matrix.
        fixed: What does not change: embedding, positions, unembedding.
        blocks: Number of blocks.
    """

    prefixes: Mapping[str, Tensor]
    fixed: Weights
    blocks: int


class Simulator(nn.Module):
    """The modules, built once for all layers."""

    def __init__(self, layout: Layout, rate: float, epsilon: float) -> None:
        """Builds the maps.

        Args:
            layout: The sizes.
            rate: Learning rate of a step, on the summed loss.
            epsilon: Step of the finite differences.
        """
        super().__init__()
        self.layout = layout
        self.linear = LinearModule(layout, rate)
        self.difference = FiniteDifference(layout, epsilon)
        self.attention = AttentionModule(layout)

    def store(self, weights: Weights, batch: int) -> Memory:
        """The auxiliary's weights in prefix tokens, once for each of `batch` sequences."""
        layout, d = self.layout, self.layout.width
        found: dict[str, Tensor] = {}
        for i in range(n_blocks(weights)):
            own = {k.split(".", 2)[2]: w for k, w in weights.items() if k.startswith(f"blocks.{i}.")}
            modules: dict[str, tuple[Tensor, Tensor | None]] = {
                "norm1": (own["mixer_norm.weight"].diag(), own["mixer_norm.bias"]),
                "out": (own["mixer.out.weight"], None),
                "norm2": (own["feed_forward_norm.weight"].diag(), own["feed_forward_norm.bias"]),
            }
            for name, part in zip(("query", "key", "value"), own["mixer.qkv.weight"].chunk(3), strict=True):
                modules[name] = part, None
            for c in range(PARTS):
                units = slice(c * d, (c + 1) * d)
                modules[f"up.{c}"] = own["feed_forward.up.weight"][units], own["feed_forward.up.bias"][units]
                bias = own["feed_forward.down.bias"] if c == 0 else None
                modules[f"down.{c}"] = own["feed_forward.down.weight"][:, units], bias
            found |= {f"{i}.{name}": layout.store(*module) for name, module in modules.items()}
        found["norm"] = layout.store(weights["norm.weight"].diag(), weights["norm.bias"])
        prefixes = {name: prefix.expand(batch, -1, -1) for name, prefix in found.items()}
        fixed = {name: weights[f"{name}.weight"] for name in ("embedding", "positions", "unembed")}
        return Memory(prefixes, fixed, n_blocks(weights))

    def logits(self, memory: Memory, tokens: Tensor, separator: int) -> Tensor:
        """The logits (B, T, V) with the weights in the memory."""
        x, _, _ = self._forward(memory, tokens, separator)
        return self.layout.get(x) @ memory.fixed["unembed"].mT

    def step(self, memory: Memory, tokens: Tensor, separator: int, counted: Tensor, layers: int | None) -> Memory:
        """The memory after one step of descent.

        Args:
            memory: Before it.
            tokens: (B, T).
            separator: The token that begins the input.
            counted: Positions that are in the loss, (B, T) bool.
            layers: Only so many blocks at the top change. None: all.
        """
        x, kept, last = self._forward(memory, tokens, separator)
        g = self.loss_gradient(memory, x, tokens, counted)
        new: dict[str, Tensor] = {}
        # A later counted position sends gradients to all before it, so descent sums over every position up to the last.
        seen = counted.flip(1).cummax(1).values.flip(1)
        g = self._norm_back(memory, "norm", g, last, seen, new)
        for i in reversed(range(memory.blocks)):
            if layers is not None and i < memory.blocks - layers:
                break
            g = self._block_back(memory, i, g, kept[i], seen, new)
        return Memory({**memory.prefixes, **new}, memory.fixed, memory.blocks)

    def loss_gradient(self, memory: Memory, x: Tensor, tokens: Tensor, counted: Tensor) -> Tensor:
        """The gradient of the last norm's output x, in slot 0: softmax(U x) U - U[label] at counted positions, 0 elsewhere.

        Every position of the input shows the row of its own token in U. Position t fetches its label's row from t + 1. The last
        label stands behind the text, as one more token.
        """
        table, layout = memory.fixed["unembed"], self.layout
        shown = table[F.pad(tokens, (1, 0))]
        next_one = torch.ones(shown.shape[1], shown.shape[1], dtype=x.dtype, device=x.device).tril(1).triu(1)
        label = (next_one @ shown)[:, :-1]
        expected = (layout.get(x) @ table.mT).softmax(-1) @ table
        return layout.put((expected - label) * counted[..., None])

    def _forward(
        self, memory: Memory, tokens: Tensor, separator: int
    ) -> tuple[Tensor, list[dict[str, Tensor]], Tensor]:
        """The last norm's output in slot 0, what each block keeps, and the last norm's input."""
        inputs = F.pad(tokens, (1, 0), value=separator)[:, :-1]
        h = self.layout.put(memory.fixed["embedding"][inputs] + memory.fixed["positions"][: inputs.shape[1]])
        kept = []
        for i in range(memory.blocks):
            prefix = {name[len(f"{i}.") :]: p for name, p in memory.prefixes.items() if name.startswith(f"{i}.")}
            own = {"h": h}
            own["z1"] = z1 = self.linear(self.norm(h), prefix["norm1"])
            own["qkv"] = sum(
                self.layout.put(self.layout.get(self.linear(z1, prefix[name])), slot)
                for slot, name in enumerate(("query", "key", "value"))
            )  # type: ignore[assignment]
            own["y"] = self.attention(own["qkv"])
            own["middle"] = middle = h + self.linear(own["y"], prefix["out"])
            own["z2"] = z2 = self.linear(self.norm(middle), prefix["norm2"])
            h = middle
            for c in range(PARTS):
                own[f"u.{c}"] = u = self.linear(z2, prefix[f"up.{c}"])
                own[f"a.{c}"] = a = activation(u)
                h = h + self.linear(a, prefix[f"down.{c}"])
            kept.append(own)
        return self.linear(self.norm(h), memory.prefixes["norm"]), kept, h

    def norm(self, x: Tensor) -> Tensor:
        """The norm of slot 0 alone; the other slots are 0."""
        return self.layout.put(normalise_slots(x, self.layout.slots)[..., : self.layout.width])

    def _norm_back(
        self, memory: Memory, name: str, g: Tensor, x: Tensor, seen: Tensor, new: dict[str, Tensor]
    ) -> Tensor:
        """The way back through a norm and its diagonal matrix, of which the bias learns: g and x in slot 0 -> slot 0."""
        prefix = memory.prefixes[name]
        new[name] = self.linear.descent(g, prefix, seen, "bias")
        return self.difference(self.linear.backward(g, prefix), x, partial(normalise_slots, slots=self.layout.slots))

    def _block_back(
        self, memory: Memory, i: int, g: Tensor, kept: dict[str, Tensor], seen: Tensor, new: dict[str, Tensor]
    ) -> Tensor:
        """The way back through a block: g (B, T, D) of its output, in slot 0 -> g of its input."""
        linear, layout = self.linear, self.layout

        def learn(name: str, g: Tensor, x: Tensor, what: str) -> Tensor:
            """Descent of a module; its way back reads the old prefix tokens."""
            prefix = memory.prefixes[f"{i}.{name}"]
            new[f"{i}.{name}"] = linear.descent(g + layout.put(layout.get(x), 1), prefix, seen, what)
            return linear.backward(g, prefix)

        g_z2 = torch.zeros_like(g)
        for c in range(PARTS):
            g_a = learn(f"down.{c}", g, kept[f"a.{c}"], "weight" if c else "both")
            g_u = self.difference(g_a, kept[f"u.{c}"], activation)
            g_z2 = g_z2 + learn(f"up.{c}", g_u, kept["z2"], "both")
        g = g + self._norm_back(memory, f"{i}.norm2", g_z2, kept["middle"], seen, new)
        g_y = learn("out", g, kept["y"], "weight")
        g_v = self.attention.backward(g_y, kept["qkv"])
        g_z1 = learn("value", g_v, kept["z1"], "weight")
        return g + self._norm_back(memory, f"{i}.norm1", g_z1, kept["h"], seen, new)


class FiniteDifference(nn.Module):
    """(f(x + eps w) - f(x)) / eps: w and x in slot 0 of two tensors -> slot 0."""

    into: Tensor
    out: Tensor

    def __init__(self, layout: Layout, epsilon: float) -> None:
        super().__init__()
        self.layout = layout
        into = layout.between_slots({(0, 0): epsilon, (0, 1): 1.0, (1, 1): 1.0})
        out = layout.between_slots({(0, 0): 1 / epsilon, (0, 1): -1 / epsilon})
        self.register_buffer("into", into.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("out", out.to(torch.get_default_dtype()), persistent=False)

    def forward(self, w: Tensor, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """The derivative of f at x in direction w: (B, T, D) twice -> (B, T, D). f is a norm of each slot, or an activation."""
        both = dimensionwise(w + self.layout.put(self.layout.get(x), 1), self.into)
        return dimensionwise(f(both), self.out)


class AttentionModule(nn.Module):
    """Softmax attention of h heads, and the way back to the values."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys, values in slots 0, 1, 2 -> the heads' output in slot 0."""
        return self._out(self._scores(x) @ self._heads(x, 2))

    def backward(self, g: Tensor, x: Tensor) -> Tensor:
        """The gradient of the values in slot 0, from that of the output in slot 0: the scores, used transposed."""
        return self._out(self._scores(x).mT @ self._heads(g, 0))

    def _heads(self, x: Tensor, slot: int) -> Tensor:
        """(B, T, D) -> (B, h, T, d/h)."""
        return self.layout.get(x, slot).unflatten(-1, (self.layout.heads, -1)).transpose(1, 2)

    def _scores(self, x: Tensor) -> Tensor:
        """Causal attention weights, (B, h, T, T)."""
        logits = self._logits(self._heads(x, 0), self._heads(x, 1))
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return logits.masked_fill(future, -torch.inf).softmax(-1)

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, h, T, d/h) twice -> (B, h, T, T). `variants.py` has other ones."""
        return query @ key.mT / math.sqrt(query.shape[-1])

    def _out(self, y: Tensor) -> Tensor:
        """(B, h, T, d/h) -> (B, T, D)."""
        return self.layout.put(y.transpose(1, 2).flatten(2))


def normalise_slots(x: Tensor, slots: int) -> Tensor:
    """Group norm: every slot is normalised by itself, (B, T, D) -> (B, T, D)."""
    parts = x.unflatten(-1, (slots, -1))
    return F.layer_norm(parts, parts.shape[-1:], eps=NORM_EPSILON).flatten(-2)
