"""The constants: NAME_weights.c, or NAME_weights.bin with an assembler file that includes it.

Text takes about 4 bytes for each byte of constants. The binary file has the constants one after
another, little-endian, each at a multiple of 16 bytes; NAME_weights.S gives it a symbol, or the
firmware places it and says where.
"""

from __future__ import annotations

import numpy as np

from graphc.backends.cfamily.float_rules import constant_rules
from graphc.backends.cfamily.names import comment
from graphc.backends.cfamily.spell import Speller
from graphc.backends.micro_c.model import Constant, Model
from graphc.backends.micro_c.source import declaration, declarations
from graphc.ir import dtypes
from graphc.ir.dtypes import DType

TEXT = """\
{title}
#include <math.h>
#include <stdint.h>
{rules}
/* Define as a section attribute to place the constants, for example in external flash. */
#ifndef {macro}_WEIGHTS
#define {macro}_WEIGHTS
#endif
/* How large constants are aligned; words may then be read at once. */
#ifndef {macro}_ALIGNED
#ifdef __GNUC__
#define {macro}_ALIGNED __attribute__((aligned(16)))
#else
#define {macro}_ALIGNED
#endif
#endif
{externs}
{arrays}"""

ASSEMBLER = """\
{title}
#ifdef __APPLE__
#define SYMBOL _{name}_weights
    .section __TEXT,__const
#else
#define SYMBOL {name}_weights
#ifndef {macro}_SECTION
#define {macro}_SECTION .rodata.{name}_weights
#endif
    .section {macro}_SECTION, "a"
#endif
    .balign 16
    .globl SYMBOL
SYMBOL:
    .incbin "{name}_weights.bin"
    .balign 4
#if defined(__linux__) && defined(__ELF__)
    .section .note.GNU-stack, "", %progbits
#endif
"""
WIDTH = 100
LARGE = 64  # bytes: constants from here on are aligned


def files(model: Model) -> dict[str, str | bytes]:
    """The files of the constants by name."""
    name = model.name
    if model.storage == "c" or not model.constants:
        return {f"{name}_weights.c": text(model)}
    made: dict[str, str | bytes] = {f"{name}_weights.bin": binary(model)}
    if model.storage == "incbin":
        title = comment(f"{name}: constants. Made by graphc; do not edit.")
        made[f"{name}_weights.S"] = ASSEMBLER.format(title=title, name=name, macro=model.macro)
    return made


def text(model: Model) -> str:
    """The text of NAME_weights.c."""
    title = comment(f"{model.name}: {model.weight_bytes} bytes of constants. "
                    "Made by graphc; do not edit.")  # fmt: skip
    arrays = "\n".join(_definition(model, c) for c in model.constants)
    externs = declarations(model) or f"typedef int {model.name}_no_constants;\n"
    return TEXT.format(title=title, macro=model.macro, externs=externs, arrays=arrays,
                       rules=constant_rules(externs))  # fmt: skip


def _definition(model: Model, constant: Constant) -> str:
    attributes = f"{model.macro}_WEIGHTS"
    if constant.array.nbytes >= LARGE:
        attributes += f" {model.macro}_ALIGNED"
    return f"{attributes} {declaration(constant)} = {{\n{array_lines(constant.array)}\n}};\n"


def binary(model: Model) -> bytes:
    """NAME_weights.bin."""
    image = bytearray(model.weight_bytes)
    for constant in model.constants:
        array = constant.array
        if array.dtype.isbuiltin == 1 and array.dtype.itemsize > 1:
            array = array.astype(array.dtype.newbyteorder("<"))
        contents = array.tobytes()
        image[constant.offset : constant.offset + len(contents)] = contents
    return bytes(image)


def array_lines(array: np.ndarray) -> str:
    """The elements of an array, as many to a line as fit."""
    text = ",".join(literals(array) or ["0"]) + ","
    lines, start = [], 0
    while len(text) - start > WIDTH:
        end = text.rfind(",", start, start + WIDTH) + 1
        if end == 0:  # an element that is wider
            end = text.index(",", start) + 1
        lines.append(text[start:end])
        start = end
    return "\n".join([*lines, text[start:]])


def literals(array: np.ndarray) -> list[str]:
    """Elements as C literals of their storage type."""
    dtype = dtypes.of(array.dtype)
    if dtype.is_float and dtype.bits < 32:
        array, dtype = array.view(f"u{dtype.size}"), dtypes.of(f"u{dtype.size * 8}")
    if dtype.is_float:
        return _float_literals(array.reshape(-1), dtype)
    if dtype is dtypes.boolean or dtype.is_integer and dtype.bits <= 32:
        flat = array.astype(np.int64).reshape(-1).tolist()
        least = -(1 << 31)
        return [str(v) if v != least else "(-2147483647 - 1)" for v in flat] if (
            dtype.kind != "uint" or dtype.bits < 32
        ) else [f"{v}u" for v in flat]  # fmt: skip
    return _spelt(array.reshape(-1), dtype)


def _float_literals(flat: np.ndarray, dtype: DType) -> list[str]:
    """As `Speller.constant` spells them one by one, in a fraction of the time: str() of numpy's
    singles, and of doubles, is the shortest decimal that rounds to the number."""
    single = dtype is dtypes.f32
    texts = [f"{v}f" for v in map(str, flat)] if single else list(map(repr, flat.tolist()))
    places = np.flatnonzero(~np.isfinite(flat))
    for place, text in zip(places.tolist(), _spelt(flat[places], dtype)):
        texts[place] = text
    return texts


def _spelt(flat: np.ndarray, dtype: DType) -> list[str]:
    """The elements one by one."""
    speller = Speller()
    return [speller.constant(v, dtype).text for v in flat.tolist()]
