"""One step of training: the optimizer, its groups, and the precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch

from regbench.models.mixer import state_space
from regbench.training.options import TrainingOptions, resolve_settings, resolve_training
from regbench.training.step import make_optimizer, train_step
from regbench.training.trainer import Trainer
from regbench.utils.errors import UserError
from tests.training.conftest import Recency, log


def test_bfloat16_is_of_products_alone(trainer: Callable[..., Trainer]) -> None:
    """The losses are near those of float32 and not the same, in training and on validation; weights stay float32."""
    whole, half = trainer("whole"), trainer("half", precision="bfloat16")
    curves = [[row["validation_loss"] for row in one.run().curve] for one in (whole, half)]
    assert all(parameter.dtype == torch.float32 for parameter in half.model.parameters())
    assert curves[0] != curves[1]
    np.testing.assert_allclose(curves[0], curves[1], rtol=3e-2)  # 1 % measured, with dropout
    first = [log(one)[0]["cross_entropy"] for one in (whole, half)]
    assert first[0] != first[1]
    np.testing.assert_allclose(*first, rtol=5e-3)


def test_weight_decay_spares_vectors_and_the_marked() -> None:
    model = torch.nn.Linear(3, 3)
    marked = torch.nn.Linear(3, 3)
    marked.weight._no_weight_decay = True  # type: ignore[assignment]
    both = torch.nn.Sequential(model, marked)
    decayed, spared = make_optimizer(both, TrainingOptions()).param_groups  # type: ignore[arg-type]
    assert [p is model.weight for p in decayed["params"]] == [True]
    assert len(spared["params"]) == 3
    assert spared["weight_decay"] == 0


def test_the_rate_of_state_spaces_has_its_own_cap() -> None:
    model = torch.nn.Linear(3, 3)
    with pytest.raises(UserError, match=r"^training\.state_space_rate has no effect: .* no state-space parameters$"):
        make_optimizer(model, TrainingOptions(state_space_rate=1e-3))  # type: ignore[arg-type]
    state_space(model.bias)
    *rest, capped = make_optimizer(model, TrainingOptions(learning_rate=4e-3, state_space_rate=1e-3)).param_groups  # type: ignore[arg-type]
    assert capped["params"] == [model.bias]
    assert (capped["share"], capped["weight_decay"]) == (0.25, 0)
    assert [group["share"] for group in rest] == [1, 1]
    *_, capped = make_optimizer(model, TrainingOptions(learning_rate=5e-4, state_space_rate=1e-3)).param_groups  # type: ignore[arg-type]
    assert capped["share"] == 1


def test_the_capped_rate_is_the_one_that_steps(trainer: Callable[..., Trainer]) -> None:
    t = trainer()
    mixers = [block.mixer for block in t.model.blocks]  # type: ignore[union-attr]
    state_space(*(mixer.decay for mixer in mixers))  # type: ignore[union-attr]
    t.options = t.options.model_copy(update={"state_space_rate": 1e-9})
    t.optimizer = make_optimizer(t.model, t.options)
    before = t.model.unembed.weight.detach().clone()  # type: ignore[union-attr, operator]
    t.run()
    assert all(mixer.decay.abs().max() < 1e-6 for mixer in mixers)  # type: ignore[union-attr, operator]
    assert (t.model.unembed.weight - before).abs().max() > 1e-3  # type: ignore[union-attr, operator]


def test_the_optimizer_is_fused_where_it_can_be(trainer: Callable[..., Trainer]) -> None:
    model = trainer().model
    assert make_optimizer(model, TrainingOptions()).param_groups[0]["fused"]
    model.register_parameter("turn", torch.nn.Parameter(torch.ones(1, dtype=torch.complex64)))
    assert not make_optimizer(model, TrainingOptions()).param_groups[0]["fused"]


def test_adamw_has_the_options(trainer: Callable[..., Trainer]) -> None:
    options = TrainingOptions(learning_rate=0.02, beta1=0.6, beta2=0.7, weight_decay=0.3)
    decayed, others = make_optimizer(trainer().model, options).param_groups
    assert [(group["lr"], group["betas"]) for group in (decayed, others)] == [(0.02, (0.6, 0.7))] * 2
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)


@pytest.mark.parametrize("clip", [1e-3, 1e9])
def test_a_step_is_along_the_clipped_gradient_of_the_sum_of_all_terms(
    trainer: Callable[..., Trainer], clip: float
) -> None:
    """Twice in a row: no gradient is left from the step before."""
    model = trainer().model.eval()
    original = model.losses
    model.losses = lambda *batch: (terms := original(*batch)) | {"again": 2 * terms["cross_entropy"]}  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = torch.randint(4, (3, 6)), torch.ones(3, 6, dtype=torch.bool)
    whole = torch.autograd.grad(3 * original(*batch)["cross_entropy"], list(model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in whole]).norm()
    for _ in range(2):
        train_step(model, optimizer, batch, TrainingOptions(gradient_clip=clip))
        for parameter, gradient in zip(model.parameters(), whole, strict=True):
            torch.testing.assert_close(parameter.grad, gradient * min(1.0, clip / norm), rtol=1e-4, atol=1e-8)


def test_sgd_is_the_step_written_by_hand() -> None:
    """Three steps with momentum and decay. Vectors do not decay."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    options = TrainingOptions(optimizer="sgd", momentum=0.8, learning_rate=0.1, weight_decay=0.3)
    optimizer = make_optimizer(model, options)  # type: ignore[arg-type]
    x, expected = torch.randn(4, 3).double(), [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(p) for p in expected]
    for _ in range(3):
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        for i, (decay, parameter) in enumerate(zip((0.3, 0.0), model.parameters(), strict=True)):
            velocity[i] = 0.8 * velocity[i] + parameter.grad + decay * expected[i]  # type: ignore[operator]
            expected[i] = expected[i] - 0.1 * velocity[i]
        optimizer.step()
        for found, right in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(found.detach(), right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({"momentum": 0.5}, "optimizer adamw"),
        ({"optimizer": "sgd", "beta1": 0.5}, "optimizer sgd"),
        ({"optimizer": "sgd", "beta2": 0.5}, "optimizer sgd"),
        ({"schedule": "constant", "final_learning_rate": 0.2}, "schedule constant"),
        ({"schedule": "plateau", "final_learning_rate": 0.2}, "schedule plateau"),
        ({"plateau_patience": 3}, "schedule cosine"),
        ({"schedule": "constant", "plateau_factor": 0.1}, "schedule constant"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, object], needs: str) -> None:
    with pytest.raises(UserError, match=rf"^training option: \w+ has no effect with the {needs}$"):
        resolve_training(Recency, options)


def test_times_of_evaluation_have_no_effect_on_a_plateau_schedule() -> None:
    class Own(Recency):
        training_defaults: ClassVar = {"schedule": "plateau"}

    for cls, settings in ((Recency, {"schedule": "plateau", "evaluations": 50}), (Own, {"evaluations": 10})):
        with pytest.raises(UserError, match=r"^training option: evaluations has no effect with the schedule plateau: "):
            resolve_training(cls, settings)
    assert resolve_training(Own, {"schedule": "cosine", "evaluations": 50}).evaluations == 50


@pytest.mark.parametrize("value", ["x" * 2001, "two\nlines"])
def test_an_option_that_no_result_can_hold_is_refused(value: str) -> None:
    class Named(Recency):
        class Options(Recency.Options):
            note: str = ""

    with pytest.raises(UserError, match=r"^option note: a string (of 2,001 characters|with characters that are not)"):
        resolve_settings(Named, {"note": value})


def test_a_default_without_effect_is_left_out() -> None:
    class Own(Recency):
        training_defaults: ClassVar = {"schedule": "plateau", "plateau_patience": 3}

    assert resolve_training(Own, {}).plateau_patience == 3
    assert resolve_training(Own, {"schedule": "cosine"}) == resolve_training(Recency, {})
