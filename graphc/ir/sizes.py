"""The sizes of a program of open shape: as a run reads them from the shapes of its inputs, and
those that it is tried at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from graphc.errors import ModelError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Reduce, Sym, reduce
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim, TensorType, at, largest


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


MOST_CORNERS = 16


def trials(
    sizes: Sequence[Sym], corners: int = MOST_CORNERS, between: int = 3
) -> list[tuple[int, ...]]:
    """Values of sizes at which something is tried that should hold for all: the least of all, the
    largest of all, other corners (so many in all), and some at random, the same every time."""
    if not sizes:
        return []
    dice = random.Random(0)
    ranges = [(size.lo, largest(size)) for size in sizes]
    ends = [tuple(pair[end] for pair in ranges) for end in (0, 1)]
    others = itertools.islice(itertools.product(*ranges), max(corners - len(ends), 0))
    inside = (tuple(dice.randint(*pair) for pair in ranges) for _ in range(between))
    return list(dict.fromkeys((*ends, *others, *inside)))


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


def body_at(body: Expr, sizes: Mapping[Expr, Expr]) -> Expr:
    """The body of an op at some sizes, simplified."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in done:
            if isinstance(node, Index):
                done[node] = Index(node.name, at(node.extent, sizes))
            elif isinstance(node, Reduce):
                axes = [Index(a.name, at(a.extent, sizes)) for a in node.axes]
                done[node] = reduce(node.op, visit(node.body), axes)
            else:
                known = sizes.get(node)
                done[node] = (
                    node.rebuild([visit(c) for c in node.children]) if known is None else known
                )
        return done[node]

    return simplify(visit(body))
