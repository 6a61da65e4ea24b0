"""CGT, Contextually Guided Transformer: a slow summary y of the context makes the weights that its fast stream x is read with.

Two streams run through the blocks (CGT section 3.1). The stream x reads x only. The stream y reads x and y, up to block l. The y
of block l is the summary of the context. In the blocks above l, x goes through an operator before each attention and each MLP:
T(x; y) = x + L(y) R(y)^T [x; 1]. L and R are mixed from M templates of rank r. For a constant y, each T can be folded into the
matrix after it. `specialize(prompt)` does this: it returns an ordinary transformer on x alone, which needs no prompt.

The loss is (1 - alpha) L_CE + alpha L_aux + w_C R_C + w_D R_D (Eq. 3), divided by 1 - alpha, so that its first term is the cross
entropy itself. L_aux takes y from the end of a random prefix and lets x predict the tokens after it. R_C makes y slow. R_D makes
y different between instances. A moment-matching term can replace both (`losses.py`). With `beta` above 0, y is a sample, and a
Gaussian process is its prior (`prior.py`). Options and losses are in `slow.py`, which
`architectures/fast_slow.py` shares.

Papers: CGT is arXiv:2506.05672. "2024" is its earlier version, *Learning Fast and Slow: Representations for In-Context Weight
Modulation* (Zhmoginov, Lee, Vladymyrov, Sandler 2024, ICML workshop on in-context learning). It has numbers that are missing in
the text of CGT. Some choices are ours, because neither paper states them, among them: alpha is 0.5, y is normalised at block l,
and T stands after the norm of x (before the norm it could not be folded). `docs/papers/cgt.md` lists all.

The papers' settings are in `configs/`. The defaults here are for tracks that train in minutes. More is in `docs/papers/cgt.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from architectures.cgt.layers import Block, Cache, GuidedBlock, Mixing, Reader, both_streams
from architectures.cgt.slow import SlowModel, Summary
from architectures.cgt.specialised import Specialised, fold, one_prompt
from regbench.models.backbone import unembedding
from regbench.models.heads import head_width
from regbench.models.mixer import Paper
from regbench.models.model import Model
from regbench.tasks.base import IO, VectorIO


class ContextuallyGuided(SlowModel, Model):
    """The model: (B, L) tokens -> (B, L, V) logits; of vectors (B, L, D_in) -> (B, L, D_out)."""

    class Options(SlowModel.Options):
        """The options of CGT, with the symbols of the paper."""

        d_model: int = Field(default=64, ge=1, description="width of x, d_x")
        d_y: int = Field(default=32, ge=2, description="width of y; at least 2, because y is normalised")
        y_heads: int = Field(default=4, ge=1, description="heads of y in each block below l")
        rank: int = Field(default=4, ge=1, description="r: rank of the generated L R^T")
        templates: int = Field(default=16, ge=1, description="M: templates that L and R are mixed from")
        mixing: Mixing = Field(default="tanh", description="function applied to S y")
        operator_bias: bool = Field(default=True, description="whether a 1 stands below x and y in T; 2024 has none")

    family = "attention"
    paper = Paper("Contextually Guided Transformers via Low-Rank Adaptation", "Zhmoginov et al.", 2025, "2506.05672")
    training_defaults: ClassVar[dict[str, Any]] = {"learning_rate": 3e-3}  # far better than 1e-3 on pfa-small-v1
    specialised: ClassVar[type[Specialised]] = Specialised
    """The class of the models that `specialize` returns."""

    def __init__(self, options: ContextuallyGuided.Options, io: IO) -> None:
        super().__init__(options, io)
        rotary = options.positions == "rotary"
        head_width(options.d_model, options.n_heads, rotary=rotary)
        head_width(options.d_y, options.y_heads, of="d_y", by="y_heads", rotary=rotary)
        d_x, d_y = options.d_model, options.d_y
        heads: dict[str, Any] = {"rotary": rotary, "mimetic": options.mimetic, "dropout": options.dropout}
        self.x_reader = Reader(io, d_x, learned_positions=not rotary, dropout=options.dropout)
        self.y_reader = Reader(io, d_y, learned_positions=not rotary, dropout=options.dropout)
        self.x_blocks = nn.ModuleList(Block(d_x, d_x, options.n_heads, **heads) for _ in range(options.n_layers))
        self.y_blocks = nn.ModuleList(Block(d_y, d_x + d_y, options.y_heads, **heads) for _ in range(self.y_layer))
        self.y_norm = nn.LayerNorm(d_y)
        self.guides = nn.ModuleList(
            GuidedBlock(d_x, d_y, options.rank, options.templates, options.mixing, bias=options.operator_bias)
            for _ in range(options.n_layers - self.y_layer)
        )
        self.x_norm = nn.LayerNorm(d_x)
        self.unembed = unembedding(io, d_x)
        self.posterior = nn.Linear(d_y, 2 * d_y) if options.beta > 0.0 else None

    def attention_names(self) -> list[str]:
        """The name of each layer of `attention_weights`: x1, x2, ..., y1, ..."""
        return [
            f"{s}{i}" for s, blocks in (("x", self.x_blocks), ("y", self.y_blocks)) for i in range(1, len(blocks) + 1)
        ]

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

    def _attentions(self) -> list[nn.Module]:
        """The blocks of x, then those of y."""
        return [block.attention for block in (*self.x_blocks, *self.y_blocks)]

    def _new_caches(self) -> tuple[list[Cache], list[Cache]]:
        """One for each block of x, and of y."""
        return [Cache() for _ in self.x_blocks], [Cache() for _ in self.y_blocks]
