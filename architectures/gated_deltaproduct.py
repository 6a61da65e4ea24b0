"""Gated DeltaProduct: several delta steps for each token."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from architectures.gated_deltanet import GatedDeltaNet
from regbench.models.mixer import Mixer, Paper


class GatedDeltaProduct(GatedDeltaNet, Mixer):
    """One decay, then n_h delta steps with keys, values and betas of their own. Siems et al. 2025, section 3.

    A product of n_h Householder matrices can rotate the state, which one cannot. n_h = 1 without
    negative eigenvalues is Gated DeltaNet. By default beta is up to 2.
    """

    class Options(GatedDeltaNet.Options):
        """The options of Gated DeltaProduct."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        n_h: int = Field(default=2, ge=1, description="delta steps of each token")
        negative_eigenvalues: bool = Field(
            default=True, description="whether beta is up to 2, so that a step can turn a direction of the state round"
        )

        @property
        def steps(self) -> int:
            """How many delta steps a token makes."""
            return self.n_h

    family = "delta rule"
    paper = Paper(
        "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products",
        "Siems et al.",
        2025,
        arxiv="2502.10297",
    )
    training_defaults: ClassVar = {"learning_rate": 5e-3}
