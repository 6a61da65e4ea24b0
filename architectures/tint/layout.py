"""Where the simulator keeps what: slots of its width, rows of a matrix in prefix tokens, shards of a row in heads.

The width of the simulator is D = S d: S slots of the auxiliary's width d. A prefix token holds R = S - 1 rows of a (d, d) matrix.
Its last slot holds the bias, in the first prefix token only. Row i is in prefix token i // R, slot i % R. So a matrix needs
K = ceil(d / R) prefix tokens. A slot has Sp shards, each as wide as a head, d / Sp. The simulator has H = S Sp such heads. Head
(r, s) is shard s of slot r.

Two kinds of maps move numbers between slots (paper, section 3.2). A split-wise map has one (d, d) matrix for each slot. A
dimension-wise map has one (H, H) matrix for each of the d / Sp dimensions of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.utils.errors import UserError


@dataclass(frozen=True)
class Layout:
    """The sizes of a simulator.

    Attributes:
        width: Width of the auxiliary, d.
        heads: Heads of the auxiliary, h.
        positions: The longest sequence, T.
        slots: S.
        shards: Sp, a divisor of d.
    """

    width: int
    heads: int
    positions: int
    slots: int
    shards: int

    @classmethod
    def of(cls, width: int, heads: int, positions: int, slots: int) -> Layout:
        """The layout with the most shards that fit.

        Raises:
            UserError: There are fewer than four slots. Queries, keys, values and the input must fit.
        """
        if slots < 4:
            raise UserError(f"slots={slots} is too few: queries, keys, values and the input need four")
        rows = slots - 1
        prefixes = -(-width // rows)
        fitting = [s for s in range(1, rows + 1) if width % s == 0 and prefixes <= width // s]
        return cls(width, heads, positions, slots, max(fitting))

    @property
    def rows(self) -> int:
        """Rows of a matrix in a prefix token, R."""
        return self.slots - 1

    @property
    def prefixes(self) -> int:
        """Prefix tokens of a matrix, K."""
        return -(-self.width // self.rows)

    @property
    def total(self) -> int:
        """Width of the simulator, D."""
        return self.slots * self.width

    @property
    def n_heads(self) -> int:
        """Heads of the simulator's linear attention, H."""
        return self.slots * self.shards

    @property
    def head_width(self) -> int:
        """Width of such a head, d / Sp."""
        return self.width // self.shards

    def store(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A matrix (..., d, d) and a bias (..., d) in prefix tokens, (..., K, D)."""
        rows = F.pad(weight, (0, 0, 0, self.prefixes * self.rows - self.width))
        rows = rows.unflatten(-2, (self.prefixes, self.rows)).flatten(-2)
        first = torch.zeros_like(weight[..., 0, :]) if bias is None else bias
        return torch.cat([rows, F.pad(first.unsqueeze(-2), (0, 0, 0, self.prefixes - 1))], dim=-1)

    def load(self, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `store`: (..., K, D) -> (..., d, d), (..., d)."""
        rows = prefix[..., : self.rows * self.width].unflatten(-1, (self.rows, self.width)).flatten(-3, -2)
        return rows[..., : self.width, :], prefix[..., 0, self.rows * self.width :]

    def put(self, x: Tensor, slot: int = 0) -> Tensor:
        """A token that has x (..., d) in one slot and zeros in the others, (..., D)."""
        return F.pad(x, (slot * self.width, (self.rows - slot) * self.width))

    def get(self, x: Tensor, slot: int = 0) -> Tensor:
        """What is in a slot: (..., D) -> (..., d)."""
        return x[..., slot * self.width : (slot + 1) * self.width]

    def between_slots(self, moves: dict[tuple[int, int], float]) -> Tensor:
        """A dimension-wise map (d/Sp, H, H): slot `to` gets `factor` times slot `source`, for (to, source): factor."""
        slots = torch.zeros(self.slots, self.slots, dtype=torch.float64)
        for place, factor in moves.items():
            slots[place] = factor
        return torch.kron(slots, torch.eye(self.shards, dtype=torch.float64)).repeat(self.head_width, 1, 1)

    def sum_of_shards(self) -> Tensor:
        """A dimension-wise map (d/Sp, H, H): head r gets the sum of heads (r, s) over s. The bias heads stay."""
        heads = torch.zeros(self.n_heads, self.n_heads, dtype=torch.float64)
        for r in range(self.rows):
            heads[r, r * self.shards : (r + 1) * self.shards] = 1.0
        bias = torch.arange(self.rows * self.shards, self.n_heads)
        heads[bias, bias] = 1.0
        return heads.repeat(self.head_width, 1, 1)

    def to_rows(self) -> Tensor:
        """A split-wise map (S, d, d): coordinate j of head r goes to place j R + r of its slot. The bias slot stays."""
        slots = torch.zeros(self.slots, self.width, self.width, dtype=torch.float64)
        for r in range(self.rows):
            slot, offset = r // self.shards, r % self.shards * self.head_width
            for j, row in enumerate(range(r, self.width, self.rows)):
                slots[slot, row, offset + j] = 1.0
        slots[self.rows] = torch.eye(self.width, dtype=torch.float64)
        return slots

    def from_rows(self) -> Tensor:
        """A split-wise map (S, d, d): in slot r, place j R + r goes to coordinate j of each of its shards. The bias slot: 0."""
        slots = torch.zeros(self.slots, self.width, self.width, dtype=torch.float64)
        for r in range(self.rows):
            for j, row in enumerate(range(r, self.width, self.rows)):
                for s in range(self.shards):
                    slots[r, s * self.head_width + j, row] = 1.0
        return slots

    def position_table(self) -> Tensor:
        """What heads get of one-hot positions, (K + T, d/Sp): e_j for prefix token j, e_0 for every token of the text."""
        prefixes = torch.eye(self.prefixes, self.head_width, dtype=torch.float64)
        return torch.cat([prefixes, prefixes[:1].repeat(self.positions, 1)])

    def head_switch(self, main: bool, bias: bool) -> Tensor:
        """Which heads take positions, (H, 1): the first R slots', and those of the bias slot."""
        return torch.tensor([main] * self.rows + [bias], dtype=torch.float64).repeat_interleave(self.shards)[:, None]


def splitwise(x: Tensor, slots: Tensor) -> Tensor:
    """(B, T, D), (S, d, d) -> (B, T, D)."""
    return torch.einsum("btsi,soi->btso", x.unflatten(-1, (len(slots), -1)), slots).flatten(2)


def dimensionwise(x: Tensor, heads: Tensor) -> Tensor:
    """(B, T, D), (d/Sp, H, H) -> (B, T, D)."""
    return torch.einsum("bthw,wgh->btgw", x.unflatten(-1, (heads.shape[-1], -1)), heads).flatten(2)
