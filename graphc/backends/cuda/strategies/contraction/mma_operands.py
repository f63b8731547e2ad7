"""Operands of matrix cores: their type, and how 16 bytes or one 32-bit word of them is fetched.

Matrix cores multiply 32-bit words along the depth: two f16 or bf16, one TF32, or four bytes. An
operand is recognised by its form: a narrow float converted to float32, a float32 whose last 13 bits
are cut off (TF32), or a byte converted to int32 (less its zero point, see zero_points.py). Operands
that must still be rounded to TF32 are copied unrounded. They are rounded on the way from shared
memory to the matrix cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.backends.cuda.strategies.contraction.operands import Operand
from graphc.ir.addresses import unflatten_index
from graphc.ir.dtypes import DType, bf16, f16, f32, i8, i32, i64, u8, u16, u32
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    as_expr,
    bitcast,
    call,
    cast,
    free_indices,
    select,
    substitute,
)
from graphc.ir.extents import divided
from graphc.ir.simplify import simplify, to_poly
from graphc.passes.analysis.spaces import count

CHUNK = 4  # words that are copied at once
RAW = {f16: u16, bf16: u16}  # the type in which elements are read as they are, if another


@dataclass(frozen=True)
class Kind:
    """Types that matrix cores multiply: their instruction, elements of the two factors, sums."""

    instruction: str
    dtype: DType
    sum: DType
    second: DType | None = None  # of the second factor, if another

    @property
    def per_word(self) -> int:
        return 4 // self.dtype.size


KINDS = (
    Kind("mma_f16", f16, f32),
    Kind("mma_bf16", bf16, f32),
    Kind("mma_tf32", f32, f32),
    Kind("mma_s8", i8, i32),
    Kind("mma_u8", u8, i32),
    Kind("mma_s8_u8", i8, i32, u8),
    Kind("mma_u8_s8", u8, i32, i8),
)


def narrow(expr: Expr, dtype: DType, sum: DType) -> Expr | None:
    """A factor of sums of type `sum` as an expression of type `dtype`; None if it is none."""
    if isinstance(expr, Call) and expr.op.name == "select" and isinstance(expr.args[2], Const):
        inner = narrow(expr.args[1], dtype, sum)
        if inner is None or expr.args[2].value != 0:
            return None
        return select(expr.args[0], inner, Const(0, dtype))
    wanted = "cut_tf32" if dtype is f32 else "cast"
    if isinstance(expr, Call) and expr.op.name == wanted and expr.dtype is sum:
        return expr.args[0] if expr.args[0].dtype is dtype else None
    return None


def before_rounding(expr: Expr) -> Expr | None:
    """The float32 of one that is to be rounded to TF32 by adding half of the last bit kept; None of
    any other expression."""
    if not isinstance(expr, Call):
        return None
    if expr.op.name == "select" and isinstance(expr.args[2], Const):
        inner = before_rounding(expr.args[1])
        return None if inner is None else select(expr.args[0], inner, expr.args[2])
    return expr.args[0] if expr.op.name == "add_half_tf32" else None


@dataclass(frozen=True)
class Words:
    """An operand in the kind's type, word by word."""

    operand: Operand
    kind: Kind

    @property
    def chunk(self) -> int:
        """Elements copied at once."""
        return CHUNK * self.kind.per_word

    def copies(self) -> bool:
        """Whether every aligned chunk along the depth is contiguous and aligned in memory, and its
        elements are all there or all not."""
        return self.contiguous(self.operand.depth)

    def copies_across(self) -> bool:
        """The same of every aligned chunk along the side, for types of which words can be had
        from them."""
        return self.kind.per_word <= 2 and self.contiguous(self.operand.side)

    def contiguous(self, along: list[Index]) -> bool:
        """The same of every aligned chunk along these indices of a side or of the depth."""
        load, guard = self._load()
        if load is None or not along:
            return False
        last = along[-1]
        if divided(last.extent, self.chunk)[1] != 0 or last in free_indices(guard):
            return False
        terms = to_poly(simplify(load.index[0]))
        moving = [(a, c) for a, c in terms.items() if any(last in free_indices(x) for x in a)]
        rest = [c for a, c in terms.items() if (a, c) not in moving]
        return moving == [((last,), 1)] and all(c % self.chunk == 0 for c in rest)

    def _load(self) -> tuple[Load | None, Expr]:
        """The load that the operand is, and the condition under which it is not zero."""
        expr, guard = self.operand.expr, as_expr(True)
        if isinstance(expr, Call) and expr.op.name == "select":
            other = expr.args[2]
            if isinstance(other, Const) and (other.value == 0 or not expr.dtype.is_float):
                guard, expr = expr.args[0], expr.args[1]
        return (expr if isinstance(expr, Load) else None), guard

    @property
    def padding(self) -> int:
        """The word of elements that are not there: zeros, or the zero point of bytes."""
        expr = self.operand.expr
        if not (isinstance(expr, Call) and expr.op.name == "select"):
            return 0
        value = expr.args[2]
        assert isinstance(value, Const)
        byte = int(value.value) & 0xFF  # zero in all other types
        return byte * 0x01010101

    def copy(self, fixed: dict[Expr, Expr], position: Expr, deep: Expr) -> tuple[Expr, Expr]:
        """(element, whether it is there) at the position and depth at which a chunk begins."""
        load, guard = self._load()
        assert load is not None
        inside = call("and", position < self.operand.count, deep < self.operand.depth_count)
        valid, index = (
            simplify(self._at(x, fixed, position, deep)) for x in (guard, load.index[0])
        )
        valid = simplify(call("and", inside, valid))
        place = simplify(select(valid, index, Const(0, i64)))
        return Load(load.source, (place,), RAW.get(load.dtype, load.dtype)), valid

    def _at(self, expr: Expr, fixed: dict[Expr, Expr], position: Expr, deep: Expr) -> Expr:
        depth = self.operand.depth
        mapping = {**fixed, **self.operand.place(position)}
        mapping.update(zip(depth, unflatten_index(deep, tuple(x.extent for x in depth))))
        return substitute(expr, mapping)

    def word(self, fixed: dict[Expr, Expr], position: Expr, deep: Expr) -> Expr:
        """The bits of a word at a position and the depth at which it begins, zeros outside."""
        per_word, bits = self.kind.per_word, 8 * self.kind.dtype.size
        total: Expr | None = None
        for n in range(per_word):
            element = self._bits(self.operand.element(fixed, position, simplify(deep + n)))
            part = element << (n * bits) if n else element
            total = part if total is None else total | part
        assert total is not None
        return total

    def _bits(self, element: Expr) -> Expr:
        """The bits of an element in the low end of a word."""
        if isinstance(element, Call) and element.op.name == "select":
            guard, value, other = element.args
            if isinstance(other, Const) and other.value == 0:
                return simplify(select(guard, self._bits(value), Const(0, u32)))
        if self.kind.dtype is f32:
            return bitcast(element, u32)
        if self.kind.sum is i32:
            return cast(element, u32) & 0xFF
        if isinstance(element, Load):
            return cast(Load(element.source, element.index, u16), u32)
        return cast(bitcast(element, u16), u32)


def padded_depth(operand: Operand, kind: Kind) -> int:
    """The depth rounded up to whole chunks."""
    unit = CHUNK * kind.per_word
    return -(-count(operand.depth) // unit) * unit
