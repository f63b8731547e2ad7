"""The graph with QuantizeLinear and DequantizeLinear in place: standard QDQ.

Each quantised value is followed by a pair of both, which its readers read; weights become integers
and a DequantizeLinear, with a scale per output channel; biases integers of 32 bits in units of the
sums they are added to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.types import TensorType
from graphc.quantisation.layers import Choice, Layer, operands
from graphc.quantisation.open_types import take_back
from graphc.quantisation.ranges import Parameters, chosen
from graphc.quantisation.statistics import Statistics

LARGEST = (1 << 31) - 1  # of a bias


@dataclass
class Weights:
    """The integers of a layer's weights and their scales, one for each output channel; `bias` is in
    floats."""

    integers: np.ndarray
    scales: np.ndarray
    bias: np.ndarray | None


class Switches:
    """A further input of a graph, with which layers are quantised or float at run time."""

    name = "layers_that_are_quantised"

    def __init__(self, choice: Choice):
        self.layers = {layer: number for number, layer in enumerate(choice.layers)}
        type = TensorType(dtypes.boolean, (len(self.layers),))
        self.input = choice.graph.add_param(type, self.name)

    def mixed(self, b: Builder, layers: Sequence[Layer], integer: Value, plain: Value) -> Value:
        """The one value if any of the layers is quantised, else the other."""
        flags = [b.Gather(self.input, b.constant(self.layers[each], dtypes.i64)) for each in layers]
        if not flags:
            return integer
        flag = flags[0]
        for other in flags[1:]:
            flag = b.Or(flag, other)
        return b.Where(flag, integer, plain)


def insert(
    choice: Choice, parameters: Mapping[int, Parameters], weights: Mapping[Layer, Weights],
    switches: Switches | None = None,
) -> None:  # fmt: skip
    """Rewrites the graph of a choice, in place."""
    graph = choice.graph
    governing = {value: choice.governing(value) for value in choice.groups}
    for layer in choice.layers:
        _put_weights(graph, layer, weights[layer], parameters[choice.groups[layer.data]], switches)
    for op in choice.followers:
        _put_constants(op, parameters)
    for value, group in choice.groups.items():
        _put_pair(choice, value, parameters[group], switches, governing[value])
    take_back(graph)
    drop_unread(graph)


def _put_pair(
    choice: Choice, value: Value, p: Parameters, switches: Switches | None, layers: Sequence[Layer]
) -> None:
    graph, readers = choice.graph, choice.readers(value)
    producer = value.producer
    anchor = graph.ops[0] if producer is None else graph.after(producer)
    b = Builder(graph, anchor, () if producer is None else producer.loc)
    scale, zero = b.constant(np.float32(p.scale)), b.constant(np.array(p.zero, p.dtype.np))
    integers = b.QuantizeLinear(value, scale, zero)
    real = b.DequantizeLinear(integers, scale, zero)
    integers.name, real.name = f"{value.name}_quantised", f"{value.name}_dequantised"
    if switches is not None:
        real = switches.mixed(b, layers, real, value)
    for op, number in readers:
        op.set_input(number, real)


def _put_weights(
    graph: Graph, layer: Layer, weights: Weights, data: Parameters, switches: Switches | None
) -> None:
    op, old = layer.op, layer.op.operand(1)
    b = Builder(graph, op, op.loc)
    scales = weights.scales.astype(np.float32)
    zeros = np.zeros(len(scales), weights.integers.dtype)
    integers = b.constant(weights.integers)
    integers.name = f"{old.name}_quantised" if old.name else ""
    real = b.DequantizeLinear(integers, scales, zeros, axis=layer.axis)
    op.set_input(1, real if switches is None else switches.mixed(b, [layer], real, old))
    if weights.bias is None:
        return
    if layer.bias is not None:
        number = 1 if layer.bias.operand(0) is op.output else 0
        shape = layer.bias.operand(number).tensor.static_shape
        b = Builder(graph, layer.bias, layer.bias.loc)
        bias = b.constant(weights.bias.astype(np.float32).reshape(shape))
        if switches is not None:
            bias = switches.mixed(b, [layer], bias, layer.bias.operand(number))
        layer.bias.set_input(number, bias)
        return
    if op.name == "MatMul":
        return  # it has no bias, and gets none
    units = scales * np.float32(data.scale)
    whole = np.clip(np.rint(weights.bias / units), -LARGEST, LARGEST).astype(np.int32)
    zeros = np.zeros(len(units), np.int32)
    bias = b.DequantizeLinear(whole, units, zeros, axis=0)
    if switches is not None:
        plain = op.inputs[2] if len(op.inputs) > 2 else None
        bias = switches.mixed(b, [layer], bias, plain or b.constant(np.zeros_like(units)))
    if len(op.inputs) > 2:
        op.set_input(2, bias)
    else:
        op.add_input(bias)


def _put_constants(op: Op, parameters: Mapping[int, Parameters]) -> None:
    """Constants of sums and products, which are quantised like other operands."""
    if op.name not in ("Add", "Sub", "Mul"):
        return
    dtype = next(iter(parameters.values())).dtype
    for number, value in enumerate(op.inputs):
        contents = None if value is None else value.constant
        if contents is None or operands(op) == []:
            continue
        statistics = Statistics()
        statistics.add(contents)
        p = chosen(statistics, dtype, "minmax")
        b = Builder(op.region, op, op.loc)  # type: ignore[arg-type]
        scale, zero = np.float32(p.scale), np.array(p.zero, p.dtype.np)
        op.set_input(number, b.DequantizeLinear(p.applied(contents), scale, zero))


def drop_unread(graph: Graph) -> None:
    """Constants that nobody reads any more."""
    for op in [op for op in graph.ops if op.name == "Constant" and not op.output.uses]:
        op.erase()


def quantise_inputs_and_outputs(graph: Graph) -> None:
    """Makes integers of inputs and outputs that are quantised first, or dequantised last."""
    for param in graph.params:
        users = param.users
        if users and all(user.name == "QuantizeLinear" for user in users) and len(users) == 1:
            (quantise,) = users
            type = quantise.output.tensor
            quantise.output.replace_uses(param)
            quantise.erase()
            param.type = type
    for number, result in enumerate(list(graph.results)):
        producer = result.producer
        if producer is not None and producer.name == "DequantizeLinear":
            integers, zero = producer.operand(0), producer.operand(2).constant
            graph.terminator.set_input(number, integers)
            if number < len(graph.output_types):
                declared = integers.type or graph.output_types[number]
                shape = declared.shape if isinstance(declared, TensorType) else None
                assert zero is not None
                graph.output_types[number] = TensorType(dtypes.of(zero.dtype), shape)
            if not producer.output.uses:
                producer.erase()


def is_quantised(graph: Graph) -> bool:
    """Whether a graph has quantised operators already."""
    return any(
        op.name in ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul")
        or "quantised" in op.defn.traits
        for op in graph.walk()
    )
