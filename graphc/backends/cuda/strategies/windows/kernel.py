"""Sliding windows over channels stored last: depthwise and grouped convolutions, and pooling.

A thread computes a patch of neighbouring outputs for a few neighbouring channels, in registers:

    for each input position of the patch and its halo      (read once, 16 bytes at a time)
        for each output of the patch and tap of the window that meet there
            sum[output] += input * weight[tap]             (or the larger of both, for pooling)

so that an element is read (span of the patch) / (outputs of the patch) times instead of once per
tap, all threads of a warp read neighbouring channels, and halos come from the cache. Any kernel,
stride, dilation, padding and channel multiplier is of this form: a summed axis `slides` with an
output index if moving the one by some steps and the other by some steps back leaves the factor as
it is, and outputs have elements in common. Other summed axes (the channels of a group) are loops
around it.

The scheme is that of direct convolutions in registers: A. Lavin, S. Gray, Fast Algorithms for
Convolutional Neural Networks (2016), section 3.
"""

from __future__ import annotations

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.vectors import compute_points, each_neighbour, read_neighbours
from graphc.backends.cuda.strategies.windows.patches import Patch, best_patch
from graphc.ir.addresses import flatten_index, flatten_loads, unflatten_index
from graphc.ir.dtypes import i64
from graphc.ir.expr import (
    TRUE,
    Call,
    Const,
    Expr,
    Index,
    Load,
    Ref,
    call,
    cast,
    free_indices,
    loads,
    substitute,
)
from graphc.ir.extents import ceil_divided, points
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder, Let
from graphc.ir.simplify import bounds, simplify
from graphc.ir.types import elements_of
from graphc.passes.analysis.computation import (
    Computation,
    Output,
    buffers_read,
    flat_buffer,
    index_of,
)
from graphc.passes.analysis.contraction import wide_sums
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.analysis.windows import Windows, match_windows
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.strategies.nest import Point
from graphc.passes.lower.strategies.reductions import combined


def lower_windows(
    computation: Computation, gpu: Machine, patch: Patch | None = None
) -> Lowered | str:
    """The kernel of a sliding window, in patches of this shape or of the one fastest on a GPU; or
    the reason why the computation is none."""
    windows = match_windows(wide_sums(computation))
    if isinstance(windows, str):
        return windows
    prepare, temporaries = _lay_out_weights(windows)
    emitter = WindowPatches(windows, patch or best_patch(windows, gpu), temporaries)
    flops = 2 * points(windows.indices) * points(windows.hole.axes)
    return Lowered(emitter.kernel("window"), prepare, temporaries, flops=flops)


def _lay_out_weights(windows: Windows) -> tuple[list[Computation], list[Buffer]]:
    """Constant weights with the channels last, as they are read."""
    b, whole = windows.b, windows.computation
    if b is None:
        return [], []
    if not {x.source for x in loads(b)} <= whole.constants:
        windows.b = simplify(flatten_loads(b, shapes_of(whole.inputs)))
        return [], []
    used = free_indices(b)
    own = [x for x in windows.indices[:-1] if x in used] + list(windows.hole.axes)
    own += [windows.channels] if windows.channels in used else []
    index = index_of([x.count for x in own])
    buffer, filled = whole.copied("taps", index, substitute(b, dict(zip(own, index))))
    windows.b = Load("taps", (flatten_index(tuple(own), buffer.shape),), b.dtype)
    return [filled], [buffer]


class WindowPatches:
    """Emits the kernel of a window: a thread for each patch."""

    def __init__(self, windows: Windows, patch: Patch, temporaries: list[Buffer]):
        self.windows, self.patch, self.temporaries = windows, patch, temporaries
        self.k = KernelBuilder()
        self.dtype = windows.hole.dtype.compute
        *self.looped, self.last = windows.slides
        self.row = self.looped.pop() if patch.loops < len(windows.slides) - 1 else None
        self.marker = Load("sum", (Const(0, i64),), windows.hole.dtype)
        shapes = shapes_of(windows.computation.inputs)
        marked = (substitute(e, {windows.hole: self.marker}) for e in windows.exprs)
        self.exprs = [simplify(flatten_loads(e, shapes)) for e in marked]

    def kernel(self, name: str) -> Kernel:
        """The kernel over the inputs that are used, the weights and the outputs."""
        windows, k = self.windows, self.k
        lengths = {self.last.index: self.patch.columns, windows.channels: self.patch.channels}
        if self.row:
            lengths[self.row.index] = self.patch.rows
        parts = [ceil_divided(x.extent, lengths.get(x, 1)) for x in windows.indices]
        with k.loop(elements_of(parts), "parallel", name="p") as p:
            self.start: dict[Expr, Expr] = {
                x: simplify(self._named(at) * lengths.get(x, 1))
                for x, at in zip(windows.indices, unflatten_index(p, tuple(parts)))
            }
            self._patch()
        read = [e for e in (windows.a, windows.b, *self.exprs) if e is not None]
        inputs = buffers_read((*windows.computation.inputs, *self.temporaries), read)
        params = map(flat_buffer, (*inputs, *(o.buffer for o in windows.computation.outputs)))
        return Kernel(name, tuple(params), k.body(), windows.computation.label)

    def _named(self, position: Expr) -> Expr:
        """A name for a position, whose bounds are known."""
        if isinstance(position, (Const, Index)):
            return position
        name = Ref(self.k.fresh("t"), position.dtype, *bounds(position))
        self.k.emit(Let(name, position))
        return name

    def _patch(self) -> None:
        k, patch = self.k, self.patch
        self.sums = k.alloc(self.dtype, (patch.rows, patch.columns, patch.channels), "reg", "sums")
        with k.loops(*self.sums.shape, kind="unroll") as place:
            k.store(self.sums, place, cast(self.windows.hole.identity, self.dtype))
        self._taps([*self.windows.rest, *(s.axis for s in self.looped)], {})
        for i in range(patch.rows):
            for j in range(patch.columns):
                self._finish(i, j)

    def _taps(self, axes: list[Index], at: dict[Expr, Expr]) -> None:
        """The terms of the patch: loops over `axes`, the rest written out."""
        if axes:
            with self.k.loop(axes[0].count) as x:
                self._taps(axes[1:], {**at, axes[0]: x})
            return
        self.weights: dict[tuple[int, int], Buffer] = {}
        rows = self.row.meetings(self.patch.rows) if self.row else [[(0, 0)]]
        for down in rows:
            for across in self.last.meetings(self.patch.columns):
                value = self._fetch({**at, **self._place(*down[0], *across[0])})
                for i, r in down:
                    for j, c in across:
                        self._add(i, j, value, {**at, **self._place(i, r, j, c)}, (r, c))

    def _place(self, i: int, r: int, j: int, c: int) -> dict[Expr, Expr]:
        """The indices of output (i, j) of the patch and of tap (r, c)."""
        columns = self.last.index
        place: dict[Expr, Expr] = {
            columns: self.start[columns] + j, self.last.axis: Const(c, i64),
        }  # fmt: skip
        if self.row:
            place[self.row.index] = self.start[self.row.index] + i
            place[self.row.axis] = Const(r, i64)
        return place

    def _at(self, expr: Expr, place: dict[Expr, Expr], channel: Expr) -> Expr:
        channels = self.windows.channels
        here = {**self.start, **place, channels: self.start[channels] + channel}
        return simplify(expr, here)

    def _fetch(self, place: dict[Expr, Expr]) -> Buffer:
        """The values of the channels at an input position, in registers."""
        expr, other = self.windows.a, Const(0, self.dtype)
        guard = self._inside(place)
        if isinstance(expr, Call) and expr.op.name == "select" and isinstance(expr.args[2], Const):
            condition, inner, padding = expr.args
            if self.windows.channels not in free_indices(condition):
                guard = simplify(call("and", guard, self._at(condition, place, Const(0, i64))))
                expr, other = inner, padding  # type: ignore[assignment]
        wide = self.patch.channels if self.windows.channels in free_indices(expr) else 1
        value = self.k.alloc(self.dtype, (wide,), "reg", self.k.fresh("x"))
        if guard is not TRUE:
            with self.k.loop(wide, "unroll") as v:
                self.k.store(value, v, cast(other, self.dtype))
        with self.k.where(guard):
            self._fill(value, expr, place)
        return value

    def _fill(self, into: Buffer, expr: Expr, place: dict[Expr, Expr]) -> None:
        v = self._channels(into.shape[0])
        (value,) = read_neighbours(self.k, [self._at(expr, place, v)], v)
        with each_neighbour(self.k, v):
            self.k.store(into, v, simplify(cast(value, self.dtype)))

    def _inside(self, place: dict[Expr, Expr]) -> Expr:
        """Whether there is such an output."""
        slides = [self.last, self.row] if self.row else [self.last]
        guards = [place[s.index] < s.index.extent for s in slides]
        return simplify(call("and", guards[0], guards[-1]))

    def _add(self, i: int, j: int, value: Buffer, place: dict[Expr, Expr], tap: tuple) -> None:
        """One term of the sums of output (i, j)."""
        windows, k = self.windows, self.k
        if windows.b is not None and tap not in self.weights:
            wide = self.patch.channels if windows.channels in free_indices(windows.b) else 1
            self.weights[tap] = k.alloc(self.dtype, (wide,), "reg", k.fresh("w"))
            self._fill(self.weights[tap], windows.b, place)
        with k.loop(self.patch.channels, "unroll") as v:
            cell = self.sums[Const(i, i64), Const(j, i64), v]
            term: Expr = _element(value, v)
            if windows.b is not None:
                term = term * _element(self.weights[tap], v)
            k.store(self.sums, cell.index, combined(windows.hole, cell, term))

    def _finish(self, i: int, j: int) -> None:
        """The epilogue of output (i, j), stored if there is such an output."""
        place = self._place(i, 0, j, 0)
        inside = self._inside(place)
        if isinstance(inside, Const) and not inside.value:
            return
        with self.k.where(inside):
            total = self.sums[Const(i, i64), Const(j, i64), Const(0, i64)]
            for output, expr in zip(self.windows.computation.outputs, self.exprs):
                self._store(output, expr, total, place)

    def _store(self, output: Output, expr: Expr, total: Load, place: dict[Expr, Expr]) -> None:
        v = self._channels(self.patch.channels)
        sum = cast(Load(total.source, (*total.index[:2], v), total.dtype), self.marker.dtype)
        value = simplify(self._at(expr, place, v), {self.marker: sum})
        point = Point(flat_buffer(output.buffer), self._at(self.windows.offset, place, v), value)
        compute_points(self.k, [point], v)

    def _channels(self, count: int) -> Expr:
        """An index of so many of the patch's channels."""
        return Index(self.k.fresh("v"), count) if count > 1 else Const(0, i64)


def _element(values: Buffer, v: Expr) -> Load:
    return values[v if values.shape[0] > 1 else Const(0, i64)]
