"""Initial values of sums: the bias, and the zero-point correction of bytes.

sum((x - c) * w) = sum(x * w) - c * sum(w). Where guards exclude taps, sum(w) depends on which taps
are inside. There is an initial value for every such set of taps; if there were many sets, there is
one value, and the correction at the edges is summed along with the products.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.backends.micro_c.strategies.helium.matching import guarded_indices
from graphc.backends.micro_c.vectors import LANES
from graphc.ir.addresses import flatten_index
from graphc.ir.dtypes import i32, i64
from graphc.ir.expr import Const, Expr, Index, Load, call, reduce, select, substitute
from graphc.ir.kernel import Buffer
from graphc.passes.analysis.computation import index_of
from graphc.passes.analysis.weighted import ProductMatch, interior

LEAST_TABLE = 2048  # bytes of starts that are always worth it


class Starts:
    """Constant arrays of what the sums of a match start from.

    Where it pays, there is one start for every set of taps that are inside (`classes` of the output
    indices on whose account taps are held back), and the centre is dealt with by them. `fixed` are
    the outer indices that the weights depend on, `packed` the elements of the packed weights;
    `constant` asks for an array of a name, over indices, that holds an expression; `guards` hold
    taps back.
    """

    def __init__(
        self, match: ProductMatch, fixed: list[Index], centre: int, bias: Expr | None, packed: int,
        constant: Callable[[str, tuple[Index, ...], Expr], Buffer], guards: list[Expr],
    ):  # fmt: skip
        assert match.column is not None
        self.match, self.fixed, self.centre, self.bias = match, fixed, centre, bias
        self.guards = guards
        self.column: Index = match.column
        self.constant = constant
        self.classes: list[Index] = []
        guarded = guarded_indices(match, guards)
        if centre and self._table_bytes(guarded) <= max(LEAST_TABLE, packed):
            self.classes = [x for x in match.indices if x in guarded]
        self.inside, self.edge = self._made(bool(guarded))

    def at(self, inside: bool, place: dict, column: Expr) -> Load | None:
        """The start of a sum in a column, with all taps inside or at the edges; None if it is 0."""
        buffer = self.inside if inside else self.edge
        if buffer is None:
            return None
        classes = [self._class_of(x, place[x], inside) for x in self.classes]
        where = (*(place[x] for x in self.fixed), *classes, column)
        return Load(buffer.name, (flatten_index(where, buffer.shape),), buffer.dtype)

    def _made(self, guarded: bool) -> tuple[Buffer | None, Buffer | None]:
        """What sums start from with all taps inside, and at the edges."""
        if not self.centre:
            start = None if self.bias is None else self._start("start", self.bias)
            return start, start
        zero = Const(0, self.match.hole.dtype)
        before = self.bias if self.bias is not None else zero
        taken = self._start("start", before - self._weight_sum() * Const(self.centre, i32))
        if self.classes or not guarded:
            return taken, taken
        edge = None if self.bias is None else self._start("edge", self.bias)
        return taken, edge

    def _table_bytes(self, guarded: set[Index]) -> int:
        """What a start for each class of the guarded indices takes."""
        ranges = [(*self._interior(x), x.count) for x in guarded]
        count = math.prod(_class_count(*bounds) for bounds in ranges)
        fixed = math.prod(x.count for x in self.fixed)
        return count * fixed * -(-self.column.count // LANES) * LANES * 4

    def _interior(self, index: Index) -> tuple[int, int]:
        return interior(index, self.match)

    def _weight_sum(self) -> Expr:
        """The sum of a column's weights whose taps are inside."""
        hole, body = self.match.hole, self.match.b
        for atom in self.guards if self.classes else []:
            body = select(atom, body, Const(0, hole.dtype))
        return reduce("sum", body, hole.axes)

    def _start(self, name: str, expr: Expr) -> Buffer:
        width = -(-self.column.count // LANES) * LANES
        ranges = [(*self._interior(x), x.count) for x in self.classes]
        counts = [_class_count(*r) for r in ranges]
        shape = (*(x.count for x in self.fixed), *counts, width)
        index = index_of(shape)
        mapping: dict[Expr, Expr] = dict(zip(self.fixed, index))
        for x, position, (low, high, _) in zip(self.classes, index[len(self.fixed) :], ranges):
            mapping[x] = position
            if high > low + 1:
                mapping[x] = select(position <= low, position, position + (high - low - 1))
        mapping[self.column] = last_column(self.column, index[-1])
        return self.constant(name, index, substitute(expr, mapping))

    def _class_of(self, index: Index, position: Expr, inside: bool) -> Expr:
        """Which of the starts belongs to a position of a guarded index."""
        low, high = self._interior(index)
        if high <= low + 1:
            return position
        if inside:
            return Const(low, i64)
        after = select(position >= high, position - (high - low - 1), Const(low, i64))
        return select(position < low, position, after) if low else after


def last_column(column: Index, position: Expr) -> Expr:
    """A column of the weights; those past the last are like the last."""
    return call("min", position, Const(column.count - 1, i64))


def _class_count(low: int, high: int, count: int) -> int:
    """Positions of an index that differ in the taps held back: low..high - 1 do not."""
    return count - max(high - low - 1, 0)
