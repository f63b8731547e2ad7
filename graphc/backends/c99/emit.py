"""A program as one C99 file with the entry

    int run(const void *const *inputs, void *const *outputs, void *arena,
            const void *const *constants);

which calls the kernels in order and returns 0. The arena is `Program.arena_bytes` long and aligned
to 64 bytes; constants are the arrays of `Program.constants`, in order.
"""

from __future__ import annotations

from graphc.backends.cfamily.float_rules import double_check, float_rules
from graphc.backends.cfamily.names import comment
from graphc.backends.cfamily.printer import Unit, size_values
from graphc.backends.cfamily.spell import storage_type
from graphc.backends.cfamily.steps import StepPrinter
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.program import AnyStep, Program, Slot, Step
from graphc.passes.kernel.prepare import for_c

INCLUDES = "#include <float.h>\n#include <math.h>\n#include <stdint.h>\n"
COPYING = "#include <string.h>\n"
HEADER = """\
int run(const void *const *inputs, void *const *outputs, void *arena, const void *const *constants)
"""


def emit(program: Program) -> str:
    """The C text; UnsupportedError for sizes, or if a kernel uses what C lacks (strings, complex
    numbers)."""
    if program.all_sizes:
        raise UnsupportedError(f"{program.name}: plain C takes no sizes at run time; fix them")
    unit = Unit()
    names = {name: unit.kernel(for_c(kernel)) for name, kernel in program.kernels.items()}
    unit.functions.append(_entry(program, names))
    title = comment(
        f"{program.name}: {len(program.calls)} steps, arena {program.arena_bytes} bytes"
    )
    code = unit.text()
    includes = INCLUDES + (COPYING if "memcpy(" in code else "")
    return f"{title}\n{includes}\n{float_rules(code)}{double_check('run', code)}{code}"


def _entry(program: Program, names: dict[str, str]) -> str:
    lines = [HEADER + "{"]
    printer = _Steps(program, names)
    printer.steps(program.steps)
    pairs = (("input", "inputs"), ("output", "outputs"), ("arena", "arena"), ("const", "constants"))
    lines += [f"    (void){name};" for space, name in pairs if space not in printer.used]
    return "\n".join([*lines, *printer.lines, "    return 0;", "}"]) + "\n"


class _Steps(StepPrinter):
    """Prints steps, and notes which spaces they use."""

    def __init__(self, program: Program, names: dict[str, str]):
        super().__init__()
        self.program, self.names = program, names
        self.used: set[str] = set()

    def note(self, step: AnyStep) -> None:
        if step.loc:
            self.line(comment(", ".join(step.loc)))

    def call(self, step: Step) -> None:
        kernel = self.program.kernels.get(step.kernel)
        if kernel is None or len(kernel.params) != len(step.slots):
            raise InternalError(f"step {step.kernel} does not fit its kernel")
        self.note(step)
        arguments = [
            self.pointer(slot, storage_type(slot.dtype), buffer.access == "in")
            for buffer, slot in zip(kernel.params, step.slots)
        ]
        sizes = size_values(kernel, step.sizes)
        if sizes:
            arguments.append(f"(const int64_t[]){{{', '.join(map(str, sizes))}}}")
        self.call_of(self.names[step.kernel], arguments)

    def pointer(self, slot: Slot, c_type: str, is_const: bool) -> str:
        self.used.add(slot.space)
        const = "const " if is_const else ""
        bases = {
            "input": f"inputs[{slot.index}]",
            "output": f"outputs[{slot.index}]",
            "const": f"constants[{slot.index}]",
            "arena": "arena",
        }
        base = bases[slot.space]
        if slot.offset:
            base = f"(({const}uint8_t *){base} + {slot.offset})"
        return f"({const}{c_type} *){base}"
