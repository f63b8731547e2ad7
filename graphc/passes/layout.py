"""Chooses how each value is stored: the layout in its type.

A contraction with constant weights wants the dims it shares with the weights (the output channels)
innermost, so that its sums are vectors over them: a convolution stores N, spatial dims, C. Where
these are few, and the other factor runs along memory in a dim of the result, sums are vectors over
that one, and nothing moves; so it is, on machines that read vectors from any address, where each
channel is its own, as in a depthwise convolution, and the other factor is row-major. Weights that
change from run to run, as in training, are those of a factor that depends on the channels of an
image alone. Where both factors run along memory in dims of the result, as in the gradient of
weights, these are innermost. Results follow inputs of the model that are as large.
Layouts then spread: an operator of the same rank keeps its operand's layout, unless that is stored
anyway and all who read the result compute row-major values of it element by element. A pure data
movement takes the layout that makes it a view where there is one. A transposition that only puts
the channels of images (rank 4 or more) before the spatial dims leaves them last. Operators written
for row-major memory (imperative, control flow, host) get a row-major copy. Nothing else changes:
index maps are adapted to layouts when kernels are made, so any choice is correct.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.ir.addresses import is_affine_in
from graphc.ir.expr import Expr, Index, Load, free_indices, loads, reduces
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.infer import op_body
from graphc.ir.opdef import FUSED
from graphc.ir.ops.relayout import is_relayout, relaid
from graphc.ir.types import Layout, largest
from graphc.passes.analysis import structure
from graphc.passes.analysis.compose import computation
from graphc.passes.analysis.views import view_of
from graphc.passes.manager.base import Pass, register_pass
from graphc.passes.manager.context import Context
from graphc.passes.reasons import named
from graphc.records import dataclass

IMAGE = 4  # the least rank of images
CHANNEL = 1  # the dim of their channels
UPDATE = "it updates an input of the model, which is row-major"
VIEWED = "it is then a view of its operand, and nothing is copied"


def assign_layouts(graph: Graph, ctx: Context) -> bool:
    """Sets the layout of every value of a typed, decomposed graph; True if any is not row-major.

    Each layout given to a value counts as a rewrite.
    """
    machine = ctx.target.machine
    changed, rows = False, machine.has("unaligned_vectors")
    in_place = machine.has("results_in_place")
    for op in list(graph.ops):
        if not structure.has_body(op) or is_relayout(op):
            continue
        for n, value in enumerate(op.outputs):
            is_update = in_place and _is_update(value)
            choice, why = (None, UPDATE) if is_update else _choose(op, n, rows)
            layout = _effective(choice, value)
            if ctx.journal is not None:
                same = choice is not None and layout is None  # but for dims of 1
                why = f"{why}, which is the same here" if same else why
                ctx.journal.decide("layout", op, f"{named(value)}: {_told(value, layout, why)}")
            if layout is not None and ctx.spend("layout", op):
                value.type = value.tensor.with_layout(layout)
                changed = changed or value.tensor.layout is not None
    for op in reversed(graph.ops):
        if _is_for_rows(op) and all(_is_made(v) for v in op.inputs if v is not None):
            if ctx.spend("layout", op):
                op.output.type = op.output.tensor.with_layout(None)
    row_major_operands(graph, ctx)
    return changed


def _is_for_rows(op: Op) -> bool:
    """Whether an op computes elements in another order than all who read them, which compute
    element by element too."""
    if not _is_map(op) or op.output.tensor.layout is None or _is_result(op.output):
        return False
    readers = [user for user, _ in op.output.uses]
    dims = op.output.tensor.dims
    return bool(readers) and all(
        _is_map(user) and user.output.tensor.layout is None and user.output.tensor.dims == dims
        for user in readers
    )


def _is_made(value: Value) -> bool:
    """Whether it costs no memory more to read a value in another order than it has: it is row-major
    or stored for others, or it is computed of such values for one reader, or what several compute
    of it would be stored instead, as the two moments of a gradient."""
    if value.tensor.layout is None or _is_result(value) or value.producer is None:
        return True
    if any(not _is_map(user) for user, _ in value.uses):
        return True
    maker, alone = value.producer, len(set(value.users)) == 1
    if not alone and not _is_map(maker) and len(_ends(value)) > 1:
        return True
    return alone and _is_map(maker) and all(_is_made(v) for v in maker.inputs if v is not None)


def _ends(value: Value) -> set[Op]:
    """The row-major ops that are computed of a value, element by element, through others that are
    not; none if one of those is read in another way."""
    ends: set[Op] = set()
    pending = list(value.users)
    for op in pending:
        if not _is_map(op) or _is_result(op.output) and op.output.tensor.layout is not None:
            return set()
        if op.output.tensor.layout is None:
            ends.add(op)
        else:
            pending += op.output.users
    return ends


def _is_map(op: Op) -> bool:
    """Whether an op has one result, computed element by element."""
    if len(op.outputs) != 1 or not structure.has_body(op) or structure.reductions(op):
        return False
    return all(structure.pointwise(op, n) for n, v in enumerate(op.inputs) if v is not None)


def _effective(layout: Layout | None, value: Value) -> Layout | None:
    """A layout unless it is row-major but for dims of 1."""
    if layout is None:
        return None
    long = [d for d in layout.order if value.tensor.dims[d] != 1]
    return layout if long != sorted(long) else None


def _told(value: Value, layout: Layout | None, why: str) -> str:
    """A layout in words: the order of the dims in memory, and why."""
    if layout is None:
        return f"row-major: {why}"
    extents = list(layout.physical(value.tensor.dims))
    return f"{layout}, dims {list(layout.order)} in memory {extents}: {why}"


def row_major_operands(graph: Graph, ctx: Context) -> None:
    """Gives the operators that are written for row-major memory copies of operands in another
    layout."""
    for op in list(graph.ops):
        if structure.has_body(op) or op.defn is FUSED:
            continue
        for position, value in enumerate(op.inputs):
            if value is None or value.layout is None:
                continue
            op.set_input(position, relaid(value, None, op))
            if ctx.journal is not None:
                text = f"{value.name}: copied in row-major order, in which {op.name} reads memory"
                ctx.journal.decide("layout", op, text)


def _choose(op: Op, output: int, rows: bool) -> tuple[Layout | None, str]:
    """The layout of an output, None for row-major, and why."""
    value = op.outputs[output]
    if value.tensor.rank < 3:
        return None, "with fewer than three dims no other order is tried"
    if 0 in value.tensor.dims:
        return None, "it has no elements"
    if structure.is_movement(op):
        return _movement_layout(op, value)
    layout, why = _weights_last(op, output, rows)
    return (layout, why) if layout is not None else _inherited(op, value, why)


def _weights_last(op: Op, output: int, rows: bool) -> tuple[Layout | None, str]:
    """Output dims that the constant factor of a sum of products depends on, moved innermost."""
    why_not = ""
    for r in reduces(op_body(op, output)):
        if r.factors is None:
            continue
        index, dims = structure.own_index(op.outputs[output]), op.outputs[output].tensor.dims
        last = _channels_of_both(op, r.factors, index)
        if last:
            rest = [d for d in range(len(index)) if d not in last]
            return Layout((*rest, *last)), "factors run along memory in channels"
        for factor, data in (r.factors, r.factors[::-1]):
            last = [d for d, x in enumerate(index) if x in free_indices(factor)]
            if not loads(factor) or not all(_is_constant(op, x) for x in loads(factor)):
                if len(dims) < IMAGE or last != [CHANNEL] or not _lacks_channels_only(data, index):
                    continue
            if last and index[-1] not in free_indices(factor):
                count = math.prod(largest(dims[d]) for d in last)
                if count <= structure.FEW_CHANNELS and _runs_along(op, data, index):
                    why_not = f"with {count} channels, sums are vectors along the last dim"
                    continue
                if rows and _is_depthwise(op, data, index, last):
                    why_not = "each channel is a convolution of its own, of rows as they lie"
                    continue
                rest = [d for d in range(len(index)) if d not in last]
                return Layout((*rest, *last)), "sums are vectors over the dims of the weights"
    return None, why_not


def _lacks_channels_only(data: Expr, index: Sequence[Expr]) -> bool:
    """Whether a factor depends on every dim of the result but the channels, as an image does of
    which a convolution with weights that change from run to run makes other channels."""
    used = free_indices(data)
    return [d for d, x in enumerate(index) if x not in used] == [CHANNEL]


def _channels_of_both(op: Op, factors: Sequence[Expr], index: Sequence[Expr]) -> list[int]:
    """The dims of the result in which factors run along memory, that of columns last, if both are
    of images whose channels are last: of the gradient of weights, say. Where they are two, columns
    are those of the factor that fewer dims depend on: the other one's windows need no copies. Nor
    do those of a row-major image, as a model is given, whose channels are few."""
    channels: dict[int, int] = {}
    for factor in factors:
        reads = loads(factor)
        value = op.inputs[int(reads[0].source)] if len(reads) == 1 else None
        if value is None:
            return []
        if value.tensor.layout is None:
            last = reads[0].index[-1] if value.tensor.rank >= IMAGE else index[-1]
            if isinstance(last, Index) or index[-1] not in free_indices(last):
                return []
            continue
        along = reads[0].index[value.tensor.layout.order[-1]]
        dim = next((d for d, x in enumerate(index) if x is along), None)
        if dim is None:
            return []
        used = free_indices(factor)
        channels[dim] = sum(x in used for x in index)
    order = sorted(channels, key=lambda d: -channels[d])
    return order if len(set(channels.values())) == len(order) else []


def _runs_along(op: Op, data: Expr, index: Sequence[Expr]) -> bool:
    """Whether a factor is a row-major value whose last dim is the last of the result."""
    if not isinstance(data, Load) or data.index[-1:] != (index[-1],):
        return False
    value = op.inputs[int(data.source)]
    return value is not None and value.tensor.layout is None


def _is_depthwise(op: Op, data: Expr, index: Sequence[Expr], last: Sequence[int]) -> bool:
    """Whether a factor is of the same channels as the result, and its last dim, which is that of
    the result, runs along memory."""
    reads = loads(data)
    if len(reads) != 1 or any(reads[0].index[d : d + 1] != (index[d],) for d in last):
        return False
    value = op.inputs[int(reads[0].source)]
    along = index[-1] in free_indices(reads[0].index[-1])
    return along and value is not None and _is_stored_in_order(value)


def _is_stored_in_order(value: Value) -> bool:
    """Whether neighbours in the last dim of a value are so in memory, be it that of another value
    from which readers compute it."""
    while value.tensor.layout is None:
        op = value.producer
        if op is None or not structure.has_body(op):
            return True
        if structure.is_movement(op):
            load = op_body(op)
            assert isinstance(load, Load)
            if is_affine_in(load.index[-1], structure.own_index(value)[-1]) != 1:
                return False
            _, value = structure.moved(op)
        else:
            size = value.tensor.count
            varying = [(n, v) for n, v in enumerate(op.inputs) if v and v.constant is None]
            read = [v for n, v in varying if structure.pointwise(op, n) and v.tensor.count == size]
            if not read:
                return True
            value = read[0]
    return False


def _is_constant(op: Op, load: Load) -> bool:
    """Whether a load is of a constant, or of one that is converted to a wider type."""
    value = op.inputs[int(load.source)]
    producer = None if value is None else value.producer
    if producer is not None and producer.name != "Constant" and structure.is_widening(producer):
        value = producer.inputs[0]
    return value is not None and value.constant is not None


def _inherited(op: Op, value: Value, why: str) -> tuple[Layout | None, str]:
    """The layout of the largest operand of the same rank that has one; without, it is row-major,
    perhaps because of `why`."""
    laid_out = [
        v.tensor
        for v in op.inputs
        if v is not None and v.tensor.layout is not None and v.tensor.rank == value.tensor.rank
    ]
    best = max(laid_out, key=lambda t: t.most, default=None)
    others = [v.tensor for v in op.inputs if v is not None and v.constant is None]
    if best is None:
        return None, why or "no operand of this rank is stored otherwise"
    if any(t.layout is None and t.most > best.most for t in others):
        return None, "a larger operand is row-major"
    given = [v for v in op.inputs if v is not None and _is_given(v)]
    if _is_result(value) and any(v.tensor.most >= best.most for v in given):
        return None, "it is a result, and an input of the model is row-major"
    return best.layout, "the largest operand is stored so"


def _is_result(value: Value) -> bool:
    """Whether a value is a result of the model."""
    op = value.producer
    return op is not None and op.region is not None and any(v is value for v in op.region.results)


def _is_given(value: Value) -> bool:
    """Whether a value is a row-major input of the model, or follows from one element by element."""
    pending, seen = [value], {value}
    for source in pending:
        op = source.producer
        if op is None and source.tensor.layout is None:
            return True
        if op is None or not structure.has_body(op):
            continue
        for number, operand in enumerate(op.inputs):
            if operand is None or operand in seen or operand.tensor.dims != value.tensor.dims:
                continue
            if structure.pointwise(op, number):
                seen.add(operand)
                pending.append(operand)
    return False


def _is_update(value: Value) -> bool:
    """Whether a result of the model that may replace an input is computed of a value and that
    input, element by element."""
    pending, seen = [value], {value}
    for v in pending:
        if _is_result(v) and _is_given(v):
            return True
        for user, position in v.uses:
            if not structure.has_body(user) or len(user.outputs) != 1 or user.output in seen:
                continue
            if user.output.tensor.dims == v.tensor.dims and structure.pointwise(user, position):
                seen.add(user.output)
                pending.append(user.output)
    return False


def _movement_layout(op: Op, value: Value) -> tuple[Layout | None, str]:
    """A layout in which the op is a view; else, at equal rank, its operand's."""
    body = op_body(op)
    assert isinstance(body, Load)
    _, source = structure.moved(op)
    rank = value.tensor.rank
    last = Layout.channels_last(rank)
    if source.tensor.layout is None:
        if rank >= IMAGE and source.tensor.rank == rank and _is_view(op, value, last):
            return last, VIEWED
        return None, "its operand is row-major"
    for layout in (None, last, _permuted(body, source, value)):
        if _is_view(op, value, layout):
            return layout, VIEWED
    if source.tensor.rank == rank and _runs_in_order(body):
        return source.tensor.layout, "its operand is stored so"
    return None, "no order of the dims makes it a view of its operand"


def _is_view(op: Op, value: Value, layout: Layout | None) -> bool:
    """Whether a movement would move nothing if its result had this layout."""
    plain = value.tensor
    value.type = plain.with_layout(layout)
    is_view = view_of(computation(op)) is not None
    value.type = plain
    return is_view


def _permuted(body: Load, source: Value, value: Value) -> Layout | None:
    """The layout of a transpose that moves no data."""
    own = structure.own_index(value)
    layout = source.tensor.layout
    if layout is None or set(body.index) != set(own) or len(body.index) != len(own):
        return None
    return Layout(tuple(own.index(body.index[d]) for d in layout.order))  # type: ignore[arg-type]


def _runs_in_order(body: Load) -> bool:
    """Slices and the like: each position depends on the output index of the same dim only."""
    return all(
        {x.name for x in free_indices(where)} <= {f"i{d}"} for d, where in enumerate(body.index)
    )


@register_pass
@dataclass
class AssignLayouts(Pass):
    """Chooses how each value is stored. Where vectors are read from any address, depthwise
    convolutions of row-major images keep them so: neighbours in a row are computed together, and
    nothing is transposed. Elsewhere, all convolutions have one layout, in which outputs can take
    the place of their inputs."""

    name = "layout"
    requires = ("typed", "unfused")
    establishes = ("laid_out",)
    destroys = ("original",)

    def run(self, graph: Graph, ctx: Context) -> bool:
        return assign_layouts(graph, ctx)
