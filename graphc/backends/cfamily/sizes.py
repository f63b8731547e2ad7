"""Sizes of a run in C: the structure that a caller fills, the check of its bounds, expressions over
sizes, and functions that tell the shapes of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.backends.cfamily.names import comment
from graphc.backends.cfamily.spell import Speller, Text
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.types import Dim, largest

STRUCTURE = """\
/* The sizes of a run, and their bounds. */
typedef struct {{
{fields}
}} {name}_sizes;
{bounds}
"""
DECLARATIONS = """
/* The dimensions of an output at some sizes, as many as its RANK. They return {ok}, or what
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
        return {null};
    }}
    if (!{name}_within(sizes)) {{
        return {macro}_SIZE_OUT_OF_BOUNDS;
    }}
{lines}
    return {ok};
}}
"""


class SizesInC:
    """The sizes of a model: `name` begins its names, `fields` are those of the structure, and of
    type `kind`; `ok` and `null` are the statuses of success and of a missing argument."""

    def __init__(
        self, name: str, fields: Mapping[Sym, str], speller: Speller, kind: str = "int64_t",
        ok: str = "0", null: str = "-1",
    ):  # fmt: skip
        self.name, self.macro, self.fields = name, name.upper(), fields
        self.speller, self.kind, self.ok, self.null = speller, kind, ok, null

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def bounds(self) -> dict[Sym, tuple[int, int]]:
        return {size: (size.lo, largest(size)) for size in self.fields}

    def read(self, size: Sym) -> str:
        """How expressions read a size."""
        return f"sizes->{self.fields[size]}"

    def text(self, dim: Dim) -> str:
        """The C text of a number over the sizes; a plain one if it depends on none."""
        return str(dim) if isinstance(dim, int) else self.spelled(dim).text

    def spelled(self, node: Expr) -> Text:
        """An expression over the sizes."""
        if isinstance(node, Const):
            return self.speller.constant(node.value, node.dtype)
        if isinstance(node, Sym):
            return Text(self.read(node))
        return self.speller.spell(node, [self.spelled(child) for child in node.children])  # type: ignore[arg-type]

    def structure(self) -> str:
        """The structure and the bounds, for a header."""
        fields, bounds = [], []
        for size, (low, high) in self.bounds.items():
            own, told = self.fields[size], comment(f"{size.name}: {low} to {high}")
            fields.append(f"    {self.kind} {own}; {told}")
            bounds.append(f"#define {self.macro}_SIZES_{own}_MIN {low}")
            bounds.append(f"#define {self.macro}_SIZES_{own}_MAX {high}")
        return STRUCTURE.format(name=self.name, fields="\n".join(fields), bounds="\n".join(bounds))

    def declarations(self, outputs: int) -> str:
        """The functions that tell shapes, for a header."""
        functions = "\n".join(f"{self._head(n)};" for n in range(outputs))
        return DECLARATIONS.format(ok=self.ok, name=self.name, functions=functions)

    def functions(self, shapes: Sequence[Sequence[Dim]]) -> str:
        """The check of bounds, and the functions that tell the shapes of outputs."""
        conditions = " &&\n        ".join(
            f"sizes->{self.fields[size]} >= {low} && sizes->{self.fields[size]} <= {high}"
            for size, (low, high) in self.bounds.items()
        )
        within = WITHIN.format(name=self.name, conditions=conditions)
        return "\n".join([within, *(self._shape(n, dims) for n, dims in enumerate(shapes))])

    def locals(self, text: str) -> list[str]:
        """The lines that declare what a text reads of sizes."""
        return []

    def _head(self, number: int) -> str:
        start = f"int {self.name}_output_shape_{number}("
        return f"{start}const {self.name}_sizes *sizes, {self.kind} shape[])"

    def _shape(self, number: int, dims: Sequence[Dim]) -> str:
        told = [f"    shape[{d}] = {self.text(dim)};" for d, dim in enumerate(dims)]
        return SHAPE.format(
            head=self._head(number), name=self.name, macro=self.macro, ok=self.ok, null=self.null,
            lines="\n".join([*self.locals("\n".join(told)), *told]),
        )  # fmt: skip
