"""Models of quantised operators whose last layers are trained: these in float32, the others as they
are.

The weights to train are dequantised to float constants. What depends on them is computed in floats:
a value is no longer rounded between QuantizeLinear and DequantizeLinear, nor clamped. Operators
that stand between the two, such as Reshape, get the float as well. Results of the model that are
integers are quantised at the end.
"""

from __future__ import annotations

from collections.abc import Collection

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Op, Value, clone_graph, constant_op
from graphc.ir.interp import run_op
from graphc.passes.dce import remove_dead

QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"


def is_quantised(graph: Graph) -> bool:
    """Whether weights of a model are dequantised before they are used."""
    return any(_is_weight(op) for op in graph.ops)


def _is_weight(op: Op) -> bool:
    """Whether an op dequantises a constant."""
    return op.name == DEQUANTISE and all(v is None or v.constant is not None for v in op.inputs)


def with_float_weights(graph: Graph, names: Collection[str] | None = None) -> Graph:
    """The model with weights of these names (None: all) as float constants; a weight is named as
    the result of its DequantizeLinear."""
    copy = clone_graph(graph)
    for op in list(copy.ops):
        if _is_weight(op) and (names is None or op.output.name in names):
            contents = [None if v is None else v.constant for v in op.inputs]
            made = constant_op(run_op(op, contents)[0], op.output.name, op.loc)
            copy.insert_before(op, made)
            op.output.replace_uses(made.output)
    remove_dead(copy)
    return copy


def with_float_tail(graph: Graph, names: Collection[str]) -> Graph:
    """The model with what depends on the weights of these names in floats."""
    copy = with_float_weights(graph, names)
    active: set[Value] = {
        op.output for op in copy.ops if op.name == "Constant" and op.output.name in names
    }
    floats: dict[Value, Value] = {}
    for op in list(copy.ops):
        source = op.inputs[0] if op.inputs else None
        if op.name == QUANTISE and source in active:
            assert source is not None
            floats[op.output] = source
        elif op.name == DEQUANTISE and source in floats:
            assert source is not None
            op.output.replace_uses(floats[source])
        elif any(v in floats for v in op.inputs):
            active.add(_in_floats(copy, op, floats))
        elif any(v in active for v in op.inputs):
            active.update(op.outputs)
    remove_dead(copy)
    return copy


def _in_floats(graph: Graph, op: Op, floats: dict[Value, Value]) -> Value:
    """Adds an op that only moves or chooses integers for the floats that they stand for; gives its
    result."""
    others = [v for v in op.inputs[1:] if v is not None and v.constant is None]
    if others or len(op.outputs) != 1:
        raise ModelError(
            f"{op.where()} takes integers that depend on what is trained: train the layers after it"
        )
    first = op.operand(0)
    twin = Op(op.defn, [floats[first], *op.inputs[1:]], dict(op.attrs), 1, (), op.loc)
    twin.output.name = f"{op.output.name} in float32"
    graph.insert_before(op, twin)
    floats[op.output] = twin.output
    return twin.output
