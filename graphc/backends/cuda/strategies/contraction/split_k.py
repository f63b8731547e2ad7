"""Split-K: contractions with few outputs and many products are cut along the depth.

A grid with one block per tile leaves most of a GPU idle where outputs are few. So the depth K is
cut into parts (rows/split_reductions.py). The parts become one more dimension of the outputs:

    partial[s, i] = sum over part s of a * b          out[i] = epilogue(sum over s of partial[s, i])

The first kernel is a contraction like any other. The second adds the partial sums, in a fixed
order. Split-K inside a block is in sliced_k.py.
"""

from __future__ import annotations

from graphc.backends.cuda.machines import Machine
from graphc.backends.cuda.strategies.rows.long_rows import IDLE, LONG, PART, Lower, lower_long_rows
from graphc.backends.cuda.strategies.rows.row_reductions import lower_rows
from graphc.backends.cuda.strategies.rows.split_reductions import cut_evenly, in_parts
from graphc.ir.dtypes import f32, f64, i32
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.contraction import Match, match_contraction, wide_sums
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.spaces import count
from graphc.passes.lower.lowered import Lowered

SIDE = 32  # rows and columns of a small tile
THREADS = 256  # outputs of a block that computes one per thread
MIN_SIDE = 8  # rows and columns of a contraction in tiles
THIN_PART = 64  # products of a part, at least, where there are few rows or few columns


def lower_split_k(computation: Computation, gpu: Machine, lower: Lower) -> Lowered | str:
    """The kernel that adds up partial sums, after one that computes them; or why it is no gain.
    Of other reductions of few rows likewise (rows/long.py), with what is left lowered by `lower`.
    """
    outputs = computation.outputs
    shapes = [b.shape for b in (*computation.inputs, *(o.buffer for o in outputs))]
    shapes += [(a.extent,) for r in reductions_in(o.expr for o in outputs) for a in r.axes]
    size = next((x for shape in shapes for x in shape if not isinstance(x, int)), None)
    if size is not None:
        return f"split: sizes must be constants, found {size}"
    match = match_contraction(wide_sums(computation), PART, (f32, f64, i32))
    if isinstance(match, str):
        return lower_long_rows(computation, gpu, lower)
    parts = _parts(match, computation, gpu)
    if isinstance(parts, str):
        return parts
    whole = wide_sums(computation)
    hole = reductions_in([whole.outputs[0].expr])[0]
    cut = cut_evenly(whole, hole, parts)
    if cut.parts < 2:
        return "split: an index of the depth must divide into parts, found none"
    return in_parts(whole, [hole], cut, are_last=False)


def _parts(match: Match, computation: Computation, gpu: Machine) -> int | str:
    """Into how many parts the depth should be cut."""
    batch, rows, columns = count(match.outer), count(match.rows), count(match.cols)
    depth = count(match.depth)
    if min(rows, columns) >= MIN_SIDE:
        blocks, least = batch * -(-rows // SIDE) * -(-columns // SIDE), PART
    else:
        blocks, least = -(-batch * rows * columns // THREADS), THIN_PART
        if depth < LONG and isinstance(lower_rows(computation), Lowered):
            return f"split: where rows are reduced, depths have {LONG} products, found {depth}"
    if blocks * IDLE > gpu.multiprocessors or any(x.count == 0 for x in match.indices):
        return (
            f"split: most of {gpu.multiprocessors} multiprocessors must be idle, found a grid of "
            f"{blocks} blocks"
        )
    return min(gpu.multiprocessors // max(blocks, 1), depth // least)
