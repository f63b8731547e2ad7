"""Scans along other axes than the first become scans of rows, between transpositions.

A program walks rows: slices that lie in one piece, each next to the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Op, Region, Value
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
    op.attrs.pop("scan_input_axes", None)
    op.attrs.pop("scan_output_axes", None)
    for number, axis in enumerate(shape.in_axes, shape.state):
        if axis:
            value = op.operand(number)
            others = (d for d in range(value.tensor.rank) if d != axis)
            op.set_input(number, _transposed(op, value, (axis, *others)))
    for value, axis in zip(op.outputs[shape.state :], shape.out_axes):
        if axis:
            dims, users = value.tensor.dims, list(value.uses)
            value.type = value.tensor.with_shape((dims[axis], *dims[:axis], *dims[axis + 1 :]))
            perm = (*range(1, axis + 1), 0, *range(axis + 1, len(dims)))
            turned = _transposed(op, value, perm, after=True)
            for user, position in users:
                user.set_input(position, turned)


def _transposed(op: Op, value: Value, perm: Sequence[int], after: bool = False) -> Value:
    """A value with its dims in another order, before an op or after it."""
    region = op.region
    assert region is not None
    place = region.place(op) + after
    anchor = region.ops[place] if place < len(region.ops) else None
    new = Op(lookup("Transpose"), [value], {"perm": tuple(perm)}, 1, (), op.loc)
    infer_op(new)
    new.output.name = value.name
    return region.insert_before(anchor, new).output
