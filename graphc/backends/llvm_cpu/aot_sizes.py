"""What the header and the C source of a library have of the sizes of an open shape: a structure
that the caller fills, a check of its bounds, and functions that tell the shapes of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.names import comment, identifier
from graphc.backends.cfamily.spell import Speller, Text
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.types import Dim, TensorType, largest

OUT_OF_BOUNDS = 2  # the status

_HEADER = """#include <stdint.h>

/* The sizes of a run, and their bounds. */
typedef struct {{
{fields}
}} {name}_sizes;
{bounds}

#define {upper}_SIZE_OUT_OF_BOUNDS {status} /* a status */
"""

_FUNCTIONS = """
/* The dimensions of an output at some sizes, as many as its RANK. They return 0, or what {name}_run
 * would return for these sizes. */
{functions}
"""

_WITHIN = """static int {name}_within(const {name}_sizes *sizes)
{{
    return {conditions};
}}
"""

_SHAPE = """{head}
{{
    if (!sizes || !shape)
        return -1;
    if (!{name}_within(sizes))
        return {upper}_SIZE_OUT_OF_BOUNDS;
{lines}
    return 0;
}}
"""


@dataclass
class SizesInC:
    """The sizes of a model, in C; without any, all texts are empty. `name` begins the names."""

    name: str
    sizes: Sequence[Sym]
    fields: dict[Sym, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for size in self.sizes:
            self.fields[size] = identifier(size.name, self.fields.values())

    @property
    def parameter(self) -> str:
        """The parameter of functions that take sizes, with the comma before it."""
        return f", const {self.name}_sizes *sizes" if self.sizes else ""

    def header(self) -> str:
        """The structure and the bounds."""
        if not self.sizes:
            return ""
        upper = self.name.upper()
        fields, bounds = [], []
        for size, own in self.fields.items():
            low, high = size.lo, largest(size)
            fields.append(f"    int64_t {own}; {comment(f'{size.name}: {low} to {high}')}")
            bounds.append(f"#define {upper}_SIZES_{own}_MIN {low}")
            bounds.append(f"#define {upper}_SIZES_{own}_MAX {high}")
        return _HEADER.format(
            name=self.name, upper=upper, status=OUT_OF_BOUNDS,
            fields="\n".join(fields), bounds="\n".join(bounds),
        )  # fmt: skip

    def declarations(self, outputs: Sequence[TensorType]) -> str:
        """The functions that tell shapes, for the header."""
        if not self.sizes:
            return ""
        functions = "\n".join(f"{self._head(number)};" for number in range(len(outputs)))
        return _FUNCTIONS.format(name=self.name, functions=functions)

    def functions(self, outputs: Sequence[TensorType]) -> str:
        """The check of bounds, and the functions that tell shapes."""
        if not self.sizes:
            return ""
        speller = Speller()
        shapes = [self._shape(number, type, speller) for number, type in enumerate(outputs)]
        conditions = [
            f"sizes->{own} >= {size.lo} && sizes->{own} <= {largest(size)}"
            for size, own in self.fields.items()
        ]
        within = _WITHIN.format(name=self.name, conditions="\n        && ".join(conditions))
        return "\n".join([helper_text(speller.needed), within, *shapes])

    def check(self) -> str:
        """The lines of the run that check the sizes and put them in an array `values`."""
        if not self.sizes:
            return ""
        values = ", ".join(f"sizes->{own}" for own in self.fields.values())
        return (
            "    if (!sizes)\n        return -1;\n"
            f"    if (!{self.name}_within(sizes))\n"
            f"        return {self.name.upper()}_SIZE_OUT_OF_BOUNDS;\n"
            f"    int64_t values[] = {{{values}}};\n"
        )

    def _head(self, number: int) -> str:
        start = f"int {self.name}_output_shape_{number}("
        return f"{start}const {self.name}_sizes *sizes, int64_t shape[])"

    def _shape(self, number: int, type: TensorType, speller: Speller) -> str:
        lines = [f"    shape[{n}] = {self._text(d, speller)};" for n, d in enumerate(type.dims)]
        return _SHAPE.format(
            head=self._head(number), name=self.name, upper=self.name.upper(),
            lines="\n".join(lines),
        )  # fmt: skip

    def _text(self, dim: Dim, speller: Speller) -> str:
        return str(dim) if isinstance(dim, int) else self._spelled(dim, speller).text

    def _spelled(self, node: Expr, speller: Speller) -> Text:
        if isinstance(node, Const):
            return speller.constant(node.value, node.dtype)
        if isinstance(node, Sym):
            return Text(f"sizes->{self.fields[node]}")
        return speller.spell(node, [self._spelled(child, speller) for child in node.children])  # type: ignore[arg-type]
