"""Probes of hidden states: what a small MLP, or a linear map, reads from each layer (ICLL section 5.2, Appendix E).

All probes of one target are trained at once, as one batch of small networks: those of every layer, of the untrained model, and
of the controls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.analysis.hidden import states_at
from regbench.analysis.key_sets import hidden_states_of
from regbench.analysis.probe_models import STEPS, LinearProbes, MLPProbes, loss_of
from regbench.analysis.probe_targets import ORDERS, Samples, Target, ngram_samples, state_samples
from regbench.analysis.trained import Trained, untrained
from regbench.data.instances import Instances
from regbench.metrics.scores import mean_over
from regbench.results import ScoreRecord
from regbench.tasks.base import TokenIO
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError, nearest

TARGETS = {
    "counts": tuple(Target("counts", n) for n in range(1, ORDERS + 1)),
    "frequencies": tuple(Target("frequencies", n) for n in range(1, ORDERS + 1)),
    "existence": tuple(Target("existence", n) for n in range(2, ORDERS + 1)),
    "state": (Target("state", 0),),
}
TRAINING_INSTANCES = 1000
"""Instances of the training split that probes are trained on. Of the other two splits all are read, up to 500."""
OTHER_INSTANCES = 500
MOST_TOKENS = 128
"""The largest vocabulary. Counts of all n-grams take memory in proportion to it."""


@dataclass(frozen=True)
class Reading:
    """How well one target can be read, on the test split: a relative error |y - prediction| / y, or an accuracy."""

    target: str  # name of the target, such as "frequency-2"
    metric: str  # "error" or "accuracy"
    trained: ScoreRecord  # the MLP probe of the layer that is best on the validation split
    layer: int  # the number of this layer, from 1
    linear: ScoreRecord  # the linear probe of the layer that is best for it on the validation split
    linear_layer: int  # the number of that layer
    # the layer of the same architecture with its initial weights that is best on the validation split
    untrained: ScoreRecord
    untrained_layer: int  # the number of that layer
    tokens: ScoreRecord  # the probe on the last three tokens in the place of a hidden state: what needs no memory
    shuffled: ScoreRecord  # the probe on the best layer's state of another instance at the same position
    ceiling: ScoreRecord  # the probe on the true counts and frequencies of the n-grams
    constant: ScoreRecord  # the mean of the training samples, or the more frequent answer
    layers: list[ScoreRecord]  # the MLP probe of every layer
    untrained_layers: list[ScoreRecord]  # the same for the initial weights


def chosen_targets(what: str) -> list[Target]:
    """The targets of a list such as "counts,state"."""
    parts = [part.strip() for part in what.split(",")]
    for part in parts:
        if part not in TARGETS:
            raise UserError(f"unknown --what '{part}'{nearest(part, TARGETS)}")
    return [target for name, of_kind in TARGETS.items() if name in parts for target in of_kind]


def check_probed(trained: Trained, targets: Sequence[Target]) -> None:
    """Refuses a run that cannot be probed for these targets, before anything is computed."""
    io, track = trained.track.task.io, trained.track
    if not isinstance(io, TokenIO):
        raise UserError(f"probes are for tasks of tokens, and {track.name} is of vectors")
    few = track.instances("validation")[:1]
    if any(target.what == "state" for target in targets) and hidden_states_of(few) is None:
        others = ",".join(dict.fromkeys(t.what for t in targets if t.what != "state")) or "counts,frequencies,existence"
        raise UserError(f"the task of {track.name} has no states to probe for; ask for --what {others}")
    if io.vocab_size > MOST_TOKENS:
        raise UserError(
            f"probes are for {MOST_TOKENS} different tokens at most, and {track.name} has {io.vocab_size:,}"
        )
    states_at(trained.model, few, np.zeros(1, np.int64), [np.zeros(1, np.int64)])


def probe(
    trained: Trained,
    targets: Sequence[Target],
    *,
    steps: int = STEPS,
    announce: Callable[[str], None] = lambda _: None,
) -> list[Reading]:
    """Probes a model for some targets.

    Probes are trained on the training split's states. The layer and the linear probe's penalty are chosen on the validation
    split. The test split is read after that.
    """
    check_probed(trained, targets)
    io = trained.track.task.io
    bare = untrained(trained)
    groups: dict[tuple[str, int], list[Target]] = {}
    for target in targets:
        groups.setdefault((target.what if target.classifies else "numbers", target.order), []).append(target)
    fitted: dict[tuple[str, int], _Fitted] = {}
    limits = {"train": TRAINING_INSTANCES, "validation": OTHER_INSTANCES, "test": OTHER_INSTANCES}

    def data(split: str, number: int, sort: tuple[str, int]) -> tuple[Samples, dict[str, list[Tensor]]]:
        instances = trained.track.instances(split)[: limits[split]]
        generator = np.random.default_rng([0, number, *sort[0].encode(), sort[1]])
        what, order = sort
        if what == "state":
            samples = state_samples(instances, io.separator, io.vocab_size, generator)
        else:
            samples = ngram_samples(instances, io.separator, io.vocab_size, order, what == "existence", generator)
        if not samples:
            target = groups[sort][0].name
            raise UserError(f"{trained.track.name} has no position to probe for {target}: its strings are too short")
        return samples, _features(samples, instances, trained, bare, io.vocab_size)

    for sort, own in groups.items():
        announce(f"training probes of {', '.join(target.name for target in own)}")
        fitted[sort] = _Fitted(own, *data("train", 0, sort), *data("validation", 1, sort), steps)
    found: dict[str, Reading] = {}
    for sort, probes in fitted.items():  # every choice is made: now the test split
        found |= probes.readings(*data("test", 2, sort))
    return [found[target.name] for target in targets]


def _features(
    samples: Samples, instances: Instances, trained: Trained, bare: Any, vocab_size: int
) -> dict[str, list[Tensor]]:
    """What the probes of each source read: by source, for each layer (S, P, F), where P is 2 for pairs of places, else 1."""
    pair = samples.query.shape[1] == 0
    places = [samples.place, samples.other] if pair else [samples.place]
    found: dict[str, list[Tensor]] = {}
    for source, model, row in (
        ("trained", trained.model, samples.row),
        ("shuffled", trained.model, samples.stranger),
        ("untrained", bare, samples.row),
    ):
        at = states_at(model, instances, row, places)
        found[source] = [torch.stack(layer, dim=1) for layer in zip(*at, strict=True)]
    last = torch.from_numpy(samples.tokens).view(len(samples), 2, 3)[:, : len(places)]
    found["tokens"] = [F.one_hot(last, vocab_size).flatten(2).float()]
    counts = torch.from_numpy(samples.counts[:, : len(places)]).float()
    frequencies = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    found["ceiling"] = [torch.cat([counts.flatten(2), frequencies.flatten(2)], dim=-1)]
    return found


class _Fitted:
    """The trained probes of the targets that share their samples, and the choices made on the validation split."""

    def __init__(
        self,
        targets: Sequence[Target],
        samples: Samples,
        features: dict[str, list[Tensor]],
        held_out: Samples,
        held_out_features: dict[str, list[Tensor]],
        steps: int,
    ) -> None:
        self.targets = targets
        self.layers = len(features["trained"])
        self.scale = {name: [_scale(layer) for layer in layers] for name, layers in features.items()}
        # Every source of every layer, the shuffled ones too: which layer is the best is not known yet.
        self.sources = [(name, i) for name, layers in features.items() for i in range(len(layers))]
        self.width = max(layer.shape[-1] for layers in features.values() for layer in layers)
        self.centre, self.spread, self.constants, wanted = [], [], [], []
        for target in targets:
            y = torch.from_numpy(samples.values[target.what]).float()
            mean = float(y.mean())
            self.centre.append(0.0 if target.classifies else mean)
            self.spread.append(1.0 if target.classifies else float(y.std()))
            self.constants.append(float(mean >= 0.5) if target.classifies else mean)
            wanted.append(y if target.classifies else (y - mean) / max(self.spread[-1], 1e-9))
        self.linear = [
            LinearProbes(target, self._scaled(features), self._scaled(held_out_features), *both)
            for target, *both in ((target, samples, held_out) for target in targets)
        ]
        self.network = MLPProbes(
            len(self.sources),
            [t.classifies for t in targets],
            self.width,
            samples.query.shape[1],
            samples.counts.shape[-1],
        )
        self.network.train(self._stack(features), torch.from_numpy(samples.query), torch.stack(wanted), steps)
        losses = self._losses(held_out, held_out_features)
        self.best = []
        for k, target in enumerate(targets):
            score = {
                name: [float(losses[k][self.sources.index((name, i))].mean()) for i in range(self.layers)]
                for name in ("trained", "untrained")
            }
            pick = np.argmax if target.classifies else np.argmin
            self.best.append({name: int(pick(of)) for name, of in score.items()})

    def readings(self, samples: Samples, features: dict[str, list[Tensor]]) -> dict[str, Reading]:
        """The readings of every target on other samples, by name."""
        losses, found = self._losses(samples, features), {}
        plain = self._scaled(features)
        for k, target in enumerate(self.targets):
            at = {source: _record(losses[k][i], samples) for i, source in enumerate(self.sources)}
            y = samples.values[target.what]
            best, linear = self.best[k], self.linear[k]
            constant = np.full(len(y), self.constants[k])
            found[target.name] = Reading(
                target=target.name,
                metric="accuracy" if target.classifies else "error",
                trained=at["trained", best["trained"]],
                layer=best["trained"] + 1,
                linear=_record(loss_of(target, linear.predict(plain, samples), y), samples),
                linear_layer=linear.layer + 1,
                untrained=at["untrained", best["untrained"]],
                untrained_layer=best["untrained"] + 1,
                tokens=at["tokens", 0],
                shuffled=at["shuffled", best["trained"]],
                ceiling=at["ceiling", 0],
                constant=_record(loss_of(target, constant if not target.classifies else 2 * constant - 1, y), samples),
                layers=[at["trained", i] for i in range(self.layers)],
                untrained_layers=[at["untrained", i] for i in range(self.layers)],
            )
        return found

    def _losses(self, samples: Samples, features: dict[str, list[Tensor]]) -> list[list[FloatArray]]:
        """By target and source the error, or 1 for a right answer, of each sample, (S,)."""
        out = self.network.predict(self._stack(features), torch.from_numpy(samples.query)).double().numpy()
        found = []
        for k, target in enumerate(self.targets):
            y = samples.values[target.what]
            found.append(
                [loss_of(target, out[k, s] * self.spread[k] + self.centre[k], y) for s in range(len(self.sources))]
            )
        return found

    def _scaled(self, features: dict[str, list[Tensor]]) -> list[Tensor]:
        """The trained model's layers, standardised by the training samples."""
        return [(x - mean) / std for x, (mean, std) in zip(features["trained"], self.scale["trained"], strict=True)]

    def _stack(self, features: dict[str, list[Tensor]]) -> Tensor:
        """All sources as one tensor (sources, S, P, F), standardised, and zeros where one is narrower."""
        parts = []
        for name, layer in self.sources:
            mean, std = self.scale[name][layer]
            x = (features[name][layer] - mean) / std
            parts.append(F.pad(x, (0, self.width - x.shape[-1])))
        return torch.stack(parts)


def _scale(layer: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature, (F,) each. One that is constant in the training samples is 0 in all samples."""
    deviation = layer.std((0, 1))
    return layer.mean((0, 1)), torch.where(deviation > 1e-6, deviation, torch.inf)


def _record(losses: FloatArray, samples: Samples) -> ScoreRecord:
    """The mean over samples, with its standard error over instances, or over problems that they share."""
    return mean_over(losses, np.ones(len(losses), np.int64), samples.unit)
