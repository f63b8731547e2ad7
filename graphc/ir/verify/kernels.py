"""Verifies kernels and programs; each violation is an InternalError that quotes the statement.

Kernels: no name is bound again within its scope; indices, scalars and buffers are used where they
are bound; loads and stores have the rank and dtype of their buffer and are not provably outside it;
register arrays are indexed by expressions that are constant once loops are unrolled; lanes of a
vector loop are independent. An access outside a `select` or `if` whose index takes every value
between its bounds is checked at both ends, others only where they are outside always.

Programs: steps name kernels and fit their parameters; slots are aligned and lie inside their
storage; nothing is read before it is written, or after something else has been written over it, and
every output is written in full. A program of open shape is verified at its least and largest sizes,
and at a few between.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from graphc.errors import InternalError
from graphc.ir import dtypes
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
    with_sizes,
)
from graphc.ir.program import Program, Slot, Step, at_sizes
from graphc.ir.simplify import bounds, simplify, to_poly
from graphc.ir.text.printer import slot_text, stmt_text
from graphc.ir.types import largest
from graphc.ir.verify.overlap import overwrites

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


# ---------------------------------------------------------------- programs


def verify_program(program: Program) -> None:
    """Raises InternalError, naming the step, if the program or a kernel breaks a rule."""
    for name, kernel in program.kernels.items():
        if kernel.name != name:
            raise InternalError(f"program @{program.name}: @{kernel.name} is filed as {name!r}")
        verify_kernel(kernel)
    if not program.sizes:
        _ProgramVerifier(program).run()
    for values in chosen_sizes(program):
        static = at_sizes(program, values)
        for kernel in static.kernels.values():
            verify_kernel(kernel)
        _ProgramVerifier(static).run()


def chosen_sizes(program: Program, count: int = 3) -> list[tuple[int, ...]]:
    """Sizes that a program of open shape is tried at: the least, the largest, and a few between."""
    if not program.sizes:
        return []
    dice = random.Random(0)
    ranges = [(size.lo, largest(size)) for size in program.sizes]
    corners = [tuple(pair[end] for pair in ranges) for end in (0, 1)]
    between = (tuple(dice.randint(*pair) for pair in ranges) for _ in range(count))
    return list(dict.fromkeys((*corners, *between)))


class _ProgramVerifier:
    def __init__(self, program: Program):
        self.program = program
        self.sizes = {("arena", 0): program.arena_bytes}
        for space, types in (("input", program.inputs), ("output", program.outputs)):
            self.sizes.update(((space, k), type.nbytes) for k, (_, type) in enumerate(types))
        for k, array in enumerate(program.constants):
            self.sizes["const", k] = array.size * dtypes.of(array.dtype).size
        self.written: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.where = f"program @{program.name}"

    def fail(self, message: str) -> NoReturn:
        raise InternalError(f"{self.where}: {message}")

    def run(self) -> None:
        for (side, _), slot in self.program.resident.items():
            if side == "input":
                self.write(slot)
        for number, step in enumerate(self.program.steps):
            loc = f" ({', '.join(step.loc)})" if step.loc else ""
            self.where = f"program @{self.program.name}: step {number}, @{step.kernel}{loc}"
            self.step(step)
        self.where = f"program @{self.program.name}"
        for k, (name, type) in enumerate(self.program.outputs):
            usual = Slot("output", k, 0, type.dtype, type.nbytes // type.dtype.size)
            place = self.program.resident.get(("output", k), usual)
            if not self.covers(place.space, place.index, *_range(place)):
                self.fail(f"output {name} is not written in full")

    def step(self, step: Step) -> None:
        kernel = self.program.kernels.get(step.kernel)
        if kernel is None:
            self.fail("no such kernel")
        if len(step.slots) != len(kernel.params):
            self.fail(f"{len(step.slots)} slots for {len(kernel.params)} parameters")
        kernel = self.specialised(kernel, step.sizes)
        pairs = list(zip(kernel.params, step.slots))
        for buffer, slot in pairs:
            self.slot(buffer, slot)
        for position, pair in enumerate(pairs):
            for other in pairs[position + 1 :]:
                if "out" in (pair[0].access, other[0].access):
                    self.overlap(kernel, pair, other)
        for buffer, slot in pairs:
            if buffer.access == "in" and slot.space in ("arena", "output"):
                if not self.covers(slot.space, slot.index, *_range(slot)):
                    self.fail(f"{buffer.name} reads {slot_text(slot)} before it is written")
        for buffer, slot in pairs:
            if buffer.access != "in":
                self.write(slot)

    def specialised(self, kernel: Kernel, values: tuple[int, ...]) -> Kernel:
        """The kernel as it is called, verified."""
        if len(values) != len(kernel.sizes):
            self.fail(f"{len(values)} values for {len(kernel.sizes)} sizes")
        for size, value in zip(kernel.sizes, values):
            if value < size.lo or size.hi is not None and value > size.hi:
                self.fail(f"size {size.name} is {value}, not in {size.lo}..{size.hi}")
        if values:
            kernel = with_sizes(kernel, values)
            verify_kernel(kernel)
        return kernel

    def slot(self, buffer: Buffer, slot: Slot) -> None:
        size = self.sizes.get((slot.space, slot.index))
        text = f"{buffer.name} at {slot_text(slot)}"
        if size is None:
            self.fail(f"{text}: there is no {slot.space} {slot.index}")
        if slot.dtype is not buffer.dtype:
            self.fail(f"{text}: the kernel takes {buffer.dtype}")
        elements = math.prod(buffer.shape)  # type: ignore[arg-type]
        if slot.elements < elements:
            self.fail(f"{text}: the kernel takes {elements} elements")
        start, end = _range(slot)
        if start < 0 or end > size:
            self.fail(f"{text}: bytes {start}..{end} do not lie in 0..{size}")
        if start % slot.dtype.size:
            self.fail(f"{text}: not a multiple of {slot.dtype.size} bytes")
        if buffer.access != "in" and slot.space in ("input", "const"):
            self.fail(f"{text}: written, but read-only")

    def overlap(self, kernel: Kernel, one: tuple[Buffer, Slot], two: tuple[Buffer, Slot]) -> None:
        """Two operands, one of them an output, may share memory from the same start on, or if the
        output trails behind what is read of the input."""
        (buffer, slot), (other_buffer, other) = one, two
        if (slot.space, slot.index) != (other.space, other.index):
            return
        (a, b), (c, d) = _range(slot), _range(other)
        if max(a, c) >= min(b, d) or a == c and buffer.access != other_buffer.access:
            return
        text = f"{buffer.name} and {other_buffer.name} overlap in {slot_text(slot)}"
        if {buffer.access, other_buffer.access} != {"in", "out"}:
            self.fail(text)
        if buffer.access == "out":
            (buffer, a), (other_buffer, c) = (other_buffer, c), (buffer, a)
        reason = overwrites(kernel, other_buffer, buffer, c - a)
        if reason:
            self.fail(f"{text}: {reason}")

    def covers(self, space: str, index: int, start: int, end: int) -> bool:
        ranges = self.written.get((space, index), [])
        return start == end or any(a <= start and end <= b for a, b in ranges)

    def write(self, slot: Slot) -> None:
        start, end = _range(slot)
        kept = []
        for a, b in self.written.get((slot.space, slot.index), []):
            if b < start or end < a:
                kept.append((a, b))
            else:
                start, end = min(a, start), max(b, end)
        self.written[slot.space, slot.index] = [*kept, (start, end)]


def _range(slot: Slot) -> tuple[int, int]:
    return slot.offset, slot.offset + slot.elements * slot.dtype.size
