"""The choice of an op's form: explicit, recorded, refused in one line."""

from __future__ import annotations

import pytest
import torch

from regbench.errors import UserError
from regbench.ops.backend import Form, Op, use_backend

OP = Op(
    "example",
    {
        "gpu": Form("math:sin", ("cuda",)),
        "extra": Form("math:tan", ("cpu",), requires="no_such_package", install="pip install 'regbench[extra]'"),
        "fast": Form("math:cos", ("cpu",)),
        "naive": Form("math:exp", ("cpu", "cuda")),
    },
)
CPU = torch.device("cpu")


def test_auto_takes_the_first_that_runs_here() -> None:
    import math

    with use_backend("auto") as ran:
        assert OP.choose("auto", CPU) is math.cos
    assert ran == {"example": "fast"}


def test_an_explicit_choice_beats_the_enclosing_one() -> None:
    with use_backend("fast") as ran:
        OP.choose("naive", CPU)
    assert ran == {"example": "naive"}


def test_the_enclosing_choice_ends_with_its_block() -> None:
    with use_backend("naive"), use_backend("fast") as inner:
        OP.choose("auto", CPU)
    assert inner == {"example": "fast"}
    import math

    assert OP.choose("auto", CPU) is math.cos


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("fsat", "example has no backend 'fsat'; did you mean 'fast'"),
        ("gpu", "backend 'gpu' of example does not run on cpu; there: extra, fast, naive"),
        ("extra", r"backend 'extra' of example needs no_such_package: pip install 'regbench\[extra\]'"),
    ],
)
def test_what_cannot_run_is_refused(backend: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        OP.choose(backend, CPU)
