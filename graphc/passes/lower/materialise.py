"""Constant folding of temporaries: those that depend on constants alone are computed at compile
time.

Packing weights moves every one of them, so it has to be fast. Where all load positions are sums of
multiples of output indices, the result is a strided view of the source, copied once. A guard that
only the last slice of some dimension needs (the last panel) is handled by computing that slice
apart. Products with small matrices (Winograd's transforms) are summed a matrix at a time. The
interpreter evaluates everything else.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.alignment import empty_to_fill
from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce, free_indices, substitute
from graphc.ir.interp import evaluate, factors
from graphc.ir.simplify import bounds, simplify, to_poly
from graphc.passes.analysis.computation import Output

FEW_TERMS = 16  # of a sum that is not worth the threads of a BLAS


def materialise(output: Output, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The contents of an output over `arrays` by input name, where no backend has to move it."""
    dtype, extents = np.dtype(output.buffer.dtype.np), output.extents
    result = empty_to_fill(math.prod(extents) * dtype.itemsize).view(dtype).reshape(extents)
    canonical: dict[Expr, Expr] = {x: Index(f"i{d}", x.extent) for d, x in enumerate(output.index)}
    _fill(result, substitute(output.expr, canonical), arrays)
    return result


def _fill(result: np.ndarray, expr: Expr, arrays: dict[str, np.ndarray]) -> None:
    if result.size == 0:
        return
    view = _strided(expr, result.shape, arrays)
    if view is not None:
        result[...] = view
        return
    split = _guarded_dim(expr, result.shape)
    if split is None:
        summed = _summed(expr, result.shape, arrays)
        result[...] = evaluate(expr, result.shape, arrays) if summed is None else summed
        return
    last = result.shape[split] - 1
    old = Index(f"i{split}", last + 1)
    for start, count in ((0, last), (last, 1)):
        part = [slice(None)] * result.ndim
        part[split] = slice(start, start + count)
        new: Expr = Index(f"i{split}", count)
        moved = simplify(expr, {old: new + start if count > 1 else Const(start, i64)})
        if count > 1:
            _fill(result[tuple(part)], moved, arrays)
        else:
            result[tuple(part)] = evaluate(moved, result[tuple(part)].shape, arrays)


def _guarded_dim(expr: Expr, shape: tuple[int, ...]) -> int | None:
    """A dim whose last slice alone needs the guard of a select."""
    if not (isinstance(expr, Call) and expr.op.name == "select"):
        return None
    for d, extent in enumerate(shape):
        if extent < 2:
            continue
        shorter: dict[Expr, Expr] = {Index(f"i{d}", extent): Index(f"i{d}", extent - 1)}
        if isinstance(simplify(expr.args[0], shorter), Const):
            return d
    return None


def _summed(expr: Expr, shape: tuple[int, ...], arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    """A sum of a few products, each of one large factor and small ones, which are multiplied one
    after another. The summed dims are outermost, so that loops run along memory."""
    node = expr.args[0] if isinstance(expr, Call) and expr.op.name == "cast" else expr
    operands = factors(node) if isinstance(node, Reduce) else None
    if not isinstance(node, Reduce) or operands is None:
        return None
    if math.prod(a.count for a in node.axes) > FEW_TERMS:
        return None
    order = [*node.axes, *(Index(f"i{d}", extent) for d, extent in enumerate(shape))]
    own = [[x for x in order if x in free_indices(factor)] for factor in operands]
    values = sorted(
        ((_over(f, x, arrays), x) for f, x in zip(operands, own)), key=lambda pair: pair[0].size
    )
    total, at = values.pop()
    while values:
        factor, by = values.pop(0)
        needed = {x for _, others in values for x in others} | {*order[len(node.axes) :]}
        left = [x for x in order if x in needed and (x in at or x in by)]
        names = [[order.index(x) for x in part] for part in (by, at, left)]
        total, at = np.einsum(factor, names[0], total, names[1], names[2]), left
    return total.reshape([x.count if x in at else 1 for x in order[len(node.axes) :]])


def _over(expr: Expr, indices: list[Index], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The values of an expression at all values of some indices, in this order."""
    mapping: dict[Expr, Expr] = {x: Index(f"i{n}", x.extent) for n, x in enumerate(indices)}
    shape = tuple(x.count for x in indices)
    return evaluate(substitute(expr, mapping), shape, arrays)


def _strided(
    expr: Expr, shape: tuple[int, ...], arrays: dict[str, np.ndarray]
) -> np.ndarray | None:
    """A load as a view of its source, if its positions are affine and in range."""
    if not isinstance(expr, Load):
        return None
    source = arrays[expr.source]
    number = {Index(f"i{d}", extent): d for d, extent in enumerate(shape)}
    strides, offset = [0] * len(shape), 0
    for where, extent, stride in zip(expr.index, source.shape, source.strides):
        where = simplify(where)
        low, high = bounds(where)
        if low < 0 or high >= extent:
            return None
        for atoms, coefficient in to_poly(where).items():
            if atoms == ():
                offset += coefficient * stride
            elif len(atoms) == 1 and isinstance(atoms[0], Index) and atoms[0] in number:
                strides[number[atoms[0]]] += coefficient * stride
            else:
                return None
    flat = np.ndarray((), source.dtype, source, offset) if source.flags.c_contiguous else None
    if flat is None:
        return None
    return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)
