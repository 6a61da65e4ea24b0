"""The command of an entry, printed from its configuration."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regbench.cli.arguments import read_settings
from regbench.config import Config, read_config, write_config
from regbench.leaderboard.claim import RunFolder
from regbench.leaderboard.entry import canonical, command_of
from regbench.utils.guard import Refused
from tests.leaderboard.conftest import Made


def test_a_command_says_what_is_not_the_default() -> None:
    config = Config(track="pfa-small-v1", architecture="mine.py:Mixer", seeds=(0, 1, 2))
    assert command_of(config) == "regbench run --arch mine.py:Mixer --track pfa-small-v1 --seed 0 1 2"
    config = Config(
        track="t-v1",
        architecture="gla",
        settings={"training.learning_rate": 1e-05, "ngram_heads": [1, 2]},
        trials=3,
        backend="naive",
        device="cpu",
    )
    assert command_of(config) == (
        "regbench run --arch gla --track t-v1 --seed 0 --set 'ngram_heads=[1, 2]' --set training.learning_rate=1.0e-05 "
        "--trials 3 --backend naive --device cpu"
    )


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
def test_the_command_line_reads_any_setting_as_it_was(own: dict[str, Any]) -> None:
    words = shlex.split(command_of(Config(track="t-v1", architecture="lstm", settings=own)))
    read = read_settings([words[i + 1] for i, word in enumerate(words) if word == "--set"])
    assert canonical(read) == canonical(own)  # 1 is not 1.0, nor true


def test_a_run_folder_gives_its_configuration_without_folders(lstm: Made, stranger: Made) -> None:
    assert lstm.entry.configuration == RunFolder(lstm.run).config.model_copy(update={"track": "tiny-v1"})
    assert stranger.entry.configuration.architecture == "my_average.py"
    assert str(stranger.source) == RunFolder(stranger.run).config.architecture


def test_changes_of_the_task_that_change_nothing_are_not_in_an_entry(lstm: Made, tmp_path: Path) -> None:
    folder = shutil.copytree(lstm.run, tmp_path / "run")
    config = read_config(folder / "config.yaml")
    write_config(folder, config.model_copy(update={"track": "tiny-v1?max_states=4"}))
    assert RunFolder(folder).configuration.track == "tiny-v1"


@pytest.mark.parametrize("text", ["", "track: t-v1", "track: t-v1\narchitecture: lstm\nextra: 1", "a: [", "- 1"])
def test_a_configuration_is_checked(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("track: t-v1\narchitecture: lstm\nseeds: [0, 1]\n")
    assert RunFolder(tmp_path).config.seeds == (0, 1)
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(Refused, match=r"config\.yaml"):
        RunFolder(tmp_path).config  # noqa: B018
