"""What every model with a slow part y of its activations has: its options, its loss, its stream.

`ContextuallyGuided` computes y in a stream of its own, and y makes weights. `architectures/fast_slow.py` splits the activations
of an ordinary transformer in two. Both are given by three maps: from the inputs to x and y at block l (`_below`), from there to
the output (`_above`), and from inputs and a given y to the output (`_x_alone`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from architectures.cgt.layers import Cache
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
from regbench.models import mixer
from regbench.models.model import Model, shift_in
from regbench.tasks.base import IO, VectorIO
from regbench.utils.errors import UserError


@dataclass
class Summary:
    """y at block l.

    Attributes:
        y: What the blocks above l read, (B, L, d_y).
        mean: In the VAE form the mean of y's distribution, (B, L, d_y).
        log_variance: In the VAE form the logarithm of its variance, (B, L, d_y).
        x_mean: If x is a sample too, the mean of its distribution, (B, L, d_x).
        x_log_variance: If x is a sample too, the logarithm of its variance, (B, L, d_x).
    """

    y: Tensor
    mean: Tensor | None = None
    log_variance: Tensor | None = None
    x_mean: Tensor | None = None
    x_log_variance: Tensor | None = None


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


class SlowModel(Model):
    """A model whose activations at block l have a slow part y: (B, L) tokens -> (B, L, V) logits; of vectors (B, L, D_out)."""

    class Options(mixer.Options):
        """The options of y, of the auxiliary loss, of the regularisers and of the prior, with the symbols of the papers."""

        n_layers: int = Field(default=3, ge=2, description="number of blocks")
        n_heads: int = Field(default=8, ge=1, description="heads in each block")
        y_layer: int | None = Field(
            default=None, ge=1, description="l: the block after which y is read; None: two thirds of n_layers"
        )
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
        gp_kernel: Literal["rbf", "estimate"] = Field(
            default="rbf",
            description="kernel of the prior: smooth (rbf), or of the running mean of observations (estimate)",
        )
        gp_share: float = Field(
            default=0.5, gt=0, le=1, description="estimate: share of the variance that no observation takes away"
        )

    takes = ("tokens", "vectors")

    def __init__(self, options: Any, io: IO) -> None:
        super().__init__(options, io)
        check_options(options, io)
        self.y_layer: int = options.y_layer or max(1, round(2 * options.n_layers / 3))
        share = options.gp_share if options.gp_kernel == "estimate" else None
        gp = (io.max_length, options.gp_scale, options.gp_noise, options.gp_width * io.max_length, share)
        if options.beta > 0.0:
            self.prior = Prior(*gp)
        if options.w_p > 0.0:
            self.register_buffer("covariance", covariance(*gp).float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""
        x, summary = self._below(shift_in(tokens, self.io.separator))
        return self._above(x, summary.y)

    def attention_weights(self, tokens: Tensor) -> list[Tensor]:
        """What each head attends to, (B, L) -> (B, H, L, L) for each layer."""
        layers = self._attentions()
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

    def hidden_states(self, tokens: Tensor) -> list[Tensor]:
        """The hidden state after each block, of CGT that of x, (B, L) -> (B, L, D) for each."""
        states: list[Tensor] = []
        x, summary = self._below(shift_in(tokens, self.io.separator), states=states)
        self._above(x, summary.y, states=states)
        return states

    def context(self, tokens: Tensor) -> Tensor:
        """The summary y at every position: [b, t] summarises tokens[b, :t]. (B, L) -> (B, L, d_y)."""
        return self._below(shift_in(tokens, self.io.separator))[1].y

    def encode(self, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and log variance of y at every position, (B, L) -> (B, L, d_y) each; None if y is no sample."""
        found = self._below(shift_in(tokens, self.io.separator))[1]
        return None if found.mean is None or found.log_variance is None else (found.mean, found.log_variance)

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

    def losses(self, tokens: Tensor, scored: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        """The weighted terms of the loss (CGT Eq. 3), each a scalar; the first is the prediction's.

        Without gradients, as on the validation split, only the first term is computed.

        Args:
            tokens: (B, L), or (B, L, D_in) for vectors.
            scored: Which positions are predicted, (B, L) bool.
            targets: What is predicted there, (B, L), on tasks that do not show it. None: the tokens.

        Returns:
            `cross_entropy` in nats, or `mse` for vectors; then the other terms whose weights are above 0.
        """
        options, wanted = self.options, tokens if targets is None else targets
        x, summary = self._below(shift_in(tokens, self.io.separator))
        augmented = summary.y
        if self.training and (options.y_smooth > 1 or options.y_shift):
            augmented = augment(augmented, options.y_smooth, options.y_shift)
        seen = augmented if options.y_augment == "both" else summary.y
        first = "mse" if isinstance(self.io, VectorIO) else "cross_entropy"
        terms = {first: self._loss(self._above(x, seen), wanted, scored)}
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
            inputs = shift_in(windows.take(tokens), self.io.separator)
            out = self._x_alone(inputs, windows.frozen(augmented, options.aux_y))
            terms["auxiliary"] = options.aux_share * scale * self._loss(out, windows.take(wanted), windows.scored)
        steady = summary.y if summary.mean is None else summary.mean  # without the noise of the sample
        if options.w_c > 0.0:
            terms["continuity"] = options.w_c * scale * continuity(steady, real, options.profile)
        if options.w_d > 0.0:
            terms["diversity"] = options.w_d * scale * diversity(steady, real, options.profile)
        if options.w_p > 0.0:
            terms["moments"] = options.w_p * scale * self._moments(summary.y, real)
        lengths = real.sum(1).clamp(min=1)
        terms |= {name: scale * term for name, term in self._divergences(summary, lengths).items()}
        return terms

    def init_state(self, batch: int, y: Tensor | None = None, rate: float = 0.0) -> StreamState:
        """The state of `batch` sequences before their first token.

        Args:
            batch: Number of sequences, B.
            y: A y to use in the place of the computed one, (B, d_y).
            rate: At every token y becomes (1 - rate) y + rate (computed y). 2024, Figure 13, has 1/300. At 0, y is constant.

        Raises:
            UserError: There is a rate, but no y for it to change.
        """
        if y is None and rate:
            raise UserError(f"rate {rate} changes a given y, and none is given; pass y too")
        return StreamState(0, *self._new_caches(), y, rate)

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
        """Up to block l: (B, L) inputs -> x (B, L, d_x), and y. `states` gets the hidden state after each block."""
        raise NotImplementedError

    def _above(self, x: Tensor, y: Tensor, caches: Sequence[Cache] = (), states: list[Tensor] | None = None) -> Tensor:
        """From block l to the output: (B, L, d_x), (B, L or 1, d_y) -> (B, L, V). `states` gets the hidden states."""
        raise NotImplementedError

    def _x_alone(self, inputs: Tensor, y: Tensor, caches: Sequence[Cache] = (), start: int = 0) -> Tensor:
        """The output for a given y: (B, L) inputs, (B, L or 1, d_y) -> (B, L, V)."""
        raise NotImplementedError

    def _attentions(self) -> list[nn.Module]:
        """The attention of each layer, in the order of `attention_weights`."""
        raise NotImplementedError

    def _new_caches(self) -> tuple[list[Cache], list[Cache]]:
        """Empty caches of the blocks of x, and of those of y."""
        raise NotImplementedError

    def _divergences(self, summary: Summary, lengths: Tensor) -> dict[str, Tensor]:
        """The weighted divergences from priors, in nats a token."""
        if summary.mean is None or summary.log_variance is None:
            return {}
        found = self.prior.divergence(summary.mean, summary.log_variance, lengths).sum() / lengths.sum()
        return {"divergence": self.options.beta * found}

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
        of = slice(1, y.shape[1] + 1)
        covariance = self.covariance[of, of]  # type: ignore[index]
        if self.options.moments == "positions":
            return moments_by_position(y, covariance.diagonal())
        return moments(y, covariance)


def check_options(options: Any, io: IO) -> None:
    """Whether the options of y and of its losses fit together.

    Options of a loss whose weight is 0 are taken. So one configuration serves ablations that leave a loss out.

    Raises:
        UserError: They do not.
    """
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
    for name, kernel, other in (("gp_share", "estimate", "rbf"), ("gp_width", "rbf", "estimate")):
        if options.gp_kernel == other and getattr(options, name) != type(options).model_fields[name].default:
            raise UserError(f"{name} is about gp_kernel={kernel}, and the kernel is {other}: give gp_kernel too")
