"""Attention and what goes with it, as graphs of matrix products, masks and softmax.

Scores are one batched product per key head: with grouped queries, the queries that share a key head
lie next to each other, so they become rows of one matrix and no key is ever repeated. Positions are
small index vectors compared on the fly; no mask matrix is stored.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import Expr, select
from graphc.ir.extents import as_dim, at_most
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Int, Operand, OutIndex, composite, op
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import counted, filled, float_type, joined, plain_index, shaped, sliced
from graphc.ir.ops.in_range import require
from graphc.ir.types import Dim, Shape


def split_heads(b: Builder, x: Value, heads: int | None) -> Value:
    """(batch, sequence, heads * size) as (batch, heads, sequence, size)."""
    batch, length, _ = x.tensor.dims
    hidden = x.tensor.extent(2)
    if not heads or hidden % heads:
        raise ModelError(f"{hidden} features do not divide into {heads} heads")
    folded = shaped(b, x, batch, length, heads, hidden // heads)
    return b.Transpose(folded, perm=(0, 2, 1, 3))


def join_heads(b: Builder, x: Value) -> Value:
    """(batch, heads, sequence, size) as (batch, sequence, heads * size)."""
    batch, heads, length, size = x.tensor.dims
    return shaped(b, b.Transpose(x, perm=(0, 2, 1, 3)), batch, length, heads * size)


def by_key_head(b: Builder, x: Value, key_heads: Dim) -> Value:
    """(batch, query heads, rows, size) as (batch, key heads, queries per key * rows, size)."""
    batch, heads, rows, size = x.tensor.dims
    if heads == key_heads:
        return x
    if heads % key_heads:
        raise ModelError(f"{heads} query heads are no multiple of {key_heads} key heads")
    return shaped(b, x, batch, key_heads, heads // key_heads * rows, size)


def raw_scores(b: Builder, q: Value, k: Value, scale: float) -> Value:
    """scale * Q Kt of every query head: (batch, query heads, rows, columns). Narrow floats are
    multiplied as they are, as matrix units take them."""
    batch, heads, rows, _ = q.tensor.dims
    _, key_heads, columns, _ = k.tensor.dims
    is_narrow = q.tensor.dtype.bits < 32
    queries = by_key_head(b, q if is_narrow else b.Mul(q, scale), key_heads)
    scores = b.MatMul(queries, b.Transpose(k, perm=(0, 1, 3, 2)))
    scores = b.Mul(scores, scale) if is_narrow else scores
    if heads == key_heads:
        return scores
    return shaped(b, scores, batch, heads, rows, columns)


def weighted_values(b: Builder, weights: Value, v: Value) -> Value:
    """The values summed by weights: (batch, query heads, rows, size)."""
    batch, heads, rows, _ = weights.tensor.dims
    _, key_heads, _, size = v.tensor.dims
    result = b.MatMul(by_key_head(b, weights, key_heads), v)
    if heads == key_heads:
        return result
    return shaped(b, result, batch, heads, rows, size)


@composite("Attention", outputs=None)
def attention(
    b: Builder, q: Float, k: Float, v: Float, attn_mask: Any_ | None = None,
    past_key: Float | None = None, past_value: Float | None = None,
    nonpad_kv_seqlen: Int | None = None, *, is_causal: int = 0, kv_num_heads: int | None = None,
    left_window_size: int = -1, q_num_heads: int | None = None, qk_matmul_output_mode: int = 0,
    right_window_size: int = -1, scale: float | None = None, softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    """softmax(mask(softcap(scale * Q Kt))) V; also the updated keys and values, and the scores.

    Rank-3 operands hold their heads side by side. Rows with nothing to attend to give zeros.
    """
    packed = q.tensor.rank == 3
    if packed:
        q = split_heads(b, q, q_num_heads)
        k, v = (split_heads(b, x, kv_num_heads) for x in (k, v))
    past: Dim = past_key.tensor.dims[2] if past_key is not None else 0
    if past_key is not None:
        k, v = b.Concat(past_key, k, axis=2), b.Concat(past_value, v, axis=2)
    dtype, rows, columns = q.tensor.dtype, q.tensor.dims[2], k.tensor.dims[2]
    scores = raw_scores(b, q, k, 1 / math.sqrt(q.tensor.extent(3)) if scale is None else scale)
    raw = scores
    if softcap:
        scores = b.Mul(b.Tanh(b.Div(scores, softcap)), softcap)
    capped = scores
    if nonpad_kv_seqlen is not None:
        require(b, nonpad_kv_seqlen, 0, columns, "length")
    band = Band(rows, columns, past, bool(is_causal), left_window_size, right_window_size)
    scores, may_be_empty = mask_scores(b, scores, band, attn_mask, nonpad_kv_seqlen)
    precise = float_type(softmax_precision, "softmax_precision") if softmax_precision else dtype
    weights = convert(b, masked_softmax(b, convert(b, scores, precise), may_be_empty), dtype)
    result = weighted_values(b, weights, v)
    result = join_heads(b, result) if packed else result
    return result, k, v, (raw, capped, scores, weights)[qk_matmul_output_mode]


class Band:
    """Which columns (keys) each row (query) may see by position alone.

    Row r stands at position p = r + offset and sees columns p - left .. p + right, where a negative
    bound is none. Causal means right = 0.
    """

    def __init__(self, rows: Dim, columns: Dim, offset: Dim, causal: bool, left: int, right: int):
        self.rows, self.columns, self.offset = rows, columns, offset
        self.left = left
        self.right = 0 if causal else right

    @property
    def is_full(self) -> bool:
        return self.left < 0 and self.right < 0

    def has_empty_row(self) -> bool:
        """Whether some row may see nothing: there may be no columns, or its band ends before the
        first, or begins behind the last."""
        if (
            not at_most(1, self.columns)
            or self.right >= 0
            and not at_most(-self.right, self.offset)
        ):
            return True
        return self.left >= 0 and not at_most(self.rows + self.offset - self.left, self.columns)

    def allowed(self, b: Builder, offset: Value | None) -> Value:
        """The band as booleans over (rows, columns); `offset` (batch, 1, 1, 1) if it varies."""
        column = counted(b, self.columns, shape=(1, -1))
        start = self.offset if offset is None else 0
        position = counted(b, self.rows, start, shape=(-1, 1))
        if offset is not None:
            position = b.Add(offset, position)
        seen = []
        if self.right >= 0:
            last = b.Add(position, self.right) if self.right else position
            seen.append(b.LessOrEqual(column, last))
        if self.left >= 0:
            seen.append(b.GreaterOrEqual(column, b.Sub(position, self.left)))
        return seen[0] if len(seen) == 1 else b.And(*seen)


def mask_scores(
    b: Builder, scores: Value, band: Band, mask: Value | None, lengths: Value | None
) -> tuple[Value, bool]:
    """Scores with -inf where nothing may be attended, and whether a whole row may be so.

    `lengths` counts the valid keys of each sample; queries are then the last ones of those.
    """
    nothing = b.constant(-math.inf, scores.tensor.dtype)
    may_be_empty = lengths is not None or mask is not None
    if mask is not None:
        mask = pad_mask(b, mask, band.columns)
        if mask.tensor.dtype is dtypes.boolean:
            scores = b.Where(mask, scores, nothing)
        else:
            scores = b.Add(scores, convert(b, mask, scores.tensor.dtype))
    offset = None
    if lengths is not None:
        lengths = b.Reshape(lengths, np.array((-1, 1, 1, 1)))
        offset = b.Sub(lengths, band.rows)
        valid = b.Less(counted(b, band.columns), lengths)
        scores = b.Where(valid, scores, nothing)
    if not band.is_full:
        scores = b.Where(band.allowed(b, offset), scores, nothing)
        may_be_empty = may_be_empty or band.has_empty_row()
    return scores, may_be_empty


def pad_mask(b: Builder, mask: Value, columns: Dim) -> Value:
    """The mask extended to `columns` columns that may not be attended."""
    *outer, width = mask.tensor.dims
    if width == columns:
        return mask
    dtype = mask.tensor.dtype
    blocked = False if dtype is dtypes.boolean else -math.inf
    tail = filled(b, blocked, (*outer, as_dim(columns - width)), dtype)
    return b.Concat(mask, tail, axis=-1)


def masked_softmax(b: Builder, scores: Value, may_be_empty: bool) -> Value:
    """Softmax of rows; zeros for rows that are all -inf, which occur only if `may_be_empty`."""
    weights = b.Softmax(scores, axis=-1)
    if not may_be_empty:
        return weights
    largest = b.ReduceMax(scores, np.array([-1]), keepdims=1)
    empty = b.Equal(largest, b.constant(-math.inf, scores.tensor.dtype))
    return b.Where(empty, b.constant(0, weights.tensor.dtype), weights)


# ---------------------------------------------------------------- rotary positions


def _rotary_shape(
    x: Operand, cos_cache: Operand, sin_cache: Operand, position_ids: Operand | None = None, *,
    num_heads: int,
) -> Shape:  # fmt: skip
    if x.rank not in (3, 4):
        raise ModelError(f"takes an operand of rank 3 or 4, found {x.type}")
    if x.rank == 3 and (num_heads < 1 or x.shape[2] % num_heads):
        raise ModelError(f"num_heads is {num_heads}, which must divide {x.shape[2]} features")
    tokens = (x.shape[0], x.shape[-2])
    for name, operand in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        if position_ids is None and operand.shape[:-1] != tokens:
            raise ModelError(f"{name} must be [{tokens[0]}, {tokens[1]}, pairs]: {operand.type}")
        if position_ids is not None and operand.rank != 2:
            raise ModelError(f"{name} must be [positions, pairs], found {operand.type}")
    if position_ids is not None:
        _check_same(position_ids.shape, tokens, "position_ids, of samples and tokens")
        _check_same(cos_cache.shape, sin_cache.shape, "cos_cache and sin_cache")
    return x.shape


def _check_same(one: Shape, other: Shape, what: str) -> None:
    """ModelError if shapes have another rank, or extents that are known to differ."""
    known = zip(one, other)
    differs = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in known)
    if len(one) != len(other) or differs:
        raise ModelError(f"{what}: {list(one)} against {list(other)}")


@op("RotaryEmbedding", infer=_rotary_shape)
def rotary_embedding(
    i: OutIndex, x: Float, cos_cache: Float, sin_cache: Float, position_ids: Int | None = None, *,
    interleaved: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
) -> Expr:  # fmt: skip
    """Rotates pairs of features by an angle that depends on the position.

    Pairs are neighbours if `interleaved`, otherwise feature d and d + half. Features from
    `rotary_embedding_dim` on (0: none) stay. The caches hold (position, pair), or (batch,
    sequence, pair) without position_ids.
    """
    if x.rank == 4:
        size, (batch, _, token, _) = x.shape[3], i
    else:
        size, (batch, token, _) = x.shape[2] // num_heads, i
    rotated = rotary_embedding_dim or size
    if rotated % 2 or not 0 < rotated <= size:
        raise ModelError(f"turns pairs of up to {size} features, found {rotated} features")
    half = rotated // 2
    feature = i[-1] % size if x.rank == 3 else i[-1]
    if interleaved:
        pair, is_first = feature // 2, (feature % 2).eq(0)
    else:
        pair, is_first = feature % half, feature < half
    step = 1 if interleaved else half
    partner = (*i[:-1], select(is_first, i[-1] + step, i[-1] - step))
    if position_ids is None:
        where = (batch, token, pair)
    else:
        where = (plain_index(position_ids[batch, token], cos_cache.shape[0]), pair)
    for cache in (cos_cache, sin_cache):
        if cache.shape[-1] < half:
            raise ModelError(f"caches must hold {half} pairs, found {cache.type}")
    sine = sin_cache[where]
    turned = x[i] * cos_cache[where] + x[partner] * select(is_first, -sine, sine)
    return turned if rotated == size else select(feature < rotated, turned, x[i])


# ---------------------------------------------------------------- linear attention


_UPDATES = {  # rule: (decays its state, corrects what it writes)
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


@composite("LinearAttention", outputs=None)
def linear_attention(
    b: Builder, query: Float, key: Float, value: Float, past_state: Float | None = None,
    decay: Float | None = None, beta: Float | None = None, *, q_num_heads: int, kv_num_heads: int,
    chunk_size: int = 64, scale: float = 0.0, update_rule: str = "gated_delta",
) -> tuple[Value, ...]:  # fmt: skip
    """A recurrent state per key head: S = decay * S + k (x) v', read by o = scale * q S.

    Delta rules write v' = beta * (v - k S) instead of v. The state is kept in float32.
    """
    if update_rule not in _UPDATES:
        raise UnsupportedError(f"update_rule {update_rule!r} is not one of {sorted(_UPDATES)}")
    decays, corrects = _UPDATES[update_rule]
    for name, operand, needed in (("decay", decay, decays), ("beta", beta, corrects)):
        if (operand is None) == needed:
            verb = "requires" if needed else "forbids"
            raise ModelError(f"update_rule {update_rule!r} {verb} operand {name}")
    dtype, state_dtype = query.tensor.dtype, (past_state or query).tensor.dtype
    batch, length = query.tensor.dims[0], query.tensor.extent(1)
    q, k, v = (
        convert(b, split_heads(b, x, heads), dtypes.f32)
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    size, width = k.tensor.extent(3), v.tensor.extent(3)
    q = b.Mul(q, scale or 1 / math.sqrt(size))
    state = _initial_state(b, past_state, (batch, kv_num_heads, size, width))
    gate = _gate(b, decay, kv_num_heads, size) if decays else None
    rate = convert(b, split_heads(b, beta, beta.tensor.dims[2]), dtypes.f32) if corrects else None
    rows = []
    for t in range(length):
        step = [
            None if x is None else sliced(b, x, t, t + 1, axis=2) for x in (q, k, v, gate, rate)
        ]
        state, row = _linear_step(b, state, *step)
        rows.append(row)
    return convert(b, join_heads(b, joined(b, rows, axis=2)), dtype), convert(b, state, state_dtype)


def _initial_state(b: Builder, past: Value | None, shape: Shape) -> Value:
    if past is None:
        return filled(b, 0, shape, dtypes.f32)
    return convert(b, past, dtypes.f32)


def _gate(b: Builder, decay: Value, heads: int, size: int) -> Value:
    """exp(decay) as (batch, heads, sequence, size), or 1 instead of size."""
    if decay.tensor.dims[2] not in (heads, heads * size):
        raise ModelError(f"decay has {decay.tensor.dims[2]} features, not {heads} * (1 or {size})")
    return b.Exp(convert(b, split_heads(b, decay, heads), dtypes.f32))


def _linear_step(
    b: Builder, state: Value, q: Value, k: Value, v: Value, gate: Value | None, rate: Value | None
) -> tuple[Value, Value]:
    column = b.Transpose(k, perm=(0, 1, 3, 2))
    if gate is not None:
        state = b.Mul(state, b.Transpose(gate, perm=(0, 1, 3, 2)))
    if rate is not None:
        v = b.Mul(rate, b.Sub(v, b.MatMul(k, state)))
    state = b.Add(state, b.Mul(column, v))
    batch, heads, rows, _ = q.tensor.dims
    read = b.MatMul(by_key_head(b, q, state.tensor.dims[1]), state)
    return state, shaped(b, read, batch, heads, rows, state.tensor.dims[3])


# ---------------------------------------------------------------- causal convolution


@composite("CausalConvWithState", outputs=None)
def causal_conv_with_state(
    b: Builder, x: Float, weight: Float, bias: Float | None = None,
    past_state: Float | None = None, *, activation: str = "none",
) -> tuple[Value, ...]:  # fmt: skip
    """Depthwise convolution over the current and the kernel - 1 previous positions.

    Also gives the last kernel - 1 positions, the `past_state` of the next call.
    """
    if activation not in ("none", "silu", "swish"):
        raise UnsupportedError(f"activation {activation!r} is not one of none, silu, swish")
    batch, channels, length = x.tensor.dims
    keep = weight.tensor.extent(2) - 1
    if past_state is None:
        past_state = filled(b, 0, (batch, channels, keep), x.tensor.dtype)
    padded = b.Concat(past_state, x, axis=2) if keep else x
    y = b.Conv(padded, weight, bias, group=channels)
    if activation != "none":
        wide = convert(b, y, x.tensor.dtype.compute)
        y = convert(b, b.Mul(wide, b.Sigmoid(wide)), x.tensor.dtype)
    state = sliced(b, padded, length, length + keep, axis=2)
    return y, state
