"""Constant folding of temporaries: those that depend on constants alone are computed at compile
time.

Packing weights moves every one of them, so it has to be fast. Where all load positions are sums of
multiples of output indices, the result is a strided view of the source, copied once. A guard that
only the last slice of some dimension needs (the last panel) is handled by computing that slice
apart. Everything else is evaluated by the interpreter.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.ir.alignment import empty_to_fill
from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, substitute
from graphc.ir.interp import evaluate
from graphc.ir.simplify import bounds, simplify, to_poly
from graphc.passes.analysis.computation import Output


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
