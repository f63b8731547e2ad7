"""Data movement before fusion: readers compute a movement themselves, and arithmetic comes before
it.

A movement (a transposition, a slice) costs nothing if its readers read the operand at other indices
instead. So every reader gets a copy of its own. Arithmetic with scalars on moved values is done
before the movement, so that the movement stands alone. Movements that end a kernel, as views of its
result, are left alone.
"""

from __future__ import annotations

import math

from graphc.ir.graph import Graph, Op, Region, Value
from graphc.ir.infer import op_body
from graphc.ir.ops.generic import APART
from graphc.passes.analysis import structure
from graphc.passes.analysis.facts import is_pointwise
from graphc.passes.manager.context import Context

FEW = 2  # reads of an element, for each of which it is converted
MASKING = 48  # cost of an element that readers compute again, to keep less in memory


def is_for_readers(op: Op, widening: bool) -> bool:
    """Whether an op is best computed by those who read it; `widening`: so are conversions. Those of
    constants always are: who packs a constant converts it at compile time. So are dimensions, which
    are made of nothing, and mostly for types alone."""
    if structure.is_movement(op) or op.outputs[0].known is not None:
        return True
    return _is_of_constant(op) or is_converted_by_readers(op, widening)


def is_converted_by_readers(op: Op, widening: bool) -> bool:
    """Whether an op is a conversion of what changes from run to run that readers do themselves."""
    return structure.is_widening(op) and (widening or _is_read_by_few_products(op.output))


def _is_read_by_few_products(value: Value, movements: int = 2) -> bool:
    """Whether sums of products alone read a value, directly or moved, an element up to FEW times
    each."""
    return bool(value.uses) and all(_reads_few(user, value, movements) for user in value.users)


def _reads_few(op: Op, value: Value, movements: int) -> bool:
    if not structure.has_body(op) or len(op.outputs) != 1 or not value.is_static:
        return False
    if structure.is_movement(op):
        same = op.output.is_static and op.output.tensor.size == value.tensor.size
        return same and movements > 0 and _is_read_by_few_products(op.output, movements - 1)
    if not structure.is_contraction(op) or not op.output.is_static:
        return False
    summed = math.prod(axis.count for r in structure.reductions(op) for axis in r.axes)
    return op.output.tensor.size * summed <= FEW * value.tensor.size


def _is_of_constant(op: Op) -> bool:
    """Whether an op only converts a constant of floats."""
    value = op.inputs[0] if len(op.inputs) == 1 else None
    if value is None or value.constant is None or not value.tensor.dtype.is_float:
        return False
    return structure.is_widening(op)


def is_only_read_by(op: Op, value: Value, region: Region) -> bool:
    """Whether an op reads a value once, and nobody else does."""
    return len(value.uses) == 1 and next(iter(value.uses))[0] is op and value not in region.results


def is_scalar(value: Value) -> bool:
    """Whether a value is a constant of one element."""
    return value.constant is not None and value.constant.size == 1


def clone_movement(graph: Graph, widening: bool = False) -> None:
    """Gives every reader its own copy of a pure data movement, so that each can fuse it; of a chain
    of them too, as the last is copied first."""
    for op in reversed(list(graph.ops)):
        if op.name == "Constant" or not is_for_readers(op, widening) or op.output in graph.results:
            continue
        if op.output.tensor.most > 0 and not _ends_a_kernel(op, graph):
            _copied_for_readers(op, graph)


def clone_masks(graph: Graph) -> set[Op]:
    """Gives every reader its own copy of what takes few operations for each element of values that
    lie in memory longer, or take fewer bytes: a gradient where a mask lets it pass, say. So it need
    not lie in memory besides. Gives the copies."""
    chosen: set[Op] = set()
    for op in reversed(list(graph.ops)):
        if len(op.outputs) == 1 and len(op.output.users) > 1 and op.output not in graph.results:
            last = max(map(graph.place, op.output.users))
            if _cost_of_kept(op, graph, last, MASKING) <= MASKING:
                chosen.update(_copied_for_readers(op, graph))
    return chosen


def _cost_of_kept(op: Op, graph: Graph, last: int, most: int) -> int:
    """What an element of floats costs that is computed at its own place of values of fewer bytes,
    and of some that are read later than `last`, or of what is computed so; above `most` if it is
    not."""
    above = most + 1
    if op.name == "Constant" or not structure.has_body(op) or len(op.outputs) != 1:
        return above
    if not op.output.tensor.dtype.is_float or structure.is_movement(op):
        return above
    if structure.reductions(op) or op.output in graph.results:
        return above
    total = structure.cost(op_body(op))
    for number, value in enumerate(op.inputs):
        if total > most:
            return above
        if value is None or _takes_less(value, op.output):
            continue
        if not structure.pointwise(op, number):
            return above
        if max(map(graph.place, value.users)) > last:
            continue
        maker = value.producer
        total += above if maker is None else _cost_of_kept(maker, graph, last, most - total)
    return total


def _takes_less(value: Value, result: Value) -> bool:
    """Whether a value takes fewer bytes than a result, or is converted from one that does."""
    if value.tensor.most_bytes < result.tensor.most_bytes:
        return True
    maker = value.producer
    return maker is not None and structure.has_body(maker) and structure.is_widening(maker)


def _copied_for_readers(op: Op, graph: Graph) -> list[Op]:
    """Copies of an op, one for each reader but the first, which gets the op itself; all of them."""
    made = [op]
    for user in op.output.users[1:]:
        copy = Op(op.defn, op.inputs, op.attrs, 1, (), op.loc)
        copy.output.type, copy.output.name = op.output.type, op.output.name
        copy.memo.update(op.memo)
        graph.insert_before(op, copy)
        made.append(copy)
        for position, value in enumerate(user.inputs):
            if value is op.output:
                user.set_input(position, copy.output)
    return made


def raise_scalars(graph: Graph, ctx: Context, widening: bool = False) -> None:
    """op(move(x), scalar) becomes move(op(x, scalar)): arithmetic joins the producer's epilogue,
    and the movement is left bare for the reader to fuse. What is for readers stays."""
    for op in list(graph.ops):
        if widening and structure.is_widening(op):
            continue
        while (moved := _moved_operand(op, graph)) is not None:
            position, movement = moved
            if not ctx.spend("raise-scalar", op):
                return
            number, source = structure.moved(movement)
            below = Op(op.defn, op.inputs, op.attrs, 1, (), op.loc)
            below.set_input(position, source)
            below.output.type = source.tensor.with_dtype(op.output.tensor.dtype)
            below.output.name = op.output.name
            graph.insert_before(op, below)
            operands = list(movement.inputs)
            operands[number] = below.output
            above = Op(movement.defn, operands, movement.attrs, 1, (), movement.loc)
            above.output.type, above.output.name = op.output.type, movement.output.name
            graph.insert_before(op, above)
            op.output.replace_uses(above.output)
            op.erase()
            movement.erase()
            op = below


def _moved_operand(op: Op, graph: Graph) -> tuple[int, Op] | None:
    """(position, movement) if an elementwise op has one operand, a movement of this op's alone,
    and scalar constants besides. What keeps ops apart stays between them: arithmetic in the
    epilogue of the producer would be done, and stored, long before it is read."""
    if not is_pointwise(op):
        return None
    others = [n for n, v in enumerate(op.inputs) if v is not None and not is_scalar(v)]
    if len(others) != 1:
        return None
    value = op.inputs[others[0]]
    assert value is not None
    if any(v is not None and v is not value and v.tensor.rank > 1 for v in op.inputs):
        return None
    movement = value.producer
    if movement is None or value in graph.results or movement.name == "Constant":
        return None
    if not is_only_read_by(op, value, graph) or not structure.is_movement(movement):
        return None
    if APART in movement.defn.traits:
        return None
    _, source = structure.moved(movement)
    if source.constant is not None or source.tensor.most > value.tensor.most:
        return None
    return (others[0], movement) if source.tensor.rank >= 1 else None


def _ends_a_kernel(op: Op, graph: Graph) -> bool:
    """Whether a movement is a view of what no other op reads: it may join the kernel before it, and
    whoever reads it reads memory as it is."""
    if not structure.is_view(op):
        return False
    _, value = structure.moved(op)
    before = value.producer
    if before is None or not structure.has_body(before) or is_for_readers(before, False):
        return False
    return is_only_read_by(op, value, graph)
