"""NAME.c: the kernels as static functions, and the one that checks its arguments and calls them."""

from __future__ import annotations

from graphc.backends.cfamily.printer import comment
from graphc.backends.cfamily.spell import storage_type
from graphc.backends.micro_c.model import Constant, Model
from graphc.errors import InternalError
from graphc.ir.kernel import Buffer
from graphc.ir.program import Slot, Step

TEXT = """\
{title}
#include "{name}.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Called after every layer if defined: its number, name, first output and that output's bytes. */
#ifndef {macro}_LAYER_HOOK
#define {macro}_LAYER_HOOK(number, name, data, bytes) ((void)0)
#endif

/* The sizes that this code takes for granted, checked by the compiler. */
typedef char {name}_assert_float[sizeof(float) == 4 ? 1 : -1];
typedef char {name}_assert_byte[sizeof(uint8_t) == 1 ? 1 : -1];
{externs}
{unit}
{run}
#ifdef {macro}_STATIC_ARENA
{name}_status {name}_run_static(const {name}_inputs *inputs, const {name}_outputs *outputs)
{{
    static union {{
        uint8_t bytes[{macro}_ARENA_SIZE + 1];
        double number[{macro}_ARENA_SIZE / 8 + 2];
    }} storage;
    uint8_t *start = storage.bytes;
    while ((uintptr_t)start % {macro}_ARENA_ALIGN != 0) {{
        ++start;
    }}
    return {name}_run(inputs, outputs, start);
}}
#endif
"""


def source(model: Model) -> str:
    """The text of NAME.c."""
    return TEXT.format(
        title=comment(f"{model.name}: the code. Made by graphc; do not edit."),
        name=model.name, macro=model.macro,
        externs=declarations(model), unit=model.unit.text(), run=_run(model),
    )  # fmt: skip


def declaration(constant: Constant) -> str:
    """The type, symbol and size of a constant."""
    return f"const {constant.c_type} {constant.symbol}[{max(constant.array.size, 1)}]"


def declarations(model: Model) -> str:
    """Declarations of the constants, with C linkage."""
    if not model.constants:
        return ""
    lines = [f"extern {declaration(c)};" for c in model.constants]
    return "\n".join(["", '#ifdef __cplusplus\nextern "C" {\n#endif', *lines,
                      "#ifdef __cplusplus\n}\n#endif", ""])  # fmt: skip


# ---------------------------------------------------------------- the entry


def _run(model: Model) -> str:
    name = model.name
    lines = [
        f"{name}_status {name}_run(const {name}_inputs *inputs, const {name}_outputs *outputs,",
        f"    {' ' * len(name)}void *arena)",
        "{",
    ]
    if model.program.arena_bytes:
        lines.append("    uint8_t *const memory = (uint8_t *)arena;")
    lines += _checks(model)
    for number, step in enumerate(model.program.steps):
        lines += _call(model, number, step)
    return "\n".join([*lines, f"    return {model.macro}_OK;", "}"]) + "\n"


def _checks(model: Model) -> list[str]:
    """The status for arguments that cannot be used."""
    needed = ["inputs", "outputs"] + (["arena"] if model.program.arena_bytes else [])
    null = " || ".join(f"{pointer} == 0" for pointer in needed)
    lines = [f"    if ({null}) {{", f"        return {model.macro}_NULL_POINTER;", "    }"]
    if not model.program.arena_bytes:
        lines.append("    (void)arena;")
    pointers = [("inputs", t) for t in model.inputs] + [("outputs", t) for t in model.outputs]
    for owner, tensor in pointers:
        lines += [
            f"    if ({owner}->{tensor.field} == 0) {{",
            f"        return {model.macro}_NULL_POINTER;",
            "    }",
        ]
    aligned = [(f"{owner}->{t.field}", f"sizeof({t.c_type})") for owner, t in pointers]
    if model.program.arena_bytes:
        aligned.append(("arena", f"{model.macro}_ARENA_ALIGN"))
    for pointer, size in aligned:
        if size in ("sizeof(uint8_t)", "sizeof(int8_t)"):
            continue
        lines += [
            f"    if ((uintptr_t){pointer} % {size} != 0) {{",
            f"        return {model.macro}_MISALIGNED;",
            "    }",
        ]
    return lines


def _call(model: Model, number: int, step: Step) -> list[str]:
    kernel = model.program.kernels.get(step.kernel)
    if kernel is None or len(kernel.params) != len(step.slots):
        raise InternalError(f"step {step.kernel} does not fit its kernel")
    lines = [f"    {comment(', '.join(step.loc))}"] if step.loc else []
    arguments = [_argument(model, b, s) for b, s in zip(kernel.params, step.slots)]
    start = f"    {model.functions[step.kernel]}("
    call = f"{start}{', '.join(arguments)});"
    if len(call) > 100:
        call = start + ",".join(f"\n        {a}" for a in arguments) + ");"
    written = [n for n, b in enumerate(kernel.params) if b.access != "in"]
    hook = []
    if written:
        slot = step.slots[written[0]]
        said = comment_free(step.loc[0] if step.loc else step.kernel)
        hook = [f'    {model.macro}_LAYER_HOOK({number}, "{said}", '
                f"{arguments[written[0]]}, {slot.elements * slot.dtype.size});"]  # fmt: skip
    return [*lines, call, *hook]


def comment_free(text: str) -> str:
    """A layer's name as the inside of a string literal."""
    plain = (c if c.isprintable() and ord(c) < 128 and c not in '"\\?' else "_" for c in text)
    return "".join(plain)


def _argument(model: Model, buffer: Buffer, slot: Slot) -> str:
    const = "const " if buffer.access == "in" else ""
    if slot.space == "arena":
        place = f"memory + {slot.offset}" if slot.offset else "memory"
        return f"({const}{storage_type(slot.dtype)} *)(void *)({place})"
    if slot.space == "const":
        base = model.constants[slot.index].symbol
    else:
        tensors = model.inputs if slot.space == "input" else model.outputs
        base = f"{slot.space}s->{tensors[slot.index].field}"
    size = slot.dtype.size
    if slot.offset % size:
        raise InternalError(f"{base} at byte {slot.offset}, no multiple of {size}")
    return f"{base} + {slot.offset // size}" if slot.offset else base
