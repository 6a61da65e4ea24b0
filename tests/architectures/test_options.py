"""Options of which no model can be made are refused in one line, which says what was wrong."""

from __future__ import annotations

from typing import Any

import pytest

from regbench.models.build import build, resolve_options
from regbench.tasks.base import TokenIO
from regbench.utils import registry
from regbench.utils.errors import UserError

IO = TokenIO(vocab_size=5, separator=4, max_length=80, names=("a", "b", "c", "d", "|"))
NO_HEADS = "only architectures made of a mixer take n-gram heads"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("transformer", {"n_heads": 5}, r"^d_model \(12\) must be a multiple of n_heads \(5\)"),
        ("transformer", {"positions": "rotary"}, "rotary positions need an even head width, not 3"),
        ("transformer", {"extra_ngram_heads": [0]}, "extra_ngram_heads.0: input should be greater than or equal to 1"),
        ("transformer", {"extra_ngram_heads": [1, 9]}, "extra_ngram_heads.1: input should be less than or equal to 8"),
        ("transformer", {"extra_ngram_head": [1]}, "unknown key 'extra_ngram_head'; did you mean 'extra_ngram_heads'"),
        ("linear_transformer", {"n_heads": 5}, r"d_model \(12\) must be a multiple of n_heads \(5\)"),
        ("retnet", {}, "rotary positions need an even head width, not 3"),
        ("gla", {}, r"expand_k \* d_model \(6\) must be a multiple of n_heads \(4\)"),
        ("gla", {"n_heads": 3, "expand_v": 0.01}, r"expand_v \* d_model \(0\) must be 1 or more"),
        ("h3", {"head_dim": 5}, r"^d_model \(12\) must be a multiple of head_dim \(5\)$"),
        ("based", {}, "rotary positions need an even head width, not 3"),
        ("mamba", {"dt_rank": "many"}, "dt_rank"),
        ("s4", {"d_state": 3}, "d_state"),
        ("deltanet", {"n_heads": 5}, r"expand_k \* d_model \(12\) must be a multiple of n_heads \(5\)"),
        ("deltanet", {"d_model": 257, "n_heads": 1}, "a head's keys have width 257, above 256, the largest"),
        ("gated_deltanet", {"n_heads": 2}, r"expand_k \* d_model \(9\) must be a multiple of n_heads \(2\)"),
        ("gated_deltaproduct", {"n_h": 0}, "n_h"),
        ("kimi_delta_attention", {"expand_v": 1.25}, r"expand_v \* d_model \(15\) must be a multiple of n_heads \(4\)"),
        ("mamba2", {"n_heads": 5}, r"expand \* d_model \(24\) must be a multiple of n_heads \(5\)"),
        ("mamba2", {"d_state": 257}, "d_state"),
        ("mamba3", {"d_state": 6}, "d_state"),
        ("mesanet", {"n_heads": 5}, r"d_model \(12\) must be a multiple of n_heads \(5\)"),
        ("mesanet", {"solver": "exact", "cg_steps": 3}, "cg_steps is about solver=cg, and the solver is exact"),
        ("mlstm", {"block_size": 5}, r"projection \* d_model \(24\) must be a multiple of block_size \(5\)"),
        ("differential_transformer", {"n_heads": 5}, r"d_model \(12\) must be a multiple of 2 n_heads \(10\)"),
        ("log_linear_attention", {"expand_k": 1.0}, "expand_k is an option of base=gated_deltanet, and this is mamba2"),
        ("titans", {"persistent": 2}, "persistent vectors are those of memory as a layer: give window=64 too"),
        ("rwkv7", {"n_heads": 5}, r"^d_model \(12\) must be a multiple of n_heads \(5\)$"),
        ("rwkv7", {"d_model": 257, "n_heads": 1}, "^a head has width 257, above 256, the largest$"),
        ("rwkv7", {"short_conv": 4}, "^RWKV7 is a whole model: only architectures made of a mixer take short_conv$"),
        ("rwkv7", {"ngram_heads": [1]}, f"^RWKV7 is a whole model: {NO_HEADS}$"),
        ("learned_ngram", {"n_layers": 2}, "n_layers"),
        ("learned_ngram", {}, "n_heads"),
        ("learned_ngram", {"n_heads": 1, "features": "count"}, "features"),
        ("fast_slow", {"d_y": 12}, r"d_y \(12\) leaves nothing of the activations to x: d_model is 12"),
        ("fast_slow", {"d_y": 4, "n_layers": 3, "y_layer": 3}, r"y_layer \(3\) leaves no layer above it"),
        ("fast_slow", {"d_y": 4, "y_shift": 1}, "y_smooth and y_shift do nothing where aux_share is 0"),
        (
            "fast_slow",
            {"d_y": 4, "gp_share": 0.2},
            "gp_share is about gp_kernel=estimate, and the kernel is rbf: give gp_kernel too",
        ),
        (
            "associative_memory",
            {"n_heads": 1, "n_layers": 1, "trained": ["k2"]},
            "option: trained names k2, and a model of one layer has no W_K2",
        ),
        (
            "associative_memory",
            {"n_heads": 1, "max_wait": {"f": 3}},
            "option: max_wait names f, and no memory of this name learns",
        ),
        (
            "associative_memory",
            {"n_heads": 1, "max_wait": {"k1": 1, "k2": 1, "o2": 1}},
            "option: max_wait holds every memory back",
        ),
        ("associative_memory", {"n_heads": 1, "hidden": 8}, "option: hidden is for feed_forward=true"),
        ("associative_memory", {"n_heads": 1, "max_weight": 1}, "did you mean 'max_wait'"),
        ("hybrid", {"mixers": "lstm,manba"}, "^unknown architecture 'manba'; did you mean 'mamba'"),
        ("hybrid", {"mixers": "lstm,rwkv7"}, "rwkv7 is a whole model, and a layer takes a mixer"),
        ("hybrid", {"mixers": "lstm,hybrid"}, "hybrid is a whole model, and a layer takes a mixer"),
        ("hybrid", {"mixers": "lstm,,"}, "^unknown architecture ''"),
        ("hybrid", {"n_layers": 3}, "4 mixers need as many layers or more, not n_layers=3"),
        ("hybrid", {"mixers": "a=lstm,a=mamba"}, "two are called 'a': give one a name of its own, as in a=mamba"),
        ("hybrid", {"mixer": "lstm"}, "unknown key 'mixer'; did you mean 'mixers'"),
        ("hybrid", {"lstm.start": "uniform"}, "unknown key 'lstm.start'"),
        ("hybrid", {"window": 3}, "unknown key 'window'; give transformer.window$"),
        ("hybrid", {"transformer.windw": 3}, "^transformer: option: unknown key 'windw'; did you mean 'window'"),
        ("hybrid", {"transformer.window": -1}, "^transformer: option: window: input should be greater than or equal"),
        ("hybrid", {"transformer.d_model": 32}, "transformer.d_model: all layers have one d_model: set d_model"),
        ("hybrid", {"n_heads": 3, "transformer.n_heads": 5}, r"d_model \(12\) must be a multiple of n_heads \(5\)"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    cls = registry.load(registry.ARCHITECTURE, name)
    with pytest.raises(UserError, match=message) as refused:
        build(cls, resolve_options(cls, {"d_model": 12, "n_heads": 4, **settings}), IO)
    assert "\n" not in str(refused.value)
