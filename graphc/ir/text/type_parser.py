"""Reads types, symbols and source locations from text.

    type    = dtype "[" dims "]" ["@" layout] | "seq" "<" type ">" | "opt" "<" type ">"
            | "map" "<" dtype "," dtype ">"
    where   = "where" name ":" low ".." [high], ...
    loc     = "loc" "(" string, ... ")"

A symbol's bounds are known before any dim that names it is read, wherever its clause stands.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphc.errors import ModelError
from graphc.ir.expr import Sym
from graphc.ir.text.expr_parser import ExprParser
from graphc.ir.types import Layout, MapType, OptionalType, SequenceType, TensorType, Type


def parse_type(text: str, symbols: Mapping[str, Sym] | None = None) -> Type:
    """The type written in `text`."""
    parser = TypeParser(text)
    parser.scope.names.update(symbols or {})
    type = parser.type()
    parser.finish()
    return type


class TypeParser(ExprParser):
    """Types, symbols and source locations."""

    def type(self) -> Type:
        for word, wrapper in (("seq", SequenceType), ("opt", OptionalType)):
            if self.accept(word):
                self.expect("<")
                element = self.type()
                self.close_angle()
                return wrapper(element)  # type: ignore[arg-type]
        if self.accept("map"):
            self.expect("<")
            key = self.dtype()
            self.expect(",")
            value = self.dtype()
            self.close_angle()
            return MapType(key, value)
        return self.tensor_type()

    def tensor_type(self) -> TensorType:
        start = self.token
        dtype = self.dtype()
        shape = self.shape()
        layout = self._layout() if self.token.kind == "symbol" else None
        try:
            return TensorType(dtype, shape, layout)
        except ModelError as error:
            self.fail(str(error), start)

    def shape(self) -> tuple | None:
        """`[2,N]`, `[]`, or `[*]` for a rank that is not known (None)."""
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return None
        return tuple(self.listed("]", self.dimension))

    def _layout(self) -> Layout:
        token = self.token
        name = self.sigil_name("symbol", "a layout")
        try:
            return Layout.parse(name)
        except (ValueError, IndexError):
            self.fail(f"unknown layout @{name}", token)

    def optional_type(self) -> Type | None:
        """A type, or None for `?`."""
        return None if self.accept("?") else self.type()

    def where(self, closing: str = "{") -> dict[str, Sym]:
        """Declares the symbols of the `where` clause ahead, if there is one, without moving."""
        start, symbols = self.at, {}
        while self.token.kind != "end" and not self.sees(closing) and not self.sees("where"):
            self.next()
        if self.sees("where"):
            symbols = self._where_clause()
            self.scope.names.update(symbols)
        self.at = start
        return symbols

    def _where_clause(self) -> dict[str, Sym]:
        self.expect("where")
        symbols: dict[str, Sym] = {}
        while True:
            name = self.name("a symbol")
            self.expect(":")
            low = self.integer()
            self.expect("..")
            high = self.integer() if self.token.kind == "number" or self.sees("-") else None
            symbols[name] = Sym(name, low, high)
            if not self.accept(","):
                return symbols

    def _loc(self) -> tuple[str, ...]:
        if not (self.sees("loc") and self.ahead().text == "("):
            return ()
        self.next()
        self.expect("(")
        return tuple(self.listed(")", self.string))
