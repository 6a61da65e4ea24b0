"""The simplified transformer: its equations one sum at a time, a model built by hand, and what its memories recall."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from architectures.associative_memory import AssociativeMemory, fixed_triggers
from regbench.checks.training import trains
from regbench.models.build import build, resolve_options
from regbench.models.model import parameter_count, shift_in
from regbench.tasks.base import Splits, TokenIO
from regbench.tasks.bigram import Bigram, BigramParameters
from regbench.tasks.bigram_chain import bigrams
from regbench.training.options import resolve_training
from regbench.training.step import make_optimizer, train_step
from regbench.utils.errors import UserError
from tests.helpers.subjects import subject_of

OUTPUTS = Bigram(BigramParameters(length=65, triggers="fixed", predict="outputs"))
SHORT = Bigram(BigramParameters(n_symbols=12, n_triggers=3, length=20, triggers="fixed", predict="outputs"))


def made(task: Bigram = SHORT, **settings: Any) -> AssociativeMemory:
    torch.manual_seed(0)
    model = build(AssociativeMemory, resolve_options(AssociativeMemory, {"d_model": 12} | settings), task.io)
    assert isinstance(model, AssociativeMemory)
    return model


def batch(task: Bigram, count: int) -> tuple[Tensor, Tensor]:
    instances = task.generate(Splits(train=count, validation=1, test=1, seed=0), "train")
    return torch.from_numpy(instances.tokens).long(), torch.from_numpy(instances.scored)


def by_hand(task: Bigram, d: int, every_symbol: bool) -> AssociativeMemory:
    """The model of section 2: orthonormal embeddings, and the three memories as sums over their pairs."""
    model = made(task, d_model=d, scale_of="unit")
    N, T = task.io.vocab_size, task.io.max_length
    rows = torch.linalg.qr(torch.randn(d, d)).Q
    model.w_e, model.p, model.w_u = rows[:N], rows[N : N + T], rows[N + T : 2 * N + T]
    queries = range(N - 1) if every_symbol else fixed_triggers(task).tolist()
    with torch.no_grad():
        for memory in (model.k1, model.k2, model.o2):
            memory.zero_()
        for t in range(1, T):
            model.k1 += 30 * torch.outer(model.p[t], model.p[t - 1])
        for k in queries:
            model.k2 += 30 * torch.outer(model.w_e[k], model.o1 @ model.v1 @ model.w_e[k])
        for k in range(N - 1):
            model.o2 += torch.outer(model.w_u[k], model.v2 @ model.w_e[k])
    return model


def accuracy(model: AssociativeMemory, tokens: Tensor, scored: Tensor) -> float:
    with torch.no_grad():
        return float((model.eval()(tokens).argmax(-1) == tokens)[scored].double().mean())


@pytest.mark.ci
@pytest.mark.parametrize("every_symbol", [False, True], ids=["triggers", "all symbols"])
def test_a_model_built_by_hand_recalls_and_predicts_without_training(every_symbol: bool) -> None:
    """This fixes every sign, every transpose and every shift."""
    tokens, scored = batch(OUTPUTS, 400)
    model = by_hand(OUTPUTS, 256, every_symbol)
    assert {v for name, v in model.measured(OUTPUTS).items() if name.startswith("recall")} == {1.0}
    assert accuracy(model, tokens, scored) > 0.995
    first, second = model.attention_weights(tokens[:20])
    before = torch.stack([first[:, 0, t, t - 1] for t in range(1, tokens.shape[1])], 1)
    assert before.mean() > 0.99
    inputs = shift_in(tokens[:20], OUTPUTS.io.separator)
    follows = torch.zeros_like(second[:, 0])
    for t in range(2, tokens.shape[1]):  # places s whose predecessor is the symbol at t
        follows[:, t, 1 : t + 1] = (inputs[:, :t] == inputs[:, t : t + 1]).float()
    assert (second[:, 0] * follows).sum(-1)[scored[:20]].mean() > 0.95


def test_a_memory_with_two_pairs_exchanged_has_forgotten_two() -> None:
    model = by_hand(OUTPUTS, 256, True)
    with torch.no_grad():
        a, b = model.w_e[10].clone(), model.w_e[11].clone()
        for key, other, v in ((a, b, model.w_u[10]), (b, a, model.w_u[11])):
            model.o2 += torch.outer(v, model.v2 @ other) - torch.outer(v, model.v2 @ key)
    assert not set(fixed_triggers(OUTPUTS)) & {10, 11}
    assert model.measured(OUTPUTS)["recall.o2"] == pytest.approx(1 - 2 / 59)


def test_random_memories_recall_what_chance_gives() -> None:
    task = Bigram(BigramParameters(length=65, predict="outputs"))  # random triggers: all symbols are asked for
    pairs = {"o2": 64, "k2": 64, "k1": 64, "k1_near": 63}
    found: dict[str, list[float]] = {name: [] for name in pairs}
    for seed in range(20):
        torch.manual_seed(seed)
        figures = AssociativeMemory(resolve_options(AssociativeMemory, {"d_model": 64}), task.io).measured(task)
        for name in pairs:
            found[name].append(figures[f"recall.{name}"])
            assert figures[f"chance.{name}"] == 1 / pairs[name]
    for name, count in pairs.items():
        chance, trials = 1 / count, 20 * count
        assert abs(np.mean(found[name]) - chance) < 3 * (chance * (1 - chance) / trials) ** 0.5


def test_the_divergence_is_that_of_a_distribution_from_the_table() -> None:
    model = made(feed_forward=True)
    table = bigrams(12, 0)[0]
    others = [k for k in range(12) if k not in fixed_triggers(SHORT)]
    with torch.no_grad():
        logits = (model.w_e[others] @ model.f.T @ model.w_u[:12].T).double().numpy()
    guess = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = np.mean(
        [sum(p * np.log(p / q) for p, q in zip(table[k], guess[i, :12], strict=True)) for i, k in enumerate(others)]
    )
    assert model.measured(SHORT)["divergence.f"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_layers": 1},
        {"feed_forward": True, "scale_of": "unit", "positions": "sinusoids", "train_embeddings": True},
        {"rank": 5, "feed_forward": True, "hidden": 7},
        {"n_heads": 2, "n_layers": 3, "rank": 3},
    ],
    ids=["two layers", "one layer", "with W_F", "factorised, MLP", "heads and layers"],
)
def test_it_is_the_sums_of_the_paper(settings: dict[str, Any]) -> None:
    """Three nested loops, over t, s and d."""
    model = made(**settings).double()
    tokens, _ = batch(SHORT, 3)
    d, layers = model.options.d_model, model.options.n_layers
    scale = 1.0 if model.options.scale_of == "unit" else d**-0.5
    one = {n: v.detach().numpy() for n, v in model.state_dict().items()}
    found = model(tokens).detach().numpy()
    last = "o3" if layers == 3 else "o2"
    for row, inputs in enumerate(shift_in(tokens, SHORT.io.separator).tolist()):
        x = [one["w_e"][z] + one["p"][t] for t, z in enumerate(inputs)]
        for layer in range(1, layers + 1):
            K, V, W = (
                one[name].reshape(model.options.n_heads, -1, d)
                for name in (f"k{layer}", f"v{layer}", f"o{layer}" if layer < layers else last)
            )
            if "rank" in settings:
                K = one[f"q{layer}"].reshape(K.shape).swapaxes(1, 2) @ K
            after = []
            for t in range(len(x)):
                added = np.zeros(d)
                for head in range(model.options.n_heads):
                    weights = []
                    for s in range(t + 1):
                        score = 0.0
                        for i in range(d):
                            score += x[t][i] * float(K[head, i] @ x[s])
                        weights.append(np.exp(score * scale))
                    looked = sum(w * x[s] for s, w in enumerate(weights)) / sum(weights)
                    added += W[head] @ (V[head] @ looked)
                after.append(x[t] + added)
            x = after
        if model.options.hidden:
            x = [part + one["f"] @ np.maximum(one["f_in"] @ part, 0.0) for part in x]
        elif model.options.feed_forward:
            x = [part + one["f"] @ part for part in x]
        for t, part in enumerate(x):
            np.testing.assert_allclose(found[row, t], one["w_u"] @ part, rtol=0, atol=1e-10)


def test_with_heads_and_layers_every_place_is_asked_for_its_recall() -> None:
    """The memories stand in head 2 of layers 1 and 3, and nowhere else."""
    simple, model = by_hand(OUTPUTS, 256, False), made(OUTPUTS, d_model=256, scale_of="unit", n_heads=2, n_layers=3)
    model.w_e, model.p, model.w_u = simple.w_e, simple.p, simple.w_u
    with torch.no_grad():
        for name in ("k1", "k2", "k3"):
            getattr(model, name).zero_()
        model.k1[1] = simple.k1
        model.v1[1], model.o1[1] = simple.v1, simple.o1
        model.k3[1] = simple.k2
    found = {name: value for name, value in model.measured(OUTPUTS).items() if name.startswith("recall")}
    assert {name for name, value in found.items() if value > 0.3} == {"recall.previous.1.2", "recall.match.3.2"}
    assert found["recall.previous.1.2"] == found["recall.match.3.2"] == 1.0
    assert len(found) == 2 * 2 + 2 * 2  # the last layer has no next one, the first none before it


def test_hidden_states_and_attention_weights_are_those_of_forward() -> None:
    model, (tokens, _) = made(feed_forward=True), batch(SHORT, 3)
    hidden, weights = model.hidden_states(tokens), model.attention_weights(tokens)
    torch.testing.assert_close(hidden[-1] @ model.w_u.T, model(tokens))
    assert [w.shape for w in weights] == [(3, 1, 20, 20)] * 2
    x = model._embed(tokens)
    torch.testing.assert_close(x + (weights[0][:, 0] @ x) @ (model.o1 @ model.v1).T, hidden[0])


@pytest.mark.parametrize(
    ("settings", "learn"),
    [
        ({}, {"k1", "k2", "o2"}),
        ({"n_layers": 1}, {"k1", "o2"}),
        ({"trained": ["o2"], "feed_forward": True}, {"o2", "f"}),
        ({"trained": ["k1"], "train_embeddings": True}, {"k1", "w_e", "p", "w_u"}),
        ({"trained": ["k1"], "rank": 4, "feed_forward": True, "hidden": 5}, {"q1", "k1", "f_in", "f"}),
        ({"n_layers": 3, "n_heads": 2}, {"k1", "k2", "k3", "o3"}),
    ],
)
def test_only_the_memories_asked_for_learn(settings: dict[str, Any], learn: set[str]) -> None:
    model = made(**settings)
    assert {name for name, _ in model.named_parameters()} == learn
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = resolve_training(AssociativeMemory, {})
    assert parameter_count(model) == sum(value.numel() for name, value in before.items() if name in learn)
    train_step(model, make_optimizer(model, options), batch(SHORT, 8), options)
    assert {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])} == learn


def test_a_memory_that_waits_learns_after_its_steps_also_across_a_kill() -> None:
    options, whole = resolve_training(AssociativeMemory, {}), made(max_wait={"k2": 2, "k1": 3})
    optimizer, data = make_optimizer(whole, options), batch(SHORT, 8)
    moved = {name: [] for name in ("k1", "k2", "o2")}
    for _ in range(5):
        before = {name: value.clone() for name, value in whole.state_dict().items()}
        train_step(whole.train(), optimizer, data, options)
        for name, steps in moved.items():
            steps.append(not torch.equal(before[name], whole.state_dict()[name]))
        whole.eval().losses(*data)  # a validation counts no step
    assert moved == {"o2": [True] * 5, "k2": [False] * 2 + [True] * 3, "k1": [False] * 3 + [True] * 2}
    assert int(whole.steps) == 5
    again = made(max_wait={"k2": 2, "k1": 3})
    again.load_state_dict(whole.state_dict())
    assert int(again.steps) == 5


def test_streaming_past_the_last_position_is_refused() -> None:
    model = AssociativeMemory(resolve_options(AssociativeMemory, {"d_model": 4}), TokenIO(3, 2, 2, ("a", "b", "|")))
    state = model.init_state(1)
    for _ in range(2):
        _, state = model.step(torch.tensor([0]), state)
    with pytest.raises(UserError, match="a sequence of 3 tokens is longer than the 2 positions this model has learned"):
        model.step(torch.tensor([0]), state)
    with pytest.raises(UserError, match="a sequence of 3 tokens is longer than the 2 positions this model has learned"):
        model(torch.zeros(1, 3, dtype=torch.long))


def test_the_contract_lets_a_memory_wait_and_no_other() -> None:
    subject = subject_of(AssociativeMemory, SHORT.io, max_wait={"k1": 5})
    assert trains(subject) is None
    model = made(max_wait={"k1": 5})
    waiting = [name for name, p in model.named_parameters() if getattr(p, "_learns_later", False)]
    assert waiting == ["k1"]
    model = made(max_wait={"k1": 5, "f": 5}, rank=4, feed_forward=True, hidden=5)
    waiting = {name for name, p in model.named_parameters() if getattr(p, "_learns_later", False)}
    assert waiting == {"q1", "k1", "f_in", "f"}
    model.train().losses(*batch(SHORT, 4))["cross_entropy"].backward()
    assert {name for name, p in model.named_parameters() if p.grad is None} == waiting
