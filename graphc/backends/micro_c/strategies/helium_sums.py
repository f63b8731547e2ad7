"""What sums of products in vectors share: matching, loops over outputs, starts, the finish.

Where no guard of the sum holds back a tap, the centre of bytes (their zero point) is taken off
beforehand: sum((x - c) * w) = sum(x * w) - c * sum(w), and c * sum(w) goes into the constant that
the sum starts from, as does a bias. At the edges the sums run over the taps inside, one row of the
output at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphc.backends.cfamily.printer import Dialect
from graphc.backends.cfamily.spell import Speller
from graphc.backends.micro_c.intrinsics import MicroPrinter
from graphc.backends.micro_c.strategies.tiles import (
    ProductMatch,
    centred_byte,
    interior,
    tiles_of,
    unflatten_loads,
)
from graphc.backends.micro_c.vectors import LANES
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, i64, u8
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    call,
    free_indices,
    loads,
    reduce,
    substitute,
    walk,
)
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.simplify import flatten_index, is_affine_in, simplify
from graphc.passes.kernel.prepare import prepare_kernel
from graphc.passes.lower.computation import Computation, Lowered, Output, flat_buffer
from graphc.passes.lower.guards import guard_atoms, trim
from graphc.passes.lower.spaces import shapes_of

SHORT_ROW = 6  # bytes in a row, below which lanes are faster than dots


@dataclass(frozen=True)
class HeliumOptions:
    """Sizes of tiles: rows and columns of dots, those columns where there is one row; rows and
    vectors of lanes, those vectors where there is one row; `block` columns of sums on the stack."""

    rows: int = 3
    columns: int = 2
    alone: int = 6
    edge_columns: int = 2
    lane_rows: int = 3
    lane_vectors: int = 2
    lane_alone: int = 6
    block: int = 64
    whole: int = 16  # the most products of a column that are unrolled wholly
    unroll: int = 2  # steps of a long innermost loop over lanes


# ---------------------------------------------------------------- matching


def problem(match: ProductMatch) -> str:
    """Why a sum of products cannot be taken in vectors; empty if it can."""
    column, hole = match.column, match.hole
    if column is None or is_affine_in(match.offset, column) != 1:
        return "helium: the columns of the weights are no neighbours in the output"
    stored = {x.dtype for x in loads(match.b)}
    if not stored <= ({f32} if hole.dtype is f32 else {i8, u8, i32}):
        return f"helium: weights of {', '.join(sorted(d.name for d in stored))}"
    for atom in guard_atoms(hole.op, hole.identity, hole.body):
        summed = [k for k in match.depth if k in free_indices(atom)]
        if len(summed) != 1 or column in free_indices(atom):
            return "helium: a guard of several summed indices, or of columns"
    read = _element(unguarded(match), hole.dtype)
    if read is None:
        return "helium: the other factor is more than an element"
    if any(is_affine_in(read.index[0], k) is None for k in (*match.indices, *match.depth)):
        return "helium: the other factor is not affine"
    if is_affine_in(read.index[0], column) not in (0, 1):
        return "helium: the other factor is not read in the order of columns"
    return ""


def _element(factor: Expr, dtype: DType) -> Load | None:
    """The load of a factor that is an element, or a byte less its centre."""
    if isinstance(factor, Load):
        return factor if factor.dtype is dtype else None
    found = centred_byte(factor) if dtype is i32 else None
    return None if found is None else found[0]


def unguarded(match: ProductMatch) -> Expr:
    """The factor that is not constant, where all its guards hold."""
    hole = match.hole
    atoms = guard_atoms(hole.op, hole.identity, hole.body)
    return simplify(substitute(match.a, {a: Const(True, boolean) for a in atoms}))


def has_byte_rows(match: ProductMatch) -> bool:
    """Whether sixteen products are one instruction: bytes in a row, the same for all columns."""
    quad = centred_byte(unguarded(match))
    if quad is None or match.column in free_indices(match.a) or match.hole.dtype is not i32:
        return False
    load, _ = quad
    if _row_length(load, match.depth) < SHORT_ROW:
        return False
    weights = loads(match.b)
    narrow = isinstance(match.b, Call) and match.b.op.name == "cast" and len(weights) == 1
    return (
        narrow and weights[0].dtype is i8
        and is_affine_in(load.index[0], match.depth[-1]) == 1
    )  # fmt: skip


def _row_length(load: Load, depth: list[Index]) -> int:
    """How many neighbours the innermost summed indices run through."""
    length = 1
    for axis in reversed(depth):
        if is_affine_in(load.index[0], axis) != length:
            break
        length *= axis.count
    return length


# ---------------------------------------------------------------- summed indices


@dataclass
class Level:
    """One loop of a sum: an axis (or several that are passed through as one) from `low` on; `step`
    is how far it moves in the other factor, `weight` in the packed weights."""

    low: Expr
    extent: Expr
    count: int
    step: int
    weight: int

    @property
    def is_full(self) -> bool:
        return isinstance(self.extent, Const) and self.extent.value == self.count


def _merged(levels: list[Level]) -> list[Level]:
    """Neighbouring levels that move through both factors as one are one."""
    result = [levels[-1]]
    for outer in reversed(levels[:-1]):
        inner = result[0]
        if inner.is_full and outer.step == inner.step * inner.count:
            if outer.weight == inner.weight * inner.count:
                times = Const(inner.count, i64)
                result[0] = Level(
                    simplify(outer.low * times), simplify(outer.extent * times),
                    outer.count * inner.count, inner.step, inner.weight,
                )  # fmt: skip
                continue
        result.insert(0, outer)
    return result


# ---------------------------------------------------------------- emission


class Emitter:
    """What both ways of summing share: the loops over outputs, starts, the finish."""

    def __init__(self, match: ProductMatch, options: HeliumOptions):
        self.match, self.options = match, options
        self.k = KernelBuilder()
        assert match.column is not None
        self.column: Index = match.column
        self.columns = match.column.count
        self.outer = [x for x in match.indices if x is not match.row and x is not match.column]
        self.guarded = self._guarded()
        self.fixed = [x for x in self.outer if x in free_indices(match.b)]
        self.prepare: list[Computation] = []
        self.temporaries: list[Buffer] = []
        self.centre = self._centre()
        self.expr, self.bias = self._without_bias()
        self.weights = self._pack()
        self.starts = self._starts()

    def _guarded(self) -> set[Index]:
        hole = self.match.hole
        atoms = guard_atoms(hole.op, hole.identity, hole.body)
        return {x for x in self.match.indices for a in atoms if x in free_indices(a)}

    def _centre(self) -> int:
        quad = centred_byte(unguarded(self.match))
        return quad[1] if quad is not None and self.match.hole.dtype is i32 else 0

    def _without_bias(self) -> tuple[Expr, Expr | None]:
        """The epilogue over the sum with its bias, and that bias: constants, one per column."""
        hole, expr = self.match.hole, self.match.expr
        allowed = {self.column, *self.fixed}
        for node in walk(expr):
            if not (isinstance(node, Call) and node.op.name == "add" and hole in node.args):
                continue
            bias = node.args[1] if node.args[0] is hole else node.args[0]
            sources = {x.source for x in loads(bias)}
            rest = substitute(expr, {node: Const(0, hole.dtype)})
            if sources <= self.match.computation.constants and free_indices(bias) <= allowed:
                if hole not in walk(rest) and hole not in walk(bias):
                    marker = Load("sum", (Const(0, i64),), hole.dtype)
                    return substitute(expr, {node: marker}), bias
        marker = Load("sum", (Const(0, i64),), hole.dtype)
        return substitute(expr, {hole: marker}), None

    # ------------------------------------------------------------ constants

    def _pack(self) -> Buffer:
        raise NotImplementedError

    def _constant(self, name: str, dtype, shape: tuple[int, ...], index, expr: Expr) -> Buffer:
        """Asks for a constant array, computed when the model is compiled."""
        match = self.match
        expr = unflatten_loads(simplify(expr), shapes_of(match.computation.inputs))
        sources = {x.source for x in loads(expr)}
        inputs = tuple(b for b in match.computation.inputs if b.name in sources)
        output = Output(Buffer(name, dtype, shape, "out"), index, expr)
        label = f"{name} of {match.computation.label}"
        self.prepare.append(Computation(inputs, (output,), match.computation.constants, label))
        buffer = Buffer(name, dtype, shape)
        self.temporaries.append(buffer)
        return buffer

    def _column_at(self, position: Expr) -> Expr:
        """A column of the weights; those past the last are like the last."""
        return call("min", position, Const(self.columns - 1, i64))

    def _starts(self) -> dict[bool, Buffer | None]:
        """What sums start from: with all taps inside, and at the edges."""
        edge = self.bias if self.guarded else None
        zero = Const(0, self.match.hole.dtype)
        start = self.bias
        if self.centre:
            # The sum over all taps of the weights alone, times the centre.
            total = reduce("sum", self.match.b, self.match.hole.axes)
            start = (start if start is not None else zero) - total * Const(self.centre, i32)
        same = start is edge or not self.guarded
        found = None if start is None else self._start("start", start)
        if same:
            return {True: found, False: found}
        return {True: found, False: None if edge is None else self._start("edge", edge)}

    def _start(self, name: str, expr: Expr) -> Buffer:
        width = -(-self.columns // LANES) * LANES
        shape = (*(x.count for x in self.fixed), width)
        index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(shape))
        mapping: dict[Expr, Expr] = dict(zip(self.fixed, index))
        mapping[self.column] = self._column_at(index[-1])
        return self._constant(name, expr.dtype, shape, index, substitute(expr, mapping))

    def _start_at(self, inside: bool, at: dict, column: Expr) -> Expr | None:
        buffer = self.starts[inside]
        if buffer is None:
            return None
        where = (*(at[x] for x in self.fixed), column)
        return Load(buffer.name, (flatten_index(where, buffer.shape),), buffer.dtype)

    # ------------------------------------------------------------ loops over outputs

    def lowered(self) -> Lowered:
        match = self.match
        self._outer(list(self.outer), {}, True)
        output = flat_buffer(match.computation.outputs[0].buffer)
        used = {x.source for x in (*loads(self.expr), *loads(match.a))}
        inputs = [flat_buffer(b) for b in match.computation.inputs if b.name in used]
        params = (*inputs, *map(flat_buffer, self.temporaries), output)
        kernel = Kernel("helium", params, self.k.body(), match.computation.label)
        work = 2 * math.prod(x.count for x in (*match.indices, *match.depth))
        inplace = self._in_place(inputs, output)
        return Lowered(kernel, self.prepare, self.temporaries, inplace=inplace, flops=work)

    def _in_place(self, inputs: list[Buffer], output: Buffer) -> list[tuple[str, str]]:
        """Inputs read at the end only, at the very element that is stored."""
        summed = {x.source for x in loads(self.match.a)}
        found = []
        for buffer in inputs:
            reads = [x for x in loads(self.expr) if x.source == buffer.name]
            here = all(simplify(x.index[0]) is simplify(self.match.offset) for x in reads)
            if reads and here and buffer.name not in summed:
                if buffer.dtype.size == output.dtype.size:
                    found.append((output.name, buffer.name))
        return found

    def _outer(self, outer: list[Index], at: dict, inside: bool) -> None:
        if not outer:
            self._rows(at, inside)
            return
        index, rest = outer[0], outer[1:]
        for start, count, whole in self._segments(index, inside):
            with self._loop(count) as x:
                self._outer(rest, {**at, index: simplify(x + start)}, whole)

    def _segments(self, index: Index, inside: bool) -> Iterator[tuple[int, int, bool]]:
        """Runs (start, count, whether all taps are inside) of an index of the output."""
        low, high = 0, index.count
        if index in self.guarded:
            low, high = interior(index, self.match.hole)
        runs = ((0, low, False), (low, high - low, inside), (high, index.count - high, False))
        return (run for run in runs if run[1])

    @contextmanager
    def _loop(self, count: int) -> Iterator[Expr]:
        if count == 1:
            yield Const(0, i64)
            return
        with self.k.loop(count) as x:
            yield x

    def _rows(self, at: dict, inside: bool) -> None:
        row = self.match.row
        if row is None:
            self._columns([at], inside)
            return
        for start, count, whole in self._segments(row, inside):
            runs = [(start, count, 1)]
            if whole:
                runs = tiles_of(start, count, self._tile_rows())
            for first, number, size in runs:
                with self._loop(number) as x:
                    base = simplify(x * size + first)
                    self._columns([{**at, row: simplify(base + t)} for t in range(size)], whole)

    def _tile_rows(self) -> int:
        raise NotImplementedError

    def _columns(self, rows: list[dict], inside: bool) -> None:
        """All columns of a tile of rows."""
        raise NotImplementedError

    # ------------------------------------------------------------ sums

    def _levels(self, rows: list[dict]) -> tuple[list[Level], list[Load]]:
        """The loops of the sum for a tile of rows, and the first element it reads in each row."""
        factors = [simplify(substitute(self.match.a, at)) for at in rows]
        hole = self.match.hole
        bound = frozenset(x for at in rows for e in at.values() for x in free_indices(e))
        ranges: list[tuple[Expr, Expr]] = []
        for axis in self.match.depth:
            trimmed = trim([hole] * len(factors), factors, axis, bound)
            low: Expr = Const(0, i64)
            extent: Expr = Const(axis.count, i64)
            if trimmed is not None:
                inside, factors = trimmed
                low, extent = inside.low, inside.extent
            ranges.append((low, extent))
        reads = [_only_load(f) for f in factors]
        counts = [k.count for k in self.match.depth]
        levels = []
        for n, (axis, (low, extent)) in enumerate(zip(self.match.depth, ranges)):
            step = is_affine_in(reads[0].index[0], axis)
            assert step is not None
            levels.append(Level(low, extent, axis.count, step, math.prod(counts[n + 1 :])))
        zero = {axis: Const(0, i64) for axis in self.match.depth}
        starts = [Load(x.source, (simplify(substitute(x.index[0], zero)),), x.dtype) for x in reads]
        return _merged(levels), starts

    # ------------------------------------------------------------ the finish

    def _finished(self, at: dict, total: Expr, column: Expr) -> tuple[Expr, Expr]:
        """Where an output goes, and its value, of a sum and the column it belongs to."""
        marker = Load("sum", (Const(0, i64),), self.match.hole.dtype)
        mapping = {**at, self.column: column, marker: total}
        where = simplify(substitute(self.match.offset, mapping))
        return where, simplify(substitute(self.expr, mapping))

    def _finish(self, at: dict, column: Expr, lanes: int, total, start: Expr | None) -> None:
        """Four outputs (or fewer), of `total(lane)`."""
        output = flat_buffer(self.match.computation.outputs[0].buffer)
        with self.k.loop(lanes, "vector", width=LANES) as v:
            value = total(v)
            if start is not None:
                value = value + moved(start, v)
            where, result = self._finished(at, value, simplify(column + v))
            self.k.store(output, (where,), result)

    def _is_vector(self) -> bool:
        """Whether the finish of four outputs can do without a loop over them."""
        dtype = self.match.hole.dtype
        k = KernelBuilder()
        total = k.alloc(dtype, (LANES,), "stack", "total")
        at = {x: Const(0, i64) for x in self.match.indices}
        emitter, self.k = self.k, k
        self._finish(at, Const(0, i64), LANES, lambda v: total[v], None)
        self.k = emitter
        output = flat_buffer(self.match.computation.outputs[0].buffer)
        params = (*map(flat_buffer, self.match.computation.inputs), output)
        kernel = prepare_kernel(Kernel("finish", params, k.body()), lacks=())
        printer = MicroPrinter(kernel, "finish", Speller(i32), Dialect(index=i32), functions=set())
        return printer.is_vector(kernel.body[-1])


def moved(load: Expr, offset: Expr) -> Load:
    """The element so far after that of a load."""
    assert isinstance(load, Load)
    return Load(load.source, (simplify(load.index[0] + offset),), load.dtype)


def _only_load(factor: Expr) -> Load:
    (load,) = dict.fromkeys(loads(factor))
    return load


def loop_extent(count: Expr) -> int | Expr:
    """The extent of a loop: a number if it is constant."""
    return count.value if isinstance(count, Const) else count
