"""Reshapes, transposes, slices: views become Reshapes to known shapes, and chains one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphc.ir.extents import as_dim
from graphc.ir.graph import Op, Value
from graphc.ir.types import Dim
from graphc.passes.analysis.facts import is_pointwise
from graphc.passes.analysis.structure import is_movement
from graphc.passes.pattern import OpPattern, P, opt, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import ints, inverse, is_static, permutation, shape_of
from graphc.passes.rules.operands import MOST

x, shape, y, indices, data = var("x shape y indices data")
JOINED = P.Concat(rest("parts")).only_use()
TRANSPOSED = P.Transpose(x)
RESHAPED = P.Reshape(x, shape)


def reshaped(rw: Rewriter, x: Value, shape: Sequence[Dim]) -> Value:
    """x with another shape; x itself if it has that one."""
    if x.tensor.dims == tuple(shape):
        return x
    return rw.Reshape(x, rw.dims(shape), allowzero=1 if 0 in shape else None)


@rule("view-to-reshape", P.one_of("Squeeze", "Unsqueeze", "Flatten")(x, rest("others")))
def view_to_reshape(rw: Rewriter, op: Op, x: Value, others: list[Value]) -> Value | None:
    """squeeze(x), unsqueeze(x), flatten(x) == reshape(x, their shape)."""
    if not is_static(op.output):
        return rw.skip("its shape is not static")
    return reshaped(rw, x, shape_of(op.output))


@rule("expand-to-reshape", P.one_of("Expand", "Tile")(x, shape))
def expand_to_reshape(rw: Rewriter, op: Op, x: Value, shape: Value) -> Value | None:
    """expand(x, s) == reshape(x, s) if it only adds dimensions of extent 1."""
    if not is_static(x) or x.tensor.size != op.output.tensor.size:
        return rw.skip("it repeats elements, or its shape is not static")
    return reshaped(rw, x, shape_of(op.output))


def _computes_extents(op: Op) -> bool:
    return is_static(op.output) and ints(op.inputs[1]) != list(shape_of(op.output))


@rule("explicit-shape", P.Reshape(x, shape).when(_computes_extents))
def explicit_shape(rw: Rewriter, op: Op, x: Value, shape: Value) -> Value:
    """reshape(x, [.., -1, 0, ..]) == reshape(x, the shape it gives)."""
    return rw.Reshape(
        x, np.array(shape_of(op.output), np.int64),
        allowzero=1 if 0 in shape_of(op.output) else None,
    )  # fmt: skip


@rule("reshape-of-reshape", P.Reshape(P.Reshape(x, y), shape))
def reshape_of_reshape(
    rw: Rewriter, inner: Op, outer: Op, x: Value, y: Value, shape: Value
) -> Value | None:
    """reshape(reshape(x, s), t) == reshape(x, t)."""
    if not is_static(x):
        return rw.skip("the shape of what is reshaped is not static")
    return reshaped(rw, x, shape_of(outer.output))


@rule("transpose-of-transpose", P.Transpose(P.Transpose(x)))
def transpose_of_transpose(rw: Rewriter, inner: Op, outer: Op, x: Value) -> Value:
    """transpose(transpose(x, p), q) == transpose(x, p o q), which is x if that is the identity."""
    first, second = permutation(inner), permutation(outer)
    both = tuple(first[axis] for axis in second)
    return x if both == tuple(range(len(both))) else rw.Transpose(x, perm=both)


@rule("transpose-to-reshape", P.Transpose(x))
def transpose_to_reshape(rw: Rewriter, op: Op, x: Value) -> Value | None:
    """transpose(x, p) == reshape(x) if only dimensions of extent 1 change places."""
    moved = [axis for axis in permutation(op) if x.tensor.dims[axis] != 1]
    if moved != sorted(moved) or not is_static(x):
        return rw.skip("dimensions longer than 1 change places")
    return reshaped(rw, x, shape_of(op.output))


# ---------------------------------------------------------------- gathers and slices


@rule("gather-to-slice", P.Gather(data, indices))
def gather_to_slice(rw: Rewriter, op: Op, data: Value, indices: Value) -> Value | None:
    """gather(x, [a, a+1, .., b]) == x[a..b]."""
    picked, axis = ints(indices), rw.attr(op, "axis")
    if not picked or not is_static(data):
        return rw.skip("the indices are not constant, or the shape of the data is not static")
    axis %= data.tensor.rank
    extent = shape_of(data)[axis]
    if not all(-extent <= n < extent for n in picked):
        return rw.skip("an index is out of range")
    picked = [n % extent for n in picked]
    step = picked[1] - picked[0] if len(picked) > 1 else 1
    if step == 0 or picked != list(range(picked[0], picked[0] + step * len(picked), step)):
        return rw.skip("the indices are not evenly spaced")
    return reshaped(rw, sliced(rw, data, axis, picked[0], len(picked), step), shape_of(op.output))


def sliced(rw: Rewriter, x: Value, axis: int, start: int, count: Dim, step: int = 1) -> Value:
    """`count` positions of an axis from `start` on; x itself if these are all."""
    extent = x.tensor.dims[axis]
    if (start, count, step) == (0, extent, 1):
        return x
    stop = as_dim(start + count * step)
    before_all = isinstance(stop, int) and stop < 0
    bounds = (start, -extent - 1 if before_all else stop, axis, step)
    return rw.Slice(x, *(rw.dims([n]) for n in (bounds if step != 1 else bounds[:3])))


@rule("concat-of-concat", P.Concat(rest("parts")))
def concat_of_concat(rw: Rewriter, op: Op, parts: list[Value]) -> Value | None:
    """concat(a, concat(b, c), d) == concat(a, b, c, d) on one axis."""
    rank = op.output.tensor.rank
    axis = rw.attr(op, "axis") % rank
    flat: list[Value] = []
    for part in parts:
        inner = JOINED.maker(part)
        if inner is not None and rw.attr(inner, "axis") % rank == axis:
            flat += (v for v in inner.inputs if v is not None)
            continue
        flat.append(part)
    flat = [part for part in flat if shape_of(part)[axis]] if all(map(is_static, flat)) else flat
    if len(flat) == len(parts) or not flat:
        return rw.skip("no part is empty, or joined on the same axis")
    if len(flat) > MOST:
        return rw.skip("together they have more than {} parts", MOST)
    return flat[0] if len(flat) == 1 else rw.Concat(*flat, axis=axis)


@rule("split-of-concat", P.Split(P.Concat(rest("parts")), opt(y)))
def split_of_concat(
    rw: Rewriter, concat: Op, split: Op, parts: list[Value], y: Value | None
) -> list[Value] | None:
    """split(concat(a, b), [len a, len b]) == a, b."""
    axis = rw.attr(concat, "axis") % concat.output.tensor.rank
    if rw.attr(split, "axis") % concat.output.tensor.rank != axis:
        return rw.skip("they are on different axes")
    if [v.type for v in split.outputs] != [v.type for v in parts]:
        return rw.skip("the parts are not the same")
    return parts


@rule("split-to-slices", P.Split(x, opt(y)), group="parts")
def split_to_slices(rw: Rewriter, split: Op, x: Value, y: Value | None) -> list[Value] | None:
    """split(x) == x[..a], x[a..b], ..   for an x that is moved only: whoever reads a part then
    moves it from where it was computed."""
    if x.producer is None or not is_movement(x.producer):
        return rw.skip("it splits computed values, which may be part of the operand's kernel")
    axis = rw.attr(split, "axis") % x.tensor.rank
    extents = [shape_of(part)[axis] for part in split.outputs]
    starts = np.cumsum([0, *extents[:-1]])
    return [sliced(rw, x, axis, int(a), n) for a, n in zip(starts, extents, strict=True)]


@rule("slice-of-concat", P.Slice(P.Concat(rest("parts")), rest("bounds")))
def slice_of_concat(
    rw: Rewriter, concat: Op, op: Op, parts: list[Value], bounds: list[Value]
) -> Value | None:
    """concat(a, b, c)[within b] == b[..]."""
    cut = simple_cut(op)
    axis = rw.attr(concat, "axis") % concat.output.tensor.rank
    if cut is None or cut[0] != axis or not all(map(is_static, parts)):
        return rw.skip("it does not slice just the axis that is joined")
    _, start, count = cut
    for part in parts:
        extent = shape_of(part)[axis]
        if start < extent:
            if start + count > extent:
                return rw.skip("it reaches over several parts")
            return sliced(rw, part, axis, start, count)
        start -= extent
    return rw.skip("it slices nothing")


@rule("slice-of-slice", P.Slice(P.Slice(x, rest("inner_bounds")).only_use(), rest("bounds")))
def slice_of_slice(
    rw: Rewriter, inner: Op, outer: Op, x: Value, inner_bounds: list[Value], bounds: list[Value]
) -> Value | None:
    """x[a:b][c:d] == x[a+c : a+d] on one axis."""
    first, second = simple_cut(inner), simple_cut(outer)
    if first is None or second is None or first[0] != second[0]:
        return rw.skip("they do not slice one axis by step 1")
    return sliced(rw, x, first[0], first[1] + second[1], second[2])


def simple_cut(op: Op) -> tuple[int, int, int] | None:
    """Axis, start and count of a Slice of one axis by step 1."""
    x = op.inputs[0]
    if x is None or not is_static(x) or not is_static(op.output):
        return None
    before, after = shape_of(x), shape_of(op.output)
    axes = [n for n, (a, b) in enumerate(zip(before, after)) if a != b]
    if len(axes) != 1:
        return None
    named = ints(op.inputs[3]) if len(op.inputs) > 3 else list(range(len(before)))
    starts, steps = ints(op.inputs[1]), [1] * len(before)
    if len(op.inputs) > 4 and op.inputs[4] is not None:
        steps = ints(op.inputs[4]) or []
    if named is None or starts is None:
        return None
    where = [n % len(before) for n in named].index(axes[0])
    if any(step != 1 for step in steps[: len(starts)]):
        return None
    extent = before[axes[0]]
    start = starts[where]
    start = max(0, start + extent) if start < 0 else min(start, extent)
    return axes[0], start, after[axes[0]]


# ---------------------------------------------------------------- transposes sink towards results


def _reads_transposed(op: Op) -> bool:
    return any(map(TRANSPOSED.maker, op.inputs))


def _computes_with(made: OpPattern) -> Callable[[Op], bool]:
    """Whether an op computes element by element with what such an op makes."""
    return lambda op: is_pointwise(op) and any(map(made.maker, op.inputs))


@rule("sink-transpose", P.where(_computes_with(TRANSPOSED))(rest("operands")))
def sink_transpose(rw: Rewriter, op: Op, operands: list[Value]) -> Value | None:
    """f(transpose(x, p), transpose(y, p), c) == transpose(f(x, y, c'), p) for elementwise f, with
    the constants c brought into the order of x."""
    perm = _common_permutation(rw, op, operands)
    if perm is None:
        return None
    if not is_static(op.output):
        return rw.skip("its shape is not static")
    back = inverse(perm)
    moved = [None if v is None else _before_transpose(rw, v, back) for v in operands]
    return rw.Transpose(rw.again(op, *moved), perm=perm)


def _common_permutation(
    rw: Rewriter, op: Op, operands: Sequence[Value | None]
) -> tuple[int, ...] | None:
    """The permutation of the transposes among the operands, if all others are constants."""
    perm, rank = None, op.output.tensor.rank
    for value in operands:
        if value is None or value.constant is not None:
            continue
        producer = TRANSPOSED.maker(value)
        if producer is None:
            return rw.skip("{} is not transposed, as another operand is", value)
        if len(value.users) != 1:
            return rw.skip("others read the transposed {} too", value)
        if value.tensor.rank != rank or perm not in (None, permutation(producer)):
            return rw.skip("the operands are transposed differently")
        perm = permutation(producer)
    return perm


def _before_transpose(rw: Rewriter, value: Value, back: Sequence[int]) -> Value:
    if value.constant is None:
        return value.producer.operand(0)  # type: ignore[union-attr]
    array = value.constant
    if array.size == 1:
        return value
    full = array.reshape((1,) * (len(back) - array.ndim) + array.shape)
    return rw.constant(np.ascontiguousarray(full.transpose(back)))


@rule("sink-reshape", P.where(_computes_with(RESHAPED))(rest("operands")))
def sink_reshape(rw: Rewriter, op: Op, operands: list[Value]) -> Value | None:
    """f(reshape(x), c) == reshape(f(x, c)) for a row c of constants, if the rows of what was
    computed are kept: f joins what computes x, or goes into its weights."""
    variable = [n for n, v in enumerate(operands) if v is not None and v.constant is None]
    if len(operands) != 2 or len(variable) != 1:
        return rw.skip("it does not compute with one constant")
    value, row = operands[variable[0]], operands[1 - variable[0]]
    x = _of_reshape(value)
    if x is None:
        return rw.skip("others read what is reshaped, or it is only moved")
    if op.output.tensor.dims != value.tensor.dims:
        return rw.skip("the constant broadcasts what is reshaped")
    length = shape_of(value)[-1]
    is_row = shape_of(row)[-1:] == (length,) == (row.tensor.size,)
    if not is_row or row.tensor.rank > x.tensor.rank or shape_of(x)[-1] != length:
        return rw.skip("the constant is no row, or rows are not kept")
    below = [x if v is value else v for v in operands]
    return reshaped(rw, rw.again(op, *below), shape_of(value))


def _of_reshape(value: Value) -> Value | None:
    """What an op computed, if a value is that in another shape, for a reader alone."""
    reshape = RESHAPED.maker(value)
    x = None if reshape is None or len(value.uses) != 1 else reshape.inputs[0]
    if x is None or x.producer is None or len(x.uses) != 1 or not is_static(x):
        return None
    moves = len(x.producer.outputs) != 1 or is_movement(x.producer)
    return None if moves else x


@rule("sink-transpose-concat", P.Concat(rest("parts")).when(_reads_transposed))
def sink_transpose_concat(rw: Rewriter, op: Op, parts: list[Value]) -> Value | None:
    """concat(transpose(x, p), transpose(y, p), axis) == transpose(concat(x, y, p[axis]), p)."""
    perm = _common_permutation(rw, op, parts)
    if perm is None:
        return None
    if any(v.constant is not None for v in parts):
        return rw.skip("a part is constant")
    axis = rw.attr(op, "axis") % len(perm)
    joined = rw.Concat(*(v.producer.operand(0) for v in parts if v.producer), axis=perm[axis])
    return rw.Transpose(joined, perm=perm)


@rule("sink-transpose-pad", P.Pad(P.Transpose(x).only_use(), y, rest("others")))
def sink_transpose_pad(
    rw: Rewriter, transpose: Op, op: Op, x: Value, y: Value, others: list[Value]
) -> Value | None:
    """pad(transpose(x, p), a) == transpose(pad(x, a in the order of x), p)."""
    pads, perm = ints(y), permutation(transpose)
    if pads is None or len(others) > 1 and others[1] is not None:
        return rw.skip("the pads are not constants for all axes")
    back, rank = inverse(perm), len(perm)
    moved = [pads[axis] for axis in back] + [pads[rank + axis] for axis in back]
    padded = rw.Pad(x, np.array(moved, np.int64), *others[:1], **op.attrs)
    return rw.Transpose(padded, perm=perm)


@rule("reduce-of-transpose", P.one_of(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2",
    "ReduceSumSquare", "ReduceL1", "ReduceLogSumExp",
)(P.Transpose(x).only_use(), y))  # fmt: skip
def reduce_of_transpose(rw: Rewriter, transpose: Op, op: Op, x: Value, y: Value) -> Value | None:
    """reduce(transpose(x, p), axes) == transpose(reduce(x, p[axes]), p without them)."""
    axes, perm = ints(y), permutation(transpose)
    if not axes:
        return rw.skip("its axes are not constant")
    gone = {axis % len(perm) for axis in axes}
    inner = np.array(sorted(perm[axis] for axis in gone), np.int64)
    reduced = rw.again(op, x, inner)
    if rw.attr(op, "keepdims"):
        return rw.Transpose(reduced, perm=perm)
    left = [axis for n, axis in enumerate(perm) if n not in gone]
    order = tuple(sorted(left).index(axis) for axis in left)
    return reduced if order == tuple(range(len(order))) else rw.Transpose(reduced, perm=order)
