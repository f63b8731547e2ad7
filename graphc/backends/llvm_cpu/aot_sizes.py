"""What the header and the C source of a library have of the sizes of an open shape: a structure
that the caller fills, a check of its bounds, and functions that tell the shapes of outputs."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.cfamily import sizes
from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.names import identifier
from graphc.backends.cfamily.spell import Speller
from graphc.ir.expr import Sym
from graphc.ir.types import TensorType

OUT_OF_BOUNDS = 2  # the status

_HEADER = """#include <stdint.h>

{structure}
#define {macro}_SIZE_OUT_OF_BOUNDS {status} /* a status */
"""


class SizesOfLibrary:
    """The sizes of a model, in C; without any, all texts are empty. `name` begins the names."""

    def __init__(self, name: str, symbols: Sequence[Sym]):
        fields: dict[Sym, str] = {}
        for size in symbols:
            fields[size] = identifier(size.name, fields.values())
        self.name, self.sizes = name, sizes.SizesInC(name, fields, Speller())

    @property
    def parameter(self) -> str:
        """The parameter of functions that take sizes, with the comma before it."""
        return f", const {self.name}_sizes *sizes" if self.sizes else ""

    def header(self) -> str:
        """The structure and the bounds."""
        if not self.sizes:
            return ""
        return _HEADER.format(
            macro=self.sizes.macro, structure=self.sizes.structure(), status=OUT_OF_BOUNDS
        )

    def declarations(self, outputs: Sequence[TensorType]) -> str:
        """The functions that tell shapes, for the header."""
        return self.sizes.declarations(len(outputs)) if self.sizes else ""

    def functions(self, outputs: Sequence[TensorType]) -> str:
        """The check of bounds, and the functions that tell shapes."""
        if not self.sizes:
            return ""
        text = self.sizes.functions([type.dims for type in outputs])
        return "\n".join([helper_text(self.sizes.speller.needed), text])

    def check(self) -> str:
        """The lines of the run that check the sizes and put them in an array `values`."""
        if not self.sizes:
            return ""
        values = ", ".join(f"sizes->{own}" for own in self.sizes.fields.values())
        return (
            "    if (!sizes)\n        return -1;\n"
            f"    if (!{self.name}_within(sizes))\n"
            f"        return {self.sizes.macro}_SIZE_OUT_OF_BOUNDS;\n"
            f"    int64_t values[] = {{{values}}};\n"
        )
