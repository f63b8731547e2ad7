"""Prints vector loops with the functions of arm_mve.h (mve.py).

A loop of kind "vector" over 4 lanes of 32 bits, or 16 of 8, is printed without a loop if its body
binds and stores what these functions can compute: elements that are neighbours or the same for all
lanes, arithmetic on i32 and f32, bytes widened when loaded and narrowed when stored, and the
fixed-point arithmetic of integer inference (fixed_point.py). A loop over fewer lanes than its width
loads and stores under a predicate. A local array that such loops alone access, at their own
lane, is a vector variable; what it holds beyond the lanes of a shorter loop is 0. All other loops
are printed lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphc.backends.cfamily.printer import KernelPrinter
from graphc.backends.micro_c.fixed_point import FixedPoint, range_of
from graphc.backends.micro_c.mve import NAMES
from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, i64, u8
from graphc.ir.expr import Call, Const, Expr, Load, Ref, free_indices, walk
from graphc.ir.kernel import (
    Alloc,
    Body,
    Buffer,
    For,
    Intrin,
    Let,
    Stmt,
    Store,
    bodies,
    exprs,
    walk_stmts,
)
from graphc.ir.simplify import simplify

LANES, BYTES = 4, 16
VECTORS = {(f32, LANES): "float32x4_t", (i32, LANES): "int32x4_t", (i8, BYTES): "int8x16_t"}
SUFFIX = {f32: "f32", i32: "s32", i8: "s8"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class NotVectors(Exception):
    """Why a loop is printed lane by lane."""


class VectorPrinter(KernelPrinter):
    """Prints a kernel; `functions` collects what it needs of mve.py."""

    def __init__(self, *args: Any, functions: set[str]):
        super().__init__(*args)
        self.functions = functions
        self.vectors: dict[str, str] = {}  # types of the arrays that are variables, by name
        self._find_vectors()

    def is_vector(self, stmt: Stmt) -> bool:
        """Whether a statement is a loop printed without a loop."""
        return isinstance(stmt, For) and stmt.kind == "vector" and self._lines(stmt) is not None

    def _find_vectors(self) -> None:
        """Takes every candidate for a variable, and drops those that a plain loop accesses."""
        for stmt in walk_stmts(self.kernel.body):
            if isinstance(stmt, Alloc):
                self.buffers[stmt.buffer.name] = stmt.buffer
                kind = VECTORS.get((stmt.buffer.dtype, stmt.buffer.size))
                if stmt.scope == "reg" and kind and stmt.buffer.rank == 1:
                    self.vectors[stmt.buffer.name] = kind
        while dropped := self._accessed_plainly(self.kernel.body) & set(self.vectors):
            for name in dropped:
                del self.vectors[name]

    def _accessed_plainly(self, body: Body) -> set[str]:
        arrays: set[str] = set()
        for stmt in body:
            if self.is_vector(stmt) or isinstance(stmt, Intrin):
                continue
            arrays |= {x.source for e in exprs(stmt) for x in walk(e) if isinstance(x, Load)}
            if isinstance(stmt, Store):
                arrays.add(stmt.buffer)
            for inner in bodies(stmt):
                arrays |= self._accessed_plainly(inner)
        return arrays

    def _lines(self, stmt: For) -> list[str] | None:
        """The text of a vector loop without a loop, if it has one."""
        outer, functions, count = self.lines, set(self.functions), self.count
        self.lines = []
        try:
            _VectorLoop(self, stmt).print()
            return self.lines
        except NotVectors:
            self.functions.clear()
            self.functions.update(functions)
            self.count = count
            return None
        finally:
            self.lines = outer

    def _loop(self, stmt: For) -> None:
        lines = self._lines(stmt) if stmt.kind == "vector" else None
        if lines is None:
            super()._loop(stmt)
        elif any(line.lstrip().startswith("const ") for line in lines):
            self.line("{")
            self.lines += ["    " + line for line in lines]
            self.line("}")
        else:
            self.lines += lines

    def _alloc(self, stmt: Alloc) -> None:
        kind = self.vectors.get(stmt.buffer.name)
        if kind is None:
            super()._alloc(stmt)
        else:
            self.line(f"{kind} {self.name(stmt.buffer.name)};")

    def function_call(self, name: str, *args: str) -> str:
        """A call of a function of mve.py."""
        if name not in NAMES:
            raise NotVectors(name)
        self.functions.add(name)
        return f"{name}({', '.join(args)})"


class _VectorLoop:
    """One vector loop being printed."""

    def __init__(self, printer: VectorPrinter, stmt: For):
        self.p, self.stmt, self.lane, self.width = printer, stmt, stmt.var, stmt.width
        self.local: set[str] = set()  # names bound to vectors
        self.memo: dict[Expr, str] = {}
        self.predicate = ""
        self.fixed_point = FixedPoint(self)

    def call(self, name: str, *args: str) -> str:
        return self.p.function_call(name, *args)

    def number(self, value: int) -> str:
        return self.p.spell.constant(value, i32).text

    def print(self) -> None:
        """Prints the body; NotVectors if a part of it cannot be."""
        if self.width not in (LANES, BYTES):
            raise NotVectors(f"{self.width} lanes")
        self._predicate()
        for stmt in self.stmt.body:
            if isinstance(stmt, Let):
                self._let(stmt)
            elif isinstance(stmt, Store):
                self._store(stmt)
            else:
                raise NotVectors(type(stmt).__name__)

    def _predicate(self) -> None:
        """The lanes in use, by way of vctp: gcc 12 takes constants of this type for others."""
        extent, function = self.stmt.extent, f"vctp{8 * BYTES // self.width}q"
        if isinstance(extent, int):
            if extent < self.width:
                self.predicate = self.call(function, f"{extent}u")
            return
        name = self.p.temporary()
        with self.p.scope(extent):
            count = self.call(function, f"(uint32_t)({self.p.expr(extent)})")
        self.p.line(f"const mve_pred16_t {name} = {count};")
        self.predicate = name

    # ------------------------------------------------------------ statements

    def _let(self, stmt: Let) -> None:
        with self.p.scope(stmt.value):
            text = self.vector(stmt.value)
        self.p.line(f"const {self._kind(stmt.ref.dtype)} {self.p.name(stmt.ref.name)} = {text};")
        self.local.add(stmt.ref.name)

    def _kind(self, dtype: DType) -> str:
        if (dtype, self.width) not in VECTORS:
            raise NotVectors(f"{self.width} lanes of {dtype}")
        return VECTORS[dtype, self.width]

    def _store(self, stmt: Store) -> None:
        buffer = self.p.buffer(stmt.buffer)
        with self.p.scope(stmt.value, *stmt.index):
            if stmt.buffer in self.p.vectors:
                if stmt.index != (self.lane,) or self._kind(buffer.dtype) == "":
                    raise NotVectors("another lane")
                self.p.line(f"{self.p.name(buffer.name)} = {self.vector(stmt.value)};")
                return
            size, letter, value = self._stored(buffer, stmt.value)
            place = self._pointer(buffer, stmt.index)
            if self.predicate:
                text = self.call(f"vstr{size}q_p_{letter}", place, value, self.predicate)
            else:
                text = self.call(f"vstr{size}q_{letter}", place, value)
            self.p.line(f"{text};")

    def _stored(self, buffer: Buffer, value: Expr) -> tuple[str, str, str]:
        """Size of the elements, type of the lanes and text of what is stored."""
        if buffer.dtype in (i8, u8) and self.width == LANES:
            if not (isinstance(value, Call) and value.op.name == "cast"):
                raise NotVectors(f"a store of {value}")
            if value.args[0].dtype is not i32:
                raise NotVectors(f"a store of {value.args[0].dtype}")
            text = self.vector(value.args[0])
            if buffer.dtype is u8:
                return "b", "u32", self.call("vreinterpretq_u32_s32", text)
            return "b", "s32", text
        self._kind(buffer.dtype)
        size = "b" if buffer.dtype is i8 else "w"
        return size, SUFFIX[buffer.dtype], self.vector(value)

    def _pointer(self, buffer: Buffer, index: Sequence[Expr]) -> str:
        """The address of the first lane's element, if the others are its neighbours."""
        (flat,) = self.p.flat(buffer, tuple(index)) or (Const(0, i64),)
        if is_affine_in(flat, self.lane) != 1:
            raise NotVectors(f"{buffer.name} is not accessed in order")
        start = simplify(flat, {self.lane: Const(0, i64)})
        return f"&{self.p.place(buffer, (start,))}"

    # ------------------------------------------------------------ expressions

    def varies(self, node: Expr) -> bool:
        """Whether a value may differ from lane to lane."""
        if self.lane in free_indices(node):
            return True
        return any(isinstance(n, Ref) and n.name in self.local for n in walk(node))

    def scalar(self, node: Expr) -> str:
        """The text of a value that is the same in all lanes."""
        return str(self.p.expr(node))

    def vector(self, node: Expr) -> str:
        """The text of a value as a vector."""
        if not self.varies(node):
            self._kind(node.dtype)
            return self.call(f"vdupq_n_{SUFFIX[node.dtype]}", self.scalar(node))
        if node in self.memo:
            return self.memo[node]
        text = self._fresh(node)
        leaf = isinstance(node, Ref) or isinstance(node, Load) and node.source in self.p.vectors
        if self.p.uses[node] > 1 and not leaf:
            text = self.named(text, self._kind(node.dtype) if node.dtype is not boolean else "")
        self.memo[node] = text
        return text

    def named(self, text: str, kind: str = "int32x4_t") -> str:
        """A name for a vector that is used again."""
        name = self.p.temporary()
        self.p.line(f"const {kind or 'mve_pred16_t'} {name} = {text};")
        return name

    def _fresh(self, node: Expr) -> str:
        if isinstance(node, Ref):
            return self.p.name(node.name)
        if isinstance(node, Load):
            return self._load(node)
        if isinstance(node, Call):
            return self._operation(node)
        raise NotVectors(f"`{node}`")

    def _load(self, node: Load) -> str:
        buffer = self.p.buffer(node.source)
        if node.source in self.p.vectors:
            if node.index != (self.lane,):
                raise NotVectors("another lane")
            return self.p.name(node.source)
        self._kind(node.dtype)
        return self._loaded(buffer, node.index, "b" if node.dtype is i8 else "w", node.dtype)

    def _loaded(
        self, buffer: Buffer, index: Sequence[Expr], size: str, lanes: DType, letter: str = ""
    ) -> str:
        name, rest = f"vldr{size}q", [self._pointer(buffer, index)]
        if self.predicate:
            name, rest = f"{name}_z", [*rest, self.predicate]
        return self.call(f"{name}_{letter or SUFFIX[lanes]}", *rest)

    def _operation(self, node: Call) -> str:
        name, dtype = node.op.name, node.args[0].dtype
        if name == "cast":
            return self._cast(node)
        if name == "select" and self.width == LANES:
            condition, *values = node.args
            texts = [self.vector(v) for v in values]
            return self.call(f"vpselq_{SUFFIX[node.dtype]}", *texts, self._condition(condition))
        if self.width != LANES or node.dtype not in (f32, i32):
            raise NotVectors(f"{name} of {dtype}")
        if name in ("min", "max") and dtype is f32:
            return self._float_extreme(node)
        if name in ("min", "max"):
            return self.call(f"v{name}q_s32", *map(self.vector, node.args))
        if name in ("add", "sub", "mul"):
            return self._sum_or_product(node)
        if name == "fma" and dtype is f32:
            return self._accumulated("vfma", node.args[2], node.args[0], node.args[1])
        raise NotVectors(f"{name} of {dtype}")

    def _sum_or_product(self, node: Call) -> str:
        name, (a, b), letter = node.op.name, node.args, SUFFIX[node.dtype]
        if name == "add" and node.dtype is i32:
            for total, product in ((a, b), (b, a)):
                if isinstance(product, Call) and product.op.name == "mul":
                    if not all(map(self.varies, product.args)) and self.p.uses[product] < 2:
                        return self._accumulated("vmla", total, *product.args)
        if name != "sub" and not self.varies(a):
            a, b = b, a
        if not self.varies(b):
            return self.call(f"v{name}q_n_{letter}", self.vector(a), self.scalar(b))
        return self.call(f"v{name}q_{letter}", self.vector(a), self.vector(b))

    def _accumulated(self, function: str, total: Expr, a: Expr, b: Expr) -> str:
        """total + a * b"""
        letter = SUFFIX[total.dtype]
        if not self.varies(a):
            a, b = b, a
        if not self.varies(b):
            texts = self.vector(total), self.vector(a), self.scalar(b)
            return self.call(f"{function}q_n_{letter}", *texts)
        return self.call(f"{function}q_{letter}", *map(self.vector, (total, a, b)))

    def _float_extreme(self, node: Call) -> str:
        """NaN is passed on: a limit is taken only where the value is beyond it."""
        a, b = node.args
        if isinstance(a, Const):
            a, b = b, a
        if not isinstance(b, Const) or b.value != b.value:
            raise NotVectors("an extreme of two floats that may be NaN")
        beyond = "ge" if node.op.name == "min" else "le"
        value = self.vector(a)
        if not value.isidentifier():
            value = self.memo[a] = self.named(value, "float32x4_t")
        condition = self.call(f"vcmp{beyond}q_n_f32", value, self.scalar(b))
        return self.call("vpselq_f32", self.vector(b), value, condition)

    def _condition(self, node: Expr) -> str:
        if not (isinstance(node, Call) and node.op.name in COMPARISONS and self.varies(node)):
            raise NotVectors(f"the condition {node}")
        a, b = node.args
        if a.dtype not in (f32, i32) or not self.varies(a):
            raise NotVectors(f"a comparison of {a.dtype}")
        function = f"vcmp{node.op.name}q"
        if not self.varies(b):
            return self.call(f"{function}_n_{SUFFIX[a.dtype]}", self.vector(a), self.scalar(b))
        return self.call(f"{function}_{SUFFIX[a.dtype]}", self.vector(a), self.vector(b))

    # ------------------------------------------------------------ conversions

    def _cast(self, node: Call) -> str:
        (inner,) = node.args
        if node.dtype is i8 and self.width == BYTES:
            return self._signed(inner)
        if self.width != LANES:
            raise NotVectors(f"{self.width} lanes of {node.dtype}")
        if node.dtype is i32 and inner.dtype is i64:
            text = self.fixed_point.narrowed(inner)
            if text is None:
                raise NotVectors(f"`{inner}`")
            return text
        if node.dtype is i32 and inner.dtype in (i8, u8):
            return self._widened(inner)
        if node.dtype is f32 and inner.dtype is i32:
            return self.call("vcvtq_f32_s32", self.vector(inner))
        raise NotVectors(f"a cast from {inner.dtype} to {node.dtype}")

    def _signed(self, inner: Expr) -> str:
        """Bytes less 128, of those that were unsigned: load ^ 128."""
        if isinstance(inner, Call) and inner.op.name == "bxor" and inner.args[0].dtype is u8:
            load, middle = inner.args
            if isinstance(load, Load) and isinstance(middle, Const) and middle.value == 128:
                loaded = self._loaded(self.p.buffer(load.source), load.index, "b", i8, "u8")
                signed = self.call("vreinterpretq_s8_u8", loaded)
                return self.call("veorq_s8", signed, self.call("vdupq_n_s8", "-128"))
        raise NotVectors(f"a cast of `{inner}` to bytes")

    def _widened(self, inner: Expr) -> str:
        """Bytes as i32: loaded, or what has been kept within their limits."""
        if isinstance(inner, Load) and inner.source not in self.p.vectors:
            buffer = self.p.buffer(inner.source)
            if inner.dtype is i8:
                return self._loaded(buffer, inner.index, "b", i32)
            return self.call(
                "vreinterpretq_s32_u32", self._loaded(buffer, inner.index, "b", i32, "u32")
            )
        if isinstance(inner, Call) and inner.op.name == "cast" and inner.args[0].dtype is i32:
            low, high = range_of(inner.args[0])
            if inner.dtype.min <= low and high <= inner.dtype.max:
                return self.vector(inner.args[0])
        raise NotVectors(f"`{inner}` widened")
