"""Sizes of a run in C: a structure, the check of its bounds, expressions over sizes, and functions
that tell the shapes of outputs. The caller fills the structure; those sizes that data decides are
written into it by the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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
GIVEN, TOLD = "within", "counted"  # functions that check the sizes of a caller, and those of a run
WITHIN = """\
/* Whether {these} sizes are within their bounds. */
static int {name}_{function}(const {name}_sizes *sizes)
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
    if ({wrong}) {{
        return {macro}_SIZE_OUT_OF_BOUNDS;
    }}
{lines}
    return {ok};
}}
"""


class SizesInC:
    """The sizes of a model: `name` begins its names, `fields` are those of the structure, and of
    type `kind`; `ok` and `null` are the statuses of success and of a missing argument. `counts` are
    the sizes that data decides: a run writes them."""

    def __init__(
        self, name: str, fields: Mapping[Sym, str], speller: Speller, kind: str = "int64_t",
        ok: str = "0", null: str = "-1", counts: Collection[Sym] = (),
    ):  # fmt: skip
        self.name, self.macro, self.fields = name, name.upper(), fields
        self.counts = frozenset(counts)
        self.speller, self.kind, self.ok, self.null = speller, kind, ok, null

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def bounds(self) -> dict[Sym, tuple[int, int]]:
        return {size: (size.lo, largest(size)) for size in self.fields}

    @property
    def given(self) -> list[Sym]:
        """The sizes that a caller gives."""
        return [size for size in self.fields if size not in self.counts]

    @property
    def parameter(self) -> str:
        """How a run declares that it takes the structure."""
        return f"{'' if self.counts else 'const '}{self.name}_sizes *sizes"

    def wrong(self, functions: Collection[str] = (GIVEN, TOLD)) -> str:
        """The condition that sizes are out of bounds, as far as these functions check them; empty
        if there are no such sizes."""
        made = [n for n, some in ((GIVEN, self.given), (TOLD, self.counts)) if some]
        return " || ".join(f"!{self.name}_{n}(sizes)" for n in made if n in functions)

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
            told = f"{size.name}: {low} to {high}"
            told += ", which a run writes" if size in self.counts else ""
            own, told = self.fields[size], comment(told)
            fields.append(f"    {self.kind} {own}; {told}")
            bounds.append(f"#define {self.macro}_SIZES_{own}_MIN {low}")
            bounds.append(f"#define {self.macro}_SIZES_{own}_MAX {high}")
        return STRUCTURE.format(name=self.name, fields="\n".join(fields), bounds="\n".join(bounds))

    def declarations(self, outputs: int) -> str:
        """The functions that tell shapes, for a header."""
        functions = "\n".join(f"{self._head(n)};" for n in range(outputs))
        return DECLARATIONS.format(ok=self.ok, name=self.name, functions=functions)

    def functions(self, shapes: Sequence[Sequence[Dim]]) -> str:
        """The checks of bounds, and the functions that tell the shapes of outputs."""
        counted = [size for size in self.fields if size in self.counts]
        both = ((GIVEN, "all given", self.given), (TOLD, "all counted", counted))
        checks = [self._check(function, these, sizes) for function, these, sizes in both if sizes]
        return "\n".join([*checks, *(self._shape(n, dims) for n, dims in enumerate(shapes))])

    def _check(self, function: str, these: str, sizes: Sequence[Sym]) -> str:
        conditions = " &&\n        ".join(
            f"sizes->{self.fields[size]} >= {size.lo} && "
            f"sizes->{self.fields[size]} <= {largest(size)}"
            for size in sizes
        )
        return WITHIN.format(name=self.name, function=function, these=these, conditions=conditions)

    def locals(self, text: str) -> list[str]:
        """The lines that declare what a text reads of sizes, once all are known."""
        return []

    def _head(self, number: int) -> str:
        start = f"int {self.name}_output_shape_{number}("
        return f"{start}const {self.name}_sizes *sizes, {self.kind} shape[])"

    def _shape(self, number: int, dims: Sequence[Dim]) -> str:
        told = [f"    shape[{d}] = {self.text(dim)};" for d, dim in enumerate(dims)]
        return SHAPE.format(
            head=self._head(number), wrong=self.wrong(), macro=self.macro, ok=self.ok,
            null=self.null,
            lines="\n".join([*self.locals("\n".join(told)), *told]),
        )  # fmt: skip
