"""The kernels of causal attention. `triton.py` explains how they work together.

A tile has BLOCK_M queries and BLOCK_N keys. Its width is that of a head, padded to a power of two: BLOCK_K and BLOCK_D. What lies
past the sequence or the head is masked. Tensors are contiguous. A kernel visits the tiles below the diagonal, where every query
sees every key, and those on the diagonal, where it masks.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # the hardware's exponential is of base 2


@triton.jit
def _places(matrix, start, length, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of the tile (ROWS, COLUMNS) with first row `start`: its addresses, and which of them are in the matrix (length, WIDTH)."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    return matrix + tl.cast(start + row, tl.int64) * WIDTH + column, (start + row < length) & (column < WIDTH)


@triton.jit
def _load(matrix, start, length, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The tile, with zeros for what is not in the matrix."""
    places, inside = _places(matrix, start, length, WIDTH, ROWS, COLUMNS)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def _store(matrix, start, length, tile, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Writes what of the tile is in the matrix."""
    places, inside = _places(matrix, start, length, WIDTH, tile.shape[0], tile.shape[1])
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
def _fold(query, keys, values, total, weight, largest, place, at, SCALE: tl.constexpr, DIAGONAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds a tile of keys (N, K) and values (N, D) to the sums of its queries (M, K).

    These are `total` (M, D), the weighted sum of values so far, `weight` (M,), the sum of weights, and `largest` (M,), the
    largest score. `place` (M,) and `at` (N,) are the positions of queries and keys. With DIAGONAL some keys lie after some of the
    queries.
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
def _slopes(a, b, above_a, above_b, logsum, delta, place, at, SCALE: tl.constexpr, DIAGONAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights of a tile, computed again, and the gradient of its scores, without the factor SCALE.

    `a` (M, K) are queries and `b` (N, K) keys, at positions as in `_fold`. `above_a` (M, D) is the gradient of the output,
    `above_b` (N, D) the values, `logsum` (M, 1) the base-2 logarithm of each row's sum of weights, and `delta` (M, 1) the sum
    over each row of the output and its gradient.

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
    first = tl.cast(sequence, tl.int64) * length
    keys = k + first * KEY
    values = v + first * VALUE
    query = _load(q + first * KEY, start, length, KEY, BLOCK_M, BLOCK_K)
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
        key = _load(keys, n, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, length, VALUE, BLOCK_N, BLOCK_D)
        total, weight, largest = _fold(query, key, value, total, weight, largest, place, n + tile, SCALE, False)
    for n in range(start, tl.minimum(start + BLOCK_M, length), BLOCK_N):
        key = _load(keys, n, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, length, VALUE, BLOCK_N, BLOCK_D)
        total, weight, largest = _fold(query, key, value, total, weight, largest, place, n + tile, SCALE, True)
        spoilt = tl.minimum(spoilt, tl.min(tl.where(_finite(value), 2147483647, (n + tile)[:, None]), 0))
    total = tl.where(place[:, None] >= spoilt[None, :], float("nan"), total / weight[:, None])
    _store(out + first * VALUE, start, length, total, VALUE)
    tl.store(logsum + first + place, largest + tl.log2(weight), mask=place < length)


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
    first = tl.cast(sequence, tl.int64) * length
    keys = k + first * KEY
    values = v + first * VALUE
    query = _load(q + first * KEY, start, length, KEY, BLOCK_M, BLOCK_K)
    above = _load(dout + first * VALUE, start, length, VALUE, BLOCK_M, BLOCK_D)
    output = _load(out + first * VALUE, start, length, VALUE, BLOCK_M, BLOCK_D)
    place = start + tl.arange(0, BLOCK_M)
    tile = tl.arange(0, BLOCK_N)
    wide: tl.constexpr = logsum.dtype.element_ty
    rows = first + place
    row_delta = tl.sum(above.to(wide) * output.to(wide), 1)
    tl.store(delta + rows, row_delta, mask=place < length)
    row_delta = row_delta[:, None]
    row_logsum = tl.load(logsum + rows, mask=place < length, other=float("inf"))[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_K), wide)
    for n in range(0, start, BLOCK_N):
        key = _load(keys, n, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, length, VALUE, BLOCK_N, BLOCK_D)
        _, slopes = _slopes(query, key, above, value, row_logsum, row_delta, place, n + tile, SCALE, False)
        total = _add(slopes, key, total)
    for n in range(start, tl.minimum(start + BLOCK_M, length), BLOCK_N):
        key = _load(keys, n, length, KEY, BLOCK_N, BLOCK_K)
        value = _load(values, n, length, VALUE, BLOCK_N, BLOCK_D)
        _, slopes = _slopes(query, key, above, value, row_logsum, row_delta, place, n + tile, SCALE, True)
        # As in the forward pass: a row that does not see a NaN must not get it. Rows that see it have slopes that are NaN.
        total = _add(slopes, tl.where(_finite(key), key, 0.0), total)
    _store(dq + first * KEY, start, length, total * SCALE, KEY)


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
    first = tl.cast(sequence, tl.int64) * length
    queries = q + first * KEY
    aboves = dout + first * VALUE
    key = _load(k + first * KEY, start, length, KEY, BLOCK_N, BLOCK_K)
    value = _load(v + first * VALUE, start, length, VALUE, BLOCK_N, BLOCK_D)
    logsums = logsum + first
    deltas = delta + first
    place = -start - tl.arange(0, BLOCK_N)
    tile = tl.arange(0, BLOCK_M)
    wide: tl.constexpr = logsum.dtype.element_ty
    dkey = tl.zeros((BLOCK_N, BLOCK_K), wide)
    dvalue = tl.zeros((BLOCK_N, BLOCK_D), wide)
    for m in range(start, tl.minimum(start + BLOCK_N, length), BLOCK_M):
        query = _load(queries, m, length, KEY, BLOCK_M, BLOCK_K)
        above = _load(aboves, m, length, VALUE, BLOCK_M, BLOCK_D)
        row_logsum = tl.load(logsums + m + tile, mask=m + tile < length, other=float("inf"))[None, :]
        row_delta = tl.load(deltas + m + tile, mask=m + tile < length, other=0.0)[None, :]
        weights, slopes = _slopes(key, query, value, above, row_logsum, row_delta, place, -m - tile, SCALE, True)
        dvalue = _add(weights, above, dvalue)
        dkey = _add(slopes, query, dkey)
    for m in range(start + BLOCK_N, length, BLOCK_M):
        query = _load(queries, m, length, KEY, BLOCK_M, BLOCK_K)
        above = _load(aboves, m, length, VALUE, BLOCK_M, BLOCK_D)
        row_logsum = tl.load(logsums + m + tile, mask=m + tile < length, other=float("inf"))[None, :]
        row_delta = tl.load(deltas + m + tile, mask=m + tile < length, other=0.0)[None, :]
        weights, slopes = _slopes(key, query, value, above, row_logsum, row_delta, place, -m - tile, SCALE, False)
        dvalue = _add(weights, above, dvalue)
        dkey = _add(slopes, query, dkey)
    _store(dk + first * KEY, start, length, dkey * SCALE, KEY)
    _store(dv + first * VALUE, start, length, dvalue, VALUE)
