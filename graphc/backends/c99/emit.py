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
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.kernel import Buffer
from graphc.ir.program import Program, Slot, Step
from graphc.passes.kernel.prepare import for_c

INCLUDES = "#include <float.h>\n#include <math.h>\n#include <stdint.h>\n"
HEADER = """\
int run(const void *const *inputs, void *const *outputs, void *arena, const void *const *constants)
"""


def emit(program: Program) -> str:
    """The C text; UnsupportedError for sizes, or if a kernel uses what C lacks (strings, complex
    numbers)."""
    if program.sizes:
        raise UnsupportedError(f"{program.name}: plain C takes no sizes at run time; fix them")
    unit = Unit()
    names = {name: unit.kernel(for_c(kernel)) for name, kernel in program.kernels.items()}
    unit.functions.append(_entry(program, names))
    title = comment(
        f"{program.name}: {len(program.calls)} steps, arena {program.arena_bytes} bytes"
    )
    code = unit.text()
    return f"{title}\n{INCLUDES}\n{float_rules(code)}{double_check('run', code)}{code}"


def _entry(program: Program, names: dict[str, str]) -> str:
    lines = [HEADER + "{"]
    used = {slot.space for step in program.calls for slot in step.slots}
    pairs = (("input", "inputs"), ("output", "outputs"), ("arena", "arena"), ("const", "constants"))
    lines += [f"    (void){name};" for space, name in pairs if space not in used]
    for step in program.calls:
        lines += _call(program, step, names)
    return "\n".join([*lines, "    return 0;", "}"]) + "\n"


def _call(program: Program, step: Step, names: dict[str, str]) -> list[str]:
    kernel = program.kernels.get(step.kernel)
    if kernel is None or len(kernel.params) != len(step.slots):
        raise InternalError(f"step {step.kernel} does not fit its kernel")
    lines = [f"    {comment(', '.join(step.loc))}"] if step.loc else []
    arguments = [_argument(b, s) for b, s in zip(kernel.params, step.slots)]
    sizes = size_values(kernel, step.sizes)
    if sizes:
        arguments.append(f"(const int64_t[]){{{', '.join(map(str, sizes))}}}")
    call = f"    {names[step.kernel]}({', '.join(arguments)});"
    if len(call) <= 100:
        return [*lines, call]
    return [*lines, f"    {names[step.kernel]}(", *(f"        {a}," for a in arguments[:-1]),
            f"        {arguments[-1]});"]  # fmt: skip


def _argument(buffer: Buffer, slot: Slot) -> str:
    const = "const " if buffer.access == "in" else ""
    bases = {
        "input": f"inputs[{slot.index}]",
        "output": f"outputs[{slot.index}]",
        "const": f"constants[{slot.index}]",
        "arena": "arena",
    }
    base = bases[slot.space]
    if slot.offset:
        base = f"(({const}uint8_t *){base} + {slot.offset})"
    return f"({const}{storage_type(slot.dtype)} *){base}"
