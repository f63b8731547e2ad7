"""The sizes of a program of open shape, as a run reads them from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Sym
from graphc.ir.types import TensorType, at


def sizes_of(
    sizes: Sequence[Sym], inputs: Sequence[tuple[str, TensorType]], shapes: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """The values of sizes for inputs of these shapes. ModelError if a size is out of bounds, or an
    input has another shape than these sizes give it."""
    values: dict[Expr, Expr] = {}
    for (_, type), shape in zip(inputs, shapes):
        values.update(
            (dim, Const(int(extent), i64))
            for dim, extent in zip(type.dims, shape)
            if isinstance(dim, Sym) and dim not in values
        )
    read = tuple(int(at(size, values)) for size in sizes)  # type: ignore[arg-type]
    for size, value in zip(sizes, read):
        if value < size.lo or size.hi is not None and value > size.hi:
            raise ModelError(f"dimension {size.name} = {value} is not in {size.lo}..{size.hi}")
    for (name, type), shape in zip(inputs, shapes):
        wanted = tuple(at(dim, values) for dim in type.dims)
        if wanted != tuple(shape):
            raise ModelError(f"input {name!r} takes {type}, which is {wanted}, found {shape}")
    return read
