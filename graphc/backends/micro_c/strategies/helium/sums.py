"""The base of both vector strategies: loops over outputs, the sums, and the epilogue.

The zero point of bytes (their centre) is taken off beforehand where initial_sums.py can do so. The
outputs at the edges are computed one row at a time, in one loop: their code is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from graphc.backends.micro_c.strategies.helium.copies import Copies
from graphc.backends.micro_c.strategies.helium.initial_sums import Starts
from graphc.backends.micro_c.strategies.helium.matching import element, unguarded
from graphc.backends.micro_c.strategies.helium.padded_lines import padded_lines
from graphc.backends.micro_c.strategies.helium.sum_loops import Level, conjunction, merged
from graphc.backends.micro_c.vectors import LANES, VECTORS
from graphc.ir.addresses import element_after, is_affine_in, unflatten_loads
from graphc.ir.dtypes import i8, i32, i64
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
    substitute,
    walk,
)
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.factors import centred_byte
from graphc.passes.analysis.spaces import balanced_tiles, shapes_of
from graphc.passes.analysis.weighted import ProductMatch, interior
from graphc.passes.lower.lowered import Lowered, in_place_of_epilogue, kernel_of_sums, store_outputs


@dataclass(frozen=True)
class HeliumOptions:
    """Sizes of tiles: rows of dots; rows and vectors of lanes, those vectors where there is one
    row; `block` columns of sums on the stack."""

    rows: int = 3
    chunks: int = 4  # the most groups of sixteen bytes in a row that are unrolled
    lane_rows: int = 3
    lane_vectors: int = 2
    lane_alone: int = 6
    block: int = 64
    deep: int = 8  # products for one tap, from which on sums at the edges stay in registers
    whole: int = 16  # the most products of a column that are unrolled wholly
    unroll: int = 2  # steps of a long innermost loop over lanes


class Emitter:
    """What both ways of summing share: the loops over outputs, starts, the finish."""

    def __init__(self, match: ProductMatch, options: HeliumOptions):
        self.k = KernelBuilder()
        self.options, self.copies = options, Copies(self.k, options.chunks)
        self.lines = padded_lines(match)
        self.match = match = match if self.lines is None else self.lines.match
        self.element = self._element()
        assert match.column is not None
        self.column: Index = match.column
        self.columns = match.column.count
        self.outer = [x for x in match.indices if x is not match.row and x is not match.column]
        self.fixed = [x for x in self.outer if x in free_indices(match.b)]
        self.prepare: list[Computation] = []
        self.temporaries: list[Buffer] = []
        self.centre = self._centre()
        self.expr, self.bias = self._without_bias()
        self.weights = self._pack()
        packed = math.prod(self.weights.shape)
        self.starts = Starts(
            match, self.fixed, self.centre, self.bias, packed, self._constant, self._guards()
        )

    def _element(self) -> Load:
        """What is multiplied by weights, where all taps are inside."""
        if self.lines is not None:
            self.line = self.k.alloc(i8, (self.lines.size,), "stack").name
            return self.lines.load(self.line)
        load = element(unguarded(self.match), self.match.hole.dtype)
        assert load is not None
        return load

    @property
    def edges(self) -> list[Expr]:
        """The guards that sums have to heed: none if lines are copied with their padding."""
        return self.match.guards if self.lines is None else []

    def _guards(self) -> list[Expr]:
        """The guards of products that are left out of sums."""
        return self.edges

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

    def _constant(self, name: str, index: tuple[Index, ...], expr: Expr) -> Buffer:
        """Asks for a constant array, computed when the model is compiled."""
        whole = self.match.computation
        expr = unflatten_loads(simplify(expr), shapes_of(whole.inputs))
        buffer, filled = whole.copied(name, index, expr)
        self.prepare.append(filled)
        self.temporaries.append(buffer)
        return buffer

    # ------------------------------------------------------------ loops over outputs

    def lowered(self) -> Lowered:
        match = self.match
        if self.lines is not None:
            self.lines.clear(self.copies, self.line)
        self._outer(list(self.outer), {}, [])
        whole = match.computation
        kernel = kernel_of_sums("helium", self.k, whole, (self.expr, match.a), self.temporaries)
        work = 2 * math.prod(x.count for x in (*match.indices, *match.depth))
        inplace = in_place_of_epilogue(whole, match.offset, [self.expr], [match.a])
        return Lowered(kernel, self.prepare, self.temporaries, inplace=inplace, flops=work)

    def _outer(self, outer: list[Index], at: dict, conditions: list[Expr]) -> None:
        """Loops over the outer indices; all taps are inside where the conditions hold."""
        if not outer:
            self._rows(at, conditions)
            return
        index, rest = outer[0], outer[1:]
        low, high = interior(index, self.match) if self.edges else (0, index.count)
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
        if self.lines is not None:
            self.lines.fill(self.copies, self.line, at)
        low, high = interior(row, self.match) if self.edges else (0, row.count)
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
        load = self.element
        assert inside or len(rows) == 1
        atoms = [] if inside else self.edges
        counts = [k.count for k in self.match.depth]
        levels = []
        for n, axis in enumerate(self.match.depth):
            step = is_affine_in(load.index[0], axis)
            assert step is not None
            held = tuple(substitute(a, rows[0]) for a in atoms if axis in free_indices(a))
            levels.append(Level(axis, axis.count, step, math.prod(counts[n + 1 :]), held))
        zero = {axis: Const(0, i64) for axis in self.match.depth}
        starts = [simplify(load.index[0], {**zero, **at}) for at in rows]
        return merged(levels), [Load(load.source, (x,), load.dtype) for x in starts]

    @contextmanager
    def _positions(self, level: Level) -> Iterator[Expr]:
        """A loop over the positions of a level that count."""
        with self._loop(level.count) as x:
            guard = level.guard(x)
            with self.k.when(guard) if guard is not None else nullcontext():
                yield x

    # ------------------------------------------------------------ the finish

    @property
    def reads_constants(self) -> bool:
        """Whether outputs may be stored twice: they are made of sums and constants alone."""
        known = {"sum", *self.match.computation.constants}
        return all(x.source in known for x in loads(self.expr))

    def _finish(
        self, at: dict, column: Expr, lanes: int, total: Callable[[Expr], Expr], start: Expr | None
    ) -> None:
        """Four outputs (or fewer), of `total(lane)`."""
        self._finish_rows([at], column, lanes, [total], start)

    def _finish_rows(
        self, rows: list[dict], column: Expr, lanes: int, totals: Sequence[Callable[[Expr], Expr]],
        start: Expr | None,
    ) -> None:  # fmt: skip
        """Four outputs (or fewer) of each of some rows. Constants are loaded once for all rows."""
        outputs = self.match.computation.outputs
        marker = Load("sum", (Const(0, i64),), self.match.hole.dtype)
        shared = self._shared(rows[0], column, lanes) if len(rows) > 1 else {}
        if isinstance(start, Load) and len(rows) > 1:
            start = self._lanes_of(start, lanes)[Const(0, i64)]
        for at, total in zip(rows, totals):
            with self.k.loop(lanes, "vector", width=LANES) as v:
                value = total(v) if start is None else total(v) + element_after(start, v)
                constants = {load: register[v] for load, register in shared.items()}
                expr = substitute(self.expr, constants)
                here = {**at, self.column: simplify(column + v), marker: value}
                store_outputs(self.k, outputs, self.match.offset, [expr], here)

    def _shared(self, at: dict, column: Expr, lanes: int) -> dict[Expr, Buffer]:
        """The constants of the epilogue that all rows of a tile have, in registers."""
        own = {self.column, *self.fixed}
        registers: dict[Expr, Buffer] = {}
        for load in dict.fromkeys(loads(self.expr)):
            constant = load.source in self.match.computation.constants
            kind = (load.dtype, LANES) in VECTORS
            one_by_one = is_affine_in(load.index[0], self.column) == 1 and len(load.index) == 1
            if constant and kind and one_by_one and free_indices(load) <= own:
                first = simplify(load, {**at, self.column: column})
                assert isinstance(first, Load)
                registers[load] = self._lanes_of(first, lanes)
        return registers

    def _lanes_of(self, first: Load, lanes: int) -> Buffer:
        """A register of so many neighbours."""
        register = self.k.alloc(first.dtype, (LANES,), "reg")
        with self.k.loop(lanes, "vector", width=LANES) as v:
            self.k.store(register, v, element_after(first, v))
        return register
