"""Typed settings: what a number may be written as, and that a boolean is none."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import pydantic
import pytest

from regbench.config import OF_TRAINING, parted
from regbench.models.build import resolve_options
from regbench.models.mixer import Mixer, Options
from regbench.training.options import TrainingOptions, resolve_training
from regbench.utils.errors import UserError
from regbench.utils.registry import ARCHITECTURE, entries, load


class Many(Mixer):
    class Options(Options):
        flag: bool = False
        maybe: bool | None = None
        mode: Literal["a", True] = "a"
        width: int | None = None
        sizes: tuple[Annotated[int, pydantic.Field(ge=1)], ...] = ()
        flags: tuple[bool, ...] = ()
        anything: Any = None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": True}, "option: width: true, false"),
        ({"sizes": [2, True]}, "option: sizes: true, false"),
        ({"ngram_heads": [True]}, "option: ngram_heads: true, false"),
        ({"flag": 1}, "option: flag: give true or false (given 1)"),
        ({"maybe": "true"}, "option: maybe: give true or false (given 'true')"),
        ({"flags": [True, 0]}, "option: flags: give true or false"),
        ({"dropout": float("nan")}, "option: dropout: input should be"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    """Beside what tests/cli/test_bad_input.py gives with `--set`."""
    with pytest.raises(UserError) as caught:
        resolve_options(Many, settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_in_an_architectures_own_defaults_is_not_blamed_on_the_settings() -> None:
    class Misspelt(Many):
        training_defaults = MappingProxyType({"lr": 1e-3})

    with pytest.raises(
        UserError, match="training_defaults of Misspelt: unknown key 'lr'; did you mean 'learning_rate'?"
    ):
        resolve_training(Misspelt, {"batch_size": 8})

    class Listed(Many):
        training_defaults: ClassVar[Any] = ["learning_rate"]

    with pytest.raises(UserError, match="training_defaults of Listed is a dictionary such as .*, not list"):
        resolve_training(Listed, {})


@pytest.mark.parametrize(
    ("default", "message"), [(float("inf"), "should be a finite number"), (2.0, "should be less than 1")]
)
def test_a_default_is_held_to_what_its_field_says(default: float, message: str) -> None:
    """Else a whole training ends in a result that cannot be written, or read again."""

    class Defaulted(Many):
        class Options(Options):
            decay: float = pydantic.Field(default=default, lt=1 if default == 2.0 else None)

    with pytest.raises(UserError, match=f"option: decay: .*{message}"):
        resolve_options(Defaulted, {})


def test_a_boolean_is_taken_where_the_type_says_so() -> None:
    given = {"flag": True, "maybe": True, "mode": True, "flags": (True, False), "anything": True}
    options = resolve_options(Many, given)
    assert {key: getattr(options, key) for key in given} == given
    heads = resolve_options(Many, {"ngram_heads": [1, 2], "ngram_after": [2], "ngram_mlp": True})
    assert (heads.ngram_heads, heads.ngram_after, heads.ngram_mlp) == ((1, 2), (2,), True)


def test_numbers_may_be_written_as_yaml_reads_them() -> None:
    """It reads 1e-3 as text."""
    assert resolve_training(Many, {"learning_rate": "1e-3", "batch_size": 8.0}).learning_rate == 1e-3


def test_settings_are_split_by_what_they_are_of() -> None:
    assert parted({"d_model": 8, "training.epochs": 2}, OF_TRAINING) == ({"epochs": 2}, {"d_model": 8})


@pytest.mark.parametrize("name", entries(ARCHITECTURE))
def test_every_built_in_reads_its_own_options_back(name: str) -> None:
    """As results keep them: what they say of n-gram heads that are not there is no error."""
    cls = load(ARCHITECTURE, name)
    assert resolve_options(cls, resolve_options(cls, {}).model_dump(mode="json")) == resolve_options(cls, {})
    assert isinstance(resolve_training(cls, {}), TrainingOptions)
