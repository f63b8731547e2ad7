"""Value range analysis by channel: what the elements at each place of one axis can be.

`channels(region)` goes through the ops of a region in order. The body of an op is evaluated in
intervals (intervals.py) for all places of one axis of the result at once: the axis along which its
operands' channels run, or its constants vary. Indices of that axis and of reductions are numbers,
in arrays with a dim for each of them; other indices can be anything below their extent. So a
convolution is the sum, for every output channel, of weights times the interval of the input channel
that they belong to, or of that and zero for taps that reach into the padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from graphc.ir.expr import Call, Const, Expr, Index, Load, Reduce, Sym, free_indices, loads
from graphc.ir.graph import Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.simplify import simplify
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.intervals import (
    Interval,
    called,
    of_array,
    point,
    products_summed,
    summed,
    whole,
)
from graphc.passes.analysis.ranges import Range
from graphc.passes.analysis.structure import has_body, own_index
from graphc.records import dataclass

LARGEST = 1 << 22  # numbers in an array; of more, all the type has is told
BUDGET = 1 << 21  # elements of constants that are looked at in all
MOST_FLOATS = 1 << 16  # in a constant: bounds of more, and of sums over more, are of no use
FEW = 4096  # elements of a constant whose least and largest are found for parts of it
UNBOUNDED = 1 << 40  # in place of an extent that is not known


@dataclass(frozen=True)
class Channels:
    """What the elements of a value can be: intervals for the places of `axis`, or one for all."""

    axis: int | None
    ends: Interval

    @property
    def constant(self) -> np.ndarray:
        """Which channels have the same number everywhere, for all inputs."""
        return self.ends.is_point

    def all(self) -> Range:
        """The numbers of all channels."""
        return Range(float(self.ends.low.min()), float(self.ends.high.max()))


def channels(region: Region) -> dict[Value, Channels]:
    """The ranges of all values that ops of a region with scalar bodies give, where they are known.
    What is not listed can be anything of its type. So can, to take little time, what is made with
    constants after the first `BUDGET` elements of them."""
    known: dict[Value, Channels] = {}
    made: dict[tuple, Channels | None] = {}  # layers, and steps of time, have many that are alike
    left = BUDGET
    for op in region.ops:
        if len(op.outputs) != 1 or not has_body(op):
            continue
        read = sum(v.constant.size for v in op.inputs if v is not None and v.constant is not None)
        if read > left:
            continue
        left -= read
        key = _sources(op, known)
        if key not in made:
            made[key] = _of(op, known)
        ranges = made[key]
        if ranges is not None:
            known[op.output] = ranges
    return known


def _sources(op: Op, known: Mapping[Value, Channels]) -> tuple:
    """All that the range of an op's result follows from."""
    read = [
        None if v is None else (v.type, id(v.constant), id(known.get(v))) for v in op.inputs
    ]  # both live as long as the region and what is known of it
    return op_body(op), op.output.type, *read


def _of(op: Op, known: Mapping[Value, Channels]) -> Channels | None:
    body = simplify(op_body(op))
    if _is_unbounded(op, body, known):
        return None
    axis = _axis(op, body, known)
    grid = Grid(op, body, known, axis)
    ends = grid.of(body)
    if ends is None or not (np.isfinite(ends.low).any() or np.isfinite(ends.high).any()):
        return None
    if axis is None:
        return Channels(None, ends.map(lambda x: np.asarray(x).reshape(())))
    extent = op.output.tensor.extent(axis)
    flat = ends.map(lambda x: np.broadcast_to(np.asarray(x).reshape(-1), (extent,)))
    return Channels(axis, flat)


def _is_unbounded(op: Op, body: Expr, known: Mapping[Value, Channels]) -> bool:
    """Whether an op adds up floats that may be infinite: its sums can then be anything."""
    if not any(node.dtype.is_float for node in reductions_in([body])):
        return False
    varying = (v for v in op.inputs if v is not None and v.constant is None)
    return any(v not in known or not known[v].ends.is_finite for v in varying)


def _axis(op: Op, body: Expr, known: Mapping[Value, Channels]) -> int | None:
    """The axis of the result that its operands' channels run along; else one that constants do."""
    own = own_index(op.output)
    varying: list[int] = []
    constant: list[tuple[int, int]] = []
    for load in loads(body):
        value = op.inputs[int(load.source)]
        assert value is not None
        ranges = known.get(value)
        places = range(len(load.index)) if value.constant is not None else ()
        if ranges is not None and ranges.axis is not None:
            varying += _own(own, load.index[ranges.axis])
        constant += [(value.tensor.extent(d), n) for d in places for n in _own(own, load.index[d])
                     if isinstance(value.tensor.dims[d], int)]  # fmt: skip
    axes = varying or [n for _, n in sorted(constant, reverse=True)]
    return next((n for n in axes if isinstance(own[n].extent, int) and own[n].extent > 1), None)


def _own(own: tuple[Index, ...], place: Expr) -> list[int]:
    free = free_indices(place)
    return [n for n, index in enumerate(own) if index in free]


@dataclass
class Grid:
    """Evaluates the body of an op in intervals: arrays with a dim for the places of an axis of the
    result, and one for each index of a reduction. `chosen` are the places of some of these."""

    op: Op
    body: Expr
    known: Mapping[Value, Channels]
    axis: int | None
    chosen: Mapping[Index, np.ndarray] = field(default_factory=dict)
    places: dict[Index, Interval] = field(default_factory=dict)
    dims: dict[Index, int] = field(default_factory=dict)
    intervals: dict[Expr, Interval | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        indices = [] if self.axis is None else [own_index(self.op.output)[self.axis]]
        indices += [index for node in reductions_in([self.body]) for index in node.axes]
        indices = [i for i in dict.fromkeys(indices) if isinstance(i.extent, int)]
        for n, index in enumerate(indices):
            shape = [1] * (len(indices) - n)
            numbers = self.chosen.get(index, np.arange(index.count))
            self.dims[index], shape[0] = n, numbers.size
            self.places[index] = point(numbers.reshape([1] * n + shape))
        self.rank = len(indices)

    def of(self, expr: Expr) -> Interval | None:
        """What an expression can be; None if nothing is known of its type."""
        if expr not in self.intervals:
            ends = self._evaluate(expr)
            if ends is not None and ends.low.ndim < self.rank:
                ends = ends.map(self._shaped)
            self.intervals[expr] = ends
        return self.intervals[expr]

    def _evaluate(self, expr: Expr) -> Interval | None:
        if isinstance(expr, Const):
            return of_array(self._shaped(np.asarray(expr.value, expr.dtype.np)), expr.dtype)
        if isinstance(expr, Index):
            last = expr.extent - 1 if isinstance(expr.extent, int) else UNBOUNDED
            return self.places.get(expr) or self._between(0, last)
        if isinstance(expr, Sym):
            return self._between(expr.lo, UNBOUNDED if expr.hi is None else expr.hi)
        if isinstance(expr, Load):
            return self._loaded(expr)
        if isinstance(expr, Reduce):
            return self._reduced(expr)
        return called(expr, [self.of(x) for x in expr.args]) if isinstance(expr, Call) else None

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        return array.reshape([1] * self.rank)

    def _between(self, low: int, high: int) -> Interval:
        return Interval(self._shaped(np.asarray(low)), self._shaped(np.asarray(high)))

    # ------------------------------------------------------------ elements of operands

    def _loaded(self, load: Load) -> Interval | None:
        value = self.op.inputs[int(load.source)]
        assert value is not None
        contents = value.constant
        if contents is not None:
            return self._of_constant(load, contents)
        ranges = self.known.get(value)
        if ranges is None:
            everything = whole(load.dtype)
            return None if everything is None else everything.map(self._shaped)
        if ranges.axis is None:
            return ranges.ends.map(self._shaped)
        return self._picked(ranges.ends, [load.index[ranges.axis]])

    def _of_constant(self, load: Load, contents: np.ndarray) -> Interval | None:
        if contents.size > (MOST_FLOATS if load.dtype.is_float else LARGEST):
            return whole(load.dtype)
        everything = of_array(contents, load.dtype)
        return whole(load.dtype) if everything is None else self._picked(everything, [*load.index])

    def _picked(self, held: Interval, index: list[Expr]) -> Interval | None:
        """The elements of an array at indices, or all that may be there."""
        places = [self.of(x) for x in index]
        if any(place is None for place in places):
            return held.along(tuple(range(len(index)))).map(self._shaped)
        whole_dims = tuple(d for d, p in enumerate(places) if p.low is not p.high)  # type: ignore
        if len(index) == 1 and whole_dims and held.low.size <= FEW:
            return self._part(held, places[0])  # type: ignore[arg-type]
        if whole_dims:
            held = held.along(whole_dims)
        if self._is_plain(held, index, whole_dims):
            return held.map(lambda array: self._laid(array, index, whole_dims))
        at = tuple(
            self._shaped(np.asarray(0)) if d in whole_dims
            else np.clip(p.low, 0, held.low.shape[d] - 1)  # type: ignore[union-attr]
            for d, p in enumerate(places)
        )  # fmt: skip
        size = math.prod(np.broadcast_shapes(*(x.shape for x in at))) if at else 1
        if size > LARGEST:
            return held.along(tuple(range(len(index)))).map(self._shaped)
        return held.map(lambda array: array[at] if at else self._shaped(array))

    def _is_plain(self, held: Interval, index: list[Expr], joined: tuple[int, ...]) -> bool:
        """Whether an array is read as a whole, each dim by an index of its own."""
        plain = {x: held.low.shape[d] for d, x in enumerate(index) if d not in joined}
        return len(plain) == len(index) - len(joined) and all(
            x in self.places and self.places[x].low.size == size and x not in self.chosen
            for x, size in plain.items()
        )  # fmt: skip

    def _laid(self, array: np.ndarray, index: list[Expr], joined: tuple[int, ...]) -> np.ndarray:
        """An array read at plain indices: a view."""
        order = sorted((d for d in range(len(index)) if d not in joined),
                       key=lambda d: self.dims[index[d]])  # type: ignore[index]  # fmt: skip
        shape = [1] * self.rank
        for d in order:
            shape[self.dims[index[d]]] = array.shape[d]  # type: ignore[index]
        return array.transpose(*order, *joined).reshape(shape)

    def _part(self, held: Interval, place: Interval) -> Interval:
        """All that is between two places of a vector."""
        last = held.low.size - 1
        first, end = (np.clip(x, 0, last).reshape(-1) for x in (place.low, place.high))
        shape = np.broadcast_shapes(place.low.shape, place.high.shape)
        pairs = np.broadcast_arrays(first, end)
        low = np.array([held.low[a : b + 1].min() for a, b in zip(*pairs)])
        high = np.array([held.high[a : b + 1].max() for a, b in zip(*pairs)])
        return Interval(low.reshape(shape), high.reshape(shape), held.nan)

    # ------------------------------------------------------------ reductions

    def _reduced(self, node: Reduce, kept: tuple[Index, ...] = ()) -> Interval | None:
        """A reduction, over all of its indices but those that are kept."""
        indices = [index for index in node.axes if index not in kept]
        axes = tuple(self.dims[i] for i in indices if i in self.dims)
        if node.op not in ("sum", "max", "min") or len(axes) < len(indices):
            return whole(node.dtype)
        if any(index.count == 0 for index in indices):
            return whole(node.dtype)
        if node.op == "sum" and node.factors is not None:
            return self._product(node, indices, axes)
        terms = self._filled(self.of(node.body))
        if terms is None:
            return whole(node.dtype)
        if node.op != "sum":
            return terms.along(axes)
        return summed(terms, axes, self._count(indices, terms), node.dtype)

    def _filled(self, ends: Interval | None) -> Interval | None:
        """Ends of equal shape, if these are not too many."""
        if ends is None:
            return None
        shape = np.broadcast_shapes(ends.low.shape, ends.high.shape)
        if math.prod(shape) > LARGEST:
            return None
        return ends.map(lambda x: np.broadcast_to(x, shape))

    def _count(self, indices: list[Index], *arrays: Interval) -> int:
        """How many terms each stands for that arrays have."""
        return math.prod(i.count for i in indices
                         if all(a.low.shape[self.dims[i]] == 1 for a in arrays))  # fmt: skip

    def _product(
        self, node: Reduce, indices: list[Index], axes: tuple[int, ...]
    ) -> Interval | None:
        assert node.factors is not None
        a, b = node.factors
        first = self._filled(self.of(a))
        if first is None or (node.dtype.is_float and not first.is_finite):
            return whole(node.dtype)
        second = self._filled(self.of(b))
        if second is None or not second.is_finite:
            return whole(node.dtype)
        if second.low is not second.high:
            first, second = second, first
        count = self._count(indices, first, second)
        if second.low is second.high and not second.nan:
            return products_summed(first, second.low, axes, count, node.dtype)
        terms = self._filled(self.of(node.body))
        return None if terms is None else summed(terms, axes, count, node.dtype)

    def terms(self, node: Reduce, kept: Index) -> np.ndarray:
        """Whether what each place of an index adds to a sum is a number, and this number: arrays of
        the result's channels by these places. (NaN where it is none.)"""
        interval = self._reduced(node, (kept,))
        shape = (1 if self.axis is None else self.op.output.tensor.extent(self.axis),
                 self.places[kept].low.size)  # fmt: skip
        if interval is None:
            return np.full(shape, np.nan)
        numbers = np.where(interval.is_point, interval.low.astype(np.float64), np.nan)
        own = () if self.axis is None else (0,)
        order = (*own, self.dims[kept])
        rest = tuple(n for n in range(self.rank) if n not in order)
        laid = numbers.transpose(*order, *rest)
        return np.broadcast_to(laid.reshape(laid.shape[: len(order)]), shape)
