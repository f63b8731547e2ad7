"""Products of 32-bit lanes in 64 bits, by even and odd lanes, as LLVM IR.

The instruction of x86 for them takes every other lane of 32 bits. So what is narrowed to 32 bits
again is computed of even lanes and of odd ones, which is a shift or two of a register, where halves
of a register would have to be moved across it.
"""

from __future__ import annotations

from typing import Protocol

from graphc.backends.llvm_cpu.processors.table import EVEN_PRODUCTS
from graphc.backends.llvm_cpu.spell import INT_BINARY, Typed
from graphc.ir.dtypes import DType, i32, i64, u32
from graphc.ir.expr import Call, Const, Expr, Index

WORD = 32  # bits of a lane that is narrow
SHIFTS = {"shl": "shl", "shr": "ashr"}
Lanes = tuple[Typed, Typed]  # even ones and odd ones


class Emitter(Protocol):
    """What is needed of the emitter of expressions."""

    features: frozenset[str]
    vector: Index | None
    lanes: int
    from_registers: set[Expr]

    def depends(self, node: Expr) -> bool: ...
    def value(self, node: Expr) -> Typed: ...
    def op(self, text: str, dtype: DType, lanes: int) -> Typed: ...
    def splat(self, value: Typed, lanes: int) -> Typed: ...
    def convert(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed: ...


def is_by_even_and_odd(e: Emitter, node: Call) -> bool:
    """Whether an expression is one of 64-bit products, narrowed to 32 bits, in lanes: two pairs at
    the least, as the lanes of a pair alone are no vectors."""
    if EVEN_PRODUCTS not in e.features or e.vector is None or e.lanes % 2 or e.lanes < 4:
        return False
    is_narrowed = node.op.name == "cast" and node.dtype.is_integer and node.dtype.bits <= WORD
    if not (is_narrowed and node.args[0].dtype is i64 and e.depends(node)):
        return False
    products, stack = 0, [node.args[0]]
    while stack:
        part = stack.pop()
        if e.depends(part) and not _is_widened(part):
            if not _is_operation(part):
                return False
            assert isinstance(part, Call)
            products += part.op.name == "mul"
            stack += part.children
    return products > 0


def by_even_and_odd(e: Emitter, node: Call) -> Typed:
    """The narrowed value of a 64-bit expression."""
    wide = _Wide(e, node.args[0])
    even, odd = wide.both(wide.root)
    mask = e.splat(Typed(str(u32.max), i64), wide.half)
    pair = wide.op("or", wide.op("and", even, mask), wide.op("shl", odd, wide.word))
    words = e.op(f"bitcast {pair.type} {pair.text} to <{e.lanes} x i32>", i32, e.lanes)
    return e.convert("cast", words, node.dtype, e.lanes)


def _is_widened(node: Expr) -> bool:
    """Whether an expression is an integer of 32 bits or fewer, as one of 64."""
    if not (isinstance(node, Call) and node.op.name == "cast"):
        return False
    return node.args[0].dtype.is_integer and node.args[0].dtype.bits <= WORD


def _is_operation(node: Expr) -> bool:
    """Whether an operation is one of each lane alone, in an instruction."""
    if not (isinstance(node, Call) and node.dtype is i64):
        return False
    if node.op.name in SHIFTS:
        by = node.args[1]
        return isinstance(by, Const) and 0 <= by.value < i64.bits
    return node.op.name in INT_BINARY


class _Wide:
    """Emits a 64-bit expression `root`, of even and of odd lanes."""

    def __init__(self, e: Emitter, root: Expr):
        self.e, self.root, self.half = e, root, e.lanes // 2
        self.word = e.splat(Typed(str(WORD), i64), self.half)
        self.made: dict[Expr, Lanes] = {}

    def op(self, word: str, a: Typed, b: Typed) -> Typed:
        return self.e.op(f"{word} {a.type} {a.text}, {b.text}", i64, self.half)

    def both(self, node: Expr) -> Lanes:
        """A part of the expression."""
        if node not in self.made:
            self.made[node] = self._emitted(node)
        return self.made[node]

    def _emitted(self, node: Expr) -> Lanes:
        if not self.e.depends(node):
            value = self.e.splat(self._value(node), self.half)
            return value, value
        assert isinstance(node, Call)
        if _is_widened(node):
            return self._widened(node.args[0])
        word = SHIFTS.get(node.op.name) or INT_BINARY[node.op.name]
        (a, b), (c, d) = map(self.both, node.args)
        return self.op(word, a, c), self.op(word, b, d)

    def _widened(self, node: Expr) -> Lanes:
        """An integer of 32 bits or fewer."""
        e, value = self.e, self._value(node)
        dtype, right = (u32, "lshr") if node.dtype is u32 else (i32, "ashr")
        value = e.splat(e.convert("cast", value, dtype, value.lanes), e.lanes)
        pair = e.op(f"bitcast {value.type} {value.text} to <{self.half} x i64>", i64, self.half)
        even = self.op("shl", pair, self.word)
        return self.op(right, even, self.word), self.op(right, pair, self.word)

    def _value(self, node: Expr) -> Typed:
        """The value of what is not 64 bits in lanes. Of what a store may change, so is the root."""
        value = self.e.value(node)
        if node in self.e.from_registers:
            self.e.from_registers.add(self.root)
        return value
