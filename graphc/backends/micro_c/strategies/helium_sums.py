"""What sums of products in vectors share: matching, loops over outputs, starts, the finish.

The centre of bytes (their zero point) is taken off beforehand: sum((x - c) * w) = sum(x * w) - c *
sum(w), and c * sum(w) goes into the constant that a sum starts from, as does a bias. Where guards
hold back taps, sum(w) depends on which are inside: there is a start for every such set of taps, or,
if those were many, one, and at the edges the centre is taken off as the sum goes along. The outputs
at the edges are computed one row at a time, in one loop: their code is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from graphc.backends.cfamily.printer import Dialect
from graphc.backends.cfamily.spell import Speller
from graphc.backends.micro_c.intrinsics import MicroPrinter
from graphc.backends.micro_c.strategies.products import ProductMatch, centred_byte, interior
from graphc.backends.micro_c.vectors import LANES
from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_loads
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, i64, u8
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    call,
    free_indices,
    loads,
    reduce,
    select,
    substitute,
    walk,
)
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.kernel.prepare import prepare_kernel
from graphc.passes.lower.computation import Computation, Lowered, Output, flat_buffer
from graphc.passes.lower.transforms.guards import guard_atoms
from graphc.passes.lower.transforms.spaces import balanced_tiles, shapes_of

SHORT_ROW = 12  # bytes in a row, below which lanes are faster than dots
LEAST_TABLE = 2048  # bytes of starts that are always worth it


@dataclass(frozen=True)
class HeliumOptions:
    """Sizes of tiles: rows and columns of dots, those columns where there is one row, at the edges,
    and at edges where the centre is taken off there; rows and vectors of lanes, those vectors where
    there is one row; `block` columns of sums on the stack."""

    rows: int = 3
    columns: int = 2
    alone: int = 6
    edge_columns: int = 4
    centred_columns: int = 2
    chunks: int = 4  # the most groups of sixteen bytes in a row that are unrolled
    lane_rows: int = 3
    lane_vectors: int = 2
    lane_alone: int = 6
    block: int = 64
    deep: int = 8  # products for one tap, from which on sums at the edges stay in registers
    whole: int = 16  # the most products of a column that are unrolled wholly
    unroll: int = 2  # steps of a long innermost loop over lanes


# ---------------------------------------------------------------- matching


def problem(match: ProductMatch) -> str:
    """Why a sum of products cannot be taken in vectors; empty if it can."""
    column, hole = match.column, match.hole
    if column is None or is_affine_in(match.offset, column) != 1:
        return "the columns of the weights are no neighbours in the output"
    stored = {x.dtype for x in loads(match.b)}
    if not stored <= ({f32} if hole.dtype is f32 else {i8, u8, i32}):
        return f"weights of {', '.join(sorted(d.name for d in stored))}"
    for atom in guard_atoms(hole.op, hole.identity, hole.body):
        summed = [k for k in match.depth if k in free_indices(atom)]
        if len(summed) != 1 or column in free_indices(atom):
            return "a guard of several summed indices, or of columns"
    read = _element(unguarded(match), hole.dtype)
    if read is None:
        return "the other factor is more than an element"
    if any(is_affine_in(read.index[0], k) is None for k in (*match.indices, *match.depth)):
        return "the other factor is not affine"
    if is_affine_in(read.index[0], column) not in (0, 1):
        return "the other factor is not read in the order of columns"
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


@dataclass(frozen=True)
class Level:
    """One loop of a sum: an axis, or several that are passed through as one. `step` is how far it
    moves in the other factor, `weight` in the packed weights; `guards` must hold for a position of
    the axis to count."""

    axis: Index
    count: int
    step: int
    weight: int
    guards: tuple[Expr, ...] = ()

    def guard(self, position: Expr) -> Expr | None:
        """The condition for a position; None if it always counts."""
        atoms = [simplify(substitute(g, {self.axis: position})) for g in self.guards]
        return conjunction([a for a in atoms if not (isinstance(a, Const) and a.value)])


def merged(levels: list[Level]) -> list[Level]:
    """Neighbouring levels that move through both factors as one are one."""
    result = [levels[-1]]
    for outer in reversed(levels[:-1]):
        inner = result[0]
        if (
            outer.guards or inner.guards or outer.step != inner.step * inner.count
            or outer.weight != inner.weight * inner.count
        ):  # fmt: skip
            result.insert(0, outer)
        else:
            result[0] = replace(inner, count=outer.count * inner.count)
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
        self.classes: list[Index] = []
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
            rest = substitute(expr, {node: Ref("sum", hole.dtype)})
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
        """What sums start from: with all taps inside, and at the edges.

        Where it pays, there is one start for every set of taps that are inside (`classes` of the
        output indices on whose account taps are held back), and the centre is dealt with by them.
        """
        if not self.centre:
            found = None if self.bias is None else self._start("start", self.bias)
            return {True: found, False: found}
        self.classes = self._classes()
        zero = Const(0, self.match.hole.dtype)
        before = self.bias if self.bias is not None else zero
        taken = self._start("start", before - self._weight_sum() * Const(self.centre, i32))
        if self.classes or not self.guarded:
            return {True: taken, False: taken}
        edge = None if self.bias is None else self._start("edge", self.bias)
        return {True: taken, False: edge}

    def _classes(self) -> list[Index]:
        """The guarded indices, if a start for each of their classes takes little memory."""
        guarded = [x for x in self.match.indices if x in self.guarded]
        count = math.prod(_class_count(*self._interior(x), x.count) for x in guarded)
        fixed = math.prod(x.count for x in self.fixed)
        taken = count * fixed * -(-self.columns // LANES) * LANES * 4
        return guarded if taken <= max(LEAST_TABLE, math.prod(self.weights.shape)) else []

    def _weight_sum(self) -> Expr:
        """The sum of a column's weights whose taps are inside."""
        hole, body = self.match.hole, self.match.b
        atoms = guard_atoms(hole.op, hole.identity, hole.body)
        for atom in atoms if self.classes else []:
            body = select(atom, body, Const(0, hole.dtype))
        return reduce("sum", body, hole.axes)

    def _start(self, name: str, expr: Expr) -> Buffer:
        width = -(-self.columns // LANES) * LANES
        ranges = [(*self._interior(x), x.count) for x in self.classes]
        counts = [_class_count(*r) for r in ranges]
        shape = (*(x.count for x in self.fixed), *counts, width)
        index = tuple(Index(f"i{d}", extent) for d, extent in enumerate(shape))
        mapping: dict[Expr, Expr] = dict(zip(self.fixed, index))
        for x, position, (low, high, _) in zip(self.classes, index[len(self.fixed) :], ranges):
            mapping[x] = position
            if high > low + 1:
                mapping[x] = select(position <= low, position, position + (high - low - 1))
        mapping[self.column] = self._column_at(index[-1])
        return self._constant(name, expr.dtype, shape, index, substitute(expr, mapping))

    def _start_at(self, inside: bool, at: dict, column: Expr) -> Expr | None:
        buffer = self.starts[inside]
        if buffer is None:
            return None
        classes = [self._class_of(x, at[x], inside) for x in self.classes]
        where = (*(at[x] for x in self.fixed), *classes, column)
        return Load(buffer.name, (flatten_index(where, buffer.shape),), buffer.dtype)

    def _class_of(self, index: Index, position: Expr, inside: bool) -> Expr:
        """Which of the starts belongs to a position of a guarded index."""
        low, high = self._interior(index)
        if high <= low + 1:
            return position
        if inside:
            return Const(low, i64)
        after = select(position >= high, position - (high - low - 1), Const(low, i64))
        return select(position < low, position, after) if low else after

    # ------------------------------------------------------------ loops over outputs

    def lowered(self) -> Lowered:
        match = self.match
        self._outer(list(self.outer), {}, [])
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

    def _interior(self, index: Index) -> tuple[int, int]:
        """The range of an index of the output in which no tap is held back on its account."""
        return interior(index, self.match.hole) if index in self.guarded else (0, index.count)

    def _outer(self, outer: list[Index], at: dict, conditions: list[Expr]) -> None:
        """Loops over the outer indices; all taps are inside where the conditions hold."""
        if not outer:
            self._rows(at, conditions)
            return
        index, rest = outer[0], outer[1:]
        low, high = self._interior(index)
        with self._loop(index.count) as x:
            beyond = [x >= low] if low > 0 else []
            beyond += [x < high] if high < index.count else []
            self._outer(rest, {**at, index: x}, [*conditions, *beyond])

    @contextmanager
    def _loop(self, count: int) -> Iterator[Expr]:
        if count == 1:
            yield Const(0, i64)
            return
        with self.k.loop(count) as x:
            yield x

    def _rows(self, at: dict, conditions: list[Expr]) -> None:
        """All rows: those at the edges one at a time, the others in tiles."""
        row = self.match.row
        inside = conjunction(conditions)
        if row is None:
            self._one_row(at, inside)
            return
        low, high = self._interior(row)
        if low or high < row.count or inside is not None:
            self._edges(at, row, low, high, inside)
        with self.k.when(inside) if inside is not None else nullcontext():
            for first, number, size in balanced_tiles(high - low, self._tile_rows()):
                with self._loop(number) as x:
                    base = simplify(x * size + (first + low))
                    self._columns([{**at, row: simplify(base + t)} for t in range(size)], True)

    def _one_row(self, at: dict, inside: Expr | None) -> None:
        if inside is None:
            self._columns([at], True)
            return
        with self.k.when(inside):
            self._columns([at], True)
        with self.k.otherwise():
            self._columns([at], False)

    def _edges(self, at: dict, row: Index, low: int, high: int, inside: Expr | None) -> None:
        """The rows before `low` and from `high` on, or all of them unless `inside`."""
        with self._loop(row.count) as x:
            bounds = [x >= low] if low > 0 else []
            bounds += [x < high] if high < row.count else []
            within = conjunction([inside, *bounds] if inside is not None else bounds)
            assert within is not None
            with self.k.when(call("not", within)):
                self._columns([{**at, row: x}], False)

    def _tile_rows(self) -> int:
        raise NotImplementedError

    def _columns(self, rows: list[dict], inside: bool) -> None:
        """All columns of a tile of rows."""
        raise NotImplementedError

    # ------------------------------------------------------------ sums

    def _levels(self, rows: list[dict], inside: bool) -> tuple[list[Level], list[Load]]:
        """The loops of the sum for a tile of rows, and the first element it reads in each row."""
        hole = self.match.hole
        load = _element(unguarded(self.match), hole.dtype)
        assert load is not None and (inside or len(rows) == 1)
        atoms = [] if inside else guard_atoms(hole.op, hole.identity, hole.body)
        counts = [k.count for k in self.match.depth]
        levels = []
        for n, axis in enumerate(self.match.depth):
            step = is_affine_in(load.index[0], axis)
            assert step is not None
            held = tuple(substitute(a, rows[0]) for a in atoms if axis in free_indices(a))
            levels.append(Level(axis, axis.count, step, math.prod(counts[n + 1 :]), held))
        zero = {axis: Const(0, i64) for axis in self.match.depth}
        starts = [simplify(substitute(load.index[0], {**zero, **at})) for at in rows]
        return merged(levels), [Load(load.source, (x,), load.dtype) for x in starts]

    @contextmanager
    def _positions(self, level: Level) -> Iterator[Expr]:
        """A loop over the positions of a level that count."""
        with self._loop(level.count) as x:
            guard = level.guard(x)
            with self.k.when(guard) if guard is not None else nullcontext():
                yield x

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


def _class_count(low: int, high: int, count: int) -> int:
    """Positions of an index that differ in the taps held back: low..high - 1 do not."""
    return count - max(high - low - 1, 0)


def conjunction(conditions: list[Expr]) -> Expr | None:
    """Whether all of them hold; None if there are none."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else call("and", result, condition)
    return result
