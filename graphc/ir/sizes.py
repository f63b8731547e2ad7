"""The sizes of a program of open shape, as a run reads them from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.types import Dim, TensorType, at


def sizes_of(
    sizes: Sequence[Sym], inputs: Sequence[tuple[str, TensorType]], shapes: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The values of sizes for inputs of these shapes. ModelError if a size is out of bounds, or an
    input has another shape than these sizes give it."""
    values: dict[Expr, Expr] = {}
    for (name, type), shape in zip(inputs, shapes):
        if len(shape) != type.rank:
            raise ModelError(f"input {name!r} takes {type}, found {shape}")
        for dim, extent in zip(type.dims, shape):
            if isinstance(dim, int):
                continue
            for size in sizes:
                line = None if size in values else line_of(dim, size)
                if line is not None:
                    factor, offset = line
                    values[size] = Const((int(extent) - offset) // factor, i64)
    read = tuple(int(at(size, values)) for size in sizes)  # type: ignore[arg-type]
    for size, value in zip(sizes, read):
        if value < size.lo or size.hi is not None and value > size.hi:
            raise ModelError(f"dimension {size.name} = {value} is not in {size.lo}..{size.hi}")
    for (name, type), shape in zip(inputs, shapes):
        wanted = tuple(at(dim, values) for dim in type.dims)
        if wanted != tuple(shape):
            raise ModelError(f"input {name!r} takes {type}, which is {wanted}, found {shape}")
    return read


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
