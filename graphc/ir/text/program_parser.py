"""Reads programs back from text.

program = "program" @name "{" (input | output | state | check | arena | const | step | kernel)* "}"
input   = "input" name ":" type ["scale" number "zero" integer] ["at" slot]
output  = as input, then ["over" integer ("," integer)*]
step    = run | copy | count | while | if, as steps.py prints them
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphc.ir.checks import Check
from graphc.ir.expr import Expr
from graphc.ir.program import AnyStep, Copy, Count, If, Program, Slot, Step, While
from graphc.ir.text.constant_parser import Constants
from graphc.ir.text.kernel_parser import KernelParser

_SPACES = ("input", "output", "const", "state", "arena")


def parse_program(text: str, constants: Constants | None = None) -> Program:
    """The program written in `text`, its large constants taken from `constants` by digest."""
    parser = _ProgramParser(text, constants)
    program = parser.program()
    parser.finish()
    return program


class _ProgramParser(KernelParser):
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
        program.sizes = tuple(size for size in program.sizes if size not in program.counts)
        return program

    def _program_line(self, program: Program) -> None:
        if self.token.text in _STEPS:
            program.steps.append(self._step())
            return
        rule = _PROGRAM_LINES.get(self.token.text)
        if rule is None:
            self.fail(
                "expected `input`, `output`, `state`, `check`, `arena`, `const`, `kernel` or a step"
            )
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
        if self.accept("over"):
            inputs = [self.integer()]
            while self.accept(","):
                inputs.append(self.integer())
            program.over[len(program.outputs) - 1] = tuple(inputs)

    def _state(self, program: Program) -> None:
        name = self.name("a name")
        self.expect(":")
        program.state.append((name, self.tensor_type()))

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

    def _step(self) -> AnyStep:
        rule = _STEPS.get(self.token.text)
        if rule is None:
            self.fail("expected `run`, `copy`, `count`, `while` or `if`")
        self.next()
        return rule(self)

    def _steps(self) -> tuple[AnyStep, ...]:
        self.expect("{")
        steps = []
        while not self.accept("}"):
            steps.append(self._step())
        return tuple(steps)

    def _run(self) -> Step:
        kernel = self.sigil_name("symbol", "a kernel's @name")
        self.expect("(")
        slots = self.listed(")", self._slot)
        flops = self.integer() if self.accept("flops") else 0
        nbytes = self.integer() if self.accept("bytes") else 0
        macs = self.integer() if self.accept("macs") else 0
        sizes = self._sizes() if self.accept("sizes") else ()
        return Step(kernel, tuple(slots), self._loc(), flops, nbytes, macs, sizes)

    def _copy(self) -> Copy:
        source, source_stride = self._slot(), self._stride()
        self.expect("to")
        return Copy(source, self._slot(), source_stride, self._stride(), self._loc())

    def _count(self) -> Count:
        size, slot = self.dimension(), self._slot()
        most = self.dimension() if self.accept("most") else None
        return Count(size, slot, self._loc(), most)

    def _stride(self) -> int | Expr:
        return self.dimension() if self.accept("by") else 0

    def _trips(self) -> int | Expr | Slot:
        if self.token.text in _SPACES:
            return self._slot()
        if not self.accept("["):
            return self.integer()
        trips = self.dimension()
        self.expect("]")
        return trips

    def _repeat(self) -> While:
        condition = self._slot() if self.token.text in _SPACES else None
        trips = self._trips() if self.accept("trips") else None
        counter = self._slot() if self.accept("counter") else None
        loc = self._loc()
        return While(self._steps(), condition, trips, counter, loc)

    def _branch(self) -> If:
        condition, loc = self._slot(), self._loc()
        then = self._steps()
        self.expect("else")
        return If(condition, then, self._steps(), loc)

    def _sizes(self) -> tuple[int | Expr, ...]:
        sizes = [self.dimension()]
        while self.accept(","):
            sizes.append(self.dimension())
        return tuple(sizes)

    def _slot(self) -> Slot:
        space = self.token.text
        if space not in _SPACES:
            self.fail("expected `input`, `output`, `const`, `state` or `arena`")
        self.next()
        index = self.integer() if self.token.kind == "number" else 0
        offset = self.integer() if self.accept("+") else 0
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        elements = self.dimension()
        self.expect("]")
        return Slot(space, index, offset, dtype, elements)


_STEPS: dict[str, Callable[[_ProgramParser], AnyStep]] = {
    "run": _ProgramParser._run,
    "copy": _ProgramParser._copy,
    "count": _ProgramParser._count,
    "while": _ProgramParser._repeat,
    "if": _ProgramParser._branch,
}

_PROGRAM_LINES: dict[str, Callable[[_ProgramParser, Program], None]] = {
    "input": _ProgramParser._input,
    "output": _ProgramParser._output,
    "state": _ProgramParser._state,
    "check": _ProgramParser._check,
    "arena": _ProgramParser._arena,
    "const": _ProgramParser._constant,
}
