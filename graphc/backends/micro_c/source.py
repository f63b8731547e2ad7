"""NAME.c: rules for compilers, assertions, the kernels as static functions, and what entry.py makes
of the steps."""

from __future__ import annotations

from graphc.backends.cfamily.float_rules import double_check, float_rules
from graphc.backends.cfamily.names import comment
from graphc.backends.micro_c.entry import entry
from graphc.backends.micro_c.model import Constant, Model
from graphc.backends.micro_c.training import functions

TEXT = """\
{title}
#include "{name}.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>
{small}{rules}
/* Kernels stay functions of their own, so that the stack is that of the deepest of them. */
#ifdef __GNUC__
#define {macro}_KERNEL __attribute__((noinline))
#else
#define {macro}_KERNEL
#endif

/* What this code takes for granted, checked by the compiler. */
typedef char {name}_assert_byte[CHAR_BIT == 8 ? 1 : -1];
typedef char {name}_assert_int[sizeof(int) >= 4 ? 1 : -1];
typedef char {name}_assert_float[sizeof(float) == 4 && FLT_MANT_DIG == 24 ? 1 : -1];
typedef char {name}_assert_negative[(-1 & 3) == 3 && (-1 >> 1) == -1 ? 1 : -1];
{doubles}{asserts}{externs}
{unit}
{entry}{training}
#ifdef {macro}_STATIC_ARENA
{name}_status {name}_run_static({sizes}const {name}_inputs *inputs,
    const {name}_outputs *outputs{state})
{{
    static union {{
        uint8_t bytes[{macro}_ARENA_SIZE + {macro}_ARENA_ALIGN];
        uint64_t aligned;
    }} storage;
    const uintptr_t beyond = (uintptr_t)storage.bytes % {macro}_ARENA_ALIGN;
    uint8_t *const start = storage.bytes + (beyond == 0 ? 0 : {macro}_ARENA_ALIGN - beyond);
    return {name}_run({passed}inputs, outputs, {given}start);
}}
#endif
"""


SMALL = """
/* Made for size: loops stay as they are written. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && \\
    !defined(__OPTIMIZE_SIZE__)
#pragma GCC optimize("O2")
#endif
"""

ASSERT = "typedef char {name}_assert_{field}[sizeof({c_type}) == {size} ? 1 : -1];\n"

BASE = """
/* Where the {bytes} bytes of {name}_weights.bin lie: a symbol, or an address in flash. They are
 * little-endian. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "{name}_weights.bin is little-endian, this processor is not: store the weights as C"
#endif
#ifndef {macro}_WEIGHTS_ADDRESS
{externs}
#define {macro}_WEIGHTS_ADDRESS {name}_weights
#endif
"""


def source(model: Model) -> str:
    """The text of NAME.c."""
    asserts = [
        ASSERT.format(name=model.name, field=f"{short}_{t.field}", c_type=t.c_type,
                      size=t.type.dtype.size)
        for _, short, tensors, _ in model.sides() for t in tensors
    ]  # fmt: skip
    steps, training = entry(model), functions(model)  # which note helpers
    code = model.code()
    return TEXT.format(
        title=comment(f"{model.name}: the code. Made by graphc; do not edit."),
        name=model.name, macro=model.macro, asserts="".join(asserts),
        small=SMALL if model.small else "",
        externs=declarations(model), unit=code, entry=steps, training=training,
        rules=float_rules(code), doubles=double_check(model.name, code),
        sizes=f"{model.sizes.parameter},\n    " if model.sizes else "",
        passed="sizes, " if model.sizes else "", given="state, " if model.state else "",
        state=f", {model.state_parameter}" if model.state else "",
    )  # fmt: skip


def declaration(constant: Constant) -> str:
    """The type, symbol and size of a constant."""
    return f"const {constant.c_type} {constant.symbol}[{max(constant.array.size, 1)}]"


def declarations(model: Model) -> str:
    """Declarations of the constants, with C linkage."""
    if model.has_base:
        externs = _linked([f"extern const uint8_t {model.name}_weights[];"])
        return BASE.format(bytes=model.weight_bytes, name=model.name, macro=model.macro,
                           externs=externs)  # fmt: skip
    if not model.constants:
        return ""
    return "\n" + _linked([f"extern {declaration(c)};" for c in model.constants]) + "\n"


def _linked(lines: list[str]) -> str:
    return "\n".join(['#ifdef __cplusplus\nextern "C" {\n#endif', *lines,
                      "#ifdef __cplusplus\n}\n#endif"])  # fmt: skip
