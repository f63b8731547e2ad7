"""Shapes that data decides, typed: what follows an operator such as NonZero is part of the program.

The operator gives a tensor of the largest shape that its result can have. `graphc.Count` makes each
extent that data decides a size, a symbol from zero to the bound, and `graphc.Corner` is the part of
the tensor that is there (ir/ops/counts.py). What follows is typed over these sizes, as a graph of
open shape is over those of its inputs (general.py). What has no type or no program for all of them
(a kernel made for one shape, a loop of the host, tensors that would be huge at the bounds) is left
untyped: it is compiled once the sizes are known, with what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

import numpy as np

from graphc.errors import GraphcError, NeedsValue, UnsupportedError
from graphc.ir.expr import Const, Expr, Sym, symbols
from graphc.ir.graph import SIZES as SIZES_OP
from graphc.ir.graph import Graph, Op, Region, Value, clone_graph, clone_region, constant_op
from graphc.ir.imperative.lowering import SIZES, imperative_kernel, is_bounded
from graphc.ir.infer import infer_op
from graphc.ir.kernel import Store, walk_stmts
from graphc.ir.opdef import lookup
from graphc.ir.ops.control import MAX_ITERATIONS, known_trips, split_captures
from graphc.ir.ops.counts import CORNER, COUNT, DOMAIN, is_count, is_counted
from graphc.ir.types import Dim, TensorType, largest
from graphc.passes.analysis.ranges import range_of
from graphc.passes.dce import remove_dead
from graphc.passes.dimensions import Dimensions
from graphc.passes.fold import FoldPolicy
from graphc.passes.general import NotOpen, check_op, first_untyped
from graphc.passes.infer_types import TypeInference
from graphc.passes.inner_checks import carrying, insert
from graphc.passes.manager.context import Context
from graphc.passes.native import as_flow, natively
from graphc.passes.partition import symbols_in
from graphc.passes.specialise import Shapes, specialise

MOST_BYTES = 1 << 30  # of a tensor at the bounds of sizes that data decides
Decline = Callable[[Op, str], None]
Native = Callable[[Op], bool]


def in_program(op: Op) -> bool:
    """Whether a typed op can be part of a program whose loops have the usual limit."""
    is_flow = op.defn.form == "region"
    return not as_flow(op, MAX_ITERATIONS) if is_flow else natively(op)


def counted(
    graph: Graph, policy: FoldPolicy | None, decline: Decline, native: Native = in_program
) -> Graph | None:
    """A copy of a graph that is typed as far as it can be for static inputs, typed further: over
    the sizes that data decides. None if there are none. `decline` is told what is left, and why;
    `native` tells which typed ops can be compiled."""
    if not any(_is_countable(op) or _has_rows(op) for op in graph.ops):
        return None
    result = clone_graph(graph)
    bodies = {op: list(map(clone_region, op.regions)) for op in result.ops if op.regions}
    types = TypeInference(policy, retype=False, symbolic=True, dimensions=Dimensions())
    count_all(result, types, bodies)
    huge = [op for op in result.ops if op.attrs.get("rows") is not None and _most(op) > MOST_BYTES]
    for op in huge:
        decline(op, f"{op.where()}: its rows would have {_most(op)} bytes at most")
    if huge:
        return None
    for op in result.ops:
        if _leaves_untyped(op, decline, native) and op in bodies:
            types.restore(op, bodies[op])
    remove_dead(result)
    used = symbols_in(result)
    result.symbols = {name: size for name, size in result.symbols.items() if size in used}
    return result


def wholly_typed(
    graph: Graph,
    shapes: Shapes | None = None,
    *,
    policy: FoldPolicy | None = None,
    ctx: Context | None = None,
) -> Graph:
    """A copy of a graph, typed for static shapes of its inputs and over the sizes that data
    decides. NeedsValue names what has no type even so."""
    need = None
    try:
        typed = specialise(graph, shapes, policy=policy, ctx=ctx)
    except NeedsValue as error:
        need = error
        typed = specialise(graph, shapes, policy=policy, partial=True, ctx=ctx)
    reasons: list[str] = []
    further = counted(typed, policy, lambda _, why: reasons.append(why)) or typed
    if first_untyped(further) is None:
        return further
    if need is None:
        return typed
    told = f" (no size of the program can stand for it: {reasons[0]})" if reasons else ""
    raise NeedsValue(f"{need}{told}", need.value) from need


def count_within(graph: Graph, types: TypeInference) -> None:
    """As `count_all`, of a graph over sizes of its inputs; NotOpen if a tensor may be too large."""
    if not any(_is_countable(op) or _has_rows(op) for op in graph.ops):
        return
    count_all(graph, types)
    for op in graph.ops:
        if _most(op) > MOST_BYTES:
            raise NotOpen(f"{op.where()} would give {_most(op)} bytes at the largest sizes", op)


def count_all(
    graph: Graph, types: TypeInference, bodies: dict[Op, list[Region]] | None = None
) -> None:
    """Counts what data decides, and types what follows from it, which may have more to count. The
    regions of ops that are put in place of others are noted in `bodies`, untyped."""
    seen: set[Op] = set()  # what has no elements stays without a count
    made = _to_count(graph, seen)
    while made:
        for op in made:
            if _is_countable(op):
                _count(graph, op)
                continue
            loop = _count_rows(graph, op, _rows(op))
            if bodies is not None:
                bodies[loop] = list(map(clone_region, loop.regions))
            _cut_rows(graph, loop, types)
        seen.update(made)
        types.region(graph)
        made = _to_count(graph, seen)
    types.region(graph)


def _to_count(graph: Graph, seen: Collection[Op]) -> list[Op]:
    """What can be counted, but what has been seen."""
    return [op for op in graph.ops if op not in seen and (_is_countable(op) or _has_rows(op))]


def _has_rows(op: Op) -> bool:
    """Whether data decides how many rows a Loop stacks, no more than so many."""
    return bool(largest(_rows(op)))


def _is_countable(op: Op) -> bool:
    """Whether an op is computed by compiled code into a tensor of bounds, and not yet counted."""
    if not is_bounded(op) or op.defn.form != "imperative" or is_counted(op):
        return False
    values = [v for v in (*op.inputs, *op.outputs) if v is not None]
    for value in values:
        if not value.is_ranked or value.tensor.dtype.kind in ("string", "complex"):
            return False
        sizes = {s for d in value.tensor.dims if isinstance(d, Expr) for s in symbols(d)}
        if any(size.hi is None for size in sizes):
            return False
        if value.tensor.most * value.tensor.dtype.size > MOST_BYTES:
            return False
    if _is_open(op):
        with suppress(GraphcError):
            imperative_kernel(op)
            return True
        return False
    return True


def _count(graph: Graph, op: Op) -> None:
    """Puts the counts of an op, and the corners of its results, after it."""
    after = graph.after(op)
    sizes: dict[Expr, Sym] = {}
    dims: dict[Value, list] = {v: list(v.tensor.dims) for v in op.outputs}
    for value, dim, told in _decided(op):
        most = largest(value.tensor.dims[dim])
        if told not in sizes:
            sizes[told] = Sym(_unused(graph), 0, most)
            graph.symbols[sizes[told].name] = sizes[told]
            attrs = {"dim": dim, "size": sizes[told]}
            _insert(graph, after, Op(lookup(COUNT, DOMAIN), [value], attrs, 1, (), op.loc))
        dims[value][dim] = sizes[told]
    for value in op.outputs:
        if value.uses and any(isinstance(d, Sym) for d in dims[value]):
            users = [(user, n) for user, n in value.uses if user.name != COUNT]
            attrs = {"dims": tuple(dims[value])}
            part = Op(lookup(CORNER, DOMAIN), [value], attrs, 1, (), op.loc)
            _insert(graph, after, part)
            part.output.name = value.name
            for user, number in users:
                user.set_input(number, part.output)


def _rows(op: Op) -> Dim:
    """How many rows a typed Loop stacks at most, if data decides how many; else 0."""
    if op.name != "Loop" or op.attrs.get("rows") is not None or op.inputs[0] is None:
        return 0
    (limit, _, *state), _ = split_captures(op)
    untyped = [v for v in op.outputs[len(state) :] if v.type is None]
    if not untyped or not all(v.is_ranked for v in op.inputs if v is not None):
        return 0
    most = known_trips(limit)
    if most is None:
        high = range_of(limit).high
        most = int(high) if high <= MAX_ITERATIONS else 0
    return most if 0 < largest(most) <= MAX_ITERATIONS else 0


def _ended_by_data(op: Op, most: int) -> None:
    """Has a Loop whose number of trips data decides end by its condition, after `most` trips at the
    latest."""
    (body,), region = op.regions, op.region
    (limit, going, *state), captures = split_captures(op)
    assert region is not None
    zero, none = constant_op(np.array(0, np.int64)), constant_op(np.array([], np.int64))
    last = constant_op(np.array(most, np.int64))
    for constant in (zero, none, last):
        region.insert_before(op, constant)
    limit = insert(region, op, "Reshape", limit, none.output)
    first = insert(region, op, "Less", zero.output, limit)
    going = first if going is None else insert(region, op, "And", going, first)
    inside = body.add_param(limit.type, "trips")
    one = body.append(constant_op(np.array(1, np.int64))).output
    done = body.append(Op(lookup("Add"), [body.params[0], one])).output
    more = body.append(Op(lookup("Less"), [done, inside])).output
    asked, *results = body.results
    both = body.append(Op(lookup("And"), [asked, more])).output
    body.set_results([both, *results])
    op.set_inputs([last.output, going, *state, *captures, limit])
    op.attrs["captures"] = len(captures) + 1


def _count_rows(graph: Graph, op: Op, most: Dim) -> Op:
    """Has a Loop stack rows where there is room for the most, and count them; the Loop that does,
    which is still to be typed."""
    (body,) = op.regions
    if known_trips(op.operand(0)) is None:
        assert isinstance(most, int)
        _ended_by_data(op, most)
    one = body.append(constant_op(np.array(1, np.int64))).output
    new, (number,) = carrying(
        op, [np.array(0, np.int64)], lambda _, count: insert(body, None, "Add", count, one)
    )
    new.attrs["rows"] = most
    size = Sym(_unused(graph), 0, largest(most))
    graph.symbols[size.name] = size
    attrs = {"dim": -1, "size": size, "most": None if isinstance(most, int) else most}
    after = graph.after(new)
    _insert(graph, after, Op(lookup(COUNT, DOMAIN), [number], attrs, 1, (), op.loc))
    return new


def _cut_rows(graph: Graph, op: Op, types: TypeInference) -> None:
    """Types a Loop that counts its rows; what follows reads those that there are."""
    types.enter(op, False)
    state = len(split_captures(op)[0]) - 2
    (count,) = (user for user in op.outputs[state - 1].users if is_count(user))
    after = graph.after(count)
    for value in op.outputs[state:]:
        if value.is_ranked:
            users = list(value.uses)
            attrs = {"dims": (count.attrs["size"], *value.tensor.dims[1:])}
            part = Op(lookup(CORNER, DOMAIN), [value], attrs, 1, (), op.loc)
            _insert(graph, after, part)
            part.output.name = value.name
            for user, place in users:
                user.set_input(place, part.output)


def _decided(op: Op) -> Iterator[tuple[Value, int, Expr]]:
    """The dims of results that data decides, each with what the kernel stores of it: one
    expression where two are equal. It stores the bounds of all dims first."""
    cells = [(value, dim) for value in op.outputs for dim in range(value.tensor.rank)]
    for stmt in walk_stmts(imperative_kernel(op).body):
        if isinstance(stmt, Store) and stmt.buffer == SIZES and not isinstance(stmt.value, Const):
            (cell,) = stmt.index
            assert isinstance(cell, Const)
            value, dim = cells[cell.value]
            if stmt.value is not value.tensor.dims[dim]:
                yield value, dim, stmt.value


def _unused(graph: Graph) -> str:
    number = 0
    while f"count{number}" in graph.symbols:
        number += 1
    return f"count{number}"


def _insert(graph: Graph, before: Op | None, op: Op) -> None:
    infer_op(op)
    graph.insert_before(before, op)


def _leaves_untyped(op: Op, decline: Decline, native: Native) -> bool:
    """Takes the types of an op's results away if it has none for all sizes, or no program; whether
    it does."""
    if op.name == "Constant" or not _is_open(op):
        return False
    why = _why_not(op, native)
    if why:
        decline(op, why)
    left = why or not all(v.is_ranked for v in (*filter(None, op.inputs), *op.outputs))
    for value in op.outputs if left else ():
        if isinstance(value.type, TensorType):
            value.type = None
    return bool(left)


def _why_not(op: Op, native: Native) -> str:
    """Why a typed op whose types are open is not compiled for all sizes."""
    if not all(v.is_ranked for v in (*filter(None, op.inputs), *op.outputs)):
        return ""
    try:
        for inner in (op, *(o for region in op.regions for o in region.walk())):
            check_op(inner)
        if not native(op):
            return f"{op.where()} runs on the host"
        if _most(op) > MOST_BYTES:
            return f"{op.where()} would give {_most(op)} bytes at the largest sizes"
    except UnsupportedError as error:
        return str(error)
    return ""


def _most(op: Op) -> int:
    """The bytes of the largest result of an op, at the largest sizes, as far as types are known."""
    known = (v.tensor for v in op.outputs if v.is_ranked)
    return max((type.most_bytes for type in known), default=0)


def _is_open(op: Op) -> bool:
    """Whether an operand, a result or what is inside has no type, or one that depends on sizes."""
    values = [*filter(None, op.inputs), *op.outputs]
    for region in op.regions if op.defn.form == "region" else ():
        if any(inner.name == SIZES_OP for inner in region.walk()):
            return True
        values += region.values()
    return any(v.type is None or not v.type.is_static for v in values)
