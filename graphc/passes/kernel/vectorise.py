"""Vectorisation of parallel loops in kernels.

The iterations of an innermost parallel loop become the lanes of vectors, and a shorter vector takes
the tail, if these hold: the loop's own elements are contiguous in all that it stores, which is at
least one buffer; no branch and no inner loop's end differs between iterations; and gathered
elements are few next to what is computed of them.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import partial
from typing import TypeGuard

from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, Ref, walk
from graphc.ir.kernel import (
    Alloc,
    Body,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
    bodies,
    exprs,
    map_body,
    map_nested,
    substitute_body,
    walk_stmts,
)
from graphc.ir.simplify import simplify
from graphc.records import dataclass

LEAST = 4  # iterations that are worth vectors
DIVISIONS = ("floordiv", "mod")
WORTH = 4  # operations for each element read from all over that are


def in_lanes(kernel: Kernel, vector_bytes: int) -> Kernel:
    """A kernel of flat buffers, with vectors of so many bytes."""
    sizes = {b.name: b.dtype.size for b in kernel.params}
    return replace(kernel, body=_in_lanes(kernel.body, sizes, vector_bytes))


def _in_lanes(body: Body, sizes: dict[str, int], vector_bytes: int) -> Body:
    """`sizes` are those of the elements of parameters and of arrays."""
    made: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Alloc) and stmt.buffer.shape:
            sizes = {**sizes, stmt.buffer.name: stmt.buffer.dtype.size}
        if isinstance(stmt, For) and stmt.kind in ("vector", "unroll"):
            made.append(stmt)
            continue
        stmt = _joined(stmt)
        if _is_parallel(stmt) and _Lanes(stmt, sizes).fit():
            stored = {s.buffer for s in walk_stmts(stmt.body) if isinstance(s, Store)}
            widest = max(sizes[name] for name in stored & sizes.keys())
            made += _vectors(stmt, vector_bytes // widest)
        else:
            nested = partial(_in_lanes, sizes=sizes, vector_bytes=vector_bytes)
            made.append(map_nested(stmt, nested))
    return tuple(made)


def _joined(stmt: Stmt) -> Stmt:
    """Parallel loops, one in the other, as one, if nothing asks for the index of either."""
    if not _is_parallel(stmt) or len(stmt.body) != 1:
        return stmt
    inner = _joined(stmt.body[0])
    if not _is_parallel(inner):
        return stmt
    outer = replace(stmt, body=(inner,))
    if not (isinstance(outer.extent, int) and isinstance(inner.extent, int)):
        return outer
    both = Index(f"{outer.var.name}_{inner.var.name}", outer.extent * inner.extent)
    mapping: dict[Expr, Expr] = {outer.var: both // inner.extent, inner.var: both % inner.extent}
    body = map_body(substitute_body(inner.body, mapping), simplify)
    parts = {n for s in walk_stmts(body) for e in exprs(s) for n in walk(e)}
    divided = any(isinstance(n, Call) and both in n.args and n.op.name in DIVISIONS for n in parts)
    return outer if divided else For(both, body, "parallel")


def _is_parallel(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind == "parallel"


def _vectors(loop: For, lanes: int) -> list[Stmt]:
    assert isinstance(loop.extent, int)
    whole, rest = divmod(loop.extent, lanes)
    made: list[Stmt] = []
    if whole:
        number = Index(f"{loop.var.name}v", whole)
        made.append(For(number, (_vector(loop, number * lanes, lanes),), loop.kind))
    if rest:
        made.append(_vector(loop, Const(whole * lanes, i64), rest))
    return made


def _vector(loop: For, start: Expr, lanes: int) -> Stmt:
    lane = Index(f"{loop.var.name}l", lanes)
    body = substitute_body(loop.body, {loop.var: start + lane})
    return For(lane, map_body(body, simplify), "vector", lanes)


@dataclass
class _Lanes:
    """Whether the iterations of a loop can be the lanes of vectors: `own` are the scalars that each
    iteration has, and names of values that differ between iterations."""

    loop: For
    sizes: dict[str, int]
    own: set[str] = field(default_factory=set)
    stores: int = 0

    def fit(self) -> bool:
        extent = self.loop.extent
        if not isinstance(extent, int) or extent < LEAST:
            return False
        self._note_own(self.loop.body)
        return self._fits(self.loop.body) and self.stores > 0 and self._is_worth_it()

    def _note_own(self, body: Body) -> None:
        """Scalars that loops change differ between iterations if anything stored there does."""
        self.own |= {s.buffer.name for s in walk_stmts(body) if isinstance(s, Alloc)}
        for stmt in walk_stmts(body):
            if isinstance(stmt, Let) and self._differs(stmt.value):
                self.own.add(stmt.ref.name)

    def _differs(self, expr: Expr) -> bool:
        """Whether an expression differs between iterations."""
        for node in walk(expr):
            if node is self.loop.var or isinstance(node, Ref) and node.name in self.own:
                return True
            if isinstance(node, Load) and node.source in self.own:
                return True
        return False

    def _fits(self, body: Body) -> bool:
        return all(self._fits_one(s) and all(map(self._fits, bodies(s))) for s in body)

    def _fits_one(self, stmt: Stmt) -> bool:
        if isinstance(stmt, Alloc):
            return not stmt.buffer.shape
        if isinstance(stmt, Store):
            return stmt.buffer in self.own or self._stores_aside(stmt)
        if isinstance(stmt, For):
            extent = stmt.extent
            serial = stmt.kind in ("serial", "unroll")
            return serial and not (isinstance(extent, Expr) and self._differs(extent))
        if isinstance(stmt, (If, While)):
            return not self._differs(stmt.condition)
        return isinstance(stmt, Let)

    def _stores_aside(self, stmt: Store) -> bool:
        self.stores += 1
        return stmt.buffer in self.sizes and self._stride(stmt.index) == 1

    def _stride(self, index: tuple[Expr, ...]) -> int | None:
        """How far an element is from that of the next iteration; None if that depends."""
        if not index or not self._differs(index[0]):
            return 0
        stride = is_affine_in(index[0], self.loop.var)
        others = {n for n in walk(index[0]) if isinstance(n, (Ref, Load))}
        return None if any(map(self._differs, others)) else stride

    def _is_worth_it(self) -> bool:
        nodes = {n for s in walk_stmts(self.loop.body) for e in exprs(s) for n in walk(e)}
        loads = [n for n in nodes if isinstance(n, Load) and n.source not in self.own]
        scattered = sum(self._stride(n.index) not in (0, 1) for n in loads)
        work = sum(isinstance(n, Call) and self._differs(n) for n in nodes)
        return scattered * WORTH <= work
