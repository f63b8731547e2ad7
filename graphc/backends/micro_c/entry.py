"""NAME_run: checks of its arguments, and the steps (steps.py).

Where inputs and outputs live in the arena, those that the caller keeps elsewhere are copied before
the first step and after the last.
"""

from __future__ import annotations

import re

from graphc.backends.cfamily.names import text_literal
from graphc.backends.cfamily.sizes import GIVEN
from graphc.backends.micro_c import pushed_rows
from graphc.backends.micro_c.hooks import hooks, literal
from graphc.backends.micro_c.model import Model, Tensor
from graphc.backends.micro_c.steps import step_lines

APART = """\
/* Whether two pieces of memory share no byte. */
static int {name}_apart(const void *a, uint32_t a_bytes, const void *b, uint32_t b_bytes)
{{
    const uintptr_t p = (uintptr_t)a, q = (uintptr_t)b;
    return p < q ? q - p >= a_bytes : p - q >= b_bytes;
}}
"""

SIZE_STRING = """\
    case {macro}_SIZE_OUT_OF_BOUNDS:
        return "a size is out of its bounds";
"""
STRINGS = """\
const char *{name}_status_string({name}_status status)
{{
    switch (status) {{
    case {macro}_OK:
        return "ok";
    case {macro}_NULL_POINTER:
        return "an argument, or a field of one, is null";
    case {macro}_MISALIGNED:
        return "the arena, the weights, an input or an output is not aligned";
    case {macro}_OVERLAP:
        return "an output shares memory with another tensor or with the arena";
{checks}    }}
    return "no status of {name}";
}}
"""


def entry(model: Model) -> str:
    """Everything after the kernels: hooks, checks, NAME_run and NAME_status_string."""
    names = {"name": model.name, "macro": model.macro}
    parts = [hooks(model)]
    if overlap_checks(model):
        parts.append(APART.format(**names))
    if model.sizes:
        parts.append(model.sizes.functions([t.type.dims for t in model.outputs]))
    checks = "".join(_string(model, n) for n in range(len(model.checks)))
    if model.sizes:
        checks = SIZE_STRING.format(**names) + checks
    if model.pushed:
        checks = "".join(
            f'    case {model.macro}_{status}:\n        return "{text}";\n'
            for status, text in pushed_rows.STATUSES
        )
    pushed = pushed_rows.functions(model, _pushed_overlaps(model)) if model.pushed else ""
    return "\n".join([*parts, _run(model) + pushed, STRINGS.format(**names, checks=checks)])


def _string(model: Model, number: int) -> str:
    """The sentence for the status of a check."""
    status = f"{model.macro}_OUT_OF_RANGE{f'_{number}' if number else ''}"
    return f"    case {status}:\n        return {text_literal(model.checks[number])};\n"


# ---------------------------------------------------------------- the function


def _run(model: Model) -> str:
    name = model.name
    start = f"{name}_status {name}_run("
    lines = [
        f"const {name}_inputs *inputs, const {name}_outputs *outputs,",
        f"{model.state_parameter}, void *arena)" if model.state else "void *arena)",
    ]
    if model.sizes:
        lines.insert(0, f"{model.sizes.parameter},")
    lines = [start + lines[0], *(" " * len(start) + line for line in lines[1:]), "{"]
    return "\n".join([*lines, *body(model), f"    return {model.macro}_OK;", "}"]) + "\n"


def body(model: Model) -> list[str]:
    """The lines of a function that runs the steps of a model, but for its last."""
    rest = [*overlap_checks(model), *_cleared(model), *_copies(model, "in")]
    rest += [*_traced_inputs(model), *step_lines(model), *_copies(model, "out")]
    text, lines = "\n".join(rest), []
    if model.program.arena_bytes:
        lines.append("    uint8_t *const memory = (uint8_t *)arena;")
    if re.search(r"\bkeys\b", text):
        lines += [f"#if {model.macro}_CHECKS", f"    uint64_t keys[{len(model.checks)}];", "#endif"]
    if model.resident:
        lines += _places(model)
    return [*lines, *_checks(model), *model.sizes.locals_of_run(text), *rest]


def _refuse(model: Model, condition: str, status: str) -> list[str]:
    return [f"    if ({condition}) {{", f"        return {model.macro}_{status};", "    }"]


def _places(model: Model) -> list[str]:
    """Pointers that the caller gave, null where a tensor stays in the arena."""
    lines = []
    for side, short, tensors, const in model.sides():
        for t in tensors:
            lines.append(f"    {const}{t.c_type} *const {short}_{t.field} = "
                         f"{side} == 0 ? 0 : {side}->{t.field};")  # fmt: skip
    return lines


def _pointer(model: Model, side: str, short: str, tensor: Tensor) -> str:
    return f"{short}_{tensor.field}" if model.resident else model.place(tensor.key)


def _checks(model: Model) -> list[str]:
    """The status for pointers that are missing or not aligned."""
    arena = bool(model.program.arena_bytes)
    needed = ["sizes"] * bool(model.sizes) + ([] if model.resident else list(model.arguments))
    needed += ["state"] * bool(model.state)
    needed += ["arena"] * arena
    lines = _refuse(model, " || ".join(f"{p} == 0" for p in needed), "NULL_POINTER")
    lines = lines if needed else []
    if model.sizes.given:
        lines += _refuse(model, model.sizes.wrong({GIVEN}), "SIZE_OUT_OF_BOUNDS")
    if not arena:
        lines.append("    (void)arena;")
    aligned = [("arena", f"{model.macro}_ARENA_ALIGN")] if arena else []
    if model.has_base:
        aligned.append((f"{model.macro}_WEIGHTS_ADDRESS", f"{model.macro}_WEIGHTS_ALIGN"))
    for side, short, tensors, _ in model.sides():
        if not tensors and side in model.arguments:
            lines.append(f"    (void){side};")
        for tensor in tensors:
            pointer = _pointer(model, side, short, tensor)
            if tensor.elements and not model.resident and pointer not in needed:
                lines += _refuse(model, f"{pointer} == 0", "NULL_POINTER")
            if tensor.type.dtype.size > 1:
                aligned.append((pointer, f"sizeof({tensor.c_type})"))
    if model.state:
        aligned.append(("state", f"{model.macro}_STATE_ALIGN"))
    for pointer, size in aligned:
        lines += _refuse(model, f"(uintptr_t){pointer} % {size} != 0", "MISALIGNED")
    return lines


def overlap_checks(model: Model) -> list[str]:
    """The status for tensors of the caller's that share memory with the arena, or with an output.

    Where tensors live in the arena, inputs are copied before an output is written.
    """
    pieces = [
        (_pointer(model, side, short, t), t, short)
        for side, short, tensors, _ in model.sides() for t in tensors if t.elements
    ]  # fmt: skip
    conditions = []
    if model.state and model.program.arena_bytes:
        state = "state, (uint32_t)sizeof *state"
        conditions.append(f"!{model.name}_apart({state}, arena, {model.macro}_ARENA_SIZE)")
    for number, (pointer, tensor, short) in enumerate(pieces):
        piece = f"{pointer}, {model.nbytes(tensor)}"
        if model.program.arena_bytes:
            outside = f"!{model.name}_apart({piece}, arena, {model.macro}_ARENA_SIZE)"
            conditions.append(_elsewhere(model, pointer, tensor) + outside)
        if model.state:
            conditions.append(f"!{model.name}_apart({piece}, state, (uint32_t)sizeof *state)")
        for other, its, kind in pieces[:number] if short == "out" else ():
            if not model.resident or kind == "out":
                given = f"{pointer} != 0 && {other} != 0 && " if model.resident else ""
                conditions.append(
                    f"{given}!{model.name}_apart({piece}, {other}, {model.nbytes(its)})"
                )
    return [line for c in conditions for line in _refuse(model, c, "OVERLAP")]


def _pushed_overlaps(model: Model) -> list[str]:
    """The same with rows that are pushed in place of the input."""
    apart, arena = f"!{model.name}_apart", f"arena, {model.macro}_ARENA_SIZE"
    pieces = [(model.place(t.key), model.nbytes(t)) for t in model.outputs if t.elements]
    conditions = ["image, (uint32_t)sizeof *image", *(f"{p}, {size}" for p, size in pieces)]
    if model.program.arena_bytes:
        lines = [f"{apart}({piece}, {arena})" for piece in (*conditions, "rows, left")]
    else:
        lines = []
    lines += [f"left != 0 && {apart}({piece}, rows, left)" for piece in conditions]
    return [line for c in lines for line in _refuse(model, c, "OVERLAP")]


def _elsewhere(model: Model, pointer: str, tensor: Tensor) -> str:
    """The start of a condition: a tensor that could live in the arena is kept elsewhere."""
    if not model.resident:
        return ""
    place = f"(const void *)(memory + {model.resident[tensor.key].offset})"
    return f"{pointer} != 0 && (const void *){pointer} != {place} && "


def _traced_inputs(model: Model) -> list[str]:
    """The inputs as layer -1 of a trace."""
    lines = []
    for tensor in model.inputs:
        place = model.place(tensor.key)
        if model.resident:
            place = f"memory + {model.resident[tensor.key].offset}"
        crc = f"{model.name}_crc32({place}, {model.nbytes(tensor)})"
        lines.append(f'    {model.name}_trace(-1, "{literal(tensor.name)}", {crc});')
    return [f"#ifdef {model.macro}_TRACE", *lines, "#endif"] if lines else []


def _cleared(model: Model) -> list[str]:
    """With hooks, memory that no layer writes has the same contents on every machine."""
    if not model.resident:
        lines = [f"    memset({model.place(t.key)}, 0, {model.nbytes(t)});" for t in model.outputs
                 if t.elements]  # fmt: skip
        if model.program.arena_bytes:
            lines.insert(0, f"    memset(arena, 0, {model.macro}_ARENA_SIZE);")
    else:
        gaps = _gaps(model)
        lines = [f"    memset(memory + {start}, 0, {stop - start}u);" for start, stop in gaps]
    condition = f"#if defined({model.macro}_TRACE) || defined({model.macro}_SUMMARY)"
    return [condition, *lines, "#endif"] if lines else []


def _gaps(model: Model) -> list[tuple[int, int]]:
    """What of the arena no input lies in: (first byte, end)."""
    places = sorted((model.resident[t.key].offset, t.nbytes) for t in model.inputs)
    gaps, start = [], 0
    for offset, nbytes in [*places, (model.program.arena_bytes, 0)]:
        if offset > start:
            gaps.append((start, offset))
        start = max(start, offset + nbytes)
    return gaps


def _copies(model: Model, side: str) -> list[str]:
    """Tensors that live in the arena copied from, or to, where the caller keeps them."""
    lines = []
    for _, short, tensors, _ in model.sides():
        for tensor in tensors if short == side and model.resident else ():
            offset, pointer = model.resident[tensor.key].offset, f"{short}_{tensor.field}"
            pair = [f"memory + {offset}", pointer]
            if side == "out":
                pair.reverse()
            condition = _elsewhere(model, pointer, tensor).removesuffix(" && ")
            if tensor.elements:
                nbytes = model.nbytes(tensor, side == "out")
                copy = f"        memcpy({', '.join(pair)}, {nbytes});"
                lines += [f"    if ({condition}) {{", copy, "    }"]
    return lines
