"""Matrix products of all ranks and shapes."""

from __future__ import annotations

import numpy as np
from generator import Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import f32, i64
from templates.table import (
    is_f32,
    is_float,
    is_wide,
    template,
)


@template(3)
def matmul(g: Generator) -> None:
    x = g.pick(is_float, (1, 5))
    depth = x.tensor.dims[-1]
    if g.chance(0.15):
        shape: tuple[int, ...] = (depth,)
    else:
        lead = [d if g.chance(0.6) else 1 for d in x.tensor.dims[:-2]][g.integer(0, 2) :]
        shape = (*lead, depth, g.choice((1, 2, 3, 8, 16, 17, 33, 64, 70)))
    g.emit("MatMul", x, g.operand(x.tensor.dtype, shape))


@template(1.5)
def matmul_right(g: Generator) -> None:
    x = g.pick(is_float, (2, 4))
    rows = g.choice((1, 2, 5, 8, 16, 31))
    g.emit("MatMul", g.operand(x.tensor.dtype, (rows, x.tensor.dims[-2])), x)


@template(1.5)
def gemm(g: Generator) -> None:
    x = g.pick(is_wide, (2, 2))
    turned_a, turned_b = g.integer(0, 1), g.integer(0, 1)
    m, k = x.tensor.dims[::-1] if turned_a else x.tensor.dims
    n = g.choice((1, 3, 8, 16, 20, 65))
    w = g.operand(x.tensor.dtype, (n, k) if turned_b else (k, n))
    added = g.choice(((), (n,), (1, n), (m, 1), (m, n), None))
    c = None if added is None else g.operand(x.tensor.dtype, added)
    g.emit("Gemm", x, w, c, transA=turned_a, transB=turned_b,
           alpha=g.choice((1.0, 0.5)), beta=g.choice((1.0, 2.0)))  # fmt: skip


@template(0.7)
def einsum(g: Generator) -> None:
    x = g.pick(is_f32, (2, 3))
    a, b = x.tensor.dims[-2:]
    n = g.integer(1, 9)
    if x.tensor.rank == 2:
        equation, shape = g.choice((
            ("ij,jk->ik", (b, n)), ("ij,kj->ki", (n, b)), ("ij,ij->j", (a, b)), ("ij,i->ji", (a,)),
            ("ij,k->ijk", (n,)), ("ij,jk", (b, n)),
        ))  # fmt: skip
    else:
        equation, shape = g.choice((
            ("bij,bjk->bik", (x.tensor.dims[0], b, n)), ("bij,jk->bki", (b, n)),
            ("...ij,...jk->...ik", (1, b, n)), ("bij,bij->b", x.tensor.dims),
        ))  # fmt: skip
    g.emit("Einsum", x, g.operand(f32, shape), equation=equation)


@template(0.5)
def matmul_whole(g: Generator) -> None:
    """Products of integers."""
    x = g.pick(lambda d: d in (dtypes.i32, i64, dtypes.u32), (1, 4))
    w = g.constant(x.tensor.dtype, (x.tensor.dims[-1], g.choice((1, 2, 8, 17))))
    g.emit("MatMul", x, w, keeps=True)


@template(0.7)
def product_of_views(g: Generator) -> None:
    """Operands that are transposed, reshaped or sliced."""
    x = g.pick(is_f32, (2, 4), filled=True)
    rank = x.tensor.rank
    if g.chance(0.5):
        perm = [*range(rank - 2), rank - 1, rank - 2]
        x = g.emit("Transpose", x, perm=perm, keeps=True)
    depth, columns = x.tensor.dims[-1], g.choice((1, 4, 8, 17, 33))
    w = g.operand(f32, (columns, depth))
    w = g.emit("Transpose", w, perm=[1, 0], keeps=True)
    if g.chance(0.3):
        y = g.emit("Reshape", x, np.array([-1, depth], np.int64), keeps=True)
        y = g.emit("MatMul", y, w)
        g.emit("Reshape", y, np.array([*x.tensor.dims[:-1], columns], np.int64), keeps=True)
    else:
        g.emit("MatMul", x, w)
