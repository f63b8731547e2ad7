"""Quantised convolutions and matrix products: sums of products in int32, requantised per channel.

The bias and the zero-point correction of the activations are one integer per channel. Weights with
zero points are stored less these: then they fit int8, or else int16.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.ir.dtypes import i8, i16
from graphc.ir.graph import Op, Value
from graphc.passes.pattern import P, attribute, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of
from graphc.passes.rules.quantised.activations import Activated
from graphc.passes.rules.quantised.kernels import in_one_kernel
from graphc.passes.rules.quantised.rescale import LARGEST_SUM, rescaled
from graphc.passes.rules.quantised.values import (
    BYTES,
    GROUP,
    Quantised,
    activation,
    dequantised,
)
from graphc.passes.rules.transposed_conv import as_convolutions
from graphc.records import dataclass

LARGEST_BYTE = 255  # of an activation less its zero point
NO_OPERAND = "an operand is not dequantised from 8 bits with one scale"

x, w, b = var("x w b")


@dataclass(frozen=True)
class Weights:
    """Constant integers without zero point, their scale (one, or one per output channel), and the
    value that holds them if they are just what the model has."""

    contents: np.ndarray
    steps: np.ndarray
    own: Value | None

    def value(self, rw: Rewriter) -> Value:
        return self.own if self.own is not None else rw.constant(self.contents)


def constant_weights(rw: Rewriter, value: Value | None, axis: int) -> Weights | None:
    """Weights that were dequantised from 8-bit constants, scaled along `axis` or as a whole."""
    source = dequantised(value)
    if source is None or source.dtype not in BYTES:
        return rw.skip("the weights are not dequantised from 8 bits")
    contents = array_of(source.value)
    if contents is None:
        return rw.skip("the weights are not constant")
    if not source.per_tensor and source.axis != axis:
        return rw.skip("the weights' scales do not belong to the output channels")
    if not source.zero.any():
        return Weights(contents, source.scale.reshape(-1), source.value)
    return Weights(_less_zero_points(contents, source), source.scale.reshape(-1), None)


def _less_zero_points(contents: np.ndarray, source: Quantised) -> np.ndarray:
    shape = [1] * contents.ndim
    if source.zero.size > 1:
        shape[source.axis] = source.zero.size
    less = contents.astype(np.int64) - source.zero.reshape(shape)
    fits = i8.min <= less.min(initial=0) and less.max(initial=0) <= i8.max
    return less.astype(np.int8 if fits else i16.np)


def _biases(rw: Rewriter, bias: Value | None, steps: np.ndarray) -> np.ndarray | None:
    """A constant bias in whole `steps` (one per channel, or one for all); ONNX Runtime rounds one
    of floats likewise (its WeightBiasQuantization)."""
    if bias is None:
        return np.zeros(1)
    source = dequantised(bias)
    if source is not None and array_of(source.value) is not None:
        real = _real(source)
    else:
        plain = array_of(bias)
        if plain is None:
            return rw.skip("the bias is not constant")
        real = plain.astype(np.float64)
    return np.rint(real.reshape(-1) / steps.reshape(-1))


def _real(source: Quantised) -> np.ndarray:
    """The real numbers that a constant vector means."""
    contents = array_of(source.value)
    assert contents is not None
    return (contents.astype(np.float64) - source.zero) * source.scale


def _product(
    rw: Rewriter,
    op: Op,
    weights: np.ndarray,
    steps: np.ndarray,
    bias: Value | None,
    axis: int,
    after: Activated,
    total: Callable[[bool], Value],
    padded: bool = False,
) -> Value | None:
    """A sum of x * weights (output channels first); `total(centred)` builds it in int32."""
    x, channels = activation(op.inputs[0]), weights.shape[0]
    assert x is not None
    units = np.broadcast_to(x.step * steps, (channels,))
    own = _biases(rw, bias, units)
    if own is None or not np.isfinite(own).all():
        return rw.skip("the bias is not a finite constant")
    sums = weights.reshape(channels, -1).astype(np.int64)
    largest = np.abs(sums).sum(1).max(initial=0) * LARGEST_BYTE + np.abs(own).max(initial=0)
    if largest > LARGEST_SUM:
        return rw.skip(f"sums up to {largest:.0f} do not fit int32")
    centred = padded and x.zero_point != 0
    offsets = np.zeros(channels) if centred else -x.zero_point * sums.sum(1)
    if after.slope is not None and after.slope.size > 1 and axis != 1:
        return rw.skip("the slopes below zero belong to another axis")
    below = after.slopes(channels)
    factors = units / after.target.step
    if in_one_kernel(rw, op, after):
        factors = _as_floats(x.step, steps, after.target.step, channels)
    return rescaled(
        rw, total(centred), offsets, factors, axis, after.target,
        None if below is None else factors * below, bias=np.broadcast_to(own, (channels,)),
        largest=largest,
    )  # fmt: skip


def _as_floats(x: float, w: np.ndarray, y: float, channels: int) -> np.ndarray:
    """x * w / y as float32 has it, where sums are multiplied by that."""
    factors = np.float32(x) * w.astype(np.float32) / np.float32(y)
    return np.broadcast_to(factors.astype(np.float64), (channels,))


# ---------------------------------------------------------------- convolutions


def convolution(rw: Rewriter, conv: Op, after: Activated) -> Value | None:
    """Conv of a quantised activation with constant quantised weights."""
    x = activation(conv.inputs[0])
    if x is None:
        return rw.skip(NO_OPERAND)
    weights = constant_weights(rw, conv.inputs[1], 0)
    if weights is None:
        return None
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    pads, auto = conv.attrs.get("pads"), conv.attrs.get("auto_pad", "NOTSET")
    padded = auto.startswith("SAME") or any(pads or ())

    def total(centred: bool) -> Value:
        zero = rw.constant(np.array(x.zero_point, x.dtype.np)) if centred else None
        return rw.ConvInteger(x.value, weights.value(rw), zero, **conv.attrs)

    return _product(rw, conv, weights.contents, weights.steps, bias, 1, after, total, padded)


@rule("quantised-conv-transpose", P.ConvTranspose(x, w, opt(b)), group=GROUP)
def quantised_conv_transpose(
    rw: Rewriter, op: Op, x: Value, w: Value, b: Value | None
) -> Value | None:
    """convtranspose(d(x), d(w)) == convolutions of d(x) with d(w), w moved as integers."""
    source, weights = activation(x), constant_weights(rw, w, 1)
    if source is None:
        return rw.skip(NO_OPERAND)
    if weights is None:
        return None
    if (attribute(op, "group") or 1) > 1 and weights.steps.size > 1:
        return rw.skip("it has groups, and scales per channel")
    contents, parameters = weights.contents, w.producer
    assert parameters is not None
    step = parameters.operand(1).tensor.dtype
    packed = np.empty(contents.shape, [("weight", contents.dtype), ("step", np.float64)])
    packed["weight"] = contents
    packed["step"] = weights.steps.reshape([1, -1, *[1] * (contents.ndim - 2)])

    def constant(kernel: np.ndarray) -> Value:
        scale = kernel["step"].reshape(kernel.shape[0], -1)[:, 0].astype(step.np)
        integers = rw.constant(np.ascontiguousarray(kernel["weight"]))
        to = parameters.attrs.get("output_dtype")
        return rw.DequantizeLinear(integers, rw.constant(scale), axis=0, output_dtype=to)

    return as_convolutions(rw, op, x, packed, _plain_bias(rw, b), constant)


def _plain_bias(rw: Rewriter, bias: Value | None) -> Value | None:
    """A bias of floats, which can be repeated; one that is dequantised is computed now."""
    integers = dequantised(bias)
    if integers is None or array_of(integers.value) is None:
        return bias
    return rw.constant(_real(integers).astype(bias.tensor.dtype.np))  # type: ignore[union-attr]


# ---------------------------------------------------------------- matrix products


def matrix_product(
    rw: Rewriter, op: Op, after: Activated, bias: Value | None = None
) -> Value | None:
    """MatMul of a quantised activation with a constant matrix, or with another activation."""
    other = activation(op.inputs[1])
    if other is not None and array_of(other.value) is None:
        if bias is not None:
            return rw.skip("a bias is not added to the product of two activations")
        return _activations_product(rw, op, other, after)
    x = activation(op.inputs[0])
    if x is None:
        return rw.skip(NO_OPERAND)
    weights = constant_weights(rw, op.inputs[1], 1)
    if weights is None:
        return None
    if weights.contents.ndim != 2:
        return rw.skip("the weights are no matrix")
    return _product(
        rw, op, weights.contents.T, weights.steps, bias, op.output.tensor.rank - 1, after,
        lambda _: rw.MatMulInteger(x.value, weights.value(rw)),
    )  # fmt: skip


def _activations_product(rw: Rewriter, op: Op, b: Quantised, after: Activated) -> Value | None:
    a = activation(op.inputs[0])
    if a is None:
        return rw.skip(NO_OPERAND)
    length = a.value.tensor.extent(-1)
    if length * LARGEST_BYTE**2 > LARGEST_SUM:
        return rw.skip("sums of {} products do not fit int32", length)
    if after.slope is not None and after.slope.size > 1:
        return rw.skip("the slopes below zero belong to no channels")
    zeros = [np.array(q.zero_point, q.dtype.np) if q.zero_point else None for q in (a, b)]
    total = rw.MatMulInteger(a.value, b.value, *zeros)
    factors = np.array([a.step * b.step / after.target.step])
    below = None if after.slope is None else factors * after.slope
    return rescaled(rw, total, np.zeros(1), factors, 0, after.target, below)


def gemm(rw: Rewriter, op: Op, after: Activated) -> Value | None:
    """Gemm of a quantised activation with a constant matrix; `alpha` is a factor of its scale."""
    transposed = bool(attribute(op, "transB"))
    alpha = float(attribute(op, "alpha"))
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    if alpha <= 0 or attribute(op, "transA") or (bias is not None and attribute(op, "beta") != 1):
        return rw.skip("Gemm has factors, or transposes its first operand")
    x = activation(op.inputs[0])
    weights = constant_weights(rw, op.inputs[1], 0 if transposed else 1)
    if x is None:
        return rw.skip(NO_OPERAND)
    if weights is None:
        return None
    rows = weights.contents if transposed else weights.contents.T
    if bias is not None and bias.tensor.size not in (1, rows.shape[0]):
        return rw.skip("the bias has more than one row")
    matrix = weights.value(rw) if not transposed else None
    return _product(
        rw, op, rows, weights.steps * alpha, bias, 1, after,
        lambda _: rw.MatMulInteger(x.value, matrix or rw.constant(np.ascontiguousarray(rows.T))),
    )  # fmt: skip
