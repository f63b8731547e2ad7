"""A program as one C99 file with the entry

    int run(const void *const *inputs, void *const *outputs, void *arena,
            const void *const *constants);

which calls the kernels in order and returns 0. The arena is `Program.arena_bytes` long and aligned
to 64 bytes; constants are the arrays of `Program.constants`, in order.

A program that has sizes takes a structure of them last, `run_sizes`. It returns -1 without one, and
RUN_SIZE_OUT_OF_BOUNDS if a size that the caller gives is out of its bounds. The run writes those
sizes that data decides. Outputs must have room for the largest ones; `run_output_shape_N` tells the
shape of output N after the run.
"""

from __future__ import annotations

from graphc.backends.cfamily.float_rules import double_check, float_rules
from graphc.backends.cfamily.names import comment, identifier
from graphc.backends.cfamily.printer import Unit, size_values
from graphc.backends.cfamily.sizes import GIVEN, SizesInC
from graphc.backends.cfamily.spell import storage_type
from graphc.backends.cfamily.steps import StepPrinter
from graphc.errors import InternalError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Sym
from graphc.ir.program import AnyStep, Count, Program, Slot, Step
from graphc.passes.kernel.prepare import for_c

INCLUDES = "#include <float.h>\n#include <math.h>\n#include <stdint.h>\n"
COPYING = "#include <string.h>\n"
HEADER = "int run({})\n{{"
PARAMETERS = ("const void *const *inputs", "void *const *outputs", "void *arena",
              "const void *const *constants")  # fmt: skip
OUT_OF_BOUNDS = 2  # the status, as that of libraries


def emit(program: Program) -> str:
    """The C text; UnsupportedError if a kernel uses what C lacks (strings, complex numbers)."""
    unit = Unit()
    names = {name: unit.kernel(for_c(kernel)) for name, kernel in program.kernels.items()}
    sizes = _sizes(program, unit)
    structure = ""
    if sizes:
        unit.functions.append(sizes.functions([type.dims for _, type in program.own_outputs]))
        status = f"#define {sizes.macro}_SIZE_OUT_OF_BOUNDS {OUT_OF_BOUNDS} /* a status */\n\n"
        structure = sizes.structure() + status
    unit.functions.append(_entry(program, names, sizes))
    title = comment(
        f"{program.name}: {len(program.calls)} steps, arena {program.arena_bytes} bytes"
    )
    code = structure + unit.text()
    includes = INCLUDES + (COPYING if "memcpy(" in code else "")
    return f"{title}\n{includes}\n{float_rules(code)}{double_check('run', code)}{code}"


def _sizes(program: Program, unit: Unit) -> SizesInC:
    fields: dict[Sym, str] = {}
    for size in program.all_sizes:
        fields[size] = identifier(size.name, fields.values())
    return SizesInC("run", fields, unit.speller, counts=program.counts)


def _entry(program: Program, names: dict[str, str], sizes: SizesInC) -> str:
    if not sizes:
        lines = [HEADER.format(", ".join(PARAMETERS))]
    else:
        lines = [HEADER.format(",\n        ".join([*PARAMETERS, sizes.parameter]))]
        lines += ["    if (sizes == 0) {", "        return -1;", "    }"]
    wrong = sizes.wrong({GIVEN})
    if wrong:
        status = f"{sizes.macro}_SIZE_OUT_OF_BOUNDS"
        lines += [f"    if ({wrong}) {{", f"        return {status};", "    }"]
    printer = _Steps(program, names, sizes)
    printer.steps(program.steps)
    pairs = (("input", "inputs"), ("output", "outputs"), ("arena", "arena"), ("const", "constants"))
    lines += [f"    (void){name};" for space, name in pairs if space not in printer.used]
    return "\n".join([*lines, *printer.lines, "    return 0;", "}"]) + "\n"


class _Steps(StepPrinter):
    """Prints steps, and notes which spaces they use."""

    def __init__(self, program: Program, names: dict[str, str], sizes: SizesInC):
        super().__init__()
        self.program, self.names, self.sizes = program, names, sizes
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
        sizes = [self.sizes.text(size) for size in size_values(kernel, step.sizes)]
        if sizes:
            arguments.append(f"(const int64_t[]){{{', '.join(sizes)}}}")
        self.call_of(self.names[step.kernel], arguments)

    def count(self, step: Count) -> None:
        if isinstance(step.size, Sym):
            self.line(f"{self.sizes.read(step.size)} = {self.value(step.slot, i64)};")

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
