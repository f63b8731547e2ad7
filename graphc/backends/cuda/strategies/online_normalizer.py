"""The largest element and the sum of exponentials below it, found in one pass.

    m' = max(m, x...)        s' = s * exp(m - m') + sum of exp(x - m')

for a few elements x at a time, as in M. Milakov and N. Gimelshein, Online normalizer calculation
for softmax (2018), so that there is hardly more than one exponential for each element. What threads
have found comes together in the same way.

Where nothing is found yet, m is -inf and s is dropped, whatever it is: if all elements are -inf, it
is what it should be, NaN. A NaN becomes the largest element and stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.ir.dtypes import f32
from graphc.ir.expr import Call, Const, Expr, Reduce, exp, isinf, select, substitute, walk

NOTHING = Const(float("-inf"), f32)


@dataclass(frozen=True)
class Normalizer:
    """`largest`, and the sum of exp(x - shift); `shift` is the former, or 0 if that is infinite."""

    largest: Reduce
    total: Reduce
    shift: Expr

    def term(self, known: Expr) -> Expr:
        """What is summed, over the axes of the largest element, which is known."""
        term = substitute(self.total.term, {self.shift: known})
        return substitute(term, dict(zip(self.total.axes, self.largest.axes)))

    def finished(self, largest: Expr, total: Expr) -> Expr:
        """The sum, from that of exp(x - largest)."""
        if self.shift is self.largest:
            return total
        return select(isinf(largest), exp(largest), total)


def find_normalizer(largest: Reduce, exprs: Sequence[Expr]) -> Normalizer | None:
    """The sum of exponentials under a largest element in some expressions, if there is one."""
    if largest.op != "max" or largest.dtype.compute is not f32:
        return None
    for node in (n for e in exprs for n in walk(e)):
        if not isinstance(node, Reduce) or node.op != "sum" or node.dtype.compute is not f32:
            continue
        if [a.extent for a in node.axes] != [a.extent for a in largest.axes]:
            continue
        value = substitute(largest.body, dict(zip(largest.axes, node.axes)))
        for shift in (largest, select(isinf(largest), 0, largest)):
            if _without_widening(node.body) is exp(value - shift):
                return Normalizer(largest, node, shift)
    return None


def _without_widening(expr: Expr) -> Expr:
    is_widening = isinstance(expr, Call) and expr.op.name == "cast" and expr.dtype is f32
    return expr.children[0] if is_widening else expr


def rescaled(total: Expr, largest: Expr, new: Expr) -> Expr:
    """A sum below a largest element, in terms of a new one, which is not less."""
    scaled = select(largest.eq(NOTHING), 0.0, total * exp(largest - new))
    return select(largest.eq(new), total, scaled)
