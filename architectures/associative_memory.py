"""Associative memories: a transformer of frozen random embeddings in which only a few matrices learn.

*Birth of a Transformer: A Memory Viewpoint* (Bietti, Cabannes, Bouchacourt, Jegou, Bottou 2023, arXiv:2306.00802), section 4. Its
slides are cited as S: *Transformers and Associative Memories* (MIT 9.520, 2023). Each layer has one head. There are no norms, no
biases and no queries' matrix:

    x_t  = w_E(z_t) + p_t
    b1_ts = softmax over s <= t of  scale x_t^T W_K1 x_s
    x1_t = x_t  + W_O1 W_V1 sum_s b1_ts x_s
    b2_ts = softmax over s <= t of  scale x1_t^T W_K2 x1_s
    x2_t = x1_t + W_O2 W_V2 sum_s b2_ts x1_s
    x3_t = x2_t + W_F x2_t                                   with `feed_forward`
    logits_t[k] = <w_U(k), x3_t>

With `rank` each W_K is a product W_Q^T W_K of two (r, d), and with `hidden` W_F x is W_F max(W_I x, 0). With several heads each
has its own W_K, W_V and W_O, and with three layers the last W_O learns.

W_K1, W_K2 and W_O2 learn, and W_F where there is one. Each is a memory: a sum of v_j u_i^T over the pairs that it keeps. With
w_1(k) = W_O1 W_V1 w_E(k), an induction head needs

    W_K1 = sum_t p_t p_{t-1}^T                  a position looks at the one before it
    W_K2 = sum_k w_E(k) w_1(k)^T                a trigger looks at what followed the same trigger
    W_O2 = sum_k w_U(k) (W_V2 w_E(k))^T         the symbol there is copied

`measured` gives the share of the pairs that each memory recalls, so a training's log shows the order in which they are learned.
The position vectors are random, as in the released code. With `n_layers` 1 there is one attention with W_K1, W_V1 and W_O2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, model_validator
from torch import Tensor, nn

import regbench
from regbench.models.backbone import sinusoids
from regbench.models.mixer import learns_later
from regbench.models.model import Model, require_positions, shift_in
from regbench.ops.attention import attention
from regbench.tasks.base import Task, TokenIO
from regbench.tasks.bigram import Bigram, trigger_weights
from regbench.tasks.bigram_chain import bigrams

Memory = Literal["k1", "k2", "k3", "o2", "o3", "f"]
"""A matrix that can learn: W_K1, W_K2, W_O2, W_F; of three layers also W_K3, and W_O3 in place of W_O2."""

NEAR = 64
"""`recall.k1_near` is of the positions below this one: later ones are seen by few pairs, and learn last."""


class State(NamedTuple):
    """What a stream keeps.

    Attributes:
        position: how many tokens were read.
        layers: keys and values of each layer so far, (B, H, L, D).
    """

    position: int
    layers: tuple[tuple[Tensor, Tensor], ...]


class AssociativeMemory(Model):
    """The simplified transformer: (B, L) tokens -> (B, L, V) logits."""

    class Options(regbench.Options):
        """The options of the simplified transformer."""

        d_model: int = Field(default=128, ge=1, description="width of embeddings and memories, d")
        n_layers: Literal[1, 2, 3] = Field(default=2, description="layers of attention; with one there is no W_K2")
        n_heads: Literal[1, 2, 4] = Field(default=1, description="heads of each layer, each of the whole width")
        dropout: float = Field(default=0.0, ge=0.0, le=0.0, description="there is none")
        trained: tuple[Literal["k1", "k2", "k3", "o2", "o3"], ...] | None = Field(
            default=None, min_length=1, description="which of W_K1, W_K2 and W_O2 learn; None: all there are"
        )
        rank: int | None = Field(
            default=None,
            ge=1,
            description="each W_K is a product of two matrices with so many rows; None: it is one matrix",
        )
        feed_forward: bool = Field(
            default=False, description="whether a linear layer W_F, which learns, stands at the end"
        )
        hidden: int | None = Field(
            default=None, ge=1, description="with feed_forward: an MLP with so many hidden units stands there"
        )
        scale_of: Literal["released", "unit"] = Field(
            default="released", description="sizes at the start: of the released code, or unit vectors as in the theory"
        )
        train_embeddings: bool = Field(default=False, description="whether w_E, p and w_U learn, too")
        positions: Literal["random", "sinusoids"] = Field(default="random", description="the position vectors p")
        max_wait: dict[Memory, NonNegativeInt] = Field(
            default={}, description="steps in which a memory does not learn yet, as {k2: 150, k1: 300}"
        )

        @model_validator(mode="after")
        def _no_memory_that_is_not_there(self) -> Self:
            for name in self.trained or ():
                if name not in self.attention_memories():
                    layers = {1: "one layer", 2: "two layers", 3: "three layers"}[self.n_layers]
                    raise ValueError(
                        f"trained names {name}, and a model of {layers} has no W_{name.upper()} that learns"
                    )
            if self.hidden and not self.feed_forward:
                raise ValueError("hidden is for feed_forward=true")
            idle = sorted(set(self.max_wait) - set(self.memories()))
            if idle:
                raise ValueError(f"max_wait names {idle[0]}, and no memory of this name learns")
            if set(self.max_wait) == set(self.memories()) and not self.train_embeddings:
                raise ValueError("max_wait holds every memory back: one must learn from the beginning")
            return self

        def memories(self) -> tuple[Memory, ...]:
            """The memories that learn."""
            there = self.attention_memories()
            chosen: tuple[Memory, ...] = tuple(name for name in there if self.trained is None or name in self.trained)
            return (*chosen, "f") if self.feed_forward else chosen

        def attention_memories(self) -> tuple[Memory, ...]:
            """The keys' matrix of each layer, and the last layer's W_O. That of one layer is called o2, too."""
            by_layers: dict[int, tuple[Memory, ...]] = {
                1: ("k1", "o2"),
                2: ("k1", "k2", "o2"),
                3: ("k1", "k2", "k3", "o3"),
            }
            return by_layers[self.n_layers]

        def parts(self, memory: str) -> tuple[str, ...]:
            """The parameters that a memory is made of."""
            if self.rank and memory.startswith("k"):
                return (f"q{memory[1:]}", memory)
            return ("f_in", "f") if self.hidden and memory == "f" else (memory,)

    family = "attention"
    paper = regbench.Paper("Birth of a Transformer: A Memory Viewpoint", "Bietti et al.", 2023, "2306.00802")
    training_defaults: ClassVar[dict[str, Any]] = {
        "optimizer": "sgd",
        "momentum": 0.9,
        "learning_rate": 0.2,
        "weight_decay": 1e-4,
        "batch_size": 128,
        "schedule": "constant",
        "warmup": 0.0,
        "gradient_clip": 1e9,
    }

    steps: Tensor

    def __init__(self, options: AssociativeMemory.Options, io: TokenIO) -> None:
        super().__init__(options, io)
        d, released = options.d_model, options.scale_of == "released"
        self.scale = d**-0.5 if released else 1.0

        def vectors(count: int) -> Tensor:
            return torch.randn(count, d) * (1.0 if released else d**-0.5)

        def matrix(count: int = d, heads: int = 1) -> Tensor:
            shape = (count, d) if heads == 1 else (heads, count, d)
            return (2 * torch.rand(shape) - 1) * d**-0.5 if released else torch.randn(shape) * d**-0.5

        frozen = {"w_e": vectors(io.vocab_size), "p": vectors(io.max_length), "w_u": matrix(io.vocab_size)}
        if options.positions == "sinusoids":
            waves = sinusoids(io.max_length, d).to(frozen["p"].device)
            frozen["p"] = waves * 2**0.5 * (1.0 if released else d**-0.5)  # as long as the random ones
        names = {1: ("v1", "k1", "o2"), 2: ("v1", "o1", "k1", "v2", "k2", "o2")}
        names[3] = (*names[2], "v3", "k3", "o3")
        heads, rank = options.n_heads, options.rank or d
        matrices: dict[str, Tensor] = {}
        for name in names[options.n_layers]:
            for part in options.parts(name):
                matrices[part] = matrix(rank if name.startswith("k") else d, heads)
        if options.feed_forward:
            units = options.hidden or d
            matrices |= {part: matrix(units) for part in options.parts("f")}
            if options.hidden:
                matrices["f"] = matrix(units).mT.contiguous()
        parts = [part for name in options.memories() for part in options.parts(name)]
        learning = {*parts, *(frozen if options.train_embeddings else ())}
        for name, value in {**frozen, **matrices}.items():
            if name in learning:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        waiting = [part for name, steps in options.max_wait.items() if steps for part in options.parts(name)]
        learns_later(*(getattr(self, part) for part in waiting))
        if options.max_wait:
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits."""
        return self.hidden_states(tokens)[-1] @ self._of("w_u").T

    def losses(self, tokens: Tensor, scored: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        """The cross entropy of `Model.losses`. Each call in training mode counts as a step for `max_wait`."""
        if self.training and self.options.max_wait:
            self.steps += 1
        return super().losses(tokens, scored, targets)

    def hidden_states(self, tokens: Tensor) -> list[Tensor]:
        """The outputs of each layer, (B, L, D). The last one includes W_F."""
        x, found = self._embed(tokens), []
        for layer in range(1, self.options.n_layers + 1):
            q, k, v = self._heads(x, layer)
            x = x + self._joined(attention(q, k, v), layer)
            found.append(x)
        found[-1] = self._feed(x)
        return found

    def attention_weights(self, tokens: Tensor) -> list[Tensor]:
        """The weights of each layer, (B, H, L, L). Row t is of the position that predicts token t."""
        x, found = self._embed(tokens), []
        future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=x.device).triu(1)
        for layer in range(1, self.options.n_layers + 1):
            q, k, v = self._heads(x, layer)
            weights = (q @ k.mT * self.options.d_model**-0.5).masked_fill(future, float("-inf")).softmax(-1)
            found.append(weights)
            x = x + self._joined(weights @ v, layer)
        return found

    def init_state(self, batch: int) -> State:
        """The state of `batch` streams before their first token. It grows with the stream."""
        empty = self._of("w_e").new_zeros(batch, self.options.n_heads, 0, self.options.d_model)
        return State(0, ((empty, empty),) * self.options.n_layers)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One token of each stream. The logits are those of `forward`, but for rounding.

        Args:
            inputs: (B,), the tokens. The first is the separator, as in `shift_in`.
            state: the state before this token.

        Returns:
            Logits (B, V) of the next token, and the state after this one.

        Raises:
            UserError: there are more tokens than positions.
        """
        require_positions(state.position + 1, self.io.max_length)
        x, layers = self._of("w_e")[inputs] + self._of("p")[state.position], []
        for layer, before in enumerate(state.layers, 1):
            _, *own = self._heads(x[:, None], layer)
            k, v = (torch.cat([old, new], 2) for old, new in zip(before, own, strict=True))
            layers.append((k, v))
            weights = torch.einsum("bd,bhsd->bhs", x * self.scale, k).softmax(-1)
            x = x + self._joined(torch.einsum("bhs,bhsd->bhd", weights, v)[:, :, None], layer)[:, 0]
        return self._feed(x) @ self._of("w_u").T, State(state.position + 1, tuple(layers))

    def measured(self, task: Task) -> Mapping[str, float]:
        """What the trained memories recall (S, "Induction head with associative memories").

        The recall of a memory is the share of its pairs for which the right answer has the largest score. In the task `bigram`
        with fixed triggers, W_K2 is asked about the triggers, and W_O2 about the symbols that can be outputs. In every other
        task both are asked about all symbols but the separator.

        Args:
            task: a task of tokens.

        Returns:
            `recall.o2`, `recall.k2`, `recall.k1`, `recall.k1_near` (positions below 64), `chance.` of each, and in the task
            `bigram` `divergence.f`: the mean KL divergence in nats from pi_b to the softmax of <w_U(j), W_F w_E(k)>, over the
            symbols k that are no fixed triggers.
        """
        every = torch.tensor([k for k in range(self.io.vocab_size) if k != self.io.separator])
        fixed = fixed_triggers(task)
        queries = torch.from_numpy(fixed) if len(fixed) else every
        others = every[~torch.isin(every, torch.from_numpy(fixed))]
        w_e, p, w_u = (self._of(name).detach() for name in ("w_e", "p", "w_u"))
        get, found, learning = self._of, {}, self.options.memories()
        every, queries, others = (part.to(w_e.device) for part in (every, queries, others))
        if self.options.n_heads > 1 or self.options.n_layers == 3:
            found = self._places(w_e[queries], p)
        else:
            if "o2" in learning:
                values = w_e[others] @ get("v1" if self.options.n_layers == 1 else "v2").T
                scores = values @ get("o2").T @ w_u[every].T
                found["o2"] = _recall(scores, torch.searchsorted(every, others))
            if "k2" in learning:
                keys = w_e[queries] @ get("v1").T @ get("o1").T
                found["k2"] = _recall(w_e[queries] @ get("k2") @ keys.T, torch.arange(len(queries)))
            if "k1" in learning and len(p) > 2:
                for name, longest in (("k1", len(p)), ("k1_near", min(NEAR, len(p)))):
                    scores = p[1:longest] @ get("k1") @ p[: longest - 1].T
                    found[name] = _recall(scores, torch.arange(longest - 1))
        figures = {f"recall.{name}": share for name, (share, _) in found.items()}
        figures |= {f"chance.{name}": chance for name, (_, chance) in found.items()}
        if "f" in learning and isinstance(task, Bigram):
            guess = (self._fed(w_e[others]).detach() @ w_u[every].T).double().log_softmax(-1).cpu().numpy()
            table = bigrams(task.parameters.n_symbols, task.parameters.bigrams_seed)[0][others.cpu().numpy()]
            figures["divergence.f"] = float((table * (np.log(np.maximum(table, 1e-300)) - guess)).sum(1).mean())
        return figures

    def _places(self, queries: Tensor, p: Tensor) -> dict[str, tuple[float, float]]:
        """The recall of both keys' memories at every place where one can be: `previous.LAYER.HEAD` and `match.LAYER.HEAD`.

        A head that matches can read what any head of an earlier layer carries. Its recall is the largest of these.

        Args:
            queries: (M, D), the vectors of the symbols that W_K2 is asked about.
            p: (L, D), those of the positions.
        """
        found = {}
        by_head = {name: value.view(-1, *value.shape[-2:]) for name, value in self._matrices().items()}
        for layer in range(1, self.options.n_layers + 1):
            for head, keys in enumerate(by_head[f"k{layer}"], 1):
                if layer < self.options.n_layers:
                    scores = p[1:] @ keys @ p[:-1].T
                    found[f"previous.{layer}.{head}"] = _recall(scores, torch.arange(len(p) - 1))
                carried = [
                    queries @ v.T @ o.T
                    for earlier in range(1, layer)
                    for v, o in zip(by_head[f"v{earlier}"], by_head[f"o{earlier}"], strict=True)
                ]
                recalls = [_recall(queries @ keys @ one.T, torch.arange(len(queries))) for one in carried]
                if recalls:
                    found[f"match.{layer}.{head}"] = max(recalls)
        return found

    @classmethod
    def can_overfit(cls, options: Any) -> bool:
        """A few matrices between frozen random ones cannot tell a batch of instances apart."""
        return False

    def _of(self, name: str) -> Tensor:
        """A matrix or a table of vectors. A memory that waits gets no gradient."""
        value: Tensor = getattr(self, name)
        if self.options.rank and name.startswith("k"):
            value = getattr(self, f"q{name[1:]}").mT @ value
        wait = self.options.max_wait.get("f" if name == "f_in" else name, 0) if self.training else 0
        return value.detach() if wait and int(self.steps) <= wait else value

    def _matrices(self) -> dict[str, Tensor]:
        """The matrices of all layers, (D, D) or (H, D, D)."""
        layers = range(1, self.options.n_layers + 1)
        return {f"{kind}{i}": self._out(i) if kind == "o" else self._of(f"{kind}{i}") for i in layers for kind in "kvo"}

    def _embed(self, tokens: Tensor) -> Tensor:
        """(B, L) tokens -> (B, L, D): the sum of a token's vector and its position's.

        Raises:
            UserError: there are more tokens than positions.
        """
        require_positions(tokens.shape[1], self.io.max_length)
        inputs = shift_in(tokens, self.io.separator)
        x: Tensor = self._of("w_e")[inputs] + self._of("p")[: inputs.shape[1]]
        return x

    def _heads(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, H, L, D) of a layer. Queries are scaled for an op that divides scores by the root of D."""
        x = x[:, None]
        scaled = (x * (self.scale * self.options.d_model**0.5)).expand(-1, self.options.n_heads, -1, -1)
        return scaled, x @ self._of(f"k{layer}").mT, x @ self._of(f"v{layer}").mT

    def _joined(self, z: Tensor, layer: int) -> Tensor:
        """(B, H, L, D) of the heads -> (B, L, D): the sum of W_O z."""
        return (z @ self._out(layer).mT).sum(1)

    def _out(self, layer: int) -> Tensor:
        """W_O of a layer. The last layer's is the one that learns."""
        last = layer == self.options.n_layers
        return self._of(self.options.attention_memories()[-1] if last else f"o{layer}")

    def _feed(self, x: Tensor) -> Tensor:
        """Adds W_F x to x (..., D), where there is a W_F."""
        return x + self._fed(x) if self.options.feed_forward else x

    def _fed(self, x: Tensor) -> Tensor:
        """W_F x, or with hidden units W_F max(W_I x, 0), of x (..., D)."""
        if not self.options.hidden:
            return x @ self._of("f").T
        return (x @ self._of("f_in").T).relu() @ self._of("f").T


def fixed_triggers(task: Task) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The triggers that all instances of the task `bigram` share, ascending. Empty if there are none."""
    if not isinstance(task, Bigram) or task.parameters.triggers != "fixed":
        return np.empty(0, np.int64)
    return np.flatnonzero(trigger_weights(task.parameters))


def _recall(scores: Tensor, right: Tensor) -> tuple[float, float]:
    """The share of rows of scores (M, J) whose largest entry is at the place right (M,), and what chance gives."""
    best = scores.argmax(1)
    return float((best == right.to(best.device)).double().mean()), 1.0 / scores.shape[1]
