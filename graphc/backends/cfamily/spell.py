"""How scalar operations are spelled in C: text with its precedence, and the helpers it needs.

Registers hold: floats up to 32 bits in float (always a value the type has), f64 in double, integers
in the stdint type of at least their width, booleans in uint8_t or int. Index arithmetic, whose
bounds show that it cannot overflow, is plain C; other integers wrap by way of helpers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphc.backends.cfamily.helpers import c_type
from graphc.backends.cfamily.narrow import has_negative_zero
from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.expr import Call, Const, Expr
from graphc.ir.simplify import bounds
from graphc.ir.text.literals import float_text

# Precedence levels of C, the tightest highest.
TERNARY, OR, AND, BIT_OR, BIT_XOR, BIT_AND, EQUAL, RELATION, SHIFT, SUM, PRODUCT, UNARY, ATOM = (
    range(13)
)


@dataclass(frozen=True)
class Text:
    """C text of an expression and the precedence of its outermost operator. A value that is
    rounded to its type may also be known by its text before that."""

    text: str
    level: int = ATOM
    unrounded: str = ""

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


@dataclass
class Speller:
    """Spells operations; `needed` collects the helpers. `index` is the type of loop variables.

    While `in_index` is set, what is spelled is an offset into a buffer: it lies within it, so its
    sums and products cannot overflow.
    """

    index: DType = dtypes.i64
    needed: set[str] = field(default_factory=set)
    in_index: bool = False

    def need(self, name: str) -> str:
        """Notes that a helper is used; its name."""
        self.needed.add(name)
        return name

    def call(self, name: str, *args: Text) -> Text:
        """A call of a helper."""
        return function(self.need(name), *args)

    # ------------------------------------------------------------ types, constants, memory

    def is_plain(self, node: Expr) -> bool:
        """Whether integer arithmetic certainly stays within the index type."""
        if node.dtype is not dtypes.i64:
            return False
        low, high = bounds(node)
        return self.index.min <= low and high <= self.index.max

    def constant(self, value: Any, dtype: DType) -> Text:
        """A literal of the register type."""
        if dtype is dtypes.boolean:
            return Text("1" if value else "0")
        if dtype.is_float:
            return _float_literal(value, dtype)
        if dtype.is_integer:
            return _integer_literal(value, dtype)
        raise UnsupportedError(f"C has no constants of type {dtype}")

    def load(self, place: str, dtype: DType) -> Text:
        """The register value of an element in memory."""
        if storage_type(dtype) == register_type(dtype) and not _is_sub_byte(dtype):
            return Text(place)
        return self.call(f"{'wrap' if dtype.is_integer else 'load'}_{dtype}", Text(place))

    def store(self, value: Text, dtype: DType) -> str:
        """What to assign to an element in memory."""
        if _is_sub_byte(dtype):
            return f"{value.at(BIT_AND + 1)} & {(1 << dtype.bits) - 1}"
        if storage_type(dtype) == register_type(dtype):
            return value.text
        return self.call(f"store_{dtype}", Text(value.unrounded or value.text)).text

    # ------------------------------------------------------------ operations

    def spell(self, node: Call, args: Sequence[Text]) -> Text:
        """The text of an operation on operands that are spelled already."""
        name, dtype = node.op.name, node.args[0].dtype
        if name == "select":
            return Text(f"{args[0].at(OR)} ? {args[1].at(OR)} : {args[2].at(TERNARY)}", TERNARY)
        if name in ("cast", "cast_sat"):
            return self.cast(args[0], dtype, node.dtype, name == "cast_sat")
        if name == "bitcast":
            return self.bitcast(args[0], dtype, node.dtype)
        if name in _COMPARE:
            return infix(_COMPARE[name], EQUAL if name in ("eq", "ne") else RELATION, *args)
        if dtype is dtypes.boolean:
            return self.logic(node, args)
        if name in ("isnan", "isinf"):
            return self.test(name, args[0], dtype)
        if dtype.is_float:
            return self.float_op(node, args)
        if dtype.is_integer:
            return self.integer_op(node, args)
        raise UnsupportedError(f"C cannot compute {name} of {dtype}")

    def logic(self, node: Call, args: Sequence[Text]) -> Text:
        """An operation on truth values."""
        name = node.op.name
        if name in ("not", "bnot"):
            return Text(f"!{args[0].at(UNARY)}", BIT_OR)  # gcc wants (!a) == b
        if name in ("and", "min", "mul", "band"):
            return infix("&&", AND, *args)
        if name in ("or", "max", "add", "bor"):  # gcc warns of && inside || without parentheses
            left, right = (a.at(BIT_OR) for a in args)
            return Text(f"{left} || {right}", OR)
        if name in ("xor", "bxor"):
            return infix("!=", EQUAL, *args)
        raise UnsupportedError(f"C cannot compute {name} of booleans")

    def test(self, name: str, x: Text, dtype: DType) -> Text:
        """isnan, isinf and their kind; never true of integers."""
        if not dtype.is_float:
            return Text("0")
        return infix("!=", EQUAL, self.call(f"{name}_{dtype.compute}", x), Text("0"))

    # ------------------------------------------------------------ floats

    def float_op(self, node: Call, args: Sequence[Text]) -> Text:
        """An operation that gives a float."""
        name, wide = node.op.name, node.dtype.compute
        suffix = "f" if wide is dtypes.f32 else ""
        if name in ("add", "sub", "mul", "div"):
            result = infix(*_ARITHMETIC[name], *args)
        elif name == "neg":
            result = _negated(args[0])
        elif name == "fma":
            product = infix("*", PRODUCT, *args[:2])
            result = infix("+", SUM, product, args[2])
        elif name in ("min", "max", "sign", "floordiv", "mod"):
            result = self.call(f"{name}_{wide}", *args)
        elif name in MATH:
            result = function(MATH[name] + suffix, *args)
        else:
            raise UnsupportedError(f"C cannot compute {name} of {node.dtype}")
        exact = name in ("min", "max", "abs") or wide is node.dtype
        exact = exact or name == "neg" and has_negative_zero(node.dtype)
        return result if exact else self.rounded(result, node.dtype)

    def rounded(self, x: Text, dtype: DType) -> Text:
        """A float rounded to a narrow type, which storing it does as well."""
        return replace(self.call(f"round_{dtype}", x), unrounded=x.text)

    # ------------------------------------------------------------ integers

    def integer_op(self, node: Call, args: Sequence[Text]) -> Text:
        """An operation that gives an integer."""
        name, dtype = node.op.name, node.dtype
        if name in ("floor", "ceil", "round", "trunc"):
            return args[0]
        if _is_sub_byte(dtype):
            return self.call(f"wrap_{dtype}", self._wide_op(node, args, dtypes.i32))
        if self.in_index and dtype is dtypes.i64 and name in ("add", "sub", "mul"):
            if not self.is_plain(node) and all(self.is_plain(a) for a in node.args):
                args = [_cast(c_type(dtype), args[0]), *args[1:]]  # the offset needs more bits
            return infix(*_ARITHMETIC[name], *args)
        if not self.is_plain(node):
            return self._wide_op(node, args, dtype)
        if all(self.is_plain(a) for a in node.args):
            return self._plain_op(node, args)
        wide = self._wide_op(node, args, dtype)
        return wide if self.index is dtype else _cast(c_type(self.index), wide)

    def _plain_op(self, node: Call, args: Sequence[Text]) -> Text:
        """Arithmetic that cannot overflow."""
        name = node.op.name
        if name in ("add", "sub", "mul"):
            return infix(*_ARITHMETIC[name], *args)
        if name == "neg":
            return _negated(args[0])
        if name in ("floordiv", "div", "mod", "rem") and _is_positive(node.args[1]):
            if bounds(node.args[0])[0] >= 0 or name in ("div", "rem"):
                symbol = "/" if name in ("floordiv", "div") else "%"
                return infix(symbol, PRODUCT, *args)
        return self._wide_op(node, args, self.index)

    def _wide_op(self, node: Call, args: Sequence[Text], dtype: DType) -> Text:
        name = node.op.name
        if name in ("band", "bor", "bxor"):
            symbol, level = {"band": ("&", BIT_AND), "bor": ("|", BIT_OR), "bxor": ("^", BIT_XOR)}[
                name
            ]
            left, right = (a.at(UNARY) for a in args)
            return Text(f"{left} {symbol} {right}", level)
        if name == "bnot":
            return _cast(c_type(dtype), Text(f"~{args[0].at(UNARY)}", UNARY))
        if name in ("add", "sub", "mul") and dtype.kind == "uint" and dtype.bits >= 32:
            return infix(*_ARITHMETIC[name], *args)
        if name == "fma":
            return self.call(f"add_{dtype}", self.call(f"mul_{dtype}", *args[:2]), args[2])
        if name in ("shl", "shr") and _is_within(node.args[1], dtype.bits):
            return _shift(name, dtype, *args)
        if name in _INTEGER_HELPERS:
            return self.call(f"{name}_{dtype}", *args)
        raise UnsupportedError(f"C cannot compute {name} of {node.dtype}")

    # ------------------------------------------------------------ conversions

    def cast(self, x: Text, source: DType, target: DType, saturate: bool) -> Text:
        """`x` converted as scalar_ops.py says."""
        for dtype in (source, target):
            if not (dtype.is_number or dtype is dtypes.boolean):
                raise UnsupportedError(f"C cannot convert {source} to {target}")
        if target is dtypes.boolean:
            return x if source is target else infix("!=", EQUAL, x, Text("0"))
        if target.is_float:
            return self._to_float(x, source, target, saturate)
        if source.is_float:
            return self._float_to_integer(x, source, target)
        if _is_sub_byte(target):
            return self.call(f"wrap_{target}", _cast("int", x))
        return _cast(c_type(target), x)

    def _to_float(self, x: Text, source: DType, target: DType, saturate: bool) -> Text:
        if target.bits >= 32:
            same = register_type(source) == register_type(target)
            return x if same else _cast(c_type(target), x)
        if target is dtypes.f16 and source is dtypes.f64:
            x = self.call("f32_odd", x)
        elif register_type(source) != "float":
            x = _cast("float", x)
        return self.call(f"saturate_{target}", x) if saturate else self.rounded(x, target)

    def _float_to_integer(self, x: Text, source: DType, target: DType) -> Text:
        unsigned = target.kind == "uint" and target.bits >= 32
        wide = dtypes.of(f"{'u' if unsigned else 'i'}{64 if target.bits == 64 else 32}")
        whole = self.call(f"{wide}_of_{source.compute}", x)
        if target is wide:
            return whole
        if _is_sub_byte(target):
            return self.call(f"wrap_{target}", whole)
        return _cast(c_type(target), whole)

    def bitcast(self, x: Text, source: DType, target: DType) -> Text:
        """The bits of `x` in another type of the same width."""
        if source.size != target.size or _is_sub_byte(source) or _is_sub_byte(target):
            raise UnsupportedError(f"C cannot reinterpret {source} as {target}")
        if register_type(source) != storage_type(source):
            x, source = self.call(f"store_{source}", x), dtypes.of(f"u{source.bits}")
        if register_type(target) != storage_type(target):
            if source.is_float:
                raise UnsupportedError(f"C cannot reinterpret {source} as {target}")
            return self.call(f"load_{target}", _cast(storage_type(target), x))
        if source.is_integer and target.is_integer:
            return _cast(c_type(target), x)
        return self.call(f"bitcast_{source}_{target}", x)


_ARITHMETIC = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
MATH = {
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
    "rem": "fmod", "asin": "asin", "acos": "acos", "atan": "atan",
    **{n: n for n in ("sqrt", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh",
                      "asinh", "acosh", "atanh", "erf", "pow")},
}  # fmt: skip
_INTEGER_HELPERS = (
    "add", "sub", "mul", "neg", "abs", "sign", "min", "max", "div", "floordiv", "mod", "rem",
    "shl", "shr", "pow",
)  # fmt: skip


def storage_type(dtype: DType) -> str:
    """The C type of an element in memory."""
    if dtype.kind in ("string", "complex"):
        raise UnsupportedError(f"C has no elements of type {dtype}")
    if dtype.bits < 8 or dtype.is_float and dtype.bits < 32:
        return f"uint{dtype.size * 8}_t"
    return c_type(dtype)


def register_type(dtype: DType) -> str:
    """The C type of a scalar variable."""
    return "float" if dtype.is_float and dtype.bits < 32 else c_type(dtype)


def function(name: str, *args: Text) -> Text:
    """A call."""
    return Text(f"{name}({', '.join(a.text for a in args)})")


def infix(symbol: str, level: int, left: Text, right: Text) -> Text:
    """A left-associative binary operation. Comparisons are never chained."""
    if level in (EQUAL, RELATION):
        return Text(f"{left.at(SHIFT)} {symbol} {right.at(SHIFT)}", level)
    if level == SHIFT:  # gcc warns of + inside >> without parentheses
        return Text(f"{left.at(PRODUCT)} {symbol} {right.at(PRODUCT)}", level)
    return Text(f"{left.at(level)} {symbol} {right.at(level + 1)}", level)


def _negated(x: Text) -> Text:
    inner = x.at(UNARY)
    return Text(f"-({inner})" if inner.startswith("-") else f"-{inner}", UNARY)


def _cast(type: str, x: Text) -> Text:
    return Text(f"({type}){x.at(UNARY)}", UNARY)


def _is_within(distance: Expr, bits: int) -> bool:
    """Whether a shift certainly moves by 0 .. bits - 1."""
    low, high = bounds(distance)
    return low >= 0 and high < bits


def _shift(name: str, dtype: DType, x: Text, distance: Text) -> Text:
    """A shift whose distance is in range."""
    if name == "shr":
        moved = infix(">>", SHIFT, x, distance)
        return moved if dtype.bits >= 32 else _cast(c_type(dtype), moved)
    wide = f"uint{max(dtype.bits, 32)}_t"
    return _cast(c_type(dtype), infix("<<", SHIFT, _cast(wide, x), distance))


def _is_sub_byte(dtype: DType) -> bool:
    return dtype.is_integer and dtype.bits < 8


def _is_positive(node: Expr) -> bool:
    return isinstance(node, Const) and node.value > 0


def _float_literal(value: float, dtype: DType) -> Text:
    if not math.isfinite(value):
        name = "NAN" if value != value else "INFINITY"
        return Text(f"-{name}", UNARY) if value < 0 else Text(name)
    text = float_text(value, dtypes.f64 if dtype is dtypes.f64 else dtypes.f32)
    text += "" if dtype is dtypes.f64 else "f"
    return Text(text, UNARY if text.startswith("-") else ATOM)


def _integer_literal(value: int, dtype: DType) -> Text:
    if dtype.kind == "int" and value == dtype.min and dtype.bits >= 32:
        least = _integer_literal(value + 1, dtype)
        return Text(f"({least} - 1)")
    wide = not -(1 << 31) < value < 1 << 31
    text = str(value)
    if dtype.kind == "uint" and dtype.bits >= 32:
        text = f"UINT64_C({value})" if value >= 1 << 32 else f"{value}u"
    elif wide:
        text = f"INT64_C({value})" if value > 0 else f"-INT64_C({-value})"
    return Text(text, UNARY if value < 0 else ATOM)
