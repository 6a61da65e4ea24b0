"""Hybrids: their layers are the mixers of the list with the options that are set, and what cannot be is refused in one line."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import architectures.hybrid
from architectures.gated_deltanet import GatedDeltaNet
from architectures.hybrid import Hybrid
from architectures.mamba2 import Mamba2
from architectures.transformer import Transformer
from papers.cost import stream_bytes
from regbench.checks.architecture import CONTRACT
from regbench.checks.contract import examine
from regbench.models.build import build, resolve_options
from regbench.models.mixer import Mixer
from regbench.models.state_size import state_at
from regbench.tasks.base import TokenIO
from tests.helpers.mixers import MIXERS
from tests.helpers.subjects import subject_of

IO = TokenIO(vocab_size=5, separator=4, max_length=80, names=("a", "b", "c", "d", "|"))
OWN = '''"""The mean of the past."""
import torch
import regbench


class Mean(regbench.Mixer):
    class Options(regbench.Options):
        scale: float = 1.0

    def advance(self, x, state):
        total, count = state
        steps = count + torch.arange(1, x.shape[1] + 1, device=x.device)
        sums = total[:, None] + x.cumsum(1)
        return self.options.scale * sums / steps[:, None], (sums[:, -1], steps[-1])

    def init_state(self, batch, device=None, dtype=None):
        return torch.zeros(batch, self.options.d_model, device=device, dtype=dtype), torch.zeros((), dtype=torch.long)
'''


def make(**options: Any) -> Any:
    torch.manual_seed(0)
    return build(Hybrid, resolve_options(Hybrid, {"d_model": 16, **options}), IO)


def mixers_of(model: Any) -> list[Mixer]:
    return [block.mixer for block in model.blocks]


def test_its_layers_are_those_of_the_list() -> None:
    kinds = [type(mixer) for mixer in mixers_of(make(n_layers=9))]
    assert kinds == 2 * [*3 * [GatedDeltaNet], Transformer] + [GatedDeltaNet]


def test_each_mixer_has_its_defaults_and_what_is_set_for_it() -> None:
    model = make(mixers="mamba2,transformer", **{"transformer.window": 7, "transformer.positions": "none"})
    first, second, *_ = (mixer.options for mixer in mixers_of(model))
    assert (first.n_heads, first.d_model, first.n_layers) == (1, 16, 4)
    assert (second.n_heads, second.window) == (8, 7)
    assert model.positions is None
    assert {mixer.options.n_heads for mixer in mixers_of(make(mixers="mamba2,transformer", n_heads=2))} == {2}
    four = make(mixers="mamba2,transformer", n_heads=2, **{"mamba2.n_heads": 4})
    assert [mixer.options.n_heads for mixer in mixers_of(four)] == [4, 2, 4, 2]


def test_one_mixer_twice_under_names_of_ones_own() -> None:
    model = make(mixers="local=transformer, local=transformer, transformer", n_layers=3, **{"local.window": 4})
    assert [mixer.options.window for mixer in mixers_of(model)] == [4, 4, 0]


@pytest.mark.parametrize("cls", [Mamba2, Transformer])
def test_a_hybrid_of_one_mixer_is_that_mixer_on_the_backbone(cls: type[Mixer]) -> None:
    """The same weights from one seed, and the same outputs to the bit."""
    name = cls.__module__.rpartition(".")[2]
    torch.manual_seed(0)
    plain = build(cls, resolve_options(cls, {"d_model": 16, "n_layers": 2}), IO)
    hybrid = make(mixers=name, n_layers=2)
    tokens = torch.randint(5, (2, 33), generator=torch.Generator().manual_seed(1))
    assert torch.equal(hybrid(tokens), plain(tokens))
    assert hybrid.state_bytes() == plain.state_bytes()


def test_its_state_is_that_of_its_layers() -> None:
    fixed = make(mixers="gated_deltanet,transformer", n_layers=2, **{"transformer.window": 33})
    alone = [mixer.state_bytes(mixer.options) for mixer in mixers_of(fixed)]
    assert fixed.state_bytes() == sum(alone) == stream_bytes(fixed, torch.zeros(1, 40, dtype=torch.long))  # type: ignore[arg-type]
    grows = make(
        mixers="a=transformer,b=transformer",
        n_layers=2,
        **{"a.window": 33, "a.positions": "rotary", "b.positions": "rotary"},
    )
    assert grows.state_bytes() is None
    token = 4 * 2 * 16
    assert state_at(grows.eval()) == {"128": token * (32 + 128), "1024": token * (32 + 1024)}


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        {"mixers": "lstm,rwkv,transformer", "n_layers": 3, "transformer.extra_ngram_heads": [1]},
        {"mixers": "mamba,local=transformer", "n_layers": 2, "local.window": 5, "ngram_heads": [1], "short_conv": 3},
    ],
)
def test_the_contract_holds(options: dict[str, Any]) -> None:
    io = TokenIO(vocab_size=5, separator=4, max_length=48, names=("a", "b", "c", "d", "|"))
    subject = subject_of(Hybrid, io, d_model=16, **options)
    outcomes = examine(subject, [check for check in CONTRACT if check.__name__ != "overfits"])
    assert {o.check: (o.fault, o.note) for o in outcomes if o.fault or o.note} == {}


def test_its_source_is_that_of_every_mixer() -> None:
    """A run of a hybrid would otherwise go on, or an entry be verified, with another mixer than it began with."""
    tree = ast.parse(inspect.getsource(architectures.hybrid))
    named = [n.names for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "architectures"]
    assert sorted(alias.name for names in named for alias in names) == MIXERS


def test_a_mixer_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mean.py"
    file.write_text(OWN, encoding="utf-8")
    options = resolve_options(Hybrid, {"mixers": f"{file},lstm", "mean.scale": 3})
    model = build(Hybrid, options, IO)
    assert [type(mixer).__name__ for mixer in mixers_of(model)] == ["Mean", "LSTM", "Mean", "LSTM"]
    assert mixers_of(model)[0].options.scale == 3.0
    assert options.model_dump(mode="json")["mean.scale"] == 3
    assert Hybrid.Options.model_validate_json(options.model_dump_json()) == options
    file.write_text(OWN + "\n# changed\n", encoding="utf-8")
    assert resolve_options(Hybrid, {"mixers": f"{file},lstm", "mean.scale": 3}) != options, "a resumed run is refused"
