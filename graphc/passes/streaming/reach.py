"""Which frames of its operands a frame of an op's result is made of.

Frames are the places of one axis, time. A body that reads an operand at `stride * t + k` along a
dim, with k between bounds, and depends on t in no other way where it reads inside of the operand,
computes every frame alike: a convolution or a pooling along time, anything elementwise, a product
of each frame with weights. All of it is read off bodies; composite operators are followed through
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.errors import GraphcError
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    free_indices,
    loads,
    transform,
    walk,
)
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import expand, op_body
from graphc.ir.simplify import bounds, from_poly, simplify, to_poly
from graphc.passes.analysis.structure import has_body, own_index
from graphc.records import dataclass


@dataclass(frozen=True)
class Reach:
    """Frame t of a result is made of frames `stride * t + first` to `stride * t + last` of an
    operand, which run along its `dim`. With a `period` above 1 that is so of the t-th group of so
    many places of the result, as behind a Reshape that has joined frames with what they hold."""

    dim: int
    stride: int
    first: int
    last: int
    period: int = 1

    def after(self, other: Reach) -> Reach | None:
        """From a result to an operand's operand, whose frames `other` says; None if a frame is not
        made of whole groups."""
        if self.stride % other.period:
            return None
        return Reach(
            other.dim, self.stride // other.period * other.stride,
            self.first // other.period * other.stride + other.first,
            self.last // other.period * other.stride + other.last, self.period,
        )  # fmt: skip

    def of(self, low: int, high: int) -> tuple[int, int]:
        """The frames of the operand that frames `low` to before `high` are made of, likewise."""
        return self.stride * low + self.first, self.stride * (high - 1) + self.last + 1

    def inside(self, low: int, high: int) -> tuple[int, int]:
        """The frames of the result, from the first to before the last, that are made of frames
        `low` to before `high` alone."""
        return -((self.first - low) // self.stride), (high - 1 - self.last) // self.stride + 1


Reaches = list[Reach | None]
"""For each operand; None for one that every frame reads alike, or that is not read."""


def reaches(op: Op, output: int, axis: int) -> Reaches | None:
    """The frames of operands that a frame of an output is made of, where these run along `axis`;
    None if frames are not all computed alike."""
    key = reaches, output, axis
    if key not in op.memo:
        op.memo[key] = _reaches(op, output, axis)
    return op.memo[key]


def _reaches(op: Op, output: int, axis: int) -> Reaches | None:
    if op.regions or not op.outputs[output].is_static:
        return None
    if op.defn.form == "composite":
        graph, results = expand(op)
        return _through(graph, results[output], axis)
    if not has_body(op):
        return None
    body, own = simplify(op_body(op, output)), own_index(op.outputs[output])[axis]
    for period in _periods(body, own):
        by_operand = _of_groups(op, body, own, period)
        if by_operand is not None:
            return by_operand
    return None


def _periods(body: Expr, own: Index) -> list[int]:
    """1, and the numbers that an index is divided by where loads are."""
    numbers = {
        node.args[1].value
        for load in loads(body)
        for place in load.index
        for node in walk(place)
        if isinstance(node, Call)
        and node.op.name in ("floordiv", "mod")
        and isinstance(node.args[1], Const)
        and own in free_indices(node.args[0])
    }
    return [1, *sorted(int(n) for n in numbers if 1 < n < own.count and own.count % n == 0)]  # type: ignore[call-overload]


def _of_groups(op: Op, body: Expr, own: Index, period: int) -> Reaches | None:
    """As `reaches`, where groups of so many places count as frames."""
    if period > 1:
        group, member = Index(own.name, own.count // period), Index("member", period)
        body, own = simplify(body, {own: group * period + member}), group
    known: dict[int, set[Reach | None]] = {}
    for load in loads(body):
        place = _place(load, own, period)
        if place == ():
            return None
        known.setdefault(int(load.source), set()).add(place)  # type: ignore[arg-type]
    joined = [_joined(known.get(n, {None})) for n in range(len(op.inputs))]
    if () in joined:
        return None
    by_operand: Reaches = joined  # type: ignore[assignment]
    return by_operand if _is_alike(op, body, own, by_operand) else None


def _place(load: Load, own: Index, period: int) -> Reach | None | tuple[()]:
    """What of an operand a load reads; () if frames are not read alike."""
    dims = [d for d, place in enumerate(load.index) if own in free_indices(place)]
    if not dims:
        return None
    poly = to_poly(simplify(load.index[dims[0]]))
    stride = poly.pop((own,), 0)
    rest = from_poly(poly)
    ends = bounds(rest)
    if len(dims) > 1 or stride < 1 or own in free_indices(rest) or any(map(math.isinf, ends)):
        return ()
    return Reach(dims[0], stride, int(ends[0]), int(ends[1]), period)


def _joined(places: set[Reach | None]) -> Reach | None | tuple[()]:
    """What several loads read together."""
    if places == {None}:
        return None
    whole = [place for place in places if place is not None]
    if None in places or len({(p.dim, p.stride, p.period) for p in whole}) > 1:
        return ()
    first, last = min(p.first for p in whole), max(p.last for p in whole)
    return Reach(whole[0].dim, whole[0].stride, first, last, whole[0].period)


def own_frames(op: Op, by_operand: Reaches) -> tuple[int, int]:
    """The frames of a result that read no frame that an operand does not have."""
    ends = [
        reach.inside(0, value.tensor.dims[reach.dim])  # type: ignore[arg-type]
        for value, reach in zip(op.inputs, by_operand)
        if value is not None and reach is not None
    ]
    return max((low for low, _ in ends), default=0), min((high for _, high in ends), default=0)


def _is_alike(op: Op, body: Expr, own: Index, by_operand: Reaches) -> bool:
    """Whether the frames that read inside of all operands depend on t by what they read alone."""
    low, high = own_frames(op, by_operand)
    low, high = max(low, 0), min(high, own.count)
    if high <= low:
        return all(reach is None for reach in by_operand)
    return not depends(body, own, low, high)


def depends(body: Expr, own: Index, low: int, high: int) -> bool:
    """Whether a body, at frames `low` to before `high`, depends on the frame beside what it
    loads."""
    inside = simplify(body, {own: Index(own.name, high - low) + low})
    read: dict[Expr, Expr] = {load: Ref("element", load.dtype) for load in loads(inside)}
    rest = transform(inside, lambda node: read.get(node))
    return any(index.name == own.name for index in free_indices(rest))


def counts_as_zero(op: Op, output: int, axis: int) -> bool:
    """Whether frames before the first count as zeros, for every frame of the result."""
    if op.defn.form == "composite":
        return False
    body, own = simplify(op_body(op, output)), own_index(op.outputs[output])[axis]

    def unguarded(node: Expr) -> Expr | None:
        if not (isinstance(node, Call) and node.op.name == "select"):
            return None
        condition, then, other = node.args
        is_zero = isinstance(other, Const) and other.value == 0
        reads = isinstance(then, Load) and own in free_indices(condition)
        return then if is_zero and reads else None

    return not depends(transform(body, unguarded), own, 0, own.count)


def _through(graph: Graph, result: Value, axis: int) -> Reaches | None:
    """`reaches` of a graph's parameters."""
    start = Reach(axis, 1, 0, 0)
    known: dict[Value, set[Reach | None]] = {result: {start}}
    for op in reversed(graph.ops):
        for output, value in enumerate(op.outputs):
            for reach in known.get(value, ()):
                below: Sequence[Reach | None] | None = [None] * len(op.inputs)
                if reach is not None:
                    below = reaches(op, output, reach.dim)
                if below is None:
                    return None
                for operand, part in zip(op.inputs, below):
                    if operand is not None:
                        place = None
                        if reach is not None and part is not None:
                            place = reach.after(part)
                            if place is None:
                                return None
                        known.setdefault(operand, set()).add(place)
    joined = [_joined(known.get(param, {None})) for param in graph.params]
    return None if () in joined else joined  # type: ignore[return-value]


def least_frame(op: Op, operand: int, dim: int) -> int:
    """The first frame of an operand, along a dim, that any result reads; 0 if that is not known."""
    if not has_body(op):
        return 0
    least = math.inf
    try:
        for output in range(len(op.outputs)):
            for load in loads(simplify(op_body(op, output))):
                if load.source == str(operand):
                    least = min(least, bounds(load.index[dim])[0])
    except GraphcError:
        return 0
    return 0 if math.isinf(least) else max(int(least), 0)
