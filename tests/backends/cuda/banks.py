"""Bank conflicts of a kernel, counted: where the lanes of each warp read and write shared memory.

Shared memory has 32 banks of 4 bytes. What a warp asks for at once is served in phases, of 32 lanes
that take 4 bytes each, 16 that take 8, or 8 that take 16; a phase is repeated for every further
word that it wants of one bank. Looked at are the first and the last warp, and the first and the
last iteration of each loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Load, substitute, walk
from graphc.ir.kernel import Alloc, Body, Buffer, For, If, Intrin, Kernel, Let, Store, exprs
from graphc.ir.simplify import flatten_index, simplify

BANKS, WARP = 32, 32
WIDE = {"load_matrices": -1, "load_matrices_transposed": -1, "copy16": 0}  # operands of 16 bytes
VECTORS = ("load_vector", "store_vector")
Mapping = dict[Expr, Expr]


def bank_conflicts(kernel: Kernel) -> dict[str, int]:
    """How often accesses to each shared array are repeated, over all that is looked at."""
    (blocks,) = kernel.body
    assert isinstance(blocks, For)
    *arrays, threads = blocks.body
    shared = {s.buffer.name: s.buffer for s in arrays if isinstance(s, Alloc)}
    found: Counter[str] = Counter(dict.fromkeys(shared, 0))
    for warp in sorted({0, threads.extent // WARP - 1}):
        lanes = [
            {blocks.var: Const(0, i64), threads.var: Const(warp * WARP + lane, i64)}
            for lane in range(WARP)
        ]
        for name, places, width in _accesses(threads.body, lanes, shared):
            found[name] += _repeated(places, width)
    return dict(found)


def _repeated(places: list[int | None], width: int) -> int:
    """Phases beyond those needed for lanes that take `width` bytes at these addresses."""
    together = min(WARP, BANKS * 4 // width)
    count = 0
    for start in range(0, WARP, together):
        wanted = {
            place // 4 + n
            for place in places[start : start + together]
            if place is not None
            for n in range(max(width // 4, 1))
        }
        count += max(Counter(word % BANKS for word in wanted).values(), default=1) - 1
    return count


def _accesses(
    body: Body, lanes: list[Mapping | None], shared: dict[str, Buffer]
) -> Iterator[tuple[str, list[int | None], int]]:
    """(array, byte address of each lane that takes part, bytes) of every access."""
    for stmt in body:
        if isinstance(stmt, Let):
            for lane in lanes:
                if lane is not None:
                    lane[stmt.ref] = _at(stmt.value, lane)
        for place, elements in _places(stmt, shared):
            buffer = shared[place.source]
            flat = flatten_index(place.index, buffer.shape)
            addresses = [
                None if lane is None else _number(flat, lane) * buffer.dtype.size for lane in lanes
            ]
            yield place.source, addresses, elements * buffer.dtype.size
        if isinstance(stmt, For):
            assert isinstance(stmt.extent, int)
            for value in sorted({0, stmt.extent - 1}):
                inside = [lane and {**lane, stmt.var: Const(value, i64)} for lane in lanes]
                yield from _accesses(stmt.body, inside, shared)
        if isinstance(stmt, If):
            taken = [lane if lane and _number(stmt.condition, lane) else None for lane in lanes]
            yield from _accesses(stmt.then, [lane and dict(lane) for lane in taken], shared)


def _places(stmt, shared: dict[str, Buffer]) -> Iterator[tuple[Load, int]]:
    """Elements of shared arrays that a statement reads or writes, and how many from there on."""
    if isinstance(stmt, Intrin) and stmt.name in WIDE:
        yield stmt.args[WIDE[stmt.name]], 4
        return
    if isinstance(stmt, Intrin) and stmt.name in VECTORS:
        yield from ((x, len(stmt.args) - 1) for x in stmt.args[:1] if x.source in shared)
        return
    if isinstance(stmt, Store) and stmt.buffer in shared:
        yield shared[stmt.buffer][stmt.index], 1
    for expr in exprs(stmt):
        for node in walk(expr):
            if isinstance(node, Load) and node.source in shared:
                yield node, 1


def _at(expr: Expr, lane: Mapping) -> Expr:
    return simplify(substitute(expr, lane))


def _number(expr: Expr, lane: Mapping) -> int:
    found = _at(expr, lane)
    assert isinstance(found, Const), found
    return int(found.value)
