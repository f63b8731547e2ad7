"""Only rows that are read are computed: slices of rows go in front of products.

Classifiers read one row of what the last layer of a transformer gives, so one row of its products,
normalisations and queries is all that is needed. A slice goes in front of an op whose results along
the axis are made of its operands' elements at the same place, if that goes on to a product, which
then has fewer rows. The remaining rows are computed as before.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError
from graphc.ir.graph import Op, Value
from graphc.passes.analysis.parts import computes_alike, dims_along
from graphc.passes.analysis.structure import has_body, is_contraction
from graphc.passes.pattern import P, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import is_static, shape_of
from graphc.passes.rules.views import simple_cut, sliced

x, w = var("x w")
Cut = tuple[int, int, int]  # axis, first row, number of rows
SHARE = 2  # times as many rows as are asked for are worth it
DEPTH = 24  # ops followed to a product
SLICE, SHAPED = P.Slice(x, rest("bounds")), P.one_of("Reshape", "Expand")(x, w)


@rule("slice-before-op", P.Slice(x, rest("bounds")), group="lowering")
def slice_before_op(rw: Rewriter, op: Op, x: Value, bounds: list[Value]) -> Value | None:
    """f(y, c)[a..b] == f(y[a..b], c)   along an axis that f leaves alone."""
    cut = simple_cut(op)
    producer = x.producer
    if cut is None or producer is None or not all(map(is_static, _operands(producer))):
        return rw.skip("it slices an input, more than one axis, or by a step other than 1")
    axis, start, count = cut
    dims = dims_along(producer, axis)
    if dims is None:
        return rw.skip("{} needs more of its operands than what is sliced", producer)
    if count * SHARE > shape_of(x)[axis]:
        return rw.skip("it takes {} of {} rows, which saves too little", count, shape_of(x)[axis])
    if not _is_only_cut(x, cut):
        return rw.skip("others read more rows")
    if not _has_fewer_rows(producer, cut):
        return rw.skip("no product has fewer rows")
    rw.loc = producer.loc
    operands = [
        value if value is None or dim is None else sliced(rw, value, dim, start, count)
        for value, dim in zip(producer.inputs, dims)
    ]
    if SHAPED.admits(producer.defn):
        operands[1] = rw.constant(np.array(shape_of(op.output), np.int64))
    try:
        part = rw.again(producer, *operands)
    except ModelError:
        part = None
    if part is None or part.type != op.output.type or not computes_alike(producer, part.producer):
        return rw.skip("{} depends on how much there is to slice", producer)
    return part


def _operands(op: Op) -> list[Value]:
    return [value for value in op.inputs if value is not None]


def _has_fewer_rows(op: Op, cut: Cut, depth: int = DEPTH) -> bool:
    """Whether a cut goes in front of an op, and on until it takes rows of a product."""
    dims = dims_along(op, cut[0])
    if dims is None or depth == 0:
        return False
    parts = [v for v, dim in zip(op.inputs, dims) if v is not None and dim is not None]
    if has_body(op) and is_contraction(op) and any(v.constant is None for v in parts):
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
    dims = dims_along(user, cut[0])
    if dims is None or any(d != cut[0] for v, d in zip(user.inputs, dims) if v is value):
        return False
    after = user.output.users
    return bool(after) and all(SLICE.admits(u.defn) and simple_cut(u) == cut for u in after)
