"""The reference interpreter of kernel IR: each kernel becomes a Python function over flat lists.

Scalars are Python ints, floats and bools, rounded or wrapped to their dtype after each operation as
scalar/ops.py says; operations without a spelling here call that table. Every Load and Store whose
index is not provably in range is checked, and raises InternalError naming kernel, buffer and index.
A `select` evaluates only the branch it takes. Loops of every kind run in order; the threads of a
loop nest that holds barriers run in lockstep, as generators. Local arrays start poisoned (NaN, or a
pattern), so that reads of unwritten elements show.

An expression is printed inline, except that what it uses twice, or what cannot be inlined, is first
assigned to a temporary; the temporaries of a select's branch live inside that branch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from graphc.errors import InternalError, UnsupportedError
from graphc.ir import instructions
from graphc.ir import kernel as kir
from graphc.ir.dtypes import DType
from graphc.ir.expr import Call, Const, Expr, Index, Load, Ref, Sym, count_uses
from graphc.ir.graph import Op
from graphc.ir.imperative.lowering import corner, imperative_kernel, is_bounded, numel, true_shapes
from graphc.ir.kernel import Barrier, Body, Buffer, For, If, Kernel, Let, Store, While
from graphc.ir.scalar.python import HELPERS, literal, spell
from graphc.ir.simplify import bounds, simplify

INLINE = 160  # characters of an expression before it is given a temporary


def run_kernel(kernel: Kernel, arrays: Mapping[str, np.ndarray], sizes: Sequence[int] = ()) -> None:
    """Runs a kernel on one array per parameter, by name; `out` and `inout` arrays are written.

    Arrays have the dtype and shape of their Buffer; `sizes` are the values of the kernel's sizes.
    One array object given for two parameters is one storage. InternalError if an array is missing
    or an access is outside its buffer.
    """
    kernel = kir.with_sizes(kernel, sizes)
    lists: dict[int, list] = {}
    storage = []
    for buffer in kernel.params:
        array = _checked(kernel, buffer, arrays)
        storage.append(lists.setdefault(id(array), _to_list(array, buffer.dtype)))
    try:
        compile_kernel(kernel)(*storage)
    except NameError as error:
        raise InternalError(f"kernel {kernel.name}: {error} (used outside its scope)") from error
    for buffer, values in zip(kernel.params, storage):
        if buffer.access != "in":
            array = arrays[buffer.name]
            array[...] = _from_list(values, buffer.dtype).reshape(array.shape)


def run_imperative(op: Op, arguments: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of a typed imperative op on actual operands; bounded ones at their true size."""
    kernel = imperative_kernel(op)
    arrays: dict[str, np.ndarray] = {}
    for buffer in kernel.params:
        if buffer.access == "in":
            argument = np.asarray(arguments[int(buffer.name[2:])])
            arrays[buffer.name] = argument.astype(buffer.dtype.np, copy=False)
        else:
            arrays[buffer.name] = _poisoned(buffer)
    run_kernel(kernel, arrays)
    outputs = [arrays[f"out{n}"] for n in range(len(op.outputs))]
    if is_bounded(op):
        shapes = true_shapes(op, arrays["sizes"])
        outputs = [corner(array, shape) for array, shape in zip(outputs, shapes)]
    return outputs


# ---------------------------------------------------------------- storage


def _checked(kernel: Kernel, buffer: Buffer, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    array = arrays.get(buffer.name)
    if array is None:
        raise InternalError(f"kernel {kernel.name}: no array for buffer {buffer.name}")
    if tuple(array.shape) != tuple(buffer.shape) or array.dtype != buffer.dtype.np:
        raise InternalError(
            f"kernel {kernel.name}: buffer {buffer.name} is {buffer.dtype}{list(buffer.shape)}, "
            f"found {array.dtype}{list(array.shape)}"
        )
    return array


def _to_list(array: np.ndarray, dtype: DType) -> list:
    """The elements in row-major order as Python scalars."""
    if dtype.is_integer and dtype.bits < 8:
        array = array.astype(np.int32)
    elif dtype.is_float and dtype.bits < 32:
        array = array.astype(np.float32)
    return array.reshape(-1).tolist()


def _from_list(values: list, dtype: DType) -> np.ndarray:
    if dtype.is_float and dtype.bits < 32:
        return np.array(values, np.float64).astype(np.float32).astype(dtype.np)
    if dtype.is_integer and dtype.bits < 8:
        return np.array(values, np.int32).astype(dtype.np)
    return np.array(values, dtype.np)


def _poison(dtype: DType) -> Any:
    """What uninitialised storage holds: NaN, a pattern, or a string that says so."""
    if dtype.kind == "string":
        return "uninitialised"
    if dtype.is_integer:
        pattern = 0xA5A5A5A5A5A5A5A5 >> (64 - dtype.bits)
        return pattern - (1 << dtype.bits) if dtype.kind == "int" else pattern
    return True if dtype.kind == "bool" else float("nan")


def _poisoned(buffer: Buffer) -> np.ndarray:
    values = [_poison(buffer.dtype)] * numel(buffer.shape)
    return _from_list(values, buffer.dtype).reshape(tuple(buffer.shape))


# ---------------------------------------------------------------- compilation


@lru_cache(maxsize=512)
def compile_kernel(kernel: Kernel) -> Callable[..., None]:
    """The Python function of a kernel; it takes one flat list per parameter."""
    writer = _Writer(kernel)
    source = writer.function()
    namespace: dict[str, Any] = dict(HELPERS, **writer.constants)
    exec(compile(source, f"<kernel {kernel.name}>", "exec"), namespace)
    return namespace["kernel"]


def python_source(kernel: Kernel) -> str:
    """The Python text that `compile_kernel` runs, for debugging."""
    return _Writer(kernel).function()


class _Writer:
    """Prints one kernel as Python."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.constants: dict[str, object] = {"_outside": self._outside, "_lockstep": _lockstep}
        self.lines: list[str] = []
        self.depth = 1
        self.buffers = {b.name: b for b in kernel.params}
        self.scalars: set[str] = set()  # rank-0 locals kept in Python variables
        self.names: dict[tuple[str, str], str] = {}
        self.memo: list[dict[Expr, str]] = []
        self.shared: Counter[Expr] = Counter()
        self.count = 0
        self.lockstep = any(isinstance(s, Barrier) for s in kir.walk_stmts(kernel.body))
        self.in_threads = False

    # -------------------------------------------------- names and lines

    def _outside(self, buffer: str, index: tuple) -> None:
        shape = list(self.buffers[buffer].shape)
        raise InternalError(
            f"kernel {self.kernel.name}: {buffer}{list(index)} is outside its shape {shape}"
        )

    def name(self, kind: str, name: str) -> str:
        """A Python identifier for a name of the kernel."""
        key = (kind, name)
        if key not in self.names:
            plain = re.sub(r"\W", "_", name)
            taken = set(self.names.values())
            unique = f"{kind}_{plain}"
            while unique in taken:
                unique += "_"
            self.names[key] = unique
        return self.names[key]

    def temporary(self) -> str:
        self.count += 1
        return f"_{self.count}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indented(self, header: str) -> Iterator[None]:
        self.line(header)
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1

    def function(self) -> str:
        params = ", ".join(self.name("b", b.name) for b in self.kernel.params)
        self.body(self.kernel.body)
        header = f"def kernel({params}):"
        return "\n".join([header, *(self.lines or ["    pass"])]) + "\n"

    # -------------------------------------------------- statements

    def body(self, body: Body) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: kir.Stmt) -> None:
        if isinstance(stmt, For):
            self.loop(stmt)
        elif isinstance(stmt, Let):
            with self.expressions(stmt.value):
                self.line(f"{self.name('r', stmt.ref.name)} = {self.expr(stmt.value)}")
        elif isinstance(stmt, Store):
            self.store(stmt)
        elif isinstance(stmt, kir.Alloc):
            self.alloc(stmt)
        elif isinstance(stmt, If):
            self.branch(stmt)
        elif isinstance(stmt, While):
            self.repeat(stmt)
        elif isinstance(stmt, Barrier):
            if self.in_threads:
                self.line("yield")
        elif isinstance(stmt, kir.Intrin) and stmt.name in instructions.NAMES:
            self.body(instructions.meaning(stmt))
        else:
            raise UnsupportedError(f"kernel {self.kernel.name}: cannot interpret {stmt}")

    def loop(self, stmt: For) -> None:
        if stmt.kind == "thread" and any(isinstance(s, Barrier) for s in kir.walk_stmts(stmt.body)):
            self.threads(stmt)
            return
        extent = self.extent(stmt)
        with self.indented(f"for {self.name('x', stmt.var.name)} in range({extent}):"):
            self.body(stmt.body)

    def extent(self, stmt: For) -> str:
        if isinstance(stmt.extent, int):
            return str(stmt.extent)
        with self.expressions(stmt.extent):
            return self.expr(stmt.extent)

    def threads(self, stmt: For) -> None:
        """A perfect nest of thread loops, all threads in lockstep from barrier to barrier."""
        nest = [stmt]
        while len(nest[-1].body) == 1 and isinstance(nest[-1].body[0], For):
            inner = nest[-1].body[0]
            if inner.kind != "thread":
                break
            nest.append(inner)
        names = [self.name("x", loop.var.name) for loop in nest]
        extents = [self.extent(loop) for loop in nest]
        if self.in_threads:
            raise UnsupportedError(
                f"kernel {self.kernel.name}: thread loops around a barrier must be perfectly nested"
            )
        function = self.temporary()
        self.in_threads = True
        with self.indented(f"def {function}({', '.join(names)}):"):
            self.body(nest[-1].body)
        self.in_threads = False
        self.line(f"_lockstep({function}, ({', '.join(extents)},))")

    def store(self, stmt: Store) -> None:
        buffer = self.buffer(stmt.buffer)
        if buffer.access == "in":
            raise InternalError(f"kernel {self.kernel.name}: stores into its input {buffer.name}")
        with self.expressions(stmt.value, *stmt.index):
            value = self.expr(stmt.value)
            if stmt.buffer in self.scalars:
                self.line(f"{self.name('b', stmt.buffer)} = {value}")
                return
            place, check = self.place(buffer, stmt.index)
            if check:
                index = ", ".join(map(self.expr, stmt.index))
                self.line(f"if not ({check}): _outside({stmt.buffer!r}, ({index},))")
            self.line(f"{place} = {value}")

    def alloc(self, stmt: kir.Alloc) -> None:
        buffer = stmt.buffer
        self.buffers[buffer.name] = buffer
        poison = literal(_poison(buffer.dtype), buffer.dtype)
        name = self.name("b", buffer.name)
        private = self.in_threads or not self.lockstep  # a closure cannot assign outer variables
        if buffer.rank == 0 and private:
            self.scalars.add(buffer.name)
            self.line(f"{name} = {poison}")
        else:
            self.scalars.discard(buffer.name)
            self.line(f"{name} = [{poison}] * {numel(buffer.shape)}")

    def branch(self, stmt: If) -> None:
        with self.expressions(stmt.condition):
            condition = self.expr(stmt.condition)
        with self.indented(f"if {condition}:"):
            self.body(stmt.then)
        if stmt.orelse:
            with self.indented("else:"):
                self.body(stmt.orelse)

    def repeat(self, stmt: While) -> None:
        with self.indented("while True:"):
            with self.expressions(stmt.condition):
                self.line(f"if not {self.expr(stmt.condition)}: break")
            self.body(stmt.body)

    def buffer(self, name: str) -> Buffer:
        if name not in self.buffers:
            raise InternalError(f"kernel {self.kernel.name}: unknown buffer {name}")
        return self.buffers[name]

    # -------------------------------------------------- expressions

    @contextmanager
    def expressions(self, *roots: Expr) -> Iterator[None]:
        """The scope of one statement: what its expressions share is computed once."""
        self.memo = [{}]
        self.shared = count_uses(roots)
        yield

    def expr(self, node: Expr) -> str:
        """Python text of an expression (temporaries it needs are emitted before)."""
        for scope in self.memo:
            if node in scope:
                return scope[node]
        text = self.fresh(node)
        leaf = isinstance(node, (Const, Index, Ref))
        if not leaf and (self.shared[node] > 1 or len(text) > INLINE):
            name = self.temporary()
            self.line(f"{name} = {text}")
            text = self.memo[-1][node] = name
        return text

    def fresh(self, node: Expr) -> str:
        if isinstance(node, Const):
            return literal(node.value, node.dtype)
        if isinstance(node, Index):
            return self.name("x", node.name)
        if isinstance(node, (Ref, Sym)):
            return self.name("r", node.name)
        if isinstance(node, Load):
            return self.load(node)
        if isinstance(node, Call):
            if node.op.name == "select":
                return self.select(node)
            return spell(node, [self.expr(a) for a in node.args], self.constants)
        raise InternalError(f"kernel {self.kernel.name}: cannot interpret `{node}`")

    def load(self, node: Load) -> str:
        buffer = self.buffer(node.source)
        if node.source in self.scalars:
            return self.name("b", node.source)
        place, check = self.place(buffer, node.index)
        if not check:
            return place
        index = ", ".join(map(self.expr, node.index))
        return f"({place} if {check} else _outside({node.source!r}, ({index},)))"

    def place(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[str, str]:
        """The element's spelling, and the condition that its index is in range ("" if proved)."""
        if len(index) != buffer.rank:
            raise InternalError(
                f"kernel {self.kernel.name}: {len(index)} indices for {buffer.name} of rank "
                f"{buffer.rank}"
            )
        terms, checks, stride = [], [], 1
        for position, extent in zip(reversed(index), reversed(buffer.shape)):
            assert isinstance(extent, int)
            text = self.atom(position)
            terms.append(text if stride == 1 else f"{text}*{stride}")
            low, high = bounds(simplify(position))
            if low < 0 or high >= extent:
                checks.append(f"0 <= {text} < {extent}")
            stride *= extent
        where = " + ".join(reversed(terms)) or "0"
        return f"{self.name('b', buffer.name)}[{where}]", " and ".join(reversed(checks))

    def atom(self, node: Expr) -> str:
        """An expression as a name or number."""
        text = self.expr(node)
        if re.fullmatch(r"\w+|\(-\d+\)", text):
            return text
        name = self.temporary()
        self.line(f"{name} = {text}")
        self.memo[-1][node] = name
        return name

    def select(self, node: Call) -> str:
        condition = self.expr(node.args[0])
        texts, blocks = [], []
        for branch in node.args[1:]:
            outer, self.lines = self.lines, []
            self.memo.append({})
            self.depth += 1
            texts.append(self.expr(branch))
            self.depth -= 1
            self.memo.pop()
            blocks.append(self.lines)
            self.lines = outer
        if not any(blocks):
            return f"({texts[0]} if {condition} else {texts[1]})"
        name = self.temporary()
        for header, block, text in zip((f"if {condition}:", "else:"), blocks, texts):
            self.line(header)
            self.lines += block
            self.lines.append("    " * (self.depth + 1) + f"{name} = {text}")
        return name


def _lockstep(function: Callable, extents: tuple[int, ...]) -> None:
    """Runs the threads of a block: each to its next barrier, then all the next stretch."""
    waiting = [function(*index) for index in np.ndindex(*extents)]
    while waiting:
        arrived = [next(thread, waiting) is not waiting for thread in waiting]
        if any(arrived) and not all(arrived):
            raise InternalError("a barrier was reached by some threads of a block only")
        if not any(arrived):
            return
