"""Contractions with few outputs and many products: sums over parts of the depth, then their sum.

A grid with a block for each tile of outputs leaves most of a GPU idle where outputs are few. So the
depth is cut into parts, which become one more dimension of the outputs,

    partial[s, i] = sum over part s of a * b          out[i] = epilogue(sum over s of partial[s, i])

a contraction as any other and a loop over its results. Unlike atomic additions this gives the same
bits every time. Other reductions of few rows of many elements (the mean of an image) are cut the
same way.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.blocks import count, wide_sums
from graphc.backends.cuda.strategies.operands import stride
from graphc.backends.cuda.strategies.rows import lower_rows
from graphc.ir.dtypes import f32, f64, i32
from graphc.ir.expr import Expr, Index, Reduce, cast, free_indices, loads, substitute, walk
from graphc.ir.kernel import Buffer
from graphc.ir.simplify import is_affine_in, simplify
from graphc.passes.lower.computation import Computation, Lowered, Output
from graphc.passes.lower.contraction import Match, match_contraction
from graphc.passes.lower.nest import NestOptions, lower_nest
from graphc.passes.lower.spaces import flatten_loads, shapes_of

IDLE = 5  # parts of the GPU, of which a grid that is split leaves all but one idle
SIDE = 32  # rows and columns of a small tile
THREADS = 256  # outputs of a block that computes one per thread
MIN_SIDE = 8  # rows and columns of a contraction in tiles
PART = 256  # products of a part, at least
THIN_PART = 64  # the same where there are few rows or few columns
LONG = 4096  # elements of a row that are worth two kernels
LANES = 32  # rows of a block where rows are neighbours
LARGE = 1 << 24  # elements from which reading them takes far longer than a launch
RESIDENT = 4  # blocks of a multiprocessor that keep memory busy


def lower_split(computation: Computation, gpu: Machine) -> Lowered | str:
    """The kernel that adds up partial sums, after one that computes them; or why it is no gain."""
    match = match_contraction(wide_sums(computation), PART, (f32, f64, i32))
    if isinstance(match, str):
        return _split_reduction(computation, gpu, match)
    parts = _parts(match, computation, gpu)
    if isinstance(parts, str):
        return parts
    whole = wide_sums(computation)
    hole = next(n for n in walk(whole.outputs[0].expr) if isinstance(n, Reduce))
    axis, number = _cut(whole, hole, parts)
    if number < 2:
        return f"split: no index of the depth divides into {parts} parts or a few less"
    return _split(whole, hole, axis, number)


def _split_reduction(computation: Computation, gpu: Machine, problem: str) -> Lowered | str:
    """The same for a reduction that is no contraction."""
    first = computation.outputs[0]
    found = {n for o in computation.outputs for n in walk(o.expr) if isinstance(n, Reduce)}
    if len(found) != 1 or any(o.extents != first.extents for o in computation.outputs):
        return problem
    (hole,) = found
    elements = math.prod(a.count for a in hole.axes)
    if not free_indices(hole) <= set(first.index) or elements < LONG:
        return problem
    rows = math.prod(first.extents)
    blocks = rows if _is_along_rows(hole) else -(-rows // LANES)
    is_large = rows * elements >= LARGE
    wanted = gpu.multiprocessors * (RESIDENT if is_large else 1)
    if blocks == 0 or blocks * (2 if is_large else IDLE) > wanted:
        return f"split: a grid of {blocks} blocks"
    axis, number = _cut(computation, hole, min(wanted // blocks, elements // PART))
    if number < 2:
        return "split: no index of the reduction divides into parts"
    return _split(computation, hole, axis, number)


def _is_along_rows(hole: Reduce) -> bool:
    """Whether neighbouring values of the last axis are neighbours in memory, so that a block takes
    a row."""
    return all(is_affine_in(x.index[-1], hole.axes[-1]) == 1 for x in loads(hole.body) if x.index)


def _parts(match: Match, computation: Computation, gpu: Machine) -> int | str:
    """Into how many parts the depth should be cut."""
    batch, rows, columns = count(match.outer), count(match.rows), count(match.cols)
    depth = count(match.depth)
    if min(rows, columns) >= MIN_SIDE:
        blocks, least = batch * -(-rows // SIDE) * -(-columns // SIDE), PART
    else:
        blocks, least = -(-batch * rows * columns // THREADS), THIN_PART
        if depth < LONG and isinstance(lower_rows(computation), Lowered):
            return "split: several threads sum each row"
    if blocks * IDLE > gpu.multiprocessors or any(x.count == 0 for x in match.indices):
        return f"split: a grid of {blocks} blocks"
    return min(gpu.multiprocessors // max(blocks, 1), depth // least)


def _cut(whole: Computation, hole: Reduce, wanted: int) -> tuple[Index, int]:
    """The index of the depth that divides into the most parts, at most so many; of several the one
    along which elements lie farthest apart, so that parts do not share what is contiguous."""
    term = simplify(flatten_loads(hole.term, shapes_of(whole.inputs)))

    def parts(x: Index) -> int:
        return max(d for d in range(1, min(wanted, x.count) + 1) if x.count % d == 0)

    axis = max(hole.axes, key=lambda x: (parts(x), stride(term, x)))
    return axis, parts(axis)


def _split(whole: Computation, hole: Reduce, axis: Index, number: int) -> Lowered:
    first = whole.outputs[0]
    part, inner = Index("part", number), Index(axis.name, axis.count // number)
    whole_axis = inner.count == 1 and len(hole.axes) > 1  # of which nothing is left to sum
    at: dict[Expr, Expr] = {axis: part if whole_axis else part * inner.count + inner}
    axes = tuple(inner if a is axis else a for a in hole.axes if a is not axis or not whole_axis)
    partial = Reduce(hole.op, simplify(substitute(hole.term, at)), axes)
    index = (part, *first.index)
    buffer = Buffer(f"parts_of_{first.buffer.name}", partial.dtype, (number, *first.extents))
    output = Output(replace(buffer, access="out"), index, partial)
    read = {x.source for x in loads(partial)}
    inputs = tuple(b for b in whole.inputs if b.name in read)
    preparation = Computation(inputs, (output,), whole.constants, f"parts of {whole.label}")
    total = cast(Reduce(hole.op, buffer[index], (part,)), hole.dtype)
    outputs = tuple(replace(o, expr=substitute(o.expr, {hole: total})) for o in whole.outputs)
    read = {x.source for o in outputs for x in loads(o.expr)}
    rest = tuple(b for b in whole.inputs if b.name in read)
    final = Computation((*rest, buffer), outputs, whole.constants, whole.label)
    lowered = lower_rows(final, "total")
    if isinstance(lowered, str):
        lowered = lower_nest(final, NestOptions(flat=True), "total")
    flops = 2 * math.prod(first.extents) * math.prod(a.count for a in hole.axes)
    return replace(lowered, prepare=[preparation], temporaries=[buffer], flops=flops, inplace=[])
