"""What a computation reads to make a band of rows of its output.

Rows are along the outermost dim in memory that is longer than 1, so a band of them is contiguous.
A computation goes by rows if it reads, for row h of its output, rows stride * h + low to
stride * h + high of its operands, whatever h is: windows (convolutions, pooling), rows by
themselves (products of pixels with constants, elementwise ops), and what fusion makes of several of
these.

Padding: where a select guards rows against the edges, there is a number for which what the select
guards has the value that it has beyond them: the zero point of a quantised convolution, the lowest
number of max pooling. A line buffer has rows of that number above and below the image, and columns
of it beside the rows (those of the dim inside that of rows), if it is made a row at a time; then
the band is computed without the guards. Guards along other dims stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from graphc.ir.dtypes import DType, i64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    call,
    free_indices,
    loads,
    reduces,
    substitute,
    transform,
    walk,
)
from graphc.ir.kernel import Buffer
from graphc.ir.ops.helpers import all_of
from graphc.ir.simplify import bounds_of_poly, from_poly, simplify, to_poly
from graphc.ir.types import Shape
from graphc.passes.analysis.computation import Computation, Output
from graphc.passes.analysis.guards import at_least_zero, conjuncts
from graphc.records import dataclass

WORD = 8  # bits of element types whose values are all tried as padding


NO_MARGINS: Mapping[str, tuple[int, int]] = MappingProxyType({})


@dataclass(frozen=True)
class Reach:
    """Of an operand: row h of the output reads rows stride * h + low .. stride * h + high. Rows
    beyond its edges hold `fill`, None if none is read. So do columns, of which `left` and `right`
    are read beyond the edges, where guards of columns are left out."""

    stride: int
    low: int
    high: int
    fill: Const | None = None
    left: int = 0
    right: int = 0

    def rows(self, band: int) -> int:
        """The rows that a band of the output reads."""
        return self.stride * (band - 1) + self.high - self.low + 1


Margins = Mapping[str, tuple[int, int]]
"""By the names of operands: the columns of padding that are left and right of their rows."""


@dataclass(frozen=True)
class ByRows:
    """A computation by rows: `reaches` by the names of operands, `axis` the dim of the output that
    rows are along; its element without guards of rows, `expr`, and without those of columns too,
    `bare`."""

    computation: Computation
    axis: int
    reaches: dict[str, Reach]
    expr: Expr
    bare: Expr

    @property
    def height(self) -> int:
        return int(self.computation.outputs[0].extents[self.axis])

    def band(self, rows: int, margins: Margins = NO_MARGINS) -> Computation:
        """The computation of so many rows. Its operands are the rows that these read, with margins
        that are as wide as what is read, or wider; without them guards of columns stay."""
        whole, output = self.computation, self.computation.outputs[0]
        h = output.index[self.axis]
        inside = Index(h.name, rows)
        sides = {name: margins.get(name, (0, 0)) for name in self.reaches}
        has_margins = all(
            r.left <= sides[name][0] and r.right <= sides[name][1]
            for name, r in self.reaches.items()
        )

        def placed(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.source not in self.reaches:
                return None
            reach, (left, _) = self.reaches[node.source], sides[node.source]
            axis = row_axis(whole.input(node.source).shape)
            index = list(node.index)
            index[axis] = simplify(index[axis] - reach.low)
            if left:
                index[axis + 1] = simplify(index[axis + 1] + left)
            return Load(node.source, tuple(index), node.dtype)

        expr = substitute(transform(self.bare if has_margins else self.expr, placed), {h: inside})
        index = tuple(inside if x is h else x for x in output.index)
        buffer = replace(output.buffer, shape=banded(output.buffer.shape, rows))
        inputs = tuple(
            replace(b, shape=banded(b.shape, self.reaches[b.name].rows(rows), sides[b.name]))
            if b.name in self.reaches else b
            for b in whole.inputs
        )  # fmt: skip
        made = Output(buffer, index, expr)
        return Computation(inputs, (made,), whole.constants, whole.label)


SUMS = "sums"  # the operand of a gathering band that holds what was gathered before
GATHERING = ("sum", "max", "min")


@dataclass(frozen=True)
class Gathered:
    """A computation of a reduction over all rows of one operand, such as a global mean: a band at a
    time is added to what there is of `hole`, which is of integers, so the order makes no
    difference; `axis` is the reduced index that is the row of the operand `source`. `sliced`: the
    constants that differ from row to row, of which a band takes its part, and the dims of rows."""

    computation: Computation
    hole: Reduce
    axis: Index
    source: str
    sliced: tuple[tuple[str, int], ...] = ()

    @property
    def height(self) -> int:
        return self.axis.count

    @property
    def reaches(self) -> dict[str, Reach]:
        return {self.source: Reach(1, 0, 0)}

    @property
    def sums(self) -> Buffer:
        """What is gathered: an element of the hole for each of the output."""
        return Buffer(SUMS, self.hole.dtype, self.computation.outputs[0].extents, "in")

    def band(self, rows: int, margins: Margins = NO_MARGINS) -> Computation:
        """What is gathered after so many more rows, from them and `sums`."""
        assert not any(margins.get(self.source, ()))
        whole, output = self.computation, self.computation.outputs[0]
        axes = tuple(Index(x.name, rows) if x is self.axis else x for x in self.hole.axes)
        body = substitute(self.hole.body, dict(zip(self.hole.axes, axes)))
        part = Reduce(self.hole.op, body, axes)
        before = Load(SUMS, output.index, self.hole.dtype)
        expr = before + part if self.hole.op == "sum" else call(self.hole.op, before, part)
        made = Output(replace(self.sums, name=output.buffer.name, access="out"), output.index, expr)
        inputs = (*(self._banded(b, rows) for b in whole.inputs), self.sums)
        return Computation(inputs, (made,), whole.constants, whole.label).restricted((made,))

    def _banded(self, buffer: Buffer, rows: int) -> Buffer:
        """What a band of so many rows takes of an operand."""
        if buffer.name == self.source:
            return replace(buffer, shape=banded(buffer.shape, rows))
        for name, dim in self.sliced:
            if name == buffer.name:
                return replace(buffer, shape=(*buffer.shape[:dim], rows, *buffer.shape[dim + 1 :]))
        return buffer

    def finish(self) -> Computation:
        """The output, from what is gathered."""
        whole, output = self.computation, self.computation.outputs[0]
        before = Load(SUMS, output.index, self.hole.dtype)
        made = replace(output, expr=substitute(output.expr, {self.hole: before}))
        return replace(whole, inputs=(*whole.inputs, self.sums)).restricted((made,))


def gathered(computation: Computation) -> Gathered | None:
    """A computation as a reduction over all rows of an operand; None if it is not one."""
    if len(computation.outputs) != 1:
        return None
    output = computation.outputs[0]
    holes = reduces(output.expr)
    if len(holes) != 1 or not holes[0].dtype.is_integer or holes[0].op not in GATHERING:
        return None
    (hole,) = holes
    variable = {x.source for x in loads(output.expr)} - computation.constants
    inside = {x for x in loads(hole.body) if x.source in variable}
    if len(variable) != 1 or inside != {x for x in loads(output.expr) if x.source in variable}:
        return None
    (source,) = variable
    shape = computation.input(source).shape
    axis = row_axis(shape)
    rows = {x.index[axis] for x in inside} if axis >= 0 else set()
    others = {i for x in inside for i in x.index[axis + 1 :]}
    row = rows.pop() if len(rows) == 1 else None
    if not isinstance(row, Index) or row not in hole.axes or row.extent != shape[axis]:
        return None
    if any(row in free_indices(i) for i in others):
        return None
    sliced = _sliced(computation, hole, row)
    alone = transform(hole.body, lambda n: _zero(n.dtype) if isinstance(n, Load) else None)
    if sliced is None or row in free_indices(alone):
        return None  # bands differ
    return Gathered(computation, hole, row, source, tuple(sliced.items()))


def _sliced(computation: Computation, hole: Reduce, row: Index) -> dict[str, int] | None:
    """The constants that a reduction reads along its rows, and the dims that these are; None if it
    reads one in another way too."""
    dims: dict[str, set[int | None]] = {}
    for load in loads(hole.body):
        if load.source not in computation.constants:
            continue
        along = [d for d, x in enumerate(load.index) if row in free_indices(x)]
        if len(along) > 1 or any(load.index[d] is not row for d in along):
            return None
        dims.setdefault(load.source, set()).add(along[0] if along else None)
    if any(len(ways) > 1 for ways in dims.values()):
        return None
    sliced = {name: dim for name, (dim,) in dims.items() if dim is not None}
    if any(computation.input(name).shape[dim] != row.extent for name, dim in sliced.items()):
        return None
    outside = {x.source for x in loads(_without(computation, hole))}
    return None if outside & {*sliced} else sliced


def _without(computation: Computation, hole: Reduce) -> Expr:
    """What a computation makes of a reduction, with zero in place of that."""
    return substitute(computation.outputs[0].expr, {hole: _zero(hole.dtype)})


def row_axis(shape: Shape) -> int:
    """The outermost dim that is longer than 1; -1 if none is."""
    return next((d for d, extent in enumerate(shape) if extent != 1), -1)


def banded(shape: Shape, rows: int, margins: tuple[int, int] = (0, 0)) -> Shape:
    """The shape of so many rows, with columns beside them."""
    axis, wider = row_axis(shape), sum(margins)
    if wider:
        return (*shape[:axis], rows, shape[axis + 1] + wider, *shape[axis + 2 :])
    return (*shape[:axis], rows, *shape[axis + 1 :])


def by_rows(computation: Computation) -> ByRows | str:
    """A computation by rows, or the reason why it cannot be."""
    if len(computation.outputs) != 1:
        return f"rows: it must have one output, found {len(computation.outputs)}"
    output = computation.outputs[0]
    buffers = (output.buffer, *(computation.input(x.source) for x in loads(output.expr)))
    if not all(isinstance(x, int) for buffer in buffers for x in buffer.shape):
        return "rows: shapes must be constant"
    axis = row_axis(output.extents)
    if axis < 0 or 0 in output.extents:
        return "rows: the output has one element or none"
    return _Analysis(computation, axis).result()


class _Analysis:
    """Finds how a computation reads its operands for row `h` of its output, and for column `w`,
    None if there is no dim inside that of rows."""

    def __init__(self, computation: Computation, axis: int):
        index = computation.outputs[0].index
        self.computation, self.axis, self.h = computation, axis, index[axis]
        self.w = index[axis + 1] if axis + 1 < len(index) else None
        self.fills: dict[str, Const] = {}
        self.why = ""

    def result(self) -> ByRows | str:
        expr = transform(self.computation.outputs[0].expr, self.without_rows)
        if self.why:
            return self.why
        reaches: dict[str, Reach] = {}
        for load in loads(expr):
            if load.source in self.computation.constants:
                if self.h in free_indices(load):
                    return f"rows: constant {load.source} differs from row to row"
                continue
            reach = self.reach(load)
            if isinstance(reach, str):
                return reach
            known = reaches.get(load.source, reach)
            if known.stride != reach.stride:
                return (
                    f"rows: {load.source} is read with strides of {known.stride} and {reach.stride}"
                )
            low, high = min(known.low, reach.low), max(known.high, reach.high)
            fill = reach.fill or known.fill
            reaches[load.source] = Reach(reach.stride, low, high, fill)
        nowhere = transform(expr, lambda n: _zero(n.dtype) if isinstance(n, Load) else None)
        if not reaches or self.h in free_indices(nowhere):
            return "rows: what it computes depends on the number of the row"
        return self.with_columns(expr, reaches)

    def with_columns(self, expr: Expr, reaches: dict[str, Reach]) -> ByRows:
        """The computation, without guards of columns if padding makes up for all of them."""
        rows = ByRows(self.computation, self.axis, reaches, expr, expr)
        bare = transform(expr, self.without_columns) if self.w is not None else expr
        if bare is expr or self.why:
            return rows
        wide = dict(reaches)
        for load in loads(bare):
            if load.source not in wide:
                continue
            place = self.position(load, 1)
            low, high = bounds_of_poly(to_poly(place[0])) if place else (-math.inf, math.inf)
            if place is None or not (math.isfinite(low) and math.isfinite(high)):
                return rows
            known, beyond = wide[load.source], int(high) - place[1] + 1
            left, right = max(known.left, -int(low)), max(known.right, beyond)
            fill = self.fills.get(load.source)
            if (left or right) and fill is None:
                return rows
            wide[load.source] = replace(known, left=left, right=right, fill=fill or known.fill)
        return replace(rows, reaches=wide, bare=bare)

    def position(self, load: Load, inner: int = 0) -> tuple[Expr, int] | None:
        """The row that a load reads, and how many there are, or the column; None if there is none,
        or other dims depend on h."""
        shape = self.computation.input(load.source).shape
        axis = row_axis(shape)
        if axis < 0 or any(self.h in free_indices(x) for x in load.index[axis + 1 :]):
            return None
        if axis + inner >= len(shape):
            return None
        return simplify(load.index[axis + inner]), shape[axis + inner]

    def reach(self, load: Load) -> Reach | str:
        """How one load reads its operand; refused if it may be beyond the edges, unguarded."""
        place = self.position(load)
        if place is None:
            return f"rows: {load.source} is read across rows"
        row, count = place
        poly = to_poly(row)
        stride = poly.pop((self.h,), 0)
        if stride < 1 or any(self.h in free_indices(x) for atoms in poly for x in atoms):
            return f"rows: {load.source} is not read a window of rows at a time"
        low, high = bounds_of_poly(poly)
        if not (math.isfinite(low) and math.isfinite(high)):
            return f"rows: which rows of {load.source} are read depends on data"
        is_out = low < 0 or stride * (self.h.count - 1) + high >= count
        fill = self.fills.get(load.source) if is_out else None
        if is_out and fill is None:
            return f"rows: {load.source} is read beyond its edges in ways that no padding equals"
        return Reach(stride, int(low), int(high), fill)

    def without_rows(self, node: Expr) -> Expr | None:
        return self.unguarded(node, self.h, 0)

    def without_columns(self, node: Expr) -> Expr | None:
        return self.unguarded(node, self.w, 1) if self.w is not None else None

    def unguarded(self, node: Expr, index: Index, inner: int) -> Expr | None:
        """A select without its guards of an index, if padding with a number makes up for them."""
        if not (isinstance(node, Call) and node.op.name == "select") or self.why:
            return None
        condition, inside, beyond = node.args
        if index not in free_indices(condition):
            return None
        reads = [x for x in loads(inside) if x.source not in self.computation.constants]
        places = {(x.source, self.position(x, inner)) for x in reads}
        if len(places) != 1:
            self.why = "rows: a guard of rows is of several rows, or of none"
            return None
        ((source, place),) = places
        atoms = conjuncts(condition)
        mine = [x for x in atoms if index in free_indices(x)]
        if place is None or not all(_is_edge(x, *place) for x in mine):
            self.why = f"rows: a guard of {source} is more than that a row is there"
            return None
        fill = self.fills.get(source) or _fill(inside, source, reads[0].dtype, beyond)
        if fill is None or _filled(inside, source, fill) is not beyond:
            self.why = f"rows: no padding of {source} has the value beyond its edges"
            return None
        self.fills[source] = fill
        rest = [x for x in atoms if x not in mine]
        return Call(node.op, (all_of(rest), inside, beyond), node.dtype) if rest else inside


def _is_edge(atom: Expr, row: Expr, count: int) -> bool:
    """Whether a comparison says that a row is not above the first or not below the last."""
    poly = at_least_zero(atom)
    if poly is None:
        return False
    at_least = from_poly(poly)
    return simplify(at_least - row) is Const(0, i64) or (
        simplify(at_least + row - (count - 1)) is Const(0, i64)
    )


def _filled(inside: Expr, source: str, fill: Const) -> Expr:
    """What is guarded where all that it reads of an operand is a number."""
    return simplify(
        transform(inside, lambda n: fill if isinstance(n, Load) and n.source == source else None)
    )


def _fill(inside: Expr, source: str, dtype: DType, beyond: Expr) -> Const | None:
    """A number that what is guarded gives the same of as beyond the guard."""
    return next(
        (c for c in _candidates(inside, dtype) if _filled(inside, source, c) is beyond),
        None,
    )


def _candidates(inside: Expr, dtype: DType) -> Iterator[Const]:
    """Numbers that padding may be of."""
    if dtype.is_float:
        yield from (Const(x, dtype) for x in (0.0, -0.0, -math.inf, math.inf))
        limits = np.finfo(dtype.np) if dtype.np.kind == "f" else None
        if limits is not None:
            yield from (Const(float(x), dtype) for x in (limits.min, limits.max))
        return
    if not dtype.is_integer:
        return
    near = [n.value for n in walk(inside) if isinstance(n, Const) and n.dtype.is_integer]
    tried = dict.fromkeys([0, *near, *(-n for n in near), dtype.min, dtype.max])
    if dtype.bits <= WORD:
        tried.update(dict.fromkeys(range(int(dtype.min), int(dtype.max) + 1)))
    yield from (Const(n, dtype) for n in tried if dtype.min <= n <= dtype.max)


def _zero(dtype: DType) -> Const:
    return Const(0, dtype)
