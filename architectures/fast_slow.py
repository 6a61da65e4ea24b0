"""Fast and slow activations: an ordinary transformer, part of whose activations is made to change slowly.

After block l the activations z of each position are split in two, z = (x, y) (2024, section 3.1). Nothing else is added: the
blocks below and above l read all of z, and without the terms below the model is `transformer.py` of the same width. There are
two ways to make y slow:

- The element-wise regularisers R_C and R_D (2024, section 3.2). R_C makes y slow, R_D makes it differ between instances.
- The VAE form (2024, section 3.3, Eq. 1), with `beta` above 0: in training y is a sample, N(y, v) at each position.
  The loss has beta times its divergence from a Gaussian process with mean 0. A linear map of z makes log v. With `beta_x` above 0
  the same is done to x. The papers set beta_x to 0 and name no prior on x. Here it is white: N(0, K^2) at each position.

In evaluation x and y are what the blocks made, without noise. The auxiliary loss of section 3.5 is an option (`aux_share`): then
`z` of the truncated text gets the y of the whole text. `cgt/` goes further: x and y have streams of their own, and y makes
weights.

Paper: *Learning Fast and Slow: Representations for In-Context Weight Modulation* (Zhmoginov, Lee, Vladymyrov, Sandler 2024,
ICML workshop on in-context learning). It normalises y for R_C and R_D alone, and so does this file. `d_model` is the width of x
and y together (d_x + d_y of C.1). So with equal `d_model` this model is as wide as one without y, and the paper's is wider by
d_y. More is in `docs/papers/cgt.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures.cgt.layers import Block, Cache, Reader
from architectures.cgt.prior import Prior
from architectures.cgt.slow import SlowModel, Summary
from regbench.models.backbone import unembedding
from regbench.models.heads import head_width
from regbench.models.mixer import Paper
from regbench.models.model import Model
from regbench.tasks.base import IO
from regbench.utils.errors import UserError


class FastSlow(SlowModel, Model):
    """The model: (B, L) tokens -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""

    class Options(SlowModel.Options):
        """The options of the model, with the symbols of the paper."""

        d_model: int = Field(default=96, ge=1, description="width of the activations z = (x, y)")
        d_y: int | None = Field(
            default=None, ge=2, description="how many of them are y, at least 2; None: a third of d_model"
        )
        aux_share: float = Field(default=0.0, ge=0, lt=1, description="alpha: share of the auxiliary loss")
        beta_x: float = Field(
            default=0.0, ge=0, description="weight of x's divergence from a white prior; above 0: x is a sample"
        )

    family = "attention"
    paper = Paper(
        "Learning Fast and Slow: Representations for In-Context Weight Modulation", "Zhmoginov et al.", 2024, None
    )

    def __init__(self, options: FastSlow.Options, io: IO) -> None:
        super().__init__(options, io)
        d, rotary = options.d_model, options.positions == "rotary"
        head_width(d, options.n_heads, rotary=rotary)
        d_y = options.d_y or max(2, d // 3)
        if d_y >= d:
            raise UserError(f"d_y ({d_y}) leaves nothing of the activations to x: d_model is {d}")
        self.d_x = d - d_y
        self.reader = Reader(io, d, learned_positions=not rotary, dropout=options.dropout)
        self.blocks = nn.ModuleList(
            Block(d, d, options.n_heads, rotary=rotary, mimetic=options.mimetic, dropout=options.dropout)
            for _ in range(options.n_layers)
        )
        self.norm = nn.LayerNorm(d)
        self.unembed = unembedding(io, d)
        self.y_log_variance = nn.Linear(d, d_y) if options.beta > 0.0 else None
        self.x_log_variance = nn.Linear(d, self.d_x) if options.beta_x > 0.0 else None
        if options.beta_x > 0.0:
            self.x_prior = Prior(io.max_length, options.gp_scale, 1.0)

    def _below(
        self,
        inputs: Tensor,
        x_caches: Sequence[Cache] = (),
        y_caches: Sequence[Cache] = (),
        start: int = 0,
        states: list[Tensor] | None = None,
    ) -> tuple[Tensor, Summary]:
        """Up to block l: (B, L) inputs -> x (B, L, d_x), and y. `states` gets z after each block; `y_caches` are not used."""
        z = self.reader(inputs, start)
        for i in range(self.y_layer):
            z = self.blocks[i](z, x_caches[i] if x_caches else None)
            if states is not None:
                states.append(z)
        x, y = z.split([self.d_x, z.shape[-1] - self.d_x], dim=-1)
        summary = Summary(y)
        if self.y_log_variance is not None:
            log_variance = self.y_log_variance(z)
            summary = Summary(self._sample(y, log_variance), y, log_variance)
        if self.x_log_variance is not None:
            summary.x_mean, summary.x_log_variance = x, self.x_log_variance(z)
            x = self._sample(x, summary.x_log_variance)
        return x, summary

    def _above(self, x: Tensor, y: Tensor, caches: Sequence[Cache] = (), states: list[Tensor] | None = None) -> Tensor:
        """From block l to the output: (B, L, d_x), (B, L or 1, d_y) -> (B, L, V). `states` gets z after each block."""
        z = torch.cat([x, y.expand(-1, x.shape[1], -1)], dim=-1)
        for i in range(self.y_layer, len(self.blocks)):
            z = self.blocks[i](z, caches[i] if caches else None)
            if states is not None:
                states.append(z)
        out: Tensor = self.unembed(self.norm(z))
        return out

    def _x_alone(self, inputs: Tensor, y: Tensor, caches: Sequence[Cache] = (), start: int = 0) -> Tensor:
        """The output for x of these inputs and another y: (B, L) inputs, (B, L or 1, d_y) -> (B, L, V)."""
        x, _ = self._below(inputs, caches, start=start)
        return self._above(x, y, caches)

    def _sample(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """A draw in training, the mean in evaluation."""
        return mean + torch.randn_like(mean) * (log_variance / 2.0).exp() if self.training else mean

    def _divergences(self, summary: Summary, lengths: Tensor) -> dict[str, Tensor]:
        """The weighted divergences of y, and of x where it is a sample (2024, Eq. 1)."""
        found = super()._divergences(summary, lengths)
        if summary.x_mean is not None and summary.x_log_variance is not None:
            divergence = self.x_prior.divergence(summary.x_mean, summary.x_log_variance, lengths).sum()
            found["divergence_x"] = self.options.beta_x * divergence / lengths.sum()
        return found

    def _attentions(self) -> list[nn.Module]:
        """One for each block."""
        return [block.attention for block in self.blocks]  # type: ignore[misc]

    def _new_caches(self) -> tuple[list[Cache], list[Cache]]:
        """One for each block; y has no blocks of its own."""
        return [Cache() for _ in self.blocks], []
