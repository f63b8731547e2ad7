"""What an op does, read off its scalar body: the structure that layout and fusion decide by.

    pointwise(op, n)   every load of operand n is at the output's own index (or broadcast)
    movement(op)       the body is one plain load: the op only moves data
    reductions(op)     the Reduce nodes of the body
    row reduction      one Reduce per output element over trailing dims, or any, of the operand
    contraction        a sum of products with indices of its own in both factors
No operator's name is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    called,
    cost,
    free_indices,
    loads,
)
from graphc.ir.graph import Op, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.ir.types import Layout, TensorType, Type
from graphc.passes.analysis.core import reductions_in

DEQUANTISING = 8  # cost of a conversion that readers repeat
CONVERSIONS = {"cast", "bitcast", "cut_tf32", "add_half_tf32"}  # round_tf32 is for producers
FEW_CHANNELS = 16  # no more than a vector has elements


def has_body(op: Op) -> bool:
    """Whether the op is given by scalar bodies and can be part of a fused region: contents that
    these follow from, as the target of a Reshape, are known. Asked very often: that it is so is
    kept with the op."""
    if has_body not in op.memo:
        if not _is_given(op):
            return False  # which it may be once types or contents are known
        op.memo[has_body] = True
    return True


def _is_given(op: Op) -> bool:
    if op.defn.form not in ("elementwise", "indexed"):
        return False
    for value in op.outputs:
        if not _has_elements(value.type):
            return False
    for operand in op.inputs:
        if operand is not None and not _has_elements(operand.type):
            return False
    for param, operand in zip(op.defn.params, op.inputs):
        if param.accepts.known and operand is not None and operand.known is None:
            return False
    return True


def _has_elements(type: Type | None) -> bool:
    """Whether a type is that of a tensor of known rank whose elements are numbers."""
    if not isinstance(type, TensorType) or type.shape is None:
        return False
    return type.dtype.kind not in ("string", "complex")


def reductions(op: Op) -> list[Reduce]:
    """Distinct Reduce nodes in the bodies of all outputs."""
    return reductions_in(op_body(op, n) for n in range(len(op.outputs)))


def is_movement(op: Op) -> bool:
    """One output whose body is a plain load with no indirect index."""
    if not has_body(op) or len(op.outputs) != 1:
        return False
    body = op_body(op)
    return isinstance(body, Load) and not any(loads(x) for x in body.index)


def is_view(op: Op) -> bool:
    """A movement whose every element lies where it lay in its operand, of the same dims in memory
    but for leading ones of 1."""
    if not is_movement(op):
        return False
    (_, source), result = moved(op), op.output.tensor
    load = op_body(op)
    assert isinstance(load, Load)
    before, after = source.tensor.layout, result.layout
    own = own_index(op.output)
    units: dict[Expr, Expr] = {x: Const(0, i64) for x in own if x.extent == 1}
    positions = [simplify(x, units) for x in load.index]
    here = [x if x.extent != 1 else Const(0, i64) for x in _in_memory(after, own)]
    there = _in_memory(before, positions)
    new, old = _in_memory(after, result.dims), _in_memory(before, source.tensor.dims)
    first, start = _leading_units(new), _leading_units(old)
    return new[first:] == old[start:] and here[first:] == there[start:]


def _leading_units(dims: list) -> int:
    return next((n for n, extent in enumerate(dims) if extent != 1), len(dims))


def _in_memory(layout: Layout | None, logical: Sequence) -> list:
    return list(layout.physical(tuple(logical)) if layout else logical)


def is_widening(op: Op) -> bool:
    """One output that is made of the element of an operand at its own index, which is no larger, by
    a conversion of floats, by rounding or cutting off its bits, or (of a smaller one) by a few
    operations with numbers: like a movement, it is cheaper done by a reader, who reads no more
    bytes."""
    if not has_body(op) or len(op.outputs) != 1 or not op.output.tensor.dtype.is_float:
        return False
    body = op_body(op)
    return op.defn.form == "elementwise" and _converts_float(body) or _is_dequantising(op, body)


def _converts_float(body: Expr) -> bool:
    read = loads(body)
    if isinstance(body, Load) or len(read) != 1:
        return False
    (load,) = read
    return (
        load.dtype.is_float and load.dtype.size <= body.dtype.size and called(body) <= CONVERSIONS
    )


def _is_dequantising(op: Op, body: Expr) -> bool:
    size = op.output.tensor.dtype.size
    if not any([v is not None and v.tensor.dtype.size < size for v in op.inputs]):
        return False
    wide = [n for n, v in enumerate(op.inputs) if v is not None and not _is_parameter(v, op)]
    if len(wide) != 1 or reductions(op) or cost(body) > DEQUANTISING:
        return False
    value = op.inputs[wide[0]]
    assert value is not None
    smaller = value.tensor.dtype.size < size
    return smaller and value.tensor.dims == op.output.tensor.dims and pointwise(op, wide[0])


def _is_parameter(value: Value, op: Op) -> bool:
    """Whether an operand is one number, or constants for each channel of what is computed."""
    if value.tensor.count == 1:
        return True
    is_small = value.constant is not None and value.tensor.most < op.output.tensor.most
    return (
        is_small
        and value.tensor.rank == 1
        and all(v is value or v.constant is None or v.tensor.rank < 2 for v in op.inputs if v)
    )


def keeps_order(op: Op) -> bool:
    """A movement to dims of other extents, in row-major order as before."""
    if not is_movement(op):
        return False
    (_, source), result = moved(op), op.output.tensor
    if source.tensor.layout or result.layout or source.tensor.dtype is not result.dtype:
        return False
    if not all(isinstance(x, int) for x in (*source.tensor.dims, *result.dims)):
        return False
    load = op_body(op)
    assert isinstance(load, Load)
    before = flatten_index(load.index, source.tensor.static_shape)
    return before is flatten_index(own_index(op.output), result.static_shape)


def moved(op: Op) -> tuple[int, Value]:
    """The operand that a movement moves: its number, and the value."""
    body = op_body(op)
    assert isinstance(body, Load)
    value = op.inputs[int(body.source)]
    assert value is not None
    return int(body.source), value


def own_index(value: Value) -> tuple[Index, ...]:
    """The indices that the body of a value is over."""
    return tuple(Index(f"i{d}", extent) for d, extent in enumerate(value.tensor.dims))


def pointwise(op: Op, operand: int) -> bool:
    """Whether operand is read only at the output's own index, with broadcasting.

    Holds over all outputs, which must have one shape.
    """
    value = op.inputs[operand]
    assert value is not None
    shapes = {v.tensor.dims for v in op.outputs}
    if len(shapes) != 1:
        return False
    index = own_index(op.outputs[0])
    wanted = aligned(index, value.tensor.dims)
    for n in range(len(op.outputs)):
        for load in loads(op_body(op, n)):
            if load.source == str(operand) and not same_position(load.index, wanted):
                return False
    return True


def aligned(index: tuple[Index, ...], shape: tuple) -> tuple[Expr | None, ...]:
    """The numpy-broadcast position in an operand of `shape`; None where any index will do."""
    tail = index[len(index) - len(shape) :]
    if len(shape) > len(index):
        return (None,) * (len(shape) - len(index)) + index
    return tuple(None if extent == 1 else x for extent, x in zip(shape, tail))


def same_position(index: tuple[Expr, ...], wanted: tuple[Expr | None, ...]) -> bool:
    """Whether a load is at wanted positions (None: any). The index of a dim of one element is 0."""
    return len(index) == len(wanted) and all(
        w is None or f is w or (isinstance(f, Const) and isinstance(w, Index) and w.extent == 1)
        for f, w in zip(index, wanted)
    )


def is_contraction(op: Op) -> bool:
    """A body with a sum of products of two factors that each have an output index to itself."""
    for r in reductions(op):
        a, b = map(free_indices, r.factors or (r.body, r.body))
        if a - b and b - a:
            return True
    return False


def slides(reduction: Reduce) -> bool:
    """Whether it reads one operand at places that it goes through and those of the output taken
    together (a window), and another only at the ones or the others."""
    axes = frozenset(reduction.axes)
    slid: dict[bool, set[str]] = {True: set(), False: set()}
    for load in loads(reduction.body):
        places = map(free_indices, load.index)
        slid[any(free & axes and free - axes for free in places)].add(load.source)
    return bool(slid[True]) and bool(slid[False] - slid[True])


def row_operand(op: Op, anywhere: bool = False) -> tuple[int, frozenset[int]] | None:
    """(operand, physical dims reduced) of a row reduction: all of its trailing dims, or, with
    `anywhere`, of any dims.

    The output keeps the reduced dims as 1 or drops them; the other dims are at their own index.
    """
    reduced = reductions(op)
    if len(op.outputs) != 1 or len(reduced) != 1:
        return None
    r = reduced[0]
    inside = loads(r.body)
    if len(inside) != 1 or len(loads(op_body(op))) != 1:
        return None
    load = inside[0]
    value = op.inputs[int(load.source)]
    assert value is not None
    layout, count = value.tensor.layout, len(r.axes)
    index = layout.physical(load.index) if layout else load.index
    dims = frozenset(d for d, x in enumerate(index) if x in r.axes)
    if len(dims) != count or not anywhere and min(dims, default=len(index)) != len(index) - count:
        return None
    rest = [x for d, x in enumerate(index) if d not in dims]
    if {index[d] for d in dims} != set(r.axes) or any(free_indices(x) & {*r.axes} for x in rest):
        return None
    own = [x for x in own_index(op.output) if x.extent != 1]
    kept = [x for x in rest if not isinstance(x, Const) and not _is_unit(x)]
    at_own = all(isinstance(x, Index) for x in kept) and set(own) <= set(kept)
    return (int(load.source), dims) if at_own else None


def _is_unit(index: Expr) -> bool:
    return isinstance(index, Index) and index.extent == 1
