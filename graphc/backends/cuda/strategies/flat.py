"""Elementwise loops: a thread per output element, or per a few vectors of 16 bytes.

Neighbouring elements are computed in an unrolled loop. Their unconditional reads of neighbouring
places are vectorised into one load before the loop, and results are stored as vectors after it;
operands are known to be aligned. In large tensors a thread takes several vectors and issues all
loads before it uses the first (row_sweeps.py), which keeps memory busy. Small tensors get a thread
per element.

Where an operand is contiguous along another index than the output (a transposition, say), some
lanes of a warp follow the one index and some the other, so that both are accessed in whole sectors
of 32 bytes (coalesced), without shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from graphc.backends.cuda.machines import FULL, VECTOR_BYTES, WARP
from graphc.backends.cuda.strategies.rows.row_sweeps import HELD, Sweep, Sweeper, placed
from graphc.backends.cuda.strategies.vectors import compute_points, store_points
from graphc.ir.addresses import is_affine_in, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Ref, call, free_indices, loads
from graphc.ir.extents import points as points_of
from graphc.ir.kernel import Let
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, flops
from graphc.passes.analysis.core import reductions_in
from graphc.passes.lower.lowered import Lowered, in_place
from graphc.passes.lower.strategies.nest import Nest, NestOptions, Point

LARGE = 1 << 16  # elements from which a GPU has threads enough without one for each
THREADS = 256  # of a block
AHEAD = 64  # bytes that a thread asks for at once, where there are threads enough
MOST_STEPS = 8
SECTOR = 32  # bytes of memory that move together


def lower_flat(computation: Computation) -> Lowered:
    """The kernel of any computation whose outputs share one iteration space."""
    kernel = FlatNest(computation, NestOptions(flat=True)).kernel("nest")
    return Lowered(kernel, inplace=in_place(computation), flops=flops(computation))


class FlatNest(Nest):
    """One loop, each iteration of which computes one or several elements."""

    def flat_loop(self, indices: list[Index], points: list[Point]) -> None:
        is_open = not all(isinstance(x.extent, int) for x in indices)
        if is_open or points_of(indices) < LARGE or reductions_in(x.expr for x in points):
            super().flat_loop(indices, points)
            return
        together, across = _vector_width(indices, points), _across(indices, points)
        if across is None:
            self._in_order(indices, points, together)
        else:
            self._in_tiles(indices, points, together, across)

    def _in_order(self, indices: list[Index], points: list[Point], together: int) -> None:
        """Blocks of threads that have a few vectors each."""
        elements, steps = math.prod(x.count for x in indices), _steps(indices, points, together)
        thread, share = Index("thread", THREADS), THREADS * together * steps
        values = placed([x.expr for x in points], indices)
        offsets = placed([x.offset for x in points], indices)
        with self.k.loop(-(-elements // share), "block", name="block") as block:
            sweep = Sweep(elements, THREADS, together, thread, steps, simplify(block * share))
            sweeper = Sweeper(self.k, frozenset(b.name for b in self.computation.inputs))
            with (
                self.k.threads(thread),
                sweeper.elements(sweep, values, lambda at: []) as (at, exprs, _),
            ):
                moved = [Point(p.output, o, e) for p, o, e in zip(points, offsets(at), exprs)]
                store_points(self.k, moved, sweep.neighbour)

    def _in_tiles(
        self, indices: list[Index], points: list[Point], together: int, across: Index
    ) -> None:
        """A vector for each thread, in tiles along two indices."""
        last = indices[-1]
        chunks = Index(last.name, last.count // together)
        units = [*indices[:-1], chunks]
        lanes = _lanes(units, across, points, together)
        with self._positions(units, lanes) as places:
            n = Index(self.k.fresh("i"), together) if together > 1 else Const(0, i64)
            at = simplify(places.pop(chunks) * together + n)
            compute_points(self.k, self._at(points, {**places, last: at}), n)

    @contextmanager
    def _positions(
        self, indices: list[Index], lanes: dict[Index, int]
    ) -> Iterator[dict[Expr, Expr]]:
        """An iteration for each position: yields it. Positions are in tiles of so many `lanes`
        along two indices, the first of which is fastest."""
        order = sorted(indices, key=lambda x: x is next(iter(lanes), None))
        tiles = [-(-x.count // lanes.get(x, 1)) for x in order]
        extents = (*tiles, *reversed(lanes.values()))
        with self.k.loop(math.prod(extents), "parallel", name="p") as p:
            starts = unflatten_index(p, extents)
            within = dict(zip(lanes, reversed(starts[len(order) :])))
            places: dict[Expr, Expr] = {
                x: simplify(start * lanes[x] + within[x]) if x in lanes else start
                for x, start in zip(order, starts)
            }
            partial = [x for x in lanes if x.count % lanes[x]]
            if not partial:
                yield places
                return
            inside = [places[x] < x.count for x in partial]
            with self.k.when(call("and", inside[0], inside[-1])):
                for x in partial:
                    known = Ref(self.k.fresh("t"), i64, 0, x.count - 1)
                    self.k.emit(Let(known, places[x]))
                    places[x] = known
                yield places


def _vector_width(indices: list[Index], points: list[Point]) -> int:
    """How many neighbours take 16 bytes of the widest type that is read or written."""
    sizes = [x.output.dtype.size for x in points]
    sizes += [load.dtype.size for x in points for load in loads(x.expr)]
    return math.gcd(max(1, VECTOR_BYTES // max(sizes)), indices[-1].count)


def _steps(indices: list[Index], points: list[Point], together: int) -> int:
    """How many vectors a thread takes."""
    elements = math.prod(x.count for x in indices)
    read = {x for p in points for x in loads(p.expr) if free_indices(x) >= {*indices}}
    size = together * sum(x.dtype.size for x in read) or VECTOR_BYTES
    most = min(MOST_STEPS, HELD // together, elements // together // FULL)
    steps = 1
    while steps * 2 <= most and steps * size < AHEAD:
        steps *= 2
    return steps


def _across(indices: list[Index], points: list[Point]) -> Index | None:
    """The index, other than the last, along which an operand is contiguous that does change along
    the last one, by more than one place."""
    for load in (load for x in points for load in loads(x.expr)):
        steps = [is_affine_in(load.index[0], x) for x in indices]
        if 1 in steps[:-1] and steps[-1] not in (0, 1):
            return indices[steps.index(1)]
    return None


def _lanes(
    indices: list[Index], across: Index, points: list[Point], together: int
) -> dict[Index, int]:
    """How many lanes of a warp go along which of two indices: those with which it touches the
    fewest sectors."""
    read = min(load.dtype.size for x in points for load in loads(x.expr))
    written = together * min(x.output.dtype.size for x in points)

    def sectors(along: int) -> int:
        lanes = WARP // along
        reads = together * along * -(-lanes * read // SECTOR)
        return reads + lanes * -(-along * written // SECTOR)

    along = min((16, 8, 4, 2, 1), key=sectors)
    return {across: WARP // along, indices[-1]: along}
