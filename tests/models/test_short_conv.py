"""The options `short_conv` and `canon`: residual convolutions in a block, in both forms; and none by default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regbench.checks.architecture import state_size, streams
from regbench.models.build import resolve_options
from regbench.models.mixer import Mixer
from regbench.models.model import Model, parameter_count
from regbench.models.short_conv import ShortConv, short_conv
from regbench.tasks.base import TokenIO
from regbench.utils.errors import UserError
from tests.helpers.mixers import MIXERS
from tests.helpers.subjects import built, subject_of

IO = TokenIO(vocab_size=5, separator=4, max_length=40, names=("a", "b", "c", "d", "|"))


class Strangers(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)

    def init_state(self, batch: int, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.zeros(batch, self.options.d_model, device=device, dtype=dtype)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x + state, x + state

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        return 4 * options.d_model


def make(cls: type[Any], **options: Any) -> Any:
    return built(cls, IO, **{"d_model": 8, "n_heads": 2, **options})


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_the_convolution_is_the_sum_that_its_docstring_writes(width: int, bias: bool) -> None:
    conv, x = ShortConv(3, width, bias), torch.randn(2, 7, 3)
    y, window = conv(x, conv.init_window(2))
    weight = conv.conv.weight[:, 0].flip(-1)
    padded = F.pad(x, (0, 0, width - 1, 0))
    expected = sum(weight[:, i] * padded[:, width - 1 - i : width - 1 - i + 7] for i in range(width))
    expected = expected + conv.conv.bias if bias else expected
    torch.testing.assert_close(y, expected)
    assert torch.equal(window, padded[:, 7:])


@pytest.mark.parametrize(
    ("batch", "length", "channels", "width"), [(3, 17, 10, 4), (1, 1, 1, 1), (2, 5, 33, 9), (4, 70, 4096, 4)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_is_pytorchs_convolution_with_all_gradients(
    batch: int, length: int, channels: int, width: int, bias: bool
) -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv1d(channels, channels, width, groups=channels, bias=bias).double()
    window = torch.randn(batch, width - 1 + length, channels, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(length, batch, channels, dtype=torch.float64).transpose(0, 1)  # not contiguous
    leaves = [window, *conv.parameters()]
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            y = short_conv(window, conv)
            got = torch.autograd.grad(y, leaves, upstream)
        finally:
            torch.set_num_threads(before)
        right = conv(window.mT).mT
        torch.testing.assert_close(y, right, rtol=1e-12, atol=1e-13)
        for ours, pytorchs in zip(got, torch.autograd.grad(right, leaves, upstream), strict=True):
            torch.testing.assert_close(ours, pytorchs, rtol=1e-12, atol=1e-12)


def test_half_precision_is_left_to_pytorch() -> None:
    conv = torch.nn.Conv1d(6, 6, 4, groups=6).bfloat16()
    window = torch.randn(2, 9, 6).bfloat16()
    torch.testing.assert_close(short_conv(window, conv), conv(window.mT).mT)
    with torch.autocast("cpu", torch.bfloat16):
        assert short_conv(window.float(), conv.float()).dtype == torch.bfloat16


def test_the_mixer_reads_its_input_and_the_convolution_of_it() -> None:
    model = make(Strangers, short_conv=4)
    block, x = model.blocks[0], torch.randn(2, 9, 8)
    normed = block.mixer_norm(x)
    convolved, _ = block.short_conv(normed, torch.zeros(2, 3, 8))
    after = x + (normed + convolved).cumsum(1)
    torch.testing.assert_close(block(x), after + block.feed_forward(block.feed_forward_norm(after)))


def test_canon_is_what_the_paper_writes() -> None:
    """Allen-Zhu 2025, layers A, C and D, position by position, with one of the convolutions at a time too."""
    model = make(Strangers, short_conv=4, canon=True).double()
    block, x = model.blocks[0], torch.randn(2, 9, 8, dtype=torch.float64)
    convs = {"A": block.short_conv, "C": block.feed_forward_conv, "D": block.feed_forward.conv}

    def canon(layer: str, h: Tensor) -> Tensor:
        weight = convs[layer].conv.weight[:, 0].flip(-1)
        past = [sum(weight[:, i] * h[:, t - i] for i in range(min(4, t + 1))) for t in range(h.shape[1])]
        return h + torch.stack(past, 1)  # type: ignore[arg-type]

    def written_out() -> Tensor:
        after = x + canon("A", block.mixer_norm(x)).cumsum(1)
        u = canon("D", block.feed_forward.up(canon("C", block.feed_forward_norm(after))))
        return after + block.feed_forward.down(F.gelu(u, approximate="tanh"))

    torch.testing.assert_close(block(x), written_out())
    for left in convs:
        with torch.no_grad():
            for layer, conv in convs.items():
                torch.nn.init.normal_(conv.conv.weight) if layer == left else conv.conv.weight.zero_()
        torch.testing.assert_close(block(x), written_out())


@pytest.mark.ci
@pytest.mark.parametrize("name", [*MIXERS, "a stranger's"])
def test_streams_of_every_architecture(name: str) -> None:
    """The contract's check, of weights moved from their start; the windows of the convolutions count as state."""
    small, cls = {"d_model": 16, "n_layers": 2}, Strangers if name == "a stranger's" else name
    subject = subject_of(cls, IO, **small, short_conv=4, canon=True)
    with torch.no_grad():
        assert state_size(subject) is None
        assert streams(subject) is None
    with_it, without = subject.model(), built(cls, IO, **small)
    channels = (1 + 1 + 4 if subject.cls.feed_forward else 1) * 16
    assert parameter_count(with_it) - parameter_count(without) == 2 * channels * 4
    if without.state_bytes() is not None:
        assert with_it.state_bytes() - without.state_bytes() == 2 * 4 * channels * 3


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="short_conv") as refused:
        resolve_options(Strangers, {"short_conv": -1})
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="canon is about short convolutions, and there are none: give short_conv=4 too"):
        resolve_options(Strangers, {"canon": True})
    with pytest.raises(UserError, match="short_conf.*did you mean.*short_conv"):
        resolve_options(Strangers, {"short_conf": 4})

    class Whole(Model):
        pass

    with pytest.raises(UserError, match="^Whole is a whole model: only architectures made of a mixer take short_conv$"):
        make(Whole, short_conv=4)
