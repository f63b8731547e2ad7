"""Groups that `fuse` made become one op: only the last of them has results that others read."""

from __future__ import annotations

from graphc.ir.graph import Graph, Op, Region, Value, copy_op, copy_ops
from graphc.ir.opdef import FUSED


def merged_group(group: list[Op], name: str) -> Op:
    """One op that computes what the last of a group does; it is in no graph yet."""
    inside = {op.output: op for op in group[:-1]}
    inputs = list(dict.fromkeys(
        v for op in group for v in op.inputs if v is not None and v not in inside
    ))  # fmt: skip
    region = Region()
    mapping: dict[Value, Value] = {v: region.add_param(v.type, v.name) for v in inputs}
    for op in group:
        if op.name == "fused":
            inner = op.regions[0]
            mapping.update((p, mapping[v]) for p, v in zip(inner.params, op.inputs))  # type: ignore[index]
            copy_ops(inner, region, mapping)
            mapping.update((out, mapping[r]) for out, r in zip(op.outputs, inner.results))
        else:
            copy_op(op, region, mapping)
    last = group[-1]
    region.set_results([mapping[v] for v in last.outputs])
    loc = tuple(dict.fromkeys(name for op in group for name in op.loc))
    merged = Op(FUSED, inputs, {"name": name}, len(last.outputs), [region], loc)
    for old, new in zip(last.outputs, merged.outputs):
        new.type, new.name = old.type, old.name
    return merged


def replace_group(graph: Graph, group: list[Op], merged: Op) -> None:
    """Puts what `merged_group` made in the place of the group."""
    graph.insert_before(group[-1], merged)
    for old, new in zip(group[-1].outputs, merged.outputs):
        old.replace_uses(new)
    for op in reversed(group):
        op.erase()
