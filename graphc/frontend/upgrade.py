"""Lifts nodes of older opsets to the meaning that graphc's operator definitions have.

`LIFTS` lists, per operator, what changed and in which opset: the rewrites for all changes after the
model's opset are applied in turn, so each of them only knows one change. Operators that are not
listed kept their meaning (only types were added). The rewrites work on single nodes while they are
imported, so sub-graphs, function bodies, foreign domains and models of any size need no special
care; where a rewrite depends on a rank that the model does not declare, it computes it with Shape,
which folds away once shapes are known. Sources: the ONNX operator changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.node import Node
from graphc.ir.dtypes import DType, boolean, f32, i64
from graphc.ir.dtypes import string as string_dtype
from graphc.ir.graph import Op, Region, Value
from graphc.ir.opdef import lookup
from graphc.ir.types import TensorType

OPSETS = {"": 28, "ai.onnx.ml": 5}  # the versions that graphc's definitions speak

Lift = Callable[[Node], None]
LIFTS: dict[tuple[str, str], list[tuple[int, Lift]]] = {}
EVERY = 1 << 30  # a version above all: for spellings that are normalised in every opset

IGNORED = frozenset({"consumed_inputs"})  # in-place hints of opset 1 to 5


def lift(node: Node) -> None:
    """Rewrites a node to the newest opset."""
    version = node.version
    while True:
        changes = LIFTS.get((node.domain, node.op_type), ())
        change = next((c for c in changes if c[0] > version), None)
        if change is None:
            return
        version = change[0]
        change[1](node)


def since(version: int, *names: str, domain: str = "") -> Callable[[Lift], Lift]:
    """Registers a rewrite for nodes of opsets before `version`."""

    def register(function: Lift) -> Lift:
        for name in names:
            changes = LIFTS.setdefault((domain, name), [])
            changes.append((version, function))
            changes.sort(key=lambda change: change[0])
        return function

    return register


# ---------------------------------------------------------------- attributes that became operands


def _to_operand(node: Node, attribute: str, position: int, dtype: DType = i64) -> None:
    value = node.attrs.pop(attribute, None)
    if value is not None:
        node.set_input(position, node.constant(value, dtype))


def _attributes_to_operands(version: int, names: str, *attributes: str, dtype: DType = i64) -> None:
    """Attributes that became operand 1 and those that follow."""

    def move(node: Node) -> None:
        for position, attribute in enumerate(attributes, 1):
            _to_operand(node, attribute, position, dtype)

    since(version, *names.split())(move)


_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare"
_attributes_to_operands(5, "Reshape", "shape")
_attributes_to_operands(13, "Squeeze Unsqueeze ReduceSum", "axes")
_attributes_to_operands(18, " ".join(f"Reduce{name}" for name in _REDUCTIONS.split()), "axes")
_attributes_to_operands(13, "Split", "split")
_attributes_to_operands(10, "Slice", "starts", "ends", "axes")
_attributes_to_operands(9, "Upsample", "scales", dtype=f32)


@since(10, "TopK")
def _top_k(node: Node) -> None:
    node.set_input(1, node.constant([node.attrs.pop("k")], i64))


@since(20, "DFT")
def _dft(node: Node) -> None:
    node.set_input(2, node.constant(node.attrs.pop("axis", 1), i64))


@since(11, "Clip")
def _clip(node: Node) -> None:
    for position, attribute in enumerate(("min", "max"), 1):
        bound = node.attrs.pop(attribute, None)
        if bound is not None:
            node.set_input(position, node.like(bound, node.required(0)))


@since(2, "Pad")
def _pad_names(node: Node) -> None:
    if "paddings" in node.attrs:
        node.attrs["pads"] = node.attrs.pop("paddings")


@since(11, "Pad")
def _pad(node: Node) -> None:
    _to_operand(node, "pads", 1)
    value = node.attrs.pop("value", 0.0)
    if value:
        node.set_input(2, node.like(value, node.required(0)))


@since(6, "Tile")
def _tile(node: Node) -> None:
    """Tile-1 repeats one axis `tiles` times; both are operands."""
    x, tiles, axis = (node.required(n) for n in range(3))
    one = node.constant([1], i64)
    tiles, axis = (node.emit("Reshape", node.emit("Cast", v, to=7), one) for v in (tiles, axis))
    ones = node.emit("Expand", one, _rank(node, x))
    node.inputs = [x, node.emit("ScatterElements", ones, axis, tiles, axis=0)]


@since(2, "Split")
def _split_operand(node: Node) -> None:
    """Split-1 may give the lengths as an operand of the type of the data."""
    if node.input(1) is not None:
        node.set_input(1, node.emit("Cast", node.input(1), to=i64.onnx))


@since(18, "Split")
def _split_count(node: Node) -> None:
    if node.input(1) is None:
        node.attrs["num_outputs"] = len(node.outputs)


# ---------------------------------------------------------------- broadcasting before opset 7


def _rank(node: Node, value: Value) -> Value:
    """The rank of a value, as an i64[1]."""
    return node.emit("Shape", node.emit("Shape", value))


def _append_ones(node: Node, value: Value, count: Value) -> Value:
    """Reshapes a value to have `count` (i64[1], no less than 0) more trailing dims of 1."""
    ones = node.emit("Expand", node.constant([1], i64), count)
    shape = node.emit("Concat", node.emit("Shape", value), ones, axis=0)
    return node.emit("Reshape", value, shape, allowzero=1)


@since(7, "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
def _broadcast(node: Node) -> None:
    """The dims of the second operand begin at `axis` of the first; without it they are the last."""
    axis, enabled = node.attrs.pop("axis", None), node.attrs.pop("broadcast", 0)
    if axis is None or not enabled:
        return
    a, b = node.required(0), node.required(1)
    rank_a, rank_b = node.rank_of(a), node.rank_of(b)
    if axis >= 0 and rank_a is not None and rank_b is not None:
        count = node.constant([max(0, rank_a - axis - rank_b)], i64)
    else:
        start = node.constant([axis], i64)
        end = node.emit("Sub", _rank(node, a), start) if axis >= 0 else node.emit("Neg", start)
        count = node.emit("Sub", end, _rank(node, b))
    node.set_input(1, _append_ones(node, b, count))


@since(7, "PRelu")
def _prelu(node: Node) -> None:
    """A slope with one item per channel, where dim 1 of the data is the channel."""
    x, slope = node.required(0), node.required(1)
    if node.rank_of(slope) == 0 or (node.rank_of(slope) == 1 and slope.tensor.shape == (1,)):
        return
    missing = node.emit("Sub", _rank(node, x), _rank(node, slope))
    count = node.emit("Sub", missing, node.constant([1], i64))
    count = node.emit("Max", count, node.constant([0], i64))
    node.set_input(1, _append_ones(node, slope, count))


# ---------------------------------------------------------------- defaults and spellings


def _default(version: int, name: str, **defaults: Any) -> None:
    def fill(node: Node) -> None:
        node.attrs = {**defaults, **node.attrs}

    since(version, name)(fill)


def _without(version: int, names: str, attribute: str) -> None:
    """An attribute that says nothing."""
    since(version, *names.split())(lambda node: node.attrs.pop(attribute, None))


def _renamed(version: int, old: str, new: str) -> None:
    since(version, old)(lambda node: setattr(node, "op_type", new))


_default(4, "Concat", axis=1)
_default(6, "Selu", alpha=1.6732, gamma=1.0507)
_default(16, "RoiAlign", coordinate_transformation_mode="output_half_pixel")
_without(7, "Gemm", "broadcast")
_without(7, "RNN GRU LSTM", "output_sequence")
_renamed(11, "Scatter", "ScatterElements")
_renamed(10, "Upsample", "Resize")


@since(6, "Cast")
def _cast(node: Node) -> None:
    name = node.attrs.get("to")
    if name not in dict(TensorProto.DataType.items()):
        raise ModelError(f"attribute 'to' is {name!r}, not the name of an element type")
    node.attrs["to"] = TensorProto.DataType.Value(name)


@since(2, "LpPool", "GlobalLpPool")
def _integer_norm(node: Node) -> None:
    p = node.attrs.get("p", 2.0)
    if p != int(p):
        raise UnsupportedError(f"the norm p = {p} is not an integer")
    node.attrs["p"] = int(p)


@since(20, "GridSample")
def grid_sample_modes(node: Node) -> None:
    """Modes were called after images."""
    mode = node.attrs.get("mode", "bilinear")
    node.attrs["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


@since(7, "Dropout")
def _dropout_mode(node: Node) -> None:
    if not node.attrs.pop("is_test", 0):
        node.attrs["training"] = True


@since(10, "Dropout")
def _dropout_mask(node: Node) -> None:
    """The mask had the type of the data."""
    x = node.required(0)
    if node.output_wanted(1):
        node.finish.append(lambda outputs: [outputs[0], node.emit("CastLike", outputs[1], x)])


@since(12, "Dropout")
def _dropout(node: Node) -> None:
    ratio = node.attrs.pop("ratio", 0.5)
    if node.attrs.pop("training", False):
        node.set_input(1, node.like(ratio, node.required(0)))
        node.set_input(2, node.constant(True, boolean))


# ---------------------------------------------------------------- normalisation


@since(7, "BatchNormalization")
def _batch_norm_mode(node: Node) -> None:
    node.attrs["training_mode"] = int(not node.attrs.pop("is_test", 0))


@since(9, "BatchNormalization")
def _batch_norm_spatial(node: Node) -> None:
    """spatial=0 has statistics for every position: Y = (X - mean) / sqrt(var + eps) * scale + B."""
    if node.attrs.pop("spatial", 1):
        return
    if node.attrs.get("training_mode") or any(node.outputs[1:]):
        raise UnsupportedError("training with spatial=0 is not supported")
    x, scale, bias, mean, variance = (node.required(n) for n in range(5))
    epsilon = node.like(node.attrs.get("epsilon", 1e-5), x)
    deviation = node.emit("Sqrt", node.emit("Add", variance, epsilon))
    normal = node.emit("Div", node.emit("Sub", x, mean), deviation)
    node.rename("Add", [node.emit("Mul", normal, scale), bias])


@since(14, "BatchNormalization")
def _batch_norm_outputs(node: Node) -> None:
    """More than one output asked for training; the saved statistics are gone."""
    training = node.attrs.setdefault("training_mode", int(any(node.outputs[1:])))
    if any(node.outputs[3:]):
        raise UnsupportedError("the outputs saved_mean and saved_var are not supported")
    node.outputs = node.outputs[: 3 if training else 1]


@since(21, "GroupNormalization")
def _group_norm(node: Node) -> None:
    """Scale and bias had one item per group; they get one per channel."""
    x, groups = node.required(0), node.attrs.get("num_groups", 1)
    channels = node.emit("Shape", x, start=1, end=2)
    size = node.emit("Div", channels, node.constant([groups], i64))
    wide = node.emit("Concat", node.constant([groups], i64), size, axis=0)
    for position in (1, 2):
        column = node.emit("Unsqueeze", node.required(position), node.constant([1], i64))
        node.set_input(position, node.emit("Reshape", node.emit("Expand", column, wide), channels))


@since(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node) -> None:
    """These worked on the matrix that Flatten(axis) makes."""
    x, axis = node.required(0), node.attrs.get("axis", 1)
    node.attrs["axis"] = -1
    if axis == -1 or axis + 1 == node.rank_of(x):
        return
    node.set_input(0, node.emit("Flatten", x, axis=axis))

    def restore(outputs: Sequence[Value]) -> list[Value]:
        return [node.emit("Reshape", outputs[0], node.emit("Shape", x), allowzero=1)]

    node.finish.append(restore)


@since(EVERY, "SimplifiedLayerNormalization")
def _simplified_layer_norm(node: Node) -> None:
    """ONNX Runtime's name, in ONNX's domain, of what opset 23 has; a second output is its own."""
    if not node.output_wanted(1):
        node.op_type = "RMSNormalization"


# ---------------------------------------------------------------- resampling


@since(7, "Upsample")
def _upsample_attributes(node: Node) -> None:
    height, width = (node.attrs.pop(f"{side}_scale", None) for side in ("height", "width"))
    if height is not None and width is not None:
        node.attrs["scales"] = (1.0, 1.0, height, width)
    if node.attrs.get("mode") == "bilinear":
        node.attrs["mode"] = "linear"


@since(11, "Resize")
def _resize(node: Node) -> None:
    """Position = index / scale; nearest took the floor upwards and the ceiling downwards."""
    x, scales = node.required(0), node.required(1)
    mode = node.attrs.get("mode", "nearest")
    common = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    known = scales.constant
    if mode == "nearest" and known is not None and (known < 1).any():
        down = np.minimum(known, 1)
        if (known > 1).any():
            up = node.constant(np.maximum(known, 1), f32)
            x = node.emit("Resize", x, None, up, nearest_mode="floor", **common)
        node.rename("Resize", [x, None, node.constant(down, f32)], nearest_mode="ceil", **common)
    else:
        node.rename("Resize", [x, None, scales], nearest_mode="floor", **common)


@since(EVERY, "Resize")
def _resize_operands(node: Node) -> None:
    """An empty tensor says that an operand is omitted."""
    for position in range(1, len(node.inputs)):
        value = node.inputs[position]
        if value is not None and value.constant is not None and value.constant.size == 0:
            node.inputs[position] = None


# ---------------------------------------------------------------- Scan


@since(9, "Scan")
def _scan(node: Node) -> None:
    """Scan-8 has a batch axis 0 and scans axis 1: a scan over the batch of scans."""
    if node.input(0) is not None:
        raise UnsupportedError("Scan-8 with sequence_lens is not supported")
    operands = node.inputs[1:]
    outer = node.scope.inner(Region())
    names = (f"{node.loc[0]}.batch_{n}" for n in range(len(operands)))
    params: list[Value | None] = [outer.region.add_param(None, name) for name in names]
    attrs = dict(node.attrs)
    directions = attrs.pop("directions", None)
    if directions is not None:
        attrs["scan_input_directions"] = directions
    inner = Node(
        "Scan", "", EVERY, params, attrs, node.graphs, node.outputs, outer, node.build, node.loc
    )
    outer.region.set_results(node.build(inner))
    captured = list(outer.captures)
    node.graphs = {}
    made = Op(
        lookup("Scan"),
        [*operands, *(node.scope.find(name) for name in captured)],
        {"num_scan_inputs": len(operands), "captures": len(captured)},
        len(node.outputs),
        [outer.region],
        node.loc,
    )
    node.built = node.scope.region.append(made).outputs


# ---------------------------------------------------------------- ai.onnx.ml


@since(2, "LabelEncoder", domain="ai.onnx.ml")
def _label_encoder(node: Node) -> None:
    """One list of classes mapped strings to their numbers, or numbers to strings."""
    classes = node.attrs.pop("classes_strings", None)
    source = node.required(0).type
    if classes is None or not isinstance(source, TensorType):
        raise UnsupportedError("LabelEncoder-1 needs classes_strings and an input of known type")
    numbers = tuple(range(len(classes)))
    if source.dtype is string_dtype:
        node.attrs.pop("default_string", None)
        node.attrs |= {"keys_strings": classes, "values_int64s": numbers}
    else:
        node.attrs.pop("default_int64", None)
        node.attrs |= {"keys_int64s": numbers, "values_strings": classes}
