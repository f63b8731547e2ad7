"""Reductions as loops: the expressions that come out have no reduction left to compute.

A reduction is a scalar accumulator in loops over its axes. Guards inside become bounds of the loops
where possible (see analysis/guards.py). Reductions over the same axes share loops, and so do those
that read the same over axes of other names. A reduction along an axis that is contiguous in memory
is vectorised horizontally: several vector accumulators, which hide latency, and then a tree over
lanes. Where one accumulator would add very many terms, it adds sums of parts instead, whose
rounding errors do not grow with the number of all terms (blocked summation: Higham, "Accuracy and
Stability of Numerical Algorithms", section 4.3).
"""

from __future__ import annotations

import math
from dataclasses import field

from graphc.ir.addresses import is_affine_in
from graphc.ir.dtypes import boolean, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    call,
    cast,
    fold_call,
    free_indices,
    loads,
    select,
    substitute,
    walk,
)
from graphc.ir.extents import as_dim, divided, most, points
from graphc.ir.kernel import Buffer, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import Dim
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.guards import trim
from graphc.records import dataclass

UNROLL = 16  # iterations of a small reduction that are unrolled
LONG = 512  # terms of an accumulator that are worth sums of parts


@dataclass(frozen=True)
class NestOptions:
    """`lanes(bytes)` of a vector for elements of that many bytes; 1 for plain loops. With `flat`
    there is one parallel loop over all output elements, for machines with a thread for each."""

    vector_bytes: int = 0
    tile: int = 6
    chains: int = 4
    block: int = 2048  # elements of a one-dimensional computation per parallel iteration
    flat: bool = False

    def lanes(self, element_bytes: int) -> int:
        """Elements of so many bytes in a vector; 1 without vectors."""
        return max(1, self.vector_bytes // element_bytes)


@dataclass
class Reductions:
    """Emits the reductions of a computation where loops over its outputs ask for them."""

    computation: Computation
    options: NestOptions
    k: KernelBuilder = field(default_factory=KernelBuilder)
    lane: Index | None = None  # the index of the vector loop being emitted

    def resolve(self, exprs: list[Expr], bound: frozenset, per_lane: bool) -> list[Expr]:
        """The expressions with every reduction emitted whose free indices are bound."""
        while ready := ready_reductions(exprs, bound):
            exprs = self.resolve_group(ready, exprs, bound, per_lane)
        return exprs

    def resolve_group(
        self, ready: list[Reduce], exprs: list[Expr], bound: frozenset, per_lane: bool
    ) -> list[Expr]:
        """Emits the first of the ready reductions, and those that share its loops."""
        group = sharing_loops(ready)
        mapping = dict(zip(group, self.reduction(list(group.values()), bound, per_lane)))
        return [substitute(e, mapping) for e in exprs]

    def reduction(self, group: list[Reduce], bound: frozenset, per_lane: bool) -> list[Expr]:
        """Computes reductions over the same axes in one loop nest."""
        axes = list(group[0].axes)
        if any(a.extent == 0 for a in axes):
            return [r.identity for r in group]
        lanes = 1 if per_lane else self.horizontal_lanes(group, axes[-1])
        if lanes > 1:
            return self.horizontal(group, axes, lanes, bound)
        if (parts := in_parts(group)) is not None:
            totals = self.reduction(parts, bound, per_lane)
            return [self.k.let(cast(t, r.dtype)) for t, r in zip(totals, group)]
        accumulators = [
            self.k.var(r.dtype.compute, cast(r.identity, r.dtype.compute)) for r in group
        ]
        self._accumulate(group, axes, bound, per_lane, {}, [(a, ()) for a in accumulators])
        return [self.k.let(cast(a[()], r.dtype)) for a, r in zip(accumulators, group)]

    def _accumulate(
        self, group: list[Reduce], axes: list[Index], bound: frozenset, per_lane: bool,
        mapping: dict, targets: list[tuple],
    ) -> None:  # fmt: skip
        bodies = [simplify(r.term, mapping) for r in group]
        self._terms(group, bodies, axes, bound, per_lane, targets)

    def _terms(
        self, group: list[Reduce], bodies: list[Expr], axes: list[Index], bound: frozenset,
        per_lane: bool, targets: list[tuple],
    ) -> None:  # fmt: skip
        """Loops over the axes, and adds one term to every accumulator inside."""
        if not axes:
            resolved = self.resolve(bodies, bound, per_lane)
            for r, body, (buffer, index) in zip(group, resolved, targets):
                self.k.store(buffer, index, combined(r, buffer[index], body))
            return
        axis, *rest = axes
        scalar = bound - {self.lane} if self.lane is not None else bound
        trimmed = trim(group, bodies, axis, scalar)
        if trimmed is not None:
            inside, bodies = trimmed
            with self.k.loop(inside.extent) as x:
                moved = [simplify(b, {axis: x + inside.low}) for b in bodies]
                self._terms(group, moved, rest, bound | {x}, per_lane, targets)
            return
        total = points(axes)
        is_small = total <= UNROLL and total * len(group) <= 8 * UNROLL
        is_known = all(isinstance(a.extent, int) for a in axes)
        kind = "unroll" if is_small and is_known else "serial"
        with self.k.loop(axis.extent, kind) as x:
            moved = [simplify(b, {axis: x}) for b in bodies]
            self._terms(group, moved, rest, bound | {x}, per_lane, targets)

    def horizontal_lanes(self, group: list[Reduce], axis: Index) -> int:
        """Lanes along the axis itself, if all reductions read neighbours there; else 1."""
        if not self.options.vector_bytes:
            return 1
        lanes = self.options.lanes(element_bytes([r.body for r in group]))
        contiguous = all(strides_small(r.body, axis) for r in group)
        return lanes if contiguous and most(axis.extent) >= lanes else 1

    def horizontal(
        self, group: list[Reduce], axes: list[Index], lanes: int, bound: frozenset
    ) -> list[Expr]:
        """A reduction along a contiguous axis: vector accumulators, then a tree over lanes."""
        *outer, axis = axes
        chains = self.options.chains if most(axis.extent) >= self.options.chains * lanes else 1
        accumulators = self._vectors(group, chains, lanes)
        self._sweep(group, outer, axis, {}, accumulators, chains, lanes, bound)
        return [self.fold_lanes(r, a, chains, lanes) for r, a in zip(group, accumulators)]

    def _vectors(self, group: list[Reduce], chains: int, lanes: int) -> list[Buffer]:
        """Accumulators of reductions, a vector for each chain."""
        accumulators = []
        for r in group:
            dtype = r.dtype.compute
            accumulators.append(self.k.alloc(dtype, (chains * lanes,), "reg"))
            for c in range(chains):
                with self.k.loop(lanes, "vector", width=lanes) as v:
                    self.k.store(accumulators[-1], v + c * lanes, cast(r.identity, dtype))
        return accumulators

    def _sweep(
        self, group: list[Reduce], outer: list[Index], axis: Index, mapping: dict,
        accumulators: list[Buffer], chains: int, lanes: int, bound: frozenset,
    ) -> None:  # fmt: skip
        if outer:
            with self.k.loop(outer[0].extent) as x:
                inner = {**mapping, outer[0]: x}
                self._sweep(group, outer[1:], axis, inner, accumulators, chains, lanes, bound | {x})
            return

        def step(into: list[Buffer], start: Expr, chain: int, count: Dim, bound: frozenset) -> None:
            # adds `count` terms from `start` on to the lanes of one chain
            width = count if isinstance(count, int) else lanes
            with self.k.loop(count, "vector", width=width) as v:
                at = {**mapping, axis: start + v}
                targets = [(a, (simplify(v + chain * lanes),)) for a in into]
                self._accumulate(group, [], bound | {v}, True, at, targets)

        def steps(into: list[Buffer], first: Dim, count: Dim, bound: frozenset) -> None:
            # adds `count` vectors for each chain, from the `first` on
            with self.k.loop(count) as x:
                for c in range(chains):
                    step(into, ((x + first) * chains + c) * lanes, c, lanes, bound | {x})

        whole, left = divided(axis.extent, chains * lanes)
        is_long = most(whole) > LONG and _sums_floats(group)
        size = math.isqrt(most(whole)) if is_long else most(whole)
        parts = divided(whole, size)[0] if is_long else 0
        if parts != 0:
            with self.k.loop(parts) as part:
                sums = self._vectors(group, chains, lanes)
                steps(sums, part * size, size, bound | {part})
                self._add_vectors(group, accumulators, sums, chains, lanes)
        steps(accumulators, parts * size, as_dim(whole - parts * size), bound)
        done = whole * chains * lanes
        vectors, tail = divided(left, lanes)
        if isinstance(vectors, Expr):
            with self.k.loop(vectors) as x:
                step(accumulators, x * lanes + done, 0, lanes, bound | {x})
        else:
            for c in range(vectors):
                step(accumulators, as_expr(done + c * lanes, i64), c, lanes, bound)
        if tail != 0:
            step(accumulators, as_expr(axis.extent - tail, i64), 0, tail, bound)

    def _add_vectors(
        self, group: list[Reduce], accumulators: list[Buffer], parts: list[Buffer], chains: int,
        lanes: int,
    ) -> None:  # fmt: skip
        """Combines the vectors of a part with those of the whole, lane by lane."""
        for r, into, part in zip(group, accumulators, parts):
            for c in range(chains):
                with self.k.loop(lanes, "vector", width=lanes) as v:
                    here = simplify(v + c * lanes)
                    self.k.store(into, here, combined(r, into[here], part[here]))

    def fold_lanes(self, r: Reduce, accumulator: Buffer, chains: int, lanes: int) -> Expr:
        """What the lanes of so many chains of an accumulator come to."""
        width = chains * lanes
        while width > 1:
            half = width // 2
            step = min(half, lanes)
            for start in range(0, half, step):
                with self.k.loop(step, "vector" if step > 1 else "unroll", width=step) as v:
                    here, there = simplify(v + start), simplify(v + (start + half))
                    value = combined(r, accumulator[here], accumulator[there])
                    self.k.store(accumulator, here, value)
            width = half
        return self.k.let(cast(accumulator[Const(0, i64)], r.dtype))


def in_parts(group: list[Reduce]) -> list[Reduce] | None:
    """Long sums of floats over the same axes, as sums of about as many parts as each has terms;
    None if they are short, have no bound, or none of them is a sum of floats."""
    axes = group[0].axes
    total = points(axes)
    if total <= LONG or not _sums_floats(group):
        return None
    outer, inner, mapping = _split(axes, math.isqrt(total))
    if points(outer) >= total:  # of no known bound, however many terms a part has
        return None
    guard = _inside(mapping)
    return [Reduce(r.op, Reduce(r.op, _part(r, mapping, guard), inner), outer) for r in group]


def _sums_floats(group: list[Reduce]) -> bool:
    """Whether one of the reductions is a sum of floats, whose errors grow with its length."""
    return any(r.op == "sum" and r.dtype.is_float for r in group)


def _split(
    axes: tuple[Index, ...], wanted: int
) -> tuple[tuple[Index, ...], tuple[Index, ...], dict[Index, Expr]]:
    """Axes as outer and inner ones, these of about `wanted` points in all; and what becomes of the
    axis that is both, if one is."""
    first = len(axes) - 1
    while most(axes[first].extent) <= wanted:
        wanted //= most(axes[first].extent)
        first -= 1
    axis, size = axes[first], _part_size(axes[first].extent, wanted)
    if size == 1:
        return axes[: first + 1], axes[first + 1 :], {}
    part, term = (
        Index(f"{axis.name}_part", divided(axis.extent + size - 1, size)[0]),
        Index(f"{axis.name}_term", size),
    )
    return (*axes[:first], part), (term, *axes[first + 1 :]), {axis: part * size + term}


def _part_size(extent: Dim, wanted: int) -> int:
    """Terms of a part: a divisor of the extent that is near what is wanted, or just that."""
    near = range(wanted, max(wanted // 2, 1), -1) if isinstance(extent, int) else ()
    return next((size for size in near if extent % size == 0), max(wanted, 1))


def _inside(mapping: dict[Index, Expr]) -> Expr:
    """Whether a place in a part, the last of which may be shorter, is one of an axis."""
    inside: Expr = Const(True, boolean)
    for axis, place in mapping.items():
        inside = inside & (place < axis.extent)
    return simplify(inside)


def _part(r: Reduce, mapping: dict[Index, Expr], inside: Expr) -> Expr:
    """The term of a reduction at a place in a part; its identity where there is none."""
    term = substitute(r.term, mapping)
    if isinstance(inside, Const):
        return term
    identity = cast(r.identity, term.dtype)
    if isinstance(term, Call) and term.op.name == "select" and term.args[2] is identity:
        return select(term.args[0] & inside, term.args[1], identity)
    return select(inside, term, identity)


def sharing_loops(ready: list[Reduce]) -> dict[Reduce, Reduce]:
    """Those of some reductions that are over the axes of the first, and those over axes of the same
    extents that read what these read (the least and the largest of a tensor): what each is over
    the axes of the first."""
    axes = ready[0].axes
    group = {reduction: reduction for reduction in ready if reduction.axes == axes}
    read = {load for reduction in group for load in loads(reduction.body)}
    for reduction in ready:
        moved = reduction if reduction in group else _over(axes, reduction)
        if moved is not None and not read.isdisjoint(loads(moved.body)):
            group[reduction] = moved
    return group


def _over(axes: tuple[Index, ...], reduction: Reduce) -> Reduce | None:
    """The same reduction over axes of other names; None if it has others, or these names inside."""
    if [a.extent for a in axes] != [a.extent for a in reduction.axes]:
        return None
    if not set(axes).isdisjoint(walk(reduction.body)):
        return None
    body = substitute(reduction.body, dict(zip(reduction.axes, axes)))
    return Reduce(reduction.op, body, axes)


def ready_reductions(exprs: list[Expr], bound: frozenset) -> list[Reduce]:
    """Reductions over bound indices only, that contain no other such reduction."""
    ready: dict[Reduce, None] = {}
    waiting: set[Expr] = set()
    for expr in exprs:
        for node in walk(expr):
            if any(c in waiting for c in node.children):
                waiting.add(node)
            if isinstance(node, Reduce) and free_indices(node) <= bound:
                if node not in waiting:
                    ready[node] = None
                waiting.add(node)
    return list(ready)


def combined(r: Reduce, accumulator: Expr, value: Expr) -> Expr:
    """An accumulator with one more term."""
    dtype = accumulator.dtype
    product = r.op == "sum" and isinstance(value, Call) and value.op.name == "mul"
    if product and value.dtype is dtype and dtype.is_float:
        return call("fma", *value.args, accumulator)  # type: ignore[attr-defined]
    return fold_call(r.combine, (accumulator, cast(value, dtype)), dtype)


def element_bytes(exprs: list[Expr]) -> int:
    """The widest element that a computation loads or makes."""
    sizes = [4]
    for expr in exprs:
        sizes.append(expr.dtype.compute.size)
        for node in walk(expr):
            if isinstance(node, (Load, Call)) and node.dtype not in (i64, boolean):
                sizes.append(node.dtype.compute.size)
    if exprs and all(e.dtype is i64 for e in exprs):
        return 8
    return max(sizes)


def strides_small(expr: Expr, axis: Index) -> bool:
    """Whether every load moves by 0 or 1 element along `axis`."""
    for node in walk(expr):
        if isinstance(node, Load):
            for position in node.index:
                if is_affine_in(position, axis) not in (0, 1):
                    return False
    return True
