"""Flash-Decoding: attention of few rows. It is bound by memory, so keys and values are read once.

A group of neighbouring lanes shares a key: each lane holds 16 bytes of it, or a multiple of 16, and
multiplies them by its part of every row. Warp shuffles add the products, so that all lanes of the
group have the score. Each lane then adds its part of the values, weighted. Every group of a block
has its own maxima, totals and sums, which are combined through shared memory at the end.

Where too few blocks would fill the GPU, the keys are split into parts, one block each. A second
kernel combines their maxima, totals and sums (T. Dao et al., Flash-Decoding, 2023). Memory is
linear in the number of parts, which the GPU bounds. See online_softmax.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from graphc.backends.cuda.machines import VECTOR_BYTES, WARP, Machine
from graphc.backends.cuda.strategies.attention.online_softmax import (
    NOTHING,
    AttentionBlocks,
    padded,
)
from graphc.backends.cuda.strategies.contraction.operands import Operand, strided
from graphc.backends.cuda.strategies.rows.row_reductions import lower_rows
from graphc.backends.cuda.strategies.vectors import loaded
from graphc.ir.addresses import flatten_index, is_affine_in, unflatten_index
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import (
    Const,
    Expr,
    Index,
    Reduce,
    as_expr,
    call,
    cast,
    loads,
    select,
    substitute,
)
from graphc.ir.extents import ceil_divided, most, points
from graphc.ir.kernel import Barrier, Buffer, Intrin
from graphc.ir.simplify import simplify
from graphc.ir.types import elements_of
from graphc.passes.analysis.attention import (
    LARGEST,
    RESULT,
    SUM,
    TOTAL,
    Attention,
    match_attention,
)
from graphc.passes.analysis.computation import Computation, Output, buffers_read, flat_buffer
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.strategies.nest import NestOptions, lower_nest

THREADS = 128
MOST_ROWS = 8
MOST_CELLS = 128  # floats of rows and sums that a thread holds
ROUNDED = 128  # keys of narrow types up to which other kernels round weights as the graph says
RESIDENT = 4  # blocks that a multiprocessor should have
FLOATS = 4  # that one access takes
TILES = 2  # of keys that a part has at least


def lower_flash_decoding(
    computation: Computation, gpu: Machine, parts: int | None = None
) -> Lowered | str:
    """The kernels of an attention of few rows, its keys in so many `parts` (default: as many as
    fill the GPU); or the reason why it is none."""
    match = match_attention(computation)
    if isinstance(match, str):
        return match
    rows, keys = points(match.rows), most(match.key.extent)
    if rows > MOST_ROWS:
        return f"attention: flash decoding takes at most {MOST_ROWS} rows, found {rows}"
    is_narrow = any(x.dtype is not f32 for x in (match.a, match.b, match.value))
    if is_narrow and keys <= ROUNDED:
        return (
            f"attention: flash decoding takes narrow values of more than {ROUNDED} keys, found "
            f"{keys}, whose weights are rounded as the graph says"
        )
    if not all(isinstance(x.extent, int) for x in match.rows):
        return "attention: flash decoding takes a constant number of rows, found an open one"
    emitter = _FewRows(match)
    if emitter.cells > MOST_CELLS:
        return (
            f"attention: a thread holds at most {MOST_CELLS} floats of rows and sums, found "
            f"{emitter.cells}"
        )
    emitter.cut(parts or gpu.multiprocessors * RESIDENT // points(match.outer))
    flops = 2 * points(match.outer) * rows * keys * (count(match.depth) + count(match.columns))
    if emitter.parts == 1:
        return Lowered(emitter.kernel("attention"), flops=flops)
    total = lower_total(match, emitter.partial_sums, emitter.partial_totals)
    temporaries = [emitter.partial_sums, emitter.partial_totals]
    return replace(
        total, before=[emitter.kernel("attention_part")], temporaries=temporaries, flops=flops,
        inplace=[],
    )  # fmt: skip


def lower_total(match: Attention, sums: Buffer, totals: Buffer) -> Lowered:
    """The kernel that brings parts together: `sums` [rows, parts, columns] of values under weights
    relative to the maximum of the part, and `totals` [rows, 2, parts]: that maximum, and the sum of
    these weights."""
    indices = [*match.outer, *match.rows]
    row = flatten_index(tuple(indices), tuple(x.extent for x in indices))
    column = flatten_index(tuple(match.columns), tuple(x.count for x in match.columns))
    part = Index("part", sums.shape[1])
    largest = Reduce("max", totals[row, 0, part], (part,))
    base = select(largest.eq(NOTHING), Const(0, f32), largest)
    scale = call("exp", totals[row, 0, part] - base)
    facts: dict[Expr, Expr] = {
        LARGEST: largest,
        TOTAL: Reduce("sum", scale * totals[row, 1, part], (part,)),
        SUM: Reduce("sum", scale * sums[row, part, column], (part,)),
    }
    result = substitute(match.softmax.result, facts)
    ordered = sorted([*indices, *match.columns], key=lambda x: -_step(match.offset, x))
    shape = tuple(x.extent for x in ordered)
    outputs = tuple(
        Output(replace(o.buffer, shape=shape), tuple(ordered), substitute(expr, {RESULT: result}))
        for o, expr in zip(match.computation.outputs, match.exprs)
    )
    inputs = buffers_read(match.computation.inputs, (o.expr for o in outputs))
    inputs = [*map(flat_buffer, inputs), sums, totals]
    final = replace(match.computation, inputs=tuple(inputs), outputs=outputs)
    lowered = lower_rows(final)
    return lowered if isinstance(lowered, Lowered) else lower_nest(final, NestOptions(flat=True))


def _step(offset: Expr, index: Index) -> int:
    step = is_affine_in(offset, index)
    assert isinstance(step, int)
    return step


def _chunk(operand: Operand, along: int) -> int:
    """How many neighbours along an extent one access takes."""
    size = max((x.dtype.size for x in loads(operand.expr)), default=4)
    return math.gcd(along, VECTOR_BYTES // size)


class _FewRows(AttentionBlocks):
    """Emits the kernel of a matched attention, or that of its parts."""

    def __init__(self, match: Attention):
        rows = count(match.rows)
        super().__init__(match, rows, 0, THREADS, 1)
        self.q, self.b, self.v = (
            replace(x, expr=cast(x.expr, f32)) for x in (self.q, self.b, self.v)
        )
        depth, columns = count(match.depth), count(match.columns)
        self.deep, self.wide = _chunk(self.b, depth), _chunk(self.v, columns)
        needed = max(depth // self.deep, columns // self.wide)
        self.together = min(WARP, 1 << (needed - 1).bit_length())  # lanes of a group
        self.groups = THREADS // self.together
        self.depth_chunks = -(-depth // (self.deep * self.together))
        self.column_chunks = -(-columns // (self.wide * self.together))
        self.row_part = rows
        self.key_part = 8 if rows == 1 else 4 if rows <= 4 else 2
        self.column_part = self.column_chunks * self.wide
        self.cells = rows * (self.depth_chunks * self.deep + self.column_part)
        self.take(self.key_part * self.groups, whole=False)
        self.lane = simplify(self.thread % self.together)
        self.group = simplify(self.thread // self.together)
        width = padded(columns, self.wide)
        self.group_sums = Buffer("group_sums", f32, (self.groups, width), "local")
        self.group_totals = Buffer("group_totals", f32, (self.groups, 2), "local")
        self.shared = [self.group_sums, self.group_totals]

    def cut(self, wanted: int) -> None:
        """Cuts the keys into at most so many parts, of whole tiles."""
        self.parts = max(1, min(wanted, most(self.tiles) // TILES))
        self.tiles_of_part = ceil_divided(self.tiles, self.parts)
        if isinstance(self.tiles, int) and isinstance(self.tiles_of_part, int):
            self.parts = -(-self.tiles // self.tiles_of_part)  # none without keys
        rows = elements_of((*(x.extent for x in self.match.outer), self.row_part))
        self.partial_sums = Buffer("partial_sums", f32, (rows, self.parts, self.v.count))
        self.partial_totals = Buffer("partial_totals", f32, (rows, 2, self.parts))

    def results(self) -> list[Buffer]:
        if self.parts == 1:
            return super().results()
        return [replace(b, access="out") for b in (self.partial_sums, self.partial_totals)]

    def finishing(self) -> list[Expr]:
        return super().finishing() if self.parts == 1 else []

    def row(self, i: Expr) -> Expr:
        return i

    def key(self, j: Expr) -> Expr:
        return simplify(j * self.groups + self.group)

    def keep(self, scores: Buffer, i: Expr, j: Expr, weight: Expr) -> None:
        self.k.store(scores, (i, j), weight)

    def body(self) -> None:
        """Over the keys of the part, then its results."""
        self.start()
        self._read_rows()
        with self.each_tile() as tile:
            first = simplify(tile * self.tile_keys)
            keys = [self._chunks(self.b, first, j, self.deep) for j in range(self.key_part)]
            values = [self._chunks(self.v, first, j, self.wide) for j in range(self.key_part)]
            scores = self._products_of_keys(keys)
            self.soften(scores, first)
            self._add_values(scores, values)
        self._finish_rows()

    # ---------------------------------------------------------------- operands

    def _start_of(self, chunk: Expr, size: int) -> Expr:
        """The first of the positions of this lane's chunk."""
        return simplify((chunk * self.together + self.lane) * size)

    def _read_rows(self) -> None:
        """This lane's part of every row, in registers."""
        k = self.k
        shape = (self.row_part, self.depth_chunks, self.deep)
        self.rows = k.alloc(f32, shape, "reg", "rows")
        with k.loops(*shape, kind="unroll") as (i, chunk, n):
            deep = simplify(self._start_of(chunk, self.deep) + n)
            k.store(self.rows, (i, chunk, n), self.q.element(self.fixed, i, deep))

    def _chunks(self, operand: Operand, first: Expr, j: int, size: int) -> list:
        """This lane's parts of key `j` of the tile, or of its values: for each a function that
        gives an element. What lies beyond the last key or the last position is zero."""
        key = simplify(first + self.key(Const(j, i64)))
        is_key = operand is self.b
        along = count(operand.depth if is_key else operand.side)
        parts = self.depth_chunks if is_key else self.column_chunks
        there = simplify(call("min", key, as_expr(self.match.key.extent - 1, i64)))
        chunks = []
        for chunk in range(parts):
            start = self._start_of(Const(chunk, i64), size)
            inside = simplify(call("and", key < self.match.key.extent, start < along))
            start = simplify(call("min", start, as_expr(along - size)))
            chunks.append(self._chunk_of(operand, there, start, size, inside))
        return chunks

    def _chunk_of(
        self, operand: Operand, key: Expr, start: Expr, size: int, inside: Expr
    ) -> Callable[[Expr], Expr]:
        """A chunk that is read at once where that can be."""
        is_key = operand is self.b
        indices = operand.depth if is_key else operand.side
        extents = tuple(x.count for x in indices)

        def place(n: Expr | int) -> dict[Expr, Expr]:
            position = unflatten_index(simplify(start + n), extents)
            return {**self.fixed, self.match.key: key, **dict(zip(indices, position))}

        held = loaded(self.k, [operand.expr], [place(n) for n in range(size)])

        def element(n: Expr) -> Expr:
            cells: dict[Expr, Expr] = {x: registers[n] for x, registers in held.items()}
            value = simplify(substitute(operand.expr, cells), place(n))
            return simplify(select(inside, value, Const(0, f32)))

        return element

    # ---------------------------------------------------------------- products

    def _products_of_keys(self, keys: list) -> Buffer:
        """The products of all rows and the keys of this thread's group."""
        k = self.k
        scores = self.no_products()
        for j, chunks in enumerate(keys):
            for chunk, element in enumerate(chunks):
                with k.loop(self.deep, "unroll") as n:
                    value = k.let(element(n))
                    with k.loop(self.row_part, "unroll") as i:
                        row = self.rows[i, Const(chunk, i64), n]
                        at = i, Const(j, i64)
                        k.store(scores, at, call("fma", row, value, scores[at]))
        if self.together > 1:
            with k.loops(self.row_part, self.key_part, kind="unroll") as (i, key):
                product = k.var(f32, scores[i, key])
                k.emit(Intrin("warp_sum", (product[()], Const(self.together, i64))))
                k.store(scores, (i, key), product[()])
        return scores

    def _add_values(self, weights: Buffer, values: list) -> None:
        """Adds the weighted values to the sums."""
        k = self.k
        for j, chunks in enumerate(values):
            for chunk, element in enumerate(chunks):
                with k.loop(self.wide, "unroll") as n:
                    value = k.let(element(n))
                    with k.loop(self.row_part, "unroll") as i:
                        at = i, simplify(n + chunk * self.wide)
                        total = call("fma", weights[i, Const(j, i64)], value, self.sums[at])
                        k.store(self.sums, at, total)

    # ---------------------------------------------------------------- results

    def _finish_rows(self) -> None:
        """Row by row: the groups' maxima, totals and sums to shared memory, and from there."""
        self._finish_row(Const(0, i64))
        if self.row_part > 1:
            with self.k.loop(self.row_part - 1, "unroll") as before:
                self.k.emit(Barrier())
                self._finish_row(simplify(before + 1))

    def _finish_row(self, i: Expr) -> None:
        k = self.k
        with k.when(self.lane.eq(0)):
            k.store(self.group_totals, (self.group, 0), self.largest[i])
            k.store(self.group_totals, (self.group, 1), self.total[i])
        with k.loop(self.column_chunks, "unroll") as chunk:
            start = self._start_of(chunk, self.wide)
            with k.when(simplify(start < self.v.count)):
                self._keep_sums(i, chunk, start)
        k.emit(Barrier())
        with strided(k, count(self.v.side), THREADS, self.thread) as column:
            self._bring_together(i, column)

    def _keep_sums(self, i: Expr, chunk: Expr, start: Expr) -> None:
        """The sums of a chunk of columns to shared memory, 16 bytes at once."""
        count = min(self.wide, FLOATS)
        for first in range(0, self.wide, count):
            at = self.group, simplify(start + first)
            places = [simplify(chunk * self.wide + first + n) for n in range(count)]
            if count == 1:
                self.k.store(self.group_sums, at, self.sums[i, places[0]])
                continue
            cells = [self.sums[i, place] for place in places]
            self.k.emit(Intrin("store_vector", (self.group_sums[at], *cells)))

    def _bring_together(self, i: Expr, column: Expr) -> None:
        """The result of a row in a column, or what a part knows of it."""
        k, totals = self.k, self.group_totals
        largest = k.var(f32, NOTHING)
        with k.loop(self.groups, "unroll") as g:
            k.store(largest, (), call("max", largest[()], totals[g, 0]))
        most = k.let(largest[()])
        base = k.let(select(most.eq(NOTHING), Const(0, f32), most))
        total, sum = k.var(f32, Const(0, f32)), k.var(f32, Const(0, f32))
        with k.loop(self.groups, "unroll") as g:
            scale = k.let(self.exponential_of(totals[g, 0], base))
            k.store(total, (), call("fma", scale, totals[g, 1], total[()]))
            k.store(sum, (), call("fma", scale, self.group_sums[g, column], sum[()]))
        if self.parts == 1:
            facts: dict[Expr, Expr] = {SUM: sum[()], TOTAL: total[()], LARGEST: most}
            self._store(i, column, facts, Const(0, i64))
            return
        row = self.block_number * self.row_part + i
        self._put(self.partial_sums, (row, self.part, column), sum[()])
        with k.when(column.eq(0)):
            self._put(self.partial_totals, (row, Const(0, i64), self.part), most)
            self._put(self.partial_totals, (row, Const(1, i64), self.part), total[()])

    def _put(self, buffer: Buffer, index: tuple[Expr, ...], value: Expr) -> None:
        self.k.store(flat_buffer(buffer), (flatten_index(index, buffer.shape),), value)
