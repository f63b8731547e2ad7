"""Strength reduction and loop-invariant code motion of offsets into buffers.

Every offset is a polynomial in the loops around it. Each of its terms is computed in the loop where
it changes: the offsets of a loop's body are `let` before its statements, each the sum of an offset
of the enclosing loop and the terms that move with this loop. Accesses that differ by constants, or
by a multiple of the innermost loop, share an offset (common subexpressions) and add their own part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Index, Load, Ref, Sym, free_indices, transform, walk
from graphc.ir.kernel import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
    map_stmt,
    walk_stmts,
)
from graphc.ir.simplify import Poly, bounds_of_poly, from_poly, simplify, to_poly
from graphc.records import dataclass

FEWEST = 2  # terms of outer loops, from which on they are worth a name


@dataclass
class _Level:
    """A loop around the statement at hand: its variable and the offsets of its body, by what they
    are the sums of."""

    var: Index
    named: dict[tuple, Ref] = field(default_factory=dict)
    lets: list[Let] = field(default_factory=list)


def sum_offsets(kernel: Kernel) -> Kernel:
    """The kernel with offsets summed up loop by loop; it computes the same."""
    taken = {n.name for n in names_in(kernel)}
    return replace(kernel, body=_Offsets(taken).body(kernel.body))


class _Offsets:
    def __init__(self, taken: set[str]):
        self.taken, self.count = taken, 0
        self.levels: list[_Level] = []

    def fresh(self) -> str:
        self.count += 1
        while f"p{self.count}" in self.taken:
            self.count += 1
        return f"p{self.count}"

    # ------------------------------------------------------------ statements

    def body(self, body: Body) -> Body:
        return tuple(map(self.stmt, body))

    def stmt(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            return self.loop(stmt)
        if isinstance(stmt, If):
            then, orelse = self.body(stmt.then), self.body(stmt.orelse)
            return If(self.expr(stmt.condition), then, orelse)
        if isinstance(stmt, While):
            return While(self.expr(stmt.condition), self.body(stmt.body))
        if isinstance(stmt, Store):
            index = tuple(map(self.offset, stmt.index))
            return Store(stmt.buffer, index, self.expr(stmt.value))
        return map_stmt(stmt, self.expr)

    def loop(self, stmt: For) -> For:
        level = _Level(stmt.var)
        self.levels.append(level)
        body = self.body(stmt.body)
        self.levels.pop()
        return replace(stmt, body=(*level.lets, *body))

    def expr(self, root: Expr) -> Expr:
        def shorter(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.index:
                return Load(node.source, tuple(map(self.offset, node.index)), node.dtype)
            return None

        return transform(root, shorter)

    # ------------------------------------------------------------ offsets

    def offset(self, index: Expr) -> Expr:
        """An offset in terms of the names of the loops around it, which it makes if need be."""
        poly = to_poly(simplify(index))
        parts: list[Poly] = [{} for _ in range(len(self.levels) + 1)]
        for atoms, coefficient in poly.items():
            parts[self.depth(atoms)][atoms] = coefficient
        outer = parts[1:-1]
        if sum(map(len, outer)) < FEWEST:
            return index
        base = self.base(outer)
        return simplify(base + from_poly({**parts[0], **parts[-1]}))

    def depth(self, atoms: tuple[Expr, ...]) -> int:
        """The number of loops that a term moves with, counted from the outside."""
        if any(isinstance(n, (Ref, Load)) for atom in atoms for n in walk(atom)):
            return len(self.levels)
        moving = {index for atom in atoms for index in free_indices(atom)}
        return max((n for n, level in enumerate(self.levels, 1) if level.var in moving), default=0)

    def base(self, outer: list[Poly]) -> Ref:
        """The name of the sum of what every outer loop adds."""
        base: Ref | None = None
        total: Poly = {}
        key: tuple = ()
        for level, part in zip(self.levels, outer):
            if not part:
                continue
            total |= part
            key = (*key, tuple(sorted((str(from_poly({k: 1})), c) for k, c in part.items())))
            if key not in level.named:
                low, high = bounds_of_poly(total)
                ref = Ref(self.fresh(), i64, low, high)
                terms = from_poly(part)
                level.lets.append(Let(ref, terms if base is None else base + terms))
                level.named[key] = ref
            base = level.named[key]
        assert base is not None
        return base


def names_in(kernel: Kernel) -> Iterator[Buffer | Index | Ref | Sym]:
    """Everything that is named in a kernel."""
    yield from kernel.params
    yield from kernel.sizes
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, For):
            yield stmt.var
        elif isinstance(stmt, Let):
            yield stmt.ref
        elif isinstance(stmt, Alloc):
            yield stmt.buffer
