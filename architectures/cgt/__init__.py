"""CGT, Contextually Guided Transformer: a slow summary y of the context makes the weights that its fast stream x is read with.

Two streams run through the blocks (CGT section 3.1). The stream x reads x only. The stream y reads x and y, up to block l. The y
of block l is the summary of the context. In the blocks above l, x goes through an operator before each attention and each MLP:
T(x; y) = x + L(y) R(y)^T [x; 1]. L and R are mixed from M templates of rank r. For a constant y, each T can be folded into the
matrix after it. `specialize(prompt)` does this: it returns an ordinary transformer on x alone, which needs no prompt.

The loss is (1 - alpha) L_CE + alpha L_aux + w_C R_C + w_D R_D (Eq. 3), divided by 1 - alpha, so that its first term is the cross
entropy itself. L_aux takes y from the end of a random prefix and lets x predict the tokens after it. R_C makes y slow. R_D makes
y different between instances. A moment-matching term can replace both (`losses.py`). With `beta` above 0, y is a sample, and a
Gaussian process is its prior (`prior.py`).

Papers: CGT is arXiv:2506.05672. "2024" is its earlier version, *Learning Fast and Slow: Representations for In-Context Weight
Modulation* (Zhmoginov, Lee, Vladymyrov, Sandler 2024, ICML workshop on in-context learning). It has numbers that are missing in
the text of CGT. Three choices are ours, because neither paper states them: alpha is 0.5, y is normalised at block l, and T stands
after the norm of x (before the norm it could not be folded).

The papers' settings are in `configs/`. The defaults here are for tracks that train in minutes. More is in `docs/cgt.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.cgt.layers import Block, Cache, GuidedBlock, Mixing, Reader, both_streams
from architectures.cgt.losses import (
    Freeze,
    Profile,
    augment,
    continuity,
    diversity,
    draw_windows,
    moments,
    moments_by_position,
    real_positions,
)
from architectures.cgt.prior import Prior, covariance
from architectures.cgt.specialised import Specialised, fold, one_prompt
from regbench.models import mixer
from regbench.models.backbone import unembedding
from regbench.models.heads import head_width
from regbench.models.mixer import Paper
from regbench.models.model import Model, shift_in
from regbench.tasks.base import IO, VectorIO
from regbench.utils.errors import UserError


@dataclass
class Summary:
    """The stream y at block l.

    Attributes:
        y: What the blocks above l read, (B, L, d_y).
        mean: In the VAE form the mean of y's distribution, (B, L, d_y).
        log_variance: In the VAE form the logarithm of its variance, (B, L, d_y).
    """

    y: Tensor
    mean: Tensor | None = None
    log_variance: Tensor | None = None


@dataclass
class StreamState:
    """What the model keeps of sequences that it reads token by token.

    Attributes:
        position: Number of tokens read.
        x: Keys and values of each block of x.
        y: Keys and values of each block of y.
        held: A fixed or slowly moving y, (B, d_y). None: the model uses the y of the current token.
        rate: Share of the current token's y in the next `held`.
    """

    position: int
    x: list[Cache]
    y: list[Cache]
    held: Tensor | None
    rate: float

    def state_bytes(self) -> int:
        """Bytes of all B sequences together."""
        caches = sum(cache.nbytes() for cache in [*self.x, *self.y])
        return caches + (0 if self.held is None else self.held.nbytes)


class ContextuallyGuided(Model):
    """The model: (B, L) tokens -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""

    class Options(mixer.Options):
        """The options of CGT, with the symbols of the paper."""

        d_model: int = Field(default=64, ge=1, description="width of x, d_x")
        n_layers: int = Field(default=3, ge=2, description="number of blocks of x")
        n_heads: int = Field(default=8, ge=1, description="heads of x in each block")
        d_y: int = Field(default=32, ge=2, description="width of y; at least 2, because y is normalised")
        y_heads: int = Field(default=4, ge=1, description="heads of y in each block below l")
        y_layer: int | None = Field(
            default=None, ge=1, description="l: number of blocks of y; None: two thirds of n_layers, as in the papers"
        )
        rank: int = Field(default=4, ge=1, description="r: rank of the generated L R^T")
        templates: int = Field(default=16, ge=1, description="M: templates that L and R are mixed from")
        mixing: Mixing = Field(default="tanh", description="function applied to S y")
        positions: Literal["learned", "rotary"] = Field(default="learned", description="how positions are encoded")
        mimetic: bool = Field(default=True, description="whether queries and keys start with the same weights")
        aux_share: float = Field(default=0.5, ge=0, lt=1, description="alpha: share of the auxiliary loss")
        aux_horizon: int | None = Field(
            default=32, ge=1, description="l_omega: tokens it predicts; None: all that follow"
        )
        aux_context: int = Field(default=0, ge=0, description="l_Delta: tokens before those that x may read")
        aux_latest: float = Field(default=0.75, gt=0, le=1, description="they start within this share of an instance")
        aux_y: Freeze = Field(default="prefix", description="which y the auxiliary loss uses; see losses.py")
        y_smooth: int = Field(default=1, ge=1, description="augmentation: mean of y over at most this many positions")
        y_shift: int = Field(default=0, ge=0, description="augmentation: y is delayed by at most this many positions")
        y_augment: Literal["auxiliary", "both"] = Field(
            default="auxiliary", description="which losses use the augmented y"
        )
        w_c: float = Field(default=0.08, ge=0, description="weight of R_C, which makes y slow")
        w_d: float = Field(default=0.04, ge=0, description="weight of R_D, which makes y differ between instances")
        profile: Profile = Field(default="uniform", description="omega: how R_C and R_D weight positions")
        w_p: float = Field(default=0.0, ge=0, description="weight of the moment-based regulariser R_P")
        moments: Literal["sequence", "positions"] = Field(
            default="sequence", description="whether R_P also compares different positions (sequence)"
        )
        beta: float = Field(
            default=0.0, ge=0, description="weight of the divergence from the prior; above 0: VAE form, y is a sample"
        )
        gp_scale: float = Field(default=1.0, gt=0, description="K: standard deviation of the prior")
        gp_noise: float = Field(default=0.1, gt=0, le=1, description="nu: share of the prior that is white noise")
        gp_width: float = Field(
            default=0.1, gt=0, description="sigma: width of the smooth part, as a share of the longest sequence"
        )

    family = "attention"
    paper = Paper("Contextually Guided Transformers via Low-Rank Adaptation", "Zhmoginov et al.", 2025, "2506.05672")
    takes = ("tokens", "vectors")
    training_defaults: ClassVar[dict[str, Any]] = {"learning_rate": 3e-3}  # far better than 1e-3 on pfa-small-v1
    analysis = "architectures.cgt.analysis"
    specialised: ClassVar[type[Specialised]] = Specialised
    """The class of the models that `specialize` returns."""

    def __init__(self, options: ContextuallyGuided.Options, io: IO) -> None:
        super().__init__(options, io)
        _check(options, io)
        d_x, d_y, rotary = options.d_model, options.d_y, options.positions == "rotary"
        self.y_layer = options.y_layer or max(1, round(2 * options.n_layers / 3))
        heads: dict[str, Any] = {"rotary": rotary, "mimetic": options.mimetic, "dropout": options.dropout}
        self.x_reader = Reader(io, d_x, learned_positions=not rotary, dropout=options.dropout)
        self.y_reader = Reader(io, d_y, learned_positions=not rotary, dropout=options.dropout)
        self.x_blocks = nn.ModuleList(Block(d_x, d_x, options.n_heads, **heads) for _ in range(options.n_layers))
        self.y_blocks = nn.ModuleList(Block(d_y, d_x + d_y, options.y_heads, **heads) for _ in range(self.y_layer))
        self.y_norm = nn.LayerNorm(d_y)
        self.guides = nn.ModuleList(
            GuidedBlock(d_x, d_y, options.rank, options.templates, options.mixing)
            for _ in range(options.n_layers - self.y_layer)
        )
        self.x_norm = nn.LayerNorm(d_x)
        self.unembed = unembedding(io, d_x)
        gp = (options.gp_scale, options.gp_noise, options.gp_width * io.max_length)
        self.posterior: nn.Linear | None = None
        if options.beta > 0.0:
            self.posterior = nn.Linear(d_y, 2 * d_y)
            self.prior = Prior(io.max_length, *gp)
        if options.w_p > 0.0:
            self.register_buffer("covariance", covariance(io.max_length, *gp).float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""
        x, summary = self._below(shift_in(tokens, self.io.separator))
        return self._above(x, summary.y)

    def attention_weights(self, tokens: Tensor) -> list[Tensor]:
        """What each head attends to, (B, L) -> (B, H, L, L) for each layer: the blocks of x, then the blocks of y."""
        layers = [block.attention for block in (*self.x_blocks, *self.y_blocks)]
        found: dict[nn.Module, Tensor] = {}

        def keep(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            found[layer] = layer.weights(inputs[0])

        handles = [layer.register_forward_pre_hook(keep) for layer in layers]
        try:
            self(tokens)
        finally:
            for handle in handles:
                handle.remove()
        return [found[layer] for layer in layers]

    def attention_names(self) -> list[str]:
        """The name of each layer of `attention_weights`: x1, x2, ..., y1, ..."""
        return [
            f"{s}{i}" for s, blocks in (("x", self.x_blocks), ("y", self.y_blocks)) for i in range(1, len(blocks) + 1)
        ]

    def hidden_states(self, tokens: Tensor) -> list[Tensor]:
        """The stream x after each block, (B, L) -> (B, L, d_x) for each."""
        states: list[Tensor] = []
        x, summary = self._below(shift_in(tokens, self.io.separator), states=states)
        self._above(x, summary.y, states=states)
        return states

    def context(self, tokens: Tensor) -> Tensor:
        """The summary y at every position: [b, t] summarises tokens[b, :t]. (B, L) -> (B, L, d_y)."""
        return self._below(shift_in(tokens, self.io.separator))[1].y

    def summary(self, prefix: Tensor) -> Tensor:
        """The summary y of whole prefixes, (B, c) -> (B, d_y).

        Raises:
            UserError: The prefix and the separator before it need more positions than were learned.
        """
        pad = (0, 0, 1, 0) if prefix.ndim == 3 else (1, 0)
        return self._below(F.pad(prefix, pad, value=self.io.separator))[1].y[:, -1]

    def with_context(self, tokens: Tensor, y: Tensor) -> Tensor:
        """The output for a given y.

        Args:
            tokens: (B, L), or (B, L, D_in) for vectors.
            y: One for each position, (B, L, d_y), or a constant one, (B, d_y).

        Returns:
            As `forward`, (B, L, V) or (B, L, D_out).
        """
        return self._x_alone(shift_in(tokens, self.io.separator), y[:, None] if y.ndim == 2 else y)

    @torch.no_grad()
    def specialize(self, prefix: Tensor) -> Specialised:
        """An ordinary transformer for the text after a prompt (CGT section 3.1).

        Its output equals `with_context(tokens, summary(prefix))`.

        Args:
            prefix: The prompt, (c,) or (1, c); vectors (c, D_in) or (1, c, D_in).

        Returns:
            A model of x alone, in the mode (training or evaluation) of this one.

        Raises:
            UserError: The prompt has another shape, or it is too long.
        """
        was = self.training
        y = self.eval().summary(one_prompt(prefix, 1 if isinstance(self.io, VectorIO) else 0))[0]
        self.train(was)
        shared = {k: getattr(self.options, k) for k in ("d_model", "n_layers", "n_heads", "dropout", "positions")}
        special = Specialised(Specialised.Options(**shared), self.io).to(y)
        special.reader.load_state_dict(self.x_reader.state_dict())
        special.norm.load_state_dict(self.x_norm.state_dict())
        special.unembed.load_state_dict(self.unembed.state_dict())
        for number, (own, block) in enumerate(zip(self.x_blocks, special.blocks, strict=True)):
            assert isinstance(block, Block)
            block.load_state_dict(own.state_dict(), strict=False)  # all but the biases, which only `block` has
            nn.init.zeros_(block.attention.qkv.bias)
            if number >= self.y_layer:
                guide = self.guides[number - self.y_layer]
                fold(guide.before_attention, y, own.attention.qkv, block.attention.qkv)  # type: ignore[arg-type, union-attr]
                fold(guide.before_mlp, y, own.mlp.up, block.mlp.up)  # type: ignore[arg-type, union-attr]
        return special.train(was)

    def losses(self, tokens: Tensor, scored: Tensor) -> dict[str, Tensor]:
        """The weighted terms of the loss (CGT Eq. 3), each a scalar; the first is the prediction's.

        Without gradients, as on the validation split, only the first term is computed.

        Args:
            tokens: (B, L), or (B, L, D_in) for vectors.
            scored: Which positions are predicted, (B, L) bool.

        Returns:
            `cross_entropy` in nats, or `mse` for vectors; then the other terms whose weights are above 0.
        """
        options = self.options
        x, summary = self._below(shift_in(tokens, self.io.separator))
        augmented = summary.y
        if self.training and (options.y_smooth > 1 or options.y_shift):
            augmented = augment(augmented, options.y_smooth, options.y_shift)
        seen = augmented if options.y_augment == "both" else summary.y
        first = "mse" if isinstance(self.io, VectorIO) else "cross_entropy"
        terms = {first: self._loss(self._above(x, seen), tokens, scored)}
        if not torch.is_grad_enabled():
            return terms
        real, scale = real_positions(scored), 1.0 / (1.0 - options.aux_share)
        if options.aux_share > 0.0:
            windows = draw_windows(
                scored,
                real,
                horizon=options.aux_horizon,
                context=options.aux_context,
                latest=options.aux_latest,
            )
            part = windows.take(tokens)
            inputs = shift_in(part, self.io.separator)
            out = self._x_alone(inputs, windows.frozen(augmented, options.aux_y))
            terms["auxiliary"] = options.aux_share * scale * self._loss(out, part, windows.scored)
        steady = summary.y if summary.mean is None else summary.mean  # without the noise of the sample
        if options.w_c > 0.0:
            terms["continuity"] = options.w_c * scale * continuity(steady, real, options.profile)
        if options.w_d > 0.0:
            terms["diversity"] = options.w_d * scale * diversity(steady, real, options.profile)
        if options.w_p > 0.0:
            terms["moments"] = options.w_p * scale * self._moments(summary.y, real)
        if summary.mean is not None and summary.log_variance is not None:
            lengths = real.sum(1).clamp(min=1)
            divergence = self.prior.divergence(summary.mean, summary.log_variance, lengths).sum() / lengths.sum()
            terms["divergence"] = options.beta * scale * divergence
        return terms

    def init_state(self, batch: int, y: Tensor | None = None, rate: float = 0.0) -> StreamState:
        """The state of `batch` sequences before their first token.

        Args:
            batch: Number of sequences, B.
            y: A y to use in the place of the computed one, (B, d_y).
            rate: At every token y becomes (1 - rate) y + rate (computed y). 2024, Figure 13, has 1/300. At 0, y is constant.
        """
        x_caches, y_caches = [Cache() for _ in self.x_blocks], [Cache() for _ in self.y_blocks]
        return StreamState(0, x_caches, y_caches, y, rate)

    def step(self, inputs: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
        """Reads one token of each sequence, the separator first. The old state must not be used again.

        Args:
            inputs: (B,), or (B, D_in) for vectors.
            state: What was read before.

        Returns:
            The logits of the next token, (B, V), or its prediction, (B, D_out); and the new state.
        """
        inputs, held = inputs[:, None], state.held
        if held is not None and state.rate == 0.0:
            out = self._x_alone(inputs, held[:, None], state.x, state.position)
        else:
            x, summary = self._below(inputs, state.x, state.y, state.position)
            held = summary.y[:, 0] if held is None else torch.lerp(held, summary.y[:, 0], state.rate)
            out = self._above(x, held[:, None], state.x)
        kept = None if state.held is None else held
        return out[:, 0], StreamState(state.position + 1, state.x, state.y, kept, state.rate)

    def _below(
        self,
        inputs: Tensor,
        x_caches: Sequence[Cache] = (),
        y_caches: Sequence[Cache] = (),
        start: int = 0,
        states: list[Tensor] | None = None,
    ) -> tuple[Tensor, Summary]:
        """Both streams up to block l: (B, L) inputs -> x (B, L, d_x), and y. `states` gets x after each block."""
        x, y = self.x_reader(inputs, start), self.y_reader(inputs, start)
        for i, y_block in enumerate(self.y_blocks):
            caches = (x_caches[i], y_caches[i]) if x_caches else (None, None)
            x, y = both_streams(x, y, self.x_blocks[i], y_block, *caches)  # type: ignore[arg-type]
            if states is not None:
                states.append(x)
        y = self.y_norm(y)
        if self.posterior is None:
            return x, Summary(y)
        mean, log_variance = self.posterior(y).chunk(2, dim=-1)
        noise = torch.randn_like(mean) * (log_variance / 2.0).exp() if self.training else 0.0
        return x, Summary(mean + noise, mean, log_variance)

    def _above(self, x: Tensor, y: Tensor, caches: Sequence[Cache] = (), states: list[Tensor] | None = None) -> Tensor:
        """From block l to the output: (B, L, d_x), (B, L or 1, d_y) -> (B, L, V). `states` gets x after each block."""
        for i, guide in enumerate(self.guides, self.y_layer):
            x = guide(x, y, self.x_blocks[i], caches[i] if caches else None)
            if states is not None:
                states.append(x)
        out: Tensor = self.unembed(self.x_norm(x))
        return out

    def _x_alone(self, inputs: Tensor, y: Tensor, caches: Sequence[Cache] = (), start: int = 0) -> Tensor:
        """The model without the stream y: (B, L) inputs, (B, L or 1, d_y) -> (B, L, V)."""
        x = self.x_reader(inputs, start)
        for i in range(self.y_layer):
            x = self.x_blocks[i](x, caches[i] if caches else None)
        return self._above(x, y, caches)

    def _loss(self, out: Tensor, tokens: Tensor, scored: Tensor) -> Tensor:
        """The mean over scored positions, 0 where there are none: (B, L, V), (B, L), (B, L) -> scalar."""
        if isinstance(self.io, VectorIO):
            errors = (out - tokens[..., -self.io.d_out :]).square().mean(-1)
        else:
            errors = F.cross_entropy(out.flatten(0, 1), tokens.flatten(), reduction="none").view(tokens.shape)
        return (errors * scored).sum() / scored.sum().clamp(min=1)

    def _moments(self, y: Tensor, real: Tensor) -> Tensor:
        """R_P over the positions that are real in every row. The first position is left out: its y has read nothing."""
        y = y[:, real.all(0)][:, 1:]
        if self.options.moments == "positions":
            return moments_by_position(y, self.options.gp_scale**2)
        length = y.shape[1]
        return moments(y, self.covariance[:length, :length])  # type: ignore[index]


def _check(options: ContextuallyGuided.Options, io: IO) -> None:
    """Whether the options fit together and each of them has an effect.

    Raises:
        UserError: They do not.
    """
    rotary = options.positions == "rotary"
    head_width(options.d_model, options.n_heads, rotary=rotary)
    head_width(options.d_y, options.y_heads, of="d_y", by="y_heads", rotary=rotary)
    if options.y_layer is not None and options.y_layer >= options.n_layers:
        raise UserError(f"y_layer ({options.y_layer}) leaves no layer above it: n_layers is {options.n_layers}")
    if options.aux_share > 0.0 and options.aux_context >= io.max_length:
        raise UserError(
            f"aux_context ({options.aux_context}) leaves nothing to predict after it: a sequence has {io.max_length} at most"
        )
    if options.aux_share > 0.0 and options.aux_y in ("context", "tail") and not options.aux_context:
        raise UserError(f"aux_y={options.aux_y} is aux_y=prefix where aux_context is 0: give aux_context too")
    if (options.y_smooth > 1 or options.y_shift) and options.aux_share == 0.0 and options.y_augment == "auxiliary":
        raise UserError("y_smooth and y_shift do nothing where aux_share is 0, unless y_augment is both")
