"""Quantisation: by hand, in one operator, and as chains of Quantize- and DequantizeLinear."""

from __future__ import annotations

import numpy as np
from generator import Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.graph import Value
from templates.table import is_f32, template

BYTES = (dtypes.u8, dtypes.i8)


def is_byte(d: DType) -> bool:
    return d in BYTES


def scale_of(g: Generator) -> np.ndarray:
    """A power of two, so that products with it are exact."""
    return np.array(2.0 ** g.integer(-5, -2), np.float32)


def quantised(
    g: Generator, x: Value, kind: DType | None = None
) -> tuple[Value, np.ndarray, np.ndarray]:
    """x in 8 bits, its scale and zero point."""
    kind = kind or g.choice(BYTES)
    scale, zero = scale_of(g), np.array(g.choice((0, 3, 100)), kind.np)
    return g.emit("QuantizeLinear", x, scale, zero, keeps=True), scale, zero


@template(0.6)
def quantise(g: Generator) -> None:
    """To another type, by scales per tensor, per axis or per block, and back."""
    x = g.pick(is_f32, exact=True, filled=True)
    kind = g.choice((*BYTES, *BYTES, dtypes.u16, dtypes.i16))
    shape, attrs = [], {}
    if x.tensor.rank and g.chance(0.6):
        axis = g.integer(0, x.tensor.rank - 1)
        attrs["axis"] = axis
        shape = [x.tensor.dims[axis]]
        if g.chance(0.3):
            shape, extent = list(x.tensor.dims), x.tensor.dims[axis]
            attrs["block_size"] = g.choice([d for d in range(1, extent + 1) if extent % d == 0])
            shape[axis] = extent // attrs["block_size"]
    scale = (2.0 ** g.rng.integers(-5, 1, shape)).astype(np.float32)
    zero = g.rng.integers(0, 100, shape).astype(kind.np) if g.chance(0.8) else None
    if zero is None:
        attrs["output_dtype"] = kind.onnx
    y = g.emit("QuantizeLinear", x, scale, zero, keeps=True, **attrs)
    attrs.pop("output_dtype", None)
    g.emit("DequantizeLinear", y, scale, zero, keeps=True, **attrs)


@template(0.4)
def quantise_by_range(g: Generator) -> None:
    x = g.pick(is_f32, exact=True, filled=True)
    x = g.emit("Clip", g.emit("Round", x, keeps=True), -100.0, 155.0, keeps=True)
    ends = g.b.constant(np.array([-100, 155], np.float32))
    g.exact.add(ends)
    flat = g.emit("Reshape", x, np.array([-1], np.int64), keeps=True)
    joined = g.emit("Concat", flat, ends, axis=0, keeps=True)
    g.emit("DynamicQuantizeLinear", joined, outputs=3, keeps=True)


@template(0.6)
def matmul_integer(g: Generator) -> None:
    x = g.pick(is_byte, (1, 4), filled=True)
    kind = g.choice(BYTES)
    w = g.operand(kind, (x.tensor.dims[-1], g.integer(1, 20)))
    zero = np.array(5, x.tensor.dtype.np) if g.chance(0.5) else None
    columns = (w.tensor.dims[1],)
    other = None if g.chance(0.5) else g.rng.integers(0, 9, columns).astype(kind.np)
    if x.tensor.dtype is dtypes.i8 and kind is dtypes.u8 or other is not None:
        g.for_onnxruntime = False  # it lacks them
    g.emit("MatMulInteger", x, w, zero, other, keeps=True)


@template(0.5)
def conv_integer(g: Generator) -> None:
    x = g.pick(is_byte, (3, 4), filled=True)
    kernel = [g.integer(1, min(3, d)) for d in x.tensor.dims[2:]]
    w = g.constant(g.choice(BYTES), (g.integer(1, 9), x.tensor.dims[1], *kernel))
    zero = np.array(g.choice((0, 7)), x.tensor.dtype.np) if g.chance(0.7) else None
    pads = [g.integer(0, k - 1) for k in kernel * 2]
    g.emit("ConvInteger", x, w, zero, pads=pads, keeps=True)


@template(0.5)
def linear_in_bytes(g: Generator) -> None:
    """QLinearMatMul and QLinearConv. Scales are powers of two, so that roundings are the same."""
    x = g.pick(is_byte, (2, 4), filled=True)
    kind = x.tensor.dtype
    zero = np.array(g.choice((0, 7)), kind.np)
    out_zero = np.array(g.choice((0, 5)), kind.np)
    w_zero, scale = np.array(0, np.int8), np.array(0.25, np.float32)
    out_scale = np.array(2.0 ** g.integer(-1, 3), np.float32)
    if x.tensor.rank == 2 or g.chance(0.4):
        w = g.constant(dtypes.i8, (x.tensor.dims[-1], g.integer(1, 9)))
        g.emit("QLinearMatMul", x, scale, zero, w, scale, w_zero, out_scale, out_zero, keeps=True)
        return
    channels = x.tensor.dims[1]
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0][:3])
    kernel = [g.integer(1, min(3, d)) for d in x.tensor.dims[2:]]
    w = g.constant(dtypes.i8, (group * g.integer(1, 4), channels // group, *kernel))
    bias = g.constant(dtypes.i32, w.tensor.dims[:1]) if g.chance(0.5) else None
    g.emit("QLinearConv", x, scale, zero, w, scale, w_zero, out_scale, out_zero, bias,
           group=group, keeps=True)  # fmt: skip


@template(1)
def chain_in_bytes(g: Generator) -> None:
    """Quantised layers as frameworks export them: every result goes through 8 bits and back.

    All scales are powers of two and sums stay below 2^24, so that floats hold them exactly.
    """
    x = g.pick(is_f32, (2, 4), exact=True, filled=True)
    if x.tensor.size > 2000:
        raise Decline
    kind = g.choice(BYTES)
    y = through_bytes(g, x, kind)
    for _ in range(g.integer(1, 3)):
        y = through_bytes(g, exact(g, layer_in_bytes(g, y)), kind)


def exact(g: Generator, x: Value) -> Value:
    g.exact.add(x)
    return x


def through_bytes(g: Generator, x: Value, kind: DType) -> Value:
    y, scale, zero = quantised(g, x, kind)
    return g.emit("DequantizeLinear", y, scale, zero, keeps=True)


def weights_in_bytes(g: Generator, shape: tuple[int, ...], axis: int) -> Value:
    """Weights with a scale per position of an axis, or one."""
    w = g.constant(dtypes.i8, shape)
    parts = [shape[axis]] if g.chance(0.5) else []
    scale = (2.0 ** g.rng.integers(-5, -2, parts)).astype(np.float32)
    return g.emit("DequantizeLinear", w, scale, np.zeros(parts, np.int8), axis=axis, keeps=True)


def layer_in_bytes(g: Generator, y: Value) -> Value:
    which = g.integer(0, 5)
    rank, dims = y.tensor.rank, y.tensor.dims
    if rank > 2 and which < 2:
        group = dims[1] if which else 1
        kernel = [g.integer(1, min(3, d)) for d in dims[2:]]
        w = weights_in_bytes(g, (group * g.integer(1, 4), dims[1] // group, *kernel), 0)
        y = g.emit("Conv", y, w, bias_in_bytes(g, w.tensor.dims[0]), group=group)
        return g.emit("Relu", exact(g, y), keeps=True) if g.chance(0.4) else y
    if rank == 2 and which < 2:
        turned = g.integer(0, 1)
        columns = g.integer(1, 9)
        shape = (columns, dims[1]) if turned else (dims[1], columns)
        w = weights_in_bytes(g, shape, 1 - turned)
        return g.emit("Gemm", y, w, bias_in_bytes(g, columns), transB=turned)
    if which == 2:
        return g.emit("Add", y, g.choice([v for v in g.pool if v.type == y.type and v in g.exact]))
    if which == 3 and rank > 2:
        kernel = [g.integer(1, min(2, d)) for d in dims[2:]]
        return g.emit("MaxPool", y, kernel_shape=kernel, keeps=True)
    if which == 4:
        return g.emit("Clip", y, 0.0, 6.0, keeps=True)
    return g.emit("Concat", y, y, axis=g.integer(0, rank - 1), keeps=True)


def bias_in_bytes(g: Generator, count: int) -> np.ndarray | None:
    """Multiples of all products of scales: other biases are rounded to such multiples."""
    return (g.rng.integers(-16, 16, count) / 8).astype(np.float32) if g.chance(0.6) else None
