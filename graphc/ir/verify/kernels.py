"""Verifies kernels; each violation is an InternalError that quotes the statement.

Kernels: no name is bound again within its scope; indices, scalars and buffers are used where they
are bound; loads and stores have the rank and dtype of their buffer and are not provably outside it;
register arrays are indexed by expressions that are constant once loops are unrolled; lanes of a
vector loop are independent. An access outside a `select` or `if` whose index takes every value
between its bounds is checked at both ends, others only where they are outside always.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, NoReturn

from graphc.errors import InternalError
from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    Sym,
    free_indices,
    walk,
)
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
)
from graphc.ir.simplify import bounds, simplify, to_poly
from graphc.ir.text.printer import stmt_text
from graphc.records import dataclass

KINDS = ("serial", "parallel", "unroll", "vector", "block", "thread")
SCOPES = ("reg", "stack", "shared", "scratch")


def verify_kernel(kernel: Kernel) -> None:
    """Raises InternalError, quoting the statement, if the kernel breaks a rule."""
    _KernelVerifier(kernel).run()


@dataclass
class _Scope:
    """What is bound at a statement, and the loops around it."""

    names: dict[str, Expr | Buffer] = field(default_factory=dict)
    loops: tuple[For, ...] = ()
    guarded: bool = False  # under an if or while
    outside: frozenset[str] = frozenset()  # buffers bound outside the innermost vector loop

    def inner(self, **changes: Any) -> _Scope:
        return replace(self, names=dict(self.names), **changes)

    @property
    def entered(self) -> bool:
        """Whether the loops around certainly run."""
        return all(isinstance(loop.extent, int) and loop.extent > 0 for loop in self.loops)

    @property
    def vector(self) -> For | None:
        return next((loop for loop in self.loops if loop.kind == "vector"), None)


class _KernelVerifier:
    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.scopes: dict[str, str] = {}  # of local buffers, by name
        self.checked: set[tuple[Expr, bool]] = set()  # of the statement at hand
        self.stmt: Stmt | None = None

    def fail(self, message: str) -> NoReturn:
        text = f", in `{stmt_text(self.stmt)}`" if self.stmt is not None else ""
        raise InternalError(f"kernel @{self.kernel.name}: {message}{text}")

    def run(self) -> None:
        scope = _Scope()
        for buffer in self.kernel.params:
            if buffer.access not in ("in", "out", "inout"):
                self.fail(f"parameter {buffer.name} is {buffer.access!r}, not in, out or inout")
            self.bind(buffer.name, buffer, scope)
        for size in self.kernel.sizes:
            self.bind(size.name, size, scope)
        self.body(self.kernel.body, scope)

    def bind(self, name: str, what: Expr | Buffer, scope: _Scope) -> None:
        if name in scope.names:
            self.fail(f"{name} is bound again")
        scope.names[name] = what

    # ------------------------------------------------------------ statements

    def body(self, body: Body, scope: _Scope) -> None:
        for stmt in body:
            self.stmt = stmt
            self.checked.clear()
            self.statement(stmt, scope)

    def statement(self, stmt: Stmt, scope: _Scope) -> None:
        if isinstance(stmt, For):
            self.loop(stmt, scope)
        elif isinstance(stmt, Let):
            self.expr(stmt.value, scope)
            self.same_dtype(stmt.value, stmt.ref.dtype)
            self.bind(stmt.ref.name, stmt.ref, scope)
        elif isinstance(stmt, Store):
            self.store(stmt, scope)
        elif isinstance(stmt, Alloc):
            self.alloc(stmt, scope)
        elif isinstance(stmt, (If, While)):
            self.branch(stmt, scope)
        elif isinstance(stmt, Barrier):
            if scope.vector:
                self.fail("a barrier stands inside a vector loop")
        elif isinstance(stmt, Intrin):
            for value in stmt.args:
                self.expr(value, scope)
        else:
            self.fail(f"unknown statement {type(stmt).__name__}")

    def loop(self, stmt: For, scope: _Scope) -> None:
        extent = stmt.extent
        if stmt.kind not in KINDS:
            self.fail(f"unknown loop kind {stmt.kind!r}")
        if isinstance(extent, Expr):
            self.expr(extent, scope)
            self.same_dtype(extent, i64)
        elif extent < 0:
            self.fail(f"extent {extent} is negative")
        if stmt.kind == "unroll" and isinstance(extent, Expr):
            self.fail("the extent of an unrolled loop is not constant")
        if stmt.kind == "parallel" and any(loop.kind != "parallel" for loop in scope.loops):
            self.fail("a parallel loop is not outermost")
        if scope.vector and isinstance(extent, Expr):
            if scope.vector.var in free_indices(extent):
                self.fail("the extent of a loop depends on the lane of a vector loop around it")
        inner = scope.inner(loops=(*scope.loops, stmt))
        if stmt.kind == "vector":
            self.vector(stmt, scope)
            inner.outside = frozenset(n for n, b in scope.names.items() if isinstance(b, Buffer))
        self.bind(stmt.var.name, stmt.var, inner)
        self.body(stmt.body, inner)

    def vector(self, stmt: For, scope: _Scope) -> None:
        if scope.vector:
            self.fail("a vector loop stands inside another")
        if stmt.width < 1:
            self.fail(f"a vector loop of width {stmt.width}")
        low = stmt.extent if isinstance(stmt.extent, int) else bounds(simplify(stmt.extent))[0]
        if low > stmt.width:
            self.fail(f"{low} lanes do not fit into width {stmt.width}")

    def branch(self, stmt: If | While, scope: _Scope) -> None:
        self.expr(stmt.condition, scope)
        self.same_dtype(stmt.condition, boolean)
        if isinstance(stmt, While) and scope.vector:
            self.fail("a while loop stands inside a vector loop")
        blocks = (stmt.then, stmt.orelse) if isinstance(stmt, If) else (stmt.body,)
        for block in blocks:
            self.body(block, scope.inner(guarded=True))

    def alloc(self, stmt: Alloc, scope: _Scope) -> None:
        if stmt.scope not in SCOPES:
            self.fail(f"unknown scope {stmt.scope!r}")
        if not all(isinstance(extent, int) for extent in stmt.buffer.shape):
            self.fail("the shape of a local array is not constant")
        if stmt.scope == "shared" and any(loop.kind == "thread" for loop in scope.loops):
            self.fail("shared memory is declared inside the threads that share it")
        self.bind(stmt.buffer.name, stmt.buffer, scope)
        self.scopes[stmt.buffer.name] = stmt.scope

    def store(self, stmt: Store, scope: _Scope) -> None:
        for expr in (*stmt.index, stmt.value):
            self.expr(expr, scope)
        buffer = self.buffer(stmt.buffer, scope)
        if buffer.access == "in":
            self.fail(f"stores into the input {buffer.name}")
        self.same_dtype(stmt.value, buffer.dtype)
        self.access(buffer, stmt.index, scope, scope.guarded)
        vector = scope.vector
        if vector and not scope.guarded and buffer.name in scope.outside and vector.extent != 1:
            if not any(vector.var in free_indices(x) or _depends_on_data(x) for x in stmt.index):
                self.fail(f"every lane of {vector.var.name} stores into one element")

    # ------------------------------------------------------------ expressions

    def same_dtype(self, expr: Expr, dtype: DType) -> None:
        if expr.dtype is not dtype:
            self.fail(f"`{expr}` is {expr.dtype}, not {dtype}")

    def buffer(self, name: str, scope: _Scope) -> Buffer:
        named = scope.names.get(name)
        if not isinstance(named, Buffer):
            self.fail(f"unknown buffer {name}")
        return named

    def expr(self, root: Expr, scope: _Scope, guarded: bool = False) -> None:
        """Checks a tree, each node once; what a select's branches load is guarded."""
        if isinstance(root, Const) or (root, guarded) in self.checked:
            return
        self.checked.add((root, guarded))
        if isinstance(root, (Index, Ref, Sym)) and scope.names.get(root.name) is not root:
            self.fail(f"`{root}` is not bound here")
        if isinstance(root, Reduce):
            self.fail("a reduction is left in a kernel")
        if isinstance(root, Load):
            buffer = self.buffer(root.source, scope)
            self.same_dtype(root, buffer.dtype)
            self.access(buffer, root.index, scope, guarded or scope.guarded)
        for position, child in enumerate(root.children):
            branch = isinstance(root, Call) and root.op.name == "select" and position > 0
            self.expr(child, scope, guarded or branch)

    def access(self, buffer: Buffer, index: tuple[Expr, ...], scope: _Scope, guarded: bool) -> None:
        if len(index) != buffer.rank:
            self.fail(f"{len(index)} indices for {buffer.name} of rank {buffer.rank}")
        for position, extent in zip(index, buffer.shape):
            self.same_dtype(position, i64)
            if isinstance(extent, int) and not guarded and scope.entered:
                self.within(buffer, position, extent)
        if self.scopes.get(buffer.name) == "reg":
            self.register_index(buffer, index, scope)

    def within(self, buffer: Buffer, index: Expr, extent: int) -> None:
        """An access that certainly happens, for every value of the loops around it."""
        low, high = bounds(simplify(index))
        always = high < 0 or low >= extent
        if always or (low < 0 or high >= extent) and _is_tight(index):
            valid = f"0..{extent - 1}" if extent else "no elements"
            self.fail(f"index `{index}` of {buffer.name} runs over {low}..{high}, not {valid}")

    def register_index(self, buffer: Buffer, index: tuple[Expr, ...], scope: _Scope) -> None:
        constant = {loop.var for loop in scope.loops if loop.kind in ("unroll", "vector")}
        for position in index:
            if _depends_on_data(position) or free_indices(position) - constant:
                self.fail(
                    f"register array {buffer.name} is indexed by `{position}`, which is not "
                    "constant once loops are unrolled"
                )


def _depends_on_data(expr: Expr) -> bool:
    return any(isinstance(node, (Load, Ref)) for node in walk(expr))


def _is_tight(index: Expr) -> bool:
    """Whether the bounds of an index are attained: it is linear in loops of constant extent."""
    return all(
        not atoms or len(atoms) == 1 and isinstance(atoms[0], Index) and _constant_extent(atoms[0])
        for atoms in to_poly(simplify(index))
    )


def _constant_extent(index: Index) -> bool:
    return isinstance(index.extent, int)
