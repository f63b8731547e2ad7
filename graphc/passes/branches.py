"""Branches whose results have different types: what follows goes into both.

    y = If(c, a, b); z = f(y)   ==   z = If(c, f(a), f(b))

An If has types if its branches give the same. Where they do not (windows of two sample rates, say),
all ops that depend on its results are put into both branches, where they have types. What the
branches give in the end mostly is of one type again.
"""

from __future__ import annotations

from graphc.ir.graph import Op, Region, Value, clone_region, copy_op
from graphc.ir.ops.failing import failure
from graphc.passes.control_flow import LIMIT, size_of


def differ(op: Op) -> bool:
    """Whether both branches of an If are typed, and give tensors of different types."""
    results = [region.results for region in op.regions]
    known = all(v.is_ranked for values in results for v in values)
    if not known or any(map(failure, op.regions)):
        return False
    return any(a.type != b.type for a, b in zip(*results))


def sink_users(op: Op, limit: int = LIMIT) -> bool:
    """Puts all ops that depend on an If's results into its branches; whether there are any, and
    not so many that more than `limit` would come of it, if each If among them doubles both ops and
    what an op takes to compile."""
    region = op.region
    assert region is not None
    tail, made = _dependent(op, region)
    own = [v for v in made if v in set(region.results)]
    branches = sum(inner.name == "If" for op in tail for inner in (op, *_inside(op)))
    size = sum(1 + max(map(size_of, op.regions), default=0) for op in tail)
    if not tail or not own or size << min(2 * branches, limit) > limit:
        return False
    read = (v for later in tail for v in later.inputs if v is not None and v not in made)
    outer = [v for v in dict.fromkeys(read) if v not in op.inputs[1:]]
    regions = [_with(branch, op, tail, outer, own) for branch in op.regions]
    new = Op(op.defn, [*op.inputs, *outer], op.attrs, len(own), regions, op.loc)
    region.insert_before(tail[-1], new)
    for old, value in zip(own, new.outputs):
        value.name = old.name
        old.replace_uses(value)
    for later in (*reversed(tail), op):
        later.erase()
    return True


def _dependent(op: Op, region: Region) -> tuple[list[Op], dict[Value, None]]:
    """The ops that depend on the results of an op, and all that they and it give."""
    tail: list[Op] = []
    made = dict.fromkeys(op.outputs)
    for later in region.ops[region.place(op) + 1 :]:
        if any(v in made for v in later.inputs):
            tail.append(later)
            made.update(dict.fromkeys(later.outputs))
    return tail, made


def _inside(op: Op) -> list[Op]:
    return [inner for region in op.regions for inner in region.walk()]


def _with(branch: Region, op: Op, tail: list[Op], outer: list[Value], own: list[Value]) -> Region:
    """A copy of a branch that goes on with the ops of `tail`, which read `outer` values too."""
    copy = clone_region(branch)
    mapping = dict(zip(op.inputs[1:], copy.params))
    mapping |= {v: copy.add_param(v.type, v.name) for v in outer}
    mapping |= dict(zip(op.outputs, copy.results))
    for later in tail:
        copy_op(later, copy, mapping)  # type: ignore[arg-type]
    copy.set_results([mapping[v] for v in own])
    return copy
