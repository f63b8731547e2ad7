"""What the header of a library has of the sizes of an open shape: a structure that the caller
fills, their bounds, and functions that tell the shapes of outputs."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.cfamily import sizes
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

    def __init__(self, name: str, given: Sequence[Sym], counts: Sequence[Sym]):
        fields: dict[Sym, str] = {}
        for size in (*given, *counts):
            fields[size] = identifier(size.name, fields.values())
        self.sizes = sizes.SizesInC(name, fields, Speller(), counts=counts)

    @property
    def parameter(self) -> str:
        """The parameter of functions that take sizes, with the comma before it."""
        return f", {self.sizes.parameter}" if self.sizes else ""

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
