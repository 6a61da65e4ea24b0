"""What is known of every architecture: its parameters by the papers' matrices, and the options under which it is tested.

A new architecture made of a mixer needs a row in `CASES`, and one that is a whole model a row in `MODELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """An architecture made of a mixer, and what is known of it.

    Attributes:
        parameters: how many one mixer has, from its options, by counting the papers' matrices.
        variants: options under which the mixer alone is tested.
        reading: options under which tokens are read, by n-gram heads; then only the whole model can be tested.
        feed_forward: whether the backbone adds a feed-forward network.
        positions: whether the backbone can add learned positions.
        uncounted: numbers in its state that `state_bytes` does not count, as its docstring says.
        grows: whether its state grows with the stream, up to its window if it has one, or as its logarithm.
        later: how many more parameters the mixers of all layers but the first have.
    """

    parameters: Callable[[Any], int]
    variants: tuple[dict[str, Any], ...] = ({},)
    reading: tuple[dict[str, Any], ...] = ()
    feed_forward: bool = True
    positions: bool = False
    uncounted: int = 0
    grows: bool = False
    later: Callable[[Any], int] = lambda o: 0
    common: dict[str, Any] = field(default_factory=lambda: {"d_model": 12, "n_heads": 3, "n_layers": 1})


HEADS = {"ngram_heads": [1, 2, 3], "ngram_after": [1, 2], "ngram_mlp": True, "n_layers": 2}
EXTRA = {"extra_ngram_heads": [1, 3, 1, 2]}
ROTARY = {"positions": "rotary", "n_heads": 2}


def _gla(o: Any) -> int:
    maps = 2 * o.d_model * o.d_k + 3 * o.d_model * o.d_v + o.d_v  # q, k; v, gate and its bias, out
    return maps + o.d_model * o.gate_rank + o.gate_rank * o.d_k + o.d_k


def _mamba(o: Any) -> int:
    inner, n = o.d_inner, o.d_state
    rank = -(-o.d_model // 16) if o.dt_rank == "auto" else o.dt_rank
    return (
        3 * o.d_model * inner + inner * (o.d_conv + 1) + inner * (rank + 2 * n) + inner * (rank + 1) + inner * (n + 1)
    )


def _hyena(o: Any) -> int:
    maps = o.d_gates * (o.d_model + 1) + o.d_model * (o.d_model + 1)
    layers = [1 + 2 * o.bands] + [o.d_filter] * o.n_inner
    network = sum(o.d_filter * (width + 2) for width in layers) + o.d_filter * o.order * o.d_model
    return maps + o.d_gates * (3 + 1) + network + o.order * o.d_model


def _s4(o: Any) -> int:
    return o.d_model * (2 * o.d_state + 2) + (1 + o.glu) * o.d_model * (o.d_model + 1)


def _h3(o: Any) -> int:
    ssm = o.d_model // o.head_dim * (2 * o.d_state + 2)
    return 4 * o.d_model * (o.d_model + 1) + o.d_model * (o.d_shift + 1) + ssm


def _delta(o: Any) -> int:
    """q, k, v and their convolution, beta, the norm of a head, out."""
    channels = o.d_k + o.steps * (o.d_k + o.d_v)
    return channels * (o.d_model + o.d_conv) + o.steps * o.n_heads * o.d_model + o.d_v // o.n_heads + o.d_v * o.d_model


def _gated_delta(o: Any) -> int:
    return _delta(o) + o.n_heads * (o.d_model + 2) + o.d_v * o.d_model


def _kda(o: Any) -> int:
    rank = o.d_v // o.n_heads
    return _delta(o) + rank * (2 * o.d_model + o.d_k + o.d_v) + o.n_heads + o.d_k + o.d_v


def _mamba2(o: Any) -> int:
    inner, conv = o.d_inner, o.d_inner + 2 * o.d_state
    return o.d_model * (inner + conv + o.n_heads) + conv * (o.d_conv + 1) + 3 * o.n_heads + inner + inner * o.d_model


def _mamba3(o: Any) -> int:
    into = 2 * o.d_inner + 2 * o.d_state + 3 * o.n_heads + o.d_state // 4
    return o.d_model * (into + o.d_inner) + 2 * o.d_state * (1 + o.n_heads) + 2 * o.n_heads


def _mlstm(o: Any) -> int:
    inner = o.d_inner
    return 3 * o.d_model * inner + inner * (o.d_conv + 1 + 3 * o.block_size + 2) + 2 * o.n_heads * (3 * inner + 1)


def _slstm(o: Any) -> int:
    return o.d_model * (o.d_conv + 1) + 8 * o.d_model * (o.d_model // o.n_heads) + 4 * o.d_model + o.d_model


def _rglru(o: Any) -> int:
    rnn = o.d_rnn
    maps, gates = 2 * rnn * (o.d_model + 1) + o.d_model * (rnn + 1), 2 * rnn * (rnn // o.n_heads + 1)
    return maps + gates + rnn * (o.d_conv + 1) + rnn


def _based(o: Any) -> int:
    return o.d_model * (2 * o.n_heads * o.feature_dim + 2 * o.d_model + (4 * o.d_model if o.window else 0))


def _rwkv6(o: Any) -> int:
    d, hidden = o.d_model, round(o.expand * o.d_model)
    time = 6 * d + 10 * d * o.shift_rank + d + 2 * d * o.decay_rank + d + 5 * d**2 + 2 * d
    return time + 2 * d + 2 * d + 2 * d * hidden + d**2


def _gated_delta2(o: Any) -> int:
    return _kda(o) - o.n_heads * o.d_model + o.d_model * (o.d_k + o.d_v)


def _path(o: Any) -> int:
    return 4 * o.d_model**2 + o.d_model * (2 * o.rank + o.d_conv) + o.n_heads * (o.d_model + 1)


def _log_linear(o: Any) -> int:
    base = _mamba2(o) if o.base == "mamba2" else _gated_delta(o)
    return base + o.n_heads * o.levels * (o.d_model + 1)


def _ttt(o: Any) -> int:
    network = o.n_heads * sum(rows * columns for rows, columns in o.layers) + 2 * o.inner_norm * o.d_model
    return 4 * o.d_model**2 + 2 * o.d_model * (o.d_conv + 1) + o.n_heads * (o.d_model + 1) + network + 2 * o.d_model


def _titans(o: Any) -> int:
    rates = (1 + o.momentum + o.forget) * o.n_heads * (o.d_model + 1)
    attention = (4 * o.d_model**2 if o.window else 0) + o.persistent * o.d_model
    width = o.d_model // o.n_heads
    return 5 * o.d_model**2 + 3 * o.d_model * o.d_conv + rates + o.depth * o.d_model * width + width + attention


WITHOUT_OPS = ("lstm", "slstm", "based", "path_attention", "sparse_attention", "ttt", "titans")
"""PyTorch's own operations compute them, Based and Titans without a window. The recurrence of the first two is not linear."""
CASES = {
    "transformer": Case(
        lambda o: 4 * o.d_model**2,
        ({}, ROTARY, {"positions": "none", "window": 1}, ROTARY | {"window": 5}),
        reading=(EXTRA, EXTRA | ROTARY, HEADS, HEADS | ROTARY, EXTRA | {"window": 5}),
        positions=True,
        grows=True,
        uncounted=1,
    ),
    "linear_transformer": Case(
        lambda o: 4 * o.d_model**2,
        ({}, {"feature_map": "elu"}, {"feature_map": "relu", "positions": "none"}),
        positions=True,
    ),
    "retnet": Case(lambda o: (2 + 3 * o.expand_v) * o.d_model**2, ({}, {"expand_v": 1, "n_heads": 1}), uncounted=1),
    "gla": Case(_gla, ({"gate_rank": 4}, {"expand_k": 1.0, "expand_v": 2.0, "gate_temperature": 1.0})),
    "rwkv": Case(lambda o: (5 + 2 * o.expand) * o.d_model**2 + 9 * o.d_model, ({}, {"expand": 1}), feed_forward=False),
    "lstm": Case(lambda o: 8 * o.d_model * (o.d_model + 1), reading=(HEADS,), feed_forward=False),
    "mamba": Case(
        _mamba, ({"d_state": 5}, {"d_conv": 1, "expand": 3, "dt_rank": 2}), reading=(HEADS,), feed_forward=False
    ),
    "s4": Case(_s4, ({"d_state": 8}, {"d_state": 2, "init": "inv", "glu": False})),
    "h3": Case(_h3, ({"d_state": 8, "d_shift": 5}, {"d_state": 4, "d_shift": 1, "head_dim": 3, "init": "inv"})),
    "hyena": Case(
        _hyena, ({"d_filter": 8, "max_length": 50}, {"order": 3, "bands": 1, "n_inner": 0, "d_filter": 4}), grows=True
    ),
    "deltanet": Case(_delta, ({}, {"negative_eigenvalues": True, "expand_v": 2.0, "d_conv": 1})),
    "gated_deltanet": Case(_gated_delta, ({}, {"n_heads": 1, "negative_eigenvalues": True})),
    "gated_deltaproduct": Case(_gated_delta, ({}, {"n_h": 3, "negative_eigenvalues": False})),
    "mamba2": Case(_mamba2, ({"d_state": 5}, {"d_conv": 1, "expand": 3, "d_state": 8}), feed_forward=False),
    "mamba3": Case(_mamba3, ({"d_state": 8}, {"d_state": 4, "expand": 1})),
    "mesanet": Case(
        lambda o: (
            4 * o.d_model**2
            + 2 * o.d_model * o.d_conv
            + 2 * o.n_heads * (o.d_model + 1)
            + o.d_model
            + o.d_model // o.n_heads
        ),
        ({}, {"solver": "exact", "d_conv": 2}),
    ),
    "slstm": Case(_slstm, ({}, {"n_heads": 1, "d_conv": 1})),
    "rglru": Case(_rglru, ({}, {"d_conv": 1, "expand": 1.0}), uncounted=1),
    "based": Case(_based, ({"window": 5}, {"window": 0, "feature_dim": 3}), grows=True, uncounted=1),
    "hgrn2": Case(
        lambda o: 4 * o.d_model**2 + o.d_model, ({}, {"n_heads": 1, "n_layers": 2}), later=lambda o: o.d_model
    ),
    "rwkv6": Case(
        _rwkv6, ({"shift_rank": 3, "decay_rank": 5}, {"n_heads": 1, "expand": 1.0, "n_layers": 2}), feed_forward=False
    ),
    "gated_deltanet2": Case(_gated_delta2, ({}, {"expand_v": 2.0, "negative_eigenvalues": True})),
    "comba": Case(lambda o: _gated_delta(o) + 2 * o.n_heads, ({}, {"n_heads": 1, "negative_eigenvalues": True})),
    "path_attention": Case(_path, ({"rank": 4}, {"n_heads": 1, "d_conv": 1}), grows=True),
    "sparse_attention": Case(
        lambda o: 4 * o.d_model**2,
        ({"block_size": 4}, {"n_heads": 1, "blocks": 2, "positions": "none"}, {"positions": "learned"}),
        positions=True,
        grows=True,
    ),
    "differential_transformer": Case(
        lambda o: 4 * o.d_model**2 + 2 * o.d_model // o.n_heads,
        ({"d_model": 24, "n_layers": 2}, {"n_heads": 2, "positions": "learned"}),
        positions=True,
        grows=True,
        uncounted=1,
    ),
    "log_linear_attention": Case(
        _log_linear,
        ({"d_state": 5}, {"base": "gated_deltanet", "expand_k": 1.0, "levels": 3}),
        grows=True,
        uncounted=1,
    ),
    "ttt": Case(
        _ttt,
        ({}, {"inner": "mlp", "mini_batch": 7}, {"mini_batch": 1, "inner_norm": False, "d_conv": 1, "n_heads": 1}),
        uncounted=1,
    ),
    "titans": Case(
        _titans,
        (
            {},
            {"depth": 1, "mini_batch": 7, "window": 5, "persistent": 3},
            {"mini_batch": 1, "momentum": False, "forget": False, "d_conv": 1, "n_heads": 1},
        ),
        grows=True,
        uncounted=1,
        common={"d_model": 12, "n_heads": 2, "n_layers": 1},
    ),
    "mlstm": Case(_mlstm, ({}, {"block_size": 1, "projection": 1, "d_conv": 2}), feed_forward=False),
    "forgetting_transformer": Case(
        lambda o: 4 * o.d_model**2 + o.n_heads * (o.d_model + 1), ({}, {"n_heads": 1}), grows=True
    ),
    "kimi_delta_attention": Case(_kda, ({}, {"expand_k": 0.5, "expand_v": 2.0})),
}
MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "associative_memory": (
        {"d_model": 12, "feed_forward": True},
        {"d_model": 12, "n_layers": 1},
        {"d_model": 12, "n_layers": 3, "n_heads": 2, "rank": 4, "feed_forward": True, "hidden": 5},
    ),
    "cgt": ({"d_model": 12, "d_y": 6, "n_heads": 3, "y_heads": 3},),
    "fast_slow": ({"d_model": 12, "d_y": 5, "n_heads": 3},),
    "hybrid": (
        {"d_model": 12, "n_heads": 3},
        {
            "d_model": 12,
            "n_layers": 2,
            "mixers": "mamba2,transformer",
            "transformer.n_heads": 3,
            "transformer.window": 5,
        },
    ),
    "rwkv7": (
        {"d_model": 12, "n_heads": 3, "n_layers": 2},
        {"d_model": 12, "n_heads": 12, "n_layers": 1},
        {"d_model": 12, "n_heads": 1, "n_layers": 3, "expand": 2},
    ),
    "learned_ngram": tuple(
        {"d_model": 12, "features": features, "max_order": order}
        for features in ("counts", "frequencies", "binary")
        for order in (1, 3, 5)
    ),
}
"""Whole models with a recurrent form, and the options under which they are tested."""
WITHOUT_RECURRENT_FORM = ("tint",)
"""Whole models that have none. The contract asks the rest of them."""
