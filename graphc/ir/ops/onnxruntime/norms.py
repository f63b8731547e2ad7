"""ONNX Runtime's normalisations: of sums of residuals, of embeddings, of groups of channels.

Each is a graph of ONNX's operators (see fused.py). SimplifiedLayerNormalization, which is
RMSNormalization with a second result, is of ONNX's own domain though ONNX does not know it.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS, float_type, normal_axis, sliced
from graphc.ir.ops.in_range import require
from graphc.ir.ops.normalization import inverse_root, stashed
from graphc.ir.ops.onnxruntime.fused import with_channels_second


@composite("SimplifiedLayerNormalization", outputs=None)
def simplified_layer_normalization(
    b: Builder, x: Float, scale: Float, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, ...]:  # fmt: skip
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on; also the reciprocal of
    that root."""
    normal = b.RMSNormalization(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    if b.count == 1:
        return normal
    wide = stashed(b, x, stash_type)
    where = np.arange(normal_axis(axis, x.tensor.rank), x.tensor.rank)
    root = inverse_root(b, b.ReduceMean(b.Mul(wide, wide), where, keepdims=1), epsilon)
    return normal, convert(b, root, float_type(stash_type, "stash_type"))


def _sum(b: Builder, x: Value, skip: Value, bias: Value | None) -> Value:
    if skip.tensor.rank > x.tensor.rank:
        raise ModelError(f"the skip has rank {skip.tensor.rank}, the input {x.tensor.rank}")
    total = b.Add(x, skip)
    return total if bias is None else b.Add(total, bias)


@composite("SkipLayerNormalization", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def skip_layer_normalization(
    b: Builder, x: Float, skip: Float, gamma: Float, beta: Float | None = None,
    bias: Float | None = None, *, epsilon: float = 1e-12,
) -> tuple[Value, ...]:  # fmt: skip
    """LayerNormalization of x + skip + bias over the last axis; also its mean and 1 / deviation,
    and the sum. Without a beta nothing is added."""
    total = _sum(b, x, skip, bias)
    if b.count == 1:
        return b.LayerNormalization(total, gamma, beta, epsilon=epsilon)
    return *b.LayerNormalization(total, gamma, beta, epsilon=epsilon, outputs=3), total


@composite("SkipSimplifiedLayerNormalization", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def skip_simplified_layer_normalization(
    b: Builder, x: Float, skip: Float, gamma: Float, bias: Float | None = None, *,
    epsilon: float = 1e-12,
) -> tuple[Value, ...]:  # fmt: skip
    """RMSNormalization of x + skip + bias over the last axis. The second result, a mean, is 0; the
    third is the reciprocal of the root, the fourth the sum."""
    total = _sum(b, x, skip, bias)
    if b.count == 1:
        return b.RMSNormalization(total, gamma, epsilon=epsilon)
    normal, inverse = b.SimplifiedLayerNormalization(total, gamma, epsilon=epsilon, outputs=2)
    return normal, b.Sub(inverse, inverse), inverse, total


@composite("EmbedLayerNormalization", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def embed_layer_normalization(
    b: Builder, words: Int, segments: Int | None, word_table: Float, position_table: Float,
    segment_table: Float | None, gamma: Float, beta: Float, mask: Int | None = None,
    positions: Int | None = None, *, epsilon: float = 1e-12, mask_index_type: int | None = None,
) -> Value | tuple[Value, ...]:  # fmt: skip
    """LayerNormalization of the sum of the embeddings of words, positions and segments.

    Also, per sample, how many of its words the mask has as 1 (0 without a mask), and the sum.
    Positions are 0, 1, .. unless they are given.
    """
    _, length = words.tensor.static_shape
    if (segments is None) != (segment_table is None):
        raise ModelError("segment_ids and segment_embedding go together, found one of them")
    total = b.Add(_row(b, word_table, words), _positions(b, position_table, positions, length))
    if segments is not None:
        total = b.Add(total, _row(b, segment_table, segments))
    return _normal_and_count(b, total, gamma, beta, mask, epsilon)


def _normal_and_count(
    b: Builder, total: Value, gamma: Value, beta: Value, mask: Value | None, epsilon: float
) -> Value | tuple[Value, Value, Value]:
    """A sum of embeddings normalised, how many ones the mask of each sample has, and the sum."""
    normal = b.LayerNormalization(total, gamma, beta, epsilon=epsilon)
    if b.count == 1:
        return normal
    if mask is None:
        count = b.constant(np.zeros(total.tensor.static_shape[0], np.int32))
    else:
        ones = b.Cast(b.Equal(mask, 1), to=dtypes.i32.onnx)
        count = b.ReduceSum(ones, np.array([1]), keepdims=0)
    return normal, count, total


def _row(b: Builder, table: Value, indices: Value) -> Value:
    """Rows of a table. Negative indices do not count from the end."""
    require(b, indices, 0, table.tensor.dims[0] - 1)
    return b.Gather(table, indices)


def _positions(b: Builder, table: Value, positions: Value | None, length: int) -> Value:
    if positions is not None:
        return _row(b, table, positions)
    rows = table.tensor.dims[0]
    if isinstance(rows, int) and rows < length:
        raise ModelError(f"position_embedding has {rows} rows, {length} words need one each")
    return sliced(b, table, 0, length, axis=0)


@composite("QEmbedLayerNormalization", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def quantised_embed_layer_normalization(
    b: Builder, words: Int, segments: Int | None, word_table: Int, position_table: Int,
    segment_table: Int | None, gamma: Int, beta: Int, mask: Int | None, word_scale: Float,
    position_scale: Float, segment_scale: Float | None, gamma_scale: Float, beta_scale: Float,
    word_zero: Int, position_zero: Int, segment_zero: Int | None, gamma_zero: Int, beta_zero: Int,
    *, epsilon: float = 1e-12,
) -> Value | tuple[Value, ...]:  # fmt: skip
    """EmbedLayerNormalization of 8-bit tables, whose rows are dequantised once they are found."""
    _, length = words.tensor.static_shape
    word, position = _row(b, word_table, words), _positions(b, position_table, None, length)
    total = b.Add(
        b.DequantizeLinear(word, word_scale, word_zero),
        b.DequantizeLinear(position, position_scale, position_zero),
    )
    if segments is not None:
        kind = _row(b, segment_table, segments)
        total = b.Add(total, b.DequantizeLinear(kind, segment_scale, segment_zero))
    gain = b.DequantizeLinear(gamma, gamma_scale, gamma_zero)
    shift = b.DequantizeLinear(beta, beta_scale, beta_zero)
    return _normal_and_count(b, total, gain, shift, mask, epsilon)


# ---------------------------------------------------------------- groups of channels

_PLAIN, _SILU = range(2)


@composite("GroupNorm", domain=RUNTIME, traits=RUNTIME_TRAITS)
def group_norm(
    b: Builder, x: Float, gamma: Float, beta: Float, *, activation: int, groups: int,
    channels_last: int = 1, epsilon: float = 1e-5,
) -> Value:  # fmt: skip
    """GroupNormalization, of channels that are last or second, and Swish if `activation` is 1."""
    if activation not in (_PLAIN, _SILU):
        raise ModelError(f"activation must be 0 or 1, found {activation}")

    def normal(value: Value) -> Value:
        wide = convert(b, value, gamma.tensor.dtype)
        return b.GroupNormalization(wide, gamma, beta, num_groups=groups, epsilon=epsilon)

    result = with_channels_second(b, x, normal) if channels_last else normal(x)
    result = convert(b, result, x.tensor.dtype)
    return b.Swish(result) if activation == _SILU else result


@composite("SkipGroupNorm", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def skip_group_norm(
    b: Builder, x: Float, gamma: Float, beta: Float, skip: Float, bias: Float | None = None, *,
    activation: int, groups: int, channels_last: int = 1, epsilon: float = 1e-5,
) -> tuple[Value, ...]:  # fmt: skip
    """GroupNorm of x + skip + bias, and that sum. A skip of rank 2 is the same everywhere."""
    channels = x.tensor.static_shape[-1 if channels_last else 1]
    one = (1, 1, channels) if channels_last else (channels, 1, 1)
    if skip.tensor.rank == 2:
        skip = b.Reshape(skip, np.array((-1, *one)))
    total = b.Add(x, skip)
    if bias is not None:
        total = b.Add(total, b.Reshape(bias, np.array(one)))
    result = group_norm(
        b, total, gamma, beta, activation=activation, groups=groups,
        channels_last=channels_last, epsilon=epsilon,
    )  # fmt: skip
    return result, total
