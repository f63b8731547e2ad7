"""The reference interpreter: runs a graph in numpy straight from the operators' definitions.

Scalar bodies are evaluated on whole arrays: each index in scope becomes an array axis, loads become
views of the operand where their indices are affine (sliding windows) and numpy indexing elsewhere,
and reductions reduce the trailing axes. An out-of-range index, legal in the branch a `select` does
not take, reads some element or zero. A sum of products is evaluated by einsum over the factors,
which makes convolutions of real models feasible. Large outputs are computed in slices so that
memory stays bounded. It judges every backend, and is itself judged by ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphc.errors import InternalError, ModelError
from graphc.ir.binding import bind
from graphc.ir.checks import judge, key_of
from graphc.ir.conditions import asked_by
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    Sym,
    free_indices,
    substitute,
    walk,
)
from graphc.ir.graph import Graph, Op, Region, Value, clone_region, constant_op
from graphc.ir.infer import blaming, expand, infer_op, op_body
from graphc.ir.kernel_interp import run_imperative
from graphc.ir.ops import control
from graphc.ir.ops.counts import is_count
from graphc.ir.ops.in_range import check_of, is_check
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.simplify import simplify, to_poly
from graphc.ir.trials import body_at
from graphc.ir.types import at, type_of
from graphc.ir.wide_graphs import accumulates, in_float32

CHUNK = 1 << 25  # elements of the largest intermediate array
LONG = 1 << 10  # terms of a sum that is taken in float64, lest it loses digits of a float32


def interpret(graph: Graph, inputs: Sequence[object], on_op: Callable | None = None) -> list[Any]:
    """Runs a graph on numpy arrays (lists for sequences, None for empty optionals).

    Types are inferred again from the actual inputs, so shapes that depend on data are no obstacle.
    `on_op(op, outputs)` is called after each op.
    """

    return run_region(graph, inputs, on_op)


def run_region(
    region: Region,
    inputs: Sequence[object],
    on_op: Callable | None = None,
    sizes: dict[Expr, Expr] | None = None,
) -> list[Any]:
    """Runs a region whose parameters take these values. `sizes` are those that data has decided
    around it."""
    if len(inputs) != len(region.params):
        raise ModelError(f"expected {len(region.params)} inputs, found {len(inputs)}")
    values: dict[Value, Any] = dict(zip(region.params, inputs))
    last_use, known = _last_uses(region), dict(sizes or {})
    for op in region.ops:
        arguments = [None if v is None else values[v] for v in op.inputs]
        results = run_op(op, arguments, known)
        if is_count(op):
            known[op.attrs["size"]] = Const(int(results[0]), i64)
        if on_op is not None:
            on_op(op, results)
        values.update(zip(op.outputs, results))
        for value in last_use.get(op, ()):
            del values[value]
    return [values[v] for v in region.results]


def _last_uses(region: Region) -> dict[Op, list[Value]]:
    kept = set(region.results)
    last: dict[Value, Op] = {}
    for op in region.ops:
        last.update((v, op) for v in (*op.inputs, *op.outputs) if v is not None and v not in kept)
    out: dict[Op, list[Value]] = {}
    for value, op in last.items():
        out.setdefault(op, []).append(value)
    return out


def run_op(op: Op, arguments: Sequence[Any], sizes: Mapping[Expr, Expr] | None = None) -> list[Any]:
    """The outputs of one op on actual values, where some sizes are known."""
    form = op.defn.form
    if op.name == "Constant":
        return [op.attrs["value"]]
    if op.name == "fused":
        return run_region(op.regions[0], arguments, None, dict(sizes or {}))
    if form == "region":
        return control.run(op, arguments, run_region)
    if form == "host":
        return _run_host(op, arguments)
    if sizes and form == "indexed" and _has_sizes(op):
        return _at_sizes(op, arguments, sizes)
    bound = concrete(op, arguments)
    if form == "composite":
        graph, _ = expand(bound)
        return run_region(graph, [None if v is None else v for v in _params(graph, arguments)])
    infer_op(bound)
    check_operands(op, bound, arguments)
    if accumulates(bound):
        return run_region(in_float32(bound), arguments)
    if form == "imperative":
        return run_imperative(bound, arguments)
    results = [_run_body(bound, k, arguments) for k in range(len(bound.outputs))]
    if is_check(op):
        judge([check_of(op)], [int(results[0])])
    return results


def _has_sizes(op: Op) -> bool:
    """Whether attributes of an op are made of sizes."""
    attrs = (a if isinstance(a, tuple) else (a,) for a in op.attrs.values())
    return any(isinstance(part, Expr) for attr in attrs for part in attr)


def _at_sizes(op: Op, arguments: Sequence[Any], sizes: Mapping[Expr, Expr]) -> list[Any]:
    """The output of a typed op that is made of sizes."""
    shape = [at(dim, sizes) for dim in op.output.tensor.dims]
    arrays = {str(n): np.asarray(a) for n, a in enumerate(arguments) if a is not None}
    result = evaluate(body_at(op_body(op), sizes), tuple(shape), arrays)  # type: ignore[arg-type]
    if is_check(op):
        judge([check_of(op)], [int(result)])
    return [result]


def check_operands(op: Op, typed: Op, arguments: Sequence[object]) -> None:
    """ModelError unless operands are as an op asks for, which `typed` is with static types."""
    for asked in asked_by(typed, op):
        extents = [extent for extent in asked.extents if isinstance(extent, int)]
        if asked.sizes:  # of an operand whose contents are not read
            continue
        arrays = {str(n): np.asarray(a) for n, a in enumerate(arguments) if a is not None}
        keys = evaluate(key_of(asked.value, asked.check.low), tuple(extents), arrays)
        judge([asked.check], [int(keys.max())])


def _params(graph: Graph, arguments: Sequence[object]) -> list[Any]:
    return list(arguments)[: len(graph.params)]


def concrete(op: Op, arguments: Sequence[object]) -> Op:
    """A copy of `op` outside any region, with operand types (and small contents) as found."""
    inputs: list[Value | None] = []
    params = op.defn.params
    for position, argument in enumerate(arguments):
        if argument is None:
            inputs.append(None)
            continue
        param = params[min(position, len(params) - 1)] if params else None
        inputs.append(_value_of(argument, known=param is not None and param.accepts.known))
    regions = [clone_region(region) for region in op.regions]
    return Op(op.defn, inputs, op.attrs, len(op.outputs), regions, op.loc)


def _value_of(argument: object, known: bool) -> Value:
    if isinstance(argument, np.ndarray):
        if known or argument.size <= 64:
            return constant_op(argument).output
        return Value(type_of(argument))
    return Value(type_of(argument))


def _run_host(op: Op, arguments: Sequence[Any]) -> list[Any]:
    assert op.defn.function is not None
    types = [None if a is None else type_of(a) for a in arguments]
    with blaming(op):
        keywords = bind(op.defn, types, op.attrs, arguments).keywords
        if "count" in keywords:
            keywords["count"] = len(op.outputs)
        results = op.defn.function(*arguments, **keywords)
    return list(results) if isinstance(results, tuple) else [results]


# ---------------------------------------------------------------- scalar bodies


def _run_body(op: Op, output: int, arguments: Sequence[object]) -> np.ndarray:
    shape = op.outputs[output].tensor.static_shape
    expr = op_body(op, output)
    arrays = {str(n): np.asarray(a) for n, a in enumerate(arguments) if a is not None}
    return evaluate(expr, shape, arrays)


def evaluate(expr: Expr, shape: tuple[int, ...], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The tensor whose element at (i0, i1, ...) is `expr`; loads read `arrays` by source name."""
    if 0 in shape:
        return np.zeros(shape, expr.dtype.np)
    rows = _rows_per_chunk(expr, shape)
    indices = [Index(f"i{d}", extent) for d, extent in enumerate(shape)]
    if not shape or rows >= shape[0]:
        return _Evaluator(arrays, {}).tensor(expr, indices)
    out = np.empty(shape, expr.dtype.np)
    for start in range(0, shape[0], rows):
        count = min(rows, shape[0] - start)
        part = Index("i0", count)
        moved = substitute(expr, {indices[0]: part + start})
        out[start : start + count] = _Evaluator(arrays, {}).tensor(moved, [part, *indices[1:]])
    return out


def _rows_per_chunk(expr: Expr, shape: tuple[int, ...]) -> int:
    if not shape:
        return 1
    largest = _largest_reduction(expr)
    per_row = max(1, math.prod(shape[1:])) * largest
    return max(1, CHUNK // per_row)


def _largest_reduction(expr: Expr) -> int:
    """Iterations of the largest reduction that einsum does not take."""
    sizes = [1]
    for node in walk(expr):
        if isinstance(node, Reduce):
            extent = math.prod(a.count for a in node.axes)
            sizes.append(max(1, extent // 16) if factors(node) else extent)
    return max(sizes)


def factors(node: Reduce) -> tuple[Expr, ...] | None:
    """The factors of a sum of products, if each depends on only some of the indices. More than two
    of narrow floats are not taken apart, as they are rounded in between."""
    if node.factors is None:
        return None
    operands: tuple[Expr, ...] = node.factors
    if node.dtype.compute is node.dtype:
        operands = tuple(_multiplied(node.body))
    used = [free_indices(x) for x in operands]
    every = frozenset().union(*used)
    if len(operands) == 2 and not (used[0] - used[1] and used[1] - used[0]):
        return None
    return operands if all(x != every for x in used) and every.issuperset(node.axes) else None


def _multiplied(node: Expr) -> Iterator[Expr]:
    """The factors of a product."""
    if isinstance(node, Call) and node.op.name == "mul":
        for part in node.args:
            yield from _multiplied(part)
    else:
        yield node


class _Evaluator:
    """Evaluates expressions over a scope (a list of indices, one array axis each)."""

    def __init__(self, arrays: dict[str, np.ndarray], refs: dict[str, Any]):
        self.arrays, self.refs = arrays, refs
        self.memo: dict[tuple, np.ndarray] = {}

    def tensor(self, expr: Expr, scope: list[Index]) -> np.ndarray:
        """The full array over the scope."""
        shape = tuple(x.count for x in scope)
        value = self.run(expr, tuple(scope))
        return np.array(np.broadcast_to(value, shape), expr.dtype.np)

    def run(self, node: Expr, scope: tuple[Index, ...]) -> np.ndarray:
        """An array that broadcasts over the scope."""
        key = (node, scope)
        value = self.memo.get(key)
        if value is None:
            value = self.memo[key] = self._run(node, scope)
        return value

    def _run(self, node: Expr, scope: tuple[Index, ...]) -> np.ndarray:
        if isinstance(node, Const):
            return np.asarray(node.value, node.dtype.np)
        if isinstance(node, Index):
            return self._index(node, scope)
        if isinstance(node, Load):
            return self._load(node, scope)
        if isinstance(node, Call):
            return self._call(node, scope)
        if isinstance(node, Reduce):
            return self._reduce(node, scope)
        if isinstance(node, (Ref, Sym)) and node.name in self.refs:
            return np.asarray(self.refs[node.name])
        raise InternalError(f"cannot evaluate `{node}`")

    def _index(self, node: Index, scope: tuple[Index, ...]) -> np.ndarray:
        position = scope.index(node)
        shape = [1] * len(scope)
        shape[position] = node.count
        return np.arange(node.count, dtype=np.int64).reshape(shape)

    def _call(self, node: Call, scope: tuple[Index, ...]) -> np.ndarray:
        return scalar_ops.apply(node.op, node.dtype, *(self.run(a, scope) for a in node.args))

    def _load(self, node: Load, scope: tuple[Index, ...]) -> np.ndarray:
        array = self.arrays[node.source]
        if array.size == 0:
            return np.zeros((), array.dtype)
        whole = self._plain_load(node, array, scope)
        if whole is None:
            whole = self._strided_load(node, array, scope)
        if whole is not None:
            return whole
        where = [self.run(x, scope) for x in node.index]
        clipped = [np.clip(x, 0, extent - 1) for x, extent in zip(where, array.shape)]
        return np.asarray(array[tuple(clipped)], array.dtype)

    def _plain_load(
        self, node: Load, array: np.ndarray, scope: tuple[Index, ...]
    ) -> np.ndarray | None:
        """A load whose indices are distinct scope indices over whole dims (or constants)."""
        axes = [x for x in node.index if not isinstance(x, Const)]
        if not all(isinstance(x, Index) and x in scope for x in axes) or len(set(axes)) < len(axes):
            return None
        pick: list[Any] = []
        for x, extent in zip(node.index, array.shape):
            if isinstance(x, Const):
                if not 0 <= x.value < extent:
                    return None
                pick.append(x.value)
            elif x.extent > extent:  # type: ignore[attr-defined]
                return None
            else:
                pick.append(slice(0, x.extent))  # type: ignore[attr-defined]
        positions = [scope.index(x) for x in axes]  # type: ignore[arg-type]
        view = np.asarray(array[tuple(pick)], array.dtype).transpose(np.argsort(positions))
        shape = [1] * len(scope)
        for x in axes:
            shape[scope.index(x)] = x.extent  # type: ignore[attr-defined, arg-type]
        return view.reshape(shape)

    def _strided_load(
        self, node: Load, array: np.ndarray, scope: tuple[Index, ...]
    ) -> np.ndarray | None:
        """A load whose indices are affine in scope indices (a sliding window), as a view of the
        array, padded where it is left."""
        separated = self._separate(node, array, scope)
        if separated is None:
            return None
        array, maps = separated
        spans = [_span(terms) for terms in maps]
        margins = [(max(0, -lo), max(0, hi + 1 - e)) for (lo, hi), e in zip(spans, array.shape)]
        padded = [e + sum(margin) for margin, e in zip(margins, array.shape)]
        if math.prod(padded) > 4 * array.size + 1024:
            return None
        if any(map(any, margins)):
            array = np.pad(array, margins)
        strides, start = dict.fromkeys(scope, 0), []
        for stride, (before, _), terms in zip(array.strides, margins, maps):
            start.append(slice(terms.get(None, 0) + before, None))
            for index, factor in terms.items():
                if index is not None:
                    strides[index] += factor * stride
        used = {x for terms in maps for x in terms}
        shape = tuple(x.count if x in used else 1 for x in scope)
        steps = tuple(strides[x] for x in scope)
        bits = array.view(f"V{array.itemsize}") if array.dtype.isbuiltin != 1 else array
        strided = np.lib.stride_tricks.as_strided(bits[tuple(start)], shape, steps, writeable=False)
        return strided.view(array.dtype)

    def _separate(
        self, node: Load, array: np.ndarray, scope: tuple[Index, ...]
    ) -> tuple[np.ndarray, list] | None:
        """The array and affine maps of its dims. A dim indexed in another way is gathered first,
        if no other dim depends on the same indices."""
        result = math.prod(x.extent for x in scope if x in free_indices(node))
        maps = []
        for d, x in enumerate(node.index):
            terms = _affine(x, scope)
            if terms is None:
                others = node.index[:d] + node.index[d + 1 :]
                own = tuple(y for y in scope if y in free_indices(x))
                if any(y in free_indices(o) for o in others for y in own):
                    return None
                extents = tuple(y.count for y in own)
                if array.size // array.shape[d] * math.prod(extents) > 4 * result + 1024:
                    return None
                where = np.clip(np.broadcast_to(self.run(x, own), extents), 0, array.shape[d] - 1)
                array = array.take(where.ravel(), axis=d)
                terms = {y: math.prod(extents[n + 1 :]) for n, y in enumerate(own)}
            maps.append(terms)
        return array, maps

    def _reduce(self, node: Reduce, scope: tuple[Index, ...]) -> np.ndarray:
        if any(a.extent == 0 for a in node.axes):
            return np.asarray(node.identity.value, node.dtype.np)
        operands = factors(node)
        if operands and node.dtype.is_number:
            return self._contract(node, operands, scope)
        inner = scope + node.axes
        value = self.run(node.term, inner)
        value = _with_rank(value, len(inner))
        full = value.shape[: len(scope)] + tuple(a.extent for a in node.axes)
        value = np.broadcast_to(value, full)
        where = tuple(range(len(scope), len(inner)))
        with np.errstate(all="ignore"):
            return self._combine(node, value, where)

    def _combine(self, node: Reduce, value: np.ndarray, where: tuple[int, ...]) -> np.ndarray:
        dtype = node.dtype
        wide = value.astype(dtype.compute.np, copy=False)
        if node.op == "sum":
            terms = math.prod(value.shape[axis] for axis in where)
            precise = dtype.is_float and terms > LONG
            out = np.add.reduce(wide, axis=where, dtype="d" if precise else _accumulator(dtype))
        else:
            ufunc = {"prod": np.multiply, "min": np.minimum, "max": np.maximum,
                     "and": np.logical_and, "or": np.logical_or}[node.op]  # fmt: skip
            logical = node.op in ("and", "or")
            out = ufunc.reduce(wide, axis=where, dtype=None if logical else dtype.compute.np)
        return np.asarray(out).astype(dtype.np)

    def _contract(
        self, node: Reduce, product: Sequence[Expr], scope: tuple[Index, ...]
    ) -> np.ndarray:
        operands: list[Any] = []
        everything = scope + node.axes
        number = {x: n for n, x in enumerate(everything)}
        is_long = node.dtype.is_float and math.prod(x.count for x in node.axes) > LONG
        dtype = np.float64 if is_long else _accumulator(node.dtype)
        for factor in product:
            own = tuple(x for x in everything if x in free_indices(factor))
            value = np.broadcast_to(self.run(factor, own), tuple(x.count for x in own))
            operands += [value.astype(dtype), [number[x] for x in own]]
        used = [x for x in scope if x in free_indices(node)]
        with np.errstate(all="ignore"):
            out = np.einsum(*operands, [number[x] for x in used], optimize=True)
            result = np.asarray(out).astype(node.dtype.np)
        return result.reshape(tuple(x.count if x in used else 1 for x in scope))


def _affine(node: Expr, scope: tuple[Index, ...]) -> dict[Index | None, int] | None:
    """The factor of each index in an affine expression (None: the constant); None if not affine."""
    terms: dict[Index | None, int] = {}
    for atoms, factor in to_poly(simplify(node)).items():
        if len(atoms) > 1 or any(atom not in scope for atom in atoms):
            return None
        terms[atoms[0] if atoms else None] = factor  # type: ignore[index]
    return terms


def _span(terms: dict[Index | None, int]) -> tuple[int, int]:
    """The smallest and the largest value of an affine expression."""
    ends = [
        (0, factor * (index.count - 1)) if index is not None else (factor, factor)
        for index, factor in terms.items()
    ]
    return sum(min(e) for e in ends), sum(max(e) for e in ends)


def _with_rank(value: np.ndarray, rank: int) -> np.ndarray:
    return value.reshape((1,) * (rank - value.ndim) + value.shape)


def _accumulator(dtype: DType) -> np.dtype:
    """The type of sums: of narrow floats, and of the products in them, it is float32."""
    return dtype.compute.np
