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
        if not result.ndim or not _summed(expr, result, arrays):
            result[...] = evaluate(expr, result.shape, arrays)
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


def _summed(expr: Expr, result: np.ndarray, arrays: dict[str, np.ndarray]) -> bool:
    """Fills a result with sums of a few products, each of one large factor and small ones; whether
    it is made of such. What is on the way stays in caches: a slice of the first dim at a time."""
    node = expr.args[0] if isinstance(expr, Call) and expr.op.name == "cast" else expr
    operands = factors(node) if isinstance(node, Reduce) else None
    if not isinstance(node, Reduce) or operands is None:
        return False
    if math.prod(a.count for a in node.axes) > FEW_TERMS:
        return False
    first, slice_ = Index("i0", result.shape[0]), Index("i0", 1)
    axes = [*node.axes, slice_, *(Index(f"i{d}", n) for d, n in enumerate(result.shape) if d)]
    same = {f: _over(f, axes, arrays) for f in operands if first not in free_indices(f)}
    for start in range(result.shape[0]):
        here: dict[Expr, Expr] = {first: slice_ + start}
        parts = [same.get(f) or _over(substitute(f, here), axes, arrays) for f in operands]
        result[start] = _product(parts, len(node.axes), axes)[0]
    return True


Part = tuple[np.ndarray, list[int]]
"""Values, and the numbers of the axes that their dims are."""


def _product(parts: list[Part], summed: int, axes: list[Index]) -> np.ndarray:
    """The product of factors, the large one last, summed over the first axes. These stay outermost
    on the way, so that loops run along memory; no BLAS is used, whose threads take too long."""
    *smaller, (total, at) = sorted(parts, key=lambda part: part[0].size)
    for number, (factor, by) in enumerate(smaller):
        needed = {x for _, others in smaller[number + 1 :] for x in others}
        left = [x for x in range(len(axes)) if (x >= summed or x in needed) and x in {*at, *by}]
        total, at = np.einsum(factor, by, total, at, left), left
    return total.reshape([axes[x].count if x in at else 1 for x in range(summed, len(axes))])


def _over(expr: Expr, axes: list[Index], arrays: dict[str, np.ndarray]) -> Part:
    """The values of an expression at all values of those axes that it depends on."""
    at = [n for n, x in enumerate(axes) if x in free_indices(expr)]
    mapping: dict[Expr, Expr] = {axes[n]: Index(f"i{d}", axes[n].extent) for d, n in enumerate(at)}
    shape = tuple(axes[n].count for n in at)
    values = evaluate(substitute(expr, mapping), shape, arrays)
    return np.ascontiguousarray(values), at


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
