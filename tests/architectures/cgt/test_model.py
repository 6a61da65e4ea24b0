"""CGT: who sees whom, the operators T against their definition, y by position, streams, tasks of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from architectures.cgt import ContextuallyGuided
from architectures.cgt.layers import Operator
from regbench.checks.architecture import CONTRACT
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.models.build import resolve_options
from regbench.models.model import parameter_count, shift_in
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.tracks import Track
from regbench.training.options import TrainingOptions
from regbench.training.trainer import Trainer
from regbench.utils.errors import UserError
from tests.helpers.subjects import subject_of

TOKENS = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))
VECTORS = VectorIO(d_in=3, d_out=2, max_length=36)
TINY = {"d_model": 8, "d_y": 4, "n_heads": 2, "y_heads": 2, "templates": 3, "rank": 2}
VARIANTS = [
    {},
    {"positions": "rotary", "mixing": "softmax", "mimetic": False, "n_layers": 2},
    {"beta": 0.1, "w_p": 0.1, "aux_context": 4, "aux_y": "context"},
    {"aux_share": 0.0, "w_c": 0.0, "w_d": 0.0, "moments": "positions", "w_p": 1.0, "y_layer": 1},
]


def make(io: IO = TOKENS, **settings: Any) -> ContextuallyGuided:
    torch.manual_seed(0)
    return ContextuallyGuided(ContextuallyGuided.Options(**{**TINY, **settings}), io).eval()


def some_tokens(batch: int = 2, length: int = 11) -> Tensor:
    return torch.randint(5, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "settings", [VARIANTS[0], *(pytest.param(settings, marks=pytest.mark.ci) for settings in VARIANTS[1:])]
)
@pytest.mark.parametrize("io", [TOKENS, VECTORS])
def test_it_keeps_the_contract_in_every_form(io: IO, settings: dict[str, Any]) -> None:
    subject = subject_of(ContextuallyGuided, io, **{**TINY, **settings})
    checks = [check for check in CONTRACT if check is not overfits and check.__name__ != "compiles"]
    assert [(o.check, o.fault) for o in examine(subject, checks) if o.fault or o.note] == []


def test_below_l_x_never_sees_y_and_y_sees_both() -> None:
    model = make(n_layers=3)
    own = {"x": [model.x_reader, *model.x_blocks[:2]], "y": [model.y_reader, *model.y_blocks, model.y_norm]}

    def reached(part: nn.Module) -> bool:
        grads = [p.grad for p in part.parameters()]
        return any(g is not None and bool((g != 0).any()) for g in grads)

    x, summary = model._below(shift_in(some_tokens(), 4))
    x.square().sum().backward(retain_graph=True)
    assert [reached(part) for part in own["x"]] == [True] * 3
    assert [reached(part) for part in own["y"]] == [False] * 4
    model.zero_grad()
    last = summary.y[:, -1]
    (last * torch.arange(last.shape[-1])).sum().backward()  # a plain sum of what is normalized has no gradient
    assert all(reached(part) for part in own["y"])
    assert all(reached(part) for part in own["x"])


def test_a_given_y_is_all_that_the_output_takes_from_the_stream_of_y() -> None:
    model = make()
    y = torch.randn(2, 4, requires_grad=True)
    model.with_context(some_tokens(), y).square().sum().backward()
    assert y.grad is not None
    assert (y.grad != 0).all()
    assert all(p.grad is None for part in (model.y_reader, model.y_blocks, model.y_norm) for p in part.parameters())


def test_y_is_computed_by_two_thirds_of_the_layers_as_in_the_papers() -> None:
    assert [make(n_layers=n).y_layer for n in (2, 3, 6, 8, 12)] == [1, 2, 4, 5, 8]
    assert make(n_layers=6, y_layer=5).y_layer == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"y_layer": 3}, r"y_layer \(3\) leaves no layer above it: n_layers is 3"),
        ({"d_y": 6, "y_heads": 4}, r"d_y \(6\) must be a multiple of y_heads \(4\)"),
        ({"n_heads": 3}, r"d_model \(8\) must be a multiple of n_heads \(3\)"),
        (
            {"aux_context": 36, "aux_y": "context"},
            r"aux_context \(36\) leaves nothing to predict after it: a sequence has 36",
        ),
        ({"aux_y": "context"}, "aux_y=context is aux_y=prefix where aux_context is 0: give aux_context too"),
        ({"aux_y": "tail"}, "aux_y=tail is aux_y=prefix where aux_context is 0"),
        (
            {"aux_share": 0, "y_smooth": 2},
            "y_smooth and y_shift do nothing where aux_share is 0, unless y_augment is both",
        ),
        ({"aux_share": 0, "y_shift": 1}, "y_smooth and y_shift do nothing where aux_share is 0"),
        ({"beta": 0.1, "gp_share": 0.2}, "gp_share is about gp_kernel=estimate, and the kernel is rbf"),
        ({"gp_kernel": "estimate", "gp_width": 0.2}, "gp_width is about gp_kernel=rbf, and the kernel is estimate"),
        ({"positions": "rotary", "d_model": 6, "n_heads": 2}, "rotary positions need an even head width, not 3"),
    ],
)
def test_options_that_do_not_fit_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**settings)


def test_a_y_of_one_number_is_refused() -> None:
    """Normalised it is always the same."""
    with pytest.raises(UserError, match="d_y"):
        resolve_options(ContextuallyGuided, {**TINY, "d_y": 1, "y_heads": 1})


def test_a_sequence_past_the_learned_positions_is_refused() -> None:
    with pytest.raises(UserError, match="a sequence of 37 tokens is longer than the 36 positions"):
        make()(torch.zeros(1, 37, dtype=torch.int64))


@pytest.mark.parametrize("mixing", ["tanh", "softmax"])
def test_the_operator_is_the_papers(mixing: Any) -> None:
    torch.manual_seed(0)
    d_x, d_y, rank, templates = 5, 3, 2, 4
    operator = Operator(d_x, d_y, rank, templates, mixing).double()
    x, y = torch.randn(2, 3, d_x).double(), torch.randn(2, 3, d_y).double()
    left = operator.left.weight.view(d_x, templates, rank)
    right = operator.right.weight.view(templates, rank, d_x)
    expected = torch.empty_like(x)
    for b in range(2):
        for t in range(3):
            s = operator.mix.weight @ y[b, t] + operator.mix.bias
            s = s.tanh() if mixing == "tanh" else s.exp() / s.exp().sum()
            big_l = sum(s[m] * left[:, m] for m in range(templates))
            big_r = sum(
                s[m] * torch.cat([right[m].T, operator.right.bias.view(templates, rank)[m][None]])
                for m in range(templates)
            )
            expected[b, t] = x[b, t] + big_l @ big_r.T @ torch.cat([x[b, t], torch.ones(1).double()])
            found = operator.matrices(y[b, t])
            torch.testing.assert_close(found, (big_l, big_r))
    torch.testing.assert_close(operator(x, y), expected)
    still = operator(x, y[:, :1])
    torch.testing.assert_close(still, operator(x, y[:, :1].expand(-1, 3, -1)))


def test_the_operators_have_the_parameters_of_the_formula_and_begin_near_the_identity() -> None:
    operator = Operator(112, 64, 4, 16, "tanh")
    assert parameter_count(operator) == 16 * 4 * (112 + 113) + 16 * 65
    x = torch.randn(4, 50, 112)
    for mixing in ("tanh", "softmax"):
        torch.manual_seed(0)
        moved = Operator(112, 64, 4, 16, mixing)(x, torch.randn(4, 50, 64)) - x  # type: ignore[arg-type]
        assert 0.005 < moved.norm() / x.norm() < 0.3


def test_a_model_without_the_bias_is_folded_too() -> None:
    model, tokens = make(operator_bias=False), some_tokens()
    y = model.summary(tokens[:1])
    torch.testing.assert_close(model.specialize(tokens[0])(tokens), model.with_context(tokens, y.expand(2, -1)))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_y_at_t_is_the_summary_of_what_stands_before_t(positions: str) -> None:
    model, tokens = make(positions=positions), some_tokens()
    y = model.context(tokens)
    for t in (1, 5, 10):
        torch.testing.assert_close(y[:, t], model.summary(tokens[:, :t]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_a_stream_that_holds_y_as_a_moving_average(rate: float) -> None:
    model, tokens = make(), some_tokens()
    held = torch.randn(2, 4, generator=torch.Generator().manual_seed(2))
    computed, used, now = model.context(tokens), [], held
    for t in range(tokens.shape[1]):  # 2024, Figure 13
        now = (1.0 - rate) * now + rate * computed[:, t]
        used.append(now)
    expected = model.with_context(tokens, torch.stack(used, dim=1))
    state, inputs = model.init_state(2, held, rate), shift_in(tokens, 4)
    for t in range(tokens.shape[1]):
        logits, state = model.step(inputs[:, t], state)
        torch.testing.assert_close(logits, expected[:, t], atol=1e-5, rtol=1e-4)
    if rate == 0.0:  # its keys and values are those of x alone
        assert state.state_bytes() == 4 * 2 * (2 * 3 * 8 * 11 + 4)
    else:
        assert state.state_bytes() == 4 * 2 * (2 * (3 * 8 + 2 * 4) * 11 + 4)


def test_a_rate_without_a_y_that_it_would_change_is_refused() -> None:
    with pytest.raises(UserError, match="rate 0.5 changes a given y, and none is given; pass y too"):
        make().init_state(2, rate=0.5)


def test_in_the_vae_form_training_draws_y_and_evaluation_takes_its_mean() -> None:
    model, tokens = make(beta=0.1), some_tokens()
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    torch.manual_seed(3)
    with torch.no_grad():
        _, summary = model._below(shift_in(tokens, 4))
    assert summary.mean is not None
    assert summary.log_variance is not None
    torch.manual_seed(3)
    noise = torch.randn(summary.mean.shape)
    torch.testing.assert_close(summary.y, summary.mean + (summary.log_variance / 2).exp() * noise)


def test_training_goes_on_where_nothing_is_scored(tiny: Track, tmp_path: Path) -> None:
    """Also in the first batch: then, too, all terms of the loss have their place in the log."""
    model = make(tiny.task.io)
    train = tiny.instances("train")
    options = TrainingOptions(batch_size=8, evaluations=2)
    folder = {"folder": tmp_path, "device": torch.device("cpu")}
    trainer = Trainer(model, train, tiny.instances("validation"), options, budget=3000, seed=0, **folder)  # type: ignore[arg-type]
    for step in (0, 2):
        trainer.train_split.scored[trainer.plan.rows(step)] = False
    trainer.run()
    assert trainer.progress.terms == ["cross_entropy", "auxiliary", "continuity", "diversity"]
