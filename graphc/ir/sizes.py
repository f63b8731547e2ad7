"""The sizes of a program of open shape, as a run reads them from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.types import Dim, TensorType, at


def sizes_of(
    sizes: Sequence[Sym], inputs: Sequence[tuple[str, TensorType]], shapes: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The values of sizes for inputs of these shapes. ModelError if a size is out of bounds, or an
    input has another shape than these sizes give it."""
    known: dict[Sym, int] = {}
    for (name, type), shape in zip(inputs, shapes):
        if len(shape) != type.rank:
            raise ModelError(f"input {name!r} takes {type}, found {shape}")
        for dim, extent in zip(type.dims, shape):
            if isinstance(dim, Sym):
                known.setdefault(dim, int(extent))
            elif not isinstance(dim, int):
                for size in sizes:
                    line = None if size in known else line_of(dim, size)
                    if line is not None:
                        factor, offset = line
                        known[size] = (int(extent) - offset) // factor
    for size in sizes:
        value = known[size]
        if value < size.lo or size.hi is not None and value > size.hi:
            raise ModelError(f"dimension {size.name} = {value} is not in {size.lo}..{size.hi}")
    extent_of = Extents(known)
    for (name, type), shape in zip(inputs, shapes):
        wanted = tuple([extent_of(dim) for dim in type.dims])
        if wanted != tuple(shape):
            raise ModelError(f"input {name!r} takes {type}, which is {wanted}, found {shape}")
    return tuple([known[size] for size in sizes])


class Extents:
    """What dims are where sizes have some values; each is computed once."""

    def __init__(self, values: Mapping[Sym, int]):
        self.values = values
        self._known: dict[Dim, Dim] = dict(values.items())

    def __call__(self, dim: Dim) -> Dim:
        """A number, or an expression over other sizes."""
        if isinstance(dim, int):
            return dim
        extent = self._known.get(dim)
        if extent is None:
            numbers: dict[Expr, Expr] = {s: Const(v, i64) for s, v in self.values.items()}
            extent = self._known[dim] = at(dim, numbers)
        return extent


def line_of(dim: Dim, size: Sym) -> tuple[int, int] | None:
    """The numbers a and b of which a dim is a * size + b; None if it is not of that form."""
    if isinstance(dim, int):
        return None
    if isinstance(dim, Sym):
        return (1, 0) if dim is size else None
    offset, after = at(dim, {size: Const(0, i64)}), at(dim, {size: Const(1, i64)})
    if not isinstance(offset, int) or not isinstance(after, int) or after == offset:
        return None
    factor = after - offset
    return (factor, offset) if at(size * factor + offset, {}) is at(dim, {}) else None
