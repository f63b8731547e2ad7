"""A program to one LLVM module: its kernels, and a function that calls them in order.

`void graphc_run(ptr inputs, ptr outputs, ptr arena, ptr constants, ptr pool)` takes arrays of
pointers; `void graphc_invoke(ptr cells)` takes the same five, in that order, from an array, so that
a caller pays for one argument. A parallel phase worth splitting goes through the thread pool of
pool.py; everything else is called directly. Equal programs give equal text.
"""

from __future__ import annotations

from graphc.backends.llvm_cpu.emit_kernel import Declarations, Phase, emit_kernel
from graphc.ir.program import Program, Slot, Step

PARALLEL_WORK = 200_000  # flops or bytes below which a phase is not worth waking a thread
ENTRY = "graphc_run"
INVOKE = "graphc_invoke"

_INVOKE_TEXT = f"""define void @{INVOKE}(ptr %cells) #0 {{
  %inputs = load ptr, ptr %cells
  %outputs.at = getelementptr ptr, ptr %cells, i64 1
  %outputs = load ptr, ptr %outputs.at
  %arena.at = getelementptr ptr, ptr %cells, i64 2
  %arena = load ptr, ptr %arena.at
  %constants.at = getelementptr ptr, ptr %cells, i64 3
  %constants = load ptr, ptr %constants.at
  %pool.at = getelementptr ptr, ptr %cells, i64 4
  %pool = load ptr, ptr %pool.at
  call void @{ENTRY}(ptr %inputs, ptr %outputs, ptr %arena, ptr %constants, ptr %pool)
  ret void
}}"""


def emit_program(program: Program) -> str:
    """The LLVM IR of a program."""
    declarations = Declarations()
    phases: dict[str, list[Phase]] = {}
    texts: list[str] = []
    for kernel in program.kernels.values():
        phases[kernel.name], text = emit_kernel(kernel, declarations)
        texts.append(text)
    return "\n".join(
        [
            "declare void @graphc_parallel_for(ptr, ptr, ptr, i64, i64)",
            *declarations.lines,
            *texts,
            _main(program, phases),
            _INVOKE_TEXT,
            'attributes #0 = { nounwind "prefer-vector-width"="512" }',
        ]
    )


def _main(program: Program, phases: dict[str, list[Phase]]) -> str:
    width = max((len(s.slots) for s in program.steps), default=1)
    lines = [
        f"define void @{ENTRY}(ptr %inputs, ptr %outputs, ptr %arena, ptr %consts, ptr %pool) #0"
        " {",
        f"  %args = alloca [{max(width, 1)} x ptr], align 64",
    ]
    bases: dict[tuple[str, int], str] = {}
    for number, step in enumerate(program.steps):
        lines += _arguments(number, step, bases)
        for phase in phases[step.kernel]:
            lines.append(_call(phase, step))
    return "\n".join([*lines, "  ret void", "}"])


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


def _call(phase: Phase, step: Step) -> str:
    worth = max(step.flops, step.nbytes) >= PARALLEL_WORK
    if phase.parallel and phase.extent > 1 and worth:
        return (
            f"  call void @graphc_parallel_for(ptr %pool, ptr {phase.name}, ptr %args, "
            f"i64 {phase.extent}, i64 1)"
        )
    return f"  call void {phase.name}(ptr %args, i64 0, i64 {phase.extent})"


