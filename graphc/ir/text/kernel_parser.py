"""Reads kernels back from text.

    kernel  = "kernel" @name "(" [access buffer, ...] ")" [where] "{" [comment] statement* "}"
    buffer  = name ":" dtype "[" dims "]"
    loop    = ("for" | "parallel" | "unroll" | "vector" | "block" | "thread") name "<" extent
              ["width" n] "{" statement* "}"

A name means what the innermost enclosing block binds it to; a store is told from a keyword by the
bracket after its first word.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir import dtypes
from graphc.ir.expr import Index, Ref
from graphc.ir.kernel import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Intrin,
    Kernel,
    Let,
    Stmt,
    Store,
    While,
)
from graphc.ir.text.constant_parser import ConstantParser

_LOOPS = {"for": "serial"} | {k: k for k in ("parallel", "unroll", "vector", "block", "thread")}


def parse_kernel(text: str) -> Kernel:
    """The kernel written in `text`; ModelError gives line, column and what was expected."""
    parser = KernelParser(text)
    kernel = parser.kernel()
    parser.finish()
    return kernel


class KernelParser(ConstantParser):
    """Kernels and programs."""

    def kernel(self) -> Kernel:
        self.expect("kernel")
        name = self.sigil_name("symbol", "the kernel's @name")
        outer = self.scope
        self.scope = outer.copy()
        sizes = tuple(self.where().values())
        params = self._params()
        if self.sees("where"):
            self._where_clause()
        self.expect("{")
        is_comment = self.token.kind == "string" and self.ahead().text != "["
        comment = self.string() if is_comment else ""
        body = self._statements()
        self.scope = outer
        return Kernel(name, params, body, comment, sizes)

    def _params(self) -> tuple[Buffer, ...]:
        self.expect("(")
        return tuple(self.listed(")", self._param))

    def _param(self) -> Buffer:
        if self.token.text not in ("in", "out", "inout"):
            self.fail("expected `in`, `out` or `inout`")
        return self._buffer(self.next().text)

    def _buffer(self, access: str) -> Buffer:
        name = self.name("a buffer's name")
        self.expect(":")
        dtype = self.dtype()
        start = self.token
        shape = self.shape()
        if shape is None:
            self.fail("a buffer must have a rank", start)
        self.scope.sources[name] = dtype
        return Buffer(name, dtype, shape, access)

    # ------------------------------------------------------------ statements

    def _block(self) -> Body:
        """`{ statements }` in a scope of its own."""
        self.expect("{")
        outer, self.scope = self.scope, self.scope.copy()
        body = self._statements()
        self.scope = outer
        return body

    def _statements(self) -> Body:
        statements: list[Stmt] = []
        while not self.accept("}"):
            statements.append(self._statement())
        return tuple(statements)

    def _statement(self) -> Stmt:
        word = self.token.text
        if self.ahead().text == "[":
            return self._store()
        if word in _LOOPS:
            return self._loop()
        rule = _STATEMENTS.get(word)
        if rule is None:
            self.fail("expected a statement")
        self.next()
        return rule(self)

    def _loop(self) -> For:
        kind = _LOOPS[self.next().text]
        name = self.name("a loop variable")
        self.expect("<")
        extent = self.dimension()
        width = extent if kind == "vector" and isinstance(extent, int) else 0
        if self.accept("width"):
            width = self.integer()
        var = Index(name, extent)
        outer, self.scope = self.scope, self.scope.copy()
        self.scope.names[name] = var
        body = self._block()
        self.scope = outer
        return For(var, body, kind, width)

    def _store(self) -> Store:
        token = self.token
        buffer = self.name("a buffer's name")
        dtype = self.scope.sources.get(buffer)
        if dtype is None:
            self.fail(f"unknown buffer `{buffer}`", token)
        index = self.indices()
        self.expect("=")
        return Store(buffer, index, self.expression(dtype))

    def _let(self) -> Let:
        name = self.name("a name")
        self.expect(":")
        dtype = self.dtype()
        known = self._range() if self.accept("in") else ()
        self.expect("=")
        ref = Ref(name, dtype, *known)
        value = self.expression(dtype)
        self.scope.names[name] = ref
        return Let(ref, value)

    def _range(self) -> tuple[int, int]:
        low = self.integer()
        self.expect("..")
        return low, self.integer()

    def _if(self) -> If:
        condition = self.expression(dtypes.boolean)
        then = self._block()
        return If(condition, then, self._block() if self.accept("else") else ())

    def _while(self) -> While:
        return While(self.expression(dtypes.boolean), self._block())

    def _intrin(self) -> Intrin:
        name = self.name("an instruction")
        args = tuple(self._typed(a, None) for a in self._arguments("(", ")"))
        return Intrin(name, args)


_STATEMENTS: dict[str, Callable[[KernelParser], Stmt]] = {
    "let": KernelParser._let,
    "if": KernelParser._if,
    "while": KernelParser._while,
    "intrin": KernelParser._intrin,
    "barrier": lambda parser: Barrier(),
    "reg": lambda parser: Alloc(parser._buffer("local"), "reg"),
    "stack": lambda parser: Alloc(parser._buffer("local"), "stack"),
    "shared": lambda parser: Alloc(parser._buffer("local"), "shared"),
}
