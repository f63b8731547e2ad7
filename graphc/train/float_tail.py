"""Models of quantised operators whose last layers are trained, the others as they are.

The weights to train are dequantised to float constants. In a tail of float32, what depends on them
is computed in floats: a value is no longer rounded between QuantizeLinear and DequantizeLinear, nor
clamped. In a tail of int8 it is (`graphc.FakeQuantize`), so values are kept as bytes, and weights
lie in memory as bytes too: `coded` has a graph take and give them as these. Operators that stand
between the two, such as Reshape, get the float as well. Results of the model that are integers are
quantised at the end.

A float weight is the code times the scale. So the gradient by a code is the scale times that of the
weight, and a step of the weight is the step of the code by that gradient over the square of the
scale: what "On-Device Training Under 256KB Memory" (Lin et al., 2022) calls quantisation-aware
scaling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value, clone_graph, constant_op
from graphc.ir.interp import run_op
from graphc.ir.opdef import lookup
from graphc.ir.types import TensorType
from graphc.passes.dce import remove_dead

QUANTISE, DEQUANTISE, FAKE = "QuantizeLinear", "DequantizeLinear", "FakeQuantize"


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


def with_float_tail(graph: Graph, names: Collection[str], rounded: bool = False) -> Graph:
    """The model with what depends on the weights of these names in floats, which are rounded and
    clamped where those of the model are if `rounded`."""
    copy = with_float_weights(graph, names)
    active: set[Value] = {
        op.output for op in copy.ops if op.name == "Constant" and op.output.name in names
    }
    floats: dict[Value, Value] = {}
    for op in list(copy.ops):
        source = op.inputs[0] if op.inputs else None
        if op.name == QUANTISE and source in active:
            assert source is not None
            floats[op.output] = _rounded(copy, op) if rounded else source
            active.add(floats[op.output])
        elif op.name == DEQUANTISE and source in floats:
            assert source is not None
            op.output.replace_uses(floats[source])
        elif any(v in floats for v in op.inputs):
            active.add(_in_floats(copy, op, floats))
        elif any(v in active for v in op.inputs):
            active.update(op.outputs)
    remove_dead(copy)
    return copy


def _rounded(graph: Graph, op: Op) -> Value:
    """What a QuantizeLinear to 8 bits gives, as floats. Where its lower limit is zero, it does what
    a Relu before it does, which would keep a float for its gradient."""
    source, scale = op.operand(0), op.operand(1)
    zero_point = op.inputs[2] if len(op.inputs) > 2 else None
    contents = None if zero_point is None else zero_point.constant
    if zero_point is None or contents is None or contents.size != 1 or scale.constant is None:
        raise ModelError(
            f"{op.where()}: a tail of int8 needs one scale and one zero point that are constant; "
            "train in float32"
        )
    maker = source.producer
    if maker is not None and maker.name == "Relu" and contents == np.iinfo(contents.dtype).min:
        source = maker.operand(0)
    made = Op(lookup(FAKE, "graphc"), [source, scale, zero_point], {}, 1, (), op.loc)
    made.output.name = f"{op.output.name} as floats"
    return graph.insert_before(op, made).output


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


# ---------------------------------------------------------------- weights as bytes


@dataclass(frozen=True)
class Codes:
    """How a float weight lies in memory as bytes: times `scale`, less `zero_point`, which are
    numbers, or vectors along `axis`."""

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int

    def of(self, weight: np.ndarray) -> np.ndarray:
        """The bytes of a weight, whose elements are such products."""
        shape = [1] * weight.ndim
        if self.scale.ndim:
            shape[self.axis] = -1
        scale = self.scale.reshape(shape).astype(np.float64)
        zero = self.zero_point.reshape(shape).astype(np.float64)
        limits = np.iinfo(self.zero_point.dtype)
        whole = np.rint(weight / scale) + zero
        return np.clip(whole, limits.min, limits.max).astype(limits.dtype)

    def taken(self, channels: Sequence[int]) -> Codes:
        """Those of some of the channels."""
        if not self.scale.ndim:
            return self
        return Codes(self.scale[channels], self.zero_point[channels], self.axis)


def codes_of(graph: Graph, names: Collection[str]) -> dict[str, Codes]:
    """How those weights of these names that have 8 bits lie in memory, by name."""
    known = {}
    for op in graph.ops:
        if not _is_weight(op) or op.output.name not in names:
            continue
        contents, scale, *zero = (v.constant for v in op.inputs if v is not None)
        assert contents is not None and scale is not None
        if contents.dtype not in (np.int8, np.uint8) or scale.ndim > 1:
            continue
        scale = scale.reshape(()) if scale.size == 1 else scale
        shift = np.zeros(scale.shape, contents.dtype)
        if zero:
            assert zero[0] is not None
            shift = np.broadcast_to(zero[0].reshape(scale.shape), scale.shape)
        known[op.output.name] = Codes(scale, shift, op.attrs.get("axis", 1) % contents.ndim)
    return known


def coded(
    graph: Graph, codes: Mapping[str, Codes], updates: Mapping[str, int], count: Value | None = None
) -> None:
    """Has a graph take float weights of these names as bytes, and give the updates, which are the
    results of these numbers, as bytes that are rounded at random, by the number of the step."""
    start = Builder(graph, graph.ops[0])
    draw = None if count is None else start.Cast(count, to=dtypes.i64.onnx)
    for layer, (name, own) in enumerate(codes.items()):
        ((number, weight),) = [(n, p) for n, p in enumerate(graph.params) if p.name == name]
        scale, zero = start.constant(own.scale), start.constant(own.zero_point)
        taken = graph.add_param(TensorType(zero.tensor.dtype, weight.tensor.dims), name)
        weight.replace_uses(start.DequantizeLinear(taken, scale, zero, axis=own.axis))
        graph.params[number] = graph.params.pop()
        taken.index = number
        if name in updates:
            results, place = list(graph.results), updates[name]
            maker = results[place].producer
            assert maker is not None
            b = Builder(graph, graph.after(maker), maker.loc)
            results[place] = b.op(
                "QuantizeAt", results[place], scale, zero, draw, domain="graphc",
                axis=own.axis, layer=layer,
            )  # fmt: skip
            graph.set_results(results)
