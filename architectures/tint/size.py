"""How large the simulator is: by the paper's count (Table 3), and by counting the numbers that the construction holds.

The paper counts maps for every layer. The modules here serve all layers, because their maps depend on sizes alone. Prefix tokens
are not in the paper's count: they are the auxiliary itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from architectures.tint.simulator import Simulator
from regbench.utils.errors import UserError


@dataclass(frozen=True)
class Sizes:
    """Numbers of parameters by the paper's count.

    Attributes:
        width: Width of the simulator, D.
        heads: Its heads, min(S^2, h).
        prefixes: Prefix tokens of a matrix, d / S.
        module: Parameters of one attention module, Q.
        forward: Of all layers.
        backward: Of all layers.
        descent: Of all layers.
    """

    width: int
    heads: int
    prefixes: int
    module: int
    forward: int
    backward: int
    descent: int

    @property
    def total(self) -> int:
        """All together."""
        return self.forward + self.backward + self.descent


def formula(width: int, heads: int, layers: int, positions: int, slots: int) -> Sizes:
    """The paper's count. A map pair has D^2 / H + H D parameters, an attention module four pairs and three position maps.

    A block has forward 7 modules and a pair, backward 7 modules and 6 D H for three finite differences, descent 7 modules.

    Args:
        width: Width of the auxiliary, d.
        heads: Its heads, h.
        layers: Its blocks, L.
        positions: Its longest sequence, T.
        slots: S.

    Raises:
        UserError: A size is below 1. Or the slots or heads do not divide the width. Or the heads do not divide D.
    """
    for name, value in (("d", width), ("heads", heads), ("layers", layers), ("positions", positions), ("slots", slots)):
        if value < 1:
            raise UserError(f"{name}={value} is not a size: 1 or more")
    if width % slots:
        raise UserError(
            f"{slots} slots do not divide the width {width}: the paper's count has width / slots prefix tokens"
        )
    if width % heads:
        raise UserError(f"d ({width}) must be a multiple of heads ({heads})")
    total, n = slots * width, min(slots**2, heads)
    if total % n:
        raise UserError(f"the simulator's width {total} is no multiple of its {n} heads")
    prefixes = width // slots
    pair = total**2 // n + n * total
    module = 4 * pair + 3 * (positions + prefixes) * (total // n)
    return Sizes(
        total,
        n,
        prefixes,
        module,
        layers * (7 * module + pair),
        layers * (7 * module + 6 * total * n),
        layers * 7 * module,
    )


def counted(simulator: Simulator) -> dict[str, int]:
    """The numbers in the construction's maps, by module and map."""
    return {name: buffer.numel() for name, buffer in simulator.named_buffers()}


def expected(simulator: Simulator) -> dict[str, int]:
    """The same by the terms of the formula, with the construction's own sizes.

    A split-wise map over S slots has D^2 / S numbers. A dimension-wise map over H heads has D H. A position table has a row of
    D / H numbers for each prefix token and each position. A switch has one number for each head.
    """
    o = simulator.layout
    kinds = {
        "rows": o.total**2 // o.slots,
        "map": o.total * o.n_heads,
        "positions": (o.positions + o.prefixes) * o.total // o.n_heads,
        "switch": o.n_heads,
    }
    split = ("forward_rows", "backward_query", "descent_key")
    found = {}
    for name in counted(simulator):
        own = name.rpartition(".")[2]
        kind = "rows" if own in split else "switch" if own.startswith("at_") else own if own == "positions" else "map"
        found[name] = kinds[kind]
    return found
