"""What the heads of a trained model attend to, and what it scores without them (ICLL section 5.1, Figure 4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regbench.analysis.key_sets import CONTRASTS, FAMILIES, KINDS, first_position, hidden_states_of, key_sets, kind_of
from regbench.analysis.trained import Trained
from regbench.data.instances import Instances
from regbench.metrics.scores import by_problem, score
from regbench.models.backbone import Backbone
from regbench.models.model import Model, ModelPredictor, shift_in, token_tensor
from regbench.models.predictor import predict_in_batches
from regbench.results import ScoreRecord
from regbench.tasks.base import TokenIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, blaming, nearest

SHARP = ("match-2", *CONTRASTS)
"""The sets whose attention per key is compared: whether it is the 2-gram that a head matches, the 1-gram, or the state."""
BATCH_BYTES = 192 << 20
"""The most memory for the attention of one layer and one batch."""


@dataclass(frozen=True)
class Head:
    """What one head attends to."""

    layer: str  # the name of its layer, from 1
    number: int  # its number in the layer, from 1
    kind: str  # the set that it attends to, or "mixed"
    # by set the mean share of its attention, over the queries for which the set is not empty
    mass: dict[str, ScoreRecord]
    excess: dict[str, float]  # by set (mass - chance) / (1 - chance)
    # of match-2, only-m and only-state the mean attention to one key, in units of uniform attention. Over queries for which
    # none of the three is empty
    per_key: dict[str, ScoreRecord]

    @property
    def name(self) -> str:
        """LAYER.HEAD, such as "1.7"."""
        return f"{self.layer}.{self.number}"


@dataclass(frozen=True)
class Attention:
    """What the heads of a model attend to."""

    heads: list[Head]  # all heads
    chance: dict[str, float]  # by set the mean share of uniform attention
    coefficients: bool  # whether rows are signed or do not sum to 1. Then shares are those of the absolute values
    first: int  # the first position of a query
    instances: int  # how many instances were read
    queries: int  # how many queries were counted

    @property
    def sets(self) -> list[str]:
        """The sets that were measured."""
        return [name for name in (*KINDS, *CONTRASTS) if name in self.chance]

    def chosen(self, wanted: str) -> list[Head]:
        """The heads that `--ablate` names.

        They are LAYER.HEAD, a kind, or "match" and "previous" for several kinds; several with commas between them.
        """
        names, found = [head.name for head in self.heads], []
        for part in (part.strip() for part in wanted.split(",")):
            kinds = FAMILIES.get(part, (part,))
            if part in names:
                found += [head for head in self.heads if head.name == part]
            elif part in (*KINDS, *FAMILIES, "mixed"):
                of_kind = [head for head in self.heads if head.kind in kinds]
                if not of_kind:
                    there = ", ".join(dict.fromkeys(head.kind for head in self.heads))
                    raise UserError(f"no head is of the kind '{part}'; there are: {there}")
                found += of_kind
            elif part[:1].isalpha() and "." not in part:
                raise UserError(f"unknown kind '{part}'{nearest(part, (*KINDS, *FAMILIES, 'mixed'))}")
            else:
                raise UserError(f"unknown head '{part}'; heads are {names[0]} to {names[-1]}")
        return [head for head in self.heads if head in found]


class _Sums:
    """Sums over the queries of each instance, a batch at a time."""

    def __init__(self) -> None:
        # by layer the heads' attention to each set, (B, H, S) for each batch
        self.mass: dict[str, list[FloatArray]] = {}
        # by layer, of `SHARP`, the heads' attention to one key over that of uniform attention, (B, H, 3) for each batch
        self.per_key: dict[str, list[FloatArray]] = {}
        self.chance: list[FloatArray] = []  # uniform attention to each set, (B, S) for each batch
        self.count: list[FloatArray] = []  # the queries for which a set is not empty, (B, S) for each batch
        self.sharp_count: list[FloatArray] = []  # the queries for which none of `SHARP` is empty, (B,) for each batch
        self.coefficients = False  # whether any rows are signed or do not sum to 1

    def begin(self, sets: dict[str, Tensor], asked: Tensor) -> None:
        """A new batch. Counts its sets, each (B, L, L) bool, for the queries that are `asked`, (B, L) bool."""
        self.keys = torch.stack(list(sets.values()), dim=-1).float()
        self.size = self.keys.sum(2)  # (B, L, S)
        self.counted = (self.size > 0) & asked[..., None]
        self.past = torch.arange(1, asked.shape[1] + 1)[:, None]
        self.sharp = [list(sets).index(name) for name in SHARP if name in sets]
        self.contrast = self.counted[..., self.sharp].all(-1)
        self.chance.append((self.size / self.past * self.counted).sum(1).double().numpy())
        self.count.append(self.counted.sum(1).double().numpy())
        self.sharp_count.append(self.contrast.sum(1).double().numpy())

    def add(self, layer: str, weights: Tensor) -> None:
        """Adds the attention of one layer to the batch, (B, H, L, L)."""
        shares, signed = _shares(weights)
        self.coefficients |= signed
        mass = shares.transpose(1, 2) @ self.keys  # (B, L, H, L) @ (B, L, L, S)
        total = (mass * self.counted[:, :, None]).sum(1)
        each = mass[..., self.sharp] / self.size[:, :, None, self.sharp].clamp(min=1) * self.past[:, :, None]
        self.mass.setdefault(layer, []).append(total.double().numpy())
        keyed = (each * self.contrast[:, :, None, None]).sum(1)
        self.per_key.setdefault(layer, []).append(keyed.double().numpy())


def measure(trained: Trained, instances: Instances) -> Attention:
    """Measures every head of a model on instances. No more than the attention of one batch is kept."""
    io = trained.track.task.io
    if not isinstance(io, TokenIO):
        raise UserError(f"attention is measured on tokens, and {trained.track.name} is of vectors")
    layers = attention_layers(trained.model, trained.architecture)
    first = first_position(instances)
    sums, queries, names = _Sums(), 0, []
    step = _rows(instances, trained.model)
    for start in range(0, len(instances), step):
        part = instances[start : start + step]
        tokens = token_tensor(part.tokens)
        sets = key_sets(shift_in(tokens, io.separator), io.separator, hidden_states_of(part))
        asked = torch.from_numpy(part.scored.copy())
        asked[:, :first] = False
        queries, names = queries + int(asked.sum()), list(sets)
        sums.begin(sets, asked)
        read_attention(trained.model, tokens, layers, sums.add)
    if not queries:
        raise UserError(f"no scored position is at {first} or later: there is nothing to measure")
    problem = instances.problem
    count, chances, sharp_count = (
        by_problem(np.concatenate(parts), problem) for parts in (sums.count, sums.chance, sums.sharp_count)
    )
    some = [i for i in range(len(names)) if count[:, i].sum() > 0]
    chance = {names[i]: float(chances[:, i].sum() / count[:, i].sum()) for i in some}
    sharp = [name for name in SHARP if name in names] if sharp_count.sum() > 0 else []
    found = []
    for layer, parts in sums.mass.items():
        masses, keyed = (by_problem(np.concatenate(each), problem) for each in (parts, sums.per_key[layer]))
        for h in range(masses.shape[1]):
            mass = {names[i]: ScoreRecord.of(masses[:, h, i], count[:, i]) for i in some}  # type: ignore[arg-type]
            excess = {s: (mass[s].value - c) / (1 - c) if c < 1 else 0.0 for s, c in chance.items()}
            each = {s: ScoreRecord.of(keyed[:, h, i], sharp_count) for i, s in enumerate(sharp)}  # type: ignore[arg-type]
            found.append(Head(layer, h + 1, kind_of(mass, excess), mass, excess, each))
    return Attention(found, chance, sums.coefficients, first, len(instances), queries)


@dataclass(frozen=True)
class Ablation:
    """A model with and without some heads, on the same instances."""

    heads: list[str]  # names of the heads whose attention was made uniform
    before: dict[str, ScoreRecord]  # by score the whole model
    after: dict[str, ScoreRecord]  # by score the model without the heads
    change: dict[str, ScoreRecord]  # by score the difference, with the standard error of paired instances


def ablate(trained: Trained, instances: Instances, heads: Sequence[Head]) -> Ablation:
    """Scores a model with and without some heads."""
    task = trained.track.task
    predictor = ModelPredictor(trained.model)
    size = max(1, min(len(instances), _rows(instances, trained.model)))

    def scores() -> Any:
        return score(task, instances, predict_in_batches(predictor, instances, size))

    with without_heads(trained.model, trained.architecture, [(head.layer, head.number) for head in heads]):
        after = scores()
    before = scores()
    # A score of a group of positions may have none in these instances, as that of lengths which only the test split has.
    counts = {name: before.counts_of(name) for name in before.sums if before.counts_of(name).any()}
    change = {name: ScoreRecord.of(after.sums[name] - before.sums[name], count) for name, count in counts.items()}
    whole, without = ({name: one[name] for name in counts} for one in (before, after))
    return Ablation([head.name for head in heads], whole, without, change)


def maps(
    trained: Trained, instances: Instances, number: int, heads: Sequence[Head]
) -> Iterator[tuple[Head, FloatArray, NDArray[np.bool_] | None]]:
    """The attention of some heads in one instance, as shares of each row's absolute mass, and the keys of the head's set: (L, L).

    The keys are None for a mixed head.
    """
    part, separator = instances[number : number + 1], trained.track.task.io.separator
    tokens = token_tensor(part.tokens)
    sets = key_sets(shift_in(tokens, separator), separator, hidden_states_of(part))
    found: dict[str, FloatArray] = {}

    def keep(layer: str, weights: Tensor) -> None:
        shares, _ = _shares(weights)
        for head in heads:
            if head.layer == layer:
                found[head.name] = shares[0, head.number - 1].double().numpy()

    read_attention(trained.model, tokens, attention_layers(trained.model, trained.architecture), keep)
    for head in heads:
        yield head, found[head.name], None if head.kind == "mixed" else sets[head.kind][0].numpy()


def _shares(weights: Tensor) -> tuple[Tensor, bool]:
    """Rows as shares of their absolute mass, and whether they were anything else. A row of zeros stays."""
    total = weights.abs().sum(-1, keepdim=True)
    proper = (weights >= 0).all() and (((total - 1).abs() < 1e-3) | (total == 0)).all()
    return weights.abs() / total.clamp(min=1e-12), not bool(proper)


def _rows(instances: Instances, model: Model) -> int:
    """How many instances are read at once."""
    length = instances.tokens.shape[1]
    heads = max(1, int(getattr(model.options, "n_heads", 1)) + len(getattr(model.options, "extra_ngram_heads", ())))
    return max(1, BATCH_BYTES // (4 * length * length * (2 * heads + 2 * (len(KINDS) + len(CONTRASTS)))))


def labels(trained: Trained, instances: Instances, number: int) -> list[str]:
    """What is read at each position of an instance: its symbol, and the state after it where the task has states."""
    io, part = trained.track.task.io, instances[number : number + 1]
    tokens: NDArray[Any] = part.tokens[0, : int(part.lengths[0])]
    read = [io.separator, *tokens[:-1].tolist()]
    states = hidden_states_of(part)
    if states is None:
        return [io.names[token] for token in read]
    after = ["" if s < 0 else str(s) for s in states[0, : len(read)].tolist()]
    return [f"{io.names[token]} {state}".strip() for token, state in zip(read, after, strict=True)]


def typical(found: Attention) -> list[Head]:
    """Of each kind in each layer the head with the largest excess; of a model with mixed heads alone, its most regular one."""

    def strength(head: Head) -> float:
        return max(head.excess[name] for name in KINDS if name in head.excess)

    groups: dict[tuple[str, str], list[Head]] = {}
    for head in found.heads:
        if head.kind != "mixed":
            groups.setdefault((head.layer, head.kind), []).append(head)
    return [max(group, key=strength) for group in groups.values()] or [max(found.heads, key=strength)]


def attention_layers(model: Model, architecture: str) -> dict[str, Any]:
    """The mixers with attention, by the name of their layer. Empty where the model itself gives all layers at once."""
    if callable(getattr(model, "attention_weights", None)):
        return {}
    if isinstance(model, Backbone):
        mixers = {str(i): block.mixer for i, block in enumerate(model.blocks, 1)}
        found = {name: mixer for name, mixer in mixers.items() if callable(getattr(mixer, "weights", None))}
        if found:
            return found
        lacks = f"its mixer {type(mixers['1']).__name__} has no weights(x) -> (B, H, L, L)"
    else:
        lacks = f"{type(model).__name__} has no attention_weights(tokens) -> a list of (B, H, L, L)"
    raise UserError(f"'{architecture}' has no attention to read: {lacks}")


def read_attention(model: Model, tokens: Tensor, layers: dict[str, Any], use: Callable[[str, Tensor], None]) -> None:
    """Hands the attention of each layer to `use`, one layer after the other.

    `tokens` are (B, L). `use` takes the name of a layer and its weights (B, H, L, L).
    """
    batch, length = tokens.shape

    def checked(layer: str, weights: Any) -> None:
        shape = tuple(getattr(weights, "shape", ()))
        if len(shape) != 4 or (shape[0], *shape[2:]) != (batch, length, length):
            raise UserError(f"the weights of layer {layer} have the shape {shape}, not (B, H, L, L)")
        if bool(weights.triu(1).any()):
            raise UserError(f"the weights of layer {layer} look ahead: row t must be zero after t")
        use(layer, weights.float())

    def hook(layer: str) -> Callable[[Any, tuple[Any, ...], Tensor], None]:
        def read(mixer: Any, arguments: tuple[Any, ...], output: Tensor) -> None:
            with blaming(f"{type(mixer).__name__}.weights raises"):
                weights = mixer.weights(*arguments)
            checked(layer, weights)
            if callable(getattr(mixer, "mix", None)):
                _require_forward(mixer, arguments, weights, output)

        return read

    with torch.no_grad(), contextlib.ExitStack() as stack:
        if layers:
            for name, mixer in layers.items():
                stack.callback(mixer.register_forward_hook(hook(name)).remove)
            model.eval()(tokens)
            return
        whole: Any = model.eval()
        with blaming(f"{type(model).__name__}.attention_weights raises"):
            found = list(whole.attention_weights(tokens))
            names = list(whole.attention_names()) if hasattr(whole, "attention_names") else []
        for i, weights in enumerate(found):
            checked(names[i] if len(names) == len(found) else str(i + 1), weights)


def _require_forward(mixer: Any, arguments: tuple[Any, ...], weights: Tensor, output: Tensor) -> None:
    """Checks that a mixer's weights are those of its forward: a derived class may have another forward than its base."""
    with blaming(f"{type(mixer).__name__}.mix raises"):
        mixed = mixer.mix(arguments[0], weights)
    if not torch.allclose(mixed, output, rtol=1e-3, atol=1e-3 * float(output.abs().max())):
        raise UserError(
            f"{type(mixer).__name__}.mix(x, weights(x)) is not its forward(x): these are not its attention weights"
        )


@contextlib.contextmanager
def without_heads(model: Model, architecture: str, heads: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Within the block these heads attend to all of their past alike. The sum of each row's absolute weights stays.

    `heads` are the layer of each, and its number in it from 1.
    """
    layers = attention_layers(model, architecture)
    places = {layer: [number - 1 for of, number in heads if of == layer] for layer in layers}
    asked = [mixer for layer, mixer in layers.items() if places[layer]]
    fixed = next((mixer for mixer in asked if not callable(getattr(mixer, "mix", None))), None)
    if not layers or fixed is not None:
        why = "it is a whole model, and heads of mixers alone can be"
        if layers:
            why = f"{type(fixed).__name__} has no mix(x, weights), its forward with given weights"
        raise UserError(f"the heads of '{architecture}' cannot be ablated: {why}")

    def hook(numbers: list[int]) -> Callable[[Any, tuple[Any, ...], Tensor], Tensor]:
        def mixed(mixer: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
            weights = mixer.weights(*arguments).clone()
            _require_forward(mixer, arguments, weights, output)
            length = weights.shape[-1]
            past = torch.ones(length, length, dtype=weights.dtype).tril()
            uniform = past / past.sum(-1, keepdim=True)
            weights[:, numbers] = weights[:, numbers].abs().sum(-1, keepdim=True) * uniform
            out: Tensor = mixer.mix(arguments[0], weights)
            return out

        return mixed

    with contextlib.ExitStack() as stack:
        for layer, numbers in places.items():
            if numbers:
                stack.callback(layers[layer].register_forward_hook(hook(numbers)).remove)
        yield
