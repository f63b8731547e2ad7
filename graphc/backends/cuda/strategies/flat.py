"""Loops: a thread per output element, or per 16 bytes of them where rows divide into those.

Elements next to one another are computed in an unrolled loop. What they read without condition of
places next to one another is loaded before it as one vector, and results are stored after it in the
same way; operands are known to be aligned. Small tensors keep a thread per element, of which there
are few enough.

Where an operand is contiguous along another index than the output (a transposition, say), the lanes
of a warp do not follow one another along the output: some go along the one index and some along the
other, so that both are accessed in whole sectors of 32 bytes, without shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from graphc.backends.cuda.strategies.vectors import BYTES, loaded, store_points
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Reduce, Ref, call, loads, substitute, walk
from graphc.ir.kernel import Let
from graphc.ir.simplify import is_affine_in, simplify, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.nest import Nest, NestOptions, Point, in_place, work

LARGE = 1 << 16  # elements from which a GPU has threads enough without one for each
WARP = 32
SECTOR = 32  # bytes of memory that move together


def lower_flat(computation: Computation) -> Lowered:
    """The kernel of any computation whose outputs share one iteration space."""
    kernel = FlatNest(computation, NestOptions(flat=True)).kernel("nest")
    return Lowered(kernel, inplace=in_place(computation), flops=work(computation))


class FlatNest(Nest):
    """One parallel loop, each iteration of which computes one or several neighbours."""

    def flat_loop(self, indices: list[Index], points: list[Point]) -> None:
        together = self._together(indices, points)
        across = _across(indices, points)
        if together == 1 and across is None:
            super().flat_loop(indices, points)
            return
        last = indices[-1]
        chunks = Index(last.name, last.count // together)
        units = [*indices[:-1], chunks]
        lanes = _lanes(units, across, points, together)
        with self._positions(units, lanes) as places:
            n = Index(self.k.fresh("i"), together) if together > 1 else Const(0, i64)
            at = simplify(places.pop(chunks) * together + n)
            self._vectors(self._at(points, {**places, last: at}), n)

    @contextmanager
    def _positions(
        self, indices: list[Index], lanes: dict[Index, int]
    ) -> Iterator[dict[Expr, Expr]]:
        """An iteration for each position: yields it. Positions are in the order of the indices, or
        in tiles of so many `lanes` along two of them, the first of which is fastest."""
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

    def _vectors(self, points: list[Point], n: Expr) -> None:
        """The elements of a thread, of which n runs over neighbours."""
        k, count = self.k, n.count if isinstance(n, Index) else 1
        places: list[dict[Expr, Expr]] = [{n: Const(m, i64)} for m in range(count)]
        cells = loaded(k, [x.expr for x in points], places)
        held = {load: registers[n] for load, registers in cells.items()}
        known = [Point(x.output, x.offset, substitute(x.expr, held)) for x in points]
        store_points(k, known, n)

    def _together(self, indices: list[Index], points: list[Point]) -> int:
        """How many neighbours an iteration computes."""
        if any(isinstance(node, Reduce) for x in points for node in walk(x.expr)):
            return 1
        if math.prod(x.count for x in indices) < LARGE:
            return 1
        sizes = [x.output.dtype.size for x in points]
        sizes += [load.dtype.size for x in points for load in loads(x.expr)]
        return math.gcd(max(1, BYTES // max(sizes)), indices[-1].count)


def _across(indices: list[Index], points: list[Point]) -> Index | None:
    """The index, other than the last, along which an operand of a large tensor is contiguous, if
    that is not along the last one as well."""
    if math.prod(x.count for x in indices) < LARGE or any(
        isinstance(node, Reduce) for x in points for node in walk(x.expr)
    ):
        return None
    for load in (load for x in points for load in loads(x.expr)):
        steps = [is_affine_in(load.index[0], x) for x in indices]
        if 1 in steps[:-1] and steps[-1] != 1:
            return indices[steps.index(1)]
    return None


def _lanes(
    indices: list[Index], across: Index | None, points: list[Point], together: int
) -> dict[Index, int]:
    """How many lanes of a warp go along which index, if they do not all follow the last one: those
    with which it touches the fewest sectors."""
    if across is None:
        return {}
    read = min(load.dtype.size for x in points for load in loads(x.expr))
    written = together * min(x.output.dtype.size for x in points)

    def sectors(along: int) -> int:
        lanes = WARP // along
        reads = together * along * -(-lanes * read // SECTOR)
        return reads + lanes * -(-along * written // SECTOR)

    along = min((16, 8, 4, 2, 1), key=sectors)
    return {across: WARP // along, indices[-1]: along}
