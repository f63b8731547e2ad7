"""Contractions: matrix products in all of ONNX's guises, each literally a sum of products."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce as fold
from itertools import combinations

import numpy as np

from graphc.errors import ModelError
from graphc.ir.build import Builder
from graphc.ir.dtypes import i32
from graphc.ir.expr import Expr, Index, as_expr, reduce
from graphc.ir.graph import Value
from graphc.ir.opdef import Int, Number, Operand, OutIndex, axes, composite, op
from graphc.ir.ops.convolution import centred, requantize
from graphc.ir.types import Dim, Shape, broadcast
from graphc.records import dataclass

# ---------------------------------------------------------------- MatMul


def _matmul_shape(a: Operand, b: Operand, *_: object) -> Shape:
    """numpy's rule: vectors are rows on the left, columns on the right; batches broadcast."""
    if not a.rank or not b.rank:
        raise ModelError("takes operands of rank 1 or more, found a scalar")
    inner = b.shape[0] if b.rank == 1 else b.shape[-2]
    known = isinstance(a.shape[-1], int) and isinstance(inner, int)
    if known and a.shape[-1] != inner:
        raise ModelError(f"{list(a.shape)} times {list(b.shape)}: {a.shape[-1]} against {inner}")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if b.rank > 1 else ()
    return (*broadcast(a.shape[:-2], b.shape[:-2]), *rows, *columns)


def _matmul_indices(i: OutIndex, a: Operand, b: Operand) -> tuple[tuple, tuple, Index]:
    """The indices of the two factors of output element `i`, and the axis they share."""
    (k,) = axes(a.shape[-1])
    index = list(i)
    column = [index.pop()] if b.rank > 1 else []
    row = [index.pop()] if a.rank > 1 else []
    left = (*_batch(index, a.shape[:-2]), *row, k)
    right = (*_batch(index, b.shape[:-2]), k, *column)
    return left, right, k


def _batch(index: Sequence, shape: Shape) -> tuple:
    """The index into batch dims that were broadcast to the output's."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if isinstance(e, int) and e == 1 else j for j, e in zip(own, shape))


@op("MatMul", infer=_matmul_shape)
def matmul(i: OutIndex, a: Number, b: Number) -> Expr:
    """Sum over k of a[..., m, k] * b[..., k, n]."""
    left, right, k = _matmul_indices(i, a, b)
    return reduce("sum", a[left] * b[right], (k,))


@op("MatMulInteger", infer=_matmul_shape)
def matmul_integer(
    i: OutIndex, a: Int, b: Int, a_zero_point: Int | None = None, b_zero_point: Int | None = None
) -> Expr:
    """MatMul of 8-bit integers less their zero points (of a per row, of b per column), in int32."""
    left, right, k = _matmul_indices(i, a, b)
    return reduce(
        "sum",
        _less_zero_point(a, left, a_zero_point, of_row=True)
        * _less_zero_point(b, right, b_zero_point, of_row=False),
        (k,),
    )


def _less_zero_point(x: Operand, index: tuple, zero_point: Operand | None, *, of_row: bool) -> Expr:
    if zero_point is None or zero_point.rank <= 1:
        return centred(x, index, zero_point, axis=len(index) - (2 if of_row else 1))
    own = [0 if e == 1 else j for j, e in zip(index, zero_point.shape)]
    return x[index].cast(i32) - zero_point[tuple(own)].cast(i32)


@composite("QLinearMatMul")
def qlinear_matmul(
    b: Builder, a: Int, a_scale: Number, a_zero_point: Int, other: Int, other_scale: Number,
    other_zero_point: Int, y_scale: Number, y_zero_point: Int,
) -> Value:  # fmt: skip
    """Integer product, its sum scaled by a_scale * b_scale / y_scale and rounded."""
    total = b.MatMulInteger(a, other, a_zero_point, other_zero_point)
    if a_scale.tensor.rank == 1 and a_scale.tensor.size > 1:
        a_scale = b.Unsqueeze(a_scale, np.array([1]))
    scale = b.Div(b.Mul(a_scale, other_scale), y_scale)
    return requantize(b, total, scale, y_zero_point)


# ---------------------------------------------------------------- Gemm


def _gemm_shape(
    a: Operand, b: Operand, *_: object, transA: int, transB: int,
) -> Shape:  # fmt: skip
    if a.rank != 2 or b.rank != 2:
        raise ModelError(f"takes matrices, found rank {a.rank} and {b.rank}")
    rows, inner = a.shape[::-1] if transA else a.shape
    expected, columns = b.shape[::-1] if transB else b.shape
    if isinstance(inner, int) and isinstance(expected, int) and inner != expected:
        raise ModelError(f"{list(a.shape)} times {list(b.shape)}: {inner} against {expected}")
    return (rows, columns)


@op("Gemm", infer=_gemm_shape)
def gemm(
    i: OutIndex, a: Number, b: Number, c: Number | None = None, *,
    alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
) -> Expr:  # fmt: skip
    """alpha * A' B' + beta * C, with A' and B' transposed on demand and C broadcast."""
    row, column = i
    (k,) = axes(a.shape[0] if transA else a.shape[1])
    left = a[(k, row) if transA else (row, k)]
    right = b[(column, k) if transB else (k, column)]
    total = reduce("sum", left * right, (k,))
    if alpha != 1:
        total = total * as_expr(alpha, a.dtype)
    if c is None or beta == 0:
        return total
    return total + (c[i] if beta == 1 else c[i] * as_expr(beta, c.dtype))


# ---------------------------------------------------------------- Einsum


class EinsumPlan:
    """A parsed equation: the labels of each operand and of the output; "..." becomes digits."""

    def __init__(self, equation: str, shapes: Sequence[Shape]):
        text = equation.replace(" ", "")
        left, arrow, right = text.partition("->")
        terms = left.split(",")
        if len(terms) != len(shapes):
            raise ModelError(f"equation {equation!r} has {len(terms)} terms, not {len(shapes)}")
        dots = max((len(s) - len(t) + 3 for t, s in zip(terms, shapes) if "..." in t), default=0)
        self.inputs = [_labels(t, len(s), equation) for t, s in zip(terms, shapes)]
        ellipsis = [str(-n) for n in range(dots, 0, -1)]
        self.output = _expand(right, ellipsis) if arrow else self._implicit(terms, ellipsis)
        self.extents = self._extents(shapes)
        unknown = [x for x in self.output if x not in self.extents]
        if unknown:
            raise ModelError(f"equation {equation!r}: output label {unknown[0]!r} is in no operand")
        self.summed = [x for x in self.extents if x not in self.output]

    @staticmethod
    def _implicit(terms: Sequence[str], ellipsis: list[str]) -> list[str]:
        """Without "->": the broadcast dims, then labels that occur once, in alphabetic order."""
        letters = "".join(terms).replace(".", "")
        return ellipsis + sorted(x for x in set(letters) if letters.count(x) == 1)

    def _extents(self, shapes: Sequence[Shape]) -> dict[str, Dim]:
        extents: dict[str, Dim] = {}
        for labels, shape in zip(self.inputs, shapes):
            for label, extent in zip(labels, shape):
                known = extents.get(label, 1)
                if known != 1 and extent not in (1, known):
                    raise ModelError(f"label {label!r} stands for both {known} and {extent}")
                extents[label] = extent if known == 1 else known
        return extents


def _labels(term: str, rank: int, equation: str) -> list[str]:
    dots = rank - len(term) + 3 if "..." in term else 0
    labels = _expand(term, [str(-n) for n in range(dots, 0, -1)])
    if len(labels) != rank or dots < 0:
        raise ModelError(f"term {term!r} of {equation!r} does not fit an operand of rank {rank}")
    return labels


def _expand(term: str, ellipsis: list[str]) -> list[str]:
    before, dots, after = term.partition("...")
    return [*before, *(ellipsis if dots else []), *after]


@dataclass(frozen=True)
class PairedTerms:
    """A product of two operands, by their positions among those left, and its equation. The result
    becomes the last of those left."""

    left: int
    right: int
    equation: str


def in_pairs(plan: EinsumPlan) -> list[PairedTerms] | str:
    """Products of two operands each that give an Einsum of more, or why one sum is better. The next
    pair is always the one whose result is the smallest, compared with what it is made of."""
    names = dict(zip(plan.extents, string.ascii_letters))
    if len(names) < len(plan.extents):
        return f"{len(plan.extents)} labels are more than there are letters"
    terms = [tuple(term) for term in plan.inputs]
    steps, products = [], 0
    while len(terms) > 1:
        best = min(_pairs(plan, terms), key=lambda pair: pair[:2])
        _, space, left, right, result = best
        texts = ["".join(names[x] for x in t) for t in (terms[left], terms[right], result)]
        steps.append(PairedTerms(left, right, f"{texts[0]},{texts[1]}->{texts[2]}"))
        terms = [t for n, t in enumerate(terms) if n not in (left, right)] + [result]
        products += space
    if products >= math.prod(plan.extents.values()):
        return "one sum has too many products"
    return steps


def _pairs(plan: EinsumPlan, terms: list[tuple[str, ...]]) -> Iterator[tuple]:
    """Of each two terms: what their product gains in size, how many products it takes, their
    positions, and the labels of the result."""
    uses = Counter(x for term in terms for x in set(term))
    sizes: dict[str, int] = {x: int(extent) for x, extent in plan.extents.items()}  # type: ignore

    def size(labels: Iterable[str]) -> int:
        return math.prod(sizes[x] for x in set(labels))

    for (m, left), (n, right) in combinations(enumerate(terms), 2):
        both = tuple(dict.fromkeys((*left, *right)))
        result = tuple(plan.output)
        if len(terms) > 2:
            result = tuple(
                x for x in both if x in plan.output or uses[x] > (x in left) + (x in right)
            )
        yield size(result) - size(left) - size(right), size(both), m, n, result


def _einsum_shape(*operands: Operand, equation: str) -> Shape:
    plan = EinsumPlan(equation, [x.shape for x in operands])
    return tuple(plan.extents[label] for label in plan.output)


@op("Einsum", infer=_einsum_shape)
def einsum(i: OutIndex, *operands: Number, equation: str) -> Expr:
    """Sum of products over the labels that the output lacks; a repeated label is a diagonal."""
    plan = EinsumPlan(equation, [x.shape for x in operands])
    summed = axes(*(plan.extents[label] for label in plan.summed))
    at = {**dict(zip(plan.output, i)), **dict(zip(plan.summed, summed))}
    factors = [
        x[tuple(0 if e == 1 else at[label] for label, e in zip(labels, x.shape))]
        for x, labels in zip(operands, plan.inputs)
    ]
    return reduce("sum", fold(lambda a, b: a * b, factors), summed)
