"""Constant factors and terms around contractions go into their weights.

Rounding order changes, nothing else: the weights' products are computed once, in float32 or wider.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.passes.pattern import P, const, opt, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of, channel_vector, shape_of
from graphc.passes.rules.views import reshaped

x, y, w, b, s, t, m, v = var("x y w b s t m v")
c = const("c")


LARGE = 1 << 16  # elements of weights that are not duplicated because they have other users too


def _is_wide(value: Value) -> bool:
    return value.tensor.dtype.is_float and value.tensor.dtype.bits >= 32


def is_shared(weights: Value) -> bool:
    """Whether scaling these weights would keep a second large copy of them."""
    return len(weights.uses) > 1 and weights.tensor.size > LARGE


def _scale_shift(rw: Rewriter, bn: Op) -> tuple[np.ndarray, np.ndarray] | None:
    """k and h such that the normalisation is x * k + h, per channel, in float64."""
    if rw.attr(bn, "training_mode") or len(bn.outputs) > 1:
        return rw.skip("it is in training mode")
    arrays = [array_of(value) for value in bn.inputs[1:]]
    if any(array is None for array in arrays):
        return rw.skip("its statistics are not all constants")
    scale, bias, mean, variance = (array.astype(np.float64) for array in arrays)  # type: ignore[union-attr]
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + rw.attr(bn, "epsilon"))
        shift = bias - mean * factor
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return rw.skip("a factor is not finite")
    return factor, shift


# ---------------------------------------------------------------- convolutions


def _weight_shape(rw: Rewriter, conv: Op, w: Value, per_channel: np.ndarray) -> np.ndarray:
    """One number per output channel, shaped to multiply the weights of a (transposed) Conv."""
    spatial = (1,) * (w.tensor.rank - 2)
    if CONVOLVED.admits(conv.defn):
        return per_channel.reshape(-1, 1, *spatial)
    group = rw.attr(conv, "group") or 1
    rows = w.tensor.static_shape[0]
    blocks = per_channel.reshape(group, 1, -1)
    return np.repeat(blocks, rows // group, axis=1).reshape(rows, -1, *spatial)


def _with_affine(
    rw: Rewriter, conv: Op, x: Value, w: Value, b: Value | None, factor: np.ndarray | None,
    shift: np.ndarray,
) -> Value | None:  # fmt: skip
    """conv(x, w, b) * factor + shift, per output channel, as one convolution."""
    weights, bias = array_of(w), array_of(b)
    if weights is None or (b is not None and bias is None):
        return rw.skip("weights are not all constants")
    if not _is_wide(w):
        return rw.skip("{} weights would be rounded once more", w.tensor.dtype)
    if factor is not None and is_shared(w):
        return rw.skip("the weights are large and have other users")
    dtype = weights.dtype
    if factor is not None:
        wide = _weight_shape(rw, conv, w, factor.astype(np.float64))
        weights = (weights * wide).astype(dtype)
    old = np.zeros(len(shift)) if bias is None else bias.astype(np.float64)
    new = old * (1 if factor is None else factor) + shift
    moved = w if factor is None else rw.constant(weights)
    if b is None and not new.any():
        return rw.op(conv.name, x, moved, **conv.attrs)
    return rw.op(conv.name, x, moved, rw.constant(new.astype(dtype)), **conv.attrs)


CONVOLVED = P.Conv(x, w, opt(b))
CONVOLUTION = P.one_of("Conv", "ConvTranspose")(x, w, opt(b)).only_use()
MATRIX_PRODUCT = P.one_of("MatMul", "Gemm")(x, w, opt(b)).only_use()
RESHAPED = P.Reshape(x, w).only_use()


@rule("fold-bn-into-conv", P.BatchNormalization(CONVOLUTION, s, t, m, v))
def fold_bn_into_conv(
    rw: Rewriter, conv: Op, bn: Op, x: Value, w: Value, b: Value | None, s: Value, t: Value,
    m: Value, v: Value,
) -> Value | None:  # fmt: skip
    """s*(W*x + b - m)/sqrt(v+eps) + t  ==  (W*k)*x + ((b-m)*k + t)   with k = s/sqrt(v+eps)."""
    if not rw.all_const(w, b):
        return rw.skip("weights are not all constants")
    affine = _scale_shift(rw, bn)
    return None if affine is None else _with_affine(rw, conv, x, w, b, *affine)


@rule("fold-scale-into-conv", P.Mul(CONVOLUTION, c).commutes())
def fold_scale_into_conv(
    rw: Rewriter, conv: Op, op: Op, x: Value, w: Value, b: Value | None, c: Value
) -> Value | None:
    """(W*x + b) * k == (W*k)*x + b*k   for one k per output channel."""
    factor = _per_channel(rw, conv, op, c)
    if factor is None:
        return None
    return _with_affine(rw, conv, x, w, b, factor, np.zeros(len(factor)))


@rule("fold-bias-into-conv", P.Add(CONVOLUTION, c).commutes())
def fold_bias_into_conv(
    rw: Rewriter, conv: Op, op: Op, x: Value, w: Value, b: Value | None, c: Value
) -> Value | None:
    """(W*x + b) + t == W*x + (b + t)   for one t per output channel."""
    shift = _per_channel(rw, conv, op, c)
    if shift is None:
        return None
    return _with_affine(rw, conv, x, w, b, None, shift)


def _per_channel(rw: Rewriter, conv: Op, op: Op, c: Value) -> np.ndarray | None:
    type = conv.output.tensor
    if op.output.type != type:
        return rw.skip("the constant broadcasts the convolution")
    vector = channel_vector(c, type.rank, 1, type.static_shape[1])
    if vector is None:
        return rw.skip("the constant differs within a channel")
    return vector if np.isfinite(vector).all() else rw.skip("the constant is not finite")


# ---------------------------------------------------------------- matrix products


@rule("fold-scale-into-matmul", P.Mul(P.MatMul(x, w).only_use(), c).commutes())
def fold_scale_into_matmul(
    rw: Rewriter, matmul: Op, op: Op, x: Value, w: Value, c: Value
) -> Value | None:
    """(x W) * k == x (W*k)   for one k per column, or one for all."""
    weights, type = array_of(w), matmul.output.tensor
    if weights is None or weights.ndim < 2 or not _is_wide(w):
        return rw.skip("the right operand is no constant matrix of float32 or wider")
    if is_shared(w):
        return rw.skip("the weights are large and have other users")
    if op.output.type != type:
        return rw.skip("the constant broadcasts the product")
    factor = channel_vector(c, type.rank, type.rank - 1, type.static_shape[-1])
    if factor is None or not np.isfinite(factor).all():
        return rw.skip("the constant differs within a column")
    return rw.MatMul(x, rw.constant((weights * factor.astype(np.float64)).astype(weights.dtype)))


@rule("fold-bn-into-matmul", P.BatchNormalization(MATRIX_PRODUCT, s, t, m, v))
def fold_bn_into_matmul(
    rw: Rewriter, op: Op, bn: Op, x: Value, w: Value, b: Value, s: Value, t: Value, m: Value,
    v: Value,
) -> Value | None:  # fmt: skip
    """s*(x W + b - m)/sqrt(v+eps) + t  ==  x (W*k) + ((b-m)*k + t)   with k = s/sqrt(v+eps)."""
    weights, bias = array_of(w), array_of(b)
    if weights is None or weights.ndim != 2 or (b is not None and bias is None) or not _is_wide(w):
        return rw.skip("weights are not all constants of float32 or wider")
    if is_shared(w):
        return rw.skip("the weights are large and have other users")
    affine = _scale_shift(rw, bn)
    if op.output.tensor.rank != 2:
        return rw.skip("the product is not of two dimensions")
    if affine is None:
        return None
    factor, shift = affine
    columns = factor.reshape(-1, 1) if rw.attr(op, "transB") else factor
    beta = op.attrs.get("beta", 1)
    old = np.zeros(1) if bias is None else bias.astype(np.float64) * beta
    scaled = rw.constant((weights * columns).astype(weights.dtype))
    moved = rw.constant((old * factor + shift).astype(weights.dtype))
    attrs = {k: value for k, value in op.attrs.items() if k != "beta"}
    return rw.Gemm(x, scaled, moved, **attrs)


@rule("gemm-factors", P.Gemm(x, w, opt(b)))
def gemm_factors(rw: Rewriter, op: Op, x: Value, w: Value, b: Value | None) -> Value | None:
    """alpha * x W + beta * c == x (alpha W) + (beta c)   for constant W and c."""
    alpha, beta = rw.attr(op, "alpha"), rw.attr(op, "beta")
    weights, bias = array_of(w), array_of(b)
    if alpha == 1 and (beta == 1 or b is None):
        return rw.skip("it has no factors")
    if weights is None or (b is not None and bias is None) or not _is_wide(w):
        return rw.skip("weights are not all constants of float32 or wider")
    if alpha != 1 and is_shared(w):
        return rw.skip("the weights are large and have other users")
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        return rw.skip("a factor is not finite")
    moved = rw.constant((weights * np.float64(alpha)).astype(weights.dtype))
    term = None
    if bias is not None and beta != 0:
        term = rw.constant((bias * np.float64(beta)).astype(bias.dtype))
    attrs = {k: value for k, value in op.attrs.items() if k not in ("alpha", "beta")}
    return rw.Gemm(x, moved, term, **attrs)


@rule("split-of-product", P.Split(y, rest("sizes")), group="products")
def split_of_product(rw: Rewriter, split: Op, y: Value, sizes: list[Value]) -> list[Value] | None:
    """split(reshape(x W + b)) == reshape(x W1 + b1), reshape(x W2 + b2), ..   for parts of the
    columns, which what follows may then scale."""
    reshape = RESHAPED.maker(y)
    y = y if reshape is None else reshape.operand(0)
    product = MATRIX_PRODUCT.maker(y)
    columns = split.operand(0).tensor.static_shape[-1]
    if product is None:
        return rw.skip("no product that nobody else reads")
    x, w, b = (*product.inputs, None)[:3]
    weights, term = array_of(w), array_of(b)
    if w is None or weights is None or weights.ndim != 2 or (b is not None and term is None):
        return rw.skip("weights are no constant matrix")
    if is_shared(w):
        return rw.skip("the weights are large and have other users")
    axis = rw.attr(split, "axis") % split.operand(0).tensor.rank
    if axis != split.operand(0).tensor.rank - 1 or y.tensor.dims[-1] != columns:
        return rw.skip("it does not split columns")
    rw.loc = tuple(dict.fromkeys((*product.loc, *rw.loc)))
    side, parts, start = (0 if rw.attr(product, "transB") else 1), [], 0
    for part in split.outputs:
        inside = slice(start, start + part.tensor.static_shape[-1])
        operands = [x, rw.constant(weights[inside] if side == 0 else weights[:, inside])]
        if term is not None:
            whole = term.ndim and term.shape[-1] == columns
            operands.append(rw.constant(term[..., inside] if whole else term))
        result = rw.op(product.name, *operands, **product.attrs)
        parts.append(reshaped(rw, result, shape_of(part)))
        start = inside.stop
    return parts


# ---------------------------------------------------------------- a normalisation on its own


@rule("bn-to-affine", P.BatchNormalization(x, s, t, m, v))
def bn_to_affine(
    rw: Rewriter, bn: Op, x: Value, s: Value, t: Value, m: Value, v: Value
) -> Value | None:
    """s*(x - m)/sqrt(v+eps) + t  ==  x*k + (t - m*k)   with k = s/sqrt(v+eps)."""
    producer = x.producer
    if producer is not None and any(p.admits(producer.defn) for p in (CONVOLUTION, MATRIX_PRODUCT)):
        weights = producer.inputs[1]
        shared = weights is not None and is_shared(weights)
        if len(x.uses) == 1 and rw.all_const(*producer.inputs[1:]) and _is_wide(x) and not shared:
            return rw.skip("it is folded into the contraction")
    if not _is_wide(x):
        return rw.skip("{} would be rounded once more", x.tensor.dtype)
    affine = _scale_shift(rw, bn)
    if affine is None:
        return None
    rank, dtype = x.tensor.rank, x.tensor.dtype.np
    shape = (-1, *(1,) * (rank - 2)) if rank > 1 else (-1,)
    factor, shift = (array.reshape(shape).astype(dtype) for array in affine)
    return rw.Add(rw.Mul(x, rw.constant(factor)), rw.constant(shift))
