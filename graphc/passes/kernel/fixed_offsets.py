"""Parts of offsets that stay the same in an innermost loop, computed before it.

An innermost loop of a tile does little more than multiply: on a processor with few vector registers
the addresses of its loads, computed anew in every trip, take as long. LLVM moves such sums out of a
loop only where it has registers left by its own estimate, and it adds up terms in the order in
which they are written; so what stays the same is added up first, under a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Load, Ref, Sym, loads, transform, walk
from graphc.ir.kernel import (
    Body,
    For,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
    bodies,
    map_nested,
    map_stmt,
    walk_stmts,
)
from graphc.ir.simplify import Poly, bounds_of_poly, from_poly, simplify, to_poly
from graphc.passes.kernel.strength_reduction import names_in

IN_TRIPS = ("serial", "parallel")  # kinds of loops that are not written out


def name_fixed_offsets(kernel: Kernel) -> Kernel:
    """The kernel with what stays the same in innermost loops named before them."""
    return replace(kernel, body=_Namer(kernel).body(kernel.body))


class _Namer:
    def __init__(self, kernel: Kernel):
        self.kernel, self.count = kernel, 0
        self.taken: set[str] | None = None

    def fresh(self) -> str:
        if self.taken is None:
            self.taken = {n.name for n in names_in(self.kernel)}
        self.count += 1
        while f"p{self.count}" in self.taken:
            self.count += 1
        return f"p{self.count}"

    def body(self, body: Body) -> Body:
        return tuple(new for stmt in body for new in self.stmt(stmt))

    def stmt(self, stmt: Stmt) -> list[Stmt]:
        if isinstance(stmt, For) and stmt.kind not in IN_TRIPS:
            return [stmt]  # what depends on lanes, or is written out, is known as it stands
        if isinstance(stmt, For) and stmt.kind == "serial" and _is_innermost(stmt):
            return _Loop(self, stmt).named()
        return [map_nested(stmt, self.body)]


def _is_innermost(loop: For) -> bool:
    return not any(
        isinstance(s, While) or isinstance(s, For) and s.kind in IN_TRIPS
        for s in walk_stmts(loop.body)
    )


class _Loop:
    """An innermost loop, and the names of what stays the same in it."""

    def __init__(self, namer: _Namer, loop: For):
        self.namer, self.loop = namer, loop
        self.moving = {loop.var, *_bound(loop.body)}
        self.fixed: dict[Expr, bool] = {}
        self.known: dict[Expr, Expr] = {}
        self.shorter: dict[Expr, Expr] = {}  # expressions whose loads are from named offsets
        self.names: dict[Expr, Ref] = {}
        self.lets: list[Stmt] = []

    def named(self) -> list[Stmt]:
        body = tuple(map(self.stmt, self.loop.body))
        return [*self.lets, replace(self.loop, body=body)] if self.lets else [self.loop]

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            index = tuple(map(self.offset, stmt.index))
            return Store(stmt.buffer, index, self.expr(stmt.value))
        if bodies(stmt):
            return map_nested(stmt, lambda inner: tuple(map(self.stmt, inner)))
        return map_stmt(stmt, self.expr)

    def expr(self, root: Expr) -> Expr:
        read = loads(root)
        if not any(loads(x) for load in read for x in load.index):  # no look at parts of offsets
            self.shorter.update((x, self.load(x)) for x in read if x not in self.shorter)
        return transform(root, self.rewritten, self.shorter) if read else root

    def rewritten(self, node: Expr) -> Expr | None:
        return self.load(node) if isinstance(node, Load) else None

    def load(self, load: Load) -> Load:
        index = tuple(map(self.offset, load.index))
        return Load(load.source, index, load.dtype) if index else load

    def offset(self, index: Expr) -> Expr:
        """An offset in terms of the names before the loop, which it makes if need be."""
        if index not in self.known:
            fixed: Poly = {}
            rest: Poly = {}
            for atoms, coefficient in to_poly(index).items():
                (fixed if atoms and self.stays(atoms) else rest)[atoms] = coefficient
            is_named = not fixed or isinstance(from_poly(fixed), (Const, Index, Ref, Sym))
            self.known[index] = index if is_named else simplify(self.name(fixed) + from_poly(rest))
        return self.known[index]

    def stays(self, atoms: tuple[Expr, ...]) -> bool:
        """Whether a term is the same in all trips."""
        return all(map(self.is_fixed, atoms))

    def is_fixed(self, atom: Expr) -> bool:
        """Whether a factor is the same in all trips."""
        if atom not in self.fixed:
            parts = walk(atom)
            self.fixed[atom] = not any(isinstance(x, Load) or x in self.moving for x in parts)
        return self.fixed[atom]

    def name(self, fixed: Poly) -> Ref:
        value = from_poly(fixed)
        if value not in self.names:
            ref = Ref(self.namer.fresh(), i64, *bounds_of_poly(fixed))
            self.lets.append(Let(ref, value))
            self.names[value] = ref
        return self.names[value]


def _bound(body: Body) -> Iterator[Expr]:
    """What statements name inside."""
    for stmt in walk_stmts(body):
        if isinstance(stmt, For):
            yield stmt.var
        elif isinstance(stmt, Let):
            yield stmt.ref
