"""Kernels to LLVM IR text: one internal function per phase of a kernel.

A phase is a top-level parallel loop, run over the range [begin, end) it is given, or the other
statements between such loops. A kernel that names a value or array at top level is one phase.
Buffers arrive as an array of pointers; the body gets those it uses as parameters, which are noalias
unless one of several outputs may lie over them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import field
from itertools import groupby

from graphc.backends.llvm_cpu import spell
from graphc.backends.llvm_cpu.emit_bits import emit_lowest, emit_mask
from graphc.backends.llvm_cpu.emit_dots import emit_dot2_wide, emit_dot4, emit_dot4_codes
from graphc.backends.llvm_cpu.emit_expr import ExprEmitter, Known, Storage
from graphc.backends.llvm_cpu.emit_prefetch import emit_prefetch
from graphc.backends.llvm_cpu.emit_transpose import emit_transpose
from graphc.backends.llvm_cpu.registers import Carried, Registers, StaysInMemory, stored_in
from graphc.backends.llvm_cpu.spell import Typed
from graphc.errors import InternalError
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    as_expr,
    called,
    free_indices,
    symbols,
    walk,
)
from graphc.ir.extents import as_dim, is_of_sizes
from graphc.ir.instructions import (
    DOT2_WIDE,
    DOT4,
    DOT4_CODES,
    LOWEST,
    MASK,
    PREFETCH,
    TRANSPOSE,
)
from graphc.ir.kernel import (
    Alloc,
    Body,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
    bodies,
    exprs,
    map_stmt,
    substitute_body,
)
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.records import dataclass

DIVISIONS = {"floordiv", "mod"}
OPEN_EXTENT = 16  # iterations that a loop without a known end is taken to make


@dataclass(frozen=True)
class Phase:
    """A function `name(ptr args, i64 begin, i64 end)`; extent 1 and not parallel: call (0, 1).

    `work` estimates the scalar or vector operations of the whole phase (see `operations`). Both are
    expressions over the sizes of the kernel where they depend on these."""

    name: str
    extent: Dim
    parallel: bool
    work: Dim = 0


@dataclass
class Declarations:
    """Declarations of intrinsics and C functions that a module needs, each once; `features` are
    those of the CPU, which say what intrinsics there are."""

    features: frozenset[str] = frozenset()
    lines: dict[str, None] = field(default_factory=dict)

    def add(self, text: str) -> None:
        self.lines[text] = None


def emit_kernel(
    kernel: Kernel, declarations: Declarations, shared: Collection[int] = ()
) -> tuple[list[Phase], str]:
    """The phases of a kernel in order, and the LLVM IR of their functions. With several outputs,
    `shared` numbers the parameters that may lie in the memory of others: what one output has
    overwritten must not be read again for the next."""
    phases, texts = [], []
    for number, (parallel, body) in enumerate(_phases(kernel)):
        name = f"{spell.global_name(kernel.name)}.{number}"
        extent: Dim = 1
        if parallel:
            (loop,) = body
            assert isinstance(loop, For)
            extent = loop.extent
        texts.append(_Function(kernel, name, declarations, shared).text(body, parallel))
        phases.append(Phase(name, extent, parallel, operations(body)))
    return phases, "\n".join(texts)


def operations(body: Body) -> Dim:
    """About how many operations a body executes; one on a whole vector counts as one."""
    total: Dim = 0
    for stmt in body:
        inner: Dim = sum(map(operations, bodies(stmt)))
        if isinstance(stmt, For) and stmt.kind != "vector":
            inner = as_dim(inner * _trips(stmt.extent))
        elif isinstance(stmt, While):
            inner *= OPEN_EXTENT
        total += inner + _evaluated(stmt)
    return total


def _evaluated(stmt: Stmt) -> int:
    """The distinct operations and loads of the expressions that a statement holds."""
    stack = [node for node in exprs(stmt) if isinstance(node, (Call, Load))]
    seen = set(stack)
    while stack:
        for node in stack.pop().children:
            if node not in seen and isinstance(node, (Call, Load)):
                seen.add(node)
                stack.append(node)
    return len(seen)


def _trips(extent: Dim) -> Dim:
    """The iterations of a loop as far as sizes tell."""
    return extent if is_of_sizes(extent) else OPEN_EXTENT


def _phases(kernel: Kernel) -> list[tuple[bool, Body]]:
    if any(isinstance(s, (Let, Alloc)) for s in kernel.body):
        return [(False, kernel.body)]
    out: list[tuple[bool, Body]] = []
    for parallel, group in groupby(kernel.body, _is_parallel):
        if parallel:
            out += [(True, (stmt,)) for stmt in group]
        else:
            out.append((False, tuple(group)))
    return out


def _is_parallel(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind == "parallel"


def _is_division(node: Expr) -> bool:
    return isinstance(node, Call) and node.op.name in DIVISIONS


@dataclass
class _Mark:
    """What a function was, but for what its expressions know, before a local array."""

    at: int  # the statement of its body that declares the array
    lines: int
    allocas: int
    count: int
    block: str
    known: Known


class _Function:
    """Emits the body of one phase. Of local arrays, those named stay `in_memory`: when one turns
    out to, what was emitted since it was declared is emitted again."""

    def __init__(
        self, kernel: Kernel, name: str, declarations: Declarations, shared: Collection[int]
    ):
        self.kernel, self.name, self.shared = kernel, name, shared
        self.in_memory: set[str] = set()
        self.block = "entry"
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.count = 0
        storage = {
            b.name: Storage(f"%b.{n}", b.dtype, b.shape[0] if b.shape else 1)
            for n, b in enumerate(kernel.params)
        }
        self.features = declarations.features
        self.divisions: dict[int, tuple[Stmt, tuple[Expr, ...]]] = {}  # by identity of statements
        self.expr = ExprEmitter(
            self.line, self.fresh, declarations.add, storage, features=self.features,
            is_open=bool(kernel.sizes),
        )  # fmt: skip
        self.expr.names.update((s, Typed(f"%s.{n}", i64)) for n, s in enumerate(kernel.sizes))

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def fresh(self) -> str:
        self.count += 1
        return f"%t{self.count}"

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def text(self, body: Body, parallel: bool) -> str:
        if parallel:
            (loop,) = body
            assert isinstance(loop, For)
            self.counted_loop(loop.var, "%begin", "%end", loop.body, guard=True)
        else:
            self.statements(body)
        used = self.used()
        params = [f"ptr %b.{n}" if n in self.shared else f"ptr noalias %b.{n}" for n in used]
        params += [f"i64 %s.{n}" for n in range(len(self.kernel.sizes))]
        inner = ", ".join([*params, "i64 %begin", "i64 %end"])
        return "\n".join(
            [
                f"define internal void {self.name}.body({inner}) #0 {{",
                "entry:",
                *self.allocas,
                *self.lines,
                "  ret void",
                "}",
                *self._wrapper(used),
            ]
        )

    def used(self) -> list[int]:
        """The numbers of the buffers that a phase reads or writes."""
        numbers = set(re.findall(r"%b\.(\d+)", "\n".join(self.lines)))
        return sorted(map(int, numbers))

    def _wrapper(self, used: list[int]) -> list[str]:
        lines = [f"define internal void {self.name}(ptr %args, i64 %begin, i64 %end) #0 {{"]
        for n in used:
            lines.append(f"  %a{n} = getelementptr ptr, ptr %args, i64 {n}")
            lines.append(f"  %p{n} = load ptr, ptr %a{n}")
        passed = ", ".join(f"ptr %p{n}" for n in used)
        passed += self._wrap_sizes(lines, ", " if passed else "")
        comma = ", " if passed else ""
        lines.append(f"  call void {self.name}.body({passed}{comma}i64 %begin, i64 %end)")
        return [*lines, "  ret void", "}"]

    def _wrap_sizes(self, lines: list[str], comma: str) -> str:
        """Loads the sizes, to which the cell after those of the buffers points; as arguments."""
        sizes = self.kernel.sizes
        if not sizes:
            return ""
        lines.append(f"  %as = getelementptr ptr, ptr %args, i64 {len(self.kernel.params)}")
        lines.append("  %sizes = load ptr, ptr %as")
        for n in range(len(sizes)):
            lines.append(f"  %z{n} = getelementptr i64, ptr %sizes, i64 {n}")
            lines.append(f"  %q{n} = load i64, ptr %z{n}")
        return comma + ", ".join(f"i64 %q{n}" for n in range(len(sizes)))

    # ---------------------------------------------------------------- statements

    def statements(self, body: Body) -> None:
        if not self.kernel.sizes and not any(isinstance(s, (Let, Alloc)) for s in body):
            self.in_order(body)
            return
        names, storage, kept = (
            dict(self.expr.names), dict(self.expr.storage), dict(self.expr.kept)
        )  # fmt: skip
        if self.kernel.sizes:
            self.keep_divisions(body)
        self.in_order(body)
        self.expr.names, self.expr.storage, self.expr.kept = names, storage, kept
        self.expr.forget()

    def in_order(self, body: Body) -> None:
        marks: dict[str, _Mark] = {}
        at = 0
        while at < len(body):
            stmt = body[at]
            self.expr.next_statement()
            if isinstance(stmt, Alloc) and stmt.scope == "reg":
                marks[stmt.buffer.name] = self.marked(at)
            try:
                _EMIT[type(stmt)](self, stmt)
                at += 1
            except StaysInMemory as array:
                if array.name not in marks:
                    raise
                self.in_memory.add(array.name)
                at = self.back_to(marks[array.name])

    def marked(self, at: int) -> _Mark:
        """What `back_to` takes to emit the rest of a body anew, from statement `at` on."""
        return _Mark(
            at, len(self.lines), len(self.allocas), self.count, self.block, self.expr.known()
        )

    def back_to(self, mark: _Mark) -> int:
        """Takes back all that was emitted after a mark, and tells where that was."""
        del self.lines[mark.lines :], self.allocas[mark.allocas :]
        self.count, self.block = mark.count, mark.block
        self.expr.restore(mark.known)
        return mark.at

    def keep_divisions(self, body: Body) -> None:
        """Divides sizes, and loops by sizes, before inner loops in which that stays the same."""
        self.expr.forget()
        self.expr.next_statement()
        kept = self.expr.kept
        for node in dict.fromkeys(n for s in body for n in self.divisions_in(s)):
            if node not in kept and all(map(self.is_fixed, free_indices(node))):
                kept[node] = self.expr.value(node)

    def divisions_in(self, stmt: Stmt) -> tuple[Expr, ...]:
        """The divisions of or by sizes, and of loops alone, in a statement and in those inside.
        Every loop around it asks, so that they are kept, with the statement, whose identity is the
        key."""
        known = self.divisions.get(id(stmt))
        if known is None:
            open_ = [e for e in exprs(stmt) if symbols(e) and not DIVISIONS.isdisjoint(called(e))]
            own = [n for e in open_ for n in walk(e) if _is_division(n) and symbols(n)]
            own = [n for n in own if not any(isinstance(x, (Load, Ref)) for x in walk(n))]
            inner = [n for body in bodies(stmt) for s in body for n in self.divisions_in(s)]
            known = self.divisions[id(stmt)] = stmt, tuple(dict.fromkeys(own + inner))
        return known[1]

    def is_fixed(self, index: Index) -> bool:
        """Whether an index is the same in the whole of the body at hand."""
        return index in self.expr.names and index is not self.expr.vector

    def let(self, stmt: Let) -> None:
        value = self.expr.value(stmt.value)
        if self.kernel.sizes and value.dtype is i64 and value.lanes == 1 and value.text[0] == "%":
            # Where a row begins: LLVM would compute it again in each trip of the loops inside
            value = self.expr.op(f'call i64 asm "", "=r,0"(i64 {value.text})', i64, 1)
        self.expr.names[stmt.ref] = value

    def store(self, stmt: Store) -> None:
        (offset,) = stmt.index or (Const(0, i64),)
        self.expr.store(self.expr.storage[stmt.buffer], offset, stmt.value)

    def intrinsic(self, stmt: Intrin) -> None:
        if stmt.name == DOT2_WIDE:
            emit_dot2_wide(self.expr, stmt, self.features)
        elif stmt.name == DOT4:
            emit_dot4(self.expr, stmt, self.features)
        elif stmt.name == DOT4_CODES:
            emit_dot4_codes(self.expr, stmt, self.features)
        elif stmt.name == TRANSPOSE:
            emit_transpose(self.expr, stmt)
        elif stmt.name == MASK:
            emit_mask(self.expr, stmt)
        elif stmt.name == LOWEST:
            emit_lowest(self.expr, stmt)
        elif stmt.name == PREFETCH:
            emit_prefetch(self.expr, stmt)
        else:
            raise InternalError(f"CPUs have no instruction {stmt.name}")

    def alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        elements = 1
        for extent in buffer.shape:
            elements *= int(extent)
        lanes = self.expr.lanes if self.expr.vector is not None else 1
        element = spell.vector_of(spell.storage_type(buffer.dtype), lanes)
        in_registers = stmt.scope == "reg"
        name, registers = f"%m{len(self.allocas)}", None
        if in_registers and buffer.name not in self.in_memory:
            registers = Registers(buffer.name)
        else:
            self.allocas.append(f"  {name} = alloca [{max(elements, 1)} x {element}], align 64")
        self.expr.declare_array(
            buffer.name,
            Storage(name, buffer.dtype, elements, True, lanes, in_registers, registers),
        )

    def changed(self, *bodies: Body) -> list[Registers]:
        """The arrays in registers that statements store into."""
        here = {n: s.registers for n, s in self.expr.storage.items() if s.registers is not None}
        return [here[name] for name in sorted(here.keys() & stored_in(bodies))] if here else []

    def keep_in_memory(self, *bodies: Body) -> None:
        """What a branch that may not be taken stores is no matter of registers."""
        for registers in self.changed(*bodies):
            raise StaysInMemory(registers.name)

    def loop(self, stmt: For) -> None:
        kinds = {"unroll": self.unrolled, "vector": self.vectorised}
        kinds.get(stmt.kind, self.serial)(stmt)

    def serial(self, stmt: For) -> None:
        extent = stmt.extent
        if isinstance(extent, int):
            if extent == 1:
                self.statements(_at(stmt, 0))
            elif extent > 1:
                self.counted_loop(stmt.var, "0", str(extent), stmt.body, guard=False)
            return
        end = self.expr.value(extent)
        self.counted_loop(stmt.var, "0", end.text, stmt.body, guard=True)

    def unrolled(self, stmt: For) -> None:
        assert isinstance(stmt.extent, int)
        for n in range(stmt.extent):
            self.statements(_at(stmt, n))

    def vectorised(self, stmt: For) -> None:
        if self.expr.vector is not None:
            raise InternalError(f"nested vector loop over {stmt.var}")
        if isinstance(stmt.extent, Expr):
            self.open_vector(stmt, stmt.extent)
            return
        if stmt.extent == 1:
            self.statements(_at(stmt, 0))
            return
        self.expr.vector, self.expr.lanes = stmt.var, stmt.extent
        self.statements(stmt.body)
        self.expr.vector, self.expr.lanes = None, 1

    def open_vector(self, stmt: For, extent: Expr) -> None:
        """Lanes 0 .. extent-1 of a vector; nothing if there are none."""
        self.keep_in_memory(stmt.body)
        end = self.expr.value(extent)
        number = self.count = self.count + 1
        test, some, done = self.fresh(), f"some{number}", f"none{number}"
        self.line(f"{test} = icmp sgt i64 {end.text}, 0")
        self.line(f"br i1 {test}, label %{some}, label %{done}")
        self.label(some)
        known = self.expr.enter_block()
        self.expr.enter_lanes(stmt.var, stmt.width, end)
        self.statements(stmt.body)
        self.expr.leave_lanes()
        self.line(f"br label %{done}")
        self.label(done)
        self.expr.leave_block(known)

    def counted_loop(self, var: Index, begin: str, end: str, body: Body, guard: bool) -> None:
        """A bottom-tested loop; `guard` tests once before it for an empty range."""
        number = self.count = self.count + 1
        head, latch, done = (f"{part}{number}" for part in ("loop", "next", "done"))
        before, came_from = f"pre{number}", self.block
        if guard:
            test = self.fresh()
            self.line(f"{test} = icmp slt i64 {begin}, {end}")
            self.line(f"br i1 {test}, label %{before}, label %{done}")
        else:
            self.line(f"br label %{before}")
        self.label(before)
        known = self.expr.enter_block()
        self.line(f"br label %{head}")
        self.label(head)
        index, following, test = f"%i{number}", f"%n{number}", f"%c{number}"
        self.line(f"{index} = phi i64 [ {begin}, %{before} ], [ {following}, %{latch} ]")
        carried = Carried(self.changed(body), self.fresh)
        place = len(self.lines)
        old = self.expr.names.get(var)
        self.expr.names[var] = Typed(index, i64)
        self.statements(body)
        if old is not None:
            self.expr.names[var] = old
        self.lines[place:place] = carried.at_head(before, latch)
        self.line(f"br label %{latch}")
        self.label(latch)
        self.line(f"{following} = add nuw nsw i64 {index}, 1")
        self.line(f"{test} = icmp slt i64 {following}, {end}")
        self.line(f"br i1 {test}, label %{head}, label %{done}")
        self.label(done)
        self.expr.leave_block(known)
        if guard:
            self.lines += carried.at_end(came_from, latch)

    def branch(self, stmt: If) -> None:
        self.keep_in_memory(stmt.then, stmt.orelse)
        condition = self.expr.value(stmt.condition)
        if condition.lanes > 1:
            raise InternalError("an If inside a vector loop must not depend on the lane")
        number = self.count = self.count + 1
        then, other, done = (f"{part}{number}" for part in ("then", "else", "join"))
        self.line(f"br i1 {condition.text}, label %{then}, label %{other}")
        for name, body in ((then, stmt.then), (other, stmt.orelse)):
            self.label(name)
            known = self.expr.enter_block()
            self.statements(body)
            self.line(f"br label %{done}")
            self.expr.leave_block(known)
        self.label(done)

    def repeat(self, stmt: While) -> None:
        self.keep_in_memory(stmt.body)
        number = self.count = self.count + 1
        head, inside, done = (f"{part}{number}" for part in ("while", "do", "end"))
        self.line(f"br label %{head}")
        self.label(head)
        known = self.expr.enter_block()
        self.expr.next_statement()
        condition = self.expr.value(stmt.condition)
        self.line(f"br i1 {condition.text}, label %{inside}, label %{done}")
        self.label(inside)
        self.statements(stmt.body)
        self.line(f"br label %{head}")
        self.label(done)
        self.expr.leave_block(known)


def _at(stmt: For, value: int) -> Body:
    """The body of a loop at one value of its index."""
    mapping: dict[Expr, Expr] = {stmt.var: as_expr(value, i64)}
    body = substitute_body(stmt.body, mapping)
    return tuple(_simplified(s) for s in body)


def _simplified(stmt: Stmt) -> Stmt:
    return map_stmt(stmt, simplify)


_EMIT: dict[type, Callable] = {
    Let: _Function.let,
    Store: _Function.store,
    Intrin: _Function.intrinsic,
    Alloc: _Function.alloc,
    For: _Function.loop,
    If: _Function.branch,
    While: _Function.repeat,
}
