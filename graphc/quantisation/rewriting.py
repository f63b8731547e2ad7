"""The graph with QuantizeLinear and DequantizeLinear in place: standard QDQ.

Each quantised value is followed by a pair of both, which its readers read; weights become integers
and a DequantizeLinear, with a scale per output channel; biases integers of 32 bits in units of the
sums they are added to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value
from graphc.ir.types import TensorType
from graphc.quantisation.layers import Choice, Layer, operands
from graphc.quantisation.levels import FLOAT, INTEGER
from graphc.quantisation.open_types import take_back
from graphc.quantisation.ranges import Parameters, chosen
from graphc.quantisation.statistics import Statistics

LARGEST = (1 << 31) - 1  # of a bias


class Stored(Protocol):
    """Weights of a layer that are stored narrowly, in steps of `step` in the mean."""

    @property
    def step(self) -> float: ...

    def __call__(self, b: Builder) -> Value:
        """The weights in floats."""


@dataclass
class Weights:
    """The integers of a layer's weights and their scales, one for each output channel; `bias` is in
    floats."""

    integers: np.ndarray
    scales: np.ndarray
    bias: np.ndarray | None


@dataclass
class Precision:
    """What the levels of a model are made of: the parameters of groups and the integers of layers,
    by level; and builders of weights for levels at which what a layer reads is float."""

    parameters: Mapping[str, Mapping[int, Parameters]]
    weights: Mapping[str, Mapping[str, Weights]]
    stored: Mapping[str, Mapping[str, Stored]]


class Switches:
    """A further input of a graph, with which the level of each layer is chosen at run time: for
    each level but float, whether a layer is at it."""

    name = "levels_of_layers"

    def __init__(self, graph: Graph, names: Sequence[str], levels: Sequence[str]):
        self.names, self.levels = list(names), [level for level in levels if level != FLOAT]
        type = TensorType(dtypes.boolean, (len(self.names) * len(self.levels),))
        self.input = graph.add_param(type, self.name)

    def flags(self, chosen: Mapping[str, str]) -> np.ndarray:
        """The input for levels by layer."""
        pairs = [chosen[name] == level for name in self.names for level in self.levels]
        return np.array(pairs)

    def mixed(
        self, b: Builder, names: Sequence[str], level: str, there: Value, otherwise: Value
    ) -> Value:
        """The one value if any of the layers is at the level, else the other."""
        places = [self.names.index(n) * len(self.levels) + self.levels.index(level) for n in names]
        if not places:
            return there
        flag = None
        for place in places:
            own = b.Gather(self.input, b.constant(place, dtypes.i64))
            flag = own if flag is None else b.Or(flag, own)
        return b.Where(flag, there, otherwise)


@dataclass
class Assigned:
    """Levels that are fixed: those of layers by name; `default` is that of values that no layer
    reads."""

    layers: Mapping[str, str]
    default: str

    def of(self, layers: Sequence[Layer]) -> str:
        """The level of a value that these layers read: the last of INTEGER that one has."""
        wanted = [self.layers[layer.name] for layer in layers] or [self.default]
        return max((w for w in wanted if w in INTEGER), key=INTEGER.index, default=self.default)


def insert(choice: Choice, made: Precision, levels: Assigned | Switches) -> dict[Layer, Parameters]:
    """Rewrites the graph of a choice, in place; without switches, the parameters of what each
    layer reads."""
    graph, governing = choice.graph, _governing(choice)
    by_group = {} if isinstance(levels, Switches) else {
        group: levels.of(layers) for group, layers in governing.items()
    }  # fmt: skip
    read = {}
    for layer in choice.layers:
        group = choice.groups[layer.data]
        if isinstance(levels, Switches):
            _switch_weights(graph, layer, made, group, levels)
        else:
            level = by_group[group]
            read[layer] = made.parameters[level][group]
            _put_weights(graph, layer, made.weights[level][layer.name], read[layer])
    for op in choice.followers:
        group = choice.groups[operands(op)[0]]
        _put_constants(op, made.parameters[by_group.get(group, next(iter(made.parameters)))][group])
    for value in choice.groups:
        _put_pair(choice, value, made, levels, by_group)
    take_back(graph)
    drop_unread(graph)
    return read


def _governing(choice: Choice) -> dict[int, list[Layer]]:
    """The layers that read values of each group."""
    layers: dict[int, list[Layer]] = {}
    for value, group in choice.groups.items():
        layers.setdefault(group, []).extend(choice.governing(value))
    return layers


def _put_pair(
    choice: Choice, value: Value, made: Precision, levels: Assigned | Switches,
    by_group: Mapping[int, str],
) -> None:  # fmt: skip
    graph, group, readers = choice.graph, choice.groups[value], choice.readers(value)
    producer = value.producer
    anchor = graph.ops[0] if producer is None else graph.after(producer)
    b = Builder(graph, anchor, () if producer is None else producer.loc)
    if isinstance(levels, Switches):
        names, real = [layer.name for layer in choice.governing(value)], value
        for level, parameters in made.parameters.items():
            if not names and real is not value:
                break  # no layer reads it: it has the first level
            there = pair(b, value, parameters[group], "" if real is value else f"_{level}")
            real = levels.mixed(b, names, level, there, real)
    else:
        real = pair(b, value, made.parameters[by_group[group]][group])
    for op, number in readers:
        op.set_input(number, real)


def pair(b: Builder, value: Value, p: Parameters, suffix: str = "") -> Value:
    """A value quantised, and back."""
    scale, zero = b.constant(np.float32(p.scale)), b.constant(np.array(p.zero, p.dtype.np))
    integers = b.QuantizeLinear(value, scale, zero)
    real = b.DequantizeLinear(integers, scale, zero)
    integers.name = f"{value.name}_quantised{suffix}"
    real.name = f"{value.name}_dequantised{suffix}"
    return real


def _switch_weights(
    graph: Graph, layer: Layer, made: Precision, group: int, switches: Switches
) -> None:
    """The weights and the bias of all levels that a layer may have."""
    op, name = layer.op, [layer.name]
    b = Builder(graph, op, op.loc)
    real = op.operand(1)
    for level, weights in made.weights.items():
        real = switches.mixed(b, name, level, _real_weights(b, layer, weights[layer.name]), real)
    for level, stored in made.stored.items():
        if layer.name in stored:
            real = switches.mixed(b, name, level, stored[layer.name](b), real)
    place = _bias_place(layer)
    if place is not None:
        _switch_bias(layer, made, group, switches, *place)
    op.set_input(1, real)


def _switch_bias(
    layer: Layer, made: Precision, group: int, switches: Switches, owner: Op, number: int
) -> None:
    b = Builder(owner.region, owner, owner.loc)  # type: ignore[arg-type]
    bias = owner.inputs[number] if len(owner.inputs) > number else None
    for level, weights in made.weights.items():
        if weights[layer.name].bias is not None:
            plain = b.constant(np.zeros(layer.channels, np.float32)) if bias is None else bias
            real = _real_bias(b, layer, weights[layer.name], made.parameters[level][group])
            bias = switches.mixed(b, [layer.name], level, real, plain)
    if bias is not None:
        _set(owner, number, bias)


def _put_weights(graph: Graph, layer: Layer, weights: Weights, data: Parameters) -> None:
    op, old = layer.op, layer.op.operand(1)
    b = Builder(graph, op, op.loc)
    real = _real_weights(b, layer, weights)
    op.set_input(1, real)
    real.producer.operand(0).name = f"{old.name}_quantised" if old.name else ""  # type: ignore[union-attr]
    place = _bias_place(layer)
    if weights.bias is not None and place is not None:
        owner, number = place
        b = Builder(graph, owner, owner.loc)
        _set(owner, number, _real_bias(b, layer, weights, data))


def _real_weights(b: Builder, layer: Layer, weights: Weights) -> Value:
    scales = weights.scales.astype(np.float32)
    return _dequantised(b, weights.integers, scales, layer.axis)


def _bias_place(layer: Layer) -> tuple[Op, int] | None:
    """The operand that is a layer's bias, or becomes it; None for a product without."""
    if layer.bias is not None:
        return layer.bias, 1 if layer.bias.operand(0) is layer.op.output else 0
    return None if layer.op.name == "MatMul" else (layer.op, 2)


def _real_bias(b: Builder, layer: Layer, weights: Weights, data: Parameters) -> Value:
    """A bias in floats: of an Add as it is, of others as integers in units of the sums."""
    assert weights.bias is not None
    if layer.bias is not None:
        number = 1 if layer.bias.operand(0) is layer.op.output else 0
        shape = layer.bias.operand(number).tensor.static_shape
        return b.constant(weights.bias.astype(np.float32).reshape(shape))
    units = weights.scales.astype(np.float32) * np.float32(data.scale)
    whole = np.clip(np.rint(weights.bias / units), -LARGEST, LARGEST).astype(np.int32)
    return _dequantised(b, whole, units, 0)


def _dequantised(b: Builder, integers: np.ndarray, scales: np.ndarray, axis: int) -> Value:
    """Integers in floats, with a scale along an axis: one for all where they are equal."""
    zeros = np.zeros(len(scales), integers.dtype)
    if (scales == scales[0]).all():
        return b.DequantizeLinear(b.constant(integers), b.constant(scales[0]), b.constant(zeros[0]))
    return b.DequantizeLinear(b.constant(integers), scales, zeros, axis=axis)


def _set(op: Op, number: int, value: Value) -> None:
    if len(op.inputs) > number:
        op.set_input(number, value)
    else:
        op.add_input(value)


def _put_constants(op: Op, like: Parameters) -> None:
    """Constants of sums and products, which are quantised like other operands."""
    if op.name not in ("Add", "Sub", "Mul"):
        return
    for number, value in enumerate(op.inputs):
        contents = None if value is None else value.constant
        if contents is None or operands(op) == []:
            continue
        statistics = Statistics()
        statistics.add(contents)
        p = chosen(statistics, like.dtype, "minmax")
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
