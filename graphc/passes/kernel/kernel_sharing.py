"""Kernel sharing: kernels that are equal up to integers become one kernel with sizes.

A kernel is read as a sequence of tokens with holes between them: extents of loops, coefficients and
constants of index arithmetic, integer literals. Kernels of equal tokens are a family. Its holes are
the columns of a table with a row for each kernel. A column of one value stays a constant. Any other
becomes a size, or is computed from sizes that are there already (a multiple, a product, a multiple
and a constant), which holds for every kernel of the family and therefore for every call. The calls
then pass the sizes of their kernel.

Index arithmetic is read as polynomials that have a coefficient for every loop around them and a
constant, so that kernels that differ in a coefficient of 1 or in an offset of 0 are of one family.
The coefficient of a loop that runs once may be any number. Values that decide what code is made
(widths, extents of unrolled loops and local arrays, divisors) cannot vary: they are tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

from graphc.errors import InternalError
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, Ref, Sym
from graphc.ir.kernel import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
    exprs,
    map_nested,
    substitute_body,
    walk_stmts,
)
from graphc.ir.program import Program, Step, with_calls
from graphc.ir.simplify import Poly, to_poly

HEAVIEST = 20_000  # nodes, as trees, of a kernel that is looked at
DIVISIONS = ("floordiv", "mod", "div", "rem")
HIGH = 16  # a number too large for a size is two: this many bits, and those above them

Column = tuple["int | None", ...]
Row = tuple[int, ...]
Size = tuple[Sym, Row]


@dataclass
class Family:
    """Kernels of equal tokens; `holes[k]` are the integers of kernel k, in the order of reading
    (None for any)."""

    kernels: list[Kernel] = field(default_factory=list)
    holes: list[list[int | None]] = field(default_factory=list)


def share_kernels(
    program: Program, worthwhile: Callable[[Family], bool] = lambda family: True
) -> Program:
    """The program with families of kernels shared, where that is `worthwhile`.

    Kernels keep their order; a shared one stands for the first of its family. Those that are not
    shared lose their loops that run once.
    """
    families: dict[tuple, Family] = {}
    for kernel in program.kernels.values():
        tokens, holes = read_kernel(kernel)
        family = families.setdefault(tokens, Family())
        family.kernels.append(kernel)
        family.holes.append(holes)
    calls: dict[str, tuple[Kernel, Row | None]] = {}
    for family in families.values():
        if len(family.kernels) > 1 and worthwhile(family):
            shared, rows = generalise(family)
            calls.update((k.name, (shared, row)) for k, row in zip(family.kernels, rows))
        else:
            calls.update((k.name, (without_single_loops(k), None)) for k in family.kernels)
    kernels = {calls[name][0].name: calls[name][0] for name in program.kernels}

    def called(step: Step) -> Step:
        kernel, sizes = calls[step.kernel]
        return replace(step, kernel=kernel.name, sizes=step.sizes if sizes is None else sizes)

    return replace(program, kernels=kernels, steps=with_calls(program.steps, called))


def without_single_loops(kernel: Kernel) -> Kernel:
    """The kernel with the bodies of loops that run once in their place."""
    bound = Counter(name for stmt in walk_stmts(kernel.body) for name in _bound(stmt))

    def inlined(stmt: Stmt) -> Body:
        stmt = map_nested(stmt, flat)
        if isinstance(stmt, For) and stmt.kind == "serial" and stmt.extent == 1:
            if all(bound[name] == 1 for inner in stmt.body for name in _bound(inner)):
                return substitute_body(stmt.body, {stmt.var: Const(0, i64)})
        return (stmt,)

    def flat(body: Body) -> Body:
        return tuple(inner for stmt in body for inner in inlined(stmt))

    return replace(kernel, body=flat(kernel.body))


def _bound(stmt: Stmt) -> list[str]:
    """The names that a statement binds in the body it stands in."""
    if isinstance(stmt, Let):
        return [stmt.ref.name]
    return [stmt.buffer.name] if isinstance(stmt, Alloc) else []


def generalise(family: Family) -> tuple[Kernel, list[Row]]:
    """One kernel for a family, and for each kernel of the family the values of the sizes."""
    columns = list(zip(*family.holes))
    spelled, sizes = spell_columns(columns)
    values = iter(columns)
    walk = _Walk(lambda _: spelled[next(values)])
    shared = walk.kernel(family.kernels[0], tuple(sym for sym, _ in sizes))
    rows = list(zip(*(column for _, column in sizes))) or [()] * len(family.kernels)
    return shared, rows


# ---------------------------------------------------------------- columns


def spell_columns(columns: Sequence[Column]) -> tuple[dict[Column, Expr], list[Size]]:
    """An expression for every column, and the sizes they are made of, with their values."""
    spelled: dict[Column, Expr] = {}
    sizes: list[Size] = []
    for column in sorted(dict.fromkeys(columns), key=_magnitude):
        known = [value for value in column if value is not None]
        if len(set(known)) < 2:
            spelled[column] = Const(known[0] if known else 0, i64)
            continue
        derived = _derived(column, sizes)
        if derived is None:
            derived = Sym(f"n{len(sizes)}", min(known), max(known))
            sizes.append((derived, tuple(known[0] if v is None else v for v in column)))
        spelled[column] = derived
    return spelled, sizes


def _magnitude(column: Column) -> int:
    return max((abs(value) for value in column if value is not None), default=0)


def _derived(column: Column, sizes: list[Size]) -> Expr | None:
    """The column in terms of sizes: c * s, c * s * t, c * s + d."""
    bases: list[tuple[Expr, Row]] = list(sizes)
    for (s, x), (t, y) in combinations_with_replacement(sizes, 2):
        bases.append((s * t, tuple(a * b for a, b in zip(x, y))))
    for base, values in bases:
        factor = _factor(column, values)
        if factor is not None:
            return base * factor
    for base, values in sizes:
        line = _line(column, values)
        if line is not None:
            return base * line[0] + line[1]
    return None


def _factor(column: Column, values: Row) -> int | None:
    """c where column = c * values."""
    pairs = [(v, x) for v, x in zip(column, values) if v is not None]
    if any(x == 0 for _, x in pairs):
        return None
    factor, rest = divmod(pairs[0][0], pairs[0][1])
    return factor if not rest and all(v == factor * x for v, x in pairs) else None


def _line(column: Column, values: Row) -> tuple[int, int] | None:
    """(c, d) where column = c * values + d."""
    pairs = sorted({(x, v) for v, x in zip(column, values) if v is not None})
    if pairs[0][0] == pairs[1][0]:
        return None
    (x0, y0), (x1, y1) = pairs[:2]
    slope, rest = divmod(y1 - y0, x1 - x0)
    fits = not rest and all(y - y0 == slope * (x - x0) for x, y in pairs)
    return (slope, y0 - slope * x0) if fits else None


# ---------------------------------------------------------------- reading


def read_kernel(kernel: Kernel) -> tuple[tuple, list[int | None]]:
    """(tokens, the integers in the holes between them, None where any number would do)."""
    heavy = sum(e.weight for s in walk_stmts(kernel.body) for e in exprs(s)) > HEAVIEST
    if kernel.sizes or heavy:
        return ("alone", kernel.name), []
    holes: list[int | None] = []

    def keep(value: int | None) -> Expr:
        holes.append(value)
        return Const(value or 0, i64)

    walk = _Walk(keep)
    walk.kernel(kernel)
    return tuple(walk.tokens), holes


class _Walk:
    """Rebuilds a kernel with its holes filled by `hole`, and notes the tokens between them."""

    def __init__(self, hole: Callable[[int | None], Expr]):
        self.hole = hole
        self.tokens: list = []
        self.names: dict[str, int] = {}  # what has been declared, numbered
        self.loops: dict[Expr, Expr] = {}  # of the loops around, new variables by old ones

    def kernel(self, kernel: Kernel, sizes: tuple[Sym, ...] = ()) -> Kernel:
        for buffer in kernel.params:
            self.declare(buffer.name)
            self.tokens += [str(buffer.dtype), buffer.access, len(buffer.shape)]
        body = self.body(kernel.body)
        params = tuple(self.param(buffer) for buffer in kernel.params)
        return replace(kernel, params=params, body=body, sizes=sizes)

    def param(self, buffer: Buffer) -> Buffer:
        return replace(buffer, shape=tuple(map(self.extent, buffer.shape)))  # type: ignore[arg-type]

    def extent(self, value: int) -> int | Expr:
        new = self.hole(value)
        return new.value if isinstance(new, Const) else new

    def declare(self, name: str) -> None:
        self.names[name] = len(self.names)

    # ------------------------------------------------------------ statements

    def body(self, body: Body) -> Body:
        self.tokens.append("{")
        new = tuple(map(self.stmt, body))
        self.tokens.append("}")
        return new

    def stmt(self, stmt: Stmt) -> Stmt:
        self.tokens.append(type(stmt).__name__)
        rule = _RULES.get(type(stmt))
        if rule is None:
            raise InternalError(f"unknown statement {type(stmt).__name__}")
        return rule(self, stmt)

    def loop(self, stmt: For) -> For:
        self.tokens += [stmt.kind, stmt.width]
        extent: int | Expr = stmt.extent
        if isinstance(extent, Expr):
            extent = self.expr(extent)
        elif stmt.kind == "serial":
            self.tokens.append("#")
            extent = self.extent(extent)
        else:
            self.tokens.append(extent)
        var = Index(stmt.var.name, extent)
        self.declare(var.name)
        outer, self.loops = self.loops, {**self.loops, stmt.var: var}
        body = self.body(stmt.body)
        self.loops = outer
        return replace(stmt, var=var, body=body)

    def let(self, stmt: Let) -> Let:
        value = self.expr(stmt.value)
        self.declare(stmt.ref.name)
        return Let(stmt.ref, value)

    def store(self, stmt: Store) -> Store:
        self.tokens.append(self.names[stmt.buffer])
        index = tuple(map(self.expr, stmt.index))
        return Store(stmt.buffer, index, self.expr(stmt.value))

    def alloc(self, stmt: Alloc) -> Alloc:
        self.tokens += [stmt.scope, str(stmt.buffer.dtype), stmt.buffer.shape]
        self.declare(stmt.buffer.name)
        return stmt

    def branch(self, stmt: If) -> If:
        condition = self.expr(stmt.condition)
        return If(condition, self.body(stmt.then), self.body(stmt.orelse))

    def repeat(self, stmt: While) -> While:
        return While(self.expr(stmt.condition), self.body(stmt.body))

    def intrin(self, stmt: Intrin) -> Intrin:
        self.tokens += [stmt.name, len(stmt.args)]
        return Intrin(stmt.name, tuple(map(self.expr, stmt.args)))

    # ------------------------------------------------------------ expressions

    def expr(self, node: Expr) -> Expr:
        if node.dtype is i64:
            return self.poly(to_poly(node))
        if isinstance(node, Const) and _varies(node.value) and node.dtype.is_integer:
            self.tokens.append(f"#{node.dtype}")
            return self.hole(node.value).cast(node.dtype)
        return self.atom(node)

    def poly(self, poly: Poly) -> Expr:
        """Coefficients of the loops, other terms in the order of their tokens, the constant."""
        total: Expr = Const(0, i64)
        for old, new in self.loops.items():
            once = isinstance(old, Index) and old.extent == 1
            total = total + new * (self.hole(None) if once else self.number(poly.get((old,), 0)))
        terms = [(k, c) for k, c in poly.items() if k and not (len(k) == 1 and k[0] in self.loops)]
        if len(terms) > 1:
            terms.sort(key=lambda term: [self.tokens_of(a) for a in term[0]])
        self.tokens += ["+", len(terms)]
        for atoms, coefficient in terms:
            self.tokens.append(len(atoms))
            product: Expr = Const(1, i64)
            for atom in sorted(atoms, key=self.tokens_of) if len(atoms) > 1 else atoms:
                product = product * self.atom(atom)
            total = total + product * self.number(coefficient)
        return total + self.number(poly.get((), 0))

    def number(self, value: int) -> Expr:
        """A coefficient or constant."""
        if _varies(value):
            return self.hole(value)
        self.tokens.append("##")
        high, low = value >> HIGH, value & ((1 << HIGH) - 1)
        if not _varies(high):
            self.tokens.append(value)
            return Const(value, i64)
        return self.hole(high) * (1 << HIGH) + self.hole(low)

    def tokens_of(self, node: Expr) -> list[str]:
        """The tokens of an atom, for comparison."""
        walk = _Walk(lambda value: Const(value or 0, i64))
        walk.names, walk.loops = self.names, self.loops
        walk.atom(node)
        return [f"{token:9}" if isinstance(token, int) else str(token) for token in walk.tokens]

    def atom(self, node: Expr) -> Expr:
        if isinstance(node, (Index, Ref)):
            self.tokens.append(self.names[node.name])
            return self.loops.get(node, node)
        if isinstance(node, Load):
            self.tokens += ["[", self.names[node.source]]
            return node.rebuild(list(map(self.expr, node.index)))
        if isinstance(node, Call):
            self.tokens += [node.op.name, str(node.dtype)]
            return node.rebuild([self.operand(node, n, x) for n, x in enumerate(node.args)])
        if isinstance(node, Const):
            self.tokens += ["=", str(node.dtype), repr(node.value)]
            return node
        raise InternalError(f"`{node}` is left in a kernel")

    def operand(self, node: Call, position: int, child: Expr) -> Expr:
        fixed = node.op.name in DIVISIONS and position == 1 and isinstance(child, Const)
        return self.atom(child) if fixed else self.expr(child)


def _varies(value: object) -> bool:
    """Whether a number may become a size."""
    return isinstance(value, int) and value is not True and i32.min <= value <= i32.max


_RULES: dict[type[Stmt], Callable] = {
    For: _Walk.loop,
    Let: _Walk.let,
    Store: _Walk.store,
    Alloc: _Walk.alloc,
    If: _Walk.branch,
    While: _Walk.repeat,
    Intrin: _Walk.intrin,
    Barrier: lambda walk, stmt: stmt,
}
