"""NAME_test.c: a main that runs the model on sample inputs and compares the outputs.

The expected values of an output whose shape is a bound are in its leading corner, and only the
corner is compared; its true sizes are compared too. An output whose shape data decides is compared
with what it holds there, and so is what the run tells of its shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graphc.backends.cfamily.float_rules import float_rules
from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.names import comment
from graphc.backends.cfamily.spell import UNARY, Speller
from graphc.backends.micro_c.model import Model, Tensor
from graphc.backends.micro_c.weights import array_lines
from graphc.ir import dtypes
from graphc.ir.compare import extent_of
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr
from graphc.ir.sizes import sizes_of
from graphc.ir.types import at

TEST = """\
{title}
#include "{name}.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
{rules}
{arrays}
static double arena[{macro}_ARENA_SIZE / sizeof(double) + 3];
{state}
#ifdef {macro}_TRACE
void {name}_trace(int layer, const char *name, uint32_t crc)
{{
    printf("trace %d %08lx %s\\n", layer, (unsigned long)crc, name);
}}
#endif

#ifdef {macro}_SUMMARY
void {name}_summary(int layer, const char *name, float least, float most, float mean)
{{
    printf("summary %d %.9g %.9g %.9g %s\\n", layer, (double)least, (double)most, (double)mean,
        name);
}}
#endif

#ifdef {macro}_PROFILE
#ifndef {macro}_COUNTER
#include <time.h>
#define {macro}_COUNTER() clock() /* or what counts faster, such as a cycle counter */
#endif
void {name}_profile(int layer, const char *name, int done)
{{
    static unsigned long begun;
    if (done) {{
        const unsigned long taken = (unsigned long){macro}_COUNTER() - begun;
        printf("profile %d %lu %s\\n", layer, taken, name);
    }} else {{
        begun = (unsigned long){macro}_COUNTER();
    }}
}}
#endif

int main(void)
{{
    unsigned char *start = (unsigned char *)arena;
    {name}_inputs inputs;
    {name}_outputs outputs;
    {name}_status status;
    int failed = 0;{sizes}
    while ((uintptr_t)start % {macro}_ARENA_ALIGN != 0) {{
        ++start;
    }}
{fields}
    status = {name}_run({given}&inputs, &outputs, {passed}start);
    if (status != {macro}_OK) {{
        printf("status %d: %s\\n", (int)status, {name}_status_string(status));
        return 2;
    }}
{compare}
{pushed}    return failed;
}}
"""

PUSHED = """\
    {{ /* one row, then two, three and so on, some of them in wrong order */
        {name}_rows image;
        uint32_t row = 0, count = 1;
{cleared}
        {name}_start_rows(&image);
        for (; row < {macro}_ROWS; row += count++) {{
            const {type} *rows = input0 + row * ({macro}_ROW_BYTES / sizeof({type}));
            count = count < {macro}_ROWS - row ? count : {macro}_ROWS - row;
            if ({name}_push_rows(&image, row + 1, count, rows, &outputs, start)
                    != {macro}_WRONG_ROWS ||
                {name}_push_rows(&image, row, {macro}_ROWS - row + 1, rows, &outputs, start)
                    != {macro}_WRONG_ROWS) {{
                printf("wrong rows: FAILED: accepted\\n");
                return 1;
            }}
            status = {name}_push_rows(&image, row, count, rows, &outputs, start);
            if (status != (row + count < {macro}_ROWS ? {macro}_MORE_ROWS : {macro}_OK)) {{
                printf("pushed rows: FAILED: status %d: %s\\n", (int)status,
                    {name}_status_string(status));
                return 1;
            }}
        }}
        printf("pushed rows:\\n");
    }}
"""
COMPARE = """\
    {{
        double error = 0;
        unsigned long i;
        for (i = 0; i < {count}; ++i) {{
            const double found = {found}, wanted = {wanted};
            const int same = {same}found == wanted || (found != found && wanted != wanted);
            const double difference = same ? 0 : fabs(found - wanted);
            if (!(difference <= error)) {{
                error = difference <= DBL_MAX ? difference : HUGE_VAL; /* not a number: infinite */
            }}
        }}
        failed |= error > {tolerance};
        printf("{field}: largest error %g, %s\\n", error,
            error > {tolerance} ? "FAILED: above {tolerance}" : "accepted");
    }}"""
SHAPE = """\
    {{
        {macro}_SIZE_T shape[{rank}];
        if ({name}_output_shape_{number}(&sizes, shape) != {macro}_OK || {wrong}) {{
            printf("{field}: FAILED: the shape is another\\n");
            return 1;
        }}
    }}"""
TOLERANCE, TOLERANCE_OF_HALVES = 1e-3, 1e-2  # of floats, relative to the range of an output


def self_test(
    model: Model,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    tolerance: float | None,
) -> str:
    """NAME_test.c. `tolerance` is the largest error accepted, in units of an output (default: by
    its type)."""
    arrays, fields, compare = [], [], []
    model, sizes = _at_sizes(model, inputs)
    if model.state:
        start = "reset" if model.training is None else "train_init"
        fields.append(f"    {model.name}_{start}(&state);")
    if not model.inputs:
        fields.append("    inputs.unused = 0;")
    for n, (tensor, array) in enumerate(zip(model.inputs, inputs, strict=True)):
        arrays.append(_array(f"input{n}", tensor, array))
        fields.append(f"    inputs.{tensor.field} = input{n};")
    expected = _filled(model, outputs)
    for n, (tensor, array) in enumerate(zip(model.outputs, expected, strict=True)):
        arrays.append(f"static {tensor.c_type} output{n}[{max(tensor.elements, 1)}];")
        fields.append(f"    outputs.{tensor.field} = output{n};")
        shape = outputs[n].shape if n < len(outputs) else array.shape
        if not tensor.type.is_static:
            compare.append(_told(model, n, shape))
            tensor = replace(tensor, type=tensor.type.with_shape(shape))
        if math.prod(shape):
            arrays.append(_array(f"expected{n}", tensor, array))
            accepted = _tolerance(model, array) if tolerance is None else tolerance
            compare.append(_compared(tensor, n, accepted, _outside(array.shape, shape)))
    return TEST.format(
        title=comment(f"{model.name}: a test. Made by graphc; do not edit."),
        name=model.name, macro=model.macro, arrays=_helpers(model) + "\n".join(arrays),
        fields="\n".join(fields), compare="\n".join(compare),
        pushed=_pushed(model, compare), rules=_rules(model),
        sizes=f"\n    {model.name}_sizes sizes = {{{sizes}}};" if sizes else "",
        given="&sizes, " if sizes else "", passed="&state, " if model.state else "",
        state=f"static {model.name}_state state;\n" if model.state else "",
    )  # fmt: skip


def _pushed(model: Model, compare: Sequence[str]) -> str:
    """The same by NAME_push_rows, if there is one, from cleared outputs."""
    if not model.pushed:
        return ""
    cleared = (
        f"        for (count = 0; count < sizeof output{n}; ++count) {{\n"
        f"            ((unsigned char *)output{n})[count] = 85;\n        }}"
        for n in range(len(model.outputs))
    )
    text = PUSHED.format(name=model.name, macro=model.macro, type=model.inputs[0].c_type,
                         cleared="\n".join((*cleared, "        count = 1;")))  # fmt: skip
    return text + "\n".join((*compare, ""))


def _at_sizes(model: Model, inputs: Sequence[np.ndarray]) -> tuple[Model, str]:
    """The model with the types that inputs and outputs have for these inputs, and the sizes that
    they tell; of those that data decides, zeros."""
    program = model.program
    if not program.all_sizes:
        return model, ""
    values = sizes_of(program.sizes, program.inputs, [x.shape for x in inputs])
    told = [*values, *[0] * len(program.counts)]
    known: dict[Expr, Expr] = {s: Const(v, i64) for s, v in zip(program.sizes, values)}

    def fixed(tensors: Sequence[Tensor]) -> list[Tensor]:
        shapes = ((t, [at(d, known) for d in t.type.dims]) for t in tensors)
        return [replace(t, type=t.type.with_shape(shape)) for t, shape in shapes]

    fixed_model = replace(model, inputs=fixed(model.inputs), outputs=fixed(model.outputs))
    return fixed_model, ", ".join(map(str, told))


def _array(name: str, tensor: Tensor, contents: np.ndarray) -> str:
    size = max(tensor.elements, 1)
    return f"static const {tensor.c_type} {name}[{size}] = {{\n{array_lines(contents)}\n}};"


def _rules(model: Model) -> str:
    """Where outputs may be NaN, comparing them needs what computing them does."""
    return float_rules("float") if any(t.type.dtype.is_float for t in model.outputs) else ""


def _helpers(model: Model) -> str:
    """What reading the outputs needs."""
    needed: set[str] = set()
    for tensor in model.outputs:
        speller = Speller()
        _real(tensor, "x", speller)
        needed |= speller.needed
    return helper_text(needed)


# ---------------------------------------------------------------- true sizes


def _filled(model: Model, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What is expected of every output of the program: of bounded ones the corner is filled, and
    the true sizes follow."""
    expected = [
        np.zeros(t.type.static_shape, t.type.dtype.np) if t.type.is_static else outputs[n]
        for n, t in enumerate(model.outputs)
    ]
    for n, array in enumerate(outputs):
        expected[n][tuple(slice(0, extent) for extent in array.shape)] = array
        if n in model.program.true_sizes:
            position, cell = model.program.true_sizes[n]
            expected[position][cell : cell + array.ndim] = array.shape
    return expected


def _outside(bounds: Sequence[int], shape: Sequence[int]) -> str:
    """The start of a condition in C: element i lies outside of the corner of that shape."""
    parts, stride = [], math.prod(bounds)
    for bound, extent in zip(bounds, shape):
        stride //= bound
        if extent < bound:
            parts.append(f"i / {stride} % {bound} >= {extent} || ")
    return "".join(parts)


def _told(model: Model, number: int, shape: Sequence[int]) -> str:
    """The comparison of what a run tells of an output's shape."""
    wrong = [f"shape[{d}] != {extent}" for d, extent in enumerate(shape)]
    return SHAPE.format(
        rank=len(shape), name=model.name, macro=model.macro, number=number,
        field=model.outputs[number].field, wrong=" || ".join(wrong),
    )  # fmt: skip


# ---------------------------------------------------------------- comparison


def _tolerance(model: Model, expected: np.ndarray) -> float:
    """The largest error accepted by default: one unit of 8 bits, or a share of the range."""
    dtype = dtypes.of(expected.dtype)
    if not dtype.is_float:
        return float(dtype.is_integer and dtype.bits == 8)
    wide = expected.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    halves = any(a.dtype == np.float16 for a in model.program.constants)
    share = TOLERANCE_OF_HALVES if halves else TOLERANCE
    return float(f"{share * (extent_of(finite) if finite.size else 1.0):.3g}")


def _compared(tensor: Tensor, number: int, tolerance: float, outside: str) -> str:
    return COMPARE.format(
        field=tensor.field, count=tensor.elements, tolerance=tolerance, same=outside,
        found=_real(tensor, f"output{number}[i]", Speller()),
        wanted=_real(tensor, f"expected{number}[i]", Speller()),
    )  # fmt: skip


def _real(tensor: Tensor, place: str, speller: Speller) -> str:
    """An element in memory as a double."""
    return f"(double){speller.load(place, tensor.type.dtype).at(UNARY)}"
