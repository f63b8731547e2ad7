"""Groups that `fuse` made, or single ops, become one op."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphc.ir.graph import Graph, Op, Region, Value, copy_op, copy_ops
from graphc.ir.opdef import FUSED


def results_of(group: Sequence[Op], returned: Collection[Value]) -> list[Value]:
    """What ops of a group make that others read, or that is among what the graph returns."""
    inside = set(group)
    return [
        v for op in group for v in op.outputs
        if v in returned or any(user not in inside for user, _ in v.uses)
    ]  # fmt: skip


def merged_group(graph: Graph, group: Sequence[Op], name: str) -> Op:
    """One op that computes what a group does; it is in no graph yet."""
    made = {v for op in group for v in op.outputs}
    inputs = list(dict.fromkeys(
        v for op in group for v in op.inputs if v is not None and v not in made
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
    results = results_of(group, graph.results)
    region.set_results([mapping[v] for v in results])
    loc = tuple(dict.fromkeys(name for op in group for name in op.loc))
    merged = Op(FUSED, inputs, {"name": name}, len(results), [region], loc)
    for old, new in zip(results, merged.outputs):
        new.type, new.name = old.type, old.name
    return merged


def replace_group(graph: Graph, group: Sequence[Op], merged: Op) -> None:
    """Puts what `merged_group` made in the place of the last of a group."""
    results = results_of(group, graph.results)
    graph.insert_before(group[-1], merged)
    for old, new in zip(results, merged.outputs):
        old.replace_uses(new)
    for op in reversed(group):
        op.erase()
