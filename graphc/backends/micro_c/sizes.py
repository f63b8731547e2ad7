"""Sizes of a run of a bundle: what NAME.h and NAME.c have of them.

The caller gives the sizes in a structure. NAME_run checks their bounds before anything else, and
keeps them in variables of 32 bits, which expressions read. Sizes that data decides are variables
too, zero until they are known; then they are written into the structure. The arena, and what lies
where in it, are those of the largest sizes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from graphc.backends.cfamily.sizes import SizesInC
from graphc.backends.cfamily.spell import PRODUCT, Speller, register_type
from graphc.errors import UnsupportedError
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Sym, as_expr
from graphc.ir.types import Dim, largest

LOCAL = "size_"  # before the name of a size: the variable that holds it
TYPE = """\
/* The type of sizes and of what shapes hold; any signed one of 32 bits or more, for all files. */
#ifndef {macro}_SIZE_T
#define {macro}_SIZE_T int64_t
#endif

{structure}
"""


class Sizes(SizesInC):
    """The sizes of a program; `needed` collects the helpers of expressions over them.
    UnsupportedError if one may need more than 32 bits."""

    def __init__(
        self, name: str, fields: Mapping[Sym, str], needed: set[str], counts: Collection[Sym] = ()
    ):
        macro = name.upper()
        super().__init__(
            name, fields, Speller(i32, needed), f"{macro}_SIZE_T", f"{macro}_OK",
            f"{macro}_NULL_POINTER", counts,
        )  # fmt: skip
        for size, (_, high) in self.bounds.items():
            if high > i32.max:
                raise UnsupportedError(
                    f"dimension {size.name} up to {high}: sizes of C have 32 bits; give it less, "
                    f"by --dim {size.name}=1..1000"
                )

    def read(self, size: Sym) -> str:
        return LOCAL + self.fields[size]

    def locals(self, text: str) -> list[str]:
        return self._declared(text, ())

    def locals_of_run(self, text: str) -> list[str]:
        """As `locals`, where counts are yet to be made."""
        return self._declared(text, self.counts)

    def _declared(self, text: str, unknown: Collection[Sym]) -> list[str]:
        kind = register_type(i32)
        return [
            f"    {kind} {self.read(size)} = 0;" if size in unknown
            else f"    const {kind} {self.read(size)} = ({kind})sizes->{own};"
            for size, own in self.fields.items()
            if re.search(rf"\b{self.read(size)}\b", text)
        ]  # fmt: skip

    def counted(self, size: Sym, text: str) -> list[str]:
        """The statements that give a size the value that data decides."""
        kind = register_type(i32)
        return [
            f"{self.read(size)} = ({kind}){text};",
            f"sizes->{self.fields[size]} = {self.read(size)};",
        ]

    def nbytes(self, count: Dim, size: int) -> str:
        """The C text of the bytes of so many elements."""
        if isinstance(count, int):
            return f"{count * size}u"
        return f"(uint32_t)({self.spelled(as_expr(count, i64) * size)})"

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
        return f"(int32_t){self.spelled(value).at(PRODUCT + 1)}"

    def header(self) -> str:
        """The type, the structure and the bounds, in NAME.h."""
        return TYPE.format(macro=self.macro, structure=self.structure())
