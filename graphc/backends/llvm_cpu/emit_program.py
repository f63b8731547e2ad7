"""A program to one LLVM module: its kernels, and functions that call them in order.

    void graphc_run(ptr inputs, ptr outputs, ptr arena, ptr constants, ptr pool)
    void graphc_invoke(ptr cells)       the same five pointers, in an array

A program with sizes takes one more pointer, `sizes`: an array of i64, in the order of
`Program.all_sizes`. Its steps compute the sizes of their kernels, and how often phases run, from
these. Those that data decides are written there by the program itself; a caller reads them after
the run.

`inputs`, `outputs` and `constants` are arrays of pointers; the arena and the constants are aligned
to 64 bytes. A parallel phase worth splitting goes through the thread pool of pool.py, if there is
one; everything else is called directly. Neither the number of threads nor an address is part of the
module, which is deterministic text: equal programs give equal modules. Long programs are cut into
functions of PART steps, as LLVM takes time beyond proportion for long ones. Each loop, branch and
body of theirs is a function too; that of a loop's body takes the number of the trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.backends.llvm_cpu.emit_kernel import Declarations, Phase, emit_kernel
from graphc.backends.llvm_cpu.image import INVOKE
from graphc.backends.llvm_cpu.spell import Typed
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Sym, as_expr, maximum, minimum, select
from graphc.ir.program import AnyStep, Copy, Count, If, Program, Slot, Step, While, overwriting
from graphc.ir.types import Dim, at, elements_of

RUN = "graphc_run"
PARALLEL_WORK = 20_000  # operations (as emit_kernel counts) below which no thread is woken
RANGE_WORK = 4_000  # operations that a thread takes at a time, at least
MIN_RANGES = 16  # into which a phase is split if it has the iterations, to keep threads balanced

PART = 256  # steps of one function
INSIDE = "internal "  # of functions that nobody else calls
COPY, MOVE = "@llvm.memcpy.p0.p0.i64", "@llvm.memmove.p0.p0.i64"

_ARGUMENTS = ("inputs", "outputs", "arena", "consts", "pool")


def emit_program(
    program: Program, features: frozenset[str] = frozenset(), more: Sequence[Emitter] = ()
) -> str:
    """The LLVM IR of a program, for a CPU with these features and instructions; `more` emit
    further functions that run its steps."""
    declarations = Declarations(features)
    phases: dict[str, list[Phase]] = {}
    texts: list[str] = []
    together = overwriting(program)
    for kernel in program.kernels.values():
        several = sum(b.access != "in" for b in kernel.params) > 1
        shared = together.get(kernel.name, ()) if several else ()
        phases[kernel.name], text = emit_kernel(kernel, declarations, shared)
        texts.append(text)
    emitters = [kind(program, phases, declarations) for kind in (Steps, *more)]
    main = [text for emitter in emitters for text in emitter.main()]
    return "\n".join(
        [
            _PHASE,
            *declarations.lines,
            *texts,
            *main,
            "attributes #0 = { nounwind }\n",
        ]
    )


# Runs a phase in ranges, on a pool of threads if there is one.
_PHASE = """declare void @graphc_parallel_for(ptr, ptr, ptr, i64, i64)
define internal void @graphc_phase(ptr %pool, ptr %run, ptr %args, i64 %extent, i64 %grain) #0 {
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %whole, label %ranges
whole:
  call void %run(ptr %args, i64 0, i64 %extent)
  ret void
ranges:
  call void @graphc_parallel_for(ptr %pool, ptr %run, ptr %args, i64 %extent, i64 %grain)
  ret void
}"""


class Steps:
    """Emits the functions that call kernels."""

    run, invoked = RUN, INVOKE  # the names of those that others call
    prefix = "graphc_"
    more: tuple[str, ...] = ()  # arguments that INVOKE is given beside the cells

    def __init__(
        self, program: Program, phases: dict[str, list[Phase]], declarations: Declarations
    ):
        self.program, self.phases, self.declarations = program, phases, declarations
        self.cells = (*_ARGUMENTS, "sizes") if program.all_sizes else _ARGUMENTS
        self.parameters = ", ".join(f"ptr %{name}" for name in (*self.cells, *self.more))
        self.functions: list[str] = []  # of parts, loops and branches
        self.count: Counter[str] = Counter()

    def main(self) -> list[str]:
        """The functions that run all steps."""
        main = self.running(self.run, self.program.steps, "")
        return [*self.functions, main, self.invoke()]

    def running(self, name: str, steps: Sequence[AnyStep], linkage: str, more: str = "") -> str:
        """A function that runs steps; those of its parts come first if it has any. `more` is a
        parameter of its own."""
        if len(steps) <= PART:
            return self.function(f"{linkage}void @{name}", self.steps(steps), more)
        calls = []
        for start in range(0, len(steps), PART):
            part = self.name("part")
            self.functions.append(self.running(part, steps[start : start + PART], INSIDE, more))
            calls.append(self.calling(part, more))
        return self.function(f"{linkage}void @{name}", calls, more)

    def name(self, kind: str) -> str:
        """A new name for a function."""
        self.count[kind] += 1
        return f"{self.prefix}{kind}{self.count[kind] - 1}"

    def calling(self, name: str, more: str = "") -> str:
        return f"  call void @{name}({self.parameters}{more})"

    def function(self, head: str, lines: Sequence[str], more: str = "") -> str:
        parameters = self.parameters + more
        return "\n".join([f"define {head}({parameters}) #0 {{", *lines, "  ret void", "}"])

    def invoke(self) -> str:
        more = "".join(f", ptr %{name}" for name in self.more)
        lines = [f"define void @{self.invoked}(ptr %cells{more}) #0 {{"]
        for number, name in enumerate(self.cells):
            lines.append(f"  %{name}.a = getelementptr ptr, ptr %cells, i64 {number}")
            lines.append(f"  %{name} = load ptr, ptr %{name}.a")
        return "\n".join([*lines, *self.begun(), self.calling(self.run), "  ret void", "}"])

    def begun(self) -> list[str]:
        """What is done before the first step."""
        return []

    def ended(self) -> list[str]:
        """What is done after each step; asked for in the order in which steps end."""
        return []

    def steps(self, steps: Sequence[AnyStep]) -> list[str]:
        kernels = self.program.kernels
        calls = [step for step in steps if isinstance(step, Step)]
        width = max((len(s.slots) + bool(kernels[s.kernel].sizes) for s in calls), default=1)
        lines = [f"  %args = alloca [{max(width, 1)} x ptr], align 64"]
        lines += [f"  %c{n} = getelementptr ptr, ptr %args, i64 {n}" for n in range(width)]
        numbers = Numbers(lines, self.program.all_sizes, self.declarations)
        most = max((len(s.sizes) for s in calls), default=0)
        if most:
            lines.append(f"  %numbers = alloca [{most} x i64], align 64")
        bases: dict[tuple[str, int], str] = {}
        for number, step in enumerate(steps):
            if isinstance(step, Step):
                lines += _arguments(number, step, bases)
                known = (as_expr(size, i64) for size in step.sizes)
                values = dict(zip(kernels[step.kernel].sizes, known))
                if values:
                    lines += numbers.passed(number, step)
                lines += [self.call(phase, values, numbers) for phase in self.phases[step.kernel]]
            elif isinstance(step, Copy):
                lines += self.copy(number, step, bases, numbers)
            elif isinstance(step, Count):
                place = _place(f"%n{number}", step.slot, bases, lines)
                numbers.counted(number, step, place)
            else:
                lines.append(self.calling(self.flow(step)))
            lines += self.ended()
        return lines

    def copy(self, number: int, step: Copy, bases: dict, numbers: Numbers) -> list[str]:
        count = elements_of((step.source.elements, step.source.dtype.size))
        if count == 0:
            return []
        copy = MOVE if step.overlaps else COPY
        self.declarations.add(f"declare void {copy}(ptr, ptr, i64, i1)")
        strides = map(numbers.value, (step.source_stride, step.target_stride))
        nbytes, source_stride, target_stride = (numbers.value(count), *strides)
        lines: list[str] = []
        source = _place(f"%s{number}", step.source, bases, lines, source_stride)
        target = _place(f"%t{number}", step.target, bases, lines, target_stride)
        if (step.source.space, step.target.space) != ("input", "output"):
            return [
                *lines,
                f"  call void {copy}(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)",
            ]
        lines += [  # which may be the same memory
            f"  %same{number} = icmp eq ptr {target}, {source}",
            f"  %n{number} = select i1 %same{number}, i64 0, i64 {nbytes}",
        ]
        return [
            *lines,
            f"  call void {COPY}(ptr {target}, ptr {source}, i64 %n{number}, i1 false)",
        ]

    def flow(self, step: While | If) -> str:
        """Adds the functions of a loop or a branch; the name of the one that runs it."""
        if isinstance(step, If):
            return self.branch(step)
        name, body = self.name("loop"), self.name("body")
        self.functions.append(self.running(body, step.body, INSIDE, ", i64 %trip"))
        bases: dict[tuple[str, int], str] = {}
        lines: list[str] = []
        if isinstance(step.trips, Slot):
            limit = "%trips"
            place = _place("%limit", step.trips, bases, lines)
            lines.append(f"  %trips = load i64, ptr {place}")
        elif isinstance(step.trips, Expr):
            limit = Numbers(lines, self.program.all_sizes, self.declarations).value(step.trips)
        else:
            limit = str(i64.max if step.trips is None else step.trips)
        condition = step.condition and _place("%condition", step.condition, bases, lines)
        counter = step.counter and _place("%counter", step.counter, bases, lines)
        lines += ["  br label %head", "head:", "  %trip = phi i64 [0, %0], [%next, %body]"]
        lines.append(f"  %left = icmp slt i64 %trip, {limit}")
        lines.append(f"  br i1 %left, label %{'test' if condition else 'body'}, label %done")
        if condition:
            lines += ["test:", *_test(condition), "  br i1 %holds, label %body, label %done"]
        lines.append("body:")
        if counter:
            lines.append(f"  store i64 %trip, ptr {counter}")
        lines += [self.calling(body, ", i64 %trip"), "  %next = add i64 %trip, 1"]
        lines += ["  br label %head", "done:"]
        self.functions.append(self.function(f"{INSIDE}void @{name}", lines))
        return name

    def branch(self, step: If) -> str:
        name = self.name("branch")
        bases: dict[tuple[str, int], str] = {}
        lines: list[str] = []
        condition = _place("%condition", step.condition, bases, lines)
        lines += [*_test(condition), "  br i1 %holds, label %then, label %orelse"]
        for label, steps in (("then", step.then), ("orelse", step.orelse)):
            inner = self.name("side")
            self.functions.append(self.running(inner, steps, INSIDE))
            lines += [f"{label}:", self.calling(inner), "  br label %done"]
        self.functions.append(self.function(f"{INSIDE}void @{name}", [*lines, "done:"]))
        return name

    def call(self, phase: Phase, values: dict[Sym, Expr], numbers: Numbers) -> str:
        """The call of a phase, whole or in ranges for several threads."""
        extent = at(phase.extent, values)
        grain = _grain(extent, at(phase.work, values), phase.parallel)
        count = numbers.value(extent)
        is_known = isinstance(extent, int) and isinstance(grain, int)
        if extent > grain if is_known else phase.parallel:
            return (
                f"  call void @graphc_phase(ptr %pool, ptr {phase.name}, ptr %args, "
                f"i64 {count}, i64 {numbers.value(grain)})"
            )
        return f"  call void {phase.name}(ptr %args, i64 0, i64 {count})"


Emitter = Callable[[Program, dict[str, list[Phase]], Declarations], Steps]


class Numbers:
    """Emits expressions over the sizes of a program, into the lines of a function."""

    def __init__(self, lines: list[str], sizes: Sequence[Sym], declarations: Declarations):
        self.lines, self.count = lines, 0
        self.expr = ExprEmitter(self.line, self.fresh, declarations.add, {})
        self.cells = {size: f"%size{n}.a" for n, size in enumerate(sizes)}
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

    def counted(self, number: int, step: Count, place: str) -> None:
        """Takes the value of a size from a place, and keeps it with the others."""
        if step.size not in self.cells:
            return
        self.line(f"%known{number} = load i64, ptr {place}")
        self.line(f"store i64 %known{number}, ptr {self.cells[step.size]}")
        self.expr.names[step.size] = Typed(f"%known{number}", i64)

    def passed(self, number: int, step: Step) -> list[str]:
        """Stores the sizes of a call, and where they are, after its slots."""
        texts = [self.value(size) for size in step.sizes]
        lines = []
        for n, text in enumerate(texts):
            lines.append(f"  %z{number}.{n} = getelementptr i64, ptr %numbers, i64 {n}")
            lines.append(f"  store i64 {text}, ptr %z{number}.{n}")
        return [*lines, f"  store ptr %numbers, ptr %c{len(step.slots)}"]


def _arguments(number: int, step: Step, bases: dict) -> list[str]:
    lines: list[str] = []
    for position, slot in enumerate(step.slots):
        pointer = _place(f"%s{number}.{position}", slot, bases, lines)
        lines.append(f"  store ptr {pointer}, ptr %c{position}")
    return lines


def _place(name: str, slot: Slot, bases: dict, lines: list[str], stride: str = "0") -> str:
    """A pointer to a slot, which moves on by `stride` bytes with each trip."""
    pointer = _base(slot, bases, lines)
    if slot.offset:
        lines.append(f"  {name} = getelementptr i8, ptr {pointer}, i64 {slot.offset}")
        pointer = name
    if stride != "0":
        lines.append(f"  {name}.d = mul i64 %trip, {stride}")
        lines.append(f"  {name}.m = getelementptr i8, ptr {pointer}, i64 {name}.d")
        pointer = f"{name}.m"
    return pointer


def _test(place: str) -> list[str]:
    """Reads a bool: %holds."""
    return [f"  %truth = load i8, ptr {place}", "  %holds = icmp ne i8 %truth, 0"]


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
    grain = select(operations < PARALLEL_WORK, turns, grain)
    return grain.value if isinstance(grain, Const) else grain
