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

Memory = Literal["k1", "k2", "o2", "f"]
"""A matrix that can learn: W_K1, W_K2, W_O2, W_F."""

NEAR = 64
"""`recall.k1_near` is of the positions below this one: later ones are seen by few pairs, and learn last."""


class State(NamedTuple):
    """What a stream keeps.

    Attributes:
        position: how many tokens were read.
        layers: keys and values of each layer so far, (B, L, D).
    """

    position: int
    layers: tuple[tuple[Tensor, Tensor], ...]


class AssociativeMemory(Model):
    """The simplified transformer: (B, L) tokens -> (B, L, V) logits."""

    class Options(regbench.Options):
        """The options of the simplified transformer."""

        d_model: int = Field(default=128, ge=1, description="width of embeddings and memories, d")
        n_layers: Literal[1, 2] = Field(default=2, description="layers of attention; with one there is no W_K2")
        n_heads: Literal[1] = Field(default=1, description="each layer has one head")
        dropout: float = Field(default=0.0, ge=0.0, le=0.0, description="there is none")
        trained: tuple[Literal["k1", "k2", "o2"], ...] | None = Field(
            default=None, min_length=1, description="which of W_K1, W_K2 and W_O2 learn; None: all there are"
        )
        feed_forward: bool = Field(
            default=False, description="whether a linear layer W_F, which learns, stands at the end"
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
            if self.n_layers == 1 and "k2" in (self.trained or ()):
                raise ValueError("trained names k2, and a model of one layer has no W_K2")
            idle = sorted(set(self.max_wait) - set(self.memories()))
            if idle:
                raise ValueError(f"max_wait names {idle[0]}, and no memory of this name learns")
            if set(self.max_wait) == set(self.memories()) and not self.train_embeddings:
                raise ValueError("max_wait holds every memory back: one must learn from the beginning")
            return self

        def memories(self) -> tuple[Memory, ...]:
            """The memories that learn."""
            there: tuple[Memory, ...] = ("k1", "k2", "o2") if self.n_layers == 2 else ("k1", "o2")
            chosen: tuple[Memory, ...] = tuple(name for name in there if self.trained is None or name in self.trained)
            return (*chosen, "f") if self.feed_forward else chosen

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

        def matrix(count: int = d) -> Tensor:
            return (2 * torch.rand(count, d) - 1) * d**-0.5 if released else torch.randn(count, d) * d**-0.5

        frozen = {"w_e": vectors(io.vocab_size), "p": vectors(io.max_length), "w_u": matrix(io.vocab_size)}
        if options.positions == "sinusoids":
            waves = sinusoids(io.max_length, d).to(frozen["p"].device)
            frozen["p"] = waves * 2**0.5 * (1.0 if released else d**-0.5)  # as long as the random ones
        names = ("v1", "k1", "o2") if options.n_layers == 1 else ("v1", "o1", "k1", "v2", "k2", "o2")
        matrices = {name: matrix() for name in (*names, *(("f",) if options.feed_forward else ()))}
        learning = {*options.memories(), *(frozen if options.train_embeddings else ())}
        for name, value in {**frozen, **matrices}.items():
            if name in learning:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        learns_later(*(getattr(self, name) for name, steps in options.max_wait.items() if steps))
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
            x = x + attention(q[:, None], k[:, None], v[:, None])[:, 0] @ self._out(layer).T
            found.append(x)
        found[-1] = self._feed(x)
        return found

    def attention_weights(self, tokens: Tensor) -> list[Tensor]:
        """The weights of each layer, (B, 1, L, L). Row t is of the position that predicts token t."""
        x, found = self._embed(tokens), []
        future = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=x.device).triu(1)
        for layer in range(1, self.options.n_layers + 1):
            q, k, v = self._heads(x, layer)
            weights = (q @ k.mT * self.options.d_model**-0.5).masked_fill(future, float("-inf")).softmax(-1)
            found.append(weights[:, None])
            x = x + weights @ v @ self._out(layer).T
        return found

    def init_state(self, batch: int) -> State:
        """The state of `batch` streams before their first token. It grows with the stream."""
        empty = self._of("w_e").new_zeros(batch, 0, self.options.d_model)
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
            k, v = (torch.cat([old, new], 1) for old, new in zip(before, own, strict=True))
            layers.append((k, v))
            weights = torch.einsum("bd,bsd->bs", x * self.scale, k).softmax(-1)
            x = x + torch.einsum("bs,bsd->bd", weights, v) @ self._out(layer).T
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
            guess = (w_e[others] @ get("f").detach().T @ w_u[every].T).double().log_softmax(-1).cpu().numpy()
            table = bigrams(task.parameters.n_symbols, task.parameters.bigrams_seed)[0][others.cpu().numpy()]
            figures["divergence.f"] = float((table * (np.log(np.maximum(table, 1e-300)) - guess)).sum(1).mean())
        return figures

    @classmethod
    def can_overfit(cls, options: Any) -> bool:
        """A few matrices between frozen random ones cannot tell a batch of instances apart."""
        return False

    def _of(self, name: str) -> Tensor:
        """A matrix or a table of vectors. A memory that waits gets no gradient."""
        value: Tensor = getattr(self, name)
        if self.training and name in self.options.max_wait:
            return value.detach() if int(self.steps) <= self.options.max_wait[name] else value
        return value

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
        """Queries, keys and values (B, L, D) of a layer. Queries are scaled for an op that divides scores by the root of D."""
        scaled = x * (self.scale * self.options.d_model**0.5)
        return scaled, x @ self._of(f"k{layer}").T, x @ self._of(f"v{layer}").T

    def _out(self, layer: int) -> Tensor:
        """W_O of a layer. The last layer's is the one that learns."""
        return self._of("o2" if layer == self.options.n_layers else "o1")

    def _feed(self, x: Tensor) -> Tensor:
        """Adds W_F x to x (..., D), where there is a W_F."""
        return x + x @ self._of("f").T if self.options.feed_forward else x


def fixed_triggers(task: Task) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The triggers that all instances of the task `bigram` share, ascending. Empty if there are none."""
    if not isinstance(task, Bigram) or task.parameters.triggers != "fixed":
        return np.empty(0, np.int64)
    return np.flatnonzero(trigger_weights(task.parameters))


def _recall(scores: Tensor, right: Tensor) -> tuple[float, float]:
    """The share of rows of scores (M, J) whose largest entry is at the place right (M,), and what chance gives."""
    best = scores.argmax(1)
    return float((best == right.to(best.device)).double().mean()), 1.0 / scores.shape[1]
