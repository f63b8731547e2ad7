"""NAME.h: the whole API, documented: types, sizes, status codes, functions and hooks."""

from __future__ import annotations

from graphc.backends.cfamily.names import comment
from graphc.backends.micro_c import pushed_rows
from graphc.backends.micro_c.model import (
    ARENA_ALIGNMENT,
    CONSTANT_ALIGNMENT,
    FIRST_CHECK,
    Model,
    Tensor,
)
from graphc.backends.micro_c.training import declarations, defines, structure

TEXT = """\
{title}
#ifndef {macro}_H
#define {macro}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Any flags of the compiler will do, but for -ffinite-math-only, of -ffast-math and -Ofast: code
 * that computes floats refuses it (README.md says more). */

/* Working memory, in bytes. The caller provides it; {contents} */
#define {macro}_ARENA_SIZE {arena}
#define {macro}_ARENA_ALIGN {alignment}

/* Bytes of constants, and the number of layers that profiles and traces tell of.{flow} */
#define {macro}_WEIGHTS_SIZE {weights}
#define {macro}_LAYERS {layers}
{inference}{base}
/* Of every input and output: elements, bytes, element type, rank and row-major dimensions. How
 * integers are to be read where they are quantised: real = (value - ZERO_POINT) * SCALE.{most} */
{tensors}

{sizes}{switch}/* What {name}_run returns. */
typedef enum {{
    {macro}_OK = 0,
    {macro}_NULL_POINTER = 1, /* an argument, or a field of one, is null */
    {macro}_MISALIGNED = 2,   /* the arena, the weights, an input or an output is not aligned */
{checks}}} {name}_status;

/* A sentence for a status. */
const char *{name}_status_string({name}_status status);

/* Where the inputs lie: row-major, aligned as their type is. They are only read. */
typedef struct {{
{inputs}
}} {name}_inputs;

/* Where the outputs go. They must overlap neither each other nor an input nor the arena. */
typedef struct {{
{outputs}
}} {name}_outputs;

{shapes}{state}/* Runs the model once. `arena` has {macro}_ARENA_SIZE bytes, aligned to
 * {macro}_ARENA_ALIGN (it may be null if the size is 0). {keeps}: with an arena each,
 * several runs may take place at once. {written} */
{run}
{training}{pushed}{resident}
#ifdef {macro}_STATIC_ARENA
/* The same with an arena of its own; not reentrant. Define {macro}_STATIC_ARENA for all files. */
{name}_status {name}_run_static({given}const {name}_inputs *inputs,
    const {name}_outputs *outputs{last});
#endif

#ifdef {macro}_PROFILE
/* Yours, if {macro}_PROFILE is defined for all files: called before (done = 0) and after (done = 1)
 * every layer, 0 to {macro}_LAYERS - 1. `name` is the layer's in the ONNX model. Print lines of the
 * form `profile LAYER COUNT NAME` after each, the counts of a timer in between, and `graphc profile
 * --log` tells where the time goes. */
void {name}_profile(int layer, const char *name, int done);
#endif

#ifdef {macro}_TRACE
/* Yours, if {macro}_TRACE is defined for all files: called with the CRC-32 (that of zlib) of the
 * bytes of every input (layer -1), and of every result. Print lines of the form `trace LAYER CRC
 * NAME`, the CRC in hexadecimal, and `graphc verify --trace` tells which layer is the first to
 * differ from the host's. */
void {name}_trace(int layer, const char *name, uint32_t crc);
#endif

{report}#ifdef {macro}_SUMMARY
/* Yours, if {macro}_SUMMARY is defined for all files: called with the least, the largest and the
 * mean element of every result. Print lines of the form `summary LAYER LEAST MOST MEAN NAME`,
 * numbers as printf's %.9g does or their bits in hexadecimal (0x3f800000). A processor that rounds
 * floats otherwise, by fused multiply-add, has other CRCs; `graphc verify --trace` then goes by
 * these. */
void {name}_summary(int layer, const char *name, float least, float most, float mean);
#endif

#ifdef __cplusplus
}}
#endif

#endif
"""

PLACE = """
/* Where {side} {field} lies in an arena. */
static inline {const}{c_type} *{name}_{side}_ptr_{field}(void *arena)
{{
    return ({const}{c_type} *)(void *)((uint8_t *)arena + {macro}_{upper}_{field}_OFFSET);
}}
"""

RESIDENT = """
/* Inputs and outputs live in the arena: fill the inputs where the functions below say, and call
 * {name}_run with null pointers for what stays there (fields, or `inputs` and `outputs` whole).
 * What a field names instead is copied. A run overwrites inputs; outputs last until the next. */
"""
ELSEWHERE = "its contents mean nothing between runs."
INSIDE = "between runs it\n * holds the inputs and outputs only."


def header(model: Model) -> str:
    """The text of NAME.h."""
    title = comment(f"{model.name}: inference of a neural network. Made by graphc; do not edit.")
    return TEXT.format(
        title=title, macro=model.macro, name=model.name, weights=model.weight_bytes,
        arena=model.program.arena_bytes, alignment=ARENA_ALIGNMENT,
        contents=INSIDE if model.resident else ELSEWHERE,
        layers=len(model.program.calls), base=_base(model), flow=FLOW if model.has_flow else "",
        tensors="\n".join(x for t in (*model.inputs, *model.outputs) for x in _defines(model, t)),
        inputs="\n".join(_field(model, t, "const ") for t in model.inputs) or _EMPTY,
        outputs="\n".join(_field(model, t, "") for t in model.outputs) or _EMPTY,
        resident=_resident(model), pushed=pushed_rows.declarations(model), **_of_checks(model),
        **_of_sizes(model), **_of_state(model),
    )  # fmt: skip


FLOW = """ Those in
 * loops are told of in every trip, those of a branch if it is taken."""
MOST = """
 * Elements and bytes are those of the largest sizes; what has an open dimension has no SHAPE."""
OVERLAP = "/* an output shares memory with another tensor or with the arena */"
SWITCH = """\
/* With 0 (for all files) nothing checks the contents of inputs: indices that are out of range are
 * clamped, and {macro}_OUT_OF_RANGE is not returned. */
#ifndef {macro}_CHECKS
#define {macro}_CHECKS 1
#endif

"""
REPORT = """\
#ifdef {macro}_REPORT
/* Yours, if {macro}_REPORT is defined for all files: called with a value that is out of range
 * before {name}_run returns {macro}_OUT_OF_RANGE + check. */
void {name}_report(int check, int64_t value);
#endif

"""


_REST = "const {name}_outputs *outputs, void *arena);"


def _of_sizes(model: Model) -> dict[str, str]:
    """What the header of a program of open shape says of sizes, by field of TEXT."""
    if not model.sizes:
        run = f"{model.name}_status {model.name}_run(const {model.name}_inputs *inputs, "
        kept = f"\n    {model.state_parameter}," if model.state else ""
        run += f"const {model.name}_outputs *outputs,{kept} void *arena);"
        return {**dict.fromkeys(("most", "sizes", "shapes", "given"), ""), "run": run}
    return {
        "most": MOST,
        "sizes": model.sizes.header(),
        "shapes": model.sizes.declarations(len(model.outputs)).lstrip("\n") + "\n",
        "given": f"{model.sizes.parameter},\n    ",
        "run": f"{model.name}_status {model.name}_run({model.sizes.parameter}, "
        f"const {model.name}_inputs *inputs,\n    {_REST.format(name=model.name)}",
    }


def _of_state(model: Model) -> dict[str, str]:
    """What the header says of state and training, by field of TEXT."""
    return {
        "inference": defines(model), "state": structure(model), "training": declarations(model),
        "last": f", {model.state_parameter}" if model.state else "",
        "keeps": _keeps(model),
    }  # fmt: skip


def _keeps(model: Model) -> str:
    if not model.state:
        return "Keeps no state"
    return "It replaces the state" if model.training is None else "It only reads the state"


def _of_checks(model: Model) -> dict[str, str]:
    """What the header says of checks, by field of TEXT; as good as nothing if there are none."""
    names = {"name": model.name, "macro": model.macro}
    written = f"No output is written unless the status is {model.macro}_OK."
    more = [(f"{model.macro}_SIZE_OUT_OF_BOUNDS", "a size is out of its bounds")]
    more = more if model.sizes else []
    if model.pushed:
        more = [(f"{model.macro}_{status}", text) for status, text in pushed_rows.STATUSES]
    for number, text in enumerate(model.checks):
        more.append((f"{model.macro}_OUT_OF_RANGE{f'_{number}' if number else ''}", text))
    lines = [f"    {model.macro}_OVERLAP = 3{',' if more else ' '}      {OVERLAP}\n"]
    for value, (status, text) in enumerate(more, FIRST_CHECK):
        comma = "," if value + 1 < FIRST_CHECK + len(more) else ""
        lines.append(f"    {status} = {value}{comma} {comment(text)}\n")
    if not model.checks:
        return {"switch": "", "checks": "".join(lines), "report": "", "written": written}
    written = f"If it returns a status other than {model.macro}_OK, outputs mean nothing."
    return {"switch": SWITCH.format(**names), "checks": "".join(lines),
            "report": REPORT.format(**names), "written": written}  # fmt: skip


_EMPTY = "    int unused; /* C has no empty structures */"


def _base(model: Model) -> str:
    if not model.has_base:
        return ""
    return f"#define {model.macro}_WEIGHTS_ALIGN {CONSTANT_ALIGNMENT}\n"


def _defines(model: Model, tensor: Tensor) -> list[str]:
    start = f"#define {model.macro}_{tensor.key[0].upper()}_{tensor.field}"
    shape = tensor.type.dims
    lines = [
        f"{start}_SIZE {tensor.elements}",
        f"{start}_BYTES {tensor.nbytes}",
        f'{start}_TYPE "{tensor.type.dtype}"',
        f"{start}_RANK {len(shape)}",
    ]
    if shape and tensor.type.is_static:
        lines.append(f"{start}_SHAPE {{{', '.join(map(str, shape))}}}")
    if tensor.quantisation is not None:
        scale, zero_point = tensor.quantisation
        lines.append(f"{start}_SCALE {scale!r}f")
        lines.append(f"{start}_ZERO_POINT ({zero_point})")
    if tensor.key in model.resident:
        lines.append(f"{start}_OFFSET {model.resident[tensor.key].offset}")
    return lines


def _field(model: Model, tensor: Tensor, const: str) -> str:
    most = "" if tensor.type.is_static else "at most "
    said = f"{tensor.name}: {tensor.shape_text}, {most}{tensor.nbytes} bytes"
    side, number = tensor.key
    if side == "output" and number in model.program.true_sizes:
        said += f" at most: of it the leading corner, {_true_shape(model, number)}"
    elif side == "output" and number in {p for p, _ in model.program.true_sizes.values()}:
        said = f"true sizes: {tensor.shape_text}, {tensor.nbytes} bytes"
    return f"    {const}{tensor.c_type} *{tensor.field}; {comment(said)}"


def _true_shape(model: Model, number: int) -> str:
    """The shape of an output that has bounds for one, in terms of what holds it after a run."""
    position, cell = model.program.true_sizes[number]
    rank, field = model.outputs[number].type.rank, model.outputs[position].field
    return f"[{', '.join(f'{field}[{cell + d}]' for d in range(rank))}]"


def _resident(model: Model) -> str:
    """The functions that tell where inputs and outputs lie in the arena."""
    if not model.resident:
        return ""
    parts = [RESIDENT.format(name=model.name)]
    for side, tensors, const in (("input", model.inputs, ""), ("output", model.outputs, "const ")):
        for tensor in tensors:
            parts.append(PLACE.format(
                side=side, upper=side.upper(), field=tensor.field, const=const, name=model.name,
                c_type=tensor.c_type, macro=model.macro,
            ).lstrip("\n"))  # fmt: skip
        if len(tensors) == 1:
            both = f"{model.name}_{side}_ptr"
            parts.append(f"#define {both}(arena) {both}_{tensors[0].field}(arena)\n")
    return "\n".join(parts)
