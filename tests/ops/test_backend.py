"""The choice of an op's implementation: explicit, recorded, refused in one line."""

from __future__ import annotations

import math
import re
from pkgutil import resolve_name

import pytest
import torch

from regbench.ops.attention import attention
from regbench.ops.backend import Implementation, Op, common_type, known_ops, require_use, use_backend
from regbench.utils.errors import UserError

OP = Op(
    "example",
    {
        "gpu": Implementation("math:sin", ("cuda",)),
        "extra": Implementation(
            "math:tan", ("cpu",), requires="no_such_package", install="pip install 'regbench[extra]'"
        ),
        "fast": Implementation("math:cos", ("cpu",)),
        "naive": Implementation("math:exp", ("cpu", "cuda")),
    },
)
CPU = torch.device("cpu")


def test_auto_takes_the_first_that_runs_here() -> None:
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


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("atention=naive", "no op is called 'atention'; did you mean 'attention'?"),
        ("attention=flash_attn", "attention has no backend 'flash_attn'; did you mean 'flash-attn'?"),
        ("attention=naive,attention=torch", "backend names attention twice: attention=naive,attention=torch"),
        (
            "attention=naive,torch",
            "backend 'torch' is without its op: in a list each needs one, as in attention=torch",
        ),
    ],
)
def test_a_backend_for_each_op_is_read_strictly(backend: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"), use_backend(backend):
        pass


def test_where_only_some_ops_have_it_the_refusal_says_how_to_ask_for_those() -> None:
    q = torch.randn(1, 1, 3, 2)
    with use_backend("torch"):
        attention(q, q, q)
        with pytest.raises(UserError, match="^example has no backend 'torch'; for one op alone write attention=torch$"):
            OP.choose("auto", CPU)


def test_a_backend_that_serves_nothing_is_refused() -> None:
    require_use("auto", {})
    require_use("naive", {"example": "naive"})
    require_use("example=fast", {"example": "fast", "attention": "torch"})
    with pytest.raises(
        UserError, match=r"^backend 'cpu' has no effect: this model uses no op with several implementations"
    ):
        require_use("cpu", {})
    message = "backend 'attention=naive' names attention, which this model does not use; it uses example"
    with pytest.raises(UserError, match=f"^{message}$"):
        require_use("attention=naive", {"example": "fast"})


def test_the_types_decide_too() -> None:
    narrow = Implementation("math:sin", ("cpu",), dtypes=(torch.float32, torch.bfloat16), exact=(torch.bfloat16,))
    op = Op("another_example", {"narrow": narrow, "naive": OP.implementations["naive"]})
    for dtype, taken in ((torch.bfloat16, math.sin), (torch.float32, math.exp), (torch.float64, math.exp)):
        assert op.choose("auto", CPU, dtype) is taken
    assert op.choose("narrow", CPU, torch.float32) is math.sin
    with pytest.raises(UserError, match="^backend 'narrow' of another_example takes float32, bfloat16, not float64$"):
        op.choose("narrow", CPU, torch.float64)


def test_the_type_of_several_tensors() -> None:
    half, single, double = (torch.zeros(1, dtype=d) for d in (torch.bfloat16, torch.float32, torch.float64))
    assert common_type(half, half) == torch.bfloat16
    assert common_type(half, None, single) == torch.float32
    assert common_type(double, half) == torch.float64


def test_every_op_has_a_naive_implementation_and_one_that_runs_on_a_gpu_without_extras() -> None:
    ops = {name: op for name, op in known_ops().items() if op.implementations["naive"].target.startswith("regbench.")}
    assert {"attention", "delta_rule", "linear_attention", "long_conv", "ngram_head", "selective_scan", "wkv"} <= set(
        ops
    )
    for name, op in ops.items():
        assert {"cpu", "cuda"} == set(op.implementations["naive"].devices), name
        fast = [f for n, f in op.implementations.items() if n != "naive" and "cuda" in f.devices]
        assert any(f.requires in (None, "triton") for f in fast), name
        assert all(callable(resolve_name(f.target)) for f in op.implementations.values() if f.requires != "triton"), (
            name
        )
