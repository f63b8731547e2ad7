"""The C header of a library: everything that a program in C or C++ needs to know."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.cfamily.names import comment
from graphc.backends.llvm_cpu.aot_sizes import SizesOfLibrary
from graphc.backends.llvm_cpu.image import Image
from graphc.backends.llvm_cpu.interface_ir import context_bytes
from graphc.backends.llvm_cpu.triples import Platform
from graphc.ir.alignment import ALIGNMENT
from graphc.ir.types import TensorType


def header(image: Image, name: str, platform: Platform, levels: Sequence[str] = ()) -> str:
    """The header of a library for a platform, whose functions begin with a name. It chooses among
    `levels` of instructions, where there are several."""
    upper = name.upper()
    sizes = SizesOfLibrary(name, image.sizes, image.counts)
    lines = [
        comment(
            f"{image.name}: a neural network compiled by graphc.\n\n"
            "A context is memory for one run at a time, and threads. Contexts are independent:\n"
            "use one per thread that runs the model. Arrays are dense, row-major.\n\n"
            f"For {platform.name}."
        ),
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        f"#define {upper}_INPUTS {len(image.inputs)}",
        f"#define {upper}_OUTPUTS {len(image.told)}",
        f"#define {upper}_ARENA_BYTES {image.arena_bytes}",
        f"#define {upper}_CONTEXT_BYTES {context_bytes(image)}",
        "",
        *filter(None, [sizes.header()]),
    ]
    for kind, entries in (("INPUT", image.inputs), ("OUTPUT", image.told)):
        for number, (label, type) in enumerate(entries):
            lines += _tensor_macros(f"{upper}_{kind}{number}", label, type)
    told = (_OPEN if image.sizes else "") + (_COUNTED if image.counts else "")
    told = told.format(upper=upper)
    choosing = _CHOOSING.format(name=name, levels=", ".join(levels)) if levels else ""
    declarations = _DECLARATIONS.format(
        choosing=choosing,
        allocating=_ALLOCATING.format(name=name) if platform.has_libc else "",
        alignment=ALIGNMENT, name=name, upper=upper, sizes=sizes.parameter, told=told,
        shapes=sizes.declarations([type for _, type in image.told]),
    )  # fmt: skip
    return "\n".join([*lines, declarations])


def _tensor_macros(prefix: str, label: str, type: TensorType) -> list[str]:
    """Its name and size; of a tensor of open shape, the rank and the largest size."""
    quoted = "".join(c if c.isalnum() or c in " ._-/:" else "_" for c in label)
    named = [comment(f"{label}: {type}"), f'#define {prefix}_NAME "{quoted}"']
    if type.is_static:
        sizes = [f"#define {prefix}_ELEMENTS {type.size}", f"#define {prefix}_BYTES {type.nbytes}"]
    else:
        sizes = [
            f"#define {prefix}_RANK {type.rank}",
            f"#define {prefix}_MOST_ELEMENTS {type.most}",
            f"#define {prefix}_MOST_BYTES {type.most_bytes}",
        ]
    return [*named, *sizes, ""]


_OPEN = """ Returns {upper}_SIZE_OUT_OF_BOUNDS, and
 * reads and writes nothing, if a size is not within its bounds. Arrays have the shapes that the
 * comments above give at these sizes."""


_COUNTED = """
 * It writes the sizes that data decides; arrays of them have room for the most that there can be,
 * and hold a tensor of the true shape from their start on."""


_ALLOCATING = """\
/* A context that runs on `threads` threads (at least 1), or NULL if there is no memory. */
{name}_context *{name}_create(int threads);

/* Ends a context made by {name}_create. */
void {name}_destroy({name}_context *context);

"""
_CHOOSING = """\
/* The code in use, of {levels}: the greatest that the
 * processor has. NULL if it has none; then there is no context either. */
const char *{name}_processor(void);

"""
_DECLARATIONS = """#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {name}_context {name}_context;

{choosing}{allocating}/* A context in memory of the caller's, {upper}_CONTEXT_BYTES at a multiple
 * of {alignment}; NULL at another address. It runs on the calling thread; to end it, release
 * the memory. */
{name}_context *{name}_place(void *memory);

/* Runs the model on {upper}_INPUTS arrays into {upper}_OUTPUTS arrays. Returns 0, or -1 if an
 * argument is NULL, or 1 if inputs hold what the model forbids, as an index out of range: then the
 * outputs mean nothing, and {name}_error tells what is wrong.{told} */
int {name}_run({name}_context *context{sizes}, const void *const inputs[], void *const outputs[]);

/* A sentence about the last run of a context that returned 1. */
const char *{name}_error(const {name}_context *context);
{shapes}
#ifdef __cplusplus
}}
#endif

#endif
"""
