"""Prints kernels as C functions.

Buffers are pointers to their elements in row-major order, loops of every kind are for-loops (a
`vector` loop means the same as a serial one). An expression is printed inline, except that what a
statement uses twice is first assigned to a temporary; the temporaries of a select's branch live
inside that branch, so that nothing is evaluated that the select does not take. Names keep their
spelling unless C or another name forbids it. The text depends on nothing but the kernel.

The sizes of a kernel are the elements of an array, its last parameter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.names import comment, identifier
from graphc.backends.cfamily.spell import Speller, Text, register_type, storage_type
from graphc.errors import InternalError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import DType
from graphc.ir.expr import Call, Const, Expr, Index, Load, Ref, Sym, count_uses, loads, walk
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
    walk_stmts,
)
from graphc.ir.simplify import simplify

SIZES = "sizes of the call"  # the parameter; no buffer and no size is called so
WIDTH = 100  # function headers longer than this are broken into lines

_TERMS = ("add", "sub", "mul")  # whose operands are offsets where the result is one
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Dialect:
    """What differs between the languages of the family.

    `function` opens a function, `index` is the type of loop variables, `restrict` qualifies
    pointers that do not alias (empty where buffers may be shared in place).
    """

    function: str = "static void"
    index: DType = dtypes.i64
    restrict: str = ""


C99 = Dialect()


def used_sizes(kernel: Kernel) -> tuple[Sym, ...]:
    """The sizes that a call passes on: some occur in shapes of parameters only."""
    if not kernel.sizes:
        return ()
    nodes = {n for s in walk_stmts(kernel.body) for e in exprs(s) for n in walk(e)}
    return tuple(size for size in kernel.sizes if size in nodes)


def size_values(kernel: Kernel, values: Sequence[int]) -> tuple[int, ...]:
    """Of the values that a call gives for all sizes, those that are passed on."""
    given = dict(zip(kernel.sizes, values))
    return tuple(given[size] for size in used_sizes(kernel))


class Unit:
    """A C file in the making: functions, and the helpers they turned out to need."""

    def __init__(self, dialect: Dialect = C99):
        self.dialect = dialect
        self.speller = Speller(dialect.index)
        self.functions: list[str] = []
        self.names: dict[str, str] = {}

    def kernel(self, kernel: Kernel) -> str:
        """Adds a kernel; returns the name of its C function."""
        name = identifier(kernel.name, self.names.values())
        self.names[kernel.name] = name
        self.functions.append(KernelPrinter(kernel, name, self.speller, self.dialect).text())
        return name

    def text(self) -> str:
        """Helpers, then functions."""
        return helper_text(self.speller.needed) + "\n".join(self.functions)


def print_c(kernel: Kernel, dialect: Dialect = C99) -> str:
    """One kernel and the helpers it needs, as C."""
    unit = Unit(dialect)
    unit.kernel(kernel)
    return unit.text()


class KernelPrinter:
    """Prints one kernel."""

    def __init__(self, kernel: Kernel, name: str, speller: Speller, dialect: Dialect):
        self.kernel, self.function, self.spell, self.dialect = kernel, name, speller, dialect
        self.buffers = {b.name: b for b in kernel.params}
        self.names: dict[str, str] = {}
        self.used_sizes = used_sizes(kernel)
        for bound in _bound_names(kernel):
            self.name(bound)
        self.lines: list[str] = []
        self.depth = 0
        self.memo: list[dict[Expr, Text]] = []
        self.uses: Counter[Expr] = Counter()
        self.count = 0

    def text(self) -> str:
        """The function, after the kernel's comment."""
        if self.kernel.comment:
            self.lines += comment(self.kernel.comment).split("\n")
        self._header()
        self.lines.append("{")
        self._sizes()
        start = len(self.lines)
        self._body(self.kernel.body)
        used = set(_WORD.findall("\n".join(self.lines[start:])))
        params = [self.name(b.name) for b in self.kernel.params]
        self.lines[start:start] = [f"    (void){p};" for p in params if p not in used]
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def fail(self, message: str) -> UnsupportedError:
        return UnsupportedError(f"kernel @{self.kernel.name}: {message}")

    # ------------------------------------------------------------ names and lines

    def name(self, name: str) -> str:
        """The C identifier of a name of the kernel."""
        if name not in self.names:
            taken = {*self.names.values(), self.function}
            self.names[name] = identifier(name, taken)
        return self.names[name]

    def temporary(self) -> str:
        """A fresh name for an intermediate value."""
        self.count += 1
        while f"tmp{self.count}" in self.names:
            self.count += 1
        return self.name(f"tmp{self.count}")

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.line(header + " {")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def _header(self) -> None:
        params = [self._param(b) for b in self.kernel.params] + self._size_params()
        params = params or ["void"]
        start = f"{self.dialect.function} {self.function}("
        line = f"{start}{', '.join(params)})"
        if len(line) <= WIDTH:
            self.lines.append(line)
            return
        self.lines.append(start)
        self.lines += [f"    {p}," for p in params[:-1]] + [f"    {params[-1]})"]

    def _size_params(self) -> list[str]:
        """The parameters that hold sizes."""
        if not self.used_sizes:
            return []
        return [f"const {register_type(self.dialect.index)} *{self.name(SIZES)}"]

    def _sizes(self) -> None:
        """Names the sizes that the body uses."""
        for position, size in enumerate(self.used_sizes):
            kind, name = register_type(self.index_type(size)), self.name(size.name)
            self.lines.append(f"    const {kind} {name} = {self.name(SIZES)}[{position}];")

    def _param(self, buffer: Buffer) -> str:
        const = "const " if buffer.access == "in" else ""
        restrict = f"{self.dialect.restrict} " if self.dialect.restrict else ""
        return f"{const}{storage_type(buffer.dtype)} *{restrict}{self.name(buffer.name)}"

    # ------------------------------------------------------------ statements

    def _body(self, body: Body) -> None:
        self.depth += 1
        position = 0
        while position < len(body):
            following = body[position + 1] if position + 1 < len(body) else None
            if self._initialised(body[position], following):
                position += 2
            else:
                self._statement(body[position])
                position += 1
        self.depth -= 1

    def _initialised(self, stmt: Stmt, following: Stmt | None) -> bool:
        """Prints a scalar and the store that follows it as one declaration, if they are that."""
        if not (isinstance(stmt, Alloc) and isinstance(following, Store)) or stmt.buffer.shape:
            return False
        buffer = stmt.buffer
        if following.buffer != buffer.name or buffer.name in {
            x.source for x in loads(following.value)
        }:
            return False
        self.buffers[buffer.name] = buffer
        with self.scope(following.value):
            value = self.stored(following.value, buffer.dtype)
            self.line(f"{storage_type(buffer.dtype)} {self.name(buffer.name)} = {value};")
        return True

    def _statement(self, stmt: Stmt) -> None:
        rule = _STATEMENTS.get(type(stmt))
        if rule is None:
            raise InternalError(f"kernel @{self.kernel.name}: cannot print {stmt!r}")
        getattr(self, rule)(stmt)

    def _loop(self, stmt: For) -> None:
        if stmt.kind == "thread" and any(isinstance(s, Barrier) for s in walk_stmts(stmt.body)):
            raise self.fail("threads with barriers have no meaning in plain C")
        extent = stmt.extent
        var = self.name(stmt.var.name)
        start, limit = f"{register_type(self.index_type(stmt.var))} {var} = 0", str(extent)
        if isinstance(extent, Expr):
            with self.scope(extent):
                limit = str(self.expr(extent))
            if not isinstance(extent, (Index, Ref, Sym)):  # it is evaluated once, before the loop
                end = self.name(f"{stmt.var.name}_end")
                start, limit = f"{start}, {end} = {limit}", end
        self.line(f"for ({start}; {var} < {limit}; ++{var}) {{")
        self._body(stmt.body)
        self.line("}")

    def index_type(self, var: Expr) -> DType:
        """The type of a loop variable or size."""
        return self.dialect.index if self.spell.is_plain(var) else dtypes.i64

    def _let(self, stmt: Let) -> None:
        with self.scope(stmt.value):
            value = self.expr(stmt.value)
            kind = register_type(self._type_of(stmt.ref))
            self.line(f"const {kind} {self.name(stmt.ref.name)} = {value};")

    def _store(self, stmt: Store) -> None:
        buffer = self.buffer(stmt.buffer)
        index = self.flat(buffer, stmt.index)
        with self.scope(stmt.value, *index):
            value = self.stored(stmt.value, buffer.dtype)
            self.line(f"{self.place(buffer, index)} = {value};")

    def stored(self, value: Expr, dtype: DType) -> str:
        """What to assign to an element of a type; an element of the same type is moved as it is."""
        if isinstance(value, Load) and value.dtype is dtype and dtype.bits >= 8:
            buffer = self.buffer(value.source)
            return self.place(buffer, self.flat(buffer, value.index))
        return self.spell.store(self.expr(value), dtype)

    def _alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        self.buffers[buffer.name] = buffer
        elements = 1
        for extent in buffer.shape:
            if not isinstance(extent, int):
                raise self.fail(f"local array {buffer.name} has no constant size")
            elements *= extent
        size = f"[{max(elements, 1)}]" if buffer.shape else ""
        self.line(f"{storage_type(buffer.dtype)} {self.name(buffer.name)}{size};")

    def _if(self, stmt: If) -> None:
        with self.scope(stmt.condition):
            self.line(f"if ({self.expr(stmt.condition)}) {{")
        self._body(stmt.then)
        if stmt.orelse:
            self.line("} else {")
            self._body(stmt.orelse)
        self.line("}")

    def _while(self, stmt: While) -> None:
        start = len(self.lines)
        with self.scope(stmt.condition):
            condition = self.expr(stmt.condition)
        if len(self.lines) == start:
            self.line(f"while ({condition}) {{")
        else:  # the condition needs temporaries: they are computed again each time
            del self.lines[start:]
            self.line("for (;;) {")
            self.depth += 1
            with self.scope(stmt.condition):
                condition = self.expr(stmt.condition)
                self.line(f"if (!({condition})) {{")
                self.line("    break;")
                self.line("}")
            self.depth -= 1
        self._body(stmt.body)
        self.line("}")

    def _barrier(self, stmt: Barrier) -> None:
        """Outside of thread loops there is one thread, and nothing to wait for."""

    def _intrin(self, stmt: Intrin) -> None:
        raise self.fail(f"instruction {stmt.name} has no meaning in plain C")

    # ------------------------------------------------------------ memory

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name that is in scope."""
        if name not in self.buffers:
            raise InternalError(f"kernel @{self.kernel.name}: unknown buffer {name}")
        return self.buffers[name]

    def flat(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The row-major offset of an index (none for a scalar)."""
        if len(index) != buffer.rank:
            raise InternalError(f"kernel @{self.kernel.name}: {buffer.name}{list(index)}")
        if buffer.rank > 1:
            return (flatten_index(index, buffer.shape),)
        return tuple(simplify(x) for x in index)

    def place(self, buffer: Buffer, index: tuple[Expr, ...]) -> str:
        """The element at an offset (see `flat`)."""
        name = self.name(buffer.name)
        if index:
            with self.offsets(True):
                return f"{name}[{self.expr(index[0])}]"
        return name if buffer.access == "local" else f"{name}[0]"

    @contextmanager
    def offsets(self, inside: bool) -> Iterator[None]:
        """Whether what is spelled within is (a term of) an offset into a buffer."""
        outer, self.spell.in_index = self.spell.in_index, inside
        yield
        self.spell.in_index = outer

    # ------------------------------------------------------------ expressions

    @contextmanager
    def scope(self, *roots: Expr) -> Iterator[None]:
        """The scope of one statement: what its expressions share is computed once."""
        self.memo = [{}]
        self.uses = count_uses(roots, self._operands)
        yield

    def _operands(self, node: Expr) -> Sequence[Expr]:
        if isinstance(node, Load):
            return self.flat(self.buffer(node.source), node.index)
        return node.children

    def expr(self, node: Expr) -> Text:
        """The text of an expression; temporaries it needs are printed before."""
        for scope in self.memo:
            if node in scope:
                return scope[node]
        text = self._fresh(node)
        if self.uses[node] > 1 and not self._is_cheap(node):
            name = self.temporary()
            self.line(f"const {register_type(self._type_of(node))} {name} = {text};")
            text = self.memo[-1][node] = Text(name)
        return text

    def _is_cheap(self, node: Expr) -> bool:
        """Whether naming a value gains nothing: leaves, scalars, and short index arithmetic."""
        if isinstance(node, Load):
            return not node.index
        if isinstance(node, Call) and self.spell.is_plain(node):
            return all(isinstance(a, (Const, Index, Ref, Sym)) for a in node.args)
        return isinstance(node, (Const, Index, Ref, Sym))

    def _type_of(self, node: Expr) -> DType:
        return self.dialect.index if self.spell.is_plain(node) else node.dtype

    def _fresh(self, node: Expr) -> Text:
        if isinstance(node, Const):
            return self.spell.constant(node.value, node.dtype)
        if isinstance(node, (Index, Ref, Sym)):
            return Text(self.name(node.name))
        if isinstance(node, Load):
            buffer = self.buffer(node.source)
            return self.spell.load(self.place(buffer, self.flat(buffer, node.index)), node.dtype)
        if isinstance(node, Call) and node.op.name == "select":
            return self._select(node)
        if isinstance(node, Call):
            with self.offsets(self.spell.in_index and node.op.name in _TERMS):
                args = [self.expr(a) for a in node.args]
            return self.spell.spell(node, args)
        raise self.fail(f"`{node}` has no meaning in C")

    def _select(self, node: Call) -> Text:
        with self.offsets(False):
            condition = self.expr(node.args[0])
        branches = [self._branch(branch) for branch in node.args[1:]]
        if not any(lines for _, lines in branches):
            return self.spell.spell(node, [condition, *(text for text, _ in branches)])
        name = self.temporary()
        self.line(f"{register_type(self._type_of(node))} {name};")
        self.line(f"if ({condition}) {{")
        for number, (text, lines) in enumerate(branches):
            self.lines += lines
            self.line(f"    {name} = {text};")
            self.line("}" if number else "} else {")
        return Text(name)

    def _branch(self, node: Expr) -> tuple[Text, list[str]]:
        """The text of a branch, and the lines of its temporaries, one level deeper."""
        outer, self.lines = self.lines, []
        self.memo.append({})
        self.depth += 1
        text = self.expr(node)
        self.depth -= 1
        self.memo.pop()
        lines, self.lines = self.lines, outer
        return text, lines


def _bound_names(kernel: Kernel) -> Iterator[str]:
    """Every name the kernel binds, in order."""
    yield from (b.name for b in kernel.params)
    yield from (size.name for size in kernel.sizes)
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, For):
            yield stmt.var.name
            yield f"{stmt.var.name}_end"
        elif isinstance(stmt, Let):
            yield stmt.ref.name
        elif isinstance(stmt, Alloc):
            yield stmt.buffer.name


_STATEMENTS: dict[type[Stmt], str] = {
    For: "_loop",
    Let: "_let",
    Store: "_store",
    Alloc: "_alloc",
    If: "_if",
    While: "_while",
    Barrier: "_barrier",
    Intrin: "_intrin",
}  # names of methods, so that printers of other languages can override them

__all__ = ["C99", "Dialect", "KernelPrinter", "Unit", "print_c"]
