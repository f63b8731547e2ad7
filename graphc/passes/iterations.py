"""How often loops run: bounds that are known, and counting where there is none.

A loop that may run for longer than allowed carries a count of its iterations, with those of loops
inside it, and ends once there are too many. A check of the count, a result of the graph, then makes
the run an error (ir/checks.py), as it would be on the host (ir/ops/control.py).
"""

from __future__ import annotations

import numpy as np

from graphc.ir.graph import Graph, Op, Region, Value, constant_op
from graphc.ir.infer import infer_op
from graphc.ir.opdef import lookup
from graphc.ir.ops.control import goes_on, known_trips, split_captures, too_long
from graphc.ir.ops.in_range import DOMAIN, NAME
from graphc.ir.types import Dim, largest
from graphc.passes.checks import add_results
from graphc.passes.inner_checks import insert


def at_most(op: Op) -> int | None:
    """At most how often the bodies of a typed op, and of those inside, run; None: unknown."""
    inside = [at_most(inner) for region in op.regions for inner in _flow(region)]
    if None in inside:
        return None
    once = sum(count for count in inside if count is not None)
    if op.name == "If":
        return once
    trips = most_trips(op)
    return None if trips is None else largest(trips) * (1 + once)


def exactly(op: Op) -> int | None:
    """How often the bodies of a typed op, and of those inside, run; None: that depends on data."""
    inside = [exactly(inner) for region in op.regions for inner in _flow(region)]
    if op.name == "If":
        return None if any(inside) or None in inside else 0
    trips = most_trips(op)
    if None in inside or not isinstance(trips, int) or (op.name == "Loop" and not _runs_out(op)):
        return None
    return trips * (1 + sum(count for count in inside if count is not None))


def can_be_counted(op: Op) -> bool:
    """Whether the iterations of an op can be counted while it runs: those of a Loop that stacks no
    rows, in which every op's number of iterations is known or can be counted."""
    if op.name != "Loop" or len(op.outputs) > len(split_captures(op)[0]) - 2:
        return False
    inside = _flow(op.regions[0])
    return all(exactly(inner) is not None or can_be_counted(inner) for inner in inside)


def count_iterations(graph: Graph, most: int) -> None:
    """Has a run of a typed graph fail if one of its loops, with those inside, runs for longer."""
    for op in list(graph.ops):
        if op.defn.form != "region":
            continue
        bound = at_most(op)
        if (bound is None or bound > most) and can_be_counted(op):
            first = _before(op, constant_op(np.array(0, np.int64))).output
            where = op.where()
            counted = _counted(op, first, most)
            total = counted.outputs[-1]
            attrs = {"value": "$0[]", "extents": (), "low": 0, "high": most,
                     "message": too_long(where, most)}  # fmt: skip
            check = Op(lookup(NAME, DOMAIN), [total], attrs, 1, (), counted.loc)
            infer_op(check)
            graph.insert_before(graph.after(counted), check)
            add_results(graph, [check.output])


def _counted(op: Op, done: Value, most: int) -> Op:
    """A Loop in place of another, which carries the number of iterations so far, from `done` on;
    its last result."""
    body = op.regions[0]
    own, captures = split_captures(op)
    state = len(own) - 2
    count = Value(done.type, None, 0, "iterations")
    body.params.insert(2 + state, count)
    for index, param in enumerate(body.params):
        param.index = index
    anchor = body.ops[0] if body.ops else None
    one = body.insert_before(anchor, constant_op(np.array(1, np.int64)))
    total = insert(body, anchor, "Add", count, one.output)
    for inner in _flow(body):
        known = exactly(inner)
        if known is None:
            total = _counted(inner, total, most).outputs[-1]
        elif known:
            more = _before(inner, constant_op(np.array(known, np.int64)))
            total = insert(body, inner, "Add", total, more.output)
    last = body.append(constant_op(np.array(most, np.int64)))
    within = insert(body, None, "LessOrEqual", total, last.output)
    going, *results = body.results
    body.set_results([insert(body, None, "And", going, within), *results, total])
    new = Op(op.defn, [*own, done, *captures], op.attrs, state + 1, [body], op.loc)
    assert op.region is not None
    op.region.insert_before(op, new)
    for old, value in zip(op.outputs, new.outputs):
        value.type, value.name = old.type, old.name
        old.replace_uses(value)
    new.outputs[-1].type = done.type
    op.regions = []
    op.erase()
    return new


def _flow(region: Region) -> list[Op]:
    return [op for op in region.ops if op.defn.form == "region"]


def most_trips(op: Op) -> Dim | None:
    """The number of trips that a loop ends after at the latest, if it is known: over sizes."""
    own, _ = split_captures(op)
    if op.name == "If":
        return None
    if op.name == "Scan":
        axes = op.attrs.get("scan_input_axes") or (0,)
        return own[-1].tensor.dims[axes[-1]]
    return None if own[0] is None else known_trips(own[0])


def _runs_out(op: Op) -> bool:
    """Whether a Loop always makes all its trips."""
    going = split_captures(op)[0][1]
    return goes_on(op) and (going is None or bool(going.constant is not None and going.constant))


def _before(anchor: Op, op: Op) -> Op:
    assert anchor.region is not None
    return anchor.region.insert_before(anchor, op)
