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
from graphc.ir.ops.generic import APART
from graphc.passes.analysis import structure
from graphc.passes.analysis.facts import is_pointwise
from graphc.passes.manager.context import Context

FEW = 2  # reads of an element, for each of which it is converted


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
        if op.output.tensor.most == 0 or _ends_a_kernel(op, graph):
            continue
        for user in op.output.users[1:]:
            copy = Op(op.defn, op.inputs, op.attrs, 1, (), op.loc)
            copy.output.type, copy.output.name = op.output.type, op.output.name
            copy.memo.update(op.memo)
            graph.insert_before(op, copy)
            for position, value in enumerate(user.inputs):
                if value is op.output:
                    user.set_input(position, copy.output)


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
