"""A program to one LLVM module: its kernels, and functions that call them in order.

    void graphc_run(ptr inputs, ptr outputs, ptr arena, ptr constants, ptr pool)
    void graphc_invoke(ptr cells)       the same five pointers, in an array

A program with sizes takes one more pointer, `sizes`: an array of i64, in the order of
`Program.sizes`. Its steps compute the sizes of their kernels, and how often phases run, from these.

`inputs`, `outputs` and `constants` are arrays of pointers; the arena and the constants are aligned
to 64 bytes. A parallel phase worth splitting goes through the thread pool of pool.py; everything
else is called directly. Neither the number of threads nor an address is part of the module, which
is deterministic text: equal programs give equal modules. Long programs are cut into functions of
PART steps, as LLVM takes time beyond proportion for long ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.backends.llvm_cpu.emit_kernel import Declarations, Phase, emit_kernel
from graphc.backends.llvm_cpu.image import INVOKE
from graphc.backends.llvm_cpu.spell import Typed
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, Sym, as_expr, maximum, minimum, select
from graphc.ir.program import Program, Slot, Step
from graphc.ir.types import Dim, at

RUN = "graphc_run"
PARALLEL_WORK = 20_000  # operations (as emit_kernel counts) below which no thread is woken
RANGE_WORK = 4_000  # operations that a thread takes at a time, at least
MIN_RANGES = 16  # into which a phase is split if it has the iterations, to keep threads balanced

PART = 256  # steps of one function

_ARGUMENTS = ("inputs", "outputs", "arena", "consts", "pool")


def emit_program(program: Program, features: frozenset[str] = frozenset()) -> str:
    """The LLVM IR of a program, for a CPU that has these features (LLVM's names)."""
    declarations = Declarations(features)
    phases: dict[str, list[Phase]] = {}
    texts: list[str] = []
    for kernel in program.kernels.values():
        phases[kernel.name], text = emit_kernel(kernel, declarations)
        texts.append(text)
    emitter = _Steps(program, phases, declarations)
    main = [*emitter.main(), emitter.invoke()]
    return "\n".join(
        [
            "declare void @graphc_parallel_for(ptr, ptr, ptr, i64, i64)",
            *declarations.lines,
            *texts,
            *main,
            "attributes #0 = { nounwind }\n",
        ]
    )


class _Steps:
    """Emits the functions that call kernels."""

    def __init__(
        self, program: Program, phases: dict[str, list[Phase]], declarations: Declarations
    ):
        self.program, self.phases, self.declarations = program, phases, declarations
        self.arguments = (*_ARGUMENTS, "sizes") if program.sizes else _ARGUMENTS
        self.parameters = ", ".join(f"ptr %{name}" for name in self.arguments)

    def main(self) -> list[str]:
        """The function that runs all steps, and before it those of its parts if it has any."""
        steps = self.program.steps
        if len(steps) <= PART:
            return [self.function(f"void @{RUN}", self.steps(steps))]
        starts = range(0, len(steps), PART)
        names = [f"void @graphc_part{number}" for number in range(len(starts))]
        parts = [
            self.function(f"internal {name}", self.steps(steps[start : start + PART]))
            for name, start in zip(names, starts)
        ]
        calls = [f"  call {name}({self.parameters})" for name in names]
        return [*parts, self.function(f"void @{RUN}", calls)]

    def function(self, head: str, lines: Sequence[str]) -> str:
        return "\n".join([f"define {head}({self.parameters}) #0 {{", *lines, "  ret void", "}"])

    def invoke(self) -> str:
        lines = [f"define void @{INVOKE}(ptr %cells) #0 {{"]
        for number, name in enumerate(self.arguments):
            lines.append(f"  %{name}.a = getelementptr ptr, ptr %cells, i64 {number}")
            lines.append(f"  %{name} = load ptr, ptr %{name}.a")
        return "\n".join([*lines, f"  call void @{RUN}({self.parameters})", "  ret void", "}"])

    def steps(self, steps: Sequence[Step]) -> list[str]:
        kernels = self.program.kernels
        width = max((len(s.slots) + bool(kernels[s.kernel].sizes) for s in steps), default=1)
        lines = [f"  %args = alloca [{max(width, 1)} x ptr], align 64"]
        numbers = _Numbers(lines, self.program.sizes, self.declarations)
        most = max((len(s.sizes) for s in steps), default=0)
        if most:
            lines.append(f"  %numbers = alloca [{most} x i64], align 64")
        bases: dict[tuple[str, int], str] = {}
        for number, step in enumerate(steps):
            lines += _arguments(number, step, bases)
            known = (as_expr(size, i64) for size in step.sizes)
            values = dict(zip(kernels[step.kernel].sizes, known))
            if values:
                lines += numbers.passed(number, step)
            lines += [self.call(phase, values, numbers) for phase in self.phases[step.kernel]]
        return lines

    def call(self, phase: Phase, values: dict[Sym, Expr], numbers: _Numbers) -> str:
        """The call of a phase, whole or in ranges for several threads."""
        extent = at(phase.extent, values)
        grain = at(_grain(phase.extent, phase.work, phase.parallel), values)
        count = numbers.value(extent)
        is_known = isinstance(extent, int) and isinstance(grain, int)
        if extent > grain if is_known else phase.parallel:
            return (
                f"  call void @graphc_parallel_for(ptr %pool, ptr {phase.name}, ptr %args, "
                f"i64 {count}, i64 {numbers.value(grain)})"
            )
        return f"  call void {phase.name}(ptr %args, i64 0, i64 {count})"


class _Numbers:
    """Emits expressions over the sizes of a program, into the lines of a function."""

    def __init__(self, lines: list[str], sizes: Sequence[Sym], declarations: Declarations):
        self.lines, self.count = lines, 0
        self.expr = ExprEmitter(self.line, self.fresh, declarations.add, {})
        for n, size in enumerate(sizes):
            lines.append(f"  %size{n}.a = getelementptr i64, ptr %sizes, i64 {n}")
            lines.append(f"  %size{n} = load i64, ptr %size{n}.a")
            self.expr.names[size] = Typed(f"%size{n}", i64)

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def fresh(self) -> str:
        self.count += 1
        return f"%e{self.count}"

    def value(self, dim: Dim) -> str:
        return str(dim) if isinstance(dim, int) else self.expr.value(dim).text

    def passed(self, number: int, step: Step) -> list[str]:
        """Stores the sizes of a call, and where they are, after its slots."""
        texts = [self.value(size) for size in step.sizes]
        lines = []
        for n, text in enumerate(texts):
            lines.append(f"  %z{number}.{n} = getelementptr i64, ptr %numbers, i64 {n}")
            lines.append(f"  store i64 {text}, ptr %z{number}.{n}")
        cell = f"%c{number}.{len(step.slots)}"
        lines.append(f"  {cell} = getelementptr ptr, ptr %args, i64 {len(step.slots)}")
        return [*lines, f"  store ptr %numbers, ptr {cell}"]


def _arguments(number: int, step: Step, bases: dict) -> list[str]:
    lines: list[str] = []
    for position, slot in enumerate(step.slots):
        base = _base(slot, bases, lines)
        pointer = base
        if slot.offset:
            pointer = f"%s{number}.{position}"
            lines.append(f"  {pointer} = getelementptr i8, ptr {base}, i64 {slot.offset}")
        cell = f"%c{number}.{position}"
        lines.append(f"  {cell} = getelementptr ptr, ptr %args, i64 {position}")
        lines.append(f"  store ptr {pointer}, ptr {cell}")
    return lines


def _base(slot: Slot, bases: dict, lines: list[str]) -> str:
    if slot.space == "arena":
        return "%arena"
    key = (slot.space, slot.index)
    if key not in bases:
        array = {"input": "%inputs", "output": "%outputs", "const": "%consts"}[slot.space]
        name = bases[key] = f"%{slot.space}{slot.index}"
        lines.append(f"  {name}.a = getelementptr ptr, ptr {array}, i64 {slot.index}")
        lines.append(f"  {name} = load ptr, ptr {name}.a")
    return bases[key]


def _grain(extent: Dim, work: Dim, parallel: bool) -> Dim:
    """Iterations of a phase that a thread takes at a time; all of them if it is not to be split."""
    if not parallel:
        return extent
    turns, operations = as_expr(extent, i64), as_expr(work, i64)
    enough = (turns * RANGE_WORK + operations - 1) // maximum(operations, 1)
    grain = maximum(minimum(enough, turns // MIN_RANGES), 1)
    return at(select(operations < PARALLEL_WORK, turns, grain), {})
