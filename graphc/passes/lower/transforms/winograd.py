"""Winograd's algorithm F(m, 3): m outputs of a filter of three taps by m + 2 products.

Inputs d and taps g of one dimension give y = A'[(G g) * (B'd)], where * multiplies element by
element (S. Winograd, Arithmetic Complexity of Computations, 1980; for convolutions of images
A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016). In two dimensions
the matrices are applied along both: (m + 2)^2 products for m^2 outputs of nine taps.

The matrices are those of Toom and Cook for given points: a polynomial is evaluated there and
interpolated. Sums of large multiples of inputs lose digits, so points are chosen whose powers are
near 1, and exact in float32 (B. Barabasz et al., Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks, 2020). Points come in pairs p, -p: the rows of B',
and the columns of A', of a pair differ in signs alone, and share their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations

from graphc.ir.dtypes import DType, f32, f64
from graphc.ir.expr import Call, Const, Expr, Index, Ref, call, select, walk
from graphc.records import dataclass

TAPS = 3
_LESS, _MORE = Fraction(3, 4), Fraction(3, 2)
POINTS = {
    2: (0, 1, -1),
    4: (0, _LESS, -_LESS, _MORE, -_MORE),
}
"""By the outputs of a tile: the points beside infinity. Tiles of 6 would have seven times the error
of those of 4, and gain 5% at best."""

Row = tuple[Fraction, ...]
Let = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Winograd:
    """The matrices of F(outputs, 3) by rows: `inputs` is B', `weights` G, `results` A'."""

    outputs: int
    inputs: tuple[Row, ...]
    weights: tuple[Row, ...]
    results: tuple[Row, ...]

    @property
    def points(self) -> int:
        """Products of one dimension, and inputs of a tile."""
        return len(self.inputs)

    def weight(self, point: Index, tap: Index) -> Expr:
        """The element of G, of type f64, at indices."""
        value: Expr = Const(0.0, f64)
        for r, row in enumerate(self.weights):
            for k, element in enumerate(row):
                here = point.eq(r) & tap.eq(k)
                value = select(here, float(element), value) if element else value
        return value


@cache
def winograd(outputs: int) -> Winograd:
    """The matrices for so many outputs of a tile: a key of POINTS."""
    points = [Fraction(p) for p in POINTS[outputs]]
    rows = [_product([[-q, Fraction(1)] for q in points if q != p]) for p in points]
    inputs = [tuple(row) + (Fraction(0),) for row in rows]
    inputs.append(tuple(_product([[-q, Fraction(1)] for q in points])))
    weights = [
        tuple(p**k / _value(row, p) for k in range(TAPS)) for p, row in zip(points, rows)
    ]  # fmt: skip
    infinity = tuple(Fraction(int(k == TAPS - 1)) for k in range(TAPS))
    results = [(*(p**k for p in points), Fraction(int(k == outputs - 1))) for k in range(outputs)]
    return Winograd(outputs, tuple(inputs), (*weights, infinity), tuple(results))


def _product(factors: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """The coefficients of a product of polynomials, the lowest first."""
    product = [Fraction(1)]
    for factor in factors:
        longer = [Fraction(0)] * (len(product) + len(factor) - 1)
        for i, a in enumerate(product):
            for j, b in enumerate(factor):
                longer[i + j] += a * b
        product = longer
    return product


def _value(polynomial: Sequence[Fraction], at: Fraction) -> Fraction:
    return sum((c * at**k for k, c in enumerate(polynomial)), start=Fraction(0))


# ---------------------------------------------------------------- products with the matrices


def times(matrix: Sequence[Row], values: Sequence[Expr], let: Let) -> list[Expr]:
    """A matrix times a vector of values, each a name; `let` names what is computed on the way."""
    columns, values = _paired_columns([list(c) for c in zip(*matrix)], list(values), let)
    rows = [tuple(row) for row in zip(*columns)]
    done: dict[int, Expr] = {}
    for r, s in combinations(range(len(rows)), 2):
        if r in done or s in done or not _differ_in_signs(rows[r], rows[s]):
            continue
        same = let(_sum([c if c == d else Fraction(0) for c, d in zip(rows[r], rows[s])], values))
        other = let(_sum([c if c != d else Fraction(0) for c, d in zip(rows[r], rows[s])], values))
        done[r], done[s] = let(same + other), let(same - other)
    return [done[r] if r in done else let(_sum(row, values)) for r, row in enumerate(rows)]


def _paired_columns(
    columns: list[list[Fraction]], values: list[Expr], let: Let
) -> tuple[list[list[Fraction]], list[Expr]]:
    """The same product, where two columns that differ in signs alone are those of the sum and the
    difference of their values."""
    for j, k in combinations(range(len(columns)), 2):
        if _differ_in_signs(columns[j], columns[k]):
            pairs = list(zip(columns[j], columns[k]))
            columns[j] = [a if a == b else Fraction(0) for a, b in pairs]
            columns[k] = [a if a != b else Fraction(0) for a, b in pairs]
            values[j], values[k] = let(values[j] + values[k]), let(values[j] - values[k])
    return columns, values


def _differ_in_signs(one: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    """Whether several elements are equal, and several are opposite, and there are no others."""
    pairs = [(a, b) for a, b in zip(one, other) if a or b]
    equal = sum(a == b for a, b in pairs)
    return 0 < equal < len(pairs) and all(abs(a) == abs(b) for a, b in pairs)


def _sum(row: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of multiples of values, one of which at least is not 0; it starts with those that are
    taken once."""
    terms = [(c, value) for c, value in zip(row, values) if c]
    (first, value), *rest = sorted(terms, key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    dtype: DType = value.dtype
    total = value if first == 1 else value * Const(float(first), dtype)
    for factor, value in rest:
        if abs(factor) == 1:
            total = total + value if factor > 0 else total - value
        else:
            total = call("fma", value, Const(float(factor), dtype), total)
    return total


def both_ways(matrix: Sequence[Row], tile: Sequence[Sequence[Expr]], let: Let) -> list[list[Expr]]:
    """A matrix times a tile (rows of values) times its transpose: rows of values."""
    columns = [times(matrix, column, let) for column in zip(*tile)]
    return [times(matrix, row, let) for row in zip(*columns)]


def operations(matrix: Sequence[Row]) -> int:
    """The arithmetic operations of a product with a matrix."""
    made: list[Expr] = []

    def let(value: Expr) -> Expr:
        made.append(value)
        return Ref(f"t{len(made)}", value.dtype)

    times(matrix, [Ref(f"x{n}", f32) for n in range(len(matrix[0]))], let)
    return sum(isinstance(node, Call) for value in made for node in walk(value))
