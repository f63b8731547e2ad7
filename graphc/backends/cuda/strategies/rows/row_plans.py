"""Plans of row reductions: which threads reduce which rows.

The rows of a computation are the output indices that its reductions depend on. Where elements of a
row are neighbours in memory, a row is *along* memory. Where they are not, but neighbouring rows
have neighbouring elements, rows are *columns*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphc.backends.cuda.machines import FULL, VECTOR_BYTES, WARP
from graphc.backends.cuda.strategies.rows.row_sweeps import AHEAD, HELD
from graphc.ir.addresses import flatten_loads, is_affine_in, unflatten_index
from graphc.ir.expr import (
    Call,
    Const,
    Index,
    Load,
    Reduce,
    free_indices,
    loads,
    substitute,
    walk,
)
from graphc.ir.extents import common_factor, most
from graphc.ir.extents import points as positions
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, elements_of
from graphc.passes.analysis.computation import Computation, Output, flat_buffer
from graphc.passes.analysis.core import reductions_in, rows_of
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.lower.strategies.nest import Point

BLOCK = 128  # threads of a block whose rows belong to warps or parts of them
SHORT_ROW = 1024  # elements that a warp reduces by itself
MOST = 1024  # threads of a row
MIN_LANES = 2  # threads of a row
SHARE = 16  # elements of a row that a thread has, or more if they are narrow
COLUMN_THREADS = 512  # of a block of columns, at most
COLUMN_BLOCK = 128  # threads of such a block, at least
COLUMN_SHARE = 4  # elements that each of them has at least
COLUMN_LANES = 8  # threads next to one another, which memory gives 128 bytes at once
FEW_ROWS = 2048  # columns up to which so few threads are next to one another
MANY_ROWS = 1 << 15  # columns from which a thread for each is enough
LARGE = 1 << 20  # elements of columns from which vectors are worth it, however short columns are
MIN_ELEMENTS = 32  # reduced or stored per row, below which threads of their own do as well


@dataclass(frozen=True)
class Rows:
    """The plan: output indices of rows and inside rows, and threads per row (1: each its own).
    Along memory, a thread takes up to `vector` neighbours of its row at once. Of columns, a thread
    has `vector` next to one another, and a block those of `together` neighbouring threads."""

    rows: list[Index]
    inner: list[Index]
    threads: int
    together: int = 0
    vector: int = 1

    @property
    def are_columns(self) -> bool:
        return self.together > 0

    @property
    def count(self) -> Dim:
        """How many rows there are."""
        return elements_of(x.extent for x in self.rows)

    @property
    def blocks(self) -> int:
        """How many blocks have a row or more each, at the largest sizes."""
        count = most(self.count)
        if self.are_columns:
            return -(-count // (self.vector * self.together))
        return count if self.threads > WARP else -(-count * self.threads // BLOCK)


def plan_rows(indices: list[Index], points: list[Point]) -> Rows | str:
    """The plan for outputs over these indices, or why they have no rows."""
    reductions = rows_of([p.expr for p in points], indices)
    if not reductions:
        return "there must be reductions, found none"
    used = reductions.values()
    spanned = frozenset().union(*(u for u in used if len(u) < len(indices)))
    if not spanned and all(len(u) == len(indices) for u in used):
        spanned = frozenset(indices)
    elif len(spanned) == len(indices):
        return "reductions must have rows in common, found none"
    rows = [x for x in indices if x in spanned]
    inner = [x for x in indices if x not in spanned]
    own = [r for r, u in reductions.items() if u <= spanned]
    depth = max((positions(r.axes) for r in own), default=0)
    width = positions(inner)
    if depth == 0 or any(x.extent == 0 for x in indices):
        return "there must be elements to reduce, found none"
    along_rows = all(map(_contiguous, own)) and (not inner or inner[-1] is indices[-1])
    if not along_rows:
        is_simple = len(own) == len(reductions)
        return _columns(rows, inner, own, points, max(depth, width), is_simple)
    if max(depth, width) < MIN_ELEMENTS:
        return f"a row must have at least {MIN_ELEMENTS} elements, found {depth}"
    vector = _vector(points, points, {*(r.axes[-1] for r in own), *inner[-1:]})
    count = positions(rows)
    return Rows(rows, inner, _threads(max(depth, width), vector, count), vector=vector)


def by_groups(computation: Computation) -> Computation:
    """The same over rows and places in them, if that is how reductions see the place of an element:
    by a quotient, like those of groups on channels."""
    first = computation.outputs[0]
    if not all(isinstance(extent, int) for extent in first.extents):
        return computation
    reductions = reductions_in(o.expr for o in computation.outputs)
    if not any(_divides(r, first.index) for r in reductions):
        return computation
    place = Index("place", math.prod(first.extents))
    own = dict(zip(first.index, unflatten_index(place, first.extents)))
    shapes = shapes_of(computation.inputs)
    flat = [
        replace(o, expr=simplify(flatten_loads(substitute(o.expr, own), shapes)))
        for o in computation.outputs
    ]
    size = _row_length(reductions_in(o.expr for o in flat), place)
    if size == 1:
        return computation
    index = (Index("row", place.count // size), Index("inside", size))
    at = {place: index[0] * size + index[1]}
    shape = tuple(x.count for x in index)
    outputs = tuple(
        Output(replace(o.buffer, shape=shape), index, simplify(o.expr, at)) for o in flat
    )
    inputs = tuple(map(flat_buffer, computation.inputs))
    return replace(computation, inputs=inputs, outputs=outputs)


def _divides(reduction: Reduce, index: Sequence[Index]) -> bool:
    """Whether a reduction sees quotients of indices."""
    return any(
        isinstance(n, Call) and n.op.name == "floordiv" and free_indices(n) & {*index}
        for n in walk(reduction)
    )


def _row_length(reductions: list[Reduce], place: Index) -> int:
    """By what reductions divide a place, of which they see no more than the quotient; else 1."""
    nodes = {n for r in reductions for n in walk(r) if place in n.children}
    if not all(isinstance(n, Call) and n.op.name == "floordiv" for n in nodes):
        return 1
    divisors = {n.children[1] for n in nodes}
    divisor = next(iter(divisors), None)
    if len(divisors) != 1 or not isinstance(divisor, Const) or place.count % divisor.value:
        return 1
    return divisor.value


def _contiguous(reduction: Reduce) -> bool:
    """Whether neighbouring values of the last axis are neighbours, or the same, in memory."""
    return _follows(reduction, reduction.axes[-1])


def _follows(reduction: Reduce, index: Index) -> bool:
    """Whether what a reduction reads moves by one place at most with an index."""
    return all(
        is_affine_in(position, index) in (0, 1)
        for node in walk(reduction.body)
        if isinstance(node, Load)
        for position in node.index
    )


def _vector(points: list[Point], stored: list[Point], along: set[Index]) -> int:
    """How many neighbours along indices take 16 bytes of the widest type that is read there, or
    stored for some of the points."""
    sizes = [x.dtype.size for p in points for x in loads(p.expr) if free_indices(x) & along]
    sizes += [p.output.dtype.size for p in stored if free_indices(p.offset) & along]
    return max(1, VECTOR_BYTES // max(sizes, default=VECTOR_BYTES))


def _threads(elements: int, vector: int, rows: int) -> int:
    """The threads of a row: as many as have a few vectors each, more where all rows
    together have too few to fill a GPU."""
    share = max(SHARE, min(AHEAD * vector, HELD))
    threads, most = (MIN_LANES, WARP) if elements <= SHORT_ROW else (2 * WARP, MOST // 2)
    while threads < most and threads * share < elements:
        threads *= 2
    if threads < elements // HELD <= MOST:
        threads = MOST
    while threads < most and threads * vector < elements and threads * rows < FULL:
        threads *= 2
    return threads


def _columns(
    rows: list[Index],
    inner: list[Index],
    own: list[Reduce],
    points: list[Point],
    elements: int,
    is_simple: bool,
) -> Rows | str:
    """The plan where rows lie next to one another: vectors of them, where there are many elements
    and no reductions but those of rows; and several threads to a row, if that has many elements."""
    count = positions(rows)
    if not rows or not all(_follows(r, rows[-1]) for r in own):
        return (
            Rows(rows, inner, 1) if inner else "reduced elements must be neighbours, found others"
        )
    is_large = count * elements >= LARGE
    if not inner and not is_large and (elements < MIN_ELEMENTS or count > MANY_ROWS):
        return (
            f"columns of {MIN_ELEMENTS} elements, at most {MANY_ROWS} of them, need threads of "
            f"their own, found {count} of {elements}"
        )
    is_wide = is_large and is_simple
    stored = points if inner else []
    vector = _vector(points, stored, {rows[-1]}) if is_wide else 1
    vector = common_factor(rows[-1].extent, vector)
    lanes = COLUMN_LANES if vector > 1 or count <= FEW_ROWS else WARP
    threads = _sharing(elements, vector, count, COLUMN_THREADS // lanes, bool(inner))
    return Rows(rows, inner, threads, max(lanes, COLUMN_BLOCK // threads), vector)


def _sharing(elements: int, vector: int, count: int, most: int, is_kept: bool) -> int:
    """Threads that share a column: so many that registers hold it, if it is read several times;
    and with few columns, as many as have a few elements each."""
    threads = 1
    while is_kept and threads < most and -(-elements // threads) * vector > HELD:
        threads *= 2
    while threads < most and threads * COLUMN_SHARE * 2 <= elements:
        if threads * count // vector >= FULL:
            break
        threads *= 2
    return threads
