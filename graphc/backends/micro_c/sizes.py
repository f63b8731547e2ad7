"""Sizes of a run: their names in C, expressions over them, and what NAME.h and NAME.c have of them.

The caller gives the sizes in a structure. NAME_run checks their bounds before anything else, and
keeps them in variables of 32 bits, which expressions read. The arena, and what lies where in it,
are those of the largest sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.backends.cfamily.names import comment
from graphc.backends.cfamily.spell import PRODUCT, Speller, Text, register_type
from graphc.errors import UnsupportedError
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Sym, as_expr
from graphc.ir.types import Dim, largest

LOCAL = "size_"  # before the name of a size: the variable that holds it
HEADER = """\
/* The type of sizes and of what shapes hold; any signed one of 32 bits or more, for all files. */
#ifndef {macro}_SIZE_T
#define {macro}_SIZE_T int64_t
#endif

/* The sizes of a run, and their bounds. */
typedef struct {{
{fields}
}} {name}_sizes;
{bounds}

"""
SHAPES = """
/* The dimensions of an output at some sizes, as many as its RANK. They return {macro}_OK, or what
 * {name}_run would return for these sizes. */
{functions}
"""
WITHIN = """\
/* Whether all sizes are within their bounds. */
static int {name}_within(const {name}_sizes *sizes)
{{
    return {conditions};
}}
"""
SHAPE = """\
{head}
{{
    if (sizes == 0 || shape == 0) {{
        return {macro}_NULL_POINTER;
    }}
    if (!{name}_within(sizes)) {{
        return {macro}_SIZE_OUT_OF_BOUNDS;
    }}
{lines}
    return {macro}_OK;
}}
"""


@dataclass(frozen=True)
class Size:
    """A size: its symbol, and the field that holds it."""

    symbol: Sym
    field: str

    @property
    def bounds(self) -> tuple[int, int]:
        return self.symbol.lo, largest(self.symbol)

    @property
    def local(self) -> str:
        return LOCAL + self.field


class Sizes:
    """The sizes of a program; `needed` collects the helpers of expressions over them.
    UnsupportedError if one may need more than 32 bits."""

    def __init__(self, name: str, sizes: Sequence[Size], needed: set[str]):
        self.name, self.macro, self.sizes = name, name.upper(), sizes
        self.speller = Speller(i32, needed)
        self.names = {size.symbol: size.local for size in sizes}
        for size in sizes:
            if size.bounds[1] > i32.max:
                raise UnsupportedError(
                    f"dimension {size.symbol.name} up to {size.bounds[1]}: sizes of C have 32 "
                    f"bits; give it less, by --dim {size.symbol.name}=1..1000"
                )

    def __bool__(self) -> bool:
        return bool(self.sizes)

    # ------------------------------------------------------------ expressions

    def text(self, dim: Dim) -> str:
        """The C text of a number over the sizes; a plain one if it depends on none."""
        return str(dim) if isinstance(dim, int) else self._spelled(dim).text

    def nbytes(self, count: Dim, each: int) -> str:
        """The C text of the bytes of so many elements."""
        if isinstance(count, int):
            return f"{count * each}u"
        text = self._spelled(as_expr(count, i64) * each)
        return f"(uint32_t)({text})"

    def _spelled(self, node: Expr) -> Text:
        if isinstance(node, Const):
            return self.speller.constant(node.value, node.dtype)
        if isinstance(node, Sym):
            return Text(self.names[node])
        return self.speller.spell(node, [self._spelled(child) for child in node.children])  # type: ignore[arg-type]

    def passed(self, values: Sequence[Dim]) -> str:
        """The sizes of a kernel as the elements of an array; all fit 32 bits."""
        for value in values:
            if largest(value) > i32.max:
                raise UnsupportedError(
                    f"`{value}` may be {largest(value)}: sizes of C have 32 bits"
                )
        return ", ".join(self._narrow(value) for value in values)

    def _narrow(self, value: Dim) -> str:
        """A number as an int32_t."""
        if isinstance(value, int) or self.speller.is_plain(value):
            return self.text(value)
        return f"(int32_t){self._spelled(value).at(PRODUCT + 1)}"

    # ------------------------------------------------------------ texts

    def header(self) -> str:
        """The structure, and the bounds, in NAME.h."""
        fields, bounds = [], []
        for size in self.sizes:
            low, high = size.bounds
            told = comment(f"{size.symbol.name}: {low} to {high}")
            fields.append(f"    {self.macro}_SIZE_T {size.field}; {told}")
            bounds.append(f"#define {self.macro}_SIZES_{size.field}_MIN {low}")
            bounds.append(f"#define {self.macro}_SIZES_{size.field}_MAX {high}")
        return HEADER.format(macro=self.macro, name=self.name, fields="\n".join(fields),
                             bounds="\n".join(bounds))  # fmt: skip

    def declarations(self, outputs: int) -> str:
        """The functions that tell shapes, in NAME.h."""
        functions = "\n".join(f"{self._head(n)};" for n in range(outputs))
        return SHAPES.format(macro=self.macro, name=self.name, functions=functions)

    def _head(self, number: int) -> str:
        start = f"int {self.name}_output_shape_{number}("
        return f"{start}const {self.name}_sizes *sizes, {self.macro}_SIZE_T shape[])"

    def functions(self, shapes: Sequence[Sequence[Dim]]) -> str:
        """The check of bounds, and the functions that tell the shapes of outputs."""
        conditions = []
        for size in self.sizes:
            low, high = size.bounds
            conditions.append(f"sizes->{size.field} >= {low} && sizes->{size.field} <= {high}")
        within = WITHIN.format(name=self.name, conditions=" &&\n        ".join(conditions))
        return "\n".join([within, *(self._shape(n, dims) for n, dims in enumerate(shapes))])

    def _shape(self, number: int, dims: Sequence[Dim]) -> str:
        lines = self.locals("\n".join(self.text(d) for d in dims))
        lines += [f"    shape[{d}] = {self.text(dim)};" for d, dim in enumerate(dims)]
        return SHAPE.format(head=self._head(number), macro=self.macro, name=self.name,
                            lines="\n".join(lines or ["    (void)shape;"]))  # fmt: skip

    def locals(self, text: str) -> list[str]:
        """The variables of the sizes that a text reads."""
        kind = register_type(i32)
        return [
            f"    const {kind} {size.local} = ({kind})sizes->{size.field};"
            for size in self.sizes if _reads(text, size.local)
        ]  # fmt: skip


def _reads(text: str, name: str) -> bool:
    """Whether a text has a word."""
    return re.search(rf"\b{name}\b", text) is not None
