"""How a model is trained: the typed options, and the learning rate that follows from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import pydantic

from regbench.config import OF_TRAINING, parted
from regbench.utils.errors import UserError, closest, explain_validation
from regbench.utils.guard import check_plain
from regbench.utils.settings import Settings

if TYPE_CHECKING:
    from regbench.models.mixer import Options


MOST_EVALUATIONS = 1000
"""The most times a training scores the validation split: each is a row of the result, and of every checkpoint."""

OTHER_NAMES = {"steps": "train_tokens"}
"""Training options by what else they are called, where the two names are not alike."""
_ARGUMENTS = ("seed", "device", "backend", "track", "trials")
"""Arguments of a run that are taken for settings."""


class TrainingOptions(Settings):
    """How a model is trained. Set by `--set training.KEY=VALUE`; an architecture may carry defaults of its own."""

    train_tokens: int | None = pydantic.Field(
        default=None, ge=1, description="real tokens to see; None: the track's budget"
    )
    epochs: int | None = pydantic.Field(
        default=None,
        ge=1,
        description="passes over the training split, within those tokens; None: until they are spent",
    )
    train_instances: int | None = pydantic.Field(
        default=None, ge=1, description="only the first so many of the training split are seen; None: all"
    )
    batch_size: int = pydantic.Field(default=16, ge=1, description="instances in a batch")
    learning_rate: float = pydantic.Field(
        default=5e-3,
        gt=0,
        description="the highest rate; an architecture can have its own: `regbench ls architectures NAME`",
    )
    optimizer: Literal["adamw", "sgd"] = pydantic.Field(
        default="adamw", description="AdamW, or stochastic gradient descent with momentum"
    )
    momentum: float = pydantic.Field(default=0.9, ge=0, lt=1, description="sgd: share of the last step that is kept")
    schedule: Literal["cosine", "plateau", "constant"] = pydantic.Field(
        default="cosine",
        description="the rate falls along half a cosine, or whenever validation no longer improves, or never",
    )
    final_learning_rate: float = pydantic.Field(
        default=0.1, ge=0, le=1, description="cosine: share of the rate left at the end"
    )
    plateau_patience: int = pydantic.Field(
        default=5, ge=0, description="plateau: evaluations without a better validation loss that are waited"
    )
    plateau_factor: float = pydantic.Field(
        default=0.5, gt=0, lt=1, description="plateau: what the rate is then multiplied by"
    )
    plateau_learning_rate: float = pydantic.Field(default=1e-5, ge=0, description="plateau: the rate falls no lower")
    warmup: float = pydantic.Field(default=0.1, ge=0, lt=1, description="share of the steps over which the rate rises")
    state_space_rate: float | None = pydantic.Field(
        default=None,
        gt=0,
        description="cap on the rate of a state space's own parameters, as 1e-3 for S4; None: no cap",
    )
    loss_on: Literal["scored", "all"] = pydantic.Field(
        default="scored", description="training's loss is of the scored positions, or of all tokens"
    )
    weight_decay: float = pydantic.Field(default=0.05, ge=0, description="on matrices only")
    beta1: float = pydantic.Field(default=0.9, ge=0, lt=1, description="adamw: decay of the gradient's mean")
    beta2: float = pydantic.Field(default=0.99, ge=0, lt=1, description="adamw: decay of its square's mean")
    gradient_clip: float = pydantic.Field(default=1.0, gt=0, description="largest norm of the gradient")
    evaluations: int = pydantic.Field(
        default=10,
        ge=1,
        le=MOST_EVALUATIONS,
        description=f"times the validation split is scored, evenly spaced; plateau: every epoch, or every k-th of over "
        f"{MOST_EVALUATIONS:,}",
    )
    precision: Literal["float32", "bfloat16"] = pydantic.Field(
        default="float32", description="bfloat16: products in that, by autocast; weights and scoring stay float32"
    )
    keep_checkpoints: bool = pydantic.Field(
        default=False,
        description="the weights at every evaluation stay in the run folder, for `regbench compare --course`",
    )
    checkpoint_seconds: float = pydantic.Field(default=15.0, ge=0, description="at most so much work is lost by a kill")

    @pydantic.model_validator(mode="after")
    def _no_option_without_effect(self) -> Self:
        for name, (of, needed) in _NEEDS.items():
            if getattr(self, of) != needed and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with the {of} {getattr(self, of)}")
        return self


_NEEDS = {
    "momentum": ("optimizer", "sgd"),
    "beta1": ("optimizer", "adamw"),
    "beta2": ("optimizer", "adamw"),
    "final_learning_rate": ("schedule", "cosine"),
    "plateau_patience": ("schedule", "plateau"),
    "plateau_factor": ("schedule", "plateau"),
    "plateau_learning_rate": ("schedule", "plateau"),
}
"""Options that have an effect only with one value of another option."""


def resolve_training(cls: type[Any], settings: Mapping[str, Any]) -> TrainingOptions:
    """The training options of an architecture: `settings` over its own defaults, over the common ones.

    A default that has no effect with these settings is left out.
    """
    if not isinstance(cls.training_defaults, Mapping):
        what = type(cls.training_defaults).__name__
        raise UserError(
            f"training_defaults of {cls.__name__} is a dictionary such as {{'learning_rate': 1e-3}}, not {what}"
        )
    with explain_validation(f"training_defaults of {cls.__name__}", TrainingOptions.model_fields):
        TrainingOptions(**cls.training_defaults)
    own = dict(cls.training_defaults)
    for name, (of, needed) in _NEEDS.items():
        if settings.get(of, needed) != needed:
            own.pop(name, None)
    with explain_validation("training option", TrainingOptions.model_fields):
        options = TrainingOptions(**{**own, **settings})
    if options.schedule == "plateau" and "evaluations" in settings:
        raise UserError(
            "training option: evaluations has no effect with the schedule plateau: it looks after every epoch"
        )
    return options


def _hint(key: str, own: Iterable[str]) -> str | None:
    """What an unknown key stands for that is no option of the architecture: a training option, or an argument of the run.

    None where the key is known, or resolving it tells the nearest.
    """
    group, _, last = key.rpartition(".")  # group: such as trainng of trainng.batch_size
    known = TrainingOptions.model_fields
    if key in own or (group == "training" and last in known):
        return None
    if key == "training":
        return "training options have keys such as 'training.learning_rate'"
    if last in _ARGUMENTS:
        return f"it is no setting, but an argument of the run: --{last}"
    if last not in known:
        if closest(last, known if group == "training" else own) is not None:
            return None
        last = closest(last, [*known, *OTHER_NAMES]) or last
    last = OTHER_NAMES.get(last, last)
    return f"did you mean 'training.{last}'?" if last in known else None


def resolve_settings(cls: type[Any], settings: Mapping[str, Any]) -> tuple[Options, TrainingOptions]:
    """The options of an architecture and of its training, with these settings in the place of defaults."""
    from regbench.models.build import resolve_options  # imports PyTorch, which takes seconds

    of_training, own = parted(settings, OF_TRAINING)
    for key in settings:
        part = key.partition(".")[0]  # a hybrid knows the options of its parts, as transformer.window
        own_part = cls.Options.model_config.get("extra") == "allow" and part not in (key, "training")
        hint = None if own_part else _hint(key, cls.Options.model_fields)
        if hint is not None:
            raise UserError(f"option: unknown key '{key}'; {hint}")
    options = resolve_options(cls, own)
    for name, value in options:
        if isinstance(value, str):  # a result with it could not be read: see `regbench.utils.guard`
            check_plain(value, f"option {name}")
    return options, resolve_training(cls, of_training)


def learning_rate(step: int, total: int, options: TrainingOptions, lowered: int = 0) -> float:
    """The learning rate of one step: linear warm-up, then what the schedule says.

    "cosine" goes down half a cosine to the final share, "plateau" has what plateaus have left, "constant" keeps the rate. Steps
    count from 0, and `lowered` is how many plateaus there were.
    """
    warmup = options.warmup * total
    if step + 1 <= warmup:
        return options.learning_rate * (step + 1) / warmup
    if options.schedule == "plateau":
        least = min(options.plateau_learning_rate, options.learning_rate)
        return max(least, options.learning_rate * options.plateau_factor**lowered)
    if options.schedule == "constant":
        return options.learning_rate
    share = (step - warmup) / max(1.0, total - warmup)
    cosine = 0.5 * (1.0 + math.cos(math.pi * share))
    return options.learning_rate * (options.final_learning_rate + (1.0 - options.final_learning_rate) * cosine)


def evaluation_steps(total: int, instances: int, options: TrainingOptions) -> set[int]:
    """The steps after which the validation split is scored; the last is always one."""
    if options.schedule == "plateau":
        epoch = math.ceil(instances / options.batch_size)
        every = epoch * math.ceil(total / epoch / MOST_EVALUATIONS)
        return {*range(every, total, every), total}
    times = options.evaluations
    return {round(total * (i + 1) / times) for i in range(times)} | {total}
