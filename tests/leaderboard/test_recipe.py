"""The command of an entry: written from a run's configuration, read back, and nothing else is taken for one."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regbench.cli.arguments import read_settings
from regbench.config import Config
from regbench.leaderboard.guard import Refused
from regbench.leaderboard.recipe import Recipe, parse_config


def test_a_command_says_what_is_not_the_default() -> None:
    config = Config(track="/home/me/pfa-small-v1.yaml", architecture="/home/me/mine.py:Mixer", seeds=(0, 1, 2))
    assert (
        str(Recipe.of(config, "pfa-small-v1")) == "regbench run --arch mine.py:Mixer --track pfa-small-v1 --seed 0 1 2"
    )
    config = Config(
        track="t-v1",
        architecture="gla",
        settings={"ngram_heads": [1, 2], "training.learning_rate": 1e-05},
        trials=3,
        backend="naive",
        device="cpu",
    )
    assert str(Recipe.of(config, "t-v1")) == (
        "regbench run --arch gla --track t-v1 --seed 0 --set 'ngram_heads=[1,2]' --set training.learning_rate=1.0e-05 "
        "--trials 3 --backend naive --device cpu"
    )


def test_the_parts_of_a_recipe() -> None:
    recipe = Recipe("dir/mine.py:Mixer", "t-v1", (0,), {"d_model": 8, "training.epochs": 2})
    assert recipe.architecture_name == "Mixer"
    assert recipe.own_settings == {"d_model": 8}
    assert recipe.training_settings == {"epochs": 2}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12).filter(str.isprintable),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(["d_model", "ngram_heads", "training.epochs"]), values, max_size=3))
def test_any_setting_comes_back_as_it_was(own: dict[str, Any]) -> None:
    recipe = Recipe("lstm", "t-v1", (0, 1, 2), own)
    assert Recipe.parse(str(recipe)) == recipe
    assert str(Recipe.parse(str(recipe)).settings) == str(own)  # 1 is not 1.0, nor true


def test_settings_are_read_as_the_command_line_reads_them() -> None:
    own = {"a": [1, 2], "b": 1e-05, "c": "auto", "d": None, "e": True, "f": "true", "g": 0.5}
    command = str(Recipe("lstm", "t-v1", (0,), own))
    words = shlex.split(command)
    assert read_settings([words[i + 1] for i, word in enumerate(words) if word == "--set"]) == own


@pytest.mark.parametrize(
    "command",
    [
        "",
        "regbench",
        "regbench run",
        "regbench submit x",
        "rm -rf /",
        "regbench run --arch lstm --track t --seed 0; rm -rf /",
        "regbench run --arch lstm --track t --seed 0 --out /etc",
        "regbench run --arch lstm --track t --seed x",
        "regbench run --arch lstm --track t --seed 00",
        "regbench  run --arch lstm --track t --seed 0",
        "regbench run --track t --arch lstm --seed 0",
        "regbench run --arch lstm --track t --seed 0 --trials 1",
        "regbench run --arch lstm --track t --seed 0 --set x=.nan",
        "regbench run --arch lstm --track t --seed 0 --set 'x=&a [*a]'",
        "regbench run --arch lstm --track t --seed 0 --set 'x=!!python/name:os.system'",
        "regbench run --arch lstm --track t --seed 0 --set x=2020-01-01",
        "regbench run --arch 'lstm",
        "regbench run --arch lstm extra --track t --seed 0",
    ],
)
def test_anything_else_is_refused(command: str) -> None:
    with pytest.raises(Refused) as caught:
        Recipe.parse(command)
    assert str(caught.value).isprintable()


def test_a_configuration_is_checked() -> None:
    assert parse_config(b"track: t-v1\narchitecture: lstm\nseeds: [0, 1]\n", "config.yaml").seeds == (0, 1)
    for text in (
        b"",
        b"track: t-v1",
        b"track: t-v1\narchitecture: lstm\nextra: 1",
        b"a: [",
        b"track: &x t\narchitecture: *x",
    ):
        with pytest.raises(Refused, match="config.yaml"):
            parse_config(text, "config.yaml")
