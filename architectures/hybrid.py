"""Hybrid: layers with different mixers, such as three of Gated DeltaNet and one of attention."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, Field, model_validator

# The source of a hybrid is that of all mixers: what imports them here counts for runs and entries, whichever of them it takes.
from architectures import (  # noqa: F401
    based,
    comba,
    deltanet,
    differential_transformer,
    forgetting_transformer,
    gated_deltanet,
    gated_deltanet2,
    gated_deltaproduct,
    gla,
    h3,
    hgrn2,
    hyena,
    kimi_delta_attention,
    linear_transformer,
    log_linear_attention,
    lstm,
    mamba,
    mamba2,
    mamba3,
    mesanet,
    mlstm,
    path_attention,
    retnet,
    rglru,
    rwkv,
    rwkv6,
    s4,
    slstm,
    sparse_attention,
    titans,
    transformer,
    ttt,
)
from regbench.models.backbone import Backbone
from regbench.models.build import resolve_options
from regbench.models.mixer import Mixer, Options, Paper
from regbench.models.model import Model
from regbench.tasks.base import IO
from regbench.utils import registry
from regbench.utils.errors import UserError, nearest

SHARED = {name for name in Options.model_fields if name != "n_heads"}
"""Options of the backbone: all layers have the hybrid's."""


class Hybrid(Backbone, Model):
    """The mixers of a list, layer by layer, the list repeated. Wang et al. 2025, Figure 2.

        --set mixers=gated_deltanet,gated_deltanet,gated_deltanet,transformer

    A mixer has its own defaults. `--set NAME.OPTION=VALUE` changes one, as in transformer.window=32. A mixer may stand in the
    list under a name of one's own, as in local=transformer,transformer: then local.window=32 is about the first alone.
    """

    class Options(Options):
        """The options of a hybrid, and those of its mixers as NAME.OPTION."""

        model_config = ConfigDict(extra="allow")

        n_layers: int = Field(default=4, ge=1, description="number of blocks")
        n_heads: int = Field(default=0, ge=0, description="heads of each mixer; 0 for each mixer's own default")
        mixers: str = Field(
            default="gated_deltanet,gated_deltanet,gated_deltanet,transformer",
            description="names or files, or OWN=NAME, of the layers in turn; --set NAME.OPTION=VALUE is for one of them",
        )
        sources: tuple[str, ...] = Field(
            default=(), description="SHA-256 of the source of mixers that are not built in; it is found, not set"
        )

        @model_validator(mode="after")
        def _whole(self) -> Self:
            """Every mixer exists and takes its options. The sources are found anew."""
            pairs = _pairs(self.mixers)
            if len(pairs) > self.n_layers:
                raise ValueError(f"{len(pairs)} mixers need as many layers or more, not n_layers={self.n_layers}")
            named: dict[str, type[Mixer]] = {}
            for name, target in pairs:
                cls = registry.load(registry.ARCHITECTURE, target)
                if not issubclass(cls, Mixer):
                    raise ValueError(f"mixers: {target} is a whole model, and a layer takes a mixer")
                if named.setdefault(name, cls) is not cls:
                    raise ValueError(f"mixers: two are called '{name}': give one a name of its own, as in a={target}")
            for key in self.model_extra or {}:
                name, dot, option = key.partition(".")
                if not dot or name not in named:
                    of_part = [f"{name}.{key}" for name, cls in named.items() if key in cls.Options.model_fields]
                    known = [*type(self).model_fields, *(f"{name}." for name in named)]
                    raise ValueError(f"unknown key '{key}'{f'; give {of_part[0]}' if of_part else nearest(key, known)}")
                if option in SHARED:
                    raise ValueError(f"{key}: all layers have one {option}: set {option}")
            for name, cls in named.items():
                self.options_of(name, cls)
            own = [cls for cls in named.values() if not registry.is_built_in(registry.ARCHITECTURE, cls)]
            object.__setattr__(self, "sources", tuple(registry.source_digest(cls) for cls in own))
            return self

        def options_of(self, name: str, cls: type[Mixer]) -> Any:
            """The options of the mixer called `name`: its defaults, what is shared, and what is set for it.

            Raises:
                UserError: a key is unknown, or a value is of the wrong type.
            """
            given: Mapping[str, Any] = self.model_extra or {}
            own = {key.partition(".")[2]: value for key, value in given.items() if key.partition(".")[0] == name}
            heads = {"n_heads": self.n_heads} if self.n_heads else {}
            shared = {"d_model": self.d_model, "n_layers": self.n_layers, "dropout": self.dropout}
            try:
                return resolve_options(cls, {**heads, **own, **shared})
            except UserError as error:
                raise UserError(f"{name}: {error}") from None

    family = "hybrid"
    paper = Paper("A Systematic Analysis of Hybrid Linear Attention", "Wang et al.", 2025, arxiv="2507.06457")
    training_defaults: ClassVar = {"learning_rate": 2.5e-3}

    def __init__(self, options: Any, io: IO) -> None:
        layers = itertools.cycle(
            [(name, registry.load(registry.ARCHITECTURE, target)) for name, target in _pairs(options.mixers)]
        )

        def mixer(options: Any) -> Mixer:
            name, cls = next(layers)
            made: Mixer = cls(options.options_of(name, cls))
            return made

        super().__init__(mixer, options, io)


def _pairs(mixers: str) -> list[tuple[str, str]]:
    """What each mixer of the list is called, and what it is."""
    found = []
    for part in mixers.split(","):
        name, _, target = (word.strip() for word in part.rpartition("="))
        found.append((name or registry.short_name(target), target))
    return found
