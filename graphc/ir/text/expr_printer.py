"""Expressions as text, with the fewest parentheses; `expr_parser` reads it back."""

from __future__ import annotations

import math
from typing import Any

from graphc.ir.dtypes import DType, boolean, f32, i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce, Ref, Sym
from graphc.ir.text.literals import float_text, name_text, quote

PRECEDENCE = {
    **dict.fromkeys(("or", "xor"), 1), "and": 2,
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), 3),
    **dict.fromkeys(("bor", "bxor", "band"), 4), **dict.fromkeys(("shl", "shr"), 5),
    **dict.fromkeys(("add", "sub"), 6), **dict.fromkeys(("mul", "div", "floordiv", "mod"), 7),
    **dict.fromkeys(("neg", "not", "bnot"), 8), "pow": 9,
}  # fmt: skip


def literal_text(value: Any, dtype: DType) -> str:
    """A literal as text: `3` is i64 and `3.0` is f32; other types are written `3:i32`."""
    if dtype is boolean:
        return "true" if value else "false"
    if dtype is i64:
        return str(value)
    if dtype.is_float:
        text = float_text(value, dtype)
        return text if dtype is f32 and math.isfinite(value) else f"{text}:{dtype}"
    return f"{quote(value) if isinstance(value, str) else repr(value)}:{dtype}"


def to_text(node: Expr) -> str:
    """The text of an expression; `expr_parser.parse_expr` reads it back."""
    if node._text is None:
        node._text = _text(node)
    return node._text


def _text(node: Expr) -> str:
    if isinstance(node, Const):
        return literal_text(node.value, node.dtype)
    if isinstance(node, (Sym, Index, Ref)):
        return name_text(node.name)
    if isinstance(node, Load):
        return f"{_source(node.source)}[{', '.join(map(to_text, node.index))}]"
    if isinstance(node, Reduce):
        axes = ", ".join(f"{name_text(a.name)}<{a.extent}" for a in node.axes)
        return f"{node.op}({axes}: {to_text(node.body)})"
    assert isinstance(node, Call)
    return _call_text(node)


def _source(name: str) -> str:
    return f"${name}" if name.isdigit() else name_text(name)


def _call_text(node: Call) -> str:
    op, args = node.op, node.args
    if op.rule == "cast":
        return f"{op.name}<{node.dtype}>({to_text(args[0])})"
    if op.symbol and op.name != "pow":
        level = PRECEDENCE[op.name]
        if op.arity == 1:  # -(1.0) is the negation of a literal, -1.0 is a literal
            constant = isinstance(args[0], Const)
            return op.symbol + (f"({to_text(args[0])})" if constant else _wrap(args[0], level))
        left, right = _wrap(args[0], level), _wrap(args[1], level + 1)
        return f"{left} {op.symbol} {right}"
    return f"{op.name}({', '.join(map(to_text, args))})"


def _wrap(node: Expr, level: int) -> str:
    text = to_text(node)
    own = PRECEDENCE.get(node.op.name, 10) if isinstance(node, Call) and node.op.symbol else 10
    negative = isinstance(node, Const) and text.startswith("-") and level > 6
    return f"({text})" if own < level or negative else text
