"""Sums over more than caches hold, in two steps: of parts that they hold, then over the parts.

The gradient of a depthwise filter sums an image for each of few taps and many channels. One loop
nest would read the image once for each tap and vector of channels, a part of each line of a cache
at a time. So the inner axes are summed first, for one place of the outer axes after another: what
they read stays in the second level of cache for all taps and channels. This also gives threads more
to share.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.addresses import flatten_loads, is_affine_in
from graphc.ir.expr import Expr, Index, Reduce, loads, substitute
from graphc.ir.extents import points
from graphc.ir.simplify import simplify
from graphc.passes.analysis.computation import Computation, Output, index_of
from graphc.passes.analysis.core import reductions_in
from graphc.passes.analysis.spaces import shapes_of
from graphc.passes.lower.lowered import Lowered
from graphc.passes.lower.strategies.nest import NestOptions, lower_nest

WORTH = 2  # times as many elements are read as there are sums of parts


def lower_split_sums(
    computation: Computation, options: NestOptions, l2_bytes: int
) -> Lowered | str:
    """A sum in two loop nests, or why one does for it."""
    sums = reductions_in([o.expr for o in computation.outputs])
    if len(sums) != 1 or len(computation.outputs) != 1 or sums[0].op != "sum":
        return f"split sums: there must be one output with one sum, found {len(sums)} reductions"
    (whole,), (output,) = sums, computation.outputs
    problem = _unsuitable(computation, whole, output, options, l2_bytes)
    if problem:
        return problem
    *outer, inner = _by_stride(computation, whole)
    places = (*outer, *output.index)
    index = index_of(tuple(x.extent for x in places))  # type: ignore[union-attr]
    contents = Reduce("sum", substitute(whole.body, dict(zip(places, index))), (inner,))
    parts, first = computation.copied("parts", index, contents, "parts of sums")
    total = Reduce("sum", parts[places], tuple(outer))
    rest = replace(output, expr=substitute(output.expr, {whole: total}))
    both = replace(computation, inputs=(*computation.inputs, parts)).restricted([rest])
    lowered = lower_nest(both, options)
    return replace(
        lowered, prepare=[first, *lowered.prepare], temporaries=[parts, *lowered.temporaries]
    )


def _unsuitable(
    computation: Computation, whole: Reduce, output: Output, options: NestOptions, l2_bytes: int
) -> str:
    """Why a sum is better taken at once; empty if it is not."""
    spaces = (*whole.axes, *output.index)
    if not options.vector_bytes or not whole.dtype.is_float or not output.index:
        return "split sums: they must be sums of vectors of floats"
    if not all(isinstance(x, Index) and isinstance(x.extent, int) for x in spaces):
        return "split sums: extents must be known"
    if len(whole.axes) < 2:
        return f"split sums: there must be several summed axes, found {len(whole.axes)}"
    (last, shapes), reads = (output.index[-1], shapes_of(computation.inputs)), loads(whole.body)
    along = [is_affine_in(flatten_loads(x, shapes).index[0], last) for x in reads]  # type: ignore[attr-defined, arg-type]
    lanes = options.vector_bytes // whole.dtype.size
    if not along or set(along) != {1} or last.extent <= lanes:  # type: ignore[attr-defined, operator]
        return "split sums: all that is read must run along memory with the last index"
    sources = {x.source for x in reads}
    read = sum(computation.input(name).size for name in sources)  # type: ignore[misc]
    if read * whole.dtype.size <= l2_bytes:
        return "split sums: the caches hold what is read"
    *outer, _ = _by_stride(computation, whole)
    made = points((*outer, *output.index))  # type: ignore[arg-type]
    if made * WORTH > read or points(output.index) <= last.extent:  # type: ignore[arg-type, attr-defined, operator]
        return "split sums: parts must be fewer than what is read, and read several times"
    return ""


def _by_stride(computation: Computation, whole: Reduce) -> list[Index]:
    """The summed axes, those first that move furthest in memory."""
    shapes = shapes_of(computation.inputs)

    def furthest(axis: Index) -> int:
        steps: list[Expr] = [flatten_loads(x, shapes) for x in loads(whole.body)]
        return max((abs(is_affine_in(simplify(x.index[0]), axis) or 0) for x in steps), default=0)  # type: ignore[attr-defined]

    return sorted(whole.axes, key=furthest, reverse=True)
