"""Shapes that data decides, typed: what follows an operator such as NonZero is part of the program.

The operator gives a tensor of the largest shape that its result can have. `graphc.Count` makes each
extent that data decides a size, a symbol from zero to the bound, and `graphc.Corner` is the part of
the tensor that is there (ir/ops/counts.py). What follows is typed over these sizes, as a graph of
open shape is over those of its inputs (general.py). What has no type or no program for all of them
(a kernel made for one shape, a loop of the host, tensors that would be huge at the bounds) is left
untyped: it is compiled once the sizes are known, with what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from graphc.errors import GraphcError, UnsupportedError
from graphc.ir.expr import Const, Expr, Sym, symbols
from graphc.ir.graph import SIZES as SIZES_OP
from graphc.ir.graph import Graph, Op, Value, clone_graph, clone_region, constant_op
from graphc.ir.imperative.lowering import SIZES, imperative_kernel, is_bounded
from graphc.ir.infer import infer_op
from graphc.ir.kernel import Store, walk_stmts
from graphc.ir.opdef import lookup
from graphc.ir.ops.control import MAX_ITERATIONS, split_captures, trips_of
from graphc.ir.ops.counts import CORNER, COUNT, DOMAIN, is_counted
from graphc.ir.types import TensorType, largest
from graphc.passes.dce import remove_dead
from graphc.passes.dimensions import Dimensions
from graphc.passes.fold import FoldPolicy
from graphc.passes.general import NotOpen, check_op
from graphc.passes.infer_types import TypeInference
from graphc.passes.inner_checks import carrying, insert
from graphc.passes.native import as_flow, natively
from graphc.passes.partition import symbols_in

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
    if not any(map(_is_countable, graph.ops)) and not any(map(_rows, graph.ops)):
        return None
    result = clone_graph(graph)
    for op in list(result.ops):
        if _rows(op):
            _count_rows(result, op, _rows(op))
    bodies = {op: list(map(clone_region, op.regions)) for op in result.ops if op.regions}
    huge = [op for op in result.ops if op.attrs.get("rows") is not None and _most(op) > MOST_BYTES]
    for op in huge:
        decline(op, f"{op.where()}: its rows would have {_most(op)} bytes at most")
    if huge:
        return None
    types = TypeInference(policy, retype=False, symbolic=True, dimensions=Dimensions())
    count_all(result, types)
    for op in result.ops:
        if _leaves_untyped(op, decline, native) and op in bodies:
            types.restore(op, bodies[op])
    remove_dead(result)
    used = symbols_in(result)
    result.symbols = {name: size for name, size in result.symbols.items() if size in used}
    return result


def count_within(graph: Graph, types: TypeInference) -> None:
    """As `count_all`, of a graph over sizes of its inputs; NotOpen if a tensor may be too large."""
    if not any(map(_is_countable, graph.ops)):
        return
    count_all(graph, types)
    for op in graph.ops:
        if _most(op) > MOST_BYTES:
            raise NotOpen(f"{op.where()} would give {_most(op)} bytes at the largest sizes", op)


def count_all(graph: Graph, types: TypeInference) -> None:
    """Counts what data decides, and types what follows from it, which may have more to count."""
    seen: set[Op] = set()  # what has no elements stays without a count
    made = [op for op in graph.ops if _is_countable(op)]
    while made:
        for op in made:
            _count(graph, op)
        seen.update(made)
        types.region(graph)
        made = [op for op in graph.ops if op not in seen and _is_countable(op)]
    types.region(graph)


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


def _rows(op: Op) -> int:
    """How many rows a Loop stacks at most, if its body decides how many; else 0."""
    if op.name != "Loop" or op.attrs.get("rows") is not None or op.inputs[0] is None:
        return 0
    (limit, _, *state), _ = split_captures(op)
    untyped = [v for v in op.outputs[len(state) :] if v.type is None]
    if not untyped or limit.constant is None:
        return 0
    most = trips_of(limit.constant)
    return most if 0 < most <= MAX_ITERATIONS else 0


def _count_rows(graph: Graph, op: Op, most: int) -> None:
    """Has a Loop stack rows where there is room for the most, and count them."""
    (body,) = op.regions
    state = len(split_captures(op)[0]) - 2
    one = body.append(constant_op(np.array(1, np.int64))).output
    new, (number,) = carrying(
        op, [np.array(0, np.int64)], lambda _, count: insert(body, None, "Add", count, one)
    )
    new.attrs["rows"] = most
    size = Sym(_unused(graph), 0, most)
    graph.symbols[size.name] = size
    after = graph.after(new)
    attrs = {"dim": -1, "size": size}
    _insert(graph, after, Op(lookup(COUNT, DOMAIN), [number], attrs, 1, (), op.loc))
    types = TypeInference(None, symbolic=True)
    types.enter(new, False)
    for value in new.outputs[state + 1 :]:
        if value.is_ranked:
            users = list(value.uses)
            attrs = {"dims": (size, *value.tensor.dims[1:])}
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
