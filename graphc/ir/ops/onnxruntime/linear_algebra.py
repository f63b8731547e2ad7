"""Operators of ONNX Runtime's domain, and of exporters in that domain, from linear algebra.

Reference: docs/ContribOperators.md of ONNX Runtime. `Solve` is skl2onnx's: of Gaussian processes
that tell their deviation; ONNX Runtime itself has no kernel for it.
"""

from __future__ import annotations

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i64
from graphc.ir.expr import Expr, absolute
from graphc.ir.graph import Value
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.kernel import Buffer
from graphc.ir.opdef import Float, Number, Operand, composite, imperative
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import RUNTIME

METRICS = ("sqeuclidean", "euclidean")


@composite("CDist", domain=RUNTIME)
def cdist(b: Builder, x: Float, y: Float, *, metric: str = "sqeuclidean") -> Value:
    """Distances of the rows of x [N, F] from those of y [M, F]: [N, M]."""
    if metric not in METRICS:
        raise ModelError(f"metric must be one of {', '.join(METRICS)}, found {metric!r}")
    if x.tensor.rank != 2 or y.tensor.rank != 2:
        raise ModelError(f"takes rows [N, F] and [M, F], found {x.type} and {y.type}")
    apart = b.Sub(b.Unsqueeze(x, b.constant([1], i64)), b.Unsqueeze(y, b.constant([0], i64)))
    squares = b.ReduceSumSquare(apart, b.constant([2], i64), keepdims=0)
    return b.Sqrt(squares) if metric == "euclidean" else squares


@composite("SparseToDenseMatMul", domain=RUNTIME)
def sparse_to_dense_matmul(
    b: Builder, x: Number, y: Number, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:  # noqa: N803
    """alpha * x' y' of matrices, the first of which is a sparse initialiser of a model."""
    if x.tensor.rank != 2 or y.tensor.rank != 2:
        raise ModelError(f"takes matrices, found {x.type} and {y.type}")
    left, right = (b.Transpose(v) if t else v for v, t in ((x, transA), (y, transB)))
    product = b.MatMul(left, right)
    return product if alpha == 1 else b.Mul(product, alpha)


@composite("Inverse", domain=RUNTIME)
def inverse(b: Builder, x: Float) -> Value:
    """The inverse of each matrix."""
    _check_square(x)
    identity = b.constant(np.eye(x.tensor.dims[-1], dtype=x.tensor.dtype.np))
    return _solved(b, x, b.Expand(identity, np.array(x.tensor.dims)))


@composite("Solve", domain=RUNTIME)
def solve(b: Builder, a: Float, y: Float, *, lower: int = 0, transposed: int = 0) -> Value:
    """z with a z = y, where y is [N] or [N, M]; with `transposed` of the transpose of a.

    `lower` promises that a is lower triangular, of which nothing is made.
    """
    _check_square(a)
    if a.tensor.rank != 2 or y.tensor.rank not in (1, 2):
        raise ModelError(f"takes [N, N] and [N] or [N, M], found {a.type} and {y.type}")
    a = b.Transpose(a) if transposed else a
    if y.tensor.rank == 2:
        return _solved(b, a, y)
    one = b.constant([1], i64)
    return b.Squeeze(_solved(b, a, b.Unsqueeze(y, one)), one)


def _check_square(x: Value) -> None:
    if x.tensor.rank < 2 or x.tensor.dims[-1] != x.tensor.dims[-2]:
        raise ModelError(f"takes square matrices, found {x.type}")


def _solved(b: Builder, a: Value, y: Value) -> Value:
    dtype = a.tensor.dtype
    wide = (convert(b, v, dtype.compute) for v in (a, y))
    solution, _ = b.op("SolveLinear", *wide, domain="graphc", outputs=2)
    return convert(b, solution, dtype)


def _solved_types(a: Operand, y: Operand) -> list:
    if a.shape[:-2] != y.shape[:-2] or a.shape[-1] != y.shape[-2]:
        raise ModelError(f"takes [..., N, N] and [..., N, M], found {a.type} and {y.type}")
    return [y.type, a.type]


@imperative("SolveLinear", infer=_solved_types, outputs=2, domain="graphc")
def solve_linear(k: Collectives, a: Float, y: Float) -> None:
    """z with a z = y for each matrix, by Gauss-Jordan elimination with the largest element of a
    column as pivot; the second output is what is left of a. 0 / 0 where a is singular."""
    z, left = k.outputs
    size, columns = a.shape[-1], y.shape[-1]
    for target, source in ((z, y), (left, a)):
        with k.loops(*source.shape, kind="parallel") as where:
            k.store(target, where, source[where])
    with k.loops(*a.shape[:-2], kind="parallel") as batch, k.loop(size) as step:
        pivot = _pivot(k, left, batch, step, size)
        for matrix, width in ((left, size), (z, columns)):
            _bring_up(k, matrix, batch, step, pivot, width)
        _clear_column(k, left, z, batch, step)


def _pivot(k: Collectives, left: Buffer, batch: tuple[Expr, ...], step: Expr, size: int) -> Expr:
    """The row, from `step` on, with the largest element in column `step`."""
    best = k.var(i64, step)
    with k.loop(size - 1 - step) as below:
        row = step + 1 + below
        here, most = (*batch, row, step), (*batch, best[()], step)
        larger = absolute(left[here]) > absolute(left[most])
        with k.when(larger):
            k.store(best, (), row)
    return k.let(best[()])


def _bring_up(
    k: Collectives, matrix: Buffer, batch: tuple[Expr, ...], step: Expr, pivot: Expr, width: int
) -> None:
    """Swaps the rows `step` and `pivot`."""
    with k.when(pivot.ne(step)), k.loop(width) as column:
        upper, lower = (*batch, step, column), (*batch, pivot, column)
        kept = k.let(matrix[upper])
        k.store(matrix, upper, matrix[lower])
        k.store(matrix, lower, kept)


def _clear_column(
    k: Collectives, left: Buffer, z: Buffer, batch: tuple[Expr, ...], step: Expr
) -> None:
    """Divides row `step` by its pivot, and subtracts multiples of it from all others."""
    diagonal = (*batch, step, step)
    divisor = k.let(left[diagonal])
    for matrix in (left, z):
        with k.loop(matrix.shape[-1]) as column:
            place = (*batch, step, column)
            k.store(matrix, place, matrix[place] / divisor)
    with k.loop(left.shape[-1]) as row, k.when(row.ne(step)):
        below = (*batch, row, step)
        factor = k.let(left[below])
        for matrix in (left, z):
            with k.loop(matrix.shape[-1]) as column:
                place, above = (*batch, row, column), (*batch, step, column)
                k.store(matrix, place, matrix[place] - factor * matrix[above])
