"""ONNX Runtime's linear attention: a state per head, a matrix, that every token changes.

A token lets the state S decay, takes from its value what the state already says of its key (the
delta rule), adds the outer product of the key and what is left, and reads with its query. Columns
of S are independent of each other: `graphc.DeltaRule` takes the tokens of each in turn. Reference:
docs/ContribOperators.md of ONNX Runtime; Yang et al., "Gated Delta Networks" (2024).
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import Const, Expr
from graphc.ir.graph import Value
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.opdef import Float, Int, Operand, composite, imperative
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS
from graphc.ir.ops.in_range import require
from graphc.ir.ops.onnxruntime.attention import refuse
from graphc.ir.types import TensorType

RULES = {  # rule: whether states decay, whether values lose what the state says of keys
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}

# ---------------------------------------------------------------- the recurrence


def _delta_types(
    q: Operand, k: Operand, v: Operand, decay: Operand, beta: Operand, state: Operand,
    bounds: Operand | None = None,
) -> list[TensorType]:  # fmt: skip
    tokens, heads, size = v.shape
    batch = state.shape[0]
    if state.shape[1:] != (heads, k.shape[2], size) or q.shape[2] != k.shape[2]:
        raise ModelError(f"queries {q.type}, keys {k.type} and values {v.type} do not fit "
                         f"the state {state.type}")  # fmt: skip
    for x in (q, k, decay, beta):
        if x.shape[0] != tokens:
            raise ModelError(f"there are {tokens} values, found {x.type} beside them")
    most = max(q.shape[1], heads)
    if most % q.shape[1] or most % heads or heads % k.shape[1]:
        raise ModelError(
            f"{q.shape[1]} heads of queries, {k.shape[1]} of keys and {heads} of values do not fit"
        )
    if (bounds is None and tokens % batch) or (bounds is not None and bounds.shape != (batch + 1,)):
        raise ModelError(f"{tokens} tokens do not divide into {batch} sequences")
    return [v.type.with_shape((tokens, most, size)), state.type]


@imperative("DeltaRule", infer=_delta_types, outputs=2, domain="graphc")
def delta_rule(
    k: Collectives, q: Float, key: Float, v: Float, decay: Float, beta: Float, state: Float,
    bounds: Int | None = None, *, retrieves: int, scale: float,
) -> None:  # fmt: skip
    """What each token's query reads, [tokens, heads, size], and the last states, [N, heads, keys,
    size], of N sequences side by side: of one length, or from `bounds` [N + 1] to the next.

    decay is [tokens, heads, keys or 1], beta [tokens, heads or 1], both as factors.
    """
    y, last = k.outputs
    tokens, heads, size = v.shape
    batch, _, keys, _ = state.shape
    steps = tokens if bounds is not None else tokens // batch
    groups = max(q.shape[1] // heads, 1)
    with k.loops(batch, heads, size, kind="parallel") as (n, head, j):
        with k.loop(keys) as i:
            k.store(last, (n, head, i, j), state[n, head, i, j])
        with k.loop(steps) as step:
            token = step if bounds is not None else n * steps + step
            mine: Expr = Const(True)
            if bounds is not None:
                mine = (step >= bounds[n].cast(dtypes.i64)) & (
                    step < bounds[n + 1].cast(dtypes.i64)
                )
            with k.when(mine):
                of_key = head // (heads // key.shape[1])
                known = k.var(v.dtype, Const(0, v.dtype))
                with k.loop(keys) as i:
                    place = (n, head, i, j)
                    slot = i if decay.shape[2] > 1 else Const(0, dtypes.i64)
                    faded = k.let(last[place] * decay[token, head, slot])
                    k.store(last, place, faded)
                    if retrieves:
                        k.store(known, (), known[()] + faded * key[token, of_key, i])
                rate = beta[token, head if beta.shape[1] > 1 else Const(0, dtypes.i64)]
                added = k.let((v[token, head, j] - known[()]) * rate)
                with k.loop(keys) as i:
                    place = (n, head, i, j)
                    k.store(last, place, last[place] + key[token, of_key, i] * added)
                for group in range(groups):
                    reader = head * groups + group
                    query = reader if q.shape[1] >= heads else head // (heads // q.shape[1])
                    total = k.var(v.dtype, Const(0, v.dtype))
                    with k.loop(keys) as i:
                        k.store(total, (), total[()] + q[token, query, i] * last[n, head, i, j])
                    k.store(y, (token, reader, j), total[()] * scale)


def _recurrence(
    b: Builder, parts: tuple[Value, Value, Value], decay: Value | None, beta: Value | None,
    state: Value, bounds: Value | None, rule: str, scale: float,
) -> tuple[Value, Value]:  # fmt: skip
    """DeltaRule of a rule; `decay` is the logarithm of the factor, (tokens, heads, keys or 1)."""
    if rule not in RULES:
        raise ModelError(f"update_rule must be one of {', '.join(RULES)}, found {rule!r}")
    decays, retrieves = RULES[rule]
    q, _, v = parts
    tokens, heads, _ = v.tensor.static_shape
    if decays and decay is None or retrieves and beta is None:
        raise ModelError(f"update_rule {rule} needs {'decay' if decays else ''} "
                         f"{'and beta' if retrieves else ''}")  # fmt: skip
    one = b.constant(np.ones((tokens, 1), np.float32))
    factor = b.Exp(decay) if decays and decay is not None else b.constant(
        np.ones((tokens, heads, 1), np.float32))  # fmt: skip
    rate = beta if retrieves and beta is not None else one
    return b.op(
        "DeltaRule", *parts, factor, rate, state, bounds, domain="graphc", outputs=2,
        retrieves=int(retrieves), scale=scale or 1 / math.sqrt(q.tensor.static_shape[-1]),
    )  # fmt: skip


# ---------------------------------------------------------------- LinearAttention


@composite("LinearAttention", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def linear_attention(
    b: Builder, query: Float, key: Float, value: Float, past_state: Float | None = None,
    decay: Float | None = None, beta: Float | None = None, *, chunk_size: int = 64,
    kv_num_heads: int, q_num_heads: int, scale: float = 0.0, state_window: int = 0,
    update_rule: str = "gated_delta",
) -> tuple[Value, ...]:  # fmt: skip
    """Linear attention of (batch, length, heads * size); also the states, (batch, heads, keys,
    values). `chunk_size` says how others divide the sequence."""
    refuse(state_window=state_window)
    for x in (query, key, value):
        if x.tensor.rank != 3:
            raise ModelError(f"takes (batch, length, features), found {x.type}")
    batch, length, features = query.tensor.static_shape
    size = features // q_num_heads
    if not size or features % q_num_heads or key.tensor.static_shape[-1] % size:
        raise ModelError(f"{query.type} and {key.type} do not divide into heads")
    counts = (q_num_heads, key.tensor.static_shape[-1] // size, kv_num_heads)
    parts = [_apart(b, x, count) for x, count in zip((query, key, value), counts)]
    width = parts[2].tensor.static_shape[-1]
    wide = [convert(b, x, dtypes.f32) for x in parts]
    shape = (batch, kv_num_heads, size, width)
    state = b.constant(np.zeros(shape, np.float32)) if past_state is None else past_state
    gate = None if decay is None else convert(b, _apart(b, decay, kv_num_heads), dtypes.f32)
    rate = None
    if beta is not None:
        rates = beta.tensor.static_shape[-1]
        rate = convert(b, b.Reshape(beta, np.array((batch * length, rates))), dtypes.f32)
    y, last = _recurrence(
        b, (wide[0], wide[1], wide[2]), gate, rate, convert(b, state, dtypes.f32), None,
        update_rule, scale,
    )  # fmt: skip
    flat = b.Reshape(y, np.array((batch, length, -1)))
    return convert(b, flat, query.tensor.dtype), convert(b, last, state.tensor.dtype)


def _apart(b: Builder, x: Value, heads: int) -> Value:
    """(batch, length, heads * size) as (tokens, heads, size)."""
    batch, length, width = x.tensor.static_shape
    if width % heads:
        raise ModelError(f"{width} features do not divide into {heads} heads")
    return b.Reshape(x, np.array((batch * length, heads, width // heads)))


# ---------------------------------------------------------------- GatedDeltaNet

LEAST_NORM = 1e-6  # added to the sum of squares of a head


@composite("GatedDeltaNet", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def gated_delta_net(
    b: Builder, query: Float, key: Float | None = None, value: Float | None = None,
    cu_seqlens: Int | None = None, decay: Float | None = None, beta: Float | None = None,
    initial_state: Float | None = None, a_log: Float | None = None, dt_bias: Float | None = None,
    capture_count: Int | None = None, state_update_active: Int | None = None, *,
    beta_activation: str = "none", chunk_size: int = 64, gate_activation: str = "none",
    gate_lower_bound: float = -5.0, qk_l2_norm: int = 0, scale: float = 0.0,
    state_update_capacity: int = 0, update_rule: str = "gated_delta",
) -> tuple[Value, ...]:  # fmt: skip
    """Linear attention of tokens (tokens or batch, length; heads, size) that are sequences side by
    side; also the states (batch, heads, values, keys). Gates may be given before activation."""
    refuse(capture_count=capture_count, state_update_capacity=state_update_capacity)
    if key is None or value is None:
        query, key, value = _unpacked(b, query, initial_state)
    shape = query.tensor.static_shape
    q, k, v = (_tokens(b, x, x.tensor.static_shape[-2:]) for x in (query, key, value))
    if qk_l2_norm:
        q, k = (_unit(b, x) for x in (q, k))
    tokens, heads, width = v.tensor.static_shape
    keys = k.tensor.static_shape[-1]
    state = _initial(b, initial_state, cu_seqlens, (heads, width, keys))
    bounds = None
    if cu_seqlens is not None:
        require(b, cu_seqlens, 0, tokens, "bound")
        bounds = cu_seqlens
    gate = None
    if decay is not None:
        flat = _tokens(b, decay, (heads, decay.tensor.size // (tokens * heads)))
        gate = _gate(b, flat, gate_activation, a_log, dt_bias, gate_lower_bound)
    rate = None
    if beta is not None:
        rate = convert(b, b.Reshape(beta, np.array((tokens, heads))), dtypes.f32)
        if beta_activation not in ("none", "sigmoid"):
            raise ModelError(f"beta_activation is none or sigmoid, not {beta_activation!r}")
        rate = b.Sigmoid(rate) if beta_activation == "sigmoid" else rate
    wide = convert(b, state, dtypes.f32)
    y, last = _recurrence(b, (q, k, v), gate, rate, wide, bounds, update_rule, scale)
    last = convert(b, last, state.tensor.dtype)
    whole = (*shape[:-2], *y.tensor.static_shape[1:]) if len(shape) > 2 else y.tensor.static_shape
    result = convert(b, b.Reshape(y, np.array(whole)), query.tensor.dtype)
    return result, b.Transpose(last, perm=(0, 1, 3, 2))


def _tokens(b: Builder, x: Value, rest: tuple) -> Value:
    """x as (tokens, *rest) in float32."""
    return convert(b, b.Reshape(x, np.array((-1, *rest))), dtypes.f32)


def _unpacked(b: Builder, packed: Value, state: Value | None) -> tuple[Value, Value, Value]:
    """Queries, keys and values (tokens, heads, size) of rows that hold all of them."""
    if state is None:
        raise ModelError("packed queries, keys and values need initial_state")
    _, heads, width, keys = state.tensor.static_shape
    *outer, features = packed.tensor.static_shape
    shared = features - heads * width
    if shared <= 0 or shared % (2 * keys):
        raise ModelError(f"{features} features do not hold keys of {keys} and {heads} values of "
                         f"{width}")  # fmt: skip
    sizes = np.array((shared // 2, shared // 2, heads * width))
    parts = b.Split(packed, sizes, axis=-1, outputs=3)
    counts = (shared // 2 // keys, shared // 2 // keys, heads)
    shapes = [(*outer, n, size) for n, size in zip(counts, (keys, keys, width))]
    q, k, v = (b.Reshape(x, np.array(shape)) for x, shape in zip(parts, shapes))
    return q, k, v


def _unit(b: Builder, x: Value) -> Value:
    """Each head over its length."""
    squares = b.ReduceSum(b.Mul(x, x), np.array([-1]), keepdims=1)
    return b.Div(x, b.Sqrt(b.Add(squares, LEAST_NORM)))


def _initial(b: Builder, state: Value | None, bounds: Value | None, shape: tuple) -> Value:
    """The states before the first token, (batch, heads, keys, values)."""
    heads, width, keys = shape
    if state is not None:
        return b.Transpose(state, perm=(0, 1, 3, 2))
    if bounds is None:
        raise ModelError("needs initial_state or cu_seqlens, which tell the number of sequences")
    batch = bounds.tensor.static_shape[0] - 1
    return b.constant(np.zeros((batch, heads, keys, width), np.float32))


def _gate(
    b: Builder, raw: Value, activation: str, a_log: Value | None, bias: Value | None, bound: float
) -> Value:
    """The logarithm of the decay, (tokens, heads, keys or 1)."""
    if activation == "none":
        return raw
    if activation not in ("softplus", "qwen", "sigmoid", "kda"):
        raise UnsupportedError(f"gate_activation {activation!r} is not known")
    if a_log is None or bias is None:
        raise ModelError(f"gate_activation {activation} needs a_log and dt_bias")
    heads = raw.tensor.static_shape[1]
    speed = b.Exp(b.Reshape(convert(b, a_log, dtypes.f32), np.array((heads, 1))))
    shifted = b.Add(raw, b.Reshape(convert(b, bias, dtypes.f32), np.array((heads, -1))))
    if activation in ("softplus", "qwen"):
        return b.Neg(b.Mul(speed, b.Softplus(shifted)))
    return b.Mul(b.Sigmoid(b.Mul(speed, shifted)), bound)
