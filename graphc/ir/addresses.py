"""Where elements lie: row-major offsets of indices, strides, and loads of flat buffers."""

from __future__ import annotations

from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr, Index, Load, as_expr, free_indices, transform
from graphc.ir.simplify import Poly, from_poly, simplify, to_poly


def is_affine_in(node: Expr, index: Index) -> int | None:
    """The constant stride of an i64 expression in `index`, or None if it is not affine in it."""
    poly = to_poly(simplify(node))
    stride = poly.pop((index,), 0)
    return None if any(index in free_indices(a) for atoms in poly for a in atoms) else stride


def start_and_stride(node: Expr, index: Index) -> tuple[Expr, int] | None:
    """An i64 expression where `index` is 0, and its constant stride in it; None if it is not affine
    in `index`."""
    stride = is_affine_in(node, index)
    if stride is None:
        return None
    poly = to_poly(simplify(node))
    poly.pop((index,), None)
    return from_poly(poly), stride


def stride_in(node: Expr, index: Index) -> Expr | None:
    """The stride of an i64 expression in `index`, which symbols may be part of; None if it is not
    affine in it."""
    stride: Poly = {}
    for atoms, coefficient in to_poly(simplify(node)).items():
        if not any(index in free_indices(a) for a in atoms):
            continue
        others = [a for a in atoms if a is not index]
        if len(others) != len(atoms) - 1 or any(index in free_indices(a) for a in others):
            return None
        stride[tuple(others)] = coefficient
    return from_poly(stride)


def flatten_index(index: tuple, shape: tuple) -> Expr:
    """The row-major offset of a multi-dimensional index."""
    offset: Expr = Const(0, i64)
    for position, extent in zip(index, shape):
        offset = offset * as_expr(extent, i64) + as_expr(position, i64)
    return simplify(offset)


def unflatten_index(offset: Expr, shape: tuple) -> tuple[Expr, ...]:
    """The row-major multi-dimensional index of a flat offset that lies within `shape`."""
    out: list[Expr] = []
    for extent in reversed(shape[1:]):
        extent = as_expr(extent, i64)
        out.append(simplify(offset % extent))
        offset = simplify(offset // extent)
    if shape:
        out.append(simplify(offset) if shape[0] != 1 else Const(0, i64))
    return tuple(reversed(out))


def element_after(load: Expr, distance: Expr | int) -> Load:
    """The element so far after the one of a load, which has one index."""
    assert isinstance(load, Load)
    return Load(load.source, (simplify(load.index[0] + distance),), load.dtype)


def flatten_loads(expr: Expr, shapes: dict[str, tuple]) -> Expr:
    """Every load of a buffer in `shapes` made one-dimensional (row-major)."""

    def flat(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in shapes:
            return Load(node.source, (flatten_index(node.index, shapes[node.source]),), node.dtype)
        return None

    return transform(expr, flat)


def unflatten_loads(expr: Expr, shapes: dict[str, tuple]) -> Expr:
    """The inverse of `flatten_loads`."""

    def ranked(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or len(shapes[node.source]) == 1:
            return None
        return Load(node.source, unflatten_index(node.index[0], shapes[node.source]), node.dtype)

    return transform(expr, ranked)
