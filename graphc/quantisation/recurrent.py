"""Recurrent layers with weights of 8 bits.

An LSTM becomes ONNX Runtime's DynamicQuantizeLSTM (domain com.microsoft): what it reads and its
states are quantised as they come, so products are of integers. That is for static sizes: the steps
are written out. Others, GRU and RNN, for which there is no such operator, keep float products, of
weights that are stored in 8 bits with a scale for each row (DequantizeLinear). Where everything is
to be integers, that is what all become, and what they read is quantised too, with one scale:
targets without fast floats compute such layers in fixed point
(passes/rules/quantised/recurrences.py).

Rows are rounded with error feedback, as those of other layers: W by the second moments of the
input, R by those of the states, which are the results of the steps before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, Op, Value, copy_op
from graphc.ir.ops.helpers import RUNTIME
from graphc.ir.ops.long_recurrent import MOST_STEPS, steps_of
from graphc.quantisation import rewriting, rounding
from graphc.quantisation.layers import all_layers, distinct
from graphc.quantisation.moments import DRAWN, Moments
from graphc.quantisation.ranges import Parameters
from graphc.quantisation.statistics import Statistics
from graphc.quantisation.weights import LARGEST

RECURRENT = ("LSTM", "GRU", "RNN")
W, R, B = 1, 2, 3
"""Operands: weights of the input, of the state, and biases of both in a row."""


@dataclass(eq=False)
class RecurrentLayer:
    """A recurrent op with constant weights; `name` is that of its node, made distinct."""

    op: Op
    name: str

    @property
    def end(self) -> Value:
        """The result of all steps."""
        return self.op.outputs[0]

    @property
    def data(self) -> Value:
        return self.op.operand(0)

    @property
    def is_integer(self) -> bool:
        """Whether there is a form of integer products."""
        op = self.op
        type = op.operand(0).tensor
        return (
            op.name == "LSTM"
            and not op.attrs.get("layout", 0)
            and type.is_static
            and 0 < steps_of(op.operand(0), 0) <= MOST_STEPS
        )

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self._weights(W).size + self._weights(R).size

    @property
    def multiplications(self) -> float:
        """Of all steps and samples."""
        dims = self.data.tensor.dims[:2]
        places = [extent if isinstance(extent, int) else 1 for extent in dims]
        return float(self.size * places[0] * places[1])

    def rows(self, number: int) -> np.ndarray:
        """The weights of an operand, [directions, rows, columns], in float64."""
        return self._weights(number).astype(np.float64)

    def bias(self) -> np.ndarray | None:
        """The biases, [directions, 2, rows]; None if they are not constant."""
        value = self.op.inputs[B] if len(self.op.inputs) > B else None
        ways, rows, _ = self._weights(W).shape
        if value is None:
            return np.zeros((ways, 2, rows))
        if value.constant is None:
            return None
        return value.constant.astype(np.float64).reshape(ways, 2, rows)

    def _weights(self, number: int) -> np.ndarray:
        contents = self.op.operand(number).constant
        assert contents is not None
        return contents


@dataclass
class RecurrentWeights:
    """Integers [directions, rows, columns] and scales [directions, rows] of W and of R; the biases
    [directions, 2, rows], None if they stay what they are. `data` is how the input is quantised,
    if it is once and for all."""

    codes: Mapping[int, np.ndarray]
    scales: Mapping[int, np.ndarray]
    bias: np.ndarray | None
    data: Parameters | None = None


def recurrent_layers(graph: Graph) -> list[RecurrentLayer]:
    """The recurrent layers of a graph whose weights are constant and float32, their names others
    than those of its other layers."""
    layers: list[RecurrentLayer] = []
    taken = {layer.name for layer in all_layers(graph)}
    for op in graph.ops:
        if op.name not in RECURRENT or op.defn.domain or not op.outputs:
            continue
        operands = op.inputs[: R + 1]
        if not all(v is not None and _is_float(v) for v in operands):
            continue
        if any(v is None or not _is_finite(v) for v in operands[1:]):
            continue
        name = distinct(op.loc[0] if op.loc else op.outputs[0].name, taken)
        layers.append(RecurrentLayer(op, name))
    return layers


def _is_float(value: Value) -> bool:
    return value.is_ranked and value.tensor.dtype is dtypes.f32


def _is_finite(value: Value) -> bool:
    return value.constant is not None and bool(np.isfinite(value.constant).all())


class RecurrentMoments:
    """What samples say of the inputs and of the states of a layer, those of each direction."""

    def __init__(self, layer: RecurrentLayer):
        ways, _, inputs = layer.rows(W).shape
        self.batch_first = bool(layer.op.attrs.get("layout", 0))
        self.inputs = Moments.empty(1, inputs)
        self.states = Moments.empty(ways, layer.rows(R).shape[2])
        self.statistics = Statistics()

    def add(self, data: np.ndarray, results: np.ndarray, seed: int) -> None:
        """Takes the input and the result of all steps for a sample."""
        if self.batch_first:  # [batch, steps, directions, hidden]
            results = results.transpose(1, 2, 0, 3)
        self.statistics.add(data)
        rng = np.random.default_rng(seed)
        read = data.reshape(1, -1, data.shape[-1])
        states = results.transpose(1, 0, 2, 3).reshape(results.shape[1], -1, results.shape[-1])
        for moments, rows in ((self.inputs, read), (self.states, states)):
            drawn = rng.permutation(rows.shape[1])[:DRAWN]
            moments.add(rows[:, drawn].astype(np.float32))


def rounded(layer: RecurrentLayer, moments: RecurrentMoments) -> RecurrentWeights:
    """The integers of a layer. Biases make up for what rounding changes in the mean, but those of
    GRU's states, which gates multiply."""
    codes: dict[int, np.ndarray] = {}
    scales: dict[int, np.ndarray] = {}
    bias = layer.bias()
    for number, own in ((W, moments.inputs), (R, moments.states)):
        rows = layer.rows(number)
        corrects = bias is not None and (number == W or layer.op.name != "GRU")
        seconds = own.estimated(corrects)
        codes[number], scales[number] = np.empty(rows.shape), np.empty(rows.shape[:2])
        for way, matrix in enumerate(rows):
            known = seconds[min(way, len(seconds) - 1)]
            steps = rounding.scales_of(matrix, LARGEST, known)
            scales[number][way] = steps
            codes[number][way] = rounding.with_feedback(matrix, steps, LARGEST, known)
        lost = rows - codes[number] * scales[number][:, :, None]
        if corrects and bias is not None:
            bias[:, number - 1] += _means(own, lost)
    return RecurrentWeights(codes, scales, bias)


def _means(moments: Moments, lost: np.ndarray) -> np.ndarray:
    """The means of what rows [directions, rows, columns] sum up to."""
    if len(moments.sums) == len(lost):
        return moments.mean_of(lost.reshape(-1, lost.shape[2])).reshape(lost.shape[:2])
    return np.stack([moments.mean_of(matrix) for matrix in lost])


def put(graph: Graph, layer: RecurrentLayer, made: RecurrentWeights) -> Op:
    """Puts the layer with these weights before the layer's op, whose readers stay; the new op."""
    if layer.is_integer and made.data is None:
        return _integer(graph, layer.op, made)
    copy = copy_op(layer.op, graph, {v: v for v in layer.op.inputs if v is not None}, layer.op)
    _store(copy, made)
    return copy


def replace(graph: Graph, layer: RecurrentLayer, made: RecurrentWeights) -> None:
    """The layer with these weights in place of what it was."""
    if not layer.is_integer or made.data is not None:
        _store(layer.op, made)
        return
    new = _integer(graph, layer.op, made)
    for old, value in zip(layer.op.outputs, new.outputs):
        name = old.name
        old.replace_uses(value)
        old.name, value.name = "", name
    layer.op.erase()


def _integer(graph: Graph, op: Op, made: RecurrentWeights) -> Op:
    """A DynamicQuantizeLSTM."""
    b = Builder(graph, op, op.loc)
    inputs = [*op.inputs, *[None] * (8 - len(op.inputs))]
    inputs[B] = _bias(b, made) or inputs[B]
    scales = []
    for number in (W, R):
        codes = made.codes[number].transpose(0, 2, 1)
        inputs[number] = b.constant(np.ascontiguousarray(codes).astype(np.int8))
        steps = made.scales[number].astype(np.float32)
        scales += [b.constant(steps), b.constant(np.zeros(steps.shape, np.int8))]
    attrs = {name: value for name, value in op.attrs.items() if name != "layout"}
    results = b.op(
        "DynamicQuantizeLSTM", *inputs, *scales, outputs=len(op.outputs), domain=RUNTIME, **attrs
    )
    first = results if isinstance(results, Value) else results[0]
    assert first.producer is not None
    return first.producer


def _store(op: Op, made: RecurrentWeights) -> None:
    """Gives an op weights in floats of codes, with a scale for each row, and the input likewise if
    it is quantised."""
    b = Builder(op.region, op, op.loc)  # type: ignore[arg-type]
    if made.data is not None:
        op.set_input(0, rewriting.pair(b, op.operand(0), made.data))
    for number in (W, R):
        op.set_input(number, _stored(b, made.codes[number], made.scales[number]))
    bias = _bias(b, made)
    if bias is not None:
        if len(op.inputs) > B:
            op.set_input(B, bias)
        else:
            op.add_input(bias)


def _bias(b: Builder, made: RecurrentWeights) -> Value | None:
    if made.bias is None:
        return None
    return b.constant(made.bias.reshape(len(made.bias), -1).astype(np.float32))


def _stored(b: Builder, codes: np.ndarray, scales: np.ndarray) -> Value:
    """Weights in floats of codes, a scale for each row."""
    integers, steps = b.constant(codes.astype(np.int8)), scales.astype(np.float32)
    if len(codes) == 1:
        return b.DequantizeLinear(integers, steps[0], np.zeros(steps.shape[1], np.int8), axis=1)
    return b.DequantizeLinear(integers, steps[:, :, None], axis=2, block_size=codes.shape[2])
