"""The kernels of causal attention. `triton.py` explains how they work together.

A tile has BLOCK_M queries and BLOCK_N keys. Its width is that of a head, padded to a power of two: BLOCK_K and BLOCK_D. What lies
past the sequence or the head is masked. Matrices may have any strides, but the last must be 1. A kernel visits the tiles below
the diagonal, where every query sees every key, and those on the diagonal, where it masks.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # the hardware's exponential is of base 2


@triton.jit
def _matrix(
    base: tl.tensor, batch: tl.tensor, head: tl.tensor, batch_stride: tl.tensor, head_stride: tl.tensor
) -> tl.tensor:
    """The address where the (L, width) matrix of one head begins."""
    return base + tl.cast(batch, tl.int64) * batch_stride + tl.cast(head, tl.int64) * head_stride


@triton.jit
def _places(
    matrix: tl.tensor,
    start: tl.tensor,
    stride: tl.tensor,
    length: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Of the tile (ROWS, COLUMNS) with first row `start`: its addresses, and which of them are in the matrix (length, WIDTH)."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return matrix + tl.cast(start + row, tl.int64) * stride + column, (start + row < length) & (column < WIDTH)


@triton.jit
def _load(
    matrix: tl.tensor,
    start: tl.tensor,
    stride: tl.tensor,
    length: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The tile, with zeros for what is not in the matrix."""
    places, inside = _places(matrix, start, stride, length, WIDTH, ROWS, COLUMNS)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def _store(
    matrix: tl.tensor, start: tl.tensor, stride: tl.tensor, length: tl.tensor, tile: tl.tensor, WIDTH: tl.constexpr
) -> None:
    """Writes what of the tile is in the matrix."""
    places, inside = _places(matrix, start, stride, length, WIDTH, tile.shape[0], tile.shape[1])
    tl.store(places, tile.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def _dot(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Adds products: total + a @ b, without rounding float32 to TF32."""
    return tl.dot(a, b, total, input_precision="ieee", out_dtype=total.dtype)


@triton.jit
def _scores(a: tl.tensor, b: tl.tensor, WIDE: tl.constexpr) -> tl.tensor:
    """The products a b^T: (M, C), (N, C) -> (M, N)."""
    return _dot(a, tl.trans(b), tl.zeros((a.shape[0], b.shape[0]), WIDE))


@triton.jit
def _add(weights: tl.tensor, rows: tl.tensor, total: tl.tensor) -> tl.tensor:
    """Adds weighted rows: total (M, D) + weights (M, N) @ rows (N, D)."""
    return _dot(weights.to(rows.dtype), rows, total)


@triton.jit
def _finite(tile: tl.tensor) -> tl.tensor:
    """Where the tile is neither NaN nor infinite."""
    return tl.abs(tile.to(tl.float32)) < float("inf")


@triton.jit
def _fold(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    total: tl.tensor,
    weight: tl.tensor,
    largest: tl.tensor,
    place: tl.tensor,
    at: tl.tensor,
    SCALE: tl.constexpr,
    DIAGONAL: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds a tile of keys to the sums of its queries.

    Args:
        query: (M, K).
        keys: (N, K).
        values: (N, D).
        total: (M, D), the weighted sum of values so far.
        weight: (M,), the sum of weights so far.
        largest: (M,), the largest score so far.
        place: (M,), the positions of the queries.
        at: (N,), the positions of the keys.
        SCALE: 1 / sqrt(K).
        DIAGONAL: whether some of the keys lie after some of the queries.

    Returns:
        total, weight and largest after these keys.
    """
    scores = _scores(query, keys, total.dtype) * (SCALE * LOG2_E)
    if DIAGONAL:
        scores = tl.where(place[:, None] >= at[None, :], scores, float("-inf"))
    new = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.exp2(scores - new[:, None])
    shrink = tl.exp2(largest - new)
    if DIAGONAL:
        values = tl.where(_finite(values), values, 0.0)
    total = _add(weights, values, total * shrink[:, None])
    return total, weight * shrink + tl.sum(weights, 1), new


@triton.jit
def _slopes(
    a: tl.tensor,
    b: tl.tensor,
    above_a: tl.tensor,
    above_b: tl.tensor,
    logsum: tl.tensor,
    delta: tl.tensor,
    place: tl.tensor,
    at: tl.tensor,
    SCALE: tl.constexpr,
    DIAGONAL: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The weights of a tile, computed again, and the gradient of its scores, without the factor SCALE.

    Args:
        a: (M, K), queries.
        b: (N, K), keys.
        above_a: (M, D), the gradient of the output.
        above_b: (N, D), values.
        logsum: (M, 1), the base-2 logarithm of each row's sum of weights.
        delta: (M, 1), the sum over each row of the output and its gradient.
        place: (M,), the positions of the queries.
        at: (N,), the positions of the keys.
        SCALE: 1 / sqrt(K).
        DIAGONAL: whether some of the keys lie after some of the queries.

    `keys_kernel` calls it with queries and keys exchanged; logsum and delta are then (1, N).
    """
    weights = tl.exp2(_scores(a, b, logsum.dtype) * (SCALE * LOG2_E) - logsum)
    slopes = weights * (_scores(above_a, above_b, logsum.dtype) - delta)
    if DIAGONAL:
        seen = place[:, None] >= at[None, :]
        weights, slopes = tl.where(seen, weights, 0.0), tl.where(seen, slopes, 0.0)
    return weights, slopes


@triton.jit
def forward_kernel(
    q: tl.tensor,  # (B, H, L, K)
    k: tl.tensor,  # (B, H, L, K)
    v: tl.tensor,  # (B, H, L, D)
    out: tl.tensor,  # (B, H, L, D)
    logsum: tl.tensor,  # (B, H, L)
    q_b: tl.tensor,
    q_h: tl.tensor,
    q_l: tl.tensor,
    k_b: tl.tensor,
    k_h: tl.tensor,
    k_l: tl.tensor,
    v_b: tl.tensor,
    v_h: tl.tensor,
    v_l: tl.tensor,
    out_b: tl.tensor,
    out_h: tl.tensor,
    out_l: tl.tensor,
    heads: tl.tensor,
    length: tl.tensor,
    SCALE: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """The output of a block of queries, and the base-2 logarithm of each row's sum of weights."""
    blocks = tl.cdiv(length, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    start = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M  # the blocks with the most keys begin first
    batch, head = sequence // heads, sequence % heads
    keys = _matrix(k, batch, head, k_b, k_h)
    values = _matrix(v, batch, head, v_b, v_h)
    query = _load(_matrix(q, batch, head, q_b, q_h), start, q_l, length, KEY, BLOCK_M, BLOCK_K)
    place = start + tl.arange(0, BLOCK_M)
    tile = tl.arange(0, BLOCK_N)
    wide: tl.constexpr = logsum.dtype.element_ty
    total = tl.zeros((BLOCK_M, BLOCK_D), wide)
    weight = tl.zeros((BLOCK_M,), wide)
    largest = tl.full((BLOCK_M,), float("-inf"), wide)
    # On the diagonal a row has weight 0 for a key that it does not see, and 0 * NaN would be NaN. So the product leaves out
    # values that are not finite. Afterwards the rows of their channel are set to NaN, from the first such position on.
    spoilt = tl.full((BLOCK_D,), 2147483647, tl.int32)
    for n in range(0, start, BLOCK_N):
        key = _load(keys, n, k_l, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, v_l, length, VALUE, BLOCK_N, BLOCK_D)
        total, weight, largest = _fold(query, key, value, total, weight, largest, place, n + tile, SCALE, False)
    for n in range(start, tl.minimum(start + BLOCK_M, length), BLOCK_N):
        key = _load(keys, n, k_l, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, v_l, length, VALUE, BLOCK_N, BLOCK_D)
        total, weight, largest = _fold(query, key, value, total, weight, largest, place, n + tile, SCALE, True)
        spoilt = tl.minimum(spoilt, tl.min(tl.where(_finite(value), 2147483647, (n + tile)[:, None]), 0))
    total = tl.where(place[:, None] >= spoilt[None, :], float("nan"), total / weight[:, None])
    _store(_matrix(out, batch, head, out_b, out_h), start, out_l, length, total, VALUE)
    tl.store(logsum + tl.cast(sequence, tl.int64) * length + place, largest + tl.log2(weight), mask=place < length)


@triton.jit
def queries_kernel(
    q: tl.tensor,  # (B, H, L, K)
    k: tl.tensor,  # (B, H, L, K)
    v: tl.tensor,  # (B, H, L, D)
    out: tl.tensor,  # (B, H, L, D)
    dout: tl.tensor,  # (B, H, L, D)
    dq: tl.tensor,  # (B, H, L, K)
    logsum: tl.tensor,  # (B, H, L)
    delta: tl.tensor,  # (B, H, L)
    q_b: tl.tensor,
    q_h: tl.tensor,
    q_l: tl.tensor,
    k_b: tl.tensor,
    k_h: tl.tensor,
    k_l: tl.tensor,
    v_b: tl.tensor,
    v_h: tl.tensor,
    v_l: tl.tensor,
    out_b: tl.tensor,
    out_h: tl.tensor,
    out_l: tl.tensor,
    dout_b: tl.tensor,
    dout_h: tl.tensor,
    dout_l: tl.tensor,
    dq_b: tl.tensor,
    dq_h: tl.tensor,
    dq_l: tl.tensor,
    heads: tl.tensor,
    length: tl.tensor,
    SCALE: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Computes dQ of a block of queries; and delta, the sum over each row of dO * O, which `keys_kernel` needs too."""
    blocks = tl.cdiv(length, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    start = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    batch, head = sequence // heads, sequence % heads
    keys = _matrix(k, batch, head, k_b, k_h)
    values = _matrix(v, batch, head, v_b, v_h)
    query = _load(_matrix(q, batch, head, q_b, q_h), start, q_l, length, KEY, BLOCK_M, BLOCK_K)
    above = _load(_matrix(dout, batch, head, dout_b, dout_h), start, dout_l, length, VALUE, BLOCK_M, BLOCK_D)
    output = _load(_matrix(out, batch, head, out_b, out_h), start, out_l, length, VALUE, BLOCK_M, BLOCK_D)
    place = start + tl.arange(0, BLOCK_M)
    tile = tl.arange(0, BLOCK_N)
    wide: tl.constexpr = logsum.dtype.element_ty
    rows = tl.cast(sequence, tl.int64) * length + place
    row_delta = tl.sum(above.to(wide) * output.to(wide), 1)
    tl.store(delta + rows, row_delta, mask=place < length)
    row_delta = row_delta[:, None]
    row_logsum = tl.load(logsum + rows, mask=place < length, other=float("inf"))[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_K), wide)
    for n in range(0, start, BLOCK_N):
        key = _load(keys, n, k_l, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, v_l, length, VALUE, BLOCK_N, BLOCK_D)
        _, slopes = _slopes(query, key, above, value, row_logsum, row_delta, place, n + tile, SCALE, False)
        total = _add(slopes, key, total)
    for n in range(start, tl.minimum(start + BLOCK_M, length), BLOCK_N):
        key = _load(keys, n, k_l, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, v_l, length, VALUE, BLOCK_N, BLOCK_D)
        _, slopes = _slopes(query, key, above, value, row_logsum, row_delta, place, n + tile, SCALE, True)
        # As in the forward pass: a row that does not see a NaN must not get it. Rows that see it have slopes that are NaN.
        total = _add(slopes, tl.where(_finite(key), key, 0.0), total)
    _store(_matrix(dq, batch, head, dq_b, dq_h), start, dq_l, length, total * SCALE, KEY)


@triton.jit
def keys_kernel(
    q: tl.tensor,  # (B, H, L, K)
    k: tl.tensor,  # (B, H, L, K)
    v: tl.tensor,  # (B, H, L, D)
    dout: tl.tensor,  # (B, H, L, D)
    dk: tl.tensor,  # (B, H, L, K)
    dv: tl.tensor,  # (B, H, L, D)
    logsum: tl.tensor,  # (B, H, L)
    delta: tl.tensor,  # (B, H, L)
    q_b: tl.tensor,
    q_h: tl.tensor,
    q_l: tl.tensor,
    k_b: tl.tensor,
    k_h: tl.tensor,
    k_l: tl.tensor,
    v_b: tl.tensor,
    v_h: tl.tensor,
    v_l: tl.tensor,
    dout_b: tl.tensor,
    dout_h: tl.tensor,
    dout_l: tl.tensor,
    dk_b: tl.tensor,
    dk_h: tl.tensor,
    dk_l: tl.tensor,
    dv_b: tl.tensor,
    dv_h: tl.tensor,
    dv_l: tl.tensor,
    heads: tl.tensor,
    length: tl.tensor,
    SCALE: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Computes dK and dV of a block of keys. Tiles are keys by queries. Positions are negated, so place >= at means the same."""
    blocks = tl.cdiv(length, BLOCK_N)
    sequence = tl.program_id(0) // blocks
    start = tl.program_id(0) % blocks * BLOCK_N
    batch, head = sequence // heads, sequence % heads
    queries = _matrix(q, batch, head, q_b, q_h)
    aboves = _matrix(dout, batch, head, dout_b, dout_h)
    key = _load(_matrix(k, batch, head, k_b, k_h), start, k_l, length, KEY, BLOCK_N, BLOCK_K)
    value = _load(_matrix(v, batch, head, v_b, v_h), start, v_l, length, VALUE, BLOCK_N, BLOCK_D)
    logsums = logsum + tl.cast(sequence, tl.int64) * length
    deltas = delta + tl.cast(sequence, tl.int64) * length
    place = -start - tl.arange(0, BLOCK_N)
    tile = tl.arange(0, BLOCK_M)
    wide: tl.constexpr = logsum.dtype.element_ty
    dkey = tl.zeros((BLOCK_N, BLOCK_K), wide)
    dvalue = tl.zeros((BLOCK_N, BLOCK_D), wide)
    for m in range(start, tl.minimum(start + BLOCK_N, length), BLOCK_M):
        query = _load(queries, m, q_l, length, KEY, BLOCK_M, BLOCK_K)
        above = _load(aboves, m, dout_l, length, VALUE, BLOCK_M, BLOCK_D)
        row_logsum = tl.load(logsums + m + tile, mask=m + tile < length, other=float("inf"))[None, :]
        row_delta = tl.load(deltas + m + tile, mask=m + tile < length, other=0.0)[None, :]
        weights, slopes = _slopes(key, query, value, above, row_logsum, row_delta, place, -m - tile, SCALE, True)
        dvalue = _add(weights, above, dvalue)
        dkey = _add(slopes, query, dkey)
    for m in range(start + BLOCK_N, length, BLOCK_M):
        query = _load(queries, m, q_l, length, KEY, BLOCK_M, BLOCK_K)
        above = _load(aboves, m, dout_l, length, VALUE, BLOCK_M, BLOCK_D)
        row_logsum = tl.load(logsums + m + tile, mask=m + tile < length, other=float("inf"))[None, :]
        row_delta = tl.load(deltas + m + tile, mask=m + tile < length, other=0.0)[None, :]
        weights, slopes = _slopes(key, query, value, above, row_logsum, row_delta, place, -m - tile, SCALE, False)
        dvalue = _add(weights, above, dvalue)
        dkey = _add(slopes, query, dkey)
    _store(_matrix(dk, batch, head, dk_b, dk_h), start, dk_l, length, dkey * SCALE, KEY)
    _store(_matrix(dv, batch, head, dv_b, dv_h), start, dv_l, length, dvalue, VALUE)
