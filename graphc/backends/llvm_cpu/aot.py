"""Ahead of time: a model as a shared library or an object file, with a C header.

The parts are the program's own object, the thread pool's, the constants (taken in by the assembler,
which is quick whatever their size) and a few lines of C that make the documented interface. They
are joined by the C compiler that is found; only names that begin with the model's own are visible
outside, so several models fit into one program. A model of open shape takes its sizes with every
run, which tells those that data decides (aot_sizes.py).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from graphc.backends.block import Block
from graphc.backends.cfamily.names import comment, prefix, text_literal
from graphc.backends.llvm_cpu.aot_sizes import SizesOfLibrary
from graphc.backends.llvm_cpu.image import INVOKE, Image
from graphc.backends.llvm_cpu.jit import compile_module
from graphc.backends.llvm_cpu.pool import pool_object
from graphc.backends.llvm_cpu.soft_float import SOFT_FLOAT_IR
from graphc.errors import UnsupportedError
from graphc.files import atomic, write_bytes
from graphc.ir.alignment import ALIGNMENT
from graphc.ir.checks import VALUE, WHOLE, Check
from graphc.ir.types import TensorType
from graphc.provenance import Provenance

SPIN_NANOSECONDS = 50_000
LONGEST_VALUE = 24  # characters of a number of 64 bits, and an end


def build(image: Image, path: Path, provenance: Provenance | None = None) -> None:
    """Writes `path` (.so or .o) and a header of the same stem beside it, which tells the
    provenance.

    UnsupportedError says which tool is missing.
    """
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise UnsupportedError(
            f"-o {path} needs a C compiler (cc, gcc or clang) to join the parts; install one, or "
            "write a .gcm file, which graphc.load runs without one"
        )
    name = prefix(path.stem)
    text = header(image, name)
    if provenance is not None:
        text = provenance.stamped(f"{name}.h", text)
    with tempfile.TemporaryDirectory(prefix="graphc-") as folder:
        joined = _joined(image, name, path.suffix, compiler, Path(folder))
        with atomic(path) as library, atomic(path.with_suffix(".h")) as interface:
            shutil.copyfile(joined, library)
            interface.write_text(text, encoding="utf-8")


def _joined(image: Image, name: str, suffix: str, compiler: str, folder: Path) -> Path:
    weights = Block(ALIGNMENT)
    offsets = [weights.add_array(array) for array in image.constants]
    (folder / "code.o").write_bytes(image.code)
    (folder / "pool.o").write_bytes(pool_object())
    (folder / "halves.o").write_bytes(compile_module(SOFT_FLOAT_IR))
    write_bytes(folder / "weights.bin", *weights.parts)
    (folder / "weights.S").write_text(_weights_source(name, folder / "weights.bin"))
    (folder / f"{name}.h").write_text(header(image, name))
    (folder / "interface.c").write_text(_interface(image, name, offsets))
    (folder / "visible").write_text(f"{{ global: {name}_*; local: *; }};\n")
    parts = ["code.o", "pool.o", "halves.o", "weights.S", "interface.c"]
    if suffix == ".so":
        script = f"-Wl,--version-script={folder / 'visible'}"
        options = ["-shared", "-fPIC", "-O2", script, "-pthread", "-lm"]
        _run([compiler, *parts, "-o", "joined", *options], folder)
        return folder / "joined"
    _run([compiler, "-r", "-nostdlib", "-fPIC", "-O2", *parts, "-o", "joined"], folder)
    if shutil.which("objcopy"):
        _run(["objcopy", "--wildcard", f"--keep-global-symbol={name}_*", "joined"], folder)
    return folder / "joined"


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise UnsupportedError(f"{command[0]} could not join the parts: {done.stderr.strip()}")


def _weights_source(name: str, path: Path) -> str:
    return f"""        .section .rodata
        .balign {ALIGNMENT}
        .globl {name}_weights
        .hidden {name}_weights
{name}_weights:
        .incbin "{path}"
        .byte 0
        .section .note.GNU-stack,"",%progbits
"""


# ---------------------------------------------------------------- C


def header(image: Image, name: str) -> str:
    """The header: everything a C or C++ program needs to know."""
    upper = name.upper()
    sizes = SizesOfLibrary(name, image.sizes, image.counts)
    lines = [
        comment(
            f"{image.name}: a neural network compiled by graphc.\n\n"
            f"{name}_create makes a context: memory for one run at a time, and threads. Contexts\n"
            "are independent: use one per thread that runs the model. Arrays are dense, row-major."
        ),
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        f"#define {upper}_INPUTS {len(image.inputs)}",
        f"#define {upper}_OUTPUTS {len(_outputs(image))}",
        f"#define {upper}_ARENA_BYTES {image.arena_bytes}",
        "",
        *filter(None, [sizes.header()]),
    ]
    for kind, entries in (("INPUT", image.inputs), ("OUTPUT", _outputs(image))):
        for number, (label, type) in enumerate(entries):
            lines += _tensor_macros(f"{upper}_{kind}{number}", label, type)
    told = (_OPEN if image.sizes else "") + (_COUNTED if image.counts else "")
    told = told.format(upper=upper)
    declarations = _DECLARATIONS.format(
        name=name, upper=upper, sizes=sizes.parameter, told=told,
        shapes=sizes.declarations([type for _, type in _outputs(image)]),
    )  # fmt: skip
    return "\n".join([*lines, declarations])


def _outputs(image: Image) -> tuple[tuple[str, TensorType], ...]:
    """The outputs but the keys of checks."""
    return image.outputs[:-1] if image.checks else image.outputs


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


_DECLARATIONS = """#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {name}_context {name}_context;

/* A context that runs on `threads` threads (at least 1), or NULL if there is no memory. */
{name}_context *{name}_create(int threads);

void {name}_destroy({name}_context *context);

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

_SOURCE = """#include "{name}.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern void {invoke}(void **cells);
extern void *graphc_pool_create(int64_t threads, int64_t spin_nanoseconds);
extern void graphc_pool_destroy(void *pool);
extern const unsigned char {name}_weights[];

struct {name}_context {{
    void *pool;
    void *arena;
    char error[{error_bytes}];
}};

static const struct {{
    uint64_t low, most;
    const char *message; /* a format of the offending value */
}} checks[] = {{
{checks}
    {{0, 0, 0}}
}};

static const void *const constants[] = {{
{constants}
    0
}};

{name}_context *{name}_create(int threads)
{{
    {name}_context *context = malloc(sizeof *context);
    if (!context)
        return NULL;
    context->arena = aligned_alloc({alignment}, {arena});
    context->pool = graphc_pool_create(threads < 1 ? 1 : threads, {spin});
    if (!context->arena || !context->pool) {{
        {name}_destroy(context);
        return NULL;
    }}
    return context;
}}

void {name}_destroy({name}_context *context)
{{
    if (!context)
        return;
    if (context->pool)
        graphc_pool_destroy(context->pool);
    free(context->arena);
    free(context);
}}

{functions}int {name}_run({name}_context *context{parameter}, const void *const inputs[],
    void *const outputs[])
{{
    if (!context || !inputs || !outputs)
        return -1;
{check}    uint64_t keys[{check_count} + 1];
    void *all[{output_count} + 1];
    for (int n = 0; n < {output_count}; ++n)
        all[n] = outputs[n];
    all[{output_count}] = keys;
    void *cells[] = {{(void *)inputs, all, context->arena, (void *)constants,
                     context->pool{values}}};
    {invoke}(cells);
{tell}    for (int n = 0; n < {check_count}; ++n) {{
        if (keys[n] > checks[n].most) {{
            const long long value = (long long)(int64_t)(checks[n].low + keys[n]);
            snprintf(context->error, sizeof context->error, checks[n].message, value);
            return 1;
        }}
    }}
    return 0;
}}

const char *{name}_error(const {name}_context *context)
{{
    return context ? context->error : "no context";
}}
"""


def _interface(image: Image, name: str, offsets: list[int]) -> str:
    arena = -(-max(image.arena_bytes, 1) // ALIGNMENT) * ALIGNMENT
    constants = "\n".join(f"    {name}_weights + {offset}," for offset in offsets)
    sizes = SizesOfLibrary(name, image.sizes, image.counts)
    return _SOURCE.format(
        name=name, invoke=INVOKE, constants=constants, alignment=ALIGNMENT, arena=arena,
        spin=SPIN_NANOSECONDS, checks="\n".join(map(_check, image.checks)),
        check_count=len(image.checks), output_count=len(_outputs(image)),
        functions=sizes.functions([type for _, type in _outputs(image)]), check=sizes.check(),
        parameter=sizes.parameter, values=", values" if sizes.sizes else "",
        tell=sizes.tell(),
        error_bytes=LONGEST_VALUE + max((len(c.message.encode()) for c in image.checks), default=0),
    )  # fmt: skip


def _check(check: Check) -> str:
    """A row of the table of checks."""
    before, value, after = check.message.replace("%", "%%").partition(VALUE)
    form = before + ("%lld" if value else "") + after
    return f"    {{{check.low % WHOLE}u, {check.most}u, {text_literal(form)}}},"
