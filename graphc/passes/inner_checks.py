"""Checks inside loops and branches: their keys become results of the op around them.

A loop carries the largest key of its trips, from zero on; a branch gives its keys, and zero for
those of the other one. The check itself (ops/in_range.py) then stands beside the op, as if that
asked for it: a run goes on after what does not hold, with indices clamped, and fails at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphc.ir.dtypes import u64
from graphc.ir.expr import Const, Load
from graphc.ir.graph import Op, Region, Value, constant_op
from graphc.ir.infer import infer_op
from graphc.ir.opdef import lookup
from graphc.ir.ops.control import split_captures
from graphc.ir.ops.in_range import DOMAIN, NAME, check_of
from graphc.ir.types import TensorType

KEY = TensorType(u64, ())


def checks_inside(op: Op, of_region: Callable[[Region], Sequence[Op]]) -> list[Op]:
    """The checks of the bodies of an If, a Loop or a Scan, now beside an op in its place;
    `of_region` gives those of a region, which are in it."""
    by_region = [list(of_region(region)) for region in op.regions]
    checks = [check for inside in by_region for check in inside]
    if not checks:
        return []
    made = _chosen(op, by_region) if op.name == "If" else _carried(op, checks)
    return [_outside(made, check, key) for check, key in zip(checks, made[1])]


def _outside(made: tuple[Op, list[Value]], check: Op, key: Value) -> Op:
    """A check, after an op, of a key that is a result of it."""
    op, _ = made
    low = check_of(check).low
    value = Load("0", (), u64) + Const(low % (1 << 64), u64)
    attrs = {**check.attrs, "value": str(value), "extents": ()}
    new = Op(lookup(NAME, DOMAIN), [key], attrs, 1, (), check.loc)
    infer_op(new)
    assert op.region is not None
    return op.region.insert_before(op.region.after(op), new)


def _chosen(op: Op, by_region: Sequence[Sequence[Op]]) -> tuple[Op, list[Value]]:
    """An If that gives the keys of both its branches too, and these results."""
    for region, own in zip(op.regions, by_region):
        keys = [
            check.output if check in own else region.append(_zero()).output
            for inside in by_region for check in inside
        ]  # fmt: skip
        region.set_results([*region.results, *keys])
    count = sum(map(len, by_region))
    new = _in_place(op, op.inputs, op.regions, list(range(len(op.outputs))), count)
    return new, new.outputs[len(op.outputs) :]


def _carried(op: Op, checks: Sequence[Op]) -> tuple[Op, list[Value]]:
    """A Loop or a Scan that carries the largest key of each check too, and these results."""
    return carrying(
        op, [np.array(0, np.uint64) for _ in checks],
        lambda n, key: insert(op.regions[0], None, "Max", key, checks[n].output),
    )  # fmt: skip


def carrying(
    op: Op, starts: Sequence[np.ndarray], following: Callable[[int, Value], Value]
) -> tuple[Op, list[Value]]:
    """A Loop or a Scan in place of another that carries more values, and these results. They begin
    with constants; `following` adds to the body what comes after a value, given its number."""
    (body,) = op.regions
    own, captures = split_captures(op)
    loop = op.name == "Loop"
    state = len(own) - (2 if loop else op.attrs["num_scan_inputs"])
    first = 2 + state if loop else state
    assert op.region is not None
    before = [op.region.insert_before(op, constant_op(start)).output for start in starts]
    params = [Value(v.type, None, 0, f"carried{n}") for n, v in enumerate(before)]
    body.params[first:first] = params
    for index, param in enumerate(body.params):
        param.index = index
    after = [following(n, param) for n, param in enumerate(params)]
    at = 1 + state if loop else state
    body.set_results([*body.results[:at], *after, *body.results[at:]])
    inputs = [*own[:first], *before, *own[first:], *captures]
    count = len(starts)
    kept = [n if n < state else n + count for n in range(len(op.outputs))]
    new = _in_place(op, inputs, op.regions, kept, count)
    made = new.outputs[state : state + count]
    for value, start in zip(made, before):
        value.type = start.type
    return new, made


def _in_place(
    op: Op, inputs: Sequence[Value | None], regions: list[Region], kept: list[int], more: int
) -> Op:
    """An op in place of another, whose results it has at the places `kept`, with so many more."""
    new = Op(op.defn, inputs, op.attrs, len(kept) + more, regions, op.loc)
    assert op.region is not None
    op.region.insert_before(op, new)
    for value in new.outputs:
        value.type = KEY
    for place, old in zip(kept, op.outputs):
        new.outputs[place].type, new.outputs[place].name = old.type, old.name
        old.replace_uses(new.outputs[place])
    op.regions = []
    op.erase()
    return new


def _zero() -> Op:
    return constant_op(np.array(0, np.uint64))


def insert(region: Region, anchor: Op | None, name: str, *operands: Value) -> Value:
    """The result of a new op before another one, or at the end."""
    op = Op(lookup(name), list(operands))
    infer_op(op)
    return region.insert_before(anchor, op).output
