"""ONNX Runtime's operators on parallel residual streams (hyper-connections), gates, and norms.

Streams are (..., C, H), or side by side (..., C * H) with `num_branches`. Arithmetic is done in
float32 and rounded to the operands' type once, unless it says otherwise. Reference:
docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, composite
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS
from graphc.ir.ops.normalization import inverse_root
from graphc.ir.ops.onnxruntime.attention import refuse

# ---------------------------------------------------------------- streams


def _grouped(b: Builder, x: Value, branches: int) -> Value:
    """Streams as (..., C, H), in float32."""
    x = convert(b, x, dtypes.f32)
    if not branches:
        if x.tensor.rank < 2:
            raise ModelError(f"takes streams (..., C, H), found {x.type}")
        return x
    *outer, width = x.tensor.static_shape
    if width % branches:
        raise ModelError(f"{width} features do not divide into {branches} branches")
    return b.Reshape(x, np.array((*outer, branches, width // branches)))


def _gates(b: Builder, gates: Value, streams: Value) -> Value:
    """Gates (..., C), (..., C, 1), (..., C, H) or (..., C * H) as ones that multiply streams."""
    *outer, branches, size = streams.tensor.static_shape
    shape, whole = gates.tensor.static_shape, tuple(outer)
    per_branch = {(*whole, branches), (*whole, branches, 1)}
    if shape in per_branch and (size > 1 or shape != (*whole, branches * size)):
        to = (*outer, branches, 1)
    elif shape in ((*whole, branches, size), (*whole, branches * size)):
        to = (*outer, branches, size)
    else:
        raise ModelError(f"gates {gates.type} do not belong to streams {streams.type}")
    return b.Reshape(convert(b, gates, dtypes.f32), np.array(to))


def _as(b: Builder, value: Value, like: Value) -> Value:
    """A value in the shape and the type of another."""
    flat = b.Reshape(value, np.array(like.tensor.static_shape))
    return convert(b, flat, like.tensor.dtype)


@composite("HyperConnectionPreMix", domain=RUNTIME, traits=RUNTIME_TRAITS)
def hyper_connection_pre_mix(
    b: Builder, streams: Float, pre_mix: Float, *, num_branches: int = 0,
    reduction_scale: float = 1.0,
) -> Value:  # fmt: skip
    """reduction_scale * the sum of the streams, each times its gate: (..., H)."""
    wide = _grouped(b, streams, num_branches)
    gated = b.Mul(wide, _gates(b, pre_mix, wide))
    total = b.Mul(b.ReduceSum(gated, np.array([-2]), keepdims=0), reduction_scale)
    return convert(b, total, streams.tensor.dtype)


@composite("HyperConnectionPostMix", domain=RUNTIME, traits=RUNTIME_TRAITS)
def hyper_connection_post_mix(
    b: Builder, streams: Float, block_output: Float, post_mix: Float,
    stream_mix: Float | None = None, *, num_branches: int = 0,
) -> Value:  # fmt: skip
    """Stream k is the sum over c of stream_mix[..., c, k] * stream c, or stays, plus its gate times
    the block's output (..., H)."""
    wide = _grouped(b, streams, num_branches)
    block = b.Unsqueeze(convert(b, block_output, dtypes.f32), np.array([-2]))
    added = b.Mul(_gates(b, post_mix, wide), block)
    if stream_mix is not None:
        mix = convert(b, stream_mix, dtypes.f32)
        order = (*range(mix.tensor.rank - 2), mix.tensor.rank - 1, mix.tensor.rank - 2)
        wide = b.MatMul(b.Transpose(mix, perm=order), wide)
    return _as(b, b.Add(wide, added), streams)


# ---------------------------------------------------------------- norms


def _normal(b: Builder, x: Value, epsilon: float) -> Value:
    """x / sqrt(mean(x^2) + epsilon) over the last axis."""
    squares = b.ReduceMean(b.Mul(x, x), np.array([-1]), keepdims=1)
    return b.Mul(x, inverse_root(b, squares, epsilon))


@composite("BranchwiseRMSNorm", domain=RUNTIME, traits=RUNTIME_TRAITS)
def branchwise_rms_norm(
    b: Builder, x: Float, scale: Float | None = None, *, epsilon: float = 1e-5,
    num_branches: int = 0,
) -> Value:  # fmt: skip
    """RMSNormalization of each stream; the scale is (C * H), (C, H) or (H)."""
    wide = _grouped(b, x, num_branches)
    normal = _normal(b, wide, epsilon)
    if scale is not None:
        branches, size = wide.tensor.static_shape[-2:]
        shape = (size,) if scale.tensor.static_shape == (size,) else (branches, size)
        if scale.tensor.size != math.prod(shape):
            raise ModelError(f"the scale {scale.type} does not belong to streams {wide.type}")
        normal = b.Mul(normal, b.Reshape(convert(b, scale, dtypes.f32), np.array(shape)))
    return _as(b, normal, x)


@composite("GatedRMSNorm", domain=RUNTIME, traits=RUNTIME_TRAITS)
def gated_rms_norm(
    b: Builder, x: Float, scale: Float, gate: Float, *, activation: str = "silu",
    epsilon: float = 1e-5,
) -> Value:  # fmt: skip
    """RMSNormalization of each group of as many elements as the scale has, times the activation of
    the gate."""
    functions = {"silu": b.Swish, "swish": b.Swish, "sigmoid": b.Sigmoid}
    if activation not in functions:
        raise ModelError(f"activation must be one of {', '.join(functions)}, found {activation!r}")
    size, width = scale.tensor.static_shape[0], x.tensor.static_shape[-1]
    if width % size:
        raise ModelError(f"{width} features do not divide into groups of {size}")
    wide = _grouped(b, x, width // size)
    normal = b.Mul(_normal(b, wide, epsilon), convert(b, scale, dtypes.f32))
    opened = functions[activation](_grouped(b, gate, width // size))
    return _as(b, b.Mul(normal, opened), x)


# ---------------------------------------------------------------- gates


@composite("GatedAdd", domain=RUNTIME, traits=RUNTIME_TRAITS)
def gated_add(
    b: Builder, x: Float, y: Float, gate: Float, gate_weight: Float | None = None
) -> Value:
    """x + y * gate, the gate (..., 1); narrow products are rounded before they are added."""
    refuse(gate_weight=gate_weight)
    if gate.tensor.static_shape != (*x.tensor.static_shape[:-1], 1):
        raise ModelError(f"the gate of {x.type} must end in 1, found {gate.type}")
    return b.Add(x, b.rounded(b.Mul(y, gate)))


@composite("ScaledSiLU", domain=RUNTIME, traits=RUNTIME_TRAITS)
def scaled_silu(b: Builder, x: Float, scale: Float | None = None, *, alpha: float = 1.0) -> Value:
    """z * sigmoid(z) of z = alpha * x (the operand takes precedence); z and its sigmoid are rounded
    to the type of x."""
    dtype, wide = x.tensor.dtype, convert(b, x, dtypes.f32)
    if scale is None:
        product = b.Mul(wide, alpha)
    else:
        factor = b.Reshape(convert(b, scale, dtypes.f32), np.zeros(0, np.int64))
        product = b.Mul(wide, factor)
    z = b.rounded(convert(b, product, dtype))
    return b.Mul(z, b.rounded(b.Sigmoid(z)))


@composite("LinearAttentionGate", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def linear_attention_gate(
    b: Builder, a: Float, dt_bias: Float, decay_scale: Float, beta: Float | None = None
) -> tuple[Value, ...]:
    """decay_scale * softplus(a + dt_bias), and the sigmoid of the last operand."""
    wide, bias, scale = (convert(b, x, dtypes.f32) for x in (a, dt_bias, decay_scale))
    decay = convert(b, b.Mul(b.Softplus(b.Add(wide, bias)), scale), a.tensor.dtype)
    if b.count == 1:
        return (decay,)
    if beta is None:
        raise ModelError("the second result needs a fourth operand")
    return decay, b.Sigmoid(beta)


@composite("EngramGate", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def engram_gate(
    b: Builder, key: Float, query: Float, value: Float, key_scale: Float, query_scale: Float,
    conv_scale: Float | None = None, *, epsilon: float = 1e-5,
) -> tuple[Value, ...]:  # fmt: skip
    """The value (batch, length, H) times the gate of each stream, and the scaled norm of that.

    The gate is the sigmoid of sign(d) sqrt(max(|d|, 1e-6)), d the product of the norms of key and
    query (batch, length, C, H) over sqrt(H).
    """
    dtype, size = key.tensor.dtype, key.tensor.static_shape[-1]
    factors = (
        b.Mul(_normal(b, convert(b, x, dtypes.f32), epsilon), convert(b, scale, dtypes.f32))
        for x, scale in ((key, key_scale), (query, query_scale))
    )
    products = b.ReduceSum(b.Mul(*factors), np.array([-1]), keepdims=1)
    dot = b.Mul(products, 1 / math.sqrt(size))
    root = b.Sqrt(b.Max(b.Abs(dot), b.constant(1e-6, dtypes.f32)))
    gate = b.Sigmoid(b.Mul(b.Sign(dot), root))
    wide = b.Mul(gate, b.Unsqueeze(convert(b, value, dtypes.f32), np.array([2])))
    if b.count == 1:
        return (convert(b, wide, dtype),)
    if conv_scale is None:
        raise ModelError("the second result needs conv_norm_scale")
    normal = b.Mul(_normal(b, wide, epsilon), convert(b, conv_scale, dtypes.f32))
    return convert(b, wide, dtype), convert(b, normal, dtype)
