"""Only rows that are read are computed: slices of rows go in front of products.

Classifiers read one row of what the last layer of a transformer gives, so one row of its products,
normalisations and queries is all that is needed. A slice goes in front of an op whose results along
the axis are made of its operands' elements at the same place, if that goes on to a product, which
then has fewer rows. The remaining rows are computed as before.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Op, Value
from graphc.passes.analysis.facts import is_pointwise
from graphc.passes.pattern import P, attribute, opt, rest, var
from graphc.passes.reasons import Reason
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import is_static, permutation, shape_of
from graphc.passes.rules.views import simple_cut, sliced

x, w, b = var("x w b")
Cut = tuple[int, int, int]  # axis, first row, number of rows
SHARE = 2  # times as many rows as are asked for are worth it
DEPTH = 24  # ops followed to a product
SLICE, MATMUL, GEMM = P.Slice(x, rest("bounds")), P.MatMul(x, w), P.Gemm(x, w, opt(b))
NORMALISATION = P.one_of("LayerNormalization", "RMSNormalization")(x, w, opt(b))
SOFTMAX = P.one_of("Softmax", "LogSoftmax")(x)
TRANSPOSE, RESHAPE = P.Transpose(x), P.Reshape(x, w)


@rule("slice-before-op", P.Slice(x, rest("bounds")), group="lowering")
def slice_before_op(rw: Rewriter, op: Op, x: Value, bounds: list[Value]) -> Value | None:
    """f(y, c)[a..b] == f(y[a..b], c)   along an axis that f leaves alone."""
    cut = simple_cut(op)
    producer = x.producer
    if cut is None or producer is None or not all(map(is_static, _operands(producer))):
        return rw.skip("it slices an input, more than one axis, or by a step other than 1")
    axis, start, count = cut
    dims = _cut_dims(producer, axis)
    if dims is None:
        return rw.skip(Reason("{} needs more of its operands than what is sliced", producer))
    if count * SHARE > shape_of(x)[axis]:
        return rw.skip(f"it takes {count} of {shape_of(x)[axis]} rows, which saves too little")
    if not _is_only_cut(x, cut):
        return rw.skip("others read more rows")
    if not _has_fewer_rows(producer, cut):
        return rw.skip("no product has fewer rows")
    rw.loc = producer.loc
    operands = [
        value if value is None or dim is None else sliced(rw, value, dim, start, count)
        for value, dim in zip(producer.inputs, dims)
    ]
    if RESHAPE.admits(producer.defn):
        operands[1] = rw.constant(np.array(shape_of(op.output), np.int64))
    return rw.again(producer, *operands)


def _operands(op: Op) -> list[Value]:
    return [value for value in op.inputs if value is not None]


def _has_fewer_rows(op: Op, cut: Cut, depth: int = DEPTH) -> bool:
    """Whether a cut goes in front of an op, and on until it takes rows of a product."""
    dims = _cut_dims(op, cut[0])
    if dims is None or depth == 0:
        return False
    if (MATMUL.admits(op.defn) or GEMM.admits(op.defn)) and dims[0] is not None:
        return True
    for value, dim in dict.fromkeys(zip(op.inputs, dims)):  # once, whichever operands it is
        if value is None or dim is None or value.producer is None:
            continue
        own = (dim, *cut[1:])
        if _is_only_cut(value, own, op) and _has_fewer_rows(value.producer, own, depth - 1):
            return True
    return False


def _is_only_cut(value: Value, cut: Cut, reader: Op | None = None) -> bool:
    """Whether nothing but a part of a value is read, by slices or by ops in front of which slices
    go, such as `reader`."""
    return all(user is reader or _cuts(user, cut, value) for user in value.users)


def _cuts(user: Op, cut: Cut, value: Value) -> bool:
    if SLICE.admits(user.defn):
        return simple_cut(user) == cut
    dims = _cut_dims(user, cut[0])
    if dims is None or any(d != cut[0] for v, d in zip(user.inputs, dims) if v is value):
        return False
    after = user.output.users
    return bool(after) and all(SLICE.admits(u.defn) and simple_cut(u) == cut for u in after)


def _cut_dims(op: Op, axis: int) -> list[int | None] | None:
    """Which dim of each operand a slice of the only result along an axis takes a part of (None: it
    takes all of it); None if results there need more than that."""
    if len(op.outputs) != 1 or not is_static(op.output) or op.regions:
        return None
    rank, inputs = op.output.tensor.rank, op.inputs
    if is_pointwise(op):
        return [_aligned(value, axis, rank) for value in inputs]
    if MATMUL.admits(op.defn):
        return _dims_of_matmul(op, axis)
    if GEMM.admits(op.defn):
        is_row = axis == 0 and not attribute(op, "transA")
        return [0, None, *(_aligned(value, 0, 2) for value in inputs[2:])] if is_row else None
    if NORMALISATION.admits(op.defn):
        first = attribute(op, "axis") % rank
        small = all(value.tensor.rank <= rank - first for value in inputs[1:] if value is not None)
        return [axis, *[None] * (len(inputs) - 1)] if axis < first and small else None
    if SOFTMAX.admits(op.defn):
        return [axis] if attribute(op, "axis") % rank != axis else None
    if TRANSPOSE.admits(op.defn):
        return [permutation(op)[axis]]
    if RESHAPE.admits(op.defn):
        same = shape_of(inputs[0])[: axis + 1] == shape_of(op.output)[: axis + 1]  # type: ignore[arg-type]
        return [axis, None] if same else None
    return None


def _dims_of_matmul(op: Op, axis: int) -> list[int | None] | None:
    """Rows of the first operand, or matrices of both."""
    rank = op.output.tensor.rank
    ranks = [value.tensor.rank for value in _operands(op)]
    if min(ranks) < 2 or axis == rank - 1:
        return None
    if axis == rank - 2:
        return [ranks[0] - 2, None]
    return [_aligned(value, axis, rank) for value in op.inputs]


def _aligned(value: Value | None, axis: int, rank: int) -> int | None:
    """The dim of a broadcast operand that lies at an axis of the result, if it is longer than 1."""
    if value is None:
        return None
    dim = axis - (rank - value.tensor.rank)
    return dim if dim >= 0 and shape_of(value)[dim] != 1 else None
