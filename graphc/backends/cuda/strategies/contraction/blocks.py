"""Contractions cut into blocks of rows and columns, one for each block of threads.

What all kernels of contractions have in common: operands over as few indices as possible, the grid,
and the epilogue, which finishes sums in registers on their way to memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

from graphc.backends.cuda.strategies.contraction.operands import Operand, stride
from graphc.backends.cuda.strategies.contraction.sliced_k import SlicedK
from graphc.backends.cuda.strategies.vectors import are_neighbours, loaded
from graphc.ir.addresses import flatten_loads, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    FALSE,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    call,
    substitute,
)
from graphc.ir.extents import ceil_divided, divided
from graphc.ir.kernel import Buffer, If, Intrin, Kernel, KernelBuilder, Let
from graphc.ir.simplify import bounds, simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import buffers_read, flat_buffer
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.spaces import count, merge_adjacent

AT_ONCE = 128  # blocks that run at once, roughly


def constant_depth(match: Match) -> int | str:
    """How many products a sum has; or why it has no tiles, if that depends on sizes."""
    depth = elements_of(k.extent for k in match.depth)
    return (
        depth
        if isinstance(depth, int)
        else f"contraction: the depth must be constant, found {depth}"
    )


def sort_depth(match: Match) -> None:
    """Puts the summed indices into the order in which the first operand lies in memory."""
    a = simplify(flatten_loads(match.a, match.shapes))
    match.depth.sort(key=lambda k: -stride(a, k))


@dataclass(frozen=True)
class FlatContraction:
    """A matched contraction over as few rows, columns and summed indices as possible: operands with
    flat loads, where results go, and their epilogues, in which `marker` stands for the sum."""

    match: Match
    a: Operand
    b: Operand
    offset: Expr
    exprs: list[Expr]
    marker: Load


def flattened(match: Match) -> FlatContraction:
    """What kernels with any tile start from; the depth of the match is sorted."""
    flat = [flatten_loads(e, match.shapes) for e in (match.a, match.b, *match.exprs)]
    hole = reductions_in(flat[2:])[0]
    marker = Load("sum", (Const(0, i64),), hole.dtype)
    a, b, *exprs = (simplify(e, {hole: marker}) for e in flat)
    depth, (a, b) = merge_adjacent(match.depth, [a, b])
    rows, (offset, a, *exprs) = merge_adjacent(match.rows, [match.offset, a, *exprs])
    columns, (offset, b, *exprs) = merge_adjacent(match.cols, [offset, b, *exprs])
    left, right = Operand(a, rows, depth), Operand(b, columns, depth)
    return FlatContraction(match, left, right, offset, exprs, marker)


class BlockedContraction:
    """Emits the kernel of a contraction: `rows` x `columns` sums per block of `threads`, whose
    `k_groups` split the depth."""

    def __init__(
        self, flat: FlatContraction, rows: int, columns: int, threads: int, k_groups: int = 1
    ):
        self.match, self.block_rows, self.block_columns = flat.match, rows, columns
        self.a, self.b = flat.a, flat.b
        self.offset, self.exprs, self.marker = flat.offset, flat.exprs, flat.marker
        self.k = KernelBuilder()
        self.thread = Index("thread", threads)
        self.k_groups = SlicedK(self.thread, k_groups)
        self.shared: list[Buffer] = []
        self.resident = 0  # blocks that a multiprocessor should hold at once

    @property
    def depth_count(self) -> int:
        return count(self.a.depth)

    def sums(self, first_row: Expr, first_column: Expr) -> None:
        """What a thread does for the block that starts there."""
        raise NotImplementedError

    def kernel(self, name: str) -> Kernel:
        """The kernel over the inputs and temporaries that are used and the outputs."""
        rows = ceil_divided(self.a.count, self.block_rows)
        together = self._swizzled_rows(rows)
        self.groups = (
            *(x.extent for x in self.match.outer),
            divided(rows, together)[0],
            ceil_divided(self.b.count, self.block_columns),
            together,
        )
        tiles = elements_of(self.groups)
        with (
            self.k.loop(self.grid(tiles), "block", name="block") as block,
            self.k.threads(self.thread, self.shared, self.resident),
        ):
            self.block_body(block, tiles)
        computation = self.match.computation
        read = (self.a.expr, self.b.expr, *self.exprs)
        inputs = buffers_read((*computation.inputs, *self.match.temporaries), read)
        params = map(flat_buffer, (*inputs, *(o.buffer for o in computation.outputs)))
        return Kernel(name, tuple(params), self.k.body(), computation.label)

    def grid(self, tiles: Dim) -> Dim:
        """Blocks that compute so many tiles."""
        return tiles

    def block_body(self, block: Index, tiles: Dim) -> None:
        """What a thread of a block does: its tile."""
        self.sums(*self.start_of(block))

    def start_of(self, tile: Expr) -> tuple[Expr, Expr]:
        """The first row and column of a tile by its number; its indices of the batch are fixed."""
        *front, group, column, within = unflatten_index(tile, self.groups)
        row = group * self.groups[-1] + within
        self.fixed: dict[Expr, Expr] = dict(zip(self.match.outer, front))
        return simplify(row * self.block_rows), simplify(column * self.block_columns)

    def _swizzled_rows(self, rows: Dim) -> int:
        """Block swizzling (rasterisation order): how many blocks of a column, which has `rows`,
        follow one another. Blocks that run at once share most of both operands in the second-level
        cache where they cover a square."""
        if not isinstance(rows, int):
            return 1
        side = math.sqrt(AT_ONCE * self.block_columns / self.block_rows)
        return max(n for n in range(1, rows + 1) if rows % n == 0 and n <= max(side, 1))

    @contextmanager
    def coming(self, slice: Expr, slices: int) -> Iterator[Expr]:
        """What is done if there is such a slice, nothing if there certainly is none: yields it,
        known to be one."""
        known = Ref("coming", i64, 0, slices - 1)
        with self.k.block() as inner:
            self.k.emit(Let(known, slice))
            yield known
        if bounds(slice)[0] < slices:
            self.k.emit(If(slice < slices, tuple(inner)))

    def finish(self, row: Expr, runs: Sequence[tuple[Expr, Sequence[Expr]]]) -> None:
        """The epilogue of sums in neighbouring columns of a row, stored where there are such a row
        and columns. Runs of them begin at columns that are multiples of their lengths. What all
        need is read before the first is stored: threads would wait for one after another."""
        groups: list[list[tuple[Expr, Expr]]] = []
        for column, cells in runs:
            group = [(simplify(column + n), cell) for n, cell in enumerate(cells)]
            together = divided(self.b.count, len(cells))[1] == 0
            groups += [group] if together else [[one] for one in group]

        def inside(group: list[tuple[Expr, Expr]]) -> Expr:
            return simplify(call("and", row < self.a.count, group[0][0] < self.b.count))

        for condition, batch in groupby(groups, inside):
            if condition is not FALSE:
                with self.k.where(condition):
                    self._store(row, list(batch))

    def _store(self, row: Expr, groups: Sequence[Sequence[tuple[Expr, Expr]]]) -> None:
        results = [result for group in groups for result in self._results(row, group)]
        for buffer, offsets, values in results:
            if are_neighbours(buffer.dtype, offsets):
                self.k.emit(Intrin("store_vector", (buffer[offsets[0]], *values)))
                continue
            for offset, value in zip(offsets, values):
                self.k.store(buffer, (offset,), value)

    def _results(
        self, row: Expr, sums: Sequence[tuple[Expr, Expr]]
    ) -> Iterator[tuple[Buffer, list[Expr], list[Expr]]]:
        """For each output, where the results of sums belong, and they, of what is read at once
        where it lies so in memory."""
        totals = [self.k.let(cell) for _, cell in sums]
        places = [
            {**self.fixed, **self.a.place(row), **self.b.place(column), self.marker: total}
            for (column, _), total in zip(sums, totals)
        ]
        offsets = [simplify(self.offset, place) for place in places]
        for output, expr in zip(self.match.computation.outputs, self.exprs):
            held = loaded(self.k, [expr], places)
            values = [
                simplify(substitute(expr, {x: c[n] for x, c in held.items()}), place)
                for n, place in enumerate(places)
            ]
            yield flat_buffer(output.buffer), offsets, values
