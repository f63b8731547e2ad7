"""From ops to computations: the expression of each output of a (fused) op over physical indices.

A `Computation` is what strategies compile: named input tensors, and outputs whose elements are
given by expressions over their own index in memory order. Composition substitutes the body of each
producer inside a fused region for the loads of its consumers, so what remains are loads of the
region's inputs "in0", "in1", ...; layouts are applied here and nowhere later. Reduction indices
are renamed by the position of their op, so that no two nested reductions share a name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphc.errors import InternalError
from graphc.ir.dtypes import DType, boolean
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    cast,
    cost,
    free_indices,
    loads,
    transform,
    walk,
)
from graphc.ir.expr import substitute as substitute_expr
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.kernel import Buffer, Kernel
from graphc.ir.operations import operations
from graphc.ir.simplify import flatten_index, simplify
from graphc.ir.types import TensorType


@dataclass(frozen=True)
class Output:
    """One output: its buffer (physical shape), its index in memory order, and its element there."""

    buffer: Buffer
    index: tuple[Index, ...]
    expr: Expr

    @property
    def extents(self) -> tuple[int, ...]:
        return self.buffer.shape  # type: ignore[return-value]


@dataclass(frozen=True)
class Computation:
    """Inputs and outputs. `constants` are the inputs whose contents are known at compile time."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Output, ...]
    constants: frozenset[str] = frozenset()
    label: str = ""

    def input(self, name: str) -> Buffer:
        return next(b for b in self.inputs if b.name == name)

    def restricted(self, outputs: Sequence[Output]) -> Computation:
        """The computation of other outputs, less the inputs that these do not read."""
        read = {x.source for o in outputs for x in loads(o.expr)}
        inputs = tuple(b for b in self.inputs if b.name in read)
        return replace(self, inputs=inputs, outputs=tuple(outputs))

    @property
    def has_one_space(self) -> bool:
        """Whether all outputs have one shape."""
        return len({o.extents for o in self.outputs}) == 1

    def over_loops(self) -> tuple[list[Index], Expr, list[Expr]]:
        """Loops over the one space of the outputs, where in memory their elements go, and these."""
        loops = loop_indices(self.outputs[0].extents)
        exprs = [substitute_expr(o.expr, dict(zip(o.index, loops))) for o in self.outputs]
        return list(loops), flatten_index(loops, self.outputs[0].extents), exprs


def physical_buffer(name: str, type: TensorType, access: str) -> Buffer:
    """The buffer of a tensor: its shape in memory order."""
    shape = type.layout.physical(type.static_shape) if type.layout else type.static_shape
    return Buffer(name, type.dtype, shape, access)


def flat_buffer(buffer: Buffer) -> Buffer:
    """The same memory as one dimension."""
    return Buffer(buffer.name, buffer.dtype, (math.prod(buffer.shape),), buffer.access)  # type: ignore


def loop_indices(extents: Sequence[int]) -> tuple[Index, ...]:
    """Indices of an iteration space, of names that no loop of a KernelBuilder bears.

    Indices of equal name and extent are one: substituting loops for indices must not confuse them.
    """
    return tuple(Index(f"o{d}", extent) for d, extent in enumerate(extents))


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
    used = {x.source for o in outputs for x in walk(o.expr) if isinstance(x, Load)}
    return Computation(
        tuple(physical_buffer(names[v], v.tensor, "in") for v in distinct if names[v] in used),
        outputs,
        frozenset(names[v] for v in distinct if v.constant is not None),
        _label(op),
    )


def _label(op: Op) -> str:
    """What the comment of a kernel calls an op: its name, or the names of those in its region."""
    inner = (each.name for region in op.regions for each in region.ops if each.name != "Constant")
    return ", ".join(dict.fromkeys(inner)) or op.name


def input_names(op: Op) -> dict[str, Value]:
    """The value behind each input name of `computation(op)`."""
    distinct = list(dict.fromkeys(v for v in op.inputs if v is not None))
    return {f"in{n}": v for n, v in enumerate(distinct)}


def _output(composer: _Composer, name: str, value: Value, type: TensorType) -> Output:
    buffer = physical_buffer(name, type, "out")
    index = tuple(Index(f"i{p}", extent) for p, extent in enumerate(buffer.shape))
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
        placed = simplify(substitute_expr(body, mapping))

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
    axes = {a for node in walk(body) if isinstance(node, Reduce) for a in node.axes}
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


@dataclass
class Lowered:
    """What a strategy returns: computations to run first (each filling a temporary), and a kernel.

    The outputs of `prepare`, in order, are the first of `temporaries`, which later preparations may
    read; a preparation that reads only constants is done at compile time. Other temporaries are
    filled by the kernels of `before`, which run after the preparations, in order. `inplace` lists
    (output, input) buffers that may share their memory. `flops`, and `read`, at most how many
    elements of a buffer are read, where that is known, are for rooflines.
    """

    kernel: Kernel
    prepare: list[Computation] = field(default_factory=list)
    temporaries: list[Buffer] = field(default_factory=list)
    before: list[Kernel] = field(default_factory=list)
    inplace: list[tuple[str, str]] = field(default_factory=list)
    flops: int = 0
    read: Mapping[str, int] = field(default_factory=dict)


def multiply_adds(part: Computation) -> int:
    """The products that the sums of products of a computation add."""
    sums = (n for o in part.outputs for n in walk(o.expr) if isinstance(n, Reduce))
    return sum(
        math.prod(x.count for x in (*free_indices(node), *node.axes))
        for node in dict.fromkeys(sums)
        if node.op == "sum" and isinstance(node.body, Call) and node.body.op.name == "mul"
    )


def in_place(part: Computation) -> list[tuple[str, str]]:
    """Inputs that are read only at the very element that is being stored, by the only output.

    An output of the same element size may then take the input's place.
    """
    if len(part.outputs) != 1:
        return []
    output = part.outputs[0]
    here = flatten_index(output.index, output.extents)
    reads: dict[str, list[Load]] = {}
    for load in loads(output.expr):
        reads.setdefault(load.source, []).append(load)
    found = []
    for buffer in part.inputs:
        if buffer.dtype.size != output.buffer.dtype.size:
            continue
        if all(flatten_index(x.index, buffer.shape) is here for x in reads.get(buffer.name, ())):
            found.append((output.buffer.name, buffer.name))
    return found


def flops(part: Computation) -> int:
    """The arithmetic operations of a computation, for rooflines."""
    return operations(o.expr for o in part.outputs)


def work(part: Computation) -> int:
    """Roughly what a computation takes, in multiply-adds, for deciding when it is done."""
    return sum(math.prod(o.extents) * min(cost(o.expr), 1 << 20) for o in part.outputs)
