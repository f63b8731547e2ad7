"""Scans along other axes than the first become scans of rows, between transpositions.

A program walks rows: slices that lie in one piece, each next to the one before. What a Scan of open
sizes walks from the end is reversed beforehand, or afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.ir.dtypes import i64
from graphc.ir.graph import Op, Region, Value, constant_op
from graphc.ir.infer import infer_op
from graphc.ir.opdef import lookup
from graphc.ir.ops.control import ScanShape


def walk_rows(region: Region) -> None:
    """Has all Scans of a typed region, and of those inside, walk along first axes."""
    for op in list(region.ops):
        for inner in op.regions:
            walk_rows(inner)
        if op.name == "Scan":
            _walk_rows(op)


def _walk_rows(op: Op) -> None:
    shape = ScanShape.of(op)
    for name in ("input", "output"):
        op.attrs.pop(f"scan_{name}_axes", None)
    read = op.inputs[shape.state :][: shape.scanned]
    in_back, out_back = (
        [back and _is_static(v) for v, back in zip(values, given)]
        for values, given in ((read, shape.in_back), (op.outputs[shape.state :], shape.out_back))
    )
    op.attrs["scan_input_directions"] = tuple(map(int, in_back))
    op.attrs["scan_output_directions"] = tuple(map(int, out_back))
    for number, axis in enumerate(shape.in_axes):
        value = op.operand(shape.state + number)
        if axis:
            others = (d for d in range(value.tensor.rank) if d != axis)
            value = _before(op, _transposed(value, (axis, *others)))
        if shape.in_back[number] and not in_back[number]:
            value = _before(op, _reversed(value))
        op.set_input(shape.state + number, value)
    for number, axis in enumerate(shape.out_axes):
        value = op.outputs[shape.state + number]
        dims, users, turned = value.tensor.dims, list(value.uses), value
        if axis:
            value.type = value.tensor.with_shape((dims[axis], *dims[:axis], *dims[axis + 1 :]))
        if shape.out_back[number] and not out_back[number]:
            turned = _after(_reversed(turned))
        if axis:
            perm = (*range(1, axis + 1), 0, *range(axis + 1, len(dims)))
            turned = _after(_transposed(turned, perm))
        for user, position in users if turned is not value else ():
            user.set_input(position, turned)


def _is_static(value: Value | None) -> bool:
    return value is not None and value.tensor.is_static


def _transposed(value: Value, perm: Sequence[int]) -> Op:
    """An op that puts the dims of a value in another order."""
    return Op(lookup("Transpose"), [value], {"perm": tuple(perm)})


def _reversed(value: Value) -> Op:
    """An op that puts the rows of a value in the opposite order."""
    numbers = (-1, i64.min, 0, -1)  # from the last one on, to before the first, of axis 0
    constants = [constant_op(np.array([n], np.int64)) for n in numbers]
    return Op(lookup("Slice"), [value, *(c.output for c in constants)])


def _before(op: Op, new: Op) -> Value:
    """The result of a new op, which is put before another one."""
    return _placed(new, op, op)


def _after(new: Op) -> Value:
    """The result of a new op, which is put after what it reads."""
    maker = new.operand(0).producer
    assert maker is not None and maker.region is not None
    return _placed(new, maker, maker.region.after(maker))


def _placed(new: Op, like: Op, anchor: Op | None) -> Value:
    region = like.region
    assert region is not None
    new.loc = like.loc
    for value in new.inputs[1:]:
        assert value is not None and value.producer is not None
        region.insert_before(anchor, value.producer)
    infer_op(new)
    new.output.name = new.operand(0).name
    return region.insert_before(anchor, new).output
