"""Small images are copied with their padding, where many windows of a row hang over its edges.

Without guards all windows of the row are in tiles, four products of bytes at a time
(scalar_tiles.py); otherwise those at the edges are computed one product at a time. The copy holds
each element once (transforms/im2col.py) and is small next to the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphc.backends.micro_c.strategies.scalar_tiles import ScalarTiles, TileOptions
from graphc.ir.dtypes import i32
from graphc.ir.expr import Call, Const, Reduce, substitute
from graphc.passes.analysis.computation import Computation
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.factors import centred
from graphc.passes.analysis.weighted import interior, match_product
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.scheduled import Scheduled
from graphc.passes.lower.transforms.im2col import Window, window
from graphc.passes.schedule.steps import Pack, Schedule

NAME = "padded"
EDGES = 5  # a copy is made if at least every fifth window of a row hangs over an edge
SHARE = 8  # and if the copy takes at most an eighth of the result
PACK = Pack("rows", "padded")

_Padded = tuple[Window, Computation, Computation]
"""A padded copy, what fills it, and the sums over windows of it."""


@dataclass(frozen=True)
class PaddedTiles(Scheduled[_Padded]):
    """Tiles of scalars over windows of a padded copy: their schedules, after pack(rows, padded)."""

    options: TileOptions
    name = "padded"
    takes = "a sum over windows that may be copied"

    def proposals(self, match: _Padded) -> Iterable[Schedule] | str:
        proposals = ScalarTiles(self.options).propose(match[2])
        if isinstance(proposals, str):
            return proposals
        return (Schedule(self.name, (PACK, *schedule.steps)) for schedule in proposals)

    def emitted(self, match: _Padded, schedule: Schedule) -> Lowered:
        copy, filled, windows = match
        schedule.the(Pack, "rows")
        inner = ScalarTiles(self.options).made(windows, schedule)
        return replace(
            inner, prepare=[filled, *inner.prepare], temporaries=[copy.buffer, *inner.temporaries]
        )

    def match(self, computation: Computation) -> _Padded | str:
        options = self.options
        match = match_product(computation, options.min_depth)
        if isinstance(match, str):
            return match
        row = match.row
        if not options.quads or match.hole.dtype is not i32 or row is None:
            return f"{NAME}: it must sum products of bytes, four at a time"
        low, high = interior(row, match) if isinstance(row.extent, int) else (0, 0)
        if not isinstance(row.extent, int) or (row.extent - (high - low)) * EDGES < row.extent:
            return f"{NAME}: few windows hang over an edge"
        output = computation.outputs[0]
        (hole,) = reductions_in([output.expr])
        parts = _copied(computation, hole)
        if isinstance(parts, str):
            return parts
        copy, summed = parts
        size, limit = copy.buffer.size, output.buffer.size
        if not isinstance(size, int) or size * SHARE > limit * output.buffer.dtype.size:
            return f"{NAME}: a copy takes {size} bytes, the result {limit}"
        changed = replace(output, expr=substitute(output.expr, {hole: summed}))
        inputs = (*computation.inputs, copy.buffer)
        windows = replace(computation, inputs=inputs).restricted([changed])
        _, filled = computation.copied("padded", copy.index, copy.contents, "padded input")
        return copy, filled, windows


def _copied(computation: Computation, hole: Reduce) -> tuple[Window, Reduce] | str:
    """A copy of what is summed, and the sum over it."""
    if hole.factors is None:
        return f"{NAME}: it must sum products"
    for n, factor in enumerate(hole.factors):
        element = centred(factor)
        if element is None or not isinstance(element.byte, Call) or element.padding is None:
            continue
        copy = window(element.byte, "padded", computation)
        if copy is None or not isinstance(element.zero, Const):
            continue
        value = copy.load.cast(i32) - element.zero
        factors = (value, hole.factors[1]) if n == 0 else (hole.factors[0], value)
        return copy, Reduce(hole.op, factors[0] * factors[1], hole.axes)
    return f"{NAME}: no factor is bytes with padding"
