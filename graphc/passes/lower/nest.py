"""The strategy that always matches: a loop nest over the outputs, scalar or with vectors.

With `lanes` 1 it is plain loops. Otherwise the innermost dimension of the output is the vector: a
reduction that depends on it runs once per lane, over a tile of several outputs so that loads are
shared and latency is hidden; a reduction that does not (softmax, layer norm) is hoisted to the row
it belongs to and runs horizontally, with several vector accumulators. What a row's reduction
and its outputs both compute at a cost (the exponentials of softmax) is kept in a row buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from graphc.ir.dtypes import DType, boolean, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    call,
    cast,
    cost,
    free_indices,
    loads,
    substitute,
    walk,
)
from graphc.ir.expr import _fold as fold_call
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.simplify import (
    flatten_index,
    is_affine_in,
    simplify,
    unflatten_index,
)
from graphc.passes.lower.computation import Computation, Lowered, flat_buffer, loop_indices
from graphc.passes.lower.guards import guard_atoms, trim
from graphc.passes.lower.pieces import segments, turned_constants
from graphc.passes.lower.spaces import (
    drop_units,
    flatten_loads,
    merge_adjacent,
    merge_reductions,
    shapes_of,
)

UNROLL = 16  # iterations of a small reduction that are unrolled
ROW_BUFFER_BYTES = 1 << 16  # the largest row kept on the stack
RECOMPUTE_COST = 8  # a value cheaper than this is computed again rather than kept


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
        return max(1, self.vector_bytes // element_bytes)


def lower_nest(computation: Computation, options: NestOptions, name: str = "nest") -> Lowered:
    """The kernel of a computation whose outputs share one iteration space."""
    flops, inplace = work(computation), in_place(computation)
    prepare: list[Computation] = []
    temporaries: list[Buffer] = []
    if options.vector_bytes:
        computation, prepare, temporaries = turned_constants(computation)
    kernel = Nest(computation, options).kernel(name)
    return Lowered(kernel, prepare, temporaries, inplace=inplace, flops=flops)


def in_place(computation: Computation) -> list[tuple[str, str]]:
    """Inputs that are read only at the very element that is being stored, by the only output.

    An output of the same element size may then take the input's place.
    """
    if len(computation.outputs) != 1:
        return []
    output = computation.outputs[0]
    here = flatten_index(output.index, output.extents)
    reads: dict[str, list[Load]] = {}
    for load in loads(output.expr):
        reads.setdefault(load.source, []).append(load)
    found = []
    for buffer in computation.inputs:
        if buffer.dtype.size != output.buffer.dtype.size:
            continue
        if all(flatten_index(x.index, buffer.shape) is here for x in reads.get(buffer.name, ())):
            found.append((output.buffer.name, buffer.name))
    return found


def work(computation: Computation) -> int:
    """Roughly the operations done, for deciding whether threads pay."""
    return sum(math.prod(o.extents) * min(cost(o.expr), 1 << 20) for o in computation.outputs)


@dataclass
class Point:
    """One element to store: which output, where, and what."""

    output: Buffer
    offset: Expr
    expr: Expr


@dataclass
class Nest:
    """Emits the loops of one computation; strategies with other loops override parts of it."""

    computation: Computation
    options: NestOptions
    k: KernelBuilder = field(default_factory=KernelBuilder)
    lane: Index | None = None  # the index of the vector loop being emitted

    def kernel(self, name: str) -> Kernel:
        first = self.computation.outputs[0]
        shapes = shapes_of(self.computation.inputs)
        own = loop_indices(first.extents)
        indices, exprs = list(own), []
        for output in self.computation.outputs:
            mapping: dict[Expr, Expr] = dict(zip(output.index, own))
            exprs.append(simplify(flatten_loads(substitute(output.expr, mapping), shapes)))
        offset = flatten_index(own, first.extents)
        indices, (offset, *exprs) = drop_units(indices, [offset, *exprs])
        exprs = [merge_reductions(e) for e in exprs]
        outputs = [flat_buffer(o.buffer) for o in self.computation.outputs]
        cuts = [({}, indices)] if self.options.flat else segments(indices, exprs)
        for mapping, pieces in cuts:
            where, *parts = (simplify(substitute(e, mapping)) for e in (offset, *exprs))
            merged, (where, *parts) = merge_adjacent(pieces, [where, *parts])
            points = [Point(b, where, e) for b, e in zip(outputs, parts)]
            if math.prod(first.extents) > 0:
                self.outer_loops(merged, points)
        params = (*map(flat_buffer, self.computation.inputs), *outputs)
        return Kernel(name, params, self.k.body(), self.computation.label)

    # ---------------------------------------------------------------- loops over the outputs

    def flat_loop(self, indices: list[Index], points: list[Point]) -> None:
        """One parallel loop over all elements, the innermost dimension fastest."""
        extents = tuple(x.count for x in indices)
        with self.k.loop(math.prod(extents), "parallel", name="p") as p:
            points = self._at(points, dict(zip(indices, unflatten_index(p, extents))))
            self.store_points(self.resolved(points, frozenset({p})))

    def outer_loops(self, indices: list[Index], points: list[Point]) -> None:
        """Parallel loop over rows, hoisted reductions, then the loops inside a row."""
        if self.options.flat:
            self.flat_loop(indices, points)
            return
        if not indices:
            self.store_points(self.resolved(points, frozenset()))
            return
        *rows, last = indices
        hoisted = self._row_depth(rows, last, points)
        if not rows:
            self.one_dimension(last, points, hoisted is not None)
            return
        depth = len(rows) if hoisted is None else hoisted
        tiled = hoisted is None and self._has_lane_reduction(points, last)
        if tiled:
            depth = min(depth, len(rows) - 1)
        outer, inner = rows[:depth], rows[depth:]
        extent = math.prod(x.extent for x in outer)  # type: ignore[misc]
        with self.k.loop(extent, "parallel", name="p") as p:
            position = unflatten_index(p, tuple(x.extent for x in outer))
            points = self._at(points, dict(zip(outer, position)))
            bound = frozenset({p})
            if hoisted is not None:
                points = self.row_values(points, last, bound)
            self.inner_loops(inner, last, points, bound, tiled)

    def one_dimension(self, last: Index, points: list[Point], hoisted: bool) -> None:
        if hoisted:
            points = self.row_values(points, last, frozenset())
            self.inner_loops([], last, points, frozenset(), False)
            return
        extent, block = last.count, self.options.block  # type: ignore[arg-type]
        whole = extent // block
        if whole > 1:
            with self.k.loop(whole, "parallel", name="p") as p:
                inside = Index(last.name, block)
                moved = self._at(points, {last: p * block + inside})
                self.inner_loops([], inside, moved, frozenset({p}), False)
            rest = Index(last.name, extent - whole * block)
            if rest.extent:
                moved = self._at(points, {last: rest + whole * block})
                self.inner_loops([], rest, moved, frozenset(), False)
        else:
            self.inner_loops([], last, points, frozenset(), False)

    def inner_loops(self, inner, last: Index, points, bound: frozenset, tiled: bool) -> None:
        """Serial loops over the rest of a row; the last of them may be tiled."""
        if not inner:
            self.last_dimension(last, [points], bound)
            return
        first, *rest = inner
        extent = first.count
        tile = self._tile(extent) if tiled and not rest else 1
        whole = extent // tile
        for start, count in self._peeled(points, first, tile, whole):
            with self.k.loop(count, "unroll" if count == 1 else "serial") as x:
                at = x + start if count > 1 else Const(start, i64)
                variants = [self._at(points, {first: at * tile + t}) for t in range(tile)]
                if rest:
                    self.inner_loops(rest, last, variants[0], bound | {x}, tiled)
                else:
                    self.last_dimension(last, variants, bound | {x})
        left = range(whole * tile, extent)
        if left:
            variants = [self._at(points, {first: Const(t, i64)}) for t in left]
            self.last_dimension(last, variants, bound)

    def _peeled(self, points, index: Index, tile: int, whole: int) -> list[tuple[int, int]]:
        """Segments (first tile, tiles): the tiles at the edges, where windows need guards on this
        index, apart from those in between, where they do not."""
        if tile == 1 or whole < 3 or not any(_guards_on(p.expr, index) for p in points):
            return [(0, whole)] if whole else []
        for edge in (1, 2):
            count = whole - 2 * edge
            if count < 1:
                break
            x = Index("tile", count)
            inside = [self._at(points, {index: (x + edge) * tile + t}) for t in range(tile)]
            if not any(_guards_on(p.expr, x) for variant in inside for p in variant):
                ends = [(n, 1) for n in range(edge)]
                return [*ends, (edge, count), *((n + edge + count, 1) for n, _ in ends)]
        return [(0, whole)]

    def last_dimension(self, last: Index, variants: list[list[Point]], bound: frozenset) -> None:
        """The innermost dimension, in vectors with a tail, for a tile of points."""
        lanes = self._lanes([p for points in variants for p in points], last)
        extent = last.count
        if lanes == 1:
            if extent == 1:
                self._element(variants, {last: Const(0, i64)}, bound)
                return
            with self.k.loop(extent) as x:
                self._element(variants, {last: x}, bound | {x})
            return
        whole, tail = divmod(extent, lanes)
        if whole == 1:
            self._vector(variants, last, Const(0, i64), lanes, bound)
        elif whole:
            with self.k.loop(whole) as x:
                self._vector(variants, last, x * lanes, lanes, bound | {x})
        if tail:
            self._vector(variants, last, Const(whole * lanes, i64), tail, bound)

    def _vector(self, variants, last: Index, start: Expr, lanes: int, bound: frozenset) -> None:
        if lanes == 1:
            self._element(variants, {last: start}, bound)
            return
        with self.k.loop(lanes, "vector", width=lanes) as v:
            self.lane = v
            self._element(variants, {last: start + v}, bound | {v}, per_lane=True)
            self.lane = None

    def _element(self, variants, mapping, bound: frozenset, per_lane: bool = False) -> None:
        points = [p for points in variants for p in self._at(points, mapping)]
        self.store_points(self.resolved(points, bound, per_lane))

    def store_points(self, points: list[Point]) -> None:
        for point in points:
            self.k.store(point.output, (simplify(point.offset),), simplify(point.expr))

    # ---------------------------------------------------------------- choices

    def _at(self, points: list[Point], mapping: dict) -> list[Point]:
        return [
            Point(p.output, simplify(substitute(p.offset, mapping)),
                   simplify(substitute(p.expr, mapping)))
            for p in points
        ]  # fmt: skip

    def _row_depth(self, rows: list[Index], last: Index, points: list[Point]) -> int | None:
        """How many outer dims the hoistable reductions need; None if there are none."""
        depth = None
        for point in points:
            for node in walk(point.expr):
                if isinstance(node, Reduce):
                    free = free_indices(node)
                    if last in free or any(x not in rows for x in free):
                        continue
                    needed = max((rows.index(x) + 1 for x in free), default=0)
                    depth = max(depth or 0, needed)
        return depth

    def _has_lane_reduction(self, points: list[Point], last: Index) -> bool:
        return any(
            isinstance(node, Reduce) and last in free_indices(node)
            for point in points
            for node in walk(point.expr)
        )

    def _tile(self, extent: int) -> int:
        best = min(self.options.tile, extent)
        for tile in range(best + 2, best // 2, -1):
            if extent % tile == 0:
                return tile
        return best

    def _lanes(self, points: list[Point], last: Index) -> int:
        if not self.options.vector_bytes or last.count < 2:  # type: ignore[arg-type]
            return 1
        lanes = self.options.lanes(_element_bytes([p.expr for p in points]))
        return lanes if last.count >= min(lanes, 4) else 1  # type: ignore[arg-type]

    # ---------------------------------------------------------------- reductions

    def resolved(self, points: list[Point], bound: frozenset, per_lane=False) -> list[Point]:
        """Emits every reduction that can be computed here; the points then refer to results."""
        exprs = self.resolve([p.expr for p in points], bound, per_lane)
        return [Point(p.output, p.offset, e) for p, e in zip(points, exprs)]

    def resolve(self, exprs: list[Expr], bound: frozenset, per_lane: bool) -> list[Expr]:
        while ready := ready_reductions(exprs, bound):
            exprs = self.resolve_group(ready, exprs, bound, per_lane)
        return exprs

    def resolve_group(self, ready: list[Reduce], exprs, bound: frozenset, per_lane) -> list[Expr]:
        """Emits the first of the ready reductions, and those over the same axes."""
        group = [r for r in ready if r.axes == ready[0].axes]
        mapping = dict(zip(group, self.reduction(group, bound, per_lane)))
        return [substitute(e, mapping) for e in exprs]

    def reduction(self, group: list[Reduce], bound: frozenset, per_lane: bool) -> list[Expr]:
        """Computes reductions over the same axes in one loop nest."""
        axes = list(group[0].axes)
        if any(a.extent == 0 for a in axes):
            return [r.identity for r in group]
        lanes = 1 if per_lane else self._horizontal_lanes(group, axes[-1])
        if lanes > 1:
            return self.horizontal(group, axes, lanes, bound)
        accumulators = [
            self.k.var(r.dtype.compute, cast(r.identity, r.dtype.compute)) for r in group
        ]
        self._accumulate(group, axes, bound, per_lane, {}, [(a, ()) for a in accumulators])
        return [self.k.let(cast(a[()], r.dtype)) for a, r in zip(accumulators, group)]

    def _accumulate(self, group, axes, bound, per_lane, mapping, targets) -> None:
        bodies = [simplify(substitute(r.term, mapping)) for r in group]
        self._terms(group, bodies, axes, bound, per_lane, targets)

    def _terms(self, group, bodies, axes, bound, per_lane, targets) -> None:
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
                moved = [simplify(substitute(b, {axis: x + inside.low})) for b in bodies]
                self._terms(group, moved, rest, bound | {x}, per_lane, targets)
            return
        total = math.prod(a.count for a in axes)
        kind = "unroll" if total <= UNROLL and total * len(group) <= 8 * UNROLL else "serial"
        with self.k.loop(axis.extent, kind) as x:
            moved = [simplify(substitute(b, {axis: x})) for b in bodies]
            self._terms(group, moved, rest, bound | {x}, per_lane, targets)

    def _horizontal_lanes(self, group: list[Reduce], axis: Index) -> int:
        if not self.options.vector_bytes:
            return 1
        lanes = self.options.lanes(_element_bytes([r.body for r in group]))
        contiguous = all(_strides_small(r.body, axis) for r in group)
        return lanes if contiguous and axis.count >= lanes else 1  # type: ignore[arg-type]

    def horizontal(self, group, axes: list[Index], lanes: int, bound: frozenset) -> list[Expr]:
        """A reduction along a contiguous axis: vector accumulators, then a tree over lanes."""
        *outer, axis = axes
        extent = axis.count
        chains = self.options.chains if extent >= self.options.chains * lanes else 1
        accumulators = []
        for r in group:
            dtype = r.dtype.compute
            accumulators.append(self.k.alloc(dtype, (chains * lanes,), "reg"))
            for c in range(chains):
                with self.k.loop(lanes, "vector", width=lanes) as v:
                    self.k.store(accumulators[-1], v + c * lanes, cast(r.identity, dtype))
        self._sweep(group, outer, axis, {}, accumulators, chains, lanes, bound)
        return [self._fold_lanes(r, a, chains, lanes) for r, a in zip(group, accumulators)]

    def _sweep(self, group, outer, axis, mapping, accumulators, chains, lanes, bound) -> None:
        if outer:
            with self.k.loop(outer[0].extent) as x:
                inner = {**mapping, outer[0]: x}
                self._sweep(group, outer[1:], axis, inner, accumulators, chains, lanes, bound | {x})
            return

        def step(start: Expr, chain: int, count: int, bound: frozenset) -> None:
            with self.k.loop(count, "vector", width=count) as v:
                at = {**mapping, axis: start + v}
                targets = [(a, (simplify(v + chain * lanes),)) for a in accumulators]
                self._accumulate(group, [], bound | {v}, True, at, targets)

        extent = axis.count
        whole = extent // (chains * lanes)
        with self.k.loop(whole) as x:
            for c in range(chains):
                step((x * chains + c) * lanes, c, lanes, bound | {x})
        done = whole * chains * lanes
        for c in range((extent - done) // lanes):
            step(Const(done + c * lanes, i64), c, lanes, bound)
        tail = extent % lanes
        if tail:
            step(Const(extent - tail, i64), 0, tail, bound)

    def _fold_lanes(self, r: Reduce, accumulator: Buffer, chains: int, lanes: int) -> Expr:
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

    # ---------------------------------------------------------------- rows kept

    def row_values(self, points: list[Point], last: Index, bound: frozenset) -> list[Point]:
        """Emits the reductions of a row; before each, what it shares with the outputs is kept."""
        while True:
            points = self.keep_rows(points, last, bound)
            exprs = [p.expr for p in points]
            ready = ready_reductions(exprs, bound)
            if not ready:
                return points
            exprs = self.resolve_group(ready, exprs, bound, False)
            points = [Point(p.output, p.offset, e) for p, e in zip(points, exprs)]

    def keep_rows(self, points: list[Point], last: Index, bound: frozenset) -> list[Point]:
        """Stores in a row buffer what a reduction over the row and the outputs both compute."""
        while True:
            found = self._shared(points, last, bound)
            if found is None:
                return points
            reduction, value, extent = found
            axis = reduction.axes[0]
            (resolved,) = self.resolve([substitute(value, {last: axis})], bound, False)
            row = self.k.alloc(value.dtype, (extent,), "stack")
            self._fill(row, resolved, axis, bound)
            mapping = {value: row[last], substitute(value, {last: axis}): row[axis]}
            points = [Point(p.output, p.offset, substitute(p.expr, mapping)) for p in points]

    def _fill(self, row: Buffer, value: Expr, axis: Index, bound: frozenset) -> None:
        point = Point(row, axis, value)
        self.last_dimension(axis, [[point]], bound)

    def _shared(self, points: list[Point], last: Index, bound: frozenset):
        """A costly value of the outputs that a ready row reduction computes too."""
        nodes = {n for p in points for n in walk(p.expr)}
        for p in points:
            for r in ready_reductions([p.expr], bound):
                if len(r.axes) != 1 or r.axes[0].extent != last.extent:
                    continue
                for inner in reversed(list(walk(r.body))):
                    if not isinstance(inner, Call) or cost(inner) < RECOMPUTE_COST:
                        continue
                    same = substitute(inner, {r.axes[0]: last})
                    if r.axes[0] in free_indices(inner) and same in nodes:
                        if last.count * inner.dtype.size <= ROW_BUFFER_BYTES:  # type: ignore
                            return r, same, last.count
        return None


def _guards_on(expr: Expr, index: Index) -> bool:
    """Whether a guard of a reduction depends on `index`."""
    return any(
        index in free_indices(atom)
        for node in walk(expr)
        if isinstance(node, Reduce)
        for atom in guard_atoms(node.op, node.identity, node.body)
    )


def ready_reductions(exprs: list[Expr], bound: frozenset) -> list[Reduce]:
    """Reductions over bound indices only, that contain no other such reduction."""
    found: dict[Reduce, None] = {}
    waiting: set[Expr] = set()
    for expr in exprs:
        for node in walk(expr):
            if any(c in waiting for c in node.children):
                waiting.add(node)
            if isinstance(node, Reduce) and free_indices(node) <= bound:
                if node not in waiting:
                    found[node] = None
                waiting.add(node)
    return list(found)


def combined(r: Reduce, accumulator: Expr, value: Expr) -> Expr:
    """An accumulator with one more term."""
    dtype = accumulator.dtype
    product = r.op == "sum" and isinstance(value, Call) and value.op.name == "mul"
    if product and value.dtype is dtype and dtype.is_float:
        return call("fma", *value.args, accumulator)  # type: ignore[attr-defined]
    return fold_call(r.combine, (accumulator, cast(value, dtype)), dtype)


def _element_bytes(exprs: list[Expr]) -> int:
    """The widest element that a computation loads or makes."""
    sizes = [4]
    for expr in exprs:
        sizes.append(_vector_size(expr.dtype))
        for node in walk(expr):
            if isinstance(node, (Load, Call)) and node.dtype not in (i64, boolean):
                sizes.append(_vector_size(node.dtype))
    if exprs and all(e.dtype is i64 for e in exprs):
        return 8
    return max(sizes)


def _vector_size(dtype: DType) -> int:
    return dtype.compute.size


def _strides_small(expr: Expr, axis: Index) -> bool:
    """Whether every load moves by 0 or 1 element along `axis`."""
    for node in walk(expr):
        if isinstance(node, Load):
            for position in node.index:
                if is_affine_in(position, axis) not in (0, 1):
                    return False
    return True
