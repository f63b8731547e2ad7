"""Normalisations: bodies where the statistics are given, composites where they are computed.

Composites compute the variance as mean((x - mean(x))^2), never as mean(x^2) - mean(x)^2, which
cancels. `stash_type` names the type the statistics are computed in (ONNX: float32 by default); they
are never computed in a narrower one than x has, which the standard's text would do to float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import Expr, Index, as_expr, cast, reduce, select, sqrt
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Operand, OutIndex, axes, composite, op
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import float_type, normal_axis, same_shape, shaped
from graphc.ir.ops.pooling import power, root
from graphc.ir.types import Dim, Shape

# ---------------------------------------------------------------- batch statistics


def _batch_norm_shape(x: Operand, scale: Operand, *_: object, count: int) -> list[Shape]:
    if x.rank > 1 and isinstance(x.shape[1], int) and scale.shape != (x.shape[1],):
        raise ModelError(f"scale has shape {list(scale.shape)}, x has {x.shape[1]} channels")
    return [x.shape, *[scale.shape] * (count - 1)]


@op("BatchNormalization", infer=_batch_norm_shape, outputs=None)
def batch_normalization(
    i: OutIndex, x: Float, scale: Float, bias: Float, mean: Float, var: Float, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Expr:  # fmt: skip
    """(x - mean) * (scale / sqrt(var + epsilon)) + bias per channel (axis 1).

    In training mode, by the batch's own mean and population variance; outputs 1 and 2 are then
    mean and var moved towards those: momentum * old + (1 - momentum) * batch.
    """
    if i.output:
        batch = _batch_moments(x, i[0])[i.output - 1]
        old = (mean, var)[i.output - 1][i[0]]
        return old * momentum + cast(batch, old.dtype) * (1 - momentum)
    channel = i[1] if x.rank > 1 else as_expr(0, dtypes.i64)
    wide = x.dtype.compute
    centre, spread = (cast(v[channel], wide) for v in (mean, var))
    if training_mode:
        centre, spread = (cast(v, wide) for v in _batch_moments(x, channel))
    factor = cast(scale[channel], wide) / sqrt(spread + epsilon)
    return cast((cast(x[i], wide) - centre) * factor + cast(bias[channel], wide), x.dtype)


def _batch_moments(x: Operand, channel: Index) -> tuple[Expr, ...]:
    """Mean and population variance of one channel over the batch and all positions."""

    def value(over: Sequence[Index]) -> Expr:
        return cast(x[over[:1] + (channel,) + over[1:]], x.dtype.compute)

    extents = (x.shape[0], *x.shape[2:])
    first, again = axes(*extents), axes(*extents, name="m")
    mean = _mean(value(first), first)
    centred = value(again) - mean
    return mean, _mean(centred * centred, again)


def _mean(value: Expr, over: Sequence[Index]) -> Expr:
    count = math.prod((k.extent for k in over), start=as_expr(1, dtypes.i64))
    return reduce("sum", value, over) / cast(count, value.dtype)


# ---------------------------------------------------------------- composites


def moments(b: Builder, x: Value, over: Sequence[int]) -> tuple[Value, Value, Value]:
    """Mean, x - mean, and the mean of its square, over some axes (kept as 1)."""
    where = np.array(over, np.int64)
    mean = b.ReduceMean(x, where, keepdims=1)
    centred = b.Sub(x, mean)
    return mean, centred, b.ReduceMean(b.Mul(centred, centred), where, keepdims=1)


def inverse_root(b: Builder, variance: Value, epsilon: float) -> Value:
    """1 / sqrt(variance + epsilon)."""
    return b.Reciprocal(b.Sqrt(b.Add(variance, epsilon)))


def scale_and_shift(b: Builder, x: Value, scale: Value | None, bias: Value | None) -> Value:
    """x * scale + bias, either of which may be absent."""
    if scale is not None:
        x = b.Mul(x, scale)
    return x if bias is None else b.Add(x, bias)


def stashed(b: Builder, x: Value, stash_type: int) -> Value:
    """x in the type that its statistics are computed in."""
    stash = float_type(stash_type, "stash_type")
    return x if x.tensor.dtype.bits > stash.bits else convert(b, x, stash)


@composite("LayerNormalization", outputs=None, traits=("finite",))
def layer_normalization(
    b: Builder, x: Float, scale: Float, bias: Float | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: int = 1,
) -> tuple[Value, ...]:  # fmt: skip
    """Zero mean and unit variance over the axes from `axis` on; also the mean and 1 / deviation."""
    first = normal_axis(axis, x.tensor.rank)
    wide = stashed(b, x, stash_type)
    mean, centred, variance = moments(b, wide, range(first, x.tensor.rank))
    inverse = inverse_root(b, variance, epsilon)
    normal = convert(b, b.Mul(centred, inverse), x.tensor.dtype)
    statistics = (convert(b, v, float_type(stash_type, "stash_type")) for v in (mean, inverse))
    return scale_and_shift(b, normal, scale, bias), *statistics


@composite("RMSNormalization", traits=("finite",))
def rms_normalization(
    b: Builder, x: Float, scale: Float, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:  # fmt: skip
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on."""
    first = normal_axis(axis, x.tensor.rank)
    wide = stashed(b, x, stash_type)
    where = np.arange(first, x.tensor.rank)
    inverse = inverse_root(b, b.ReduceMean(b.Mul(wide, wide), where, keepdims=1), epsilon)
    normal = convert(b, b.Mul(wide, inverse), scale.tensor.dtype)
    return b.Mul(normal, scale)


@composite("GroupNormalization", traits=("finite",))
def group_normalization(
    b: Builder, x: Float, scale: Float, bias: Float, *, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:  # fmt: skip
    """Zero mean and unit variance within each of `num_groups` groups of channels."""
    batch, _, *spatial = x.tensor.dims
    channels = x.tensor.extent(1)
    if channels % num_groups:
        raise ModelError(f"{channels} channels do not divide into {num_groups} groups")
    size = math.prod((channels // num_groups, *spatial))  # type: ignore[arg-type]
    grouped = shaped(b, x, batch, num_groups, size)
    wide = stashed(b, grouped, stash_type)
    _, centred, variance = moments(b, wide, (2,))
    normal = convert(b, b.Mul(centred, inverse_root(b, variance, epsilon)), x.tensor.dtype)
    per_channel = np.array((channels, *(1,) * len(spatial)))
    return scale_and_shift(
        b, shaped(b, normal, *x.tensor.dims),
        b.Reshape(scale, per_channel), b.Reshape(bias, per_channel),
    )  # fmt: skip


@composite("InstanceNormalization", traits=("finite",))
def instance_normalization(
    b: Builder, x: Float, scale: Float, bias: Float, *, epsilon: float = 1e-5
) -> Value:
    """Zero mean and unit variance over the positions of each image and channel."""
    _, centred, variance = moments(b, x, range(2, x.tensor.rank))
    per_channel = np.array((-1, *(1,) * (x.tensor.rank - 2)))
    normal = b.Mul(centred, inverse_root(b, variance, epsilon))
    return scale_and_shift(b, normal, b.Reshape(scale, per_channel), b.Reshape(bias, per_channel))


@composite("MeanVarianceNormalization")
def mean_variance_normalization(b: Builder, x: Float, *, axes: Sequence[int] = (0, 2, 3)) -> Value:
    """(x - mean) / (deviation + 1e-9) over the axes."""
    _, centred, variance = moments(b, x, axes)
    return b.Div(centred, b.Add(b.Sqrt(variance), 1e-9))


# ---------------------------------------------------------------- norms


@op("LpNormalization", infer=same_shape)
def lp_normalization(i: OutIndex, x: Float, *, axis: int = -1, p: int = 2) -> Expr:
    """x divided by its p-norm along the axis; 0 where that is 0."""
    axis = normal_axis(axis, x.rank)
    (k,) = axes(x.shape[axis])
    norm = root(reduce("sum", power(x[i[:axis] + (k,) + i[axis + 1 :]], p), (k,)), p)
    return select(norm.eq(0), 0, x[i] / norm)


def _lrn_shape(x: Operand, *, size: Dim) -> Shape:
    if size < 1 or x.rank < 2:
        raise ModelError(f"takes rank 2 or more and a positive size, found {x.type} and {size}")
    return x.shape


@op("LRN", infer=_lrn_shape)
def local_response_normalization(
    i: OutIndex, x: Float, *, size: Dim, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Expr:
    """x / (bias + alpha / size * (sum of squares over `size` neighbouring channels)) ** beta."""
    (k,) = axes(size)
    channel = i[1] + k - (size - 1) // 2
    value = x[i[:1] + (channel,) + i[2:]]
    inside = (channel >= 0) & (channel < x.shape[1])
    total = reduce("sum", select(inside, value * value, 0), (k,))
    return x[i] / (total * (alpha / size) + bias) ** beta
