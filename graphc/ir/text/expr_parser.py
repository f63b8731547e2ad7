"""Reads the text of expressions (expr.to_text) back, by precedence climbing.

Names mean what the scope says: indices, scalar variables, symbols, and the dtypes of the sources
of loads. Nodes are built exactly as written, without folding, so that print and parse are inverse.
A literal without a dtype takes the type of the other operands, else i64 (`2`) or f32 (`2.0`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial

from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.expr import (
    REDUCTIONS,
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    Sym,
    as_expr,
    walk,
)
from graphc.ir.scalar.ops import TABLE, ScalarOp
from graphc.ir.text.expr_printer import PRECEDENCE
from graphc.ir.text.lexer import Cursor, Token, unquote
from graphc.records import dataclass

Untyped = int | float  # a literal whose dtype is not decided yet
_ADDITIVE = PRECEDENCE["bor"]  # the loosest level that needs no boolean
_INFIX = {op.symbol: op for op in TABLE.values() if op.symbol and op.arity == 2}
del _INFIX[TABLE["pow"].symbol]  # printed as a function
_PREFIX = {op.symbol: op for op in TABLE.values() if op.symbol and op.arity == 1}
_INFIX_NAME = {op.name for op in _INFIX.values()} | {op.name for op in _PREFIX.values()}


@dataclass
class Scope:
    """What names mean: `names` are leaves of expressions, `sources` the dtypes of loads."""

    names: dict[str, Expr] = field(default_factory=dict)
    sources: dict[str, DType] = field(default_factory=dict)

    def copy(self) -> Scope:
        return Scope(dict(self.names), dict(self.sources))

    @staticmethod
    def of(*exprs: Expr) -> Scope:
        """The scope in which the text of these expressions reads back."""
        scope = Scope()
        pending = list(exprs)
        while pending:
            for node in walk(pending.pop()):
                axes = node.axes if isinstance(node, Reduce) else (node,)
                extents = [a.extent for a in axes if isinstance(a, Index)]
                pending += [e for e in extents if isinstance(e, Expr)]
                if isinstance(node, (Index, Ref, Sym)):
                    scope.names[node.name] = node
                elif isinstance(node, Load):
                    scope.sources[node.source] = node.dtype
        return scope


class ExprParser(Cursor):
    """A cursor that reads expressions."""

    def __init__(self, text: str, scope: Scope | None = None):
        super().__init__(text)
        self.scope = scope or Scope()

    def expression(self, dtype: DType | None = None, level: int = 0) -> Expr:
        """An expression of at least this precedence; a bare literal takes `dtype`."""
        start = self.token
        value = self._typed(self._binary(level), dtype)
        if dtype is not None and value.dtype is not dtype:
            self.fail(f"expected an expression of type {dtype}, found {value.dtype}", start)
        return value

    def dimension(self) -> int | Expr:
        """A dimension: an i64 expression, constants as integers."""
        value = self.expression(dtypes.i64, _ADDITIVE)
        return value.value if isinstance(value, Const) else value  # type: ignore[return-value]

    def _typed(self, value: Expr | Untyped, dtype: DType | None) -> Expr:
        if isinstance(value, Expr):
            return value
        if dtype is None or dtype.kind == "bool" or isinstance(value, float) and dtype.is_integer:
            dtype = dtypes.f32 if isinstance(value, float) else dtypes.i64
        return as_expr(value, dtype)

    def _binary(self, level: int) -> Expr | Untyped:
        left = self._prefix()
        while True:
            token = self.token
            op = _INFIX.get(token.text) if token.kind == "punctuation" else None
            if op is None or PRECEDENCE[op.name] < level:
                return left
            self.next()
            left = self._call(op, [left, self._binary(PRECEDENCE[op.name] + 1)], token)

    def _prefix(self) -> Expr | Untyped:
        token = self.token
        op = _PREFIX.get(token.text) if token.kind == "punctuation" else None
        if op is None:
            return self._primary()
        self.next()
        if op.name == "neg" and self.token.kind == "number":
            value = self._number()
            return Const(-value.value, value.dtype) if isinstance(value, Const) else -value
        return self._call(op, [self._prefix()], token)

    def _call(self, op: ScalarOp, args: Sequence[Expr | Untyped], at: Token) -> Expr:
        values = args[1:] if op.rule == "select" else args
        dtype = next((a.dtype for a in values if isinstance(a, Expr)), None)
        if dtype is None and any(isinstance(a, float) for a in values):
            dtype = dtypes.f32
        first = [self._typed(args[0], None)] if op.rule == "select" else []
        typed = (*first, *(self._typed(a, dtype) for a in values))
        try:
            return Call(op, typed, op.result_type(typed))
        except TypeError as error:
            self.fail(str(error), at)

    # ------------------------------------------------------------ primaries

    def _primary(self) -> Expr | Untyped:
        token = self.token
        if token.kind == "number":
            return self._number()
        if token.kind == "string" and token.text.endswith(":string"):
            self.next()
            return Const(unquote(token.text[: -len(":string")]), dtypes.string)
        if self.accept("("):
            value = self._binary(0)
            self.expect(")")
            return value
        if token.kind in ("ident", "string"):
            return self._named(token)
        self.fail("expected an expression")

    def _number(self) -> Const | Untyped:
        token = self.next()
        text, _, suffix = token.text.partition(":")
        integral = text.isdigit() or text.startswith("0x")
        value: Untyped = int(text, 0) if integral else float(text)
        if not suffix:
            return value
        dtype = dtypes.of(suffix)
        if dtype.is_integer and not integral:
            self.fail(f"expected an integer literal of type {suffix}", token)
        return Const(value, dtype)

    def _named(self, token: Token) -> Expr:
        text = token.text
        following = self.ahead()
        if token.kind == "ident":
            if text in ("true", "false"):
                self.next()
                return Const(text == "true", dtypes.boolean)
            if text in TABLE and TABLE[text].rule == "cast" and following.text == "<":
                return self._cast(TABLE[text])
            if following.text == "(":
                return self._function(token)
        name = unquote(self.next().text)
        if self.sees("["):
            return self._load(name, token)
        named = self.scope.names.get(name)
        if named is None:
            self.fail(f"unknown name `{name}`", token)
        return named

    def _cast(self, op: ScalarOp) -> Expr:
        self.next()
        self.expect("<")
        dtype = self.dtype()
        self.close_angle()
        self.expect("(")
        value = self._typed(self._binary(0), None)
        self.expect(")")
        return Call(op, (value,), dtype)

    def dtype(self) -> DType:
        name = self.expect_kind("ident", "an element type")
        if name not in dtypes.BY_NAME:
            self.at -= 1
            self.fail("expected an element type")
        return dtypes.of(name)

    def _function(self, token: Token) -> Expr:
        if token.text in REDUCTIONS and self._is_reduction():
            return self._reduce()
        op = TABLE.get(token.text)
        if op is None or op.name in _INFIX_NAME or op.rule == "cast":
            self.fail(f"unknown function `{token.text}`", token)
        self.next()
        args = self._arguments("(", ")")
        if len(args) != op.arity:
            self.fail(f"{op.name} takes {op.arity} arguments, found {len(args)}", token)
        return self._call(op, args, token)

    def _is_reduction(self) -> bool:
        """Whether a colon stands at depth one: `max(k<4: x[k])` against `max(a, b)`."""
        depth = 0
        for token in self.tokens[self.at + 1 :]:
            depth += token.text in ("(", "[")
            depth -= token.text in (")", "]")
            if depth == 0 or token.kind == "end":
                return False
            if depth == 1 and token.text == ":":
                return True
        return False

    def _reduce(self) -> Expr:
        op = self.next().text
        self.expect("(")
        outer = dict(self.scope.names)
        axes = self.listed(":", self._axis)
        body = self._typed(self._binary(0), None)
        self.scope.names = outer
        self.expect(")")
        return Reduce(op, body, tuple(axes))

    def _axis(self) -> Index:
        name = self.name("an axis")
        self.expect("<")
        axis = self.scope.names[name] = Index(name, self.dimension())
        return axis

    def _load(self, source: str, token: Token) -> Expr:
        source = source.removeprefix("$")
        dtype = self.scope.sources.get(source)
        if dtype is None:
            self.fail(f"unknown buffer `{source}`", token)
        return Load(source, self.indices(), dtype)

    def indices(self) -> tuple[Expr, ...]:
        """`[i, j + 1]`."""
        start = self.token
        values = tuple(self._typed(a, dtypes.i64) for a in self._arguments("[", "]"))
        for value in values:
            if value.dtype is not dtypes.i64:
                self.fail(f"an index must be i64, found {value.dtype}", start)
        return values

    def _arguments(self, opening: str, closing: str) -> list[Expr | Untyped]:
        self.expect(opening)
        return self.listed(closing, partial(self._binary, 0))

    def finish(self) -> None:
        """Requires that nothing follows."""
        if self.token.kind != "end":
            self.fail("expected the end of the text")


def parse_expr(
    text: str,
    names: Mapping[str, Expr] | Scope | None = None,
    sources: Mapping[str, DType] | None = None,
) -> Expr:
    """The expression written in `text`, where `names` and `sources` (or a Scope) tell what names
    mean; ModelError gives line, column and what was expected."""
    scope = names if isinstance(names, Scope) else Scope(dict(names or {}), dict(sources or {}))
    parser = ExprParser(text, scope.copy())
    value = parser.expression()
    parser.finish()
    return value


__all__ = ["ExprParser", "Scope", "parse_expr"]
