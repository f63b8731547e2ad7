"""Reads kernels and programs back from text.

    kernel  = "kernel" @name "(" [access buffer, ...] ")" [where] "{" [comment] statement* "}"
    buffer  = name ":" dtype "[" dims "]"
    loop    = ("for" | "parallel" | "unroll" | "vector" | "block" | "thread") name "<" extent
              ["width" n] "{" statement* "}"
    program = "program" @name "{" (input | output | arena | const | run | kernel)* "}"
    input   = "input" name ":" type ["scale" number "zero" integer] ["at" slot]; so does output

A name means what the innermost enclosing block binds it to; a store is told from a keyword by the
bracket after its first word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.ir import dtypes
from graphc.ir.checks import Check
from graphc.ir.expr import Expr, Index, Ref
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
from graphc.ir.program import Program, Slot, Step
from graphc.ir.text.constant_parser import ConstantParser, Constants

_LOOPS = {"for": "serial"} | {k: k for k in ("parallel", "unroll", "vector", "block", "thread")}
_SPACES = ("input", "output", "const", "arena")


def parse_kernel(text: str) -> Kernel:
    """The kernel written in `text`; ModelError gives line, column and what was expected."""
    parser = KernelParser(text)
    kernel = parser.kernel()
    parser.finish()
    return kernel


def parse_program(text: str, constants: Constants | None = None) -> Program:
    """The program written in `text`, its large constants taken from `constants` by digest."""
    parser = KernelParser(text, constants)
    program = parser.program()
    parser.finish()
    return program


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

    # ------------------------------------------------------------ programs

    def program(self) -> Program:
        self.expect("program")
        program = Program(self.sigil_name("symbol", "the program's @name"), [], [])
        program.sizes = tuple(self.where().values())
        if self.sees("where"):
            self._where_clause()
        self.expect("{")
        while not self.accept("}"):
            if self.sees("kernel"):
                kernel = self.kernel()
                program.kernels[kernel.name] = kernel
            else:
                self._program_line(program)
        return program

    def _program_line(self, program: Program) -> None:
        rule = _PROGRAM_LINES.get(self.token.text)
        if rule is None:
            self.fail("expected `input`, `output`, `check`, `arena`, `const`, `run` or `kernel`")
        self.next()
        rule(self, program)

    def _interface(self, program: Program, space: str, tensors: list) -> None:
        name = self.name("a name")
        self.expect(":")
        key = space, len(tensors)
        tensors.append((name, self.tensor_type()))
        if self.accept("scale"):
            scale = float(self.expect_kind("number", "a scale"))
            self.expect("zero")
            program.quantisation[key] = scale, self.integer()
        if self.accept("at"):
            program.resident[key] = self._slot()

    def _input(self, program: Program) -> None:
        self._interface(program, "input", program.inputs)

    def _output(self, program: Program) -> None:
        self._interface(program, "output", program.outputs)

    def _check(self, program: Program) -> None:
        low = self.integer()
        self.expect("to")
        program.checks += (Check(low, self.integer(), self.string()),)

    def _arena(self, program: Program) -> None:
        program.arena_bytes = self.integer()
        if self.accept("bound"):
            program.arena_lower_bound = self.integer()

    def _constant(self, program: Program) -> None:
        token = self.token
        if self.integer() != len(program.constants):
            self.fail(f"expected constant {len(program.constants)}", token)
        self.expect(":")
        type = self.tensor_type()
        self.expect("=")
        array: np.ndarray = self.contents(type)
        program.constants.append(array)

    def _run(self, program: Program) -> None:
        kernel = self.sigil_name("symbol", "a kernel's @name")
        self.expect("(")
        slots = self.listed(")", self._slot)
        flops = self.integer() if self.accept("flops") else 0
        nbytes = self.integer() if self.accept("bytes") else 0
        macs = self.integer() if self.accept("macs") else 0
        sizes = self._sizes() if self.accept("sizes") else ()
        loc = self._loc()
        program.steps.append(Step(kernel, tuple(slots), loc, flops, nbytes, macs, sizes))

    def _sizes(self) -> tuple[int | Expr, ...]:
        sizes = [self.dimension()]
        while self.accept(","):
            sizes.append(self.dimension())
        return tuple(sizes)

    def _slot(self) -> Slot:
        space = self.token.text
        if space not in _SPACES:
            self.fail("expected `input`, `output`, `const` or `arena`")
        self.next()
        index = self.integer() if self.token.kind == "number" else 0
        offset = self.integer() if self.accept("+") else 0
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        elements = self.dimension()
        self.expect("]")
        return Slot(space, index, offset, dtype, elements)


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

_PROGRAM_LINES: dict[str, Callable[[KernelParser, Program], None]] = {
    "input": KernelParser._input,
    "output": KernelParser._output,
    "check": KernelParser._check,
    "arena": KernelParser._arena,
    "const": KernelParser._constant,
    "run": KernelParser._run,
}
