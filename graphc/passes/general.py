"""A graph for all sizes within bounds: one whose dims are expressions over symbols.

`general` types a graph without binding its symbols. Sizes become multiples where a graph has no
types otherwise (multiples.py). Type rules and bodies are made for integers; that they say the same
of symbols is not taken on trust: `check_open` compares the types and bodies of each op with what
its definition gives at a few sizes, among them the least, where a dimension of 1 shows. What cannot
be typed for all sizes is a `NotOpen` that says why, and for which sizes; narrowing.py finds bounds
of these that do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

import numpy as np

from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.ir.alike import once
from graphc.ir.compare import compare
from graphc.ir.expr import Const, Expr, Sym, symbols
from graphc.ir.graph import Graph, Op, clone_graph
from graphc.ir.imperative.lowering import is_bounded
from graphc.ir.infer import op_body, output_types
from graphc.ir.interp import evaluate
from graphc.ir.ops.counts import is_corner, is_count, is_counted
from graphc.ir.ops.in_range import is_check
from graphc.ir.simplify import simplify
from graphc.ir.sizes import line_of
from graphc.ir.trials import body_at
from graphc.ir.types import TensorType, at
from graphc.passes.at_sizes import Sizes, attrs_at, type_at, value_at
from graphc.passes.checks import FLOW
from graphc.passes.dce import dead_ops, remove_dead
from graphc.passes.dimensions import Dimensions
from graphc.passes.fold import FoldPolicy
from graphc.passes.infer_types import TypeInference
from graphc.passes.iterations import most_trips
from graphc.passes.multiples import met_multiples, multiples, with_multiples
from graphc.passes.open_kernels import why_other_kernel
from graphc.passes.specialise import bind_contents, check_declared

FORMS = ("elementwise", "indexed", "composite", "core", "imperative")
MOST_COMPARED = 1 << 24  # elements of a result that is computed to compare two bodies
BEYOND = 10_000.0  # what elements beyond the end of an operand are there, which has none as large


Bounds = Mapping[str, tuple[int, int]]
Further = Callable[[Graph, TypeInference], None]


class NotOpen(UnsupportedError):
    """An op has no type or no program for all sizes. `where` names it, and `sizes` are the symbols
    of its operands and results."""

    def __init__(self, message: str, op: Op):
        super().__init__(message)
        self.where = op.where()
        self.sizes = [size.name for size in sizes_of_op(op)]
        self._op = op

    def takes(self, extents: Mapping[str, int]) -> bool:
        """Whether the op has types where sizes have these extents, and its own if it has any; not
        if an operand has none, or one of its sizes is not among them."""
        op = self._op
        known = all(v.is_ranked for v in op.inputs if v is not None)
        if not known or not extents.keys() >= set(self.sizes):
            return False
        try:
            _twin_at(op, {size: Const(extents[size.name]) for size in sizes_of_op(op)})
        except NotOpen:
            return False
        return True


def sizes_of_op(op: Op) -> list[Sym]:
    """The symbols of an op's operands and results, by name."""
    types = [v.type for v in (*op.inputs, *op.outputs) if v is not None]
    dims = [d for t in types if isinstance(t, TensorType) and t.shape is not None for d in t.dims]
    known = (v.known for v in op.inputs if v is not None and v.constant is None)
    dims += [d for contents in known if contents is not None for d in contents.reshape(-1)]
    sizes = {size for d in dims if isinstance(d, Expr) for size in symbols(d)}
    return sorted(sizes, key=lambda size: size.name)


def general(
    graph: Graph,
    policy: FoldPolicy | None = None,
    contents: Mapping[str, np.ndarray] | None = None,
    further: Further | None = None,
    met: Mapping[str, int] | None = None,
    most_bytes: int | None = None,
) -> Graph:
    """A copy of a graph with bounded symbols, typed for all their values, and for the `contents`
    of some inputs. `further` types what follows from sizes that data decides, if programs have
    such (counts.py). Sizes that become multiples are such that those that were `met` are.

    NotOpen names an op that has no type which holds at all sizes. NeedsValue carries the values
    whose contents types depend on, as that of `specialise` does. ModelError names a value that
    has more than `most_bytes` at the largest sizes.
    """
    result = clone_graph(graph)
    bind_contents(result, contents or {})
    types = TypeInference(policy, symbolic=True, dimensions=Dimensions())
    types.region(result)
    if further is not None:
        further(result, types)
    dead = [op for op in dead_ops(result) if op.name != "Constant" and _is_typed(op)]
    failed = first_untyped(result)
    if failed is not None:
        _raise_need(result, failed, types)
        factors = multiples(failed, met or {})
        if factors:
            with suppress(NotOpen):
                known = met_multiples(met or {}, factors)
                wider = with_multiples(graph, factors)
                return general(wider, policy, contents, further, known, most_bytes)
        reason = types.untyped.get(failed, f"{failed.where()}: its type is not known")
        raise NotOpen(reason, failed)
    counts = (op.attrs["size"] for op in result.ops if is_count(op))
    result.symbols = _sizes_of_inputs(result) | {size.name: size for size in counts}
    result.phase = "typed"
    _check_dead(dead, result.symbols.values())
    remove_dead(result)
    if most_bytes is not None:
        _check_memory(result, most_bytes)
    check_open(result)
    _check_types(result.walk(), result.symbols.values())
    check_declared(result)
    return result


def _check_memory(graph: Graph, most_bytes: int) -> None:
    """ModelError if a tensor of a graph is large at the largest sizes."""
    for value in graph.values():
        if value.tensor.most_bytes > most_bytes:
            raise ModelError(
                f"%{value.name} would have {value.tensor.most_bytes} bytes at the largest sizes, "
                f"more than {most_bytes}"
            )


def first_untyped(graph: Graph) -> Op | None:
    """The first op without a type whose results are read."""
    dead = set(dead_ops(graph))
    return next((op for op in graph.ops if op not in dead and not _is_typed(op)), None)


def _raise_need(graph: Graph, failed: Op, types: TypeInference) -> None:
    """NeedsValue if the type of an op depends on the contents of a value."""
    error = next((need.error for need in types.needs if need.op is failed), None)
    if error is None or not error.contents:
        return
    others = [n.error for n in types.needs if n.op.region is graph and n.op is not failed]
    error.graph, error.needs = graph, (error, *others)
    raise error


def _is_typed(op: Op) -> bool:
    return all(v.is_ranked for v in op.outputs)


def _sizes_of_inputs(graph: Graph) -> dict[str, Sym]:
    """The symbols of the dims of inputs, by name. UnsupportedError if one has no bound, or
    cannot be read from a dim."""
    types = [p.type for p in graph.params]
    dims = [d for t in types if isinstance(t, TensorType) for d in t.dims if isinstance(d, Expr)]
    sizes = {size.name: size for d in dims for size in symbols(d)}
    for symbol in sizes.values():
        if symbol.hi is None:
            raise UnsupportedError(f"dimension {symbol.name} has no bounds")
        if not any(line_of(dim, symbol) for dim in dims):
            raise UnsupportedError(
                f"dimension {symbol.name} cannot be read from the shape of an input"
            )
    return {name: sizes[name] for name in sorted(sizes)}


# ---------------------------------------------------------------- what holds at all sizes


def check_open(graph: Graph) -> None:
    """NotOpen names an op whose types or bodies are not those that its definition gives at the
    sizes it is tried at."""
    for op in graph.walk():
        check_op(op)


def check_op(op: Op) -> None:
    """As `check_open`, of one op."""
    if op.defn.form not in FORMS and not _is_flow(op):
        raise NotOpen(f"{op.where()} is {op.defn.form}, made for one shape at a time", op)
    if is_bounded(op) and not is_counted(op):
        raise NotOpen(f"{op.where()} gives a tensor whose shape depends on data", op)
    if any(v.tensor.dtype.kind in ("string", "complex") for v in op.outputs):
        raise NotOpen(f"{op.where()} gives {op.outputs[0].type}, which the host holds", op)
    if op.name in ("Constant", "yield", "fused") or is_check(op) or is_corner(op):
        return
    if _has_open_types(op) and not _is_flow(op):
        for values in _low_sizes(op):
            if _is_run_at(op, values):
                _check_at(op, values)


def _low_sizes(op: Op) -> tuple[Sizes, Sizes]:
    """The least sizes of an op, and some above them, which differ, and are not the largest unless
    there are no others: what is taken at both ends need not be between."""
    sizes = sizes_of_op(op)
    least: Sizes = {s: Const(s.lo) for s in sizes}
    highest = {s: s.hi or 0 for s in sizes}
    below = {s: high - (high - s.lo > 1) for s, high in highest.items()}
    apart: Sizes = {s: Const(min(below[s], s.lo + 1 + 2 * n)) for n, s in enumerate(sizes)}
    return least, apart


def _check_types(ops: Iterable[Op], sizes: Collection[Sym]) -> None:
    """NotOpen names an op whose types are not those of its definition at the largest sizes, or
    where one of these is the least: what may not be longer than something else shows there."""
    most: dict[Expr, Expr] = {s: Const(s.hi or 0) for s in sizes}
    corners = [most, *({**most, s: Const(s.lo)} for s in sizes if len(sizes) > 1)]
    for op in ops:
        if op.name in ("Constant", "yield") or is_corner(op) or _is_flow(op):
            continue
        if _has_open_types(op):
            for values in filter(lambda sizes: _is_run_at(op, sizes), corners):
                _check_types_at(op, values)


def _check_dead(dead: Iterable[Op], sizes: Collection[Sym]) -> None:
    """As `_check_types`, of ops that nobody reads, also at low sizes: a model is wrong where one of
    them is."""
    for op in dead:
        for values in () if is_corner(op) or _is_flow(op) else _low_sizes(op):
            _check_types_at(op, values)
    _check_types(dead, sizes)


def _is_flow(op: Op) -> bool:
    """Whether an op is one of control flow. Its type follows from those inside it by equality of
    dims, which holds at all sizes; what is inside is looked at by itself."""
    return op.name in FLOW


def _is_run_at(op: Op, sizes: Sizes) -> bool:
    """Whether an op may be run at some sizes: not in a loop that has no trips there."""
    loop = None if op.region is None else op.region.owner
    while loop is not None:
        trips = most_trips(loop) if loop.name in FLOW else None
        if trips is not None and at(trips, sizes) == 0:
            return False
        loop = None if loop.region is None else loop.region.owner
    return True


def _has_open_types(op: Op) -> bool:
    values = (*op.outputs, *(v for v in op.inputs if v is not None))
    return not all(v.type is not None and v.type.is_static for v in values)


def _check_at(op: Op, sizes: Sizes) -> None:
    """Compares an op with one of its definition whose operands have the types of some sizes."""
    if op.defn.form == "imperative":
        why = why_other_kernel(op, _twin_at(op, sizes), sizes)
        if why:
            raise NotOpen(f"{op.where()} is made for one shape at a time: {why}", op)
        return
    for number in once(op, _at("bodies", op, sizes), lambda: _others_at(op, sizes)):
        twin = _twin_at(op, sizes)
        body, own = body_at(op_body(op, number), sizes), simplify(op_body(twin, number))
        if not _agree(body, own, twin, number):
            raise NotOpen(f"{op.where()} computes something else at {_shown(sizes)}", op)


def _others_at(op: Op, sizes: Sizes) -> tuple[int, ...]:
    """The results of an op whose bodies are written otherwise at some sizes than there."""
    twin = _twin_at(op, sizes)
    results = range(0 if op.defn.form == "composite" else len(op.outputs))
    bodies = ((n, body_at(op_body(op, n), sizes), simplify(op_body(twin, n))) for n in results)
    return tuple(n for n, body, own in bodies if body is not own)


def _check_types_at(op: Op, sizes: Sizes) -> None:
    """NotOpen if the types of an op are not those of its definition at some sizes."""
    once(op, _at("types", op, sizes), lambda: _twin_at(op, sizes) is not None)


def _at(what: str, op: Op, sizes: Sizes) -> tuple:
    """What is compared of an op at some sizes: ops that are alike need it once."""
    return (what, *(value.type for value in op.outputs), *sizes.items())


def _twin_at(op: Op, sizes: Sizes) -> Op:
    """An op of the same definition, whose operands have the types of some sizes. NotOpen if its
    results have others than those of the op there, if it has any."""
    operands = [value_at(v, sizes) for v in op.inputs]
    twin = Op(op.defn, operands, attrs_at(op.attrs, sizes), len(op.outputs))
    try:
        types = output_types(twin)
    except GraphcError as error:
        raise NotOpen(f"{op.where()}: at {_shown(sizes)}, {error}", op) from error
    for number, (value, type) in enumerate(zip(op.outputs, types)):
        if value.is_ranked and type_at(value, sizes).with_layout(None) != type:
            raise NotOpen(f"{op.where()} gives {value.type}, but {type} at {_shown(sizes)}", op)
        twin.outputs[number].type = type
    return twin


def _shown(sizes: Sizes) -> str:
    return ", ".join(f"{s} = {n}" for s, n in sizes.items())


def _agree(one: Expr, other: Expr, op: Op, number: int) -> bool:
    """Whether two bodies of a float result of an op give the same for random operands. They may be
    written differently: 2 of 4 taps and 1 of 2 lie at the same position."""
    result = op.outputs[number].tensor
    if not result.dtype.is_float or result.size > MOST_COMPARED:
        return False
    rng = np.random.default_rng(0)
    arrays = {}
    for place, value in enumerate(op.inputs):
        if value is None:
            continue
        array = value.constant
        if array is None:
            drawn = rng.uniform(0, 4, value.tensor.static_shape)
            array = drawn.astype(value.tensor.dtype.np)
        if array.ndim and value.tensor.dtype.is_float:  # what is read beyond the end shows
            array = np.pad(array, [(0, 1)] * array.ndim, constant_values=BEYOND)
        arrays[str(place)] = array
    results = [evaluate(body, result.static_shape, arrays) for body in (one, other)]
    return compare(op.name, *results).within(1e-5)
