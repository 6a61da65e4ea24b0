"""The n-gram head: the dense implementation against the published procedure, and the linear one against the dense one."""

from __future__ import annotations

import doctest
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import regbench.ops.ngram
from regbench.ops.ngram import NGramIndex, ngram_head
from regbench.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("poison")

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Case(NamedTuple):
    tokens: Tensor
    order: int
    shift: int

    def hidden(self, width: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
        made = torch.randn(*self.tokens.shape, width, dtype=dtype, generator=torch.Generator().manual_seed(0))
        return made.requires_grad_()


@st.composite
def cases(draw: st.DrawFn, longest: int = 300) -> Case:
    batch, length = draw(st.integers(0, 3)), draw(st.integers(1, longest))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "equal", "different", "periodic"]))
    if kind == "random":
        tokens = rng.integers(0, draw(st.integers(1, 6)), (batch, length))
    elif kind == "equal":
        tokens = np.full((batch, length), draw(st.integers(-(2**31), 2**31 - 1)))
    elif kind == "different":
        tokens = rng.permutation(batch * length).reshape(batch, length)
    else:
        tokens = np.arange(batch * length).reshape(batch, length) % draw(st.integers(2, 9))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return Case(torch.from_numpy(tokens).to(dtype), draw(st.integers(1, 8)), draw(st.integers(0, 5)))


def published_weights(x: list[int], ngram: int, shift_step: int) -> list[list[float]]:
    """A(n) of one sequence by the steps of ICLL Fig. 8, an element at a time."""
    span = range(len(x))
    mask = [[x[i] == x[j] and j < i for j in span] for i in span]
    masks = [mask]
    for _ in range(1, ngram):  # down and to the right by one; False comes in from outside
        mask = [[i > 0 and j > 0 and mask[i - 1][j - 1] for j in span] for i in span]
        masks.append(mask)
    every = [[sum(m[i][j] for m in masks) >= ngram for j in span] for i in span]
    attend = [[j >= shift_step and every[i][j - shift_step] and j < i for j in span] for i in span]
    return [[float(hit) / sum(row) if any(row) else 0.0 for hit in row] for row in attend]


def run(case: Case, hidden: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of an arbitrary linear function of it."""
    out = ngram_head(case.tokens, hidden, case.order, case.shift, backend)
    upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(out, hidden, upstream)
    return out.detach(), gradient


@quick
@given(cases(longest=24))
def test_naive_is_what_was_published(case: Case) -> None:
    batch, length = case.tokens.shape
    eye = torch.eye(length, dtype=torch.float64).expand(batch, length, length)
    weights = ngram_head(case.tokens, eye, case.order, case.shift, "naive")
    published = [published_weights(x, case.order, case.shift) for x in case.tokens.tolist()]
    torch.testing.assert_close(weights, torch.tensor(published, dtype=torch.float64).view_as(weights))


@quick
@given(cases())
def test_cpu_equals_naive(case: Case) -> None:
    hidden = case.hidden()
    torch.testing.assert_close(run(case, hidden, "cpu"), run(case, hidden, "naive"))


@quick
@given(cases(longest=60), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_lower_precision_equals_float64_once_rounded(case: Case, dtype: torch.dtype) -> None:
    hidden = case.hidden(dtype=dtype)
    out, gradient = run(case, hidden, "cpu")
    assert out.dtype == gradient.dtype == dtype
    exact = ngram_head(case.tokens, hidden.double(), case.order, case.shift, "naive")
    # An output is rounded once from float32, and that once from float64.
    torch.testing.assert_close(out.double(), exact.detach(), rtol=1.01 * torch.finfo(dtype).eps, atol=1e-7)


@quick
@given(cases(longest=60), st.data())
def test_outputs_see_only_the_past(case: Case, data: st.DataObject) -> None:
    """Output t depends on tokens up to t and on hidden before t: not even a NaN passes back from the rest."""
    t = data.draw(st.integers(0, case.tokens.shape[1] - 1))
    hidden = case.hidden().detach()
    before = ngram_head(case.tokens, hidden, case.order, case.shift)
    tokens = case.tokens.clone()
    tokens[:, t + 1 :] = tokens[:, t + 1 :].flip(1)
    hidden[:, t:] = torch.nan
    after = ngram_head(tokens, hidden, case.order, case.shift)
    assert torch.equal(before[:, : t + 1], after[:, : t + 1])


@pytest.mark.parametrize("shape", [(0, 7), (3, 0), (0, 0), (2, 1)])
@pytest.mark.parametrize("backend", ["cpu", "naive"])
def test_nothing_to_match(shape: tuple[int, int], backend: str) -> None:
    case = Case(torch.zeros(shape, dtype=torch.int64), order=3, shift=2)
    out, gradient = run(case, case.hidden(), backend)
    assert out.shape == gradient.shape == (*shape, 3)
    assert not out.any()
    assert not gradient.any()


def test_strides_do_not_matter() -> None:
    tokens = torch.randint(0, 3, (50, 4)).T
    hidden = torch.randn(3, 50, 4, dtype=torch.float64).permute(2, 1, 0).requires_grad_()
    ours = run(Case(tokens, 2, 1), hidden, "cpu")
    torch.testing.assert_close(ours, run(Case(tokens, 2, 1), hidden, "naive"))
    # A gradient that is one number expanded has stride 0.
    (gradient,) = torch.autograd.grad(ngram_head(tokens, hidden, 2).sum(), hidden)
    (expected,) = torch.autograd.grad(ngram_head(tokens, hidden, 2, backend="naive").sum(), hidden)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("order", [1, 8])
def test_large_vocabularies_do_not_collide(order: int) -> None:
    """Tokens that agree in their low 31 or 32 bits, or modulo a large prime, are still different."""
    near = torch.tensor([5, 5 + 2**31, 5 + 2**32, 5 + 2**61 - 1, -5, 5 - 2**31])
    hidden = torch.eye(18, dtype=torch.float64)[None]
    apart = ngram_head(near.repeat(3)[None], hidden, order)
    assert torch.equal(apart, ngram_head(torch.arange(6).repeat(3)[None], hidden, order))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_every_integer_type(dtype: torch.dtype) -> None:
    tokens, hidden = torch.randint(0, 4, (2, 40)), torch.randn(2, 40, 3)
    assert torch.equal(ngram_head(tokens.to(dtype), hidden, 2), ngram_head(tokens, hidden, 2))


def test_float32_stays_exact_over_long_range() -> None:
    """4096 equal tokens, values far from zero: a running sum in float32 would lose three digits here."""
    case = Case(torch.zeros(1, 4096, dtype=torch.int64), order=1, shift=1)
    hidden = (1000 + case.hidden(2, torch.float32)).detach().requires_grad_()
    out = ngram_head(case.tokens, hidden, backend="cpu")
    (gradient,) = torch.autograd.grad(out.sum(), hidden)
    places = torch.arange(1, 4095, dtype=torch.float64)[:, None]
    mean = hidden.detach()[:, 1:-1].double().cumsum(1) / places
    last_bit = torch.finfo(torch.float32).eps
    torch.testing.assert_close(out[:, 2:].double(), mean, rtol=last_bit, atol=0)
    weight = (1 / places).flip(0).cumsum(0).flip(0).expand(1, -1, 2)  # 1/1 + 1/2 + ..., from the far end
    torch.testing.assert_close(gradient[:, 1:-1].double(), weight, rtol=last_bit, atol=0)


def test_memory_is_linear_in_length() -> None:
    """A mask of this length would take 16 GiB."""
    length = 2**17
    case = Case(torch.arange(length)[None] % 1000, order=2, shift=1)
    out, _ = run(case, case.hidden(1, torch.float32), "cpu")
    assert torch.equal(out.any(2), (torch.arange(length) > 1000)[None])


def test_heads_share_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, hidden = torch.randint(0, 3, (2, 50)), torch.randn(2, 50, 4, requires_grad=True)
    alone = [ngram_head(tokens, hidden, order) for order in (1, 2, 3)]
    index = NGramIndex(tokens)
    for order in (1, 2, 3):
        ngram_head(tokens, hidden, order, index=index)
    monkeypatch.setattr(regbench.ops.ngram.index, "_sort", None)  # from here on nothing may be sorted again
    for order, expected in zip((1, 2, 3), alone, strict=True):
        out = ngram_head(tokens, hidden, order, index=index)
        assert torch.equal(out, expected)
        out.sum().backward()


TOKENS, HIDDEN = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TOKENS, HIDDEN, 0), "order >= 1"),
        ((TOKENS, HIDDEN, 1, -1), "shift >= 0"),
        ((TOKENS.float(), HIDDEN), "not .* of torch.float32"),
        ((TOKENS[0], HIDDEN), r"not \(5,\) of"),
        ((TOKENS, HIDDEN[:, :4]), r"not \(2, 5\) .* and \(2, 4, 3\)"),
        ((TOKENS, HIDDEN, 1, 1, "trition"), "did you mean 'triton'"),
    ],
)
def test_a_bad_call_says_what_is_wrong(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ngram_head(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_worked_example() -> None:
    assert doctest.testmod(regbench.ops.ngram).failed == 0
