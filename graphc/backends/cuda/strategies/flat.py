"""Loops: a thread per output element, or per 16 bytes of them where rows divide into those.

Elements next to one another are computed in an unrolled loop. What they read without condition of
places next to one another is loaded before it as one vector, and results are stored after it in the
same way; operands are known to be aligned. Small tensors keep a thread per element, of which there
are few enough.
"""

from __future__ import annotations

import math

from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce, loads, substitute, walk
from graphc.ir.expr_text import to_text
from graphc.ir.kernel import Buffer, For, Intrin
from graphc.ir.simplify import is_affine_in, simplify, to_poly, unflatten_index
from graphc.passes.lower.computation import Computation, Lowered
from graphc.passes.lower.nest import Nest, NestOptions, Point, in_place, work

BYTES = 16  # of a load or store
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
        k, held = self.k, {}
        for load in _unconditional([x.expr for x in points]):
            if _are_neighbours(load.dtype, load.index[0], n):
                cells = k.alloc(load.dtype, (n.count,), "reg", k.fresh("held"))
                k.emit(Intrin("load_vector", (_first(load, n), *_elements(cells))))
                held[load] = cells[n]
        results = {
            x.output: k.alloc(x.output.dtype, (n.count,), "reg", k.fresh("result"))
            for x in points
            if _are_neighbours(x.output.dtype, x.offset, n)
        }
        with k.block() as body:
            for x in points:
                value = simplify(substitute(x.expr, held))
                if x.output in results:
                    k.store(results[x.output], n, value)
                else:
                    k.store(x.output, simplify(x.offset), value)
        k.emit(For(n, tuple(body), "unroll"))
        for x in points:
            if x.output in results:
                place = _first(x.output[x.offset], n)
                k.emit(Intrin("store_vector", (place, *_elements(results[x.output]))))

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


def _unconditional(exprs: list[Expr]) -> list[Load]:
    """Loads that are made whatever conditions say: those outside of the branches of selects."""
    found: dict[Load, None] = {}
    left, seen = list(exprs), set()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            found[node] = None
        is_choice = isinstance(node, Call) and node.op.name == "select"
        left += node.children[:1] if is_choice else node.children
    return sorted(found, key=to_text)


def _are_neighbours(dtype: DType, offset: Expr, n: Index) -> bool:
    """Whether places follow one another as n does, the first at a multiple of their number."""
    first = to_poly(simplify(substitute(offset, {n: Const(0, i64)})))
    is_aligned = all(factor % n.count == 0 for factor in first.values())
    return dtype.bits >= 8 and is_aligned and is_affine_in(offset, n) == 1


def _first(load: Load, n: Index) -> Load:
    place = simplify(substitute(load.index[0], {n: Const(0, i64)}))
    return Load(load.source, (place,), load.dtype)


def _elements(cells: Buffer) -> list[Load]:
    return [cells[Const(n, i64)] for n in range(cells.size)]
