"""What rewrite rules look for: operators that can be merged, and some that almost can."""

from __future__ import annotations

import numpy as np
from generator import INTEGERS, Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32
from graphc.ir.graph import Value
from templates.table import anything, is_f32, is_float, is_wide, template


def per_axis(g: Generator, x: Value, axis: int) -> Value:
    """A constant for each position of an axis, in one of the shapes that broadcast so."""
    rank, extent = x.tensor.rank, x.tensor.dims[axis]
    shape = [1] * rank
    shape[axis] = extent
    drawn = g.integer(0, 4)
    if drawn == 0:
        shape = []
    elif drawn == 1:
        shape = shape[axis:]
    elif drawn == 2:
        shape = list(x.tensor.dims[-1:])
    return g.constant(x.tensor.dtype, shape)


@template(1.5)
def chain_of_constants(g: Generator) -> None:
    """(x op c) op d, where the constants may be merged."""
    x = g.pick(is_float)
    for _ in range(2):
        name = g.choice(("Add", "Mul", "Div", "Sub", "Add", "Mul"))
        c = (
            per_axis(g, x, g.integer(0, x.tensor.rank - 1))
            if x.tensor.rank
            else g.constant(x.tensor.dtype, ())
        )
        if g.chance(0.3):
            c = g.b.constant(g.choice((0.0, -0.0, 1.0, -1.0, 2.0, 0.5)), x.tensor.dtype)
        if name == "Div":
            c = g.b.constant(np.abs(c.constant) + c.constant.dtype.type(0.5))
        turned = name in ("Add", "Mul", "Sub") and g.chance(0.3)
        x = g.emit(name, *((c, x) if turned else (x, c)))


@template(0.6, special=True)
def clips(g: Generator) -> None:
    x = g.pick(is_float)
    for _ in range(2):
        low, high = (g.choice((-2.0, -0.5, 0.0, 0.5, 1.0, 3.0)) for _ in range(2))
        bounds = [None if g.chance(0.3) else g.b.constant(v, x.tensor.dtype) for v in (low, high)]
        x = g.emit("Clip", x, *bounds, keeps=True)


@template(0.6)
def casts(g: Generator) -> None:
    """Through another type and on; only exact values where it jumps."""
    x = g.pick(lambda d: d in (f32, *INTEGERS), exact=True)
    if x.tensor.dtype is f32:
        x = g.emit("Clip", x, 0.0, 100.0, keeps=True)
    for n in range(2):
        x = g.emit("Cast", x, to=g.choice((f32, dtypes.f64, *INTEGERS)).onnx, keeps=True)
        if x.tensor.dtype.is_float and (n == 0 or g.chance(0.5)):  # no integers below their range
            x = g.emit("Clip", x, 0.0, 100.0, keeps=True)


@template(1)
def padded_window(g: Generator) -> None:
    """A Pad that the window behind it may swallow."""
    x = g.pick(is_f32, (3, 4), filled=True)
    rank = x.tensor.rank
    pads = [0 if n % rank < 2 and g.chance(0.9) else g.integer(0, 2) for n in range(2 * rank)]
    fill = None if g.chance(0.6) else g.choice((0.0, 0.5))
    x = g.emit("Pad", x, np.array(pads, np.int64), fill, mode="constant", keeps=True)
    kernel = [g.integer(1, min(3, d)) for d in x.tensor.dims[2:]]
    attrs = {"strides": [g.integer(1, 2) for _ in kernel]}
    if g.chance(0.3):
        attrs["pads"] = [g.integer(0, k - 1) for k in kernel * 2]
    if g.chance(0.5):
        g.emit("Conv", x, g.constant(f32, (g.integer(1, 5), x.tensor.dims[1], *kernel)), **attrs)
    else:
        counted = g.integer(0, 1)
        g.emit("AveragePool", x, kernel_shape=kernel, count_include_pad=counted, **attrs)


@template(1.5)
def scaled_convolution(g: Generator) -> None:
    """Scales, shifts and normalisations before and after a convolution."""
    x = g.pick(is_wide, (3, 4), filled=True)
    if g.chance(0.4):
        x = g.emit("Mul", x, per_axis(g, x, 1))
    channels, kind = x.tensor.dims[1], x.tensor.dtype
    group = g.choice([d for d in range(1, channels + 1) if channels % d == 0][:3])
    kernel = [g.integer(1, min(3, d)) for d in x.tensor.dims[2:]]
    if g.chance(0.75):
        out = group * g.integer(1, 4)
        w = g.constant(kind, (out, channels // group, *kernel))
        name = "Conv"
    else:
        per_group = g.integer(1, 3)
        out, name = group * per_group, "ConvTranspose"
        w = g.constant(kind, (channels, per_group, *kernel))
    bias = g.constant(kind, (out,)) if g.chance(0.4) else None
    y = g.emit(name, x, w, bias, group=group)
    for _ in range(g.integer(1, 2)):
        y = affine(g, y)


def affine(g: Generator, y: Value) -> Value:
    """A scale, a shift or a normalisation of the channels of y."""
    kind = y.tensor.dtype
    which = g.integer(0, 2)
    if which == 0:
        return g.emit("BatchNormalization", y, *statistics(g, y.tensor.dims[1], kind))
    return g.emit(("Mul", "Add")[which - 1], y, per_axis(g, y, 1))


def statistics(g: Generator, count: int, kind: dtypes.DType) -> list[Value]:
    """Scale, shift, mean and variance."""
    drawn = [g.array(kind, (count,), small=True) for _ in range(4)]
    drawn[3] = np.abs(drawn[3]) + kind.np.type(0.5)
    return [g.b.constant(v) for v in drawn]


@template(1)
def scaled_product(g: Generator) -> None:
    """A matrix product, scaled, shifted or normalised per column."""
    x = g.pick(is_wide, (2, 4), filled=True)
    kind, columns = x.tensor.dtype, g.choice((1, 3, 8, 17, 20))
    if x.tensor.rank == 2 and g.chance(0.4):
        turned = g.integer(0, 1)
        depth = x.tensor.dims[1]
        w = g.constant(kind, (columns, depth) if turned else (depth, columns))
        c = (
            g.constant(kind, g.choice(((columns,), (1,), (1, columns), ())))
            if g.chance(0.5)
            else None
        )
        y = g.emit("Gemm", x, w, c, transB=turned, alpha=g.choice((1.0, 0.5)), beta=2.0)
    else:
        y = g.emit("MatMul", x, g.constant(kind, (x.tensor.dims[-1], columns)))
    if y.tensor.rank == 2 and g.chance(0.5):
        g.emit("BatchNormalization", y, *statistics(g, columns, kind))
    else:
        g.emit(g.choice(("Mul", "Mul", "Add", "Div")), y, 0.5 if g.chance(0.2) else
               np.abs(per_axis(g, y, y.tensor.rank - 1).constant) + kind.np.type(0.25))  # fmt: skip


@template(2)
def between_transposes(g: Generator) -> None:
    """A transpose, something that it may sink through, and (often) the transpose back."""
    x = g.pick(is_f32, (2, 5), filled=True)
    rank = x.tensor.rank
    perm = [int(n) for n in g.rng.permutation(rank)]
    if rank == 4 and g.chance(0.6):
        perm = g.choice(([0, 2, 3, 1], [0, 3, 1, 2]))
    y = g.emit("Transpose", x, perm=perm, keeps=True)
    which = g.integer(0, 5)
    if which == 0:
        y = g.emit(g.choice(("Sigmoid", "Relu", "Exp", "Neg")), y)
    elif which == 1:
        y = g.emit(g.choice(("Add", "Mul", "Max")), y, per_axis(g, y, g.integer(0, rank - 1)))
    elif which == 2:
        pads = [g.integer(0, 2) for _ in range(2 * rank)]
        y = g.emit("Pad", y, np.array(pads, np.int64), keeps=True)
    elif which == 3:
        z = g.emit("Transpose", g.operand(f32, x.tensor.dims), perm=perm, keeps=True)
        y = g.emit("Concat", y, z, axis=g.integer(-rank, rank - 1), keeps=True)
    elif which == 4:
        axes = np.sort(g.rng.permutation(rank)[: g.integer(1, rank)]).astype(np.int64)
        name = g.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"))
        y = g.emit(name, y, axes, keepdims=g.integer(0, 1))
    else:
        z = g.emit("Transpose", g.operand(f32, x.tensor.dims), perm=perm, keeps=True)
        y = g.emit(g.choice(("Add", "Sub", "Mul", "Min")), y, z)
    if y.tensor.rank == rank and g.chance(0.6):
        g.emit("Transpose", y, perm=[int(n) for n in np.argsort(perm)], keeps=True)


@template(0.8)
def channels_last(g: Generator) -> None:
    """Convolutions between transposes, as frameworks that keep channels last are exported."""
    x = g.pick(is_f32, (4, 4), filled=True)
    for _ in range(g.integer(1, 2)):
        y = g.emit("Transpose", x, perm=[0, 3, 1, 2], keeps=True)
        kernel = [g.integer(1, min(3, d)) for d in y.tensor.dims[2:]]
        w = g.constant(f32, (g.integer(1, 9), y.tensor.dims[1], *kernel))
        y = g.emit("Conv", y, w, auto_pad=g.choice(("SAME_UPPER", "VALID")))
        x = g.emit("Transpose", y, perm=[0, 2, 3, 1], keeps=True)
        x = g.emit("Add", x, g.constant(f32, x.tensor.dims[-1:]))
        if g.chance(0.5):
            x = g.emit("Relu", x)


@template(0.8, special=True)
def joined_and_cut(g: Generator) -> None:
    """Concat, then Split or Slice, within the parts or across them."""
    x = g.pick(anything, (1, 4), filled=True)
    axis = g.integer(0, x.tensor.rank - 1)
    parts = [x]
    for _ in range(g.integer(1, 2)):
        shape = list(x.tensor.dims)
        shape[axis] = g.integer(1, 5)
        parts.append(g.operand(x.tensor.dtype, shape))
    y = g.emit("Concat", *parts, axis=axis, keeps=True)
    sizes = [p.tensor.dims[axis] for p in parts]
    if g.chance(0.5):
        if g.chance(0.3):
            sizes[0], sizes[-1] = sizes[-1], sizes[0]
        g.emit("Split", y, np.array(sizes, np.int64), axis=axis - y.tensor.rank * g.integer(0, 1),
               outputs=len(sizes), keeps=True)  # fmt: skip
        return
    for _ in range(g.integer(1, 2)):
        cut(g, y, axis)
        y = g.pool[-1]


def cut(g: Generator, x: Value, axis: int) -> None:
    """A Slice of one axis by step 1, by limits that may lie outside."""
    extent = x.tensor.dims[axis]
    if not extent:
        raise Decline
    low = g.integer(0, extent - 1)
    high = g.integer(low + 1, extent + (3 if g.chance(0.2) else 0))
    limits = [low - extent if g.chance(0.3) else low, high]
    g.emit("Slice", x, *(np.array([n], np.int64) for n in (*limits, axis)), keeps=True)


@template(0.8, special=True)
def cuts(g: Generator) -> None:
    """Slices and gathers of one another."""
    x = g.pick(anything, (1, 4), filled=True)
    for _ in range(g.integer(2, 3)):
        if x.tensor.rank == 0 or 0 in x.tensor.dims:
            return
        axis = g.integer(0, x.tensor.rank - 1)
        if g.chance(0.7):
            cut(g, x, axis)
        else:
            extent = x.tensor.dims[axis]
            step, first = g.choice((1, 2, -1)), g.integer(0, extent - 1)
            picked = np.arange(first, extent if step > 0 else -1, step)[: g.integer(1, 4)]
            picked = picked - extent * g.integer(0, 1)
            g.emit("Gather", x, picked.astype(np.int64), axis=axis, keeps=True)
        x = g.pool[-1]


@template(0.8, special=True)
def views(g: Generator) -> None:
    """Reshapes and transposes of one another."""
    x = g.pick(anything, (1, 4), filled=True)
    for _ in range(3):
        if g.chance(0.5):
            perm = [int(n) for n in g.rng.permutation(x.tensor.rank)]
            x = g.emit("Transpose", x, perm=perm, keeps=True)
            continue
        dims = list(x.tensor.dims)
        at = g.integer(0, len(dims) - 1)
        if g.chance(0.5) and at + 1 < len(dims):
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        else:
            factor = g.choice([d for d in (1, 2, 3, 4) if dims[at] % d == 0])
            dims[at : at + 1] = [factor, dims[at] // factor]
        x = g.emit("Reshape", x, np.array(dims, np.int64), keeps=True)


@template(1)
def residual(g: Generator) -> None:
    """Two layers and a connection around them."""
    x = g.pick(is_f32, (2, 4), filled=True)
    y, features = x, x.tensor.dims[-1]
    for n in range(2):
        y = g.emit("MatMul", y, g.constant(f32, (features, features)))
        y = g.emit("Add", y, g.constant(f32, (features,)))
        if n == 0 or g.chance(0.3):
            y = g.emit(g.choice(("Relu", "Gelu", "Tanh")), y)
        y = g.emit("Mul", y, 1 / max(features, 1) ** 0.5)
    y = g.emit("Add", *((x, y) if g.chance(0.5) else (y, x)))
    if g.chance(0.5):
        g.emit("LayerNormalization", y, g.constant(f32, (features,)), epsilon=1e-2)


@template(0.6, special=True)
def the_same_twice(g: Generator) -> None:
    """A subexpression written twice, and used differently."""
    x = g.pick(is_float, (1, 5))
    axis = g.integer(-x.tensor.rank, -1)
    first, second = (g.emit("Softmax", x, axis=axis) for _ in range(2))
    g.emit("Add", g.emit("Neg", first), second)


@template(0.4)
def training_leftovers(g: Generator) -> None:
    x = g.pick(is_float)
    kind = x.tensor.dtype
    y = g.emit("Dropout", x, g.b.constant(0.5, kind), keeps=True)
    g.emit("Identity", y, keeps=True)


@template(0.6)
def many_results(g: Generator) -> None:
    """Several values of one loop nest, of different shapes."""
    x = g.pick(is_f32, (1, 4), filled=True)
    y = g.emit("Tanh", x)
    axes = np.array([g.integer(0, x.tensor.rank - 1)], np.int64)
    total = g.emit("ReduceSum", y, axes, keepdims=1)
    g.emit("Sub", y, total)
    g.emit("Mul", y, x)
    g.emit("ReduceMax", x, axes, keepdims=0, keeps=True)
