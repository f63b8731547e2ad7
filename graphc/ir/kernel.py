"""Kernel IR: immutable loop nests over buffers, the form every backend prints.

A `Kernel` has buffers as parameters and a body, a tuple of statements. Buffers are row-major over
the shape they declare (layouts are already applied). Scalars are bound once with `Let`, or declared
as a rank-0 `Alloc` and changed by `Store`. Loops run over an `Index` 0 .. extent-1:

    serial    in order
    parallel  iterations are independent; may be split over threads (outermost loops only)
    unroll    in order, fully unrolled by the printer; the extent is a small constant
    vector    iterations are independent lanes executed in lockstep; `extent` lanes, at most `width`
    block, thread   CUDA grid and block dimensions

A `vector` loop means the same as a serial one: printers without vectors print a loop. Its extent
may be an expression (a tail) bounded by its width; lanes past the extent do nothing. Loops inside
a vector loop must have bounds that do not depend on its index. `Alloc(scope="reg")` arrays must be
indexed by constants once unrolled (plus a vector index in the last dimension), so that they live
in registers. Expressions are those of expr.py without Reduce; Load sources are buffer names.
`Load` and `Store` of a rank-0 Alloc read and write a mutable scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field, replace
from operator import is_
from typing import Any

from graphc.errors import InternalError
from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import (
    TRUE,
    Const,
    Expr,
    ExprLike,
    Index,
    Load,
    Ref,
    Sym,
    as_expr,
    substitute,
    substitution,
    symbols,
    walk,
)
from graphc.ir.types import elements_of
from graphc.records import dataclass


@dataclass(frozen=True)
class Buffer:
    """A kernel parameter or a local array. `access` is in, out or inout (local: "local")."""

    name: str
    dtype: DType
    shape: tuple[Any, ...]  # integers, or expressions over the sizes of the kernel
    access: str = "in"

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Load:
        if not isinstance(index, tuple):
            index = (index,)
        return Load(self.name, index, self.dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        """Number of elements: an expression if a dimension is one."""
        return elements_of(self.shape)


class Stmt:
    """Base of all statements."""

    __slots__ = ()


Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class For(Stmt):
    """A loop over `var` (see the module text for kinds). `width` is the lane count of a vector; of
    a `thread` loop, how many blocks a multiprocessor should hold at once, if that matters; of an
    `unroll` loop, how many iterations are written out, if not all."""

    var: Index
    body: Body
    kind: str = "serial"
    width: int = 0

    @property
    def extent(self) -> int | Expr:
        return self.var.extent


@dataclass(frozen=True)
class Let(Stmt):
    """Binds an immutable scalar for the rest of the enclosing body."""

    ref: Ref
    value: Expr


@dataclass(frozen=True)
class Store(Stmt):
    """buffer[index] = value."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True)
class Alloc(Stmt):
    """A local array for the rest of the enclosing body, uninitialised. `scope` is reg, stack,
    shared (by the threads of a block), or scratch: memory of its own, which all threads share."""

    buffer: Buffer
    scope: str = "reg"


@dataclass(frozen=True)
class If(Stmt):
    """Runs `then` if the condition holds, else `orelse`."""

    condition: Expr
    then: Body
    orelse: Body = ()


@dataclass(frozen=True)
class While(Stmt):
    """Repeats `body` while `condition`, which reads mutable scalars."""

    condition: Expr
    body: Body


@dataclass(frozen=True)
class Barrier(Stmt):
    """All threads of a block have reached this point, and their stores are visible."""


@dataclass(frozen=True)
class Intrin(Stmt):
    """A target instruction by name, with operands (see the backends' tables)."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Kernel:
    """A named procedure over buffers. `comment` says which ops of the model it computes.

    `sizes` are numbers that every call gives, within their bounds; extents, positions and values
    may contain them, and so may the shapes of parameters.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Body
    comment: str = ""
    sizes: tuple[Sym, ...] = ()

    def __str__(self) -> str:
        from graphc.ir.text.printer import print_kernel  # which takes them apart

        return print_kernel(self)


# ---------------------------------------------------------------- traversal


def bodies(stmt: Stmt) -> tuple[Body, ...]:
    """The statement lists nested directly in a statement."""
    if isinstance(stmt, (For, While)):
        return (stmt.body,)
    if isinstance(stmt, If):
        return (stmt.then, stmt.orelse)
    return ()


def exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions held directly by a statement."""
    if isinstance(stmt, For):
        return (stmt.extent,) if isinstance(stmt.extent, Expr) else ()
    if isinstance(stmt, Let):
        return (stmt.value,)
    if isinstance(stmt, Store):
        return (*stmt.index, stmt.value)
    if isinstance(stmt, (If, While)):
        return (stmt.condition,)
    if isinstance(stmt, Intrin):
        return stmt.args
    return ()


def walk_stmts(body: Body) -> Iterator[Stmt]:
    """Every statement, outer before inner."""
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from walk_stmts(inner)


def map_nested(stmt: Stmt, on_body: Callable[[Body], Body]) -> Stmt:
    """The same statement with the statement lists nested directly in it rewritten."""
    if isinstance(stmt, (For, While)):
        return replace(stmt, body=on_body(stmt.body))
    if isinstance(stmt, If):
        return replace(stmt, then=on_body(stmt.then), orelse=on_body(stmt.orelse))
    return stmt


def map_body(body: Body, on_expr: Callable[[Expr], Expr]) -> Body:
    """The same statements with every expression rewritten."""
    return tuple([map_stmt(s, on_expr) for s in body])


def map_stmt(stmt: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """The same statement with every expression in it, and in what is nested in it, rewritten."""
    if isinstance(stmt, Store):
        index, value = tuple(map(f, stmt.index)), f(stmt.value)
        is_same = value is stmt.value and all(map(is_, index, stmt.index))
        return stmt if is_same else Store(stmt.buffer, index, value)
    if isinstance(stmt, For):
        return _map_loop(stmt, f)
    if isinstance(stmt, Let):
        value = f(stmt.value)
        return stmt if value is stmt.value else Let(stmt.ref, value)
    if isinstance(stmt, If):
        return If(f(stmt.condition), map_body(stmt.then, f), map_body(stmt.orelse, f))
    if isinstance(stmt, While):
        return While(f(stmt.condition), map_body(stmt.body, f))
    if isinstance(stmt, Intrin):
        return Intrin(stmt.name, tuple(map(f, stmt.args)))
    return stmt


def _map_loop(stmt: For, f: Callable[[Expr], Expr]) -> For:
    body = map_body(stmt.body, f)
    if not isinstance(stmt.extent, Expr):
        is_same = all(map(is_, body, stmt.body))
        return stmt if is_same else For(stmt.var, body, stmt.kind, stmt.width)
    var = Index(stmt.var.name, f(stmt.extent))
    if var is stmt.var:
        return replace(stmt, body=body)
    return replace(stmt, var=var, body=substitute_body(body, {stmt.var: var}))


def substitute_body(body: Body, mapping: dict[Expr, Expr]) -> Body:
    """The same statements with expressions replaced."""
    return map_body(body, substitution(mapping))


def with_sizes(kernel: Kernel, values: Sequence[int]) -> Kernel:
    """The kernel of the calls that give these values for its sizes; it has none itself."""
    if len(values) != len(kernel.sizes):
        raise InternalError(
            f"kernel {kernel.name} has {len(kernel.sizes)} sizes, found {len(values)}"
        )
    if not kernel.sizes:
        return kernel
    mapping: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(kernel.sizes, values)}

    def put(expr: Expr) -> Expr:
        return substitute(expr, mapping)

    def extent(old: int | Expr) -> int | Expr:
        new = put(old) if isinstance(old, Expr) else old
        return new.value if isinstance(new, Const) else new

    params = [replace(b, shape=tuple(extent(x) for x in b.shape)) for b in kernel.params]  # type: ignore[misc]
    return Kernel(kernel.name, tuple(params), map_body(kernel.body, put), kernel.comment)


def sized(kernel: Kernel) -> Kernel:
    """The kernel with all symbols that occur in it as its sizes, by name."""
    dims = (x for b in kernel.params for x in b.shape if isinstance(x, Expr))
    held = (e for s in walk_stmts(kernel.body) for e in exprs(s))
    sizes = {size for e in (*dims, *held) for size in symbols(e)}
    return replace(kernel, sizes=tuple(sorted(sizes, key=lambda s: s.name)))


def buffers_read(body: Body) -> set[str]:
    """Names of all buffers loaded from."""
    return {n.source for n in _nodes(body) if isinstance(n, Load)}


def _nodes(body: Body) -> set[Expr]:
    """The distinct nodes of all expressions in a body."""
    nodes: set[Expr] = set()
    for stmt in walk_stmts(body):
        for expr in exprs(stmt):
            nodes.update(walk(expr, nodes))
    return nodes


def without_unread(body: Body) -> Body:
    """The same statements less values and local buffers that nothing reads."""
    nodes = _nodes(body)
    values = {n.name for n in nodes if isinstance(n, Ref)}
    buffers = {n.source for n in nodes if isinstance(n, Load)}
    idle = {s.ref.name for s in walk_stmts(body) if isinstance(s, Let)} - values
    idle |= {s.buffer.name for s in walk_stmts(body) if isinstance(s, Alloc)} - buffers
    return without_unread(_without(body, idle)) if idle else body


def _without(body: Body, names: set[str]) -> Body:
    kept = (s for s in body if _defines(s) not in names)
    return tuple(map_nested(s, lambda inner: _without(inner, names)) for s in kept)


def _defines(stmt: Stmt) -> str:
    """The name that a statement gives a value, or an empty string."""
    if isinstance(stmt, Let):
        return stmt.ref.name
    if isinstance(stmt, Alloc):
        return stmt.buffer.name
    return stmt.buffer if isinstance(stmt, Store) else ""


# ---------------------------------------------------------------- building


@dataclass
class KernelBuilder:
    """Builds a body with Python control flow:

        with k.loop(n) as i:
            k.store(y, i, x[i] * 2)

    `k.let(e)` names a value, `k.var(dtype, initial)` makes a mutable scalar (read `v[()]`, written
    by `k.store(v, (), e)`), `k.when(c)` / `k.otherwise()` branch, `k.repeat(c)` is a while loop.
    `outputs` are the buffers of the op being built, `sizes` the buffer for true output sizes.
    """

    outputs: tuple[Buffer, ...] = ()
    sizes: Buffer | None = None
    _stack: list[list[Stmt]] = field(default_factory=lambda: [[]])
    _count: int = 0

    def fresh(self, prefix: str) -> str:
        """A name that begins so and that no other of the kernel bears."""
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, stmt: Stmt) -> None:
        """Adds a statement to the innermost body."""
        self._stack[-1].append(stmt)

    def body(self) -> Body:
        """What has been built."""
        return tuple(self._stack[0])

    @contextmanager
    def block(self) -> Iterator[list[Stmt]]:
        """Collects statements instead of emitting them."""
        self._stack.append([])
        yield self._stack[-1]
        self._stack.pop()

    @contextmanager
    def loop(
        self, extent: int | Expr, kind: str = "serial", *, name: str = "", width: int = 0
    ) -> Iterator[Index]:
        """A loop; yields its Index."""
        var = Index(name or self.fresh("i"), extent)
        with self.block() as inner:
            yield var
        self.emit(For(var, tuple(inner), kind, width))

    @contextmanager
    def loops(self, *extents: int | Expr, kind: str = "serial") -> Iterator[tuple[Expr, ...]]:
        """Nested loops; yields the tuple of indices."""
        indices = tuple(Index(self.fresh("i"), e) for e in extents)
        with self.block() as inner:
            yield indices
        body = tuple(inner)
        for var in reversed(indices):
            body = (For(var, body, kind),)
        for stmt in body:
            self.emit(stmt)

    def let(self, value: ExprLike) -> Expr:
        """Names a value, so that it is computed once; constants and names pass through."""
        value = as_expr(value)
        if isinstance(value, (Const, Ref, Index)):
            return value
        ref = Ref(self.fresh("t"), value.dtype)
        self.emit(Let(ref, value))
        return ref

    def alloc(
        self, dtype: DType, shape: tuple[int, ...], scope: str = "stack", name: str = ""
    ) -> Buffer:
        """A local array, uninitialised."""
        buffer = Buffer(name or self.fresh("a"), dtype, tuple(shape), "local")
        self.emit(Alloc(buffer, scope))
        return buffer

    def var(self, dtype: DType, initial: ExprLike) -> Buffer:
        """A mutable scalar."""
        buffer = self.alloc(dtype, (), "reg", self.fresh("v"))
        self.store(buffer, (), initial)
        return buffer

    def store(
        self, buffer: Buffer, index: ExprLike | tuple[ExprLike, ...], value: ExprLike
    ) -> None:
        """buffer[index] = value. A literal takes the buffer's type; one index may stand alone."""
        indices = index if isinstance(index, tuple) else (index,)
        place = tuple(as_expr(x, i64) for x in indices)
        assert len(place) == buffer.rank, f"{buffer} stored at {place}"
        value = as_expr(value, buffer.dtype)
        assert value.dtype is buffer.dtype, f"storing {value.dtype} into {buffer}"
        self.emit(Store(buffer.name, place, value))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """What is emitted within runs if the condition holds."""
        with self.block() as inner:
            yield
        self.emit(If(condition, tuple(inner)))

    @contextmanager
    def where(self, condition: Expr) -> Iterator[None]:
        """As `when`, without a branch if the condition is known to hold."""
        with nullcontext() if condition is TRUE else self.when(condition):
            yield

    @contextmanager
    def threads(
        self, thread: Index, shared: Sequence[Buffer] = (), resident: int = 0
    ) -> Iterator[None]:
        """A loop over the threads of a block, after the arrays that these share, which may turn up
        within; `resident` blocks should be on a multiprocessor at once."""
        with self.block() as inner:
            yield
        for buffer in shared:
            self.emit(Alloc(buffer, "shared"))
        self.emit(For(thread, tuple(inner), "thread", resident))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The else branch of the If just emitted."""
        with self.block() as inner:
            yield
        previous = self._stack[-1].pop()
        assert isinstance(previous, If)
        self.emit(replace(previous, orelse=tuple(inner)))

    @contextmanager
    def repeat(self, condition: Expr) -> Iterator[None]:
        """What is emitted within runs as long as the condition holds."""
        with self.block() as inner:
            yield
        self.emit(While(condition, tuple(inner)))

    def search(self, end: Expr, most: int, comes_before: Callable[[Expr], Expr]) -> Expr:
        """How many of the positions below `end`, which is at most `most`, come before something:
        all of them that do come first, so halves tell. `comes_before` may emit statements."""
        low, high = self.var(i64, 0), self.var(i64, end)
        with self.loop(most.bit_length()), self.when(low[()] < high[()]):
            middle = self.let((low[()] + high[()]) // 2)
            with self.when(comes_before(middle)):
                self.store(low, (), middle + 1)
            with self.otherwise():
                self.store(high, (), middle)
        return low[()]
