"""Online reductions: two reductions in one pass, the second relative to the result of the first.

Online softmax: the largest element, and the sum of exponentials below it (M. Milakov and N.
Gimelshein, Online normalizer calculation for softmax, 2018):

    m' = max(m, x...)        s' = s * exp(m - m') + sum of exp(x - m')

for a few elements x at a time, so that there is hardly more than one exponential per element.
Before the first element m is -inf and s is dropped, whatever it is: if all elements are -inf, s is
what it should be, NaN. A NaN becomes the largest element and stays so.

Variance: the sum, and the sum of squares about the mean m, from sums about another number c (T. F.
Chan, G. H. Golub and R. J. LeVeque, Algorithms for computing the sample variance, 1983):

    s = sum of x - c         sum of (x - m)**2 = sum of (x - c)**2 + (c - m) * (2 * s + n * (c - m))

where c is the mean of the first elements, so that little cancels even where the mean is large: what
is subtracted is at most n / (number of elements that c is the mean of) of the result.

The results of threads, and of parts of rows, are combined in the same ways.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.ir.dtypes import f32
from graphc.ir.expr import Call, Const, Expr, Reduce, exp, isinf, select, substitute, walk

NOTHING = Const(float("-inf"), f32)


@dataclass(frozen=True)
class OnePass(ABC):
    """Two reductions over as many elements; the terms of `second` have `shift`, which is a function
    of `first`."""

    first: Reduce
    second: Reduce
    shift: Expr

    @abstractmethod
    def shifted_by(self, first: Expr, elements: int) -> Expr:
        """What takes the place of `shift`, for what is found of so many elements."""

    @abstractmethod
    def moved(self, second: Expr, own: Expr, whole: Expr, elements: int) -> Expr:
        """A second result of so many elements, relative to the first result of `whole` in place of
        their `own`."""

    def finished(self, first: Expr, second: Expr) -> Expr:
        """The second result, from the same with `shifted_by` in place of `shift`."""
        return second

    @property
    def elements(self) -> int:
        """How many are reduced."""
        return math.prod(a.count for a in self.first.axes)

    def term(self, shift: Expr) -> Expr:
        """The second term in terms of a shift, over the axes of the first reduction."""
        term = substitute(self.second.term, {self.shift: shift})
        return substitute(term, dict(zip(self.second.axes, self.first.axes)))


class Normalizer(OnePass):
    """The largest element, and the sum of exp(x - shift); `shift` is the former, or 0 if that is
    infinite."""

    def shifted_by(self, first: Expr, elements: int) -> Expr:
        return first

    def moved(self, second: Expr, own: Expr, whole: Expr, elements: int) -> Expr:
        return rescaled(second, own, whole)

    def finished(self, first: Expr, second: Expr) -> Expr:
        return second if self.shift is self.first else select(isinf(first), exp(first), second)


class Moments(OnePass):
    """The sum, and the sum of squares of x - shift; `shift` is the mean."""

    def shifted_by(self, first: Expr, elements: int) -> Expr:
        return first / elements

    def moved(self, second: Expr, own: Expr, whole: Expr, elements: int) -> Expr:
        apart = own / elements - whole / self.elements
        return second + apart * apart * elements


def find_one_pass(first: Reduce, exprs: Sequence[Expr]) -> OnePass | None:
    """The second reduction after a first one in some expressions, if there is one."""
    kind = {"max": Normalizer, "sum": Moments}.get(first.op)
    if kind is None or first.dtype.compute is not f32:
        return None
    for node in dict.fromkeys(n for e in exprs for n in walk(e)):
        if not isinstance(node, Reduce) or node.op != "sum" or node.dtype.compute is not f32:
            continue
        if [a.extent for a in node.axes] != [a.extent for a in first.axes]:
            continue
        value = substitute(first.body, dict(zip(first.axes, node.axes)))
        shift = _normalizer_shift(first, node, value) if kind is Normalizer else _mean(first, node)
        if shift is not None and (kind is Normalizer or _is_square(node, value - shift)):
            return kind(first, node, shift)
    return None


def _normalizer_shift(largest: Reduce, total: Reduce, value: Expr) -> Expr | None:
    shifts = (largest, select(isinf(largest), 0, largest))
    return next((x for x in shifts if _without_widening(total.body) is exp(value - x)), None)


def _mean(total: Reduce, squares: Reduce) -> Expr | None:
    """What is the mean of the elements of a sum, in the terms of another one."""
    if total.dtype is not f32 or squares.dtype is not f32:
        return None
    if not all(isinstance(a.extent, int) for a in total.axes):
        return None
    count = math.prod(a.count for a in total.axes)
    inside = {*walk(squares.body)}
    return next((x for x in (total / count, total * (1 / count)) if x in inside), None)


def _is_square(squares: Reduce, difference: Expr) -> bool:
    return squares.body is difference * difference


def _without_widening(expr: Expr) -> Expr:
    is_widening = isinstance(expr, Call) and expr.op.name == "cast" and expr.dtype is f32
    return expr.children[0] if is_widening else expr


def rescaled(total: Expr, largest: Expr, new: Expr) -> Expr:
    """A sum below a largest element, in terms of a new one, which is not less."""
    scaled = select(largest.eq(NOTHING), 0.0, total * exp(largest - new))
    return select(largest.eq(new), total, scaled)
