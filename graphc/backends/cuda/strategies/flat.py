"""Loops: a thread per output element, or per 16 bytes of them where rows divide into those.

Elements next to one another are computed in an unrolled loop. What they read without condition of
places next to one another is loaded before it as one vector, and results are stored after it in the
same way; operands are known to be aligned. Small tensors keep a thread per element, of which there
are few enough.
"""

from __future__ import annotations

import math

from graphc.backends.cuda.strategies.vectors import BYTES, loaded, store_points
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Reduce, loads, substitute, walk
from graphc.ir.simplify import simplify, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.nest import Nest, NestOptions, Point, in_place, work

LARGE = 1 << 16  # elements from which a GPU has threads enough without one for each


def lower_flat(computation: Computation) -> Lowered:
    """The kernel of any computation whose outputs share one iteration space."""
    kernel = FlatNest(computation, NestOptions(flat=True)).kernel("nest")
    return Lowered(kernel, inplace=in_place(computation), flops=work(computation))


class FlatNest(Nest):
    """One parallel loop, each iteration of which computes one or several neighbours."""

    def flat_loop(self, indices: list[Index], points: list[Point]) -> None:
        together = self._together(indices, points)
        if together == 1:
            super().flat_loop(indices, points)
            return
        *front, last = indices
        extents = (*(x.count for x in front), last.count // together)
        with self.k.loop(math.prod(extents), "parallel", name="p") as p:
            *outer, chunk = unflatten_index(p, extents)
            n = Index(self.k.fresh("i"), together)
            at = simplify(chunk * together + n)
            points = self._at(points, {**dict(zip(front, outer)), last: at})
            self._vectors(points, n)

    def _vectors(self, points: list[Point], n: Index) -> None:
        """The elements of a thread, of which n runs over neighbours."""
        k = self.k
        places: list[dict[Expr, Expr]] = [{n: Const(m, i64)} for m in range(n.count)]
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
        together = max(1, BYTES // max(sizes))
        return together if indices[-1].count % together == 0 else 1
