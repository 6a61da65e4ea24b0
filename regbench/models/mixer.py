"""The contract of a token mixer, which is what most architectures are, and the options and the paper of any architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import pydantic
import torch
from torch import Tensor, nn

from regbench.utils.settings import Settings


@dataclass(frozen=True)
class Paper:
    """The paper of an architecture, as `regbench ls architectures` shows it."""

    title: str  # its title
    authors: str  # such as "Gu and Dao" or "Vaswani et al."
    year: int  # of its first version
    arxiv: str | None = None  # its number on arXiv, such as "2312.00752"; None if it is not there


class Options(Settings):
    """The options of every architecture. A subclass adds its own as typed fields with defaults.

    Unknown keys and values of the wrong type are errors. So are options of a part that is not there.
    """

    d_model: int = pydantic.Field(default=64, ge=1, description="width of the residual stream, D")
    n_layers: int = pydantic.Field(default=2, ge=1, description="number of blocks")
    n_heads: int = pydantic.Field(default=4, ge=1, description="heads of each mixer, where it has heads")
    ngram_heads: tuple[Annotated[int, pydantic.Field(ge=1, le=8)], ...] = pydantic.Field(
        default=(), description="orders of the n-gram heads put in, e.g. [1,2,3]; none by default"
    )
    ngram_after: tuple[Annotated[int, pydantic.Field(ge=1)], ...] = pydantic.Field(
        default=(1,), min_length=1, description="after which blocks they stand, counted from 1"
    )
    ngram_mlp: bool = pydantic.Field(default=False, description="whether each sequence of n-gram heads ends in an MLP")
    short_conv: int = pydantic.Field(
        default=0, ge=0, le=64, description="width of a residual convolution before each mixer; 0 for none"
    )
    canon: bool = pydantic.Field(
        default=False, description="whether such convolutions also stand before and within each feed-forward network"
    )
    dropout: float = pydantic.Field(
        default=0.0, ge=0.0, lt=1.0, description="after the embedding and after each block part"
    )

    @pydantic.model_validator(mode="after")
    def _no_option_without_its_part(self) -> Self:
        for name in () if self.ngram_heads else ("ngram_after", "ngram_mlp"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is about n-gram heads, and there are none: give ngram_heads too")
        if self.canon and not self.short_conv:
            raise ValueError("canon is about short convolutions, and there are none: give short_conv=4 too")
        return self


_OF_ONE_KIND = ("attention", "linear attention", "delta rule", "state space", "convolution", "recurrent")
FAMILIES = (*_OF_ONE_KIND, "hybrid", "counts", "other")
"""What an architecture may be. "counts": it is given counts of n-grams, or learns from them alone."""


class Architecture(nn.Module):
    """What mixers and whole models tell of themselves."""

    Options: ClassVar[type[Options]] = Options
    paper: ClassVar[Paper | None] = None
    family: ClassVar[str] = "other"
    """One of `FAMILIES`. The leaderboard's overview shows it."""
    compiles: ClassVar[bool] = True
    """Whether it works under torch.compile. The contract checks this only where it is True."""
    training: bool
    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Training options (`regbench.training.options.TrainingOptions`) that suit this architecture better than the defaults."""

    @classmethod
    def can_overfit(cls, options: Any) -> bool:
        """Whether it can overfit one batch of a few instances, which the contract then checks.

        False is for an architecture that cannot tell those instances apart, as it sees too little of them.
        """
        return True


class Mixer(Architecture):
    """A causal map (B, L, D) -> (B, L, D). Most architectures differ in this alone. ICLL Eq. 17.

    A subclass writes `forward`, and for a recurrent form `init_state` and `step`. Instead of `forward` and `step` it may write
    `advance`, from which both follow. Each layer has one instance, made as `TheMixer(options)`. D is `options.d_model`.
    """

    feed_forward: ClassVar[bool] = True
    """Whether the backbone puts a feed-forward network after this mixer (ICLL Eq. 18)."""
    reads_tokens: bool = False
    """Whether the mixer also needs the tokens of its positions. A class or an instance may set it. Then the backbone calls
    `forward(x, index)`, with the `NGramIndex` of the tokens (B, L), and `step(x, state, tokens)`, with the tokens (B,)."""

    def __init__(self, options: Any) -> None:
        """Takes an instance of this class's `Options`."""
        super().__init__()
        self.options = options

    def place(self, layer: int) -> None:
        """The backbone says, once a mixer is made, in which block it stands, from 0. Starting values may depend on it."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D). Output t may depend on the inputs up to t, t included."""
        y, _ = self.advance(x, self.init_state(x.shape[0], x.device, x.dtype))
        return y

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether the embedding adds a learned vector for each position (ICLL Eq. 16)."""
        return False

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
        """The state of `batch` sequences before the first position. Every mixer that has a recurrent form writes it.

        It is a tensor, or a nest of tuples, lists, mappings and dataclasses that holds tensors. NotImplementedError: there is no
        recurrent form.
        """
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position of the recurrent form, as `forward` gives it: x (B, D), the state before it -> (B, D), the state after it.

        NotImplementedError: there is no recurrent form.
        """
        y, state = self.advance(x[:, None], state)
        return y[:, 0], state

    def advance(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Many positions, 1 or more, from any state on: x (B, L, D), the state before them -> (B, L, D), the state after them.

        NotImplementedError: the mixer has not written it.
        """
        raise NotImplementedError

    @classmethod
    def state_bytes(cls, options: Any) -> int | None:
        """Bytes of recurrent state of one layer, for one sequence in float32. None: it grows with L, or is not known."""
        return None


def state_space(*parameters: nn.Parameter) -> None:
    """Marks parameters of a state space, which the training option `state_space_rate` caps. Weight decay must not touch them."""
    no_weight_decay(*parameters)
    for parameter in parameters:
        parameter._state_space = True  # type: ignore[attr-defined]


def no_weight_decay(*parameters: nn.Parameter) -> None:
    """Marks parameters that weight decay must not touch, such as those that set a time scale."""
    for parameter in parameters:
        parameter._no_weight_decay = True  # type: ignore[attr-defined]


def learns_later(*parameters: nn.Parameter) -> None:
    """Marks parameters that get no gradient in the first steps, or not from every batch, such as those of experts.

    The contract then does not ask for one.
    """
    for parameter in parameters:
        parameter._learns_later = True  # type: ignore[attr-defined]
