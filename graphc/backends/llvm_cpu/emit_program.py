"""A program to one LLVM module: its kernels, and functions that call them in order.

    void graphc_run(ptr inputs, ptr outputs, ptr arena, ptr constants, ptr pool)
    void graphc_invoke(ptr cells)       the same five pointers, in an array

`inputs`, `outputs` and `constants` are arrays of pointers; the arena and the constants are aligned
to 64 bytes. A parallel phase worth splitting goes through the thread pool of pool.py; everything
else is called directly. Neither the number of threads nor an address is part of the module, which
is deterministic text: equal programs give equal modules. Long programs are cut into functions of
PART steps, as LLVM takes time beyond proportion for long ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.llvm_cpu.emit_kernel import Declarations, Phase, emit_kernel
from graphc.ir.program import Program, Slot, Step

RUN, INVOKE = "graphc_run", "graphc_invoke"
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
    return "\n".join(
        [
            "declare void @graphc_parallel_for(ptr, ptr, ptr, i64, i64)",
            *declarations.lines,
            *texts,
            *_main(program.steps, phases),
            _invoke(),
            "attributes #0 = { nounwind }\n",
        ]
    )


def _main(steps: Sequence[Step], phases: dict[str, list[Phase]]) -> list[str]:
    """The function that runs all steps, and before it those of its parts if it has any."""
    if len(steps) <= PART:
        return [_function(f"void @{RUN}", _steps(steps, phases))]
    starts = range(0, len(steps), PART)
    names = [f"void @graphc_part{number}" for number in range(len(starts))]
    parts = [
        _function(f"internal {name}", _steps(steps[start : start + PART], phases))
        for name, start in zip(names, starts)
    ]
    calls = [f"  call {name}({_parameters()})" for name in names]
    return [*parts, _function(f"void @{RUN}", calls)]


def _parameters() -> str:
    return ", ".join(f"ptr %{name}" for name in _ARGUMENTS)


def _function(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"define {head}({_parameters()}) #0 {{", *lines, "  ret void", "}"])


def _steps(steps: Sequence[Step], phases: dict[str, list[Phase]]) -> list[str]:
    width = max((len(s.slots) for s in steps), default=1)
    lines = [f"  %args = alloca [{max(width, 1)} x ptr], align 64"]
    bases: dict[tuple[str, int], str] = {}
    for number, step in enumerate(steps):
        lines += _arguments(number, step, bases)
        lines += [_call(phase) for phase in phases[step.kernel]]
    return lines


def _invoke() -> str:
    lines = [f"define void @{INVOKE}(ptr %cells) #0 {{"]
    for number, name in enumerate(_ARGUMENTS):
        lines.append(f"  %{name}.a = getelementptr ptr, ptr %cells, i64 {number}")
        lines.append(f"  %{name} = load ptr, ptr %{name}.a")
    return "\n".join([*lines, f"  call void @{RUN}({_parameters()})", "  ret void", "}"])


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


def _call(phase: Phase) -> str:
    grain = _grain(phase)
    if phase.extent > grain:
        return (
            f"  call void @graphc_parallel_for(ptr %pool, ptr {phase.name}, ptr %args, "
            f"i64 {phase.extent}, i64 {grain})"
        )
    return f"  call void {phase.name}(ptr %args, i64 0, i64 {phase.extent})"


def _grain(phase: Phase) -> int:
    """Iterations of a phase that a thread takes at a time; all of them if it is not to be split."""
    if not phase.parallel or phase.work < PARALLEL_WORK:
        return phase.extent
    enough = -(-RANGE_WORK * phase.extent // phase.work)
    return max(1, min(enough, phase.extent // MIN_RANGES))
