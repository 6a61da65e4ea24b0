"""TinT, a transformer whose forward pass trains another: a prompt's first part changes the weights that read the rest.

The auxiliary is an ordinary transformer, trained as usual. At prediction time its weights take N steps of gradient descent on
the tokens before position c, and then predict the tokens from c on. The steps are simulated: a constructed, larger transformer
holds the auxiliary's weights in prefix tokens, multiplies by attending to them, and gets new ones by linear attention from them
to the text (`simulator.py`). Its explicit twin computes the same directly (`explicit.py`), and is what scores are made with.

Output t depends on tokens before t only: the positions up to c are read with the old weights, those behind it with the new ones.
Three gradients are cheaper than the true one: none flows through attention scores, and of attention only values and output
learn; layer norm and GELU are differentiated by a finite difference. All else is exact.

Training trains the auxiliary: its loss is without an update. In evaluation mode the weights are changed, so the validation loss,
which picks the checkpoint and the settings of a sweep, is of what is scored. A position is in the simulated loss unless its input
and its target are both the separator: a model is not told lengths, and padding is made of separators.

Paper: *Trainable Transformer in Transformer* (Panigrahi, Malladi, Xia, Arora 2023). More is in `docs/papers/tint.md`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from architectures.tint import size
from architectures.tint.explicit import Gradient, Plan, Weights, auxiliary_of, descend, forward
from architectures.tint.layout import Layout
from architectures.tint.simulator import Simulator
from architectures.transformer import Transformer
from regbench.models import mixer
from regbench.models.build import build
from regbench.models.heads import head_width
from regbench.models.mixer import Paper
from regbench.models.model import Model, shift_in
from regbench.tasks.base import TokenIO
from regbench.utils.errors import UserError, nearest


class TinT(Model):
    """The auxiliary and its simulated training: (B, L) tokens -> (B, L, V) logits."""

    class Options(mixer.Options):
        """The options of TinT."""

        n_layers: int = Field(default=3, ge=1, description="number of blocks of the auxiliary")
        positions: Literal["learned"] = Field(default="learned", description="how positions are encoded")
        update_at: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
            default=None,
            min_length=1,
            description="positions where the weights change, each by the tokens since the last; None: half of the longest",
        )
        inner_rate: float = Field(
            default=1e-3, ge=0, description="learning rate of the simulated steps, on a summed loss"
        )
        inner_steps: int = Field(default=1, ge=1, description="N: simulated steps at each of these positions")
        inner_layers: int | None = Field(
            default=None, ge=1, description="only so many blocks at the top change; None: all blocks"
        )
        gradient: Gradient = Field(default="first-order", description="which gradient; see tint/explicit.py")
        epsilon: float = Field(default=1e-2, gt=0, description="step of the finite differences of first-order")
        slots: int = Field(default=4, ge=4, description="S: the simulator is S times as wide as the auxiliary")
        targets: str = Field(
            default="all", description="which positions are in the simulated loss: all, or after:TOKEN"
        )
        form: Literal["explicit", "construction"] = Field(
            default="explicit", description="the twin, or the constructed simulator (slow, the same to rounding)"
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.update_at is not None and list(self.update_at) != sorted(set(self.update_at)):
                raise ValueError(f"update_at must increase: {list(self.update_at)} does not")
            if self.inner_layers is not None and self.inner_layers > self.n_layers:
                raise ValueError(f"inner_layers ({self.inner_layers}) is above n_layers ({self.n_layers})")
            if self.form == "construction" and self.gradient != "first-order":
                raise ValueError(f"form=construction computes the gradient first-order, not {self.gradient}")
            return self

    family = "attention"
    paper = Paper("Trainable Transformer in Transformer", "Panigrahi et al.", 2023, "2307.01189")

    def __init__(self, options: TinT.Options, io: TokenIO) -> None:
        super().__init__(options, io)
        head_width(options.d_model, options.n_heads)
        self.update_at = (max(1, io.max_length // 2),) if options.update_at is None else options.update_at
        if options.update_at is not None and options.update_at[-1] >= io.max_length:
            raise UserError(
                f"update_at={options.update_at[-1]} leaves nothing behind it: a sequence has {io.max_length} tokens at most"
            )
        shared = {key: getattr(options, key) for key in ("d_model", "n_layers", "n_heads", "dropout")}
        self.auxiliary = build(Transformer, Transformer.Options(**shared), io)
        self.after = _token(options.targets, io)
        self.constructed: Simulator | None = None
        if options.form == "construction":
            layout = Layout.of(options.d_model, options.n_heads, io.max_length, options.slots)
            self.constructed = Simulator(layout, options.inner_rate, options.epsilon)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 -> (B, L, V) logits: in training mode the auxiliary's, in evaluation mode those of changed weights.

        Raises:
            UserError: The changed weights give infinite logits: the rate is too large.
        """
        logits: Tensor = self.auxiliary(tokens)
        options, length = self.options, tokens.shape[1]
        cuts = [cut for cut in self.update_at if cut < length]
        if self.training or not cuts or options.inner_rate == 0.0:
            return logits
        inputs = shift_in(tokens, self.io.separator)
        counted = self.counted(inputs, tokens)
        position = torch.arange(length, device=tokens.device)
        segments = zip([0, *cuts], cuts, [*cuts[1:], length], strict=False)
        masks = [(counted & (begin <= position) & (position < cut), cut, end) for begin, cut, end in segments]
        changed = self._by_construction(tokens, masks) if self.constructed else self._by_the_twin(inputs, tokens, masks)
        out = torch.cat([logits[:, : cuts[0]], *changed], dim=1)
        if not torch.compiler.is_compiling() and out.device.type != "meta" and not out.isfinite().all():
            raise UserError(f"the simulated steps diverge at inner_rate={options.inner_rate:g}: take a smaller rate")
        return out

    def losses(self, tokens: Tensor, scored: Tensor, targets: Tensor | None = None) -> dict[str, Tensor]:
        """`cross_entropy` in nats, as `Model.losses`: in training the auxiliary's, else that of changed weights.

        Raises:
            UserError: The simulated steps diverge: at a validation they raise the loss behind the first change by more than
                the loss of a uniform guess. A rate that does less harm is a result, and is scored.
        """
        if self.training:
            return self.auxiliary.losses(tokens, scored, targets)
        wanted = tokens if targets is None else targets
        with torch.autocast(tokens.device.type, enabled=False):  # as scoring does
            changed, own = self(tokens), self.auxiliary(tokens)
        behind = scored & (torch.arange(tokens.shape[1], device=tokens.device) >= self.update_at[0])
        if behind.any():
            self._judge(*(float(F.cross_entropy(logits[behind], wanted[behind])) for logits in (own, changed)))
        return {"cross_entropy": F.cross_entropy(changed[scored], wanted[scored])}

    def counted(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """The positions that may be in the simulated loss, (B, L) bool."""
        if self.after is not None:
            return inputs == self.after
        return (inputs != self.io.separator) | (tokens != self.io.separator)

    @staticmethod
    def sizes_of(d: int, heads: int, layers: int, positions: int, slots: int) -> dict[str, int]:
        """The sizes of a simulator by the paper's formula (Table 3), by what they are.

        Args:
            d: Width of the auxiliary.
            heads: Its heads.
            layers: Its blocks.
            positions: Its longest sequence.
            slots: S.

        Raises:
            UserError: The sizes do not fit each other.
        """
        found = size.formula(d, heads, layers, positions, slots)
        return {
            "width of the simulator, D": found.width,
            "heads, H": found.heads,
            "prefix tokens of a matrix, K": found.prefixes,
            "parameters of a module, Q": found.module,
            "parameters, forward": found.forward,
            "parameters, backward": found.backward,
            "parameters, descent": found.descent,
            "parameters, total": found.total,
        }

    def sizes(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """By the formula for this auxiliary, and by map of the construction what is counted and what its term is.

        Raises:
            UserError: The slots do not divide the width, as the paper's formula needs.
        """
        o = self.options
        layout = Layout.of(o.d_model, o.n_heads, self.io.max_length, o.slots)
        simulator = self.constructed or Simulator(layout, o.inner_rate, o.epsilon)
        terms = size.expected(simulator)
        counts = {name: (number, terms[name]) for name, number in size.counted(simulator).items()}
        return self.sizes_of(o.d_model, o.n_heads, o.n_layers, self.io.max_length, o.slots), counts

    def _judge(self, before: float, after: float) -> None:
        """Refuses steps that do more harm than `losses` allows.

        Raises:
            UserError: They do.
        """
        if after > before + math.log(self.io.vocab_size):
            raise UserError(
                f"the simulated steps diverge at inner_rate={self.options.inner_rate:g}: they raise the validation loss behind "
                f"them from {before:.3g} to {after:.3g} nats; take a smaller rate (the default is "
                f"{TinT.Options.model_fields['inner_rate'].default:g})"
            )

    def _by_the_twin(self, inputs: Tensor, tokens: Tensor, masks: list[tuple[Tensor, int, int]]) -> list[Tensor]:
        """The logits behind each cut, by explicit descent.

        Finite differences divide rounding by epsilon. In float32 the logits would then depend on the batch by 2e-4.
        """
        o = self.options
        plan = Plan(o.inner_rate, o.inner_steps, o.gradient, o.inner_layers, o.epsilon)
        start, heads = auxiliary_of(self)
        weights: Weights = start
        kept = next(iter(start.values())).dtype
        if o.gradient == "first-order":
            weights = {name: weight.double() for name, weight in start.items()}
        out = []
        for counted, cut, end in masks:
            weights = descend(weights, inputs[:, :cut], tokens[:, :cut], counted[:, :cut], heads, plan)
            out.append(forward(weights, inputs[:, :end], heads).logits[:, cut:].to(kept))
        return out

    def _by_construction(self, tokens: Tensor, masks: list[tuple[Tensor, int, int]]) -> list[Tensor]:
        """The logits behind each cut, by the constructed simulator."""
        assert self.constructed is not None
        o = self.options
        weights, _ = auxiliary_of(self)
        memory, out = self.constructed.store(weights, len(tokens)), []
        for counted, cut, end in masks:
            for _ in range(o.inner_steps):
                memory = self.constructed.step(memory, tokens, self.io.separator, counted, o.inner_layers)
            out.append(self.constructed.logits(memory, tokens[:, :end], self.io.separator)[:, cut:])
        return out


def _token(targets: str, io: TokenIO) -> int | None:
    """The token of "after:TOKEN", by its name. None for "all".

    Raises:
        UserError: The option has another form, or no token has this name.
    """
    kind, _, name = targets.partition(":")
    if targets == "all":
        return None
    if kind != "after" or not name:
        raise UserError(f"targets is all or after:TOKEN, not '{targets}'")
    if name not in io.names:
        raise UserError(f"targets: no token has the name '{name}'{nearest(name, io.names)}")
    return io.names.index(name)
