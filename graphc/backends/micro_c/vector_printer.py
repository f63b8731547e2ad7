"""Prints the vector loops that vectors.py has made, with the functions of arm_mve.h (mve.py).

A loop of kind "vector" is printed without a loop, value by value. One over fewer lanes than its
width loads and stores under a predicate. A local array in registers is a vector variable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphc.backends.cfamily.printer import KernelPrinter
from graphc.backends.micro_c.mve import NAMES
from graphc.backends.micro_c.vectors import (
    BYTES,
    COMPARISONS,
    LANES,
    VECTORS,
    is_register,
    varies,
)
from graphc.errors import InternalError
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, i64, u8, u32
from graphc.ir.expr import Call, Const, Expr, Load, Ref
from graphc.ir.kernel import Alloc, Buffer, For, Let, Store
from graphc.ir.simplify import simplify

SUFFIX = {f32: "f32", i32: "s32", i8: "s8", u32: "u32", u8: "u8"}
FUNCTIONS = {
    "min": "vminq", "max": "vmaxq", "neg": "vnegq", "bor": "vorrq", "bxor": "veorq",
    "mul_high": "vmulhq", "mul_high_rounded": "vrmulhq", "shl": "vshlq_n", "shr": "vshrq_n",
    "shr_rounded": "vrshrq_n",
    "sub": "vsubq", **{name: f"vcmp{name}q" for name in COMPARISONS},
}  # fmt: skip
WITH_NUMBER = ("sub", *COMPARISONS)  # whose second operand may be one for all lanes


class VectorPrinter(KernelPrinter):
    """Prints a kernel; `functions` collects what it needs of mve.py."""

    def __init__(self, *args: Any, functions: set[str]):
        super().__init__(*args)
        self.functions = functions
        self.vectors: set[str] = set()  # names of the arrays that are variables

    def _loop(self, stmt: For) -> None:
        if stmt.kind != "vector":
            super()._loop(stmt)
            return
        outer, self.lines = self.lines, []
        _VectorLoop(self, stmt).print()
        lines, self.lines = self.lines, outer
        if any(line.lstrip().startswith("const ") for line in lines):
            self.line("{")
            self.lines += ["    " + line for line in lines]
            self.line("}")
        else:
            self.lines += lines

    def _alloc(self, stmt: Alloc) -> None:
        if not is_register(stmt):
            super()._alloc(stmt)
            return
        buffer = self.buffers[stmt.buffer.name] = stmt.buffer
        self.vectors.add(buffer.name)
        self.line(f"{VECTORS[buffer.dtype, buffer.size]} {self.name(buffer.name)};")

    def function_call(self, name: str, *args: str) -> str:
        """A call of a function of mve.py."""
        if name not in NAMES:
            raise InternalError(f"kernel @{self.kernel.name}: {name} is no function of vectors")
        self.functions.add(name)
        return f"{name}({', '.join(args)})"


class _VectorLoop:
    """One vector loop being printed."""

    def __init__(self, printer: VectorPrinter, stmt: For):
        self.p, self.stmt, self.lane, self.width = printer, stmt, stmt.var, stmt.width
        self.local: set[str] = set()  # names bound to vectors
        self.memo: dict[Expr, str] = {}
        self.predicate = ""

    def call(self, name: str, *args: str) -> str:
        return self.p.function_call(name, *args)

    def print(self) -> None:
        """Prints the body."""
        self._predicate()
        for stmt in self.stmt.body:
            if isinstance(stmt, Let):
                self._let(stmt)
            else:
                assert isinstance(stmt, Store)
                self._store(stmt)

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
        return "mve_pred16_t" if dtype is boolean else VECTORS[dtype, self.width]

    def _store(self, stmt: Store) -> None:
        buffer = self.p.buffer(stmt.buffer)
        with self.p.scope(stmt.value, *stmt.index):
            if stmt.buffer in self.p.vectors:
                self.p.line(f"{self.p.name(buffer.name)} = {self.vector(stmt.value)};")
                return
            lanes, value = self._stored(buffer, stmt.value)
            place = self._pointer(buffer, stmt.index)
            name, rest = f"vstr{_size(buffer)}q", [place, value]
            if self.predicate:
                self.p.line(f"KEPT({place});")
                name, rest = f"{name}_p", [*rest, self.predicate]
            self.p.line(f"{self.call(f'{name}_{lanes}', *rest)};")

    def _stored(self, buffer: Buffer, value: Expr) -> tuple[str, str]:
        """Type of the lanes and text of what is stored."""
        if buffer.dtype not in (i8, u8) or self.width != LANES:
            return SUFFIX[buffer.dtype], self.vector(value)
        text = self.vector(value.children[0])
        if buffer.dtype is u8:
            return "u32", self.call("vreinterpretq_u32_s32", text)
        return "s32", text

    def _pointer(self, buffer: Buffer, index: Sequence[Expr]) -> str:
        """The address of the first lane's element."""
        (flat,) = self.p.flat(buffer, tuple(index))
        return f"&{self.p.place(buffer, (simplify(flat, {self.lane: Const(0, i64)}),))}"

    # ------------------------------------------------------------ expressions

    def varies(self, node: Expr) -> bool:
        """Whether a value may differ from lane to lane."""
        return varies(node, self.lane, self.local)

    def scalar(self, node: Expr) -> str:
        """The text of a value that is the same in all lanes."""
        return str(self.p.expr(node))

    def vector(self, node: Expr) -> str:
        """The text of a value as a vector."""
        if not self.varies(node):
            return self.call(f"vdupq_n_{SUFFIX[node.dtype]}", self.scalar(node))
        if node in self.memo:
            return self.memo[node]
        text = self._fresh(node)
        leaf = isinstance(node, Ref) or isinstance(node, Load) and node.source in self.p.vectors
        if self.p.uses[node] > 1 and not leaf:
            name = self.p.temporary()
            self.p.line(f"const {self._kind(node.dtype)} {name} = {text};")
            text = name
        self.memo[node] = text
        return text

    def _fresh(self, node: Expr) -> str:
        if isinstance(node, Ref):
            return self.p.name(node.name)
        if isinstance(node, Load):
            in_register = node.source in self.p.vectors
            return self.p.name(node.source) if in_register else self._loaded(node, node.dtype)
        assert isinstance(node, Call)
        name = node.op.name
        rule = _RULES.get(name)
        if rule is not None:
            return rule(self, node)
        return self._function(FUNCTIONS[name], node.args, name in WITH_NUMBER)

    def _loaded(self, node: Load, lanes: DType) -> str:
        """Elements of memory, in lanes of a type."""
        buffer = self.p.buffer(node.source)
        name, rest = f"vldr{_size(buffer)}q", [self._pointer(buffer, node.index)]
        if self.predicate:
            name, rest = f"{name}_z", [*rest, self.predicate]
        return self.call(f"{name}_{SUFFIX[lanes]}", *rest)

    def _function(self, function: str, args: Sequence[Expr], with_number: bool) -> str:
        """A call; the last operand may be one for all lanes, if it is `with_number`."""
        letter, last = SUFFIX[args[0].dtype], args[-1]
        if with_number and not self.varies(last):
            texts = [*map(self.vector, args[:-1]), self.scalar(last)]
            return self.call(f"{function}_n_{letter}", *texts)
        return self.call(f"{function}_{letter}", *map(self.vector, args))

    def _select(self, node: Call) -> str:
        condition, *values = node.args
        texts = [self.vector(x) for x in (*values, condition)]
        return self.call(f"vpselq_{SUFFIX[node.dtype]}", *texts)

    def _clamp(self, node: Call) -> str:
        x, low, high = map(self.vector, node.args)
        return self.call("vminq_s32", self.call("vmaxq_s32", x, low), high)

    def _shift(self, node: Call) -> str:
        value, distance = node.args
        assert isinstance(distance, Const)
        function = f"{FUNCTIONS[node.op.name]}_{SUFFIX[node.dtype]}"
        return self.call(function, self.vector(value), str(distance.value))

    def _and(self, node: Call) -> str:
        a, b = node.args
        if isinstance(b, Call) and b.op.name == "bnot":
            return self._function("vbicq", (a, b.args[0]), False)
        return self._function("vandq", node.args, False)

    def _sum(self, node: Call) -> str:
        """A sum, or what is added to a product with a number."""
        for total, product in (node.args, node.args[::-1]):
            if node.dtype is i32 and isinstance(product, Call) and product.op.name == "mul":
                if not all(map(self.varies, product.args)) and self.p.uses[product] < 2:
                    return self._function("vmlaq", (total, *self._number_last(product)), True)
        return self._function("vaddq", self._number_last(node), True)

    def _number_last(self, node: Call) -> Sequence[Expr]:
        """Two operands, first one that varies."""
        a, b = node.args[:2]
        return (a, b) if self.varies(a) else (b, a)

    def _product(self, node: Call) -> str:
        a, b = self._number_last(node)
        is_shared = node.dtype is i32 and self.p.uses[b] > 1  # mul_high takes a vector of it
        return self._function("vmulq", (a, b), not is_shared)

    def _fused(self, node: Call) -> str:
        return self._function("vfmaq", (node.args[2], *self._number_last(node)), True)

    def _cast(self, node: Call) -> str:
        """Bytes as i32 when they are loaded; i32 as f32."""
        (inner,) = node.args
        if isinstance(inner, Load) and inner.dtype is i8:
            return self._loaded(inner, i32)
        if isinstance(inner, Load) and inner.dtype is u8:
            return self.call("vreinterpretq_s32_u32", self._loaded(inner, u32))
        return self.call("vcvtq_f32_s32", self.vector(inner))

    def _bits(self, node: Call) -> str:
        (inner,) = node.args
        function = f"vreinterpretq_{SUFFIX[node.dtype]}_{SUFFIX[inner.dtype]}"
        return self.call(function, self.vector(inner))


def _size(buffer: Buffer) -> str:
    """The letter for the size of elements."""
    return "b" if buffer.dtype.size == 1 else "w"


_RULES: dict[str, Callable[[_VectorLoop, Call], str]] = {
    "select": _VectorLoop._select,
    "clamp": _VectorLoop._clamp,
    "shl": _VectorLoop._shift,
    "shr": _VectorLoop._shift,
    "shr_rounded": _VectorLoop._shift,
    "band": _VectorLoop._and,
    "add": _VectorLoop._sum,
    "mul": _VectorLoop._product,
    "fma": _VectorLoop._fused,
    "cast": _VectorLoop._cast,
    "bitcast": _VectorLoop._bits,
}
