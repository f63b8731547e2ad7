"""NAME.h: types, sizes, status codes and the two functions, documented."""

from __future__ import annotations

from graphc.backends.cfamily.printer import comment
from graphc.backends.micro_c.model import ARENA_ALIGNMENT, Model, Tensor

TEXT = """\
{title}
#ifndef {macro}_H
#define {macro}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Working memory, in bytes. The caller provides it; its contents mean nothing between runs. */
#define {macro}_ARENA_SIZE {arena}
#define {macro}_ARENA_ALIGN {alignment}

/* Number of elements of every input and output, and how integers are to be read where they are
 * quantised: real = (value - ZERO_POINT) * SCALE. */
{sizes}

/* What {name}_run returns. */
typedef enum {{
    {macro}_OK = 0,
    {macro}_NULL_POINTER = 1, /* an argument, or a field of one, is null */
    {macro}_MISALIGNED = 2    /* the arena, an input or an output is not aligned as needed */
}} {name}_status;

/* Where the inputs lie: row-major, aligned as their type is. They are only read. */
typedef struct {{
{inputs}
}} {name}_inputs;

/* Where the outputs go. They must overlap neither each other nor an input nor the arena. */
typedef struct {{
{outputs}
}} {name}_outputs;

/* Runs the model once. `arena` has {macro}_ARENA_SIZE bytes, aligned to {macro}_ARENA_ALIGN
 * (it may be null if the size is 0). Keeps no state: with an arena each, several runs may take
 * place at once. Nothing is written unless the status is {macro}_OK. */
{name}_status {name}_run(const {name}_inputs *inputs, const {name}_outputs *outputs, void *arena);

#ifdef {macro}_STATIC_ARENA
/* The same with an arena of its own; not reentrant. Define {macro}_STATIC_ARENA for all files. */
{name}_status {name}_run_static(const {name}_inputs *inputs, const {name}_outputs *outputs);
#endif

#ifdef __cplusplus
}}
#endif

#endif
"""


def header(model: Model) -> str:
    """The text of NAME.h."""
    title = comment(f"{model.name}: inference of a neural network. Made by graphc; do not edit.")
    return TEXT.format(
        title=title, macro=model.macro, name=model.name,
        arena=model.program.arena_bytes, alignment=ARENA_ALIGNMENT,
        sizes="\n".join(_sizes(model)),
        inputs="\n".join(_field(t, "const ") for t in model.inputs) or _EMPTY,
        outputs="\n".join(_field(t, "") for t in model.outputs) or _EMPTY,
    )  # fmt: skip


_EMPTY = "    int unused; /* C has no empty structures */"


def _sizes(model: Model) -> list[str]:
    lines = []
    for side, tensors in (("INPUT", model.inputs), ("OUTPUT", model.outputs)):
        for tensor in tensors:
            start = f"#define {model.macro}_{side}_{tensor.field}"
            lines.append(f"{start}_SIZE {tensor.elements}")
            if tensor.quantisation is not None:
                scale, zero_point = tensor.quantisation
                lines.append(f"{start}_SCALE {scale!r}f")
                lines.append(f"{start}_ZERO_POINT ({zero_point})")
    return lines


def _field(tensor: Tensor, const: str) -> str:
    said = comment(f"{tensor.name}: {tensor.shape_text}, {tensor.nbytes} bytes")
    return f"    {const}{tensor.c_type} *{tensor.field}; {said}"
