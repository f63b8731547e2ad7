"""Makes vectors of Helium (mve.py): the last pass over kernels of microcontrollers.

A loop of kind "vector" over 4 lanes of 32 bits, or 16 of 8, needs no loop if its body binds and
stores what Helium can compute: elements that are neighbours or the same for all lanes, arithmetic
on i32 and f32, bytes widened when loaded and narrowed when stored, and the fixed-point arithmetic
of integer inference (fixed_point.py). Its values are rewritten as operations that are instructions.
All other such loops become serial ones, whose operations that C lacks are expanded. A local array
in registers is one vector, which vector loops alone access, at their own lane; what it holds beyond
the lanes of a shorter loop is 0. A loop that has become serial reads a copy of it in memory, and
other arrays are in memory throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphc.backends.micro_c.fixed_point import in_words, range_of
from graphc.ir.addresses import flatten_index, is_affine_in
from graphc.ir.dtypes import DType, f32, i8, i32, i64, u8, u32
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    bitcast,
    call,
    free_indices,
    loads,
    select,
    transform,
    walk,
)
from graphc.ir.kernel import (
    Alloc,
    Body,
    Buffer,
    For,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    bodies,
    exprs,
    map_nested,
    map_stmt,
    walk_stmts,
)
from graphc.ir.scalar.arithmetic import LACKED_BY_C
from graphc.passes.kernel.prepare import for_c

LANES, BYTES = 4, 16
VECTORS = {(f32, LANES): "float32x4_t", (i32, LANES): "int32x4_t", (i8, BYTES): "int8x16_t"}
INSTRUCTIONS = {
    "add": (f32, i32), "sub": (f32, i32), "mul": (f32, i32), "fma": (f32,), "min": (i32,),
    "max": (i32,), "neg": (i32,), "bnot": (i32,), "band": (i32,), "bor": (i32,),
    "mul_high": (i32,), "mul_high_rounded": (i32,), "shl": (i32,), "shr": (i32,),
    "shr_rounded": (i32, u32),
}  # fmt: skip
"""What is an instruction over 4 lanes, and of which types; shifts are by constants."""
OF_VECTORS = LACKED_BY_C.keys() & INSTRUCTIONS
SHIFTS = ("shl", "shr", "shr_rounded")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
MIDDLE = 128  # of unsigned bytes


class NotVectors(Exception):
    """Why a loop is one of lanes."""


def is_register(stmt: Alloc) -> bool:
    """Whether a local array may be a vector."""
    kind = stmt.buffer.dtype, stmt.buffer.size
    return stmt.scope == "reg" and stmt.buffer.rank == 1 and kind in VECTORS


def varies(node: Expr, lane: Index, local: set[str]) -> bool:
    """Whether a value may differ from lane to lane, of a loop that has bound `local` names."""
    if lane in free_indices(node):
        return True
    return any(isinstance(n, Ref) and n.name in local for n in walk(node))


def with_vectors(kernel: Kernel) -> Kernel:
    """The kernel for C; its vector loops and registers are those that need no loop, no memory."""
    kernel = for_c(kernel, OF_VECTORS)
    allocated = [s for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]
    buffers = {b.name: b for b in (*kernel.params, *(s.buffer for s in allocated))}
    registers = {s.buffer.name for s in allocated if is_register(s)}
    while True:
        body = _Pass(buffers, registers).body(kernel.body)
        in_memory = registers.intersection(_accessed_plainly(body))
        if not in_memory:
            return for_c(replace(kernel, body=body), LACKED_BY_C.keys() - OF_VECTORS)
        registers -= in_memory


def _accessed_plainly(body: Body) -> Iterator[str]:
    """The names of what is read or written outside of vectors."""
    for stmt in body:
        if isinstance(stmt, Intrin) or isinstance(stmt, For) and stmt.kind == "vector":
            continue
        yield from (x.source for e in exprs(stmt) for x in loads(e))
        if isinstance(stmt, Store):
            yield stmt.buffer
        for inner in bodies(stmt):
            yield from _accessed_plainly(inner)


class _Pass:
    """Rewrites the loops of a kernel, given its buffers and which of them are registers."""

    def __init__(self, buffers: dict[str, Buffer], registers: set[str]):
        self.buffers, self.registers = buffers, registers
        self.copies = 0

    def body(self, body: Body) -> Body:
        return tuple(new for stmt in body for new in self._statements(stmt))

    def _statements(self, stmt: Stmt) -> Body:
        if isinstance(stmt, Alloc) and is_register(stmt) and stmt.buffer.name not in self.registers:
            return (replace(stmt, scope="stack"),)
        if not (isinstance(stmt, For) and stmt.kind == "vector"):
            return (map_nested(stmt, self.body),)
        try:
            return (_Loop(stmt, self.buffers, self.registers).rewritten(),)
        except NotVectors:
            return self._over_lanes(stmt)

    def _over_lanes(self, loop: For) -> Body:
        """A serial loop, after copies of the registers that it reads."""
        read = [x.source for s in walk_stmts(loop.body) for e in exprs(s) for x in loads(e)]
        copies: dict[str, Buffer] = {}
        before: list[Stmt] = []
        for name in dict.fromkeys(x for x in read if x in self.registers):
            register = self.buffers[name]
            copies[name] = copy = replace(register, name=self._fresh())
            lane = Index(f"{copy.name}_lane", register.size)
            store = Store(copy.name, (lane,), register[lane])
            before += (Alloc(copy, "stack"), For(lane, (store,), "vector", register.size))

        def redirected(node: Expr) -> Expr | None:
            copied = isinstance(node, Load) and copies.get(node.source)
            return copied[node.index] if copied else None  # type: ignore[attr-defined]

        serial = replace(loop, body=self.body(loop.body), kind="serial", width=0)
        return (*before, map_stmt(serial, lambda e: transform(e, redirected)))

    def _fresh(self) -> str:
        self.copies += 1
        while f"lanes{self.copies}" in self.buffers:
            self.copies += 1
        return f"lanes{self.copies}"


class _Loop:
    """One loop being rewritten; NotVectors where it cannot be."""

    def __init__(self, stmt: For, buffers: dict[str, Buffer], registers: set[str]):
        self.stmt, self.buffers, self.registers = stmt, buffers, registers
        self.lane, self.width = stmt.var, stmt.width
        self.local: set[str] = set()  # names bound to vectors
        self.memo: dict[Expr, Expr] = {}

    def rewritten(self) -> For:
        """The loop over values that are instructions."""
        if self.width not in (LANES, BYTES):
            raise NotVectors(f"{self.width} lanes")
        return replace(self.stmt, body=tuple(map(self._statement, self.stmt.body)))

    def _statement(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Let):
            self._require_kind(stmt.ref.dtype)
            value = self._value(stmt.value)
            self.local.add(stmt.ref.name)
            return Let(stmt.ref, value)
        if isinstance(stmt, Store):
            return self._store(stmt)
        raise NotVectors(type(stmt).__name__)

    def _store(self, stmt: Store) -> Store:
        buffer = self.buffers[stmt.buffer]
        self._require_place(buffer, stmt.index)
        value = stmt.value
        if buffer.dtype not in (i8, u8) or self.width != LANES:
            self._require_kind(buffer.dtype)
            return replace(stmt, value=self._value(value))
        if not (isinstance(value, Call) and value.op.name == "cast" and value.args[0].dtype is i32):
            raise NotVectors(f"a store of {value}")
        return replace(stmt, value=value.rebuild([self._value(value.args[0])]))

    # ------------------------------------------------------------ conditions

    def _varies(self, node: Expr) -> bool:
        return varies(node, self.lane, self.local)

    def _require_kind(self, dtype: DType) -> None:
        if (dtype, self.width) not in VECTORS:
            raise NotVectors(f"{self.width} lanes of {dtype}")

    def _require_place(self, buffer: Buffer, index: Sequence[Expr]) -> None:
        """The lanes' elements have to be neighbours, and all those of a register."""
        if buffer.name in self.registers:
            self._require_kind(buffer.dtype)
            if tuple(index) != (self.lane,):
                raise NotVectors("another lane")
        elif is_affine_in(flatten_index(tuple(index), buffer.shape), self.lane) != 1:
            raise NotVectors(f"{buffer.name} is not accessed in order")

    # ------------------------------------------------------------ values

    def _value(self, node: Expr) -> Expr:
        """A value of all lanes."""
        if not self._varies(node):
            self._require_kind(node.dtype)
            return node
        if node not in self.memo:
            self.memo[node] = self._fresh(node)
        return self.memo[node]

    def _fresh(self, node: Expr) -> Expr:
        if isinstance(node, Ref):
            return node
        if isinstance(node, Load):
            self._require_kind(node.dtype)
            self._require_place(self.buffers[node.source], node.index)
            return node
        if isinstance(node, Call):
            return self._operation(node)
        raise NotVectors(f"`{node}`")

    def _operation(self, node: Call) -> Expr:
        name, args = node.op.name, node.args
        if name in ("cast", "bitcast"):
            return self._cast(node)
        if self.width != LANES:
            raise NotVectors(f"{name} of {self.width} lanes")
        if name == "select":
            then, otherwise = map(self._value, args[1:])
            return select(self._condition(args[0]), then, otherwise)
        if name in ("min", "max") and node.dtype is f32:
            return self._float_extreme(node)
        if node.dtype not in INSTRUCTIONS.get(name, ()):
            raise NotVectors(f"{name} of {args[0].dtype}")
        if name in SHIFTS:
            if not (isinstance(args[1], Const) and 0 < args[1].value <= 8 * node.dtype.size):
                raise NotVectors(f"the shift {node}")
            return node.rebuild([self._value(args[0]), args[1]])
        return node.rebuild([self._value(x) for x in args])

    def _float_extreme(self, node: Call) -> Expr:
        """NaN is passed on: a limit is taken only where the value is beyond it."""
        value, limit = node.args[::-1] if isinstance(node.args[0], Const) else node.args
        if not isinstance(limit, Const) or limit.value != limit.value:
            raise NotVectors("an extreme of two floats that may be NaN")
        value = self._value(value)
        return select(call("ge" if node.op.name == "min" else "le", value, limit), limit, value)

    def _condition(self, node: Expr) -> Expr:
        if not (isinstance(node, Call) and node.op.name in COMPARISONS and self._varies(node)):
            raise NotVectors(f"the condition {node}")
        if node.args[0].dtype not in (f32, i32) or not self._varies(node.args[0]):
            raise NotVectors(f"a comparison of {node.args[0].dtype}")
        return node.rebuild([self._value(x) for x in node.args])

    # ------------------------------------------------------------ conversions

    def _cast(self, node: Call) -> Expr:
        (inner,) = node.args
        if node.op.name == "bitcast":
            return self._bits(node)
        if node.dtype is i8 and self.width == BYTES:
            return self._signed(inner)
        if self.width != LANES:
            raise NotVectors(f"{self.width} lanes of {node.dtype}")
        if node.dtype is i32 and inner.dtype is i64:
            words = in_words(inner)
            if words is None:
                raise NotVectors(f"`{inner}`")
            return self._value(words)
        if node.dtype is i32 and inner.dtype in (i8, u8):
            return self._widened(node)
        if node.dtype is f32 and inner.dtype is i32:
            return node.rebuild([self._value(inner)])
        raise NotVectors(f"a cast from {inner.dtype} to {node.dtype}")

    def _bits(self, node: Call) -> Expr:
        """Between i32 and u32, of which instructions tell one from the other."""
        (inner,) = node.args
        if self.width != LANES or {node.dtype, inner.dtype} != {i32, u32}:
            raise NotVectors(f"the bits of {inner.dtype} as {node.dtype}")
        return node.rebuild([self._operation(inner) if isinstance(inner, Call) else inner])

    def _signed(self, inner: Expr) -> Expr:
        """Bytes less 128, of those that were unsigned: load ^ 128."""
        if isinstance(inner, Call) and inner.op.name == "bxor" and inner.args[0].dtype is u8:
            load, middle = inner.args
            if isinstance(load, Load) and isinstance(middle, Const) and middle.value == MIDDLE:
                self._require_place(self.buffers[load.source], load.index)
                return bitcast(load, i8) ^ Const(-MIDDLE, i8)
        raise NotVectors(f"a cast of `{inner}` to bytes")

    def _widened(self, node: Call) -> Expr:
        """Bytes as i32: loaded, or what has been kept within their limits."""
        (inner,) = node.args
        if isinstance(inner, Load) and inner.source not in self.registers:
            self._require_place(self.buffers[inner.source], inner.index)
            return node
        if isinstance(inner, Call) and inner.op.name == "cast" and inner.args[0].dtype is i32:
            low, high = range_of(inner.args[0])
            if inner.dtype.min <= low and high <= inner.dtype.max:
                return self._value(inner.args[0])
        raise NotVectors(f"`{inner}` widened")
