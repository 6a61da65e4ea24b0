"""The two contracts an architecture can choose from: a token mixer for the common backbone, or a whole model."""

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
    """Where an architecture comes from: shown by `regbench ls architectures`."""

    title: str
    authors: str
    year: int
    arxiv: str | None = None


class Options(Settings):
    """Options common to every architecture. A subclass adds its own as typed fields with defaults.

    Unknown keys and values of the wrong type are errors, and so are n-gram options where there are no n-gram heads.
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
    dropout: float = pydantic.Field(
        default=0.0, ge=0.0, lt=1.0, description="after the embedding and after each block part"
    )

    @pydantic.model_validator(mode="after")
    def _nothing_is_said_of_heads_that_are_not_there(self) -> Self:
        for name in () if self.ngram_heads else ("ngram_after", "ngram_mlp"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is about n-gram heads, and there are none: give ngram_heads too")
        return self


class Mixer(nn.Module):
    """A causal map (B, L, D) -> (B, L, D): all that most architectures differ in.

    The least to write is `forward`. An instance is made per layer as `TheMixer(options)`; D is `options.d_model`.
    ICLL Eq. 17.
    """

    Options: ClassVar[type[Options]] = Options
    paper: ClassVar[Paper | None] = None
    feed_forward: ClassVar[bool] = True
    """Whether the backbone puts a feed-forward network after this mixer (ICLL Eq. 18)."""
    compiles: ClassVar[bool] = True
    """Whether it works under torch.compile, as the contract demands unless this says no."""
    reads_tokens: bool = False
    """Whether it also wants the tokens read at these positions; a class or an instance may say so. The backbone then calls
    `forward(x, index)`, with the `NGramIndex` of the tokens (B, L), and `step(x, state, tokens)`, with the tokens (B,)."""
    training: bool
    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Fields of `regbench.training.trainer.TrainingOptions` that suit this architecture better than the common defaults."""

    def __init__(self, options: Any) -> None:
        """options: an instance of this class's `Options`."""
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D); output t may depend on inputs up to and including t."""
        raise NotImplementedError

    @classmethod
    def learned_positions(cls, options: Any) -> bool:
        """Whether the embedding adds a learned vector for each position (ICLL Eq. 16). Default: no."""
        return False

    @classmethod
    def can_overfit(cls, options: Any) -> bool:
        """Whether it can learn a few instances by heart, as the contract then demands. False for one that is shown too little."""
        return True

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
        """The state before the first position, for a mixer that has a recurrent form; see `step`.

        Raises:
            NotImplementedError: it has none.
        """
        raise NotImplementedError

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position of the recurrent form: (B, D) and a state -> (B, D) and the state after it; equal to `forward`."""
        raise NotImplementedError

    @classmethod
    def state_bytes(cls, options: Any) -> int | None:
        """Bytes of recurrent state of one layer for one sequence in float32; None where it grows with L or is unknown."""
        return None
