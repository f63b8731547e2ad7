"""NAME_weights.c: the constants, aligned, in a section of the user's choice."""

from __future__ import annotations

import numpy as np

from graphc.backends.cfamily.printer import comment
from graphc.backends.cfamily.spell import Speller
from graphc.backends.micro_c.model import Constant, Model
from graphc.backends.micro_c.source import declaration, declarations
from graphc.ir import dtypes

TEXT = """\
{title}
#include <math.h>
#include <stdint.h>

/* Define as a section attribute to place the constants, for example in external flash. */
#ifndef {macro}_WEIGHTS
#define {macro}_WEIGHTS
#endif
{externs}
{arrays}"""
WIDTH = 100


def weights(model: Model) -> str:
    """The text of NAME_weights.c."""
    title = comment(f"{model.name}: {model.weight_bytes} bytes of constants. "
                    "Made by graphc; do not edit.")  # fmt: skip
    arrays = "\n".join(_definition(model, c) for c in model.constants)
    externs = declarations(model) or "typedef int no_constants;\n"
    return TEXT.format(title=title, macro=model.macro, externs=externs, arrays=arrays)


def _definition(model: Model, constant: Constant) -> str:
    lines = array_lines(constant.array)
    return f"{model.macro}_WEIGHTS {declaration(constant)} = {{\n{lines}\n}};\n"


def array_lines(array: np.ndarray) -> str:
    """The elements of an array, as many to a line as fit."""
    items = literals(array) or ["0"]
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 1 > WIDTH:
            lines.append(line)
            line = ""
        line += item + ","
    return "\n".join([*lines, line])


def literals(array: np.ndarray) -> list[str]:
    """Elements as C literals of their storage type."""
    dtype = dtypes.of(array.dtype)
    if dtype.is_float and dtype.bits < 32:
        array, dtype = array.view(f"u{dtype.size}"), dtypes.of(f"u{dtype.size * 8}")
    speller = Speller()
    if dtype is dtypes.boolean or dtype.is_integer and dtype.bits <= 32:
        flat = array.astype(np.int64).reshape(-1).tolist()
        least = -(1 << 31)
        return [str(v) if v != least else "(-2147483647 - 1)" for v in flat] if (
            dtype.kind != "uint" or dtype.bits < 32
        ) else [f"{v}u" for v in flat]  # fmt: skip
    return [speller.constant(v, dtype).text for v in array.reshape(-1).tolist()]
