"""From ops to computations: the expression of each output of a (fused) op over physical indices.

Composition substitutes the body of each producer inside a fused region for the loads of its
consumers, so what remains are loads of the region's inputs "in0", "in1", ...; layouts are applied
here and nowhere later. Reduction indices are renamed by the position of their op, so that no two
nested reductions share a name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from graphc.errors import InternalError
from graphc.ir.dtypes import DType, boolean
from graphc.ir.expr import Const, Expr, Index, Load, Reduce, cast, loads, reduces, transform
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.ir.types import TensorType
from graphc.passes.analysis.computation import Computation, Output, index_of, physical_buffer


def computations(ops: Sequence[Op]) -> list[Computation]:
    """The computation of each op; ops that are alike have the same one, which is composed once."""
    made: dict[Hashable, Computation] = {}
    result = []
    for op in ops:
        key = _structure(op)
        if key not in made:
            made[key] = computation(op)
        result.append(made[key])
    return result


def _structure(op: Op) -> Hashable:
    """All that the computation of an op follows from, with numbers for values."""
    numbers: dict[Value, int] = {}
    parts: list[Hashable] = [op.name]

    def number(value: Value | None) -> int | None:
        """That of a value; one that is new is described."""
        if value is None:
            return None
        if value not in numbers:
            numbers[value] = len(numbers)
            parts.append((value.type, _contents(value)))
        return numbers[value]

    parts += [*map(number, op.inputs), *(value.type for value in op.outputs)]
    members, results = [op], op.outputs
    for region in op.regions:
        members, results = region.ops, region.results
        for param, value in zip(region.params, op.inputs):
            if value is not None:
                numbers[param] = numbers[value]
    for member in members:
        parts += [member.name, *map(number, member.inputs)]
        if member.name != "Constant":
            parts += [op_body(member, n) for n in range(len(member.outputs))]
        parts += map(number, member.outputs)
    parts += map(number, results)
    return tuple(parts)


def _contents(value: Value) -> Hashable:
    """What computations may follow from of the contents of a constant."""
    contents = value.constant
    if contents is None:
        return None
    if contents.size == 1 and not contents.dtype.hasobject:
        return contents.dtype.str, contents.tobytes()
    dtype = value.tensor.dtype
    return id(contents) if dtype.is_integer or dtype is boolean else "constant"


def computation(op: Op) -> Computation:
    """The computation of an op with scalar bodies, or of a fused region of them."""
    inputs = [v for v in op.inputs if v is not None]
    distinct = list(dict.fromkeys(inputs))
    names = {v: f"in{n}" for n, v in enumerate(distinct)}
    composer = _Composer(names)
    if op.name == "fused":
        composer.enter(op.regions[0], op.inputs)
        results = op.regions[0].results
    else:
        composer.number = {op: 0}
        results = op.outputs
    outputs = tuple(
        _output(composer, f"out{n}", inner, outer.tensor)
        for n, (inner, outer) in enumerate(zip(results, op.outputs))
    )
    used = {x.source for o in outputs for x in loads(o.expr)}
    return Computation(
        tuple(physical_buffer(names[v], v.tensor, "in") for v in distinct if names[v] in used),
        outputs,
        frozenset(names[v] for v in distinct if v.constant is not None),
        _label(op),
    )


def _label(op: Op) -> str:
    """What the comment of a kernel calls an op: its name, or the names of those in its region."""
    inner = (
        member.name for region in op.regions for member in region.ops if member.name != "Constant"
    )
    return ", ".join(dict.fromkeys(inner)) or op.name


def input_names(op: Op) -> dict[str, Value]:
    """The value behind each input name of `computation(op)`."""
    distinct = list(dict.fromkeys(v for v in op.inputs if v is not None))
    return {f"in{n}": v for n, v in enumerate(distinct)}


def _output(composer: _Composer, name: str, value: Value, type: TensorType) -> Output:
    buffer = physical_buffer(name, type, "out")
    index = index_of(buffer.shape)
    logical = index
    if type.layout is not None:
        logical = tuple(index[p] for p in type.layout.inverse)
    return Output(buffer, index, composer.element(value, logical))


class _Composer:
    """Gives the element of any value of a region at a logical index."""

    def __init__(self, names: dict[Value, str]):
        self.names = names
        self.alias: dict[Value, Value] = {}
        self.number: dict[Op, int] = {}
        self.memo: dict[tuple, Expr] = {}

    def enter(self, region: Region, operands: Sequence[Value | None]) -> None:
        self.alias.update(
            (param, value) for param, value in zip(region.params, operands) if value is not None
        )
        self.number = {op: n for n, op in enumerate(region.ops)}

    def element(self, value: Value, index: tuple[Expr, ...]) -> Expr:
        key = (value, index)
        if key not in self.memo:
            self.memo[key] = self._element(value, index)
        return self.memo[key]

    def _element(self, value: Value, index: tuple[Expr, ...]) -> Expr:
        value = self.alias.get(value, value)
        contents = value.constant
        if contents is not None and contents.size == 1 and contents.dtype.kind != "O":
            return Const(contents.reshape(-1)[0].item(), value.tensor.dtype)
        if value.producer in self.number:
            return self._produced(value, index)
        sequence = None if contents is None else _sequence(contents, index, value.tensor.dtype)
        if sequence is not None:
            return sequence
        if value not in self.names:
            raise InternalError(f"%{value.name} is neither an input nor made in the region")
        layout = value.tensor.layout
        return Load(
            self.names[value], layout.physical(index) if layout else index, value.tensor.dtype
        )

    def _produced(self, value: Value, index: tuple[Expr, ...]) -> Expr:
        op = value.producer
        assert op is not None
        body = _rename_axes(op_body(op, value.index), self.number[op])
        mapping: dict[Expr, Expr] = {
            Index(f"i{d}", extent): position
            for d, (extent, position) in enumerate(zip(value.tensor.dims, index))
        }
        return self._expand(op, body, mapping)

    def _expand(self, op: Op, body: Expr, mapping: dict[Expr, Expr]) -> Expr:
        placed = simplify(body, mapping)

        def load(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or not node.source.isdigit():
                return None
            operand = op.inputs[int(node.source)]
            assert operand is not None
            return self.element(operand, node.index)

        return transform(placed, load)


def _sequence(contents: np.ndarray, index: tuple[Expr, ...], dtype: DType) -> Expr | None:
    """The element of a constant of equidistant integers along one axis, or of one truth value:
    positions and masks that hide nothing need not be read."""
    flat = contents.reshape(-1)
    if dtype is boolean and flat.size and (flat == flat[0]).all():
        return Const(bool(flat[0]), dtype)
    axes = [d for d, extent in enumerate(contents.shape) if extent != 1]
    if len(axes) != 1 or not dtype.is_integer or contents.size == 0:
        return None
    first = int(flat[0])
    step = int(flat[1]) - first
    if not np.array_equal(flat, first + step * np.arange(flat.size)):
        return None
    return cast(first + step * index[axes[0]], dtype)


def _rename_axes(body: Expr, number: int) -> Expr:
    """Reduction axes k -> r<number>_k."""
    axes = {a for node in reduces(body) for a in node.axes}
    if not axes:
        return body
    mapping = {a: Index(f"r{number}_{a.name}", a.extent) for a in axes}

    done: dict[Expr, Expr] = dict(mapping.items())

    def visit(node: Expr) -> Expr:
        if node not in done:
            children = node.children
            new = node.rebuild([visit(c) for c in children]) if children else node
            if isinstance(node, Reduce):
                new = Reduce(node.op, visit(node.body), tuple(mapping[a] for a in node.axes))
            done[node] = new
        return done[node]

    return visit(body)
