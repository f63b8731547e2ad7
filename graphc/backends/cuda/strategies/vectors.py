"""Vectorised accesses: neighbours in memory that one access reads or writes, found in expressions.

Operands of kernels start at multiples of 16 bytes, which is also the most that an access takes. A
load that a condition guards stays as it is: where the condition is false there may be no element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from graphc.backends.cuda.machines import VECTOR_BYTES
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, substitute
from graphc.ir.kernel import Buffer, For, Intrin, KernelBuilder
from graphc.ir.simplify import simplify, to_poly
from graphc.ir.text.expr_printer import to_text
from graphc.passes.lower.strategies.nest import Point

T = TypeVar("T")


def are_neighbours(dtype: DType, offsets: Sequence[Expr]) -> bool:
    """Whether elements follow one another, the first at a multiple of how many there are, and one
    access may take them all."""
    count = len(offsets)
    if count < 2 or dtype.bits < 8 or count * dtype.size > VECTOR_BYTES:
        return False
    first = simplify(offsets[0])
    is_aligned = all(factor % count == 0 for factor in to_poly(first).values())
    steps = (simplify(offset - first - n) for n, offset in enumerate(offsets))
    return is_aligned and all(step is Const(0, i64) for step in steps)


def unconditional(exprs: Sequence[Expr]) -> list[Load]:
    """Loads that are made whatever conditions say: those outside of the branches of selects."""
    reads: dict[Load, None] = {}
    left, seen = list(exprs), set()
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            reads[node] = None
        is_choice = isinstance(node, Call) and node.op.name == "select"
        left += node.children[:1] if is_choice else node.children
    return sorted(reads, key=to_text)


def loaded(
    k: KernelBuilder, exprs: Sequence[Expr], places: Sequence[dict[Expr, Expr]]
) -> dict[Load, Buffer]:
    """Loads of expressions that read neighbours at these places (what indices are there), with the
    registers that now hold them, one per place."""
    held: dict[Load, Buffer] = {}
    for load in unconditional(exprs):
        if len(load.index) != 1:
            continue
        offsets = [simplify(load.index[0], place) for place in places]
        if are_neighbours(load.dtype, offsets):
            cells = k.alloc(load.dtype, (len(places),), "reg", k.fresh("held"))
            first = Load(load.source, (offsets[0],), load.dtype)
            k.emit(Intrin("load_vector", (first, *elements(cells))))
            held[load] = cells
    return held


def elements(cells: Buffer) -> list[Load]:
    """All elements of registers, in order."""
    return [cells[Const(n, i64)] for n in range(cells.size)]


@contextmanager
def each_neighbour(k: KernelBuilder, n: Expr) -> Iterator[None]:
    """An unrolled loop over neighbours, if there are several."""
    with k.block() as body:
        yield
    stmts = [For(n, tuple(body), "unroll")] if isinstance(n, Index) else body
    for stmt in stmts:
        k.emit(stmt)


def read_neighbours(k: KernelBuilder, exprs: Sequence[Expr], n: Expr) -> list[Expr]:
    """The expressions for all values of n, less loads of neighbours, which are made at once."""
    places: list[dict[Expr, Expr]] = [{n: Const(m, i64)} for m in range(_count(n))]
    cells = loaded(k, exprs, places)
    held = {load: registers[n] for load, registers in cells.items()}
    return [substitute(x, held) for x in exprs]


def compute_points(k: KernelBuilder, points: Sequence[Point], n: Expr) -> None:
    """Reads what elements are made of and stores them, for all values of n."""
    exprs = read_neighbours(k, [x.expr for x in points], n)
    store_points(k, [Point(x.output, x.offset, e) for x, e in zip(points, exprs)], n)


def _count(n: Expr) -> int:
    return n.count if isinstance(n, Index) else 1


def store_points(k: KernelBuilder, points: Sequence[Point], n: Expr) -> None:
    """Stores elements for all values of n, 16 bytes at once of those that are neighbours."""
    count = _count(n)
    places: list[dict[Expr, Expr]] = [{n: Const(m, i64)} for m in range(count)]
    results: dict[Buffer, Buffer] = {}
    stores: list[Intrin] = []
    for x in points:
        pieces = _pieces(x.output, [simplify(x.offset, place) for place in places])
        if all(are_neighbours(x.output.dtype, piece) for piece in pieces):
            held = k.alloc(x.output.dtype, (count,), "reg", k.fresh("result"))
            results[x.output] = held
            for piece, cells in zip(pieces, _pieces(x.output, elements(held))):
                stores.append(Intrin("store_vector", (x.output[piece[0]], *cells)))
    with each_neighbour(k, n):
        for x in points:
            if x.output in results:
                k.store(results[x.output], n, simplify(x.expr))
            else:
                k.store(x.output, simplify(x.offset), simplify(x.expr))
    for store in stores:
        k.emit(store)


def _pieces(buffer: Buffer, values: Sequence[T]) -> list[Sequence[T]]:
    """What belongs to the elements of a buffer, by those that one access takes."""
    count = max(1, VECTOR_BYTES // max(buffer.dtype.size, 1))
    return [values[n : n + count] for n in range(0, len(values), count)]
