"""Fast and slow activations: without its terms the transformer; samples, priors and a given y; what its analysis measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from architectures.cgt.losses import continuity, diversity
from architectures.fast_slow import FastSlow
from architectures.transformer import Transformer
from papers.cgt.modes import MODES
from papers.cgt.prompts import specialise
from papers.cgt.study import study
from regbench.analysis.trained import Trained
from regbench.checks.architecture import CONTRACT
from regbench.checks.contract import examine
from regbench.checks.training import overfits
from regbench.models.build import build, resolve_options
from regbench.models.model import shift_in
from regbench.tasks.base import IO, TokenIO, VectorIO
from regbench.tracks import load_track
from regbench.utils.errors import UserError
from tests.helpers.subjects import subject_of

TOKENS = TokenIO(vocab_size=5, separator=4, max_length=36, names=("a", "b", "c", "d", "|"))
VECTORS = VectorIO(d_in=3, d_out=2, max_length=36)
TINY = {"d_model": 12, "d_y": 4, "n_heads": 2}
ALL = {"beta": 0.1, "beta_x": 0.2, "w_p": 0.1, "aux_share": 0.5, "aux_context": 4, "aux_y": "context"}


def make(io: IO = TOKENS, **settings: Any) -> FastSlow:
    torch.manual_seed(0)
    return FastSlow(FastSlow.Options(**{**TINY, **settings}), io).eval()


def some_tokens(batch: int = 2, length: int = 11) -> Tensor:
    return torch.randint(5, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("io", "settings"), [(TOKENS, ALL), (VECTORS, ALL | {"positions": "rotary"})])
def test_it_keeps_the_contract_with_every_term(io: IO, settings: dict[str, Any]) -> None:
    subject = subject_of(FastSlow, io, **{**TINY, **settings})
    checks = [check for check in CONTRACT if check is not overfits and check.__name__ != "compiles"]
    assert [(o.check, o.fault) for o in examine(subject, checks) if o.fault or o.note] == []


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_without_its_terms_it_is_the_transformer(positions: str) -> None:
    model = make(positions=positions, w_c=0, w_d=0)
    options = resolve_options(Transformer, {"d_model": 12, "n_heads": 2, "n_layers": 3, "positions": positions})
    other = build(Transformer, options, TOKENS)
    names = {
        "reader.embedding": "embedding",
        "reader.positions": "positions",
        "attention_norm": "mixer_norm",
        "mlp_norm": "feed_forward_norm",
        "mlp": "feed_forward",
        "attention": "mixer",
    }
    weights = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in names.items():
            if ours in name:
                name = name.replace(ours, theirs)
                break
        weights[name] = weight
    other.load_state_dict(weights)
    tokens, scored = some_tokens(), torch.ones(2, 11, dtype=torch.bool)
    torch.testing.assert_close(model(tokens), other(tokens))
    (ours,), (theirs,) = model.train().losses(tokens, scored).values(), other.losses(tokens, scored).values()
    torch.testing.assert_close(ours, theirs)


def test_the_regularisers_are_those_of_y_at_block_l() -> None:
    model, tokens = make(w_c=0.3, w_d=0.2), some_tokens(3)
    scored = torch.ones_like(tokens, dtype=torch.bool)
    found = model.train().losses(tokens, scored)
    assert list(found) == ["cross_entropy", "continuity", "diversity"]
    y = model.hidden_states(tokens)[1][..., 8:]
    torch.testing.assert_close(model.context(tokens), y)
    torch.testing.assert_close(found["continuity"], 0.3 * continuity(y, scored))
    torch.testing.assert_close(found["diversity"], 0.2 * diversity(y, scored))


def test_training_draws_what_has_a_prior_and_evaluation_takes_the_mean() -> None:
    tokens, plain = some_tokens(), make()
    for settings, drawn in (({"beta": 0.1}, (False, True)), ({"beta_x": 0.1}, (True, False)), (ALL, (True, True))):
        model = make(**settings)
        torch.testing.assert_close(model(tokens), plain(tokens))  # the same weights, and no noise
        with torch.no_grad():
            (x, summary), (again, other) = (model.train()._below(shift_in(tokens, 4)) for _ in range(2))
        assert (not torch.equal(x, again), not torch.equal(summary.y, other.y)) == drawn


def test_the_prior_of_x_is_white() -> None:
    model, tokens = make(beta_x=0.2, gp_scale=1.5, w_c=0, w_d=0), some_tokens()
    scored = torch.ones_like(tokens, dtype=torch.bool)
    found = model.train().losses(tokens, scored)
    assert list(found) == ["cross_entropy", "divergence_x"]
    _, summary = model._below(shift_in(tokens, 4))
    assert summary.x_mean is not None
    assert summary.x_log_variance is not None
    encoder = torch.distributions.Normal(summary.x_mean, (summary.x_log_variance / 2).exp())
    expected = torch.distributions.kl_divergence(encoder, torch.distributions.Normal(0.0, 1.5)).sum() / scored.sum()
    torch.testing.assert_close(found["divergence_x"], 0.2 * expected)


def test_a_given_y_takes_the_place_of_its_own() -> None:
    model, tokens = make(), some_tokens()
    torch.testing.assert_close(model.with_context(tokens, model.context(tokens)), model(tokens))
    y = torch.randn(2, 4, requires_grad=True)
    out = model.with_context(tokens, y)
    repeated = y[:, None].expand(-1, 11, -1)
    torch.testing.assert_close(out, model.with_context(tokens, repeated))
    out.square().sum().backward()
    assert y.grad is not None
    assert (y.grad != 0).all()


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_a_stream_that_holds_y(rate: float) -> None:
    model, tokens = make(), some_tokens()
    held, computed, used = torch.randn(2, 4), model.context(tokens), []
    now = held
    for t in range(11):
        now = (1.0 - rate) * now + rate * computed[:, t]
        used.append(now)
    expected = model.with_context(tokens, torch.stack(used, dim=1))
    state, inputs = model.init_state(2, held, rate), shift_in(tokens, 4)
    for t in range(11):
        logits, state = model.step(inputs[:, t], state)
        torch.testing.assert_close(logits, expected[:, t], atol=1e-5, rtol=1e-4)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """An untrained model, on two tasks of four examples."""
    content = {
        "name": "two-tasks-v1",
        "task": "arithmetic",
        "parameters": {"n_tasks": 2, "n_examples": 4, "n_digits": 1},
        "splits": {"train": 2, "validation": 16, "test": 2, "seed": 0},
        "budget": {"train_tokens": 100},
        "main_score": "last_two_accuracy",
    }
    (tmp_path / "two-tasks-v1.yaml").write_text(yaml.safe_dump(content))
    track = load_track(str(tmp_path / "two-tasks-v1.yaml"))
    return Trained(Path("run"), "fast_slow", 0, track, make(track.task.io, beta=0.1, beta_x=0.1))


@pytest.mark.ci
def test_the_analysis_of_summaries_is_its_too(trained: Trained, tmp_path: Path) -> None:
    seen = study(trained, tmp_path, split="validation", limit=16, rate=0.1)
    found = seen.findings
    assert set(found["after_the_prompt"]) == set(MODES)
    assert list(found["variation_by_example"]) == ["0", "1", "2", "3"]
    assert set(found["linear_probe"]["targets"]["a"]) == {"error", "r_squared", "fast_part_error"}
    assert sum(found["spectrum"]["power"]) == pytest.approx(1.0)
    assert 0 < found["spectrum"]["at_multiples_of_contexts"] < 1
    assert found["encoder"]["divergence"] > found["encoder"]["least"] > 0
    assert {path.name for path in tmp_path.glob("*.png")} >= {"context.png", "linear_probe.png"}
    for words in ("spectrum of y", "encoder of y", "fit, fast part", "within each example"):
        assert any(what.startswith(words) for what in seen.lines)


def test_there_are_no_weights_to_specialise(trained: Trained) -> None:
    with pytest.raises(UserError, match="'fast_slow' has no weights that y makes, so none can be specialised"):
        specialise(trained, torch.tensor([0, 1, 0]))
